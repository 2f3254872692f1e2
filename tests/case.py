# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share: TAP, running the program over a case directory, reading its files."""
import json
import os
import shlex
import struct
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.environ.get("srcdir", os.path.dirname(os.path.abspath(__file__)))
GOLDEN = os.path.join(HERE, "..", "data", "golden")


class Tap:
    """Numbered results; a failure shows its first few reasons."""

    def __init__(self):
        self.count, self.failed = 0, 0

    def check(self, ok, what, *reasons):
        self.count += 1
        self.failed += not ok
        print(f"{'ok' if ok else 'not ok'} {self.count} - {what}")
        if not ok:
            for r in reasons[:6]:
                print("#", str(r).replace("\n", "\n# "))
        sys.stdout.flush()
        return ok

    def done(self):
        print(f"1..{self.count}")
        return 1 if self.failed else 0


def program():
    return os.environ.get("LONGFILL", os.path.join(HERE, "..", "build", "longfill"))


def prefill(case, out, *args, prefix="", env=None):
    """Run `longfill prefill` over the case's prompts; prefix: "mpirun -n 2 ...".  -> (exit code, stderr)
    LF_TEST_DEVICE=cuda runs a whole test on GPUs."""
    command = [*shlex.split(prefix), program(), "prefill", "-m", case, "-i", os.path.join(case, "prompts.jsonl"),
               "-o", out, "--device", os.environ.get("LF_TEST_DEVICE", "cpu"), *args]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(env or {})}, timeout=280)
    return done.returncode, done.stderr.decode(errors="replace")


def prompts(case):
    with open(os.path.join(case, "prompts.jsonl")) as f:
        return [json.loads(line) for line in f if line.strip()]


def config(case):
    with open(os.path.join(case, "config.json")) as f:
        return json.load(f)


def kv_path(out, custom_id):
    return os.path.join(out, "kv", custom_id + ".h5")


def scratch():
    return tempfile.TemporaryDirectory(prefix="longfill-test-")


def tensors(case, suffix):
    """The F32 tensors of a checkpoint whose names end in `suffix`."""
    found = {}
    for name in sorted(os.listdir(case)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(case, name), "rb") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            for k, v in json.loads(f.read(n)).items():
                if k.endswith(suffix) and v.get("dtype") == "F32":
                    lo, hi = v["data_offsets"]
                    f.seek(8 + n + lo)
                    found[k] = np.frombuffer(f.read(hi - lo), np.float32).reshape(v["shape"])
    return found


def rel(a, b):
    """Relative norm of a difference; NaN and different shapes are infinitely far."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape or not np.isfinite(a).all():
        return float("inf")
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30)) if b.size else 0.0
