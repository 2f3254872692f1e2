#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies a reference case, keeping what golden.py compares and no more.

  slim_case.py CASE DESTINATION [--all LENGTH]... [--drop LENGTH]...

Logits: all tokens of prompts up to 20 tokens and of those named by --all, the last token's otherwise.  Rows and
state: all of them, float32, compressed.  Prompts named by --drop are left out.
"""
import json
import os
import shutil
import sys

import h5py

SHORT = 20


def put(group, name, data):
    if data.size > 64:
        group.create_dataset(name, data=data, compression="gzip", compression_opts=9, shuffle=True)
    else:
        group.create_dataset(name, data=data)


def main():
    source, to = sys.argv[1:3]
    option = {k: {int(v) for o, v in zip(sys.argv, sys.argv[1:]) if o == k} for k in ("--all", "--drop")}
    os.makedirs(to, exist_ok=True)
    for name in os.listdir(source):
        if name.endswith((".json", ".safetensors")):
            shutil.copyfile(f"{source}/{name}", f"{to}/{name}")
    with h5py.File(source + "/expected.h5") as f, h5py.File(to + "/expected.h5", "w", libver="latest") as g, \
            open(source + "/prompts.jsonl") as p, open(to + "/prompts.jsonl", "w") as q:
        for line in p:
            r = json.loads(line)
            n = len(r["token_ids"])
            if n in option["--drop"]:
                continue
            q.write(json.dumps(r, separators=(",", ":")) + "\n")
            a = f[r["custom_id"]]
            b = g.create_group(r["custom_id"])
            put(b, "logits", a["logits"][() if n <= SHORT or n in option["--all"] else slice(-1, None)])
            a["layers"].visititems(lambda k, v: put(b, "layers/" + k, v[()]) if isinstance(v, h5py.Dataset) else None)


if __name__ == "__main__":
    main()
