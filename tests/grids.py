#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same prompts on other thread counts and grids: the same KV files, dataset by dataset, byte by byte.

  grids.py [--case CASE]... [--numerics exact|released]... [--near TOLERANCE | --near-logits TOLERANCE] [GRID...]

GRID is "PREFIX :: ARGUMENTS", for example "mpirun -n 4 :: --pcp 2 --tp 2"; without any, two ranks by $MPI_RUN.
The run that all are compared with has one process and one thread.  Every grid runs with 1 thread a rank; the
single process also with 2 and 4.  Rows, state and everything else must be the same bytes; but TOLERANCE allows other
grids a difference in relative norm in every float32 dataset, or in logits alone.
"""
import os
import shlex
import sys

import h5py
import numpy as np

import case as lf

RUN_SPECIFIC = {"created", "producer", "identity"}       # identity repeats the two


def contents(path):
    """{name: (dtype, shape, bytes)} of every dataset, {name: value} of every attribute, and whether others hold the
    rows: then checksums are theirs."""
    data, attrs = {}, {}
    with h5py.File(path, "r") as f:
        def visit(name, x):
            for k, v in x.attrs.items():
                if k not in RUN_SPECIFIC and k not in ("DIMENSION_LABELS",):
                    attrs[f"{name}@{k}"] = np.asarray(v).tobytes() if not isinstance(v, str) else v.encode()
            if isinstance(x, h5py.Dataset):
                data[name] = (str(x.dtype), x.shape, np.ascontiguousarray(x[()]).tobytes())
        visit("", f)
        f.visititems(visit)
        return data, attrs, "parts" in f


def without_checksums(data, attrs):
    return ({k: v for k, v in data.items() if not k.endswith("_crc32c")},
            {k: v for k, v in attrs.items() if k.split("@")[1] not in ("crc32c", "rows_per_chunk", "list")})


def compare(base, other, near=None, mode="gather"):
    """Reasons why two files differ.  near: None, or a tolerance and how the names begin that it is for; mode: what the
    other must record of attention over ranks."""
    (a, aa, a_parts), (b, bb, b_parts) = contents(base), contents(other)
    tolerance, names = near or (None, None)
    if bb.get("@pcp_attention") != mode.encode():
        return [f"attribute pcp_attention is {bb.get('@pcp_attention')}, not {mode}"]
    aa.update({k: bb[k] for k in ("@pcp_attention", "@tp")})
    if a_parts or b_parts or names == "":
        (a, aa), (b, bb) = without_checksums(a, aa), without_checksums(b, bb)
    why = [f"only one file has {k}" for k in sorted(set(a) ^ set(b))]
    for k in sorted(set(a) & set(b)):
        if a[k] == b[k]:
            continue
        if near and k.startswith(names) and a[k][:2] == b[k][:2] and a[k][0] == "float32":
            x, y = (np.frombuffer(v[2], np.float32) for v in (a[k], b[k]))
            if lf.rel(np.nan_to_num(y), np.nan_to_num(x)) <= tolerance:
                continue
        if near and k.startswith(names) and k.endswith("_crc32c"):
            continue
        n = sum(x != y for x, y in zip(a[k][2], b[k][2]))
        why.append(f"{k}: {n} of {len(a[k][2])} bytes differ, shapes {a[k][1]} and {b[k][1]}")
    return why + [f"attribute {k} differs" for k in sorted(set(aa) | set(bb)) if aa.get(k) != bb.get(k)]


def run(tap, directory, out, label, prefix, args, threads):
    rc, err = lf.prefill(directory, out, *args, prefix=prefix, env={"OMP_NUM_THREADS": str(threads)})
    return tap.check(rc == 0, f"{label}: runs", f"exit code {rc}", err[-1500:])


def grid(tap, directory, base, label, prefix, args, threads, near):
    mode = args[args.index("--pcp-attention") + 1] if "--pcp-attention" in args else "gather"
    with lf.scratch() as tmp:
        if not run(tap, directory, tmp, label, prefix, args, threads):
            return
        why = []
        for p in lf.prompts(directory):
            ident = p["custom_id"]
            path = lf.kv_path(tmp, ident)
            if not os.path.exists(path):
                why.append(f"{ident}: no file")
                continue
            why += [f"{ident}: {w}" for w in compare(lf.kv_path(base, ident), path, near, mode)]
        what = "the same bytes" if near is None else f"within {near[0]:g} or the same bytes"
        tap.check(not why, f"{label}: {what} in every dataset", *why)


def main(argv):
    cases, numerics, near, grids = [], [], None, []
    while argv:
        a = argv.pop(0)
        if a == "--case":
            cases.append(argv.pop(0))
        elif a == "--numerics":
            numerics.append(argv.pop(0))
        elif a in ("--near", "--near-logits"):
            near = (float(argv.pop(0)), a[len("--near-"):])
        else:
            grids.append(tuple(s.strip() for s in a.split("::")))
    if not grids and os.environ.get("MPI_RUN"):
        grids = [(os.environ["MPI_RUN"] + " -n 2", "")]
    tap = lf.Tap()
    pairs = [(os.path.join(lf.GOLDEN, d), n) for d, n in (("pro-first", "exact"), ("quant-r40", "released"))]
    if cases or numerics:
        pairs = [(c, n) for c in cases or [p[0] for p in pairs] for n in numerics or ("exact", "released")]
    for c, n in pairs:
        name = f"{os.path.basename(os.path.normpath(c))} {n}"
        args = ["--numerics", n, "--logits", "all", "--logprobs"]
        with lf.scratch() as base:
            if not run(tap, c, base, f"{name}, 1 process, 1 thread", "", args, 1):
                continue
            for t in (2, 4):
                grid(tap, c, base, f"{name}, 1 process, {t} threads", "", args, t, None)
            for prefix, more in grids:
                label = " ".join(os.path.basename(w) for w in prefix.split()) + " " + more
                grid(tap, c, base, f"{name}, {label}".rstrip(), prefix, args + shlex.split(more), 1, near)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
