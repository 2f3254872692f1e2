#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers as wide as V4-Flash's, on a GPU against the CPU: rows, state and logits, in exact and in released numerics.

  flash_rows.py                          needs a GPU; on the CPU some 100 core-seconds

The layers are the first four of Flash (window only twice, ratio 4, ratio 128; three are routed by hash, one by score), with
fewer experts, a smaller vocabulary and fewer chosen entries, so that 700 tokens have more entries to choose from.

Exact numerics are held to EXACT, row by row: sums of 1,024 to 8,192 float32 products in another order.  Released
numerics cannot be: a value that lands on another bf16 neighbour moves some e4m3 codes of the next product's input by
one step, that is 1/16 to 1/8, until after two layers two such runs are as far apart as each is from the exact rows.
How far that is tells how well a run computes: so the GPU's distance from the exact rows may be NOISE times the CPU's, in
the median of the rows (1.07 was measured, for a state of four rows).  In layer 0, where codes come from the same
embeddings, general kernels give the CPU's codes, as in released.py.
"""
import json
import os
import random
import subprocess
import sys

import h5py
import numpy as np

import case as lf
import released

EXACT, NOISE = 2e-5, 1.15
TOKENS, VOCABULARY = 700, 4096
SETTINGS = {"num_hidden_layers": 4, "n_routed_experts": 8, "vocab_size": VOCABULARY, "index_topk": 64}
GENERAL = "attention=general,index=general,select=general,gemm=plain,experts=plain"


def start(model, into, device, numerics, **env):
    command = [lf.program(), "prefill", "-m", model, "-i", os.path.join(model, "prompts.jsonl"), "-o", into, "--weights",
               "dummy", "--seed", "1", "--numerics", numerics, "--device", device, "-q"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                            env={**os.environ, **env})


def made(model):
    command = [lf.program(), "synth", model, "--preset", "flash", "--sparse"]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={value}"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    ids = random.Random(5)
    with open(os.path.join(model, "prompts.jsonl"), "w") as f:
        json.dump({"custom_id": "a", "token_ids": [ids.randrange(VOCABULARY) for _ in range(TOKENS)]}, f)
    return lf.config(model)


def rotated(rows):
    """By the Hadamard matrix, its own inverse, which released numerics put in front of the index's codes."""
    h = np.ones((1, 1))
    while len(h) < rows.shape[1]:
        h = np.block([[h, h], [h, -h]])
    return rows @ h / np.sqrt(len(h))


def tables(path, config):
    """What a file holds as float64 [rows, channels], by its name."""
    found = {}
    with h5py.File(path, "r") as f:
        for layer, g in f["layers"].items():
            for part in ("swa", "compressed", "index"):
                if part in g:
                    found[f"layer {layer} {part}"] = g[part][()]
                elif part + "_nope" in g:
                    found[f"layer {layer} {part}"] = released.Main.stored(config, g, part).value
                elif part + "_codes" in g:
                    found[f"layer {layer} {part}"] = rotated(released.Index.stored(config, g, part).value)
            for part, state in g.get("state", {}).items():
                for name in state:
                    found[f"layer {layer} state/{part}/{name}"] = state[name][()]
        found["logits"] = f["logits/last"][()][None]
    return {name: rows.astype(np.float64) for name, rows in found.items() if rows.size}


def far(rows, exact):
    """Relative norms of the rows' differences."""
    return np.linalg.norm(rows - exact, axis=1) / np.linalg.norm(exact, axis=1)


def compare(tap, found):
    exact = found["cpu", "exact"]
    for name, rows in exact.items():
        got = found["cuda", "exact"].get(name, np.zeros(0))
        if tap.check(got.shape == rows.shape, f"exact, {name}: {rows.shape}", got.shape):
            worst = far(got, rows).max()
            tap.check(worst <= EXACT, f"exact, {name}: within {worst:.1e}")
    for kernels in "cuda", "general":
        for name, rows in exact.items():
            cpu, gpu = (np.median(far(found[who, "released"][name], rows)) for who in ("cpu", kernels))
            tap.check(gpu <= NOISE * cpu, f"released, {kernels}, {name}: {gpu:.4f} from exact rows, the CPU {cpu:.4f}")


def main():
    tap = lf.Tap()
    with lf.scratch() as tmp:
        model = os.path.join(tmp, "model")
        config = made(model)
        threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
        runs = {(device, numerics): start(model, os.path.join(tmp, f"{device}-{numerics}"), device, numerics,
                                          OMP_NUM_THREADS=threads)
                for device in ("cpu", "cuda") for numerics in ("exact", "released")}
        runs["general", "released"] = start(model, os.path.join(tmp, "general-released"), "cuda", "released",
                                            LONGFILL_KERNELS=GENERAL)
        found = {}
        for who, run in runs.items():
            err = run.communicate()[1]
            if tap.check(run.returncode == 0, f"{' '.join(who)}: ends with 0", err.decode(errors="replace")[-1500:]):
                found[who] = tables(lf.kv_path(os.path.join(tmp, "-".join(who)), "a"), config)
        if len(found) == len(runs):
            compare(tap, found)
            first = []
            for who in "general", "cpu":
                with h5py.File(lf.kv_path(os.path.join(tmp, f"{who}-released"), "a"), "r") as f:
                    first.append(released.Main.stored(config, f["layers/000"], "swa"))
            released.first_layer(tap, "released, general, layer 000 swa", *first)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
