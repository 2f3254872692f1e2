#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A whole prompt through the operations of model_ref.py.

  run_ref.py CASE [--released] [--only ID]      compare with CASE/expected.h5
"""
import json
import struct
import sys

import numpy as np

from formats import Weight
from model_ref import Ref, quant4


def load(directory):
    index = json.load(open(directory + "/model.safetensors.index.json"))["weight_map"]
    raw = {}
    for shard in sorted(set(index.values())):
        b = open(f"{directory}/{shard}", "rb").read()
        n = struct.unpack("<Q", b[:8])[0]
        for k, v in json.loads(b[8:8 + n]).items():
            if k != "__metadata__":
                lo, hi = v["data_offsets"]
                raw[k] = (v["dtype"], v["shape"], np.frombuffer(b[8 + n + lo:8 + n + hi], np.uint8))
    w = {}
    for k, (dtype, shape, data) in raw.items():
        if k.endswith(".scale"):
            continue
        s = raw.get(k[:-len("weight")] + "scale") if k.endswith("weight") else None
        s = s[2].reshape(s[1]) if s else None
        if dtype == "BF16":
            w[k] = Weight("bf16", (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape))
        elif dtype == "F32":
            w[k] = Weight("f32", data.view(np.float32).reshape(shape))
        elif dtype == "I64":
            w[k] = data.view(np.int64).reshape(shape)
        else:
            w[k] = Weight("fp8" if dtype == "F8_E4M3" else "fp4", data.reshape(shape), s)
    return w


class Run:
    """The whole model over one prompt; layers[l] holds the rows a KV file holds (gates with ape added)."""

    def __init__(self, directory, released=False):
        self.c = json.load(open(directory + "/config.json"))
        self.w, self.ref = load(directory), Ref(self.c, released)

    def v(self, name):
        return self.w[name].value

    def compressed(self, y, p, ratio, width, freq):
        r = self.ref
        u = r.gemm(y, self.w[p + ".wkv.weight"], "f32")
        g = r.gemm(y, self.w[p + ".wgate.weight"], "f32") + self.v(p + ".ape")[np.arange(len(y)) % ratio]
        n = len(y) // ratio * ratio
        rows = r.compress(u[:n], g[:n], ratio, width, 0, self.v(p + ".norm.weight"), freq)
        state = {"open_kv": u[n:], "open_gate": g[n:]}
        if ratio == 4 and n:
            state["prev_kv"], state["prev_gate"] = u[n - 4:n, :width], g[n - 4:n, :width]
        return rows, state

    def attention(self, y, l, out):
        c, r, p = self.c, self.ref, f"layers.{l}.attn"
        L, H, d = len(y), c["num_attention_heads"], c["head_dim"]
        ratio, pos = c["compress_ratios"][l], np.arange(L)
        freq = r.inv_freq(ratio != 0)
        lat = r.norm(r.gemm(y, self.w[p + ".wq_a.weight"]), self.v(p + ".q_norm.weight"))
        q = r.query(r.gemm(lat, self.w[p + ".wq_b.weight"]).reshape(L, H, d), pos, freq)
        win = r.window(r.gemm(y, self.w[p + ".wkv.weight"]), self.v(p + ".kv_norm.weight"), pos, freq)
        out["swa"], rows, sel = win[-c["sliding_window"]:], None, None
        if ratio:
            e, out["main"] = self.compressed(y, p + ".compressor", ratio, d, freq)
            rows = out["compressed"] = r.through_fp8(e)
        if ratio == 4:
            di, Hi = c["index_head_dim"], c["index_n_heads"]
            e, out["istate"] = self.compressed(y, p + ".indexer.compressor", 4, di, freq)
            keys = out["index"] = quant4(r.transform(e))[2] if r.released else e
            iq = r.index_query(r.gemm(lat, self.w[p + ".indexer.wq_b.weight"]).reshape(L, Hi, di), pos, freq)
            w = r.gemm(y, self.w[p + ".indexer.weights_proj.weight"], "f32") / np.sqrt(Hi * di)
            sel, _, gap = r.index_topk(iq, w, keys, c["index_topk"], 0)
            out["gap"] = gap.min()
        o, _ = r.attention(q, 0, win, 0, rows, 0, ratio, sel, self.v(p + ".attn_sink"))
        o = r.rotate(o, pos, freq, True)
        G, O = c["o_groups"], c["o_lora_rank"]
        o = o.reshape(L, G, -1)
        a = np.concatenate([r.gemm(o[:, i], self.w[p + ".wo_a.weight"], plain=True, rows=slice(i * O, i * O + O))
                            for i in range(G)], 1)
        return r.gemm(a, self.w[p + ".wo_b.weight"])

    def moe(self, y, l, ids, out):
        c, r, p = self.c, self.ref, f"layers.{l}.ffn"
        hashed = l < c["num_hash_layers"]
        ch, wt, gap = r.route(y, self.w[p + ".gate.weight"], None if hashed else self.v(p + ".gate.bias"),
                              self.w[p + ".gate.tid2eid"] if hashed else None, ids)
        out["gap"] = min(out.get("gap", np.inf), gap.min())

        def ffn(x, e, weight, limit):
            return r.expert(x, *(self.w[f"{p}.{e}.{k}.weight"] for k in ("w1", "w2", "w3")), weight, limit)
        z = np.zeros(ch.shape + y.shape[1:])
        for e in range(c["n_routed_experts"]):
            t, j = np.where(ch == e)
            if len(t):
                z[t, j] = ffn(y[t], f"experts.{e}", wt[t, j], c["swiglu_limit"])
        # transformers clamps the shared expert as well
        return r.act(z.sum(1) + ffn(y, "shared_experts", np.ones(len(y)), c["swiglu_limit"]))

    def hc(self, l, part):
        return tuple(self.v(f"layers.{l}.hc_{part}_{k}") for k in ("fn", "scale", "base"))

    def forward(self, ids, layers=None):
        c, r = self.c, self.ref
        X, outs = r.embed(ids, self.w["embed.weight"]), []
        for l in range(c["num_hidden_layers"] if layers is None else layers):
            out = {}
            y, post, C = r.hc_pre(X, *self.hc(l, "attn"), self.v(f"layers.{l}.attn_norm.weight"))
            X = r.hc_post(X, self.attention(y, l, out), post, C)
            y, post, C = r.hc_pre(X, *self.hc(l, "ffn"), self.v(f"layers.{l}.ffn_norm.weight"))
            X = r.hc_post(X, self.moe(y, l, ids, out), post, C)
            outs.append(out)
        h = r.hc_head(X, *(self.v("hc_head_" + k) for k in ("fn", "scale", "base")), self.v("norm.weight"))
        return r.gemm(h, self.w["head.weight"], "f32"), outs


def rel(a, b):
    return float(np.linalg.norm(a - b) / (np.linalg.norm(b) + 1e-30)) if np.size(b) else 0.0


def main():
    import h5py
    d, worst = sys.argv[1], 0.0
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else None
    run = Run(d, "--released" in sys.argv)
    with h5py.File(d + "/expected.h5") as h:
        for line in open(d + "/prompts.jsonl"):
            p = json.loads(line)
            if only and p["custom_id"] != only:
                continue
            logits, outs = run.forward(np.array(p["token_ids"]))
            g = h[p["custom_id"]]
            e = g["logits"][()]
            row = [rel(logits[-len(e):], e)]
            for l, o in enumerate(outs):
                q = g[f"layers/{l}"]
                n = len(q["swa"])
                row.append(rel(o["swa"][-n:], q["swa"][()]))
                for ours, theirs in (("compressed", "compressed"), ("index", "indexer")):
                    if ours in o and theirs in q:
                        row.append(rel(o[ours], q[theirs][()]))
            gap = min(o.get("gap", np.inf) for o in outs)
            print(f"{p['custom_id']:>10} logits {row[0]:.1e}  rows {max(row[1:]):.1e}  smallest gap {gap:.1e}")
            worst = max(worst, *row)
    print("worst", worst)
    return 0 if worst < 1e-3 or run.ref.released else 1


if __name__ == "__main__":
    sys.exit(main())
