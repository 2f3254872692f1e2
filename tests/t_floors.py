#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shape of the tree: floors, which library each place may know, sizes, what the build lists.

A file includes headers of its own floor or lower ones.  A file belongs to the longest name of FLOORS that it begins
with (kvfile_read.c belongs to kvfile).  src/cpu and cuda stand beside the model: they see floors 0 to 2.
"""
import os
import re
import sys

FLOORS = {
    0: "base file log json hash num",
    1: "options field safetensors selfcheck inventory synth request idfile model grid shard traffic memory kvlayout "
       "tokenizer added alphabet bpe charset pattern pretokenize unicode",
    2: "dev dev_cuda",
    3: "topo coll device",
    4: "weight layer attention compressor head merge moe out pass prefill probe state",
    5: "h5 kvfile kvindex kvmaster kvread kvrows kvschema kvshare kvspans kvtable kvtail kvverify kvwrite report "
       "results writer",
    6: "bench cmd command job main plan",
}
BACKEND_FLOOR = 2
# files of a backend that implement a header of a higher floor
IMPLEMENTS = {"cuda/nccl.cu": "src/coll_nccl.h"}

# header -> where it may be included, as a pattern on the file's path
LIBRARIES = {
    r"mpi\.h": r"src/(topo|coll|job|cmd_|main)\w*\.[ch]$|tests/p\d*_\w+\.c$",
    r"hdf5(_hl)?\.h|H5\w*\.h": r"src/(h5|kv|writer|report|results|cmd_)\w*\.[ch]$|tests/\w+\.c$",
    r"pcre2\.h": r"src/(tokenizer|pretokenize|pattern)\w*\.[ch]$|tests/\w+\.c$",
    r"blis\.h|cblas\.h": r"src/cpu/\w+\.[ch]$",
    r"cuda_\w+\.h|cuda\.h|cublas\w*\.h|nccl\.h": r"cuda/\w+\.cuh?$",
}
# 500 lines (CUDA: 400) and 110 columns are meant; these are where it fails.
MAX_LINES = {".c": 520, ".h": 520, ".cu": 420, ".cuh": 420}
MAX_COLUMNS = 120
MAX_FUNCTION = 80
TEXT = (".c", ".h", ".cu", ".cuh", ".sh", ".py", ".am", ".m4", ".ac", ".md", ".1", "")
# Written so that this file does not match itself.
MACHINE_PATHS = re.compile(r"/wor[k]/|/tmp/[b]ash_|/hom[e]/|/roo[t]/|/[U]sers/")

TOP = os.path.normpath(os.path.join(os.environ.get("srcdir", os.path.dirname(os.path.abspath(__file__))), ".."))
NAME_FLOOR = {name: floor for floor, names in FLOORS.items() for name in names.split()}
count = failed = 0


def check(problems, what):
    """One TAP result from a list of problems, the first ten of which are shown."""
    global count, failed
    count += 1
    failed += bool(problems)
    print("%sok %d - %s" % ("not " if problems else "", count, what))
    for text in problems[:10]:
        print("# " + text)


def tree(*folders, ext=TEXT):
    for folder in folders:
        for where, dirs, names in os.walk(os.path.join(TOP, folder)):
            dirs[:] = sorted(d for d in dirs if d not in (".deps", "__pycache__", "corpus"))
            for name in sorted(names):
                if os.path.splitext(name)[1] in ext and not name.endswith("~"):
                    yield os.path.relpath(os.path.join(where, name), TOP)


def text_of(path):
    with open(os.path.join(TOP, path), encoding="utf-8", errors="replace") as f:
        return f.read()


def floor_of(path):
    if path.startswith(("src/cpu/", "cuda/")):
        return BACKEND_FLOOR
    words = os.path.splitext(os.path.basename(path))[0].split("_")
    for n in range(len(words), 0, -1):
        if "_".join(words[:n]) in NAME_FLOOR:
            return NAME_FLOOR["_".join(words[:n])]
    return None


def includes(path):
    return re.findall(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', text_of(path), re.M)


def functions(path):
    """(first line, length) of every function body: from { to } in the first column."""
    begin = None
    for number, line in enumerate(text_of(path).split("\n"), 1):
        if line.startswith("{"):
            begin = number
        elif line.startswith("}") and begin:
            yield begin, number - begin + 1
            begin = None


def include_problems(path):
    own = floor_of(path)
    if own is None:
        yield "%s: its name is on no floor: add it to FLOORS in tests/t_floors.py" % path
        return
    for header in includes(path):
        beside = os.path.normpath(os.path.join(os.path.dirname(path), header))
        name = beside if os.path.exists(os.path.join(TOP, beside)) else "src/" + header
        if not os.path.exists(os.path.join(TOP, name)):
            continue
        theirs = floor_of(name)
        if theirs is not None and theirs > own and IMPLEMENTS.get(path) != name:
            yield "%s (floor %d) includes %s (floor %d)" % (path, own, header, theirs)
        if name.startswith(("src/cpu/", "cuda/")) and os.path.dirname(path) != os.path.dirname(name):
            yield "%s includes %s, which belongs to a backend" % (path, header)


def listed(folder, ext, *fragments):
    """Files that stand in the folder but not in the fragments, and the other way round."""
    fragment = " and ".join(fragments)
    text = "\n".join(re.sub(r"#.*", "", text_of(f)) for f in fragments)
    named = {p for p in re.findall(r"\w[\w./-]*", text) if p.endswith(ext) and "/" in p}
    there = {p for p in tree(folder, ext=ext) if os.path.dirname(p) == folder}
    return (["%s is not listed in %s" % (p, fragment) for p in sorted(there - named)]
            + ["%s lists %s, which does not exist" % (fragment, p) for p in sorted(named)
               if not os.path.exists(os.path.join(TOP, p))])


def unlisted_tests():
    text = text_of("tests/Makemodule.am")
    names = [p for p in tree("tests", ext=(".c", ".h", ".sh", ".py")) if os.path.dirname(p) == "tests"]
    return ["%s is not listed in tests/Makemodule.am" % p for p in names
            if not re.search(r"(?<![\w-])%s(?![\w-])" % re.escape(p.removesuffix(".c")), text)]


def main():
    code = list(tree("src", "cuda", ext=(".c", ".h", ".cu", ".cuh")))
    everything = code + list(tree("tests", ext=(".c", ".h")))
    texts = list(tree("src", "cuda", "tests", "jobs", "m4", "man", "doc", ".ci")) + \
        [n for n in ("configure.ac", "Makefile.am", "README.md", "NEWS") if os.path.exists(os.path.join(TOP, n))]

    check([] if len(code) > 20 else ["only %d files in %s" % (len(code), TOP)], "the sources are found")
    check([t for p in code for t in include_problems(p)], "files include their own or lower floors")
    check(["%s includes %s" % (p, h) for p in everything for h in includes(p)
           for what, where in LIBRARIES.items() if re.fullmatch(what, os.path.basename(h)) and not re.match(where, p)],
          "each library is known only where it belongs")
    check(["%s has %d lines" % (p, n) for p in everything
           for n in [text_of(p).count("\n")] if n > MAX_LINES[os.path.splitext(p)[1]]], "files keep to their size")
    check(["%s:%d: %d lines" % (p, at, n) for p in everything for at, n in functions(p) if n > MAX_FUNCTION],
          "functions have at most %d lines" % MAX_FUNCTION)
    check(["%s:%d: %d columns" % (p, i, len(line)) for p in everything
           for i, line in enumerate(text_of(p).split("\n"), 1) if len(line) > MAX_COLUMNS],
          "lines have at most %d columns" % MAX_COLUMNS)
    check(["%s begins with no SPDX line" % p for p in everything
           if "SPDX-License-Identifier: Apache-2.0" not in text_of(p)[:120]], "every source names its licence")
    check(["%s:%d: %s" % (p, i, line.strip()[:80]) for p in texts
           for i, line in enumerate(text_of(p).split("\n"), 1) if MACHINE_PATHS.search(line)],
          "no path of one machine")
    check(listed("src", (".c", ".h"), "src/Makemodule.am", "cuda/Makemodule.am")
          + listed("src/cpu", (".c", ".h"), "src/cpu/Makemodule.am")
          + listed("cuda", (".cu", ".cuh"), "cuda/Makemodule.am"), "the build lists every source")
    check(unlisted_tests(), "the build lists every test")
    print("1..%d" % count)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
