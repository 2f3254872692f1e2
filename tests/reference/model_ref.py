# SPDX-License-Identifier: Apache-2.0
"""The model's operations in numpy, one function per operation of src/dev.h, in `exact` and `released` numerics.

Written from the description of the model alone, in float64 wherever the model does not name a narrower type, so that
what it returns can serve as the expected value of any backend.  Results that are activations are float32 in `exact`
and bf16 values in `released` numerics.

`Guard` watches every rounding: it keeps, per row, how close the nearest value came to the middle between two
representable ones, in units of the error a float32 computation may have there.  Rows that come too close are no use
as bit-exact expectations and are drawn again by the generator.
"""
import numpy as np

from formats import (bf16, bf16_bits, bf16_distance, e2m1_code, e2m1_value, e4m3_code, e4m3_value, quant4, quant8)


class Guard:
    """Smallest (distance to a rounding boundary) / (allowed error), per row of the first axis."""

    def __init__(self, rows):
        self.margin = np.full(rows, np.inf)

    def see(self, distance, error):
        r = np.asarray(distance / np.maximum(error, 1e-300)).reshape(len(self.margin), -1)
        self.margin = np.minimum(self.margin, r.min(axis=1))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def hadamard(n):
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(n)


class Ref:
    def __init__(self, config, released=False, guard=None):
        self.c, self.released, self.guard = config, released, guard
        self.eps = float(np.float32(config["rms_norm_eps"]))
        self.hc_eps = float(np.float32(config["hc_eps"]))

    def act(self, x, error=None):
        """Store as an activation.  error: what a float32 computation may be off by, for the guard."""
        if not self.released:
            return np.asarray(x, np.float32).astype(np.float64)
        if self.guard is not None:
            self.guard.see(bf16_distance(x), 4e-7 * np.abs(x) if error is None else error)
        return bf16(x)

    @staticmethod
    def rms_error(x):
        """A product's rounding error: relative to the size of its row, not of the single value."""
        return 1e-6 * np.sqrt((x * x).mean(-1, keepdims=True)) + 0 * x

    def product(self, x, w, plain=False, rows=slice(None), cols=slice(None)):
        """x w^T before rounding; `released`: the input quantised per 1x128 in front of quantised weights."""
        if self.released and w.quantised and not plain:
            x = quant8(x, 128)[2]
        return x @ w.value[rows, cols].T

    def gemm(self, x, w, kind="act", plain=False, rows=slice(None), cols=slice(None)):
        y = self.product(x, w, plain, rows, cols)
        return self.act(y, self.rms_error(y)) if kind == "act" else np.asarray(y, np.float32).astype(np.float64)

    def embed(self, ids, w):
        return np.repeat(w.value[ids][:, None], self.c["hc_mult"], 1)

    def rms(self, x):
        return 1 / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)

    def norm(self, x, weight):
        return self.act(x * self.rms(x) * weight)

    def mix(self, X, fn):
        x = X.reshape(len(X), -1)
        return (x @ fn.T) * self.rms(x)

    def hc_pre(self, X, fn, scale, base, weight):
        """-> y (summed, rounded, normed, rounded), post [m, n], C [m, n, n]"""
        n = self.c["hc_mult"]
        m = self.mix(X, fn)
        pre = sigmoid(m[:, :n] * scale[0] + base[:n]) + self.hc_eps
        post = 2 * sigmoid(m[:, n:2 * n] * scale[1] + base[n:2 * n])
        C = (m[:, 2 * n:] * scale[2] + base[2 * n:]).reshape(-1, n, n)
        C = np.exp(C - C.max(2, keepdims=True))
        C = C / C.sum(2, keepdims=True) + self.hc_eps
        C = C / (C.sum(1, keepdims=True) + self.hc_eps)
        for _ in range(self.c["hc_sinkhorn_iters"] - 1):
            C = C / (C.sum(2, keepdims=True) + self.hc_eps)
            C = C / (C.sum(1, keepdims=True) + self.hc_eps)
        y = self.act(np.einsum("ti,tid->td", pre, X))
        return self.norm(y, weight), post, C

    def hc_post(self, X, z, post, C):
        return self.act(post[:, :, None] * z[:, None] + np.einsum("tij,tid->tjd", C, X))

    def hc_head(self, X, fn, scale, base, weight):
        pre = sigmoid(self.mix(X, fn) * scale[0] + base) + self.hc_eps
        return self.norm(self.act(np.einsum("ti,tid->td", pre, X)), weight)

    def inv_freq(self, compressed):
        """float32 inverse frequencies of ratio-0 layers, or (YaRN) of compressed ones."""
        c, rd = self.c, self.c["qk_rope_head_dim"]
        base = float(c["compress_rope_theta"] if compressed else c["rope_theta"])
        f = base ** (-np.arange(0, rd, 2) / rd)
        y = c.get("rope_scaling")
        if compressed and y:
            def where(turns):
                return rd * np.log(y["original_max_position_embeddings"] / (turns * 2 * np.pi)) / (2 * np.log(base))
            lo = max(np.floor(where(y["beta_fast"])), 0)
            hi = min(np.ceil(where(y["beta_slow"])), rd - 1)
            ramp = np.clip((np.arange(rd // 2) - lo) / ((hi - lo) or 0.001), 0, 1)
            f = f / y["factor"] * ramp + f * (1 - ramp)
        return f.astype(np.float32)

    def angles(self, pos, freq):
        a = (np.asarray(pos).astype(np.float32)[:, None] * freq.astype(np.float32)).astype(np.float32)
        return a.astype(np.float64)

    def rotate(self, x, pos, freq, inverse=False):
        """Interleaved pairs of the last rd channels; x [m, ..., width]."""
        rd = 2 * len(freq)
        a = self.angles(pos, freq).reshape((len(x),) + (1,) * (x.ndim - 2) + (len(freq),))
        z = (x[..., -rd::2] + 1j * x[..., 1 - rd::2]) * np.exp(-1j * a if inverse else 1j * a)
        r = np.stack([z.real, z.imag], -1).reshape(x.shape[:-1] + (rd,))
        size = np.repeat(np.abs(z), 2, axis=-1).reshape(r.shape)
        return np.concatenate([x[..., :-rd], self.act(r, 2e-7 * size)], -1)

    def query(self, q, pos, freq):
        """q [m, heads, d]"""
        return self.rotate(self.act(q * self.rms(q)), pos, freq)

    def groups(self, n):
        return 64 if n % 64 == 0 else n

    def through_fp8(self, x):
        """Main rows: the first d - rd channels quantised and back, in `released` numerics."""
        if not self.released:
            return x
        n = x.shape[-1] - self.c["qk_rope_head_dim"]
        return np.concatenate([quant8(x[..., :n], self.groups(n))[2], x[..., n:]], -1)

    def window(self, x, weight, pos, freq):
        return self.through_fp8(self.rotate(self.norm(x, weight), pos, freq))

    def transform(self, x):
        """Hadamard of the last axis, rounded."""
        y = x @ hadamard(x.shape[-1])
        return self.act(y, self.rms_error(y) / 4)

    def index_query(self, q, pos, freq):
        q = self.rotate(q, pos, freq)
        return quant4(self.transform(q))[2] if self.released else q

    def compress(self, u, g, ratio, width, block0, norm, freq, prev=None):
        """u, g (ape added) [blocks * ratio, a * width]; prev: (u, g) [4, width] of the block before, or None."""
        b = len(u) // ratio
        if b == 0:
            return np.zeros((0, width))
        U, G = u.reshape(b, ratio, u.shape[1]), g.reshape(b, ratio, g.shape[1])
        if ratio == 4:
            none = (np.zeros((4, width)), np.full((4, width), -np.inf))
            pu, pg = none if prev is None else prev
            before_u = np.concatenate([pu[None], U[:-1, :, :width]])
            before_g = np.concatenate([pg[None], G[:-1, :, :width]])
            U = np.concatenate([before_u, U[..., width:]], 1)
            G = np.concatenate([before_g, G[..., width:]], 1)
        P = np.exp(G - G.max(1, keepdims=True))
        P /= P.sum(1, keepdims=True)
        e = self.norm(self.act((P * U).sum(1)), norm)
        return self.rotate(e, (block0 + np.arange(b)) * ratio, freq)

    def pack(self, x, fmt, transformed=False):
        """The bytes of rows: kvlayout.h."""
        m, n = x.shape
        if fmt == "f32":
            return np.ascontiguousarray(x, np.float32).view(np.uint8).reshape(m, -1)
        if fmt == "bf16":
            return bf16_bits(bf16(x)).view(np.uint8).reshape(m, -1)
        if fmt == "fp8":
            k = n - self.c["qk_rope_head_dim"]
            v, e, _ = quant8(x[:, :k], self.groups(k))
            parts = [e4m3_code(v), bf16_bits(bf16(x[:, k:])).view(np.uint8).reshape(m, -1),
                     (e + 127).astype(np.uint8)]
            row = np.concatenate(parts, 1)
            return np.concatenate([row, np.zeros((m, -row.shape[1] % 8), np.uint8)], 1)
        v, e, _ = quant4(x if transformed else Ref(self.c, True, self.guard).transform(x))
        c = e2m1_code(v)
        return np.concatenate([c[:, 0::2] | c[:, 1::2] << 4, (e + 127).astype(np.uint8)], 1)

    def unpack(self, rows, fmt, n):
        m = len(rows)
        if fmt == "f32":
            return np.ascontiguousarray(rows).view(np.float32).astype(np.float64)
        if fmt == "bf16":
            return (np.ascontiguousarray(rows).view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(float)
        if fmt == "fp8":
            rd = self.c["qk_rope_head_dim"]
            k = n - rd
            g = self.groups(k)
            s = np.exp2(rows[:, k + 2 * rd:k + 2 * rd + k // g].astype(float) - 127).repeat(g, 1)
            tail = np.ascontiguousarray(rows[:, k:k + 2 * rd]).view(np.uint16).astype(np.uint32) << 16
            return np.concatenate([e4m3_value(rows[:, :k]) * s, tail.view(np.float32).astype(float)], 1)
        c = np.stack([rows[:, :n // 2] & 15, rows[:, :n // 2] >> 4], -1).reshape(m, n)
        return e2m1_value(c) * np.exp2(rows[:, n // 2:n // 2 + n // 32].astype(float) - 127).repeat(32, 1)

    def index_scores(self, q, w, keys):
        return np.einsum("thc,th->tc", np.maximum(np.einsum("thd,cd->thc", q, keys), 0), w)

    def index_topk(self, q, w, keys, k, pos0, row_first=0, scores=None):
        """Chosen entries [m, k], ascending, -1 after the last; their scores; the gap at the edge of the choice."""
        s = self.index_scores(q, w, keys) if scores is None else scores
        m = len(s)
        sel, val, gap = np.full((m, k), -1, np.int32), np.zeros((m, k)), np.full(m, np.inf)
        for t in range(m):
            n = min(max((pos0 + t + 1) // 4 - row_first, 0), s.shape[1])
            row = s[t, :n]
            nan = np.isnan(row)
            order = np.lexsort((np.arange(n), np.where(nan, 0, -row), nan))
            kept = np.sort(order[:k])
            sel[t, :len(kept)] = kept + row_first
            val[t, :len(kept)] = row[kept]
            if n > k and not nan.any():
                gap[t] = (row[order[k - 1]] - row[order[k]]) / (np.abs(row).max() or 1)
        return sel, val, gap

    @staticmethod
    def topk_merge(cand, score, k):
        """cand, score [parts, m, k] -> [m, k]: the k best of each row, ascending, -1 after the last."""
        m = cand.shape[1]
        sel = np.full((m, k), -1, np.int32)
        for t in range(m):
            there = cand[:, t] >= 0
            c, s = cand[:, t][there], score[:, t][there]
            nan = np.isnan(s)
            kept = np.sort(c[np.lexsort((c, np.where(nan, 0, -s), nan))[:k]])
            sel[t, :len(kept)] = kept
        return sel

    def attention(self, q, pos0, win, win_pos0, rows, row_first, ratio, sel, sink):
        """q [m, H, d] -> (out rounded, lse); win [n, d] or None, rows [c, d] or None, sel [m, s] or None."""
        m, H, d = q.shape
        W = self.c["sliding_window"]
        out, lse = np.zeros((m, H, d)), np.full((m, H), -np.inf)
        for i in range(m):
            t, keys = pos0 + i, []
            if win is not None:
                j = win_pos0 + np.arange(len(win))
                keys.append(win[(j <= t) & (j > t - W)])
            if rows is not None:
                c = row_first + np.arange(len(rows))
                see = c < (t + 1) // ratio
                if sel is not None:
                    see &= np.isin(c, sel[i][sel[i] >= 0])
                keys.append(rows[see])
            K = np.concatenate(keys) if keys else np.zeros((0, d))
            s = q[i] @ K.T / np.sqrt(d)
            if sink is not None:
                s = np.concatenate([s, sink[:, None]], 1)
            if s.shape[1] == 0:
                continue
            top = s.max(1, keepdims=True)
            p = np.exp(s - top)
            lse[i] = top[:, 0] + np.log(p.sum(1))
            out[i] = (p / p.sum(1, keepdims=True))[:, :len(K)] @ K
        return self.act(out, self.rms_error(out)), lse

    def merge(self, parts, lse, sink):
        """parts [n, rows, d], lse [n, rows] (sinks not included), sink [rows] or None"""
        all_lse = lse if sink is None else np.concatenate([lse, sink[None]])
        top = all_lse.max(0)
        top = np.where(np.isfinite(top), top, 0)
        total = np.exp(all_lse - top).sum(0)
        w = np.exp(lse - top) / np.where(total == 0, 1, total)
        return self.act(np.einsum("pr,prd->rd", w, np.where(w[..., None] > 0, parts, 0)))

    def route(self, y, gate, bias=None, tid2eid=None, ids=None):
        """-> experts [m, K] ascending, their weights, the gap at the boundary of the choice"""
        K = self.c["num_experts_per_tok"]
        x = y @ gate.value.T
        score = np.sqrt(np.logaddexp(0, x))
        gap = np.full(len(y), np.inf)
        if tid2eid is not None:
            chosen = np.sort(tid2eid[ids], 1)
        else:
            order = np.argsort(-(score + bias), 1, kind="stable")
            chosen = np.sort(order[:, :K], 1)
            if order.shape[1] > K:
                edge = np.take_along_axis(score + bias, order[:, K - 1:K + 1], 1)
                gap = edge[:, 0] - edge[:, 1]
        w = np.take_along_axis(score, chosen, 1)
        return chosen.astype(np.int32), w / w.sum(1, keepdims=True) * self.c["routed_scaling_factor"], gap

    def expert(self, x, w1, w2, w3, weight, limit):
        """x [m, D], weight [m]; limit <= 0: no clamp."""
        g, u = self.gemm(x, w1), self.gemm(x, w3)
        if limit > 0:
            g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
        h = self.act(g * sigmoid(g) * u * weight[:, None])
        return self.gemm(h, w2)

    def combine(self, z, slot, shared):
        return self.act(z[slot].sum(1) + shared)

    def logits_topk(self, logits, k):
        ids = np.argsort(-logits, 1, kind="stable")[:, :k]
        return ids.astype(np.int32), np.take_along_axis(logits, ids, 1)

    def logprob(self, logits, ids):
        top = logits.max(1, keepdims=True)
        lse = top[:, 0] + np.log(np.exp(logits - top).sum(1))
        return logits[np.arange(len(ids)), ids] - lse
