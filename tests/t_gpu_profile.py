#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpu_profile.py without a GPU: what it makes of tables as ncu and nsys write them, of reports of this program, and of
programs in the place of the profilers."""
import io
import json
import os
import stat
import subprocess
import sys
import tempfile

import case as lf
import gpu_profile as gp

LONGFILL = os.environ.get("LONGFILL", "./longfill")
TINY = os.path.join(lf.HERE, "..", "data", "tiny")
SCRIPT = os.path.join(lf.HERE, "gpu_profile.py")
RANGES = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
tap = lf.Tap()

# phase, stream, nanoseconds; None: in no range
LAUNCHES = [("projections", 7, 400), ("attention", 7, 1500), ("moe", 7, 2000), ("moe", 7, 1234567), ("moe", 14, 90),
            (None, 7, 33), ("indexer", 7, 600), ("mhc", 7, 300), ("head", 7, 50), ("write_wait", 7, 20),
            ("communication", 14, 10)]


def quoted(*fields):
    return ",".join('"%s"' % str(f).replace('"', '""') for f in fields) + "\n"


def cell(phase):
    """A range of another library inside, one that encloses all, and names that only look like a phase's."""
    if phase is None:
        return '1  "<default domain>:loading moe:none:none:none:none:none:none"'
    return "4711  " + "  ".join('"%s:none:none:none:none:none:none"' % x for x in (
        "<default domain>:head", "<default domain>:" + phase, "other:mhc", "<default domain>:kv"))


def wide(unit="ns", scale=1.0, ranges=True):
    text = "==PROF== Connected to process 4711 (longfill)\n==PROF== Profiling \"x\": 0%....100% - 1 pass\n"
    column = [RANGES] if ranges else []
    text += quoted("ID", "Process ID", *column, "Kernel Name", "Context", "Stream", gp.METRIC)
    text += quoted("", "", *[""] * len(column), "", "", "", unit)
    for i, (phase, stream, ns) in enumerate(LAUNCHES):
        name = "void k<2, 3>(int *, char)" if ranges else phase or "fill"
        text += quoted(i, 4711, *[cell(phase)] * len(column), name, 1, stream, "{:,}".format(ns * scale))
    return text + "==PROF== Disconnected from process 4711\n"


def long_rows():
    text = quoted("ID", RANGES, "Kernel Name", "Context", "Stream", "Metric Name", "Metric Unit", "Metric Value")
    for i, (phase, stream, ns) in enumerate(LAUNCHES):
        for metric, value in (("launch__grid_size", 132), (gp.METRIC, ns / 1e3)):
            text += quoted(i, cell(phase), "k", 1, stream, metric, "us", value)
    return text


def nsys():
    text = "Generating SQLite file\nProcessing [a.sqlite] with [nvtx_kern_sum.py]...\n\n"
    text += "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Kernel Name\n"
    for phase, _, ns in LAUNCHES:
        text += ':%s,PushPop,1,1,3,2,%d,1.0,"void k<2, 3>(int *, char)"\n' % (phase or "loading", ns)
    return text + "\n"


def expected(streams):
    return {x: 1e-9 * sum(ns for phase, stream, ns in LAUNCHES if phase == x and stream in streams) for x in gp.PHASES}


def near(got, want):
    return all(abs(got[x] - want[x]) < 1e-15 for x in gp.PHASES)


def parsing():
    for what, text in (("ncu", wide()), ("ncu in microseconds", wide("usecond", 1e-3)), ("a row a metric", long_rows()),
                       ("ncu with renamed kernels", wide(ranges=False))):
        p = gp.profile_read(text)
        ok = near(p.of, expected([7])) and p.launches == 11 and abs(p.outside - 33e-9) < 1e-15
        tap.check(ok and abs(p.beside - 100e-9) < 1e-15, "%s: phases, other queues, launches in no phase" % what,
                  p.of, p.beside, p.outside, p.launches)
    p = gp.profile_read(nsys())
    tap.check(near(p.of, expected([7, 14])) and p.launches == 20, "nsys: phases of all queues", p.of, p.launches)
    for what, text in (("no table", "==ERROR== ERR_NVGPUCTRPERM\n"), ("no kernels", wide().split('"0"')[0]),
                       ("no ranges", wide().replace("<default domain>", "another")),
                       ("a row cut short", wide().replace(',"7","50.0"', ',"7"')),
                       ("no unit", wide(unit=""))):
        try:
            tap.check(False, what + " is refused", gp.profile_read(text).of)
        except gp.Unusable as why:
            tap.check(True, "%s is refused: %s" % (what, str(why).split("\n")[0]))


def report(cells=None, ranks=None, **phases):
    r = {"num_ranks": 1, "repeat": 3}
    r["cells" if cells else "ranks"] = [dict({x + "_s": 0.0 for x in gp.PHASES}, **{k + "_s": v for k, v in p.items()})
                                        for p in (cells or ranks or [phases])]
    return json.dumps(r)


def comparing():
    same = {x: 1e3 * s for x, s in expected([7]).items()}
    profile, out = gp.profile_read(wide()), io.StringIO()
    tap.check(gp.compare(profile, *gp.report_read(report(**same)), 5.0, out) == 0, "the same shares", out.getvalue())
    same["write_wait"] = 1e3
    tap.check(gp.compare(profile, *gp.report_read(report(**same)), 0.01, io.StringIO()) == 0, "waits do not count")
    theirs = {"moe": 70.0, "attention": 20.0, "projections": 10.0}
    for moved, want in ((4.9, 0), (5.1, 1)):
        p, out = gp.Profile(), io.StringIO()
        p.of.update(moe=70.0 - moved, attention=20.0 + moved, projections=10.0)
        got = gp.compare(p, *gp.report_read(report(**theirs)), 5.0, out)
        tap.check(got == want and out.getvalue().count(" *") == 2 * want, "%g points off: exit %d" % (moved, want),
                  out.getvalue())
    p.of.update(theirs)
    of, passes = gp.report_read(report(cells=[theirs, theirs]))
    tap.check(of["moe"] == 140.0 and passes == 4, "cells of bench add up, and each ran once more than it was timed")
    for what, text in (("two ranks", report(ranks=[theirs]).replace('"num_ranks": 1', '"num_ranks": 2')),
                       ("no phases", report(moe=0.0))):
        try:
            tap.check(False, what + " are refused", gp.report_read(text))
        except gp.Unusable as why:
            tap.check(True, "%s are refused: %s" % (what, why))


def script(name, text):
    with open(name, "w", encoding="utf-8") as f:
        f.write("#!%s\nimport os, sys\n%s" % (sys.executable, text))
    os.chmod(name, os.stat(name).st_mode | stat.S_IXUSR)


def profile(folder, *args):
    env = dict(os.environ, PATH=folder + os.pathsep + os.environ["PATH"], OMPI_MCA_ess_singleton_isolated="1",
               OMP_NUM_THREADS="1", ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
    return subprocess.run([sys.executable, "-B", SCRIPT, *args], env=env, text=True, capture_output=True)


# A profiler that knows what the program will report: shares are what the program printed under it.
NCU = """
import csv, json, subprocess
at = next(i for i, x in enumerate(sys.argv) if os.path.basename(x).startswith("longfill"))
mine, program = sys.argv[1:at], sys.argv[at:]
r = json.loads(subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout)
r = (r["cells"] if "cells" in r else r["ranks"])[0]
ranges = [x for i, x in enumerate(mine) if mine[i - 1] == "--nvtx-include"]
assert "--nvtx" in mine and len(ranges) == 8
with open(mine[mine.index("--log-file") + 1], "w") as f:
    f = csv.writer(f)
    f.writerows([["ID", "Kernel Name", "RANGES", "gpu__time_duration.sum"], ["", "", "", "ns"]])
    for x in ranges:
        f.writerow([1, "k", '1  "<default domain>:' + x[:-1] + ':none"', round(1e9 * r[x[:-1] + "_s"])])
""".replace("RANGES", RANGES)


def running():
    with tempfile.TemporaryDirectory() as folder:
        script(os.path.join(folder, "ncu"), NCU)
        for command in (["bench", "-l", "600", "--repeat", "1"],
                        ["prefill", "-i", os.path.join(lf.HERE, "..", "data", "quickstart.jsonl")]):
            keep = os.path.join(folder, command[0])
            done = profile(folder, "--limit", "60", "--keep", keep, "--", LONGFILL, *command, "-m", TINY, "--device",
                           "cpu")
            tap.check(done.returncode == 0 and done.stdout.count("\n") == 13 and "moe" in done.stdout,
                      "%s, run alone and under a profiler" % command[0], done.stdout, done.stderr)
            kept = profile(folder, "--limit", "60", "--csv", keep + ".csv", "--report", keep + ".json")
            tap.check(kept.returncode == 0 and kept.stdout == done.stdout, "what was kept gives the same table",
                      kept.stdout, kept.stderr)
        script(os.path.join(folder, "ncu"), "print('==ERROR== ERR_NVGPUCTRPERM')\nsys.exit(1)\n")
        script(os.path.join(folder, "nsys"), "if sys.argv[1] == 'stats': print(%r)\n" % nsys())
        command = ["--limit", "100", "--", LONGFILL, "bench", "-l", "9", "--repeat", "1", "-m", TINY, "--device", "cpu"]
        done = profile(folder, *command)
        tap.check(done.returncode == 0 and "ERR_NVGPUCTRPERM" in done.stderr and "20 launches" in done.stdout,
                  "ncu that may not count: nsys", done.stdout, done.stderr)
        done = profile(folder, "--tool", "ncu", *command)
        tap.check(done.returncode == 2 and "ERR_NVGPUCTRPERM" in done.stderr and not done.stdout, "or nothing",
                  done.stdout, done.stderr)


parsing()
comparing()
running()
sys.exit(tap.done())
