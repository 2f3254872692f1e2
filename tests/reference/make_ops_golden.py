#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes data/ops/*.bin: random inputs of every operation of src/dev.h and what model_ref.py computes from them.

  make_ops_golden.py DIRECTORY

A file is "LFOPS1\\0\\0", then entries: name char[40], type u32, dimensions u32, shape i64[4], data, zero-padded to
a multiple of 8.  Types: 0 f32, 1 bf16, 2 u8, 3 i32, 4 i64, 5 u32.  Names are "<case>/<field>"; every case has "op"
(text), "model" (i64, in the order of CONFIG), "real" (swiglu_limit, routed_scaling_factor) and "opt" (i64, per
operation: see the function that writes it).
Expected values end in ".e" (exact) and ".r" (released); everything else serves both.
"""
import os
import struct
import sys

import numpy as np

from formats import Weight, bf16
from model_ref import Guard, Ref, hadamard

NANO = dict(vocab_size=96, hidden_size=64, num_attention_heads=4, head_dim=32, qk_rope_head_dim=16, q_lora_rank=32,
            o_groups=2, o_lora_rank=16, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=32,
            sliding_window=8, index_n_heads=16, index_head_dim=32, index_topk=4, hc_mult=4, hc_sinkhorn_iters=20,
            rms_norm_eps=1e-6, hc_eps=1e-6, routed_scaling_factor=1.5, swiglu_limit=10.0, rope_theta=10000,
            compress_rope_theta=160000,
            rope_scaling=dict(factor=16, beta_fast=32, beta_slow=1, original_max_position_embeddings=65536))
HEAD = dict(NANO, hidden_size=128, num_attention_heads=2, head_dim=512, qk_rope_head_dim=64, q_lora_rank=64,
            index_n_heads=4, index_head_dim=128, index_topk=16, sliding_window=128, n_routed_experts=24,
            num_experts_per_tok=6, moe_intermediate_size=64, routed_scaling_factor=2.5)
WIDE = dict(HEAD, sliding_window=32)
CONFIG = ["vocab_size", "hidden_size", "num_attention_heads", "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_groups",
          "o_lora_rank", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "sliding_window",
          "index_n_heads", "index_head_dim", "index_topk", "hc_mult", "hc_sinkhorn_iters"]
TYPES = [np.float32, None, np.uint8, np.int32, np.int64, np.uint32]
FAR = 1048575


class Store:
    def __init__(self, path, seed):
        self.out, self.rng, self.n = open(path, "wb"), np.random.default_rng(seed), -1
        self.out.write(b"LFOPS1\0\0")

    def case(self, op, config, opt=()):
        self.n += 1
        self.put("op", np.frombuffer(op.encode(), np.uint8))
        self.put("model", np.array([config[k] for k in CONFIG], np.int64))
        self.put("real", np.array([config["swiglu_limit"], config["routed_scaling_factor"]], np.float32))
        self.put("opt", np.array(opt, np.int64))

    def put(self, name, x, exact=False):
        x = np.asarray(x)
        kind = next((i for i, t in enumerate(TYPES) if t is not None and x.dtype == t), 0)
        if x.dtype in (np.float64, np.float32):
            x = np.ascontiguousarray(x, np.float32)
            bits = x.view(np.uint32)
            if not (bits & 0xFFFF).any():
                kind, x = 1, (bits >> 16).astype(np.uint16)
            else:
                kind = 0
        shape = list(x.shape) + [1] * (4 - x.ndim)
        data = np.ascontiguousarray(x).tobytes()
        self.out.write(struct.pack("<40sII4q", f"{self.n}/{name}".encode(), kind, x.ndim, *shape))
        self.out.write(data + b"\0" * (-len(data) % 8))

    def normal(self, *shape, gain=1.0):
        return bf16(self.rng.standard_normal(shape) * gain)

    def weight(self, w, name="w"):
        self.put(name, w.data.astype(np.uint8) if w.quantised else w.data)
        if w.quantised:
            self.put(name + ".scale", w.scale)
        return ["f32", "bf16", "fp8", "fp4"].index(w.kind)

    def uneven(self, n, group):
        """A power of two per group, so that no two neighbouring groups have the same scale."""
        g = 2.0 ** (2 * (np.arange(-(-n // group)) % 2) + self.rng.integers(-1, 2, -(-n // group)) - 1)
        return g.repeat(group)[:n]

    def stored(self, kind, rows, cols, gain=1.0):
        w = self.rng.standard_normal((rows, cols)) * gain / np.sqrt(cols)
        if kind == "fp8":
            w *= self.uneven(rows, 128)[:, None] * self.uneven(cols, 128)
        if kind == "fp4":
            w *= self.uneven(cols, 32)
        return Weight.store(w, kind)

    def both(self, config, fields, f):
        """f(ref) -> one array per field; written for exact and released numerics."""
        for suffix, released in ((".e", False), (".r", True)):
            r = f(Ref(config, released))
            for name, x in zip(fields, r if isinstance(r, tuple) else (r,)):
                self.put(name + suffix, x)

    def guarded(self, config, draw, f, rows):
        """Rows drawn (draw(n) -> tuple of arrays) until no rounding of f in released numerics is a near-tie."""
        kept, have = None, 0
        for _ in range(3000):
            x = draw(rows)
            ref = Ref(config, True, Guard(rows))
            f(ref, *x)
            good = [a[ref.guard.margin > 1] for a in x]
            kept = good if kept is None else [np.concatenate(p) for p in zip(kept, good)]
            if len(kept[0]) >= rows:
                return [a[:rows] for a in kept]
        raise SystemExit("every drawn row has a near-tie")


def gemm(path):
    """opt: kind, row0, rows, col0, cols, m, ldx, ldo, float32 out, plain"""
    s = Store(path, 1)
    shapes = [(5, 64, 40, {}), (3, 192, 130, {}), (66, 64, 17, {}), (2, 512, 24, dict(out=1)),
              (1, 32, 16, dict(out=1)),
              (4, 64, 160, dict(row0=100, rows=47)), (4, 256, 24, dict(col0=128, cols=128)),
              (3, 160, 12, dict(pad=24)),
              (3, 128, 20, dict(plain=1))]
    for kind in ("f32", "bf16", "fp8", "fp4"):
        for m, k, n, o in shapes + ([(6, 136, 30, {}), (2, 40, 72, dict(out=1))] if kind != "fp4" else []):
            if k * n > dict(f32=3000, bf16=5500).get(kind, 1 << 20):
                continue
            w = s.stored(kind, n, k)
            row0, col0 = o.get("row0", 0), o.get("col0", 0)
            rows, cols = o.get("rows", n), o.get("cols", k)
            pad, out, plain = o.get("pad", 0), o.get("out", 0), o.get("plain", 0)
            x = s.normal(m, cols + pad, gain=3.0)
            if k == 512:
                x[0, :128] = 0                         # a group whose scale is the floor's
                x[1] *= 2.0 ** -20
            s.case("gemm", NANO, [["f32", "bf16", "fp8", "fp4"].index(kind), row0, rows, col0, cols, m, cols + pad,
                                  rows + pad, out, plain, n, k])
            s.weight(w)
            s.put("x", x)
            s.both(NANO, ["y"], lambda r: r.gemm(x[:, :cols], w, "f32" if out else "act", plain,
                                                 slice(row0, row0 + rows), slice(col0, col0 + cols)))
    for kind in ("bf16", "f32"):
        c, ids = dict(NANO, vocab_size=13, hidden_size=40), np.array([12, 0, 3, 3, 7], np.uint32)
        w = s.stored(kind, 13, 40)
        s.case("embed", c, [["f32", "bf16"].index(kind)])
        s.weight(w)
        s.put("ids", ids)
        s.both(c, ["y"], lambda r: r.act(r.embed(ids, w)))


def hc(path):
    s = Store(path, 2)
    for c, D, n, m, turns in ((NANO, 64, 4, 7, 20), (HEAD, 96, 4, 2, 3), (NANO, 40, 2, 3, 1), (NANO, 72, 1, 2, 20)):
        c = dict(c, hidden_size=D, hc_mult=n, hc_sinkhorn_iters=turns)
        X, norm = s.normal(m, n, D), 1 + s.normal(D, gain=0.1)
        fn = s.normal((2 + n) * n, n * D, gain=1 / np.sqrt(n * D))
        base = (0.5 * s.rng.standard_normal((2 + n) * n)).astype(np.float32)
        scale = np.array([0.8, 0.6, 1.1], np.float32)

        def pre(r):
            y, post, C = r.hc_pre(X, fn.astype(float), scale.astype(float), base.astype(float), norm)
            return y, np.concatenate([post, C.reshape(m, -1)], 1)
        s.case("hc_pre", c)
        for k, v in (("x", X), ("fn", fn), ("scale", scale), ("base", base), ("norm", norm)):
            s.put(k, v)
        s.both(c, ["y", "mix"], pre)
        z = s.normal(m, D)
        post, C = 2 * s.rng.random((m, n)), s.rng.random((m, n, n))
        mix = np.concatenate([post, C.reshape(m, -1)], 1).astype(np.float32).astype(float)
        s.case("hc_post", c)
        s.put("x", X), s.put("z", z), s.put("mix", mix)
        s.both(c, ["y"], lambda r: r.hc_post(X, z, mix[:, :n], mix[:, n:].reshape(m, n, n)))
        s.case("hc_head", c)
        for k, v in (("x", X), ("fn", fn[:n]), ("scale", scale[:1]), ("base", base[:n]), ("norm", norm)):
            s.put(k, v)
        s.both(c, ["y"], lambda r: r.hc_head(X, fn[:n].astype(float), scale.astype(float), base[:n].astype(float),
                                             norm))


def positions(s, m):
    p = s.rng.integers(0, FAR + 1, m)
    p[:5] = [0, FAR, 1, 65536, 127][:m]
    return p.astype(np.int64)


def rows(path):
    """opt: heads, width, inverse (rotate); format, transformed (row_pack, row_unpack)"""
    s = Store(path, 3)
    for c in (NANO, HEAD):
        d, di, H, Hi = (c[k] for k in ("head_dim", "index_head_dim", "num_attention_heads", "index_n_heads"))
        for compressed in (0, 1) if c is NANO else (1,):
            freq, m = Ref(c).inv_freq(compressed), 5 if c is NANO else 3
            for n in (24, c["hidden_size"]):
                x, w = s.normal(m, n), 1 + s.normal(n, gain=0.1)
                s.case("norm", c, [n])
                s.put("x", x), s.put("w", w)
                s.both(c, ["y"], lambda r: r.norm(x, w))
            x, pos = s.normal(m, H, d, gain=2.0), positions(s, m)
            s.case("query", c, [H])
            s.put("x", x), s.put("pos", pos), s.put("freq", freq)
            s.both(c, ["y"], lambda r: r.query(x, pos, freq))
            for heads, width, inverse in ((H, d, 1), (1, d, 0), (2, di, 0)):
                x, pos = s.normal(m, heads, width), positions(s, m)
                s.case("rotate", c, [heads, width, inverse])
                s.put("x", x), s.put("pos", pos), s.put("freq", freq)
                s.both(c, ["y"], lambda r: r.rotate(x, pos, freq, bool(inverse)))
            w = 1 + s.normal(d, gain=0.1)
            x, pos = s.guarded(c, lambda n: (s.normal(n, d) * s.uneven(d, 64), positions(s, n)),
                               lambda r, x, pos: r.window(x, w, pos, freq), m)
            s.case("window", c)
            s.put("x", x), s.put("pos", pos), s.put("freq", freq), s.put("w", w)
            s.put("dst_row", s.rng.permutation(m + 3)[:m].astype(np.int64))
            s.both(c, ["y"], lambda r: r.window(x, w, pos, freq))
            wave = hadamard(di)[3] * np.sqrt(di) * 2        # transforms to one large channel in the first group

            def draw(n):
                p = positions(s, n)
                p[n // 2:] = 0                              # unturned, it stays one
                return bf16(s.normal(n, Hi, di) + wave), p
            x, pos = s.guarded(c, draw, lambda r, x, pos: r.index_query(x, pos, freq), m - 1)
            s.case("index_query", c, [Hi])
            s.put("x", x), s.put("pos", pos), s.put("freq", freq)
            s.both(c, ["y"], lambda r: r.index_query(x, pos, freq))
        for i, fmt in enumerate(("f32", "bf16", "fp8", "fp4")):
            width = di if fmt == "fp4" else d
            for transformed in (0, 1) if fmt == "fp4" else (0,):
                x, = s.guarded(c, lambda n: (s.normal(n, width, gain=np.exp(s.rng.standard_normal())),),
                               lambda r, x: r.pack(x, fmt, transformed), 5)
                x[1] = 0
                x[2, ::3] *= -64
                x[3] *= 2.0 ** -30
                if fmt in ("f32", "bf16"):
                    x = x + s.rng.standard_normal(x.shape) * 1e-4
                    x = x.astype(np.float32).astype(float)
                elif fmt == "fp4" and not transformed:
                    x[2] = x[0]
                b = Ref(c).pack(x, fmt, transformed)
                s.case("row_pack", c, [i, transformed, width])
                s.put("x", x), s.put("bytes", b)
                s.case("row_unpack", c, [i, transformed, width])
                s.put("bytes", b), s.put("x", Ref(c).unpack(b, fmt, width))
    g, ape = s.rng.standard_normal((11, 24)).astype(np.float32), s.rng.standard_normal((4, 24)).astype(np.float32)
    s.case("add_ape", NANO, [4])
    s.put("g", g), s.put("ape", ape), s.put("y", g + ape[np.arange(11) % 4])


def compress(path):
    """opt: ratio, width, blocks, block0, 1 when the rows before are given, prev_ld"""
    s = Store(path, 4)
    far = (FAR + 1) // 4
    for c, ratio, width, blocks, block0, prev in (
            (NANO, 4, 32, 6, 0, 0), (NANO, 4, 32, 5, far - 5, 1), (NANO, 4, 32, 1, 0, 0),
            (NANO, 4, 32, 1, 7, 1),
            (NANO, 128, 32, 2, 0, 0), (NANO, 128, 32, 1, (FAR + 1) // 128 - 1, 0), (HEAD, 4, 512, 1, 3, 1),
            (HEAD, 4, 128, 1, 0, 0), (HEAD, 4, 128, 2, 100, 1), (HEAD, 128, 64, 1, 1, 0)):
        a = 2 if ratio == 4 else 1
        u, g = s.normal(blocks * ratio, a * width), s.normal(blocks * ratio, a * width, gain=2.0)
        norm, freq, ld = 1 + s.normal(width, gain=0.1), Ref(c).inv_freq(True), a * width
        pu, pg = s.normal(4, ld), s.normal(4, ld)
        s.case("compress", c, [ratio, width, blocks, block0, prev, ld])
        for k, v in (("u", u), ("g", g), ("norm", norm), ("freq", freq)):
            s.put(k, v)
        if prev:
            s.put("prev_u", pu), s.put("prev_g", pg)
        s.both(c, ["y"], lambda r: r.compress(u, g, ratio, width, block0, norm, freq,
                                              (pu[:, :width], pg[:, :width]) if prev else None))


def topk(path):
    """opt: k, pos0, row_first"""
    s = Store(path, 5)

    def write(c, q, w, keys, k, pos0, row_first, nan=()):
        scores = Ref(c).index_scores(q, w, keys)
        for n in nan:
            keys[n] = np.nan
            scores[:, n] = np.nan
        sel, val, gap = Ref(c).index_topk(q, w, keys, k, pos0, row_first, scores)
        s.case("index_topk", c, [k, pos0, row_first])
        s.put("q", q), s.put("w", w), s.put("keys", keys), s.put("sel", sel), s.put("score", val)
        return gap
    for c, m, n, k, pos0, first in ((NANO, 9, 40, 4, 0, 0), (NANO, 7, 40, 4, 100, 0), (NANO, 6, 170, 4, 670, 0),
                                    (NANO, 5, 20, 64, 70, 0), (NANO, 6, 30, 4, 4 * 530 - 3, 500),
                                    (HEAD, 3, 40, 16, 156, 0),
                                    (NANO, 3, 10, 4, 4 * 500, 1000), (NANO, 6, 130, 128, 514, 0)):
        while True:
            state = s.out.tell(), s.n
            q, w = s.normal(m, c["index_n_heads"], c["index_head_dim"]), s.normal(m, c["index_n_heads"], gain=0.1)
            gap = write(c, q, w, s.normal(n, c["index_head_dim"]), k, pos0, first)
            if gap.min() > 1e-5:
                break
            s.out.seek(state[0])
            s.out.truncate()
            s.n = state[1]
    for m, n, k, pos0, nan in ((6, 60, 4, 150, ()), (6, 60, 4, 0, ()), (5, 150, 20, 590, ()),
                               (6, 40, 4, 120, (3, 4, 17)),
                               (4, 12, 8, 43, (0, 1, 2, 3, 4, 5)), (2, 6, 8, 20, (2,))):
        q = s.rng.integers(-1, 2, (m, 16, 32)).astype(float)       # small integers: exact sums, many ties, zeros
        keys = s.rng.integers(0, 2, (n, 32)).astype(float) * s.rng.integers(0, 2, (n, 1))
        w = s.rng.integers(-1, 2, (m, 16)).astype(float)
        w[0], w[-1] = -1, 0
        write(NANO, q, w, keys, k, pos0, 0, nan)
    for parts, m, k, entries in ((3, 5, 4, 40), (1, 3, 4, 9), (2, 4, 8, 10), (4, 6, 16, 200)):
        cand, score = np.full((parts, m, k), -1, np.int32), np.zeros((parts, m, k))
        for t in range(m):                              # every part hands over the best of its own range of entries
            s_all = np.rint(s.normal(entries) * 2)
            s_all[s.rng.integers(0, entries, 2)] = np.nan
            for p in range(parts):
                own = np.arange(entries * p // parts, entries * (p + 1) // parts)
                own = own[:s.rng.integers(0, len(own) + 1)] if t == 1 else own
                nan = np.isnan(s_all[own])
                best = np.sort(own[np.lexsort((own, np.where(nan, 0, -s_all[own]), nan))[:k]])
                cand[p, t, :len(best)], score[p, t, :len(best)] = best, s_all[best]
        s.case("topk_merge", NANO, [k])
        s.put("cand", cand), s.put("score", score), s.put("sel", Ref.topk_merge(cand, score, k))
    for m, v, k in ((4, 97, 5), (3, 509, 1), (2, 12, 12)):
        x = (s.rng.standard_normal((m, v)) * 3).astype(np.float32).astype(float)
        x[1] = np.rint(x[1])
        x[0, 3] = x[0, 9] = x[0].max()
        ids, val = Ref(NANO).logits_topk(x, k)
        nxt = s.rng.integers(0, v, m).astype(np.uint32)
        s.case("logits", NANO, [k])
        s.put("x", x), s.put("ids", ids), s.put("value", val), s.put("next", nxt)
        s.put("logprob", Ref(NANO).logprob(x + (np.arange(m) * 300)[:, None], nxt))
        s.put("shift", np.arange(m) * 300.0)


def attention(path):
    """opt: pos0, win_pos0, win_rows, row_first, ratio, 1 when sink, 1 when sel"""
    s = Store(path, 6)
    cases = [  # config, queries, pos0, (win_pos0, win_rows) or None, (row_first, row_count) or None, ratio, sel, sink
        (NANO, 12, 0, (0, 12), None, 0, 0, 1), (NANO, 1, 0, (0, 1), None, 0, 0, 1),
        (NANO, 6, 31, (24, 16), None, 0, 0, 1),
        (NANO, 13, 0, (0, 13), (0, 3), 4, 4, 1), (NANO, 6, 100, (93, 16), (0, 27), 4, 4, 1),
        (NANO, 6, 124, (117, 16), (0, 1), 128, 0, 1), (NANO, 6, 510, (503, 13), (0, 4), 128, 0, 1),
        (NANO, 6, 100, None, (0, 12), 4, 4, 0), (NANO, 6, 100, None, (12, 13), 4, 4, 0),
        (NANO, 6, 0, None, (0, 2), 4, 4, 0),
        (NANO, 6, 0, None, (0, 2), 4, 4, 1), (NANO, 4, 300, None, (1, 1), 128, 0, 0),
        (NANO, 5, 40, (33, 12), None, 0, 0, 0),
        (NANO, 12, 60, (40, 60), (0, 18), 4, 8, 1),
        (WIDE, 2, 80, (49, 33), (0, 20), 4, 16, 1), (WIDE, 1, 127, (96, 32), (0, 1), 128, 0, 1)]
    for c, m, pos0, win, row, ratio, nsel, sinks in cases:
        H, d = c["num_attention_heads"], c["head_dim"]
        q, sink = s.normal(m, H, d), s.normal(H) if sinks else None
        w = s.normal(win[1], d) if win else None
        r = s.normal(row[1], d) if row else None
        sel = None
        if nsel:
            sel = np.full((m, nsel), -1, np.int32)
            for i in range(m):
                n = (pos0 + i + 1) // 4
                pick = np.sort(s.rng.permutation(n)[:nsel])
                if pos0 == 100 and row[0] == 12 and i == 3:
                    pick = pick[pick < 12]                          # nothing of this part: an empty row
                sel[i, :len(pick)] = pick
        s.case("attention", c, [pos0, win[0] if win else 0, win[1] if win else 0, row[0] if row else 0, ratio, sinks])
        s.put("q", q)
        for k, v in (("win", w), ("rows", r), ("sel", sel), ("sink", sink)):
            if v is not None:
                s.put(k, v)
        s.both(c, ["out", "lse"], lambda ref: ref.attention(q, pos0, w, win[0] if win else 0, r, row[0] if row else 0,
                                                            ratio, sel, sink))
    for c, parts, m, sinks in ((NANO, 3, 5, 1), (NANO, 1, 3, 1), (NANO, 4, 6, 0), (HEAD, 2, 2, 1)):
        H, d = c["num_attention_heads"], c["head_dim"]
        x, lse = s.normal(parts, m * H, d), s.normal(parts, m * H, gain=3.0)
        lse[:, 1] = -np.inf
        lse[0, 2] = -np.inf
        x[~np.isfinite(lse)] = 0
        sink = s.normal(H)
        s.case("merge", c, [parts, m, H, sinks])
        s.put("x", x), s.put("lse", lse), s.put("sink", sink)
        s.both(c, ["y"], lambda r: r.merge(x, lse, np.tile(sink, m) if sinks else None))


def moe(path):
    s = Store(path, 7)
    for c, m, kind, hashed in ((NANO, 9, "bf16", 0), (NANO, 9, "bf16", 1), (HEAD, 7, "bf16", 0),
                               (NANO, 5, "f32", 0),
                               (dict(NANO, num_experts_per_tok=6), 3, "bf16", 0)):
        D, E, K = c["hidden_size"], c["n_routed_experts"], c["num_experts_per_tok"]
        gate, bias = s.stored(kind, E, D, 2.0), (0.2 * s.rng.standard_normal(E)).astype(np.float32)
        table = np.stack([s.rng.permutation(E)[:K] for _ in range(c["vocab_size"])]).astype(np.int64)
        while True:
            y, ids = s.normal(m, D), s.rng.integers(0, c["vocab_size"], m).astype(np.uint32)
            y[1] *= 64                                  # logits of hundreds: softplus must not overflow
            a = (y, gate, None if hashed else bias.astype(float), table if hashed else None, ids)
            if Ref(c).route(*a)[2].min() > 1e-4:
                break
        s.case("route", c, [hashed, ["f32", "bf16"].index(kind)])
        s.weight(gate)
        s.put("y", y), s.put("ids", ids)
        s.put("tid2eid" if hashed else "bias", table if hashed else bias)
        s.both(c, ["expert", "weight"], lambda r: r.route(*a)[:2])
    for c, kind, D, I, pairs, limit in ((NANO, "fp4", 64, 32, [3, 0, 2], 1), (NANO, "fp8", 160, 32, [3], 1),
                                        (NANO, "bf16", 40, 24, [4, 1], 1), (NANO, "fp8", 128, 64, [5], 0),
                                        (HEAD, "fp4", 128, 64, [3], 1), (NANO, "fp4", 96, 160, [3], 1),
                                        (NANO, "bf16", 24, 16, [0, 66], 1)):
        c = dict(c, hidden_size=D, moe_intermediate_size=I)
        ws = [[s.stored(kind, *shape, gain=2.0) for shape in ((I, D), (D, I), (I, D))] for _ in pairs]
        n, lim = sum(pairs), c["swiglu_limit"] if limit else 0
        first = np.concatenate([[0], np.cumsum(pairs)]).astype(np.int64)

        def draw(k):
            return s.normal(k, D, gain=3.0), bf16(s.rng.random(k) + 0.1)
        none = np.zeros((0, D)), np.zeros(0)
        got = [s.guarded(c, draw, lambda r, x, w: r.expert(x, *ws[e], w, lim), k) if k else none
               for e, k in enumerate(pairs)]
        x, weight = (np.concatenate(a) for a in zip(*got))
        weight = weight if limit else np.ones(n)
        src = s.rng.permutation(n)
        rows_of = np.empty_like(x)
        rows_of[src] = x                                # pair i takes row src[i]
        s.case("experts", c, [["f32", "bf16", "fp8", "fp4"].index(kind), len(pairs), limit])
        for e, (w1, w2, w3) in enumerate(ws):
            s.weight(w1, f"w1.{e}"), s.weight(w2, f"w2.{e}"), s.weight(w3, f"w3.{e}")
        s.put("x", rows_of), s.put("src", src.astype(np.int32)), s.put("weight", weight), s.put("first", first)
        s.both(c, ["y"], lambda r: np.concatenate([
            r.expert(x[first[e]:first[e + 1]], *ws[e], weight[first[e]:first[e + 1]], lim)
            for e in range(len(pairs)) if pairs[e]]))
    for D, m, K in ((64, 7, 2), (40, 5, 6)):
        z, shared = s.normal(m * K, D), s.normal(m, D)
        slot = s.rng.permutation(m * K).astype(np.int32)
        s.case("combine", dict(NANO, hidden_size=D, num_experts_per_tok=K), [K])
        s.put("z", z), s.put("slot", slot), s.put("shared", shared)
        s.both(NANO, ["y"], lambda r: r.combine(z, slot.reshape(m, K), shared))


def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    for f in (gemm, hc, rows, compress, topk, attention, moe):
        f(f"{sys.argv[1]}/{f.__name__}.bin")


if __name__ == "__main__":
    main()
