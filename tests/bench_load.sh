#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How fast weights come from storage to the GPUs, against what the storage gives.  By hand, on a machine with a GPU;
# needs python3, and no right but to read the files:
#
#   tests/bench_load.sh [-r ROUNDS] [-l LAUNCHER] [-x LONGFILL] CHECKPOINT [ARGUMENT-OF-PREFILL...]
#   tests/bench_load.sh -l "mpirun -n 8" /data/flash --tp 2
#
# A round, of four: the files are dropped from the page cache and read in pieces of 4 MiB, past the page cache where
# the file system can, by 8 threads, then by 16, then by 32; they are dropped again, and `longfill prefill` of one short
# prompt loads them; in every second round the other way round.  Before each it is looked at whether the files are out
# of the cache: another process that has them mapped keeps them there.  What the storage gives is the median of those
# threads whose median is best.  Printed are bytes a second, and the ratio of loading to that; exit 1 when it is below
# 0.8, 2 when nothing can be compared.
#
# With several ranks, what each of them reads counts for each, as load_bytes in the report does.  A cache behind this
# system's (of a virtual machine's host, of a file server) is not dropped.
exec python3 /dev/fd/3 "$@" 3<<'PYTHON'
import argparse
import ctypes
import glob
import json
import mmap
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PIECE, READERS, LEAST = 4 << 20, (8, 16, 32), 0.8


def unusable(text):
    print(f"bench_load.sh: {text}", file=sys.stderr)
    sys.exit(2)


def cached(name, fd):
    """The share of a file's pages that are in the page cache; None: not told to those who may not write the file."""
    size, libc = os.fstat(fd).st_size, ctypes.CDLL(None, use_errno=True)
    if size == 0 or not os.access(name, os.W_OK):
        return None if size else 0.0
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if at == ctypes.c_void_p(-1).value:
        return None
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    bad = libc.mincore(at, size, pages)
    libc.munmap(at, size)
    return None if bad else sum(p & 1 for p in bytes(pages)) / len(pages)


def drop(files):
    for name in files:
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)                                 # what is not yet written is not dropped
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        share = cached(name, fd)
        os.close(fd)
        if share is None:
            print(f"{name}: whether it is out of the page cache is told to who may write it only")
        elif share > 0.05:
            unusable(f"{name}: {100 * share:.0f} % stay in the page cache: has another process mapped it?")


def opened(name):
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECT), "past the page cache"
    except OSError:
        return os.open(name, os.O_RDONLY), "through the page cache"


def storage(files, readers):
    """Bytes a second of all files, read by so many threads, and how."""
    todo, failed, total = [], [], 0
    fds = [opened(name) for name in files]
    for fd, how in fds:
        size = os.fstat(fd).st_size
        total += size
        todo += [(fd, at, min(PIECE, size - at)) for at in range(0, size, PIECE)]
    todo.reverse()
    lock = threading.Lock()

    def reader():
        buffer = mmap.mmap(-1, PIECE)                # whole pages: so reads past the cache want it
        try:
            while True:
                with lock:
                    if not todo or failed:
                        return
                    fd, at, want = todo.pop()
                if os.preadv(fd, [buffer], at) < want:
                    raise OSError("a read ended early")
        except OSError as e:
            failed.append(str(e))

    threads = [threading.Thread(target=reader) for _ in range(readers)]
    start = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    seconds = time.monotonic() - start
    for fd, how in fds:
        os.close(fd)
    if failed:
        unusable(f"reading: {failed[0]}")
    return total / seconds, f"{total / 1e9:.2f} GB {fds[0][1]}, {readers} threads"


def load(args, into):
    """Bytes a second that a run's weights took to its devices."""
    prompts = os.path.join(into, "in.jsonl")
    with open(prompts, "w") as f:
        f.write('{"custom_id": "load", "token_ids": [0, 1, 2, 3]}\n')
    command = shlex.split(args.launcher) + [args.longfill, "prefill", "-m", args.checkpoint, "-i", prompts, "-o",
                                            os.path.join(into, "out"), "--overwrite", "--logits", "none", "--device",
                                            "cuda", "-q"] + args.rest
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as e:
        unusable(f"{command[0]}: {e.strerror}; -x and -l say what is run")
    if run.returncode:
        unusable(f"{shlex.join(command)}: exit {run.returncode}\n{run.stdout.decode(errors='replace')}")
    with open(os.path.join(into, "out", "report.json")) as f:
        report = json.load(f)
    if not report["load_bytes"]:
        unusable("load_bytes is 0: no weights went from files to a device")
    return report["load_bytes"] / report["load_s"], f"{report['load_bytes'] / 1e9:.2f} GB in {report['load_s']:.2f} s"


def main():
    p = argparse.ArgumentParser(prog="bench_load.sh", usage="%(prog)s [-r ROUNDS] [-l LAUNCHER] [-x LONGFILL] "
                                "CHECKPOINT [ARGUMENT-OF-PREFILL...]")
    p.add_argument("-r", dest="rounds", type=int, default=4, help="of reading and of loading (default 4)")
    p.add_argument("-l", dest="launcher", default="", help='such as "mpirun -n 2" (default: none, one rank)')
    p.add_argument("-x", dest="longfill", default="longfill", help="the program (default: that on PATH)")
    p.add_argument("checkpoint", metavar="CHECKPOINT", help="its weights in full: holes of --sparse read faster")
    rest = p.add_argument("rest", nargs=argparse.REMAINDER, metavar="ARGUMENT-OF-PREFILL", help="such as --tp 2")
    rest.required = False
    args = p.parse_args()
    files = sorted(glob.glob(os.path.join(args.checkpoint, "*.safetensors")))
    if not files or args.rounds < 1:
        unusable(f"{args.checkpoint} has no *.safetensors" if args.rounds > 0 else "there is no round to go")
    ways, of = list(READERS) + ["load"], {}
    with tempfile.TemporaryDirectory() as into:
        for i in range(args.rounds):
            for way in ways if i % 2 == 0 else reversed(ways):
                drop(files)
                rate, text = load(args, into) if way == "load" else storage(files, way)
                of.setdefault(way, []).append(rate)
                print(f"round {i + 1}, {'load' if way == 'load' else 'storage'}: {rate / 1e9:.3f} GB/s, {text}",
                      flush=True)
    s, g = max(statistics.median(of[n]) for n in READERS), statistics.median(of["load"])
    print(f"storage {s / 1e9:.3f} GB/s, load {g / 1e9:.3f} GB/s: {100 * g / s:.1f} %")
    return 0 if g >= LEAST * s else 1


sys.exit(main())
PYTHON
