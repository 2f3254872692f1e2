#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write src/unicode_table.c: the general category of every code point, as the Python `tokenizers` library sees it.

The regular expressions of that library (Oniguruma) carry their own Unicode data, and PCRE2 carries another, whose
version changes from one distribution to the next.  Token ids must not depend on that, so the categories are asked of
the library itself, one by one.  Needs: tokenizers (0.23, Unicode 16).

    python3 make_unicode_table.py > ../../src/unicode_table.c
"""
from tokenizers import Regex, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()
SCALARS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXTS = ["".join(SCALARS[i:i + 60000]) for i in range(0, len(SCALARS), 60000)]


def members(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return {ord(c) for t in TEXTS for word, _ in split.pre_tokenize_str(t) for c in word}


def runs(items):
    out = []
    for first, last, value in items:
        if out and out[-1][2] == value and out[-1][1] == first - 1:
            out[-1][1] = last
        else:
            out.append([first, last, value])
    return out


def ranges(points):
    return [(a, b) for a, b, _ in runs([(c, c, 0) for c in sorted(points)])]


def main():
    of = {}
    for i, name in enumerate(CATEGORIES):
        for c in members(r"\p{%s}" % name):
            assert c not in of
            of[c] = i
    surrogates = len(CATEGORIES)
    table = runs([(c, c, of.get(c, surrogates)) for c in range(0x110000)])
    mark_word = {i for i, n in enumerate(CATEGORIES) if n[0] in "LM" or n in ("Nd", "Pc")}
    word = ranges({c for c in members(r"[\w]") if of[c] not in mark_word})
    space = ranges(members(r"\s"))

    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Written by tests/reference/make_unicode_table.py; do not edit. */")
    print('#include "charset.h"\n')
    print("const char lf_category_name[][3] = {")
    names = ['"%s",' % n for n in CATEGORIES + ["Cs"]]
    for i in range(0, len(names), 15):
        print("    " + " ".join(names[i:i + 15]))
    print("};\n")
    print("/* The first code point of a run << 8 | its category; the last run ends at 10FFFF. */")
    print("const uint32_t lf_category_run[] = {")
    cells = ["0x%x," % (a << 8 | v) for a, _, v in table]
    line = "   "
    for cell in cells:
        if len(line) + 1 + len(cell) > 110:
            print(line)
            line = "   "
        line += " " + cell
    print(line + "\n};")
    print("const int lf_category_runs = sizeof lf_category_run / sizeof *lf_category_run;\n")
    for name, what, r in (("word_extra", "In [\\w] beyond L, M, Nd and Pc.", word), ("space", "In \\s.", space)):
        print("/* %s */\nconst uint32_t lf_%s_range[][2] = {" % (what, name))
        for i in range(0, len(r), 4):
            print("    " + " ".join("{ 0x%x, 0x%x }," % ab for ab in r[i:i + 4]))
        print("};\nconst int lf_%s_ranges = sizeof lf_%s_range / sizeof *lf_%s_range;" % (name, name, name))
        if name == "word_extra":
            print()


main()
