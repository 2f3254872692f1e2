#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds released.h5 to golden cases: what model_ref.py computes in released numerics for the first two layers.

  make_released.py data/golden CASE:ID[,ID...]...

/<id>/layers/<i>/{swa,compressed,index} u8 [rows, bytes], packed as in src/kvlayout.h; state rows are float32.
"""
import json
import sys

import h5py
import numpy as np

from run_ref import Run

LAYERS = 2


def main():
    for which in sys.argv[2:]:
        name, ids = which.split(":")
        directory = f"{sys.argv[1]}/{name}"
        run = Run(directory, True)
        with h5py.File(directory + "/released.h5", "w", libver="latest") as f, open(directory + "/prompts.jsonl") as p:
            for r in map(json.loads, p):
                if r["custom_id"] not in ids.split(","):
                    continue
                outs = run.forward(np.array(r["token_ids"]), LAYERS)[1]
                for l, o in enumerate(outs):
                    g = f.create_group(f"{r['custom_id']}/layers/{l}")
                    for part, fmt in (("swa", "fp8"), ("compressed", "fp8"), ("index", "fp4")):
                        if part in o and len(o[part]):
                            b = run.ref.pack(o[part], fmt, True)
                            g.create_dataset(part, data=b, compression="gzip", compression_opts=9)
                    for part in ("main", "istate"):
                        for k, v in o.get(part, {}).items():
                            if v.size and l == 0:
                                g.create_dataset(f"state/{part.replace('istate', 'index')}/{k}",
                                                 data=v.astype(np.float32), compression="gzip", compression_opts=9)


if __name__ == "__main__":
    main()
