#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do a profiler and the report agree on where a GPU's time goes?  By hand, on one GPU and one process:

  longfill synth --preset flash --sparse --set num_hidden_layers=4 DIR          # writes holes: no space, no weights
  tests/gpu_profile.py -- longfill bench --device cuda -m DIR --weights dummy -l 8k --repeat 1

  gpu_profile.py [--tool ncu|nsys] [--limit POINTS] [--keep FILE] -- LONGFILL bench|prefill ARGUMENT...
  gpu_profile.py --csv FILE --report FILE [--limit POINTS]                       # what was kept, without a GPU

The command, one process without mpirun, runs once alone and once under ncu, or nsys where there is no ncu or it may not
count: without --format, and for prefill without -o and --report, which are added.  On a GPU the phases are ranges of
NVTX (cuda/clock.cu).  Printed is, for each phase, the time of its kernels beside what the report says; exit 1 when a
share differs by more than --limit percentage points (5), 2 when nothing can be compared.

What is compared: shares of the phases that consist of kernels.  communication and write_wait are waits and copies on
one GPU: shown only.  ncu runs one kernel after another and counts neither gaps between them nor copies; kernels of
other queues than the one that most time is spent in are counted apart (nsys does not tell them apart).  A launch costs
ncu 10 to 50 ms, and the above makes a few thousand.  bench is better than prefill: its first pass, in which kernels are
loaded, is in the profile but not in the report.
"""
import argparse
import csv
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

KERNELS = ("projections", "indexer", "attention", "moe", "mhc", "head")
WAITS = ("communication", "write_wait")
PHASES = KERNELS + WAITS
METRIC = "gpu__time_duration.sum"
UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "s": 1.0}       # ns, nsecond, us, usecond, ... by their first letter
PLACES = {"ncu": ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu"),
          "nsys": ("/usr/local/cuda/bin/nsys", "/opt/nvidia/nsight-systems/*/bin/nsys")}


class Unusable(Exception):
    """Nothing can be compared; the text says why."""


class Profile:
    """Seconds of kernels by phase; of those on other queues; of those in no phase."""

    def __init__(self):
        self.of, self.beside, self.outside, self.launches = dict.fromkeys(PHASES, 0.0), 0.0, 0.0, 0


# ---- what profilers write ----

def table(text, first):
    """Rows of the CSV whose header begins with the column `first`, which may follow other lines."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if line.lstrip('"').startswith(first) and "," in line:
            rows = list(csv.reader(x for x in lines[at:] if not x.startswith("==")))
            bad = [row for row in rows if len(row) > 1 and len(row) != len(rows[0])]
            if bad:
                raise Unusable("a row with %d of %d columns: %s" % (len(bad[0]), len(rows[0]), ",".join(bad[0])))
            return [dict(zip(rows[0], row)) for row in rows[1:] if len(row) > 1]
    raise Unusable("no table that begins with %s in what the profiler wrote:\n%s" % (first, "\n".join(lines[-5:])))


def number(text):
    return float(text.replace(",", ""))


def ncu_phase(row):
    """The innermost range that is a phase.  A cell is: THREAD  "DOMAIN:RANGE:none:..."  "DOMAIN:RANGE:none:..." ...
    Without that column: kernels may have been given the names of their ranges."""
    cells = [v for k, v in row.items() if "Push/Pop_Range" in k]
    if not cells:
        return row["Kernel Name"] if row["Kernel Name"] in PHASES else None
    found = [name for name in re.findall(r"<default domain>:([^:\"]*)", cells[0]) if name in PHASES]
    return found[-1] if found else None


def ncu_launches(rows):
    """(row, seconds) of each launch: one row each with a column for the metric (and a first row of units), or a row for
    every metric."""
    if rows and METRIC in rows[0]:
        unit = rows[0][METRIC]
        if not unit or not unit[0].isalpha():
            raise Unusable("the profile has no unit of " + METRIC)
        return [(r, number(r[METRIC]) * UNITS[unit[0]]) for r in rows[1:]]
    return [(r, number(r["Metric Value"]) * UNITS[r["Metric Unit"][0]]) for r in rows if r.get("Metric Name") == METRIC]


def ncu_read(text):
    p, queues = Profile(), {}
    for row, seconds in ncu_launches(table(text, "ID")):
        phase, queue = ncu_phase(row), (row.get("Context", ""), row.get("Stream", ""))
        p.launches += 1
        if phase is None:
            p.outside += seconds
        else:
            of = queues.setdefault(queue, dict.fromkeys(PHASES, 0.0))
            of[phase] += seconds
    if queues:
        p.of = max(queues.values(), key=lambda of: sum(of.values()))
        p.beside = sum(sum(of.values()) for of in queues.values()) - sum(p.of.values())
    return p


def nsys_read(text):
    p = Profile()
    for row in table(text, "NVTX Range"):
        phase = row["NVTX Range"].rsplit(":", 1)[-1]           # ":moe" in the default domain
        if phase in PHASES:
            p.of[phase] += 1e-9 * number(row["Total Time (ns)"])
            p.launches += int(number(row["Kern Inst"]))
    return p


def profile_read(text):
    p = nsys_read(text) if "NVTX Range" in text else ncu_read(text)
    if sum(p.of[x] for x in KERNELS) <= 0:
        raise Unusable("none of the %d launches in the profile is in a phase: made without --nvtx?" % p.launches)
    return p


# ---- what the program writes ----

def report_read(text):
    """(seconds of each phase, passes in the profile for one in the report)"""
    r = json.loads(text)
    parts, passes = (r["cells"], r["repeat"] + 1) if "cells" in r else (r["ranks"], 1)
    if r["num_ranks"] != 1:
        raise Unusable("the report is of %d ranks: one process is compared with one profile" % r["num_ranks"])
    of = {x: sum(part[x + "_s"] for part in parts) for x in PHASES}
    if sum(of[x] for x in KERNELS) <= 0:
        raise Unusable("the report has no phases: nothing was computed")
    return of, passes


# ---- running them ----

def text_of(name):
    with open(name, encoding="utf-8") as f:
        return f.read()


def find(tool):
    there = [p for pattern in PLACES[tool] for p in sorted(glob.glob(pattern), reverse=True) if os.access(p, os.X_OK)]
    return shutil.which(tool) or next(iter(there), None)


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise Unusable("exit %d from: %s\n%s" % (done.returncode, " ".join(command), done.stdout[-2000:]))
    return done.stdout


def command_of(words, output):
    more = ["-o", output] if "prefill" in words[1:2] else []
    return words + ["--format", "json"] + more


def ncu_run(ncu, words, folder):
    log = os.path.join(folder, "ncu.csv")
    include = [x for phase in PHASES for x in ("--nvtx-include", phase + "/")]    # not what makes up weights
    try:
        run([ncu, "--target-processes", "application-only", "--clock-control", "none", "--cache-control", "none",
             "--metrics", METRIC, "--csv", "--page", "raw", "--print-units", "base", "--log-file", log, "--nvtx"]
            + include + command_of(words, os.path.join(folder, "ncu")))
    except Unusable as why:
        raise Unusable("%s\n%s" % (why, text_of(log)[-2000:] if os.path.exists(log) else "")) from why
    return text_of(log)


def nsys_run(nsys, words, folder):
    name = os.path.join(folder, "profile")
    run([nsys, "profile", "-t", "cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-f", "true", "-o", name]
        + command_of(words, os.path.join(folder, "nsys")))
    return run([nsys, "stats", "-r", "nvtx_kern_sum", "--format", "csv", "--force-export=true", name + ".nsys-rep"])


def profile_of(words, tools, folder):
    """What the first of the tools that can writes."""
    why = "there is no %s here: in PATH, the CUDA toolkit or /opt/nvidia" % " and no ".join(tools)
    for tool in tools:
        try:
            text = {"ncu": ncu_run, "nsys": nsys_run}[tool](find(tool), words, folder) if find(tool) else None
            if text is not None and profile_read(text):
                return text
        except Unusable as e:
            why = "%s: %s" % (tool, e)
            print("gpu_profile.py: " + why, file=sys.stderr)
    raise Unusable(why)


def measure(words, tools, keep):
    folder = tempfile.mkdtemp()
    try:
        report = run(command_of(words, os.path.join(folder, "alone")))
        text = profile_of(words, tools, folder)
    finally:
        shutil.rmtree(folder)
    for ending, what in ((".csv", text), (".json", report)) if keep else ():
        with open(keep + ending, "w", encoding="utf-8") as f:
            f.write(what)
    return text, report


# ---- the table ----

def compare(profile, report, passes, limit, out):
    """Prints; 1 when a share differs by more than `limit` points."""
    theirs, ours = (sum(of[x] for x in KERNELS) for of in (profile.of, report))
    worst = 0.0
    out.write("%-14s %12s %8s %12s %8s %8s\n" % ("phase", "profiler s", "share", "report s", "share", "differ"))
    for x in KERNELS:
        a, b = 100 * profile.of[x] / theirs, 100 * report[x] / ours
        worst = max(worst, abs(a - b))
        out.write("%-14s %12.6f %7.2f%% %12.6f %7.2f%% %+8.2f%s\n"
                  % (x, profile.of[x] / passes, a, report[x], b, a - b, " *" if abs(a - b) > limit else ""))
    out.write("%-14s %12.6f %8s %12.6f\n" % ("sum", theirs / passes, "", ours))
    for x in WAITS:
        out.write("%-14s %12.6f %8s %12.6f\n" % (x, profile.of[x] / passes, "", report[x]))
    for x, seconds in (("other queues", profile.beside), ("no phase", profile.outside)):
        out.write("%-14s %12.6f\n" % (x, seconds / passes))
    out.write("%d launches; shares differ by %.2f points at most, %g are allowed\n" % (profile.launches, worst, limit))
    return int(worst > limit)


def main(argv):
    words = argv[argv.index("--") + 1:] if "--" in argv else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="%(prog)s [OPTION]... -- COMMAND, or --csv FILE --report FILE")
    parser.add_argument("--tool", choices=["ncu", "nsys"])
    parser.add_argument("--limit", type=float, default=5.0)
    parser.add_argument("--keep", help="keep the profile and the report as FILE.csv and FILE.json")
    parser.add_argument("--csv")
    parser.add_argument("--report")
    o = parser.parse_args(argv[:argv.index("--")] if "--" in argv else argv)
    if bool(words) == bool(o.csv) or bool(o.csv) != bool(o.report):
        parser.error("either a command after --, or --csv and --report")
    try:
        if words:
            text, report = measure(words, [o.tool] if o.tool else ["ncu", "nsys"], o.keep)
        else:
            text, report = text_of(o.csv), text_of(o.report)
        return compare(profile_read(text), *report_read(report), o.limit, sys.stdout)
    except (Unusable, OSError, ValueError) as why:
        print("gpu_profile.py: %s" % why, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
