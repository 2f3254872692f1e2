# SPDX-License-Identifier: Apache-2.0
"""The number formats of a released checkpoint in numpy: rounding, codes, scales, stored weights."""
import numpy as np

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6])


def bf16(x):
    """Nearest bf16 value, ties to even, straight from float64."""
    m, e = np.frexp(np.asarray(x, np.float64))
    return np.ldexp(np.rint(np.ldexp(m, 8)), e - 8)


def bf16_distance(x):
    """Distance from x to the nearest midpoint between two bf16 values."""
    m, e = np.frexp(np.asarray(x, np.float64))
    v = np.ldexp(np.abs(m), 8)
    return np.ldexp(np.abs(v - np.floor(v) - 0.5), e - 8)


def bf16_bits(x):
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def e4m3(x):
    """Nearest e4m3fn value; x within +-448."""
    _, e = np.frexp(x)
    step = np.ldexp(1.0, np.maximum(e - 1, -6) - 3)
    return np.clip(np.rint(x / step) * step, -448, 448)


def e2m1(x):
    _, e = np.frexp(x)
    step = np.ldexp(1.0, np.maximum(e - 1, 0) - 1)
    return np.clip(np.rint(x / step) * step, -6, 6)


def e4m3_code(v):
    """The byte of an e4m3 value (v representable)."""
    a = np.abs(v)
    _, e = np.frexp(a)
    e = np.maximum(e - 1, -6)
    m = np.rint(np.ldexp(a, 3 - e)).astype(int)               # 8..15 normal, 0..7 subnormal
    code = np.where(m >= 8, (e + 7) * 8 + m - 8, m)
    return (code | np.where(np.signbit(v), 128, 0)).astype(np.uint8)


def e4m3_value(b):
    b = np.asarray(b).astype(int)
    e, m = b >> 3 & 15, b & 7
    v = np.where(e == 0, m / 512.0, (8 + m) / 8.0 * np.exp2(e - 7.0))
    return np.where(b & 128, -v, v)


def e2m1_code(v):
    return (np.searchsorted(E2M1, np.abs(v)) | np.where(np.signbit(v), 8, 0)).astype(np.uint8)


def e2m1_value(c):
    return np.where(c & 8, -1.0, 1.0) * E2M1[c & 7]


def scale_exponent(amax, floor, top):
    """Smallest integer e with max(amax, floor) <= top 2^e."""
    a = np.maximum(amax, floor)
    e = np.ceil(np.log2(a / top))
    e = np.where(np.ldexp(top, (e - 1).astype(int)) >= a, e - 1, e)
    return np.where(np.ldexp(top, e.astype(int)) < a, e + 1, e).astype(int)


def grouped(x, g):
    """[..., n] -> [..., ceil(n/g), g], padded with zeros."""
    n = x.shape[-1]
    return np.concatenate([x, np.zeros(x.shape[:-1] + (-n % g,))], -1).reshape(x.shape[:-1] + (-(-n // g), g))


def quant8(x, g):
    """e4m3 with one power-of-two scale per g columns: (values of the codes, exponents, dequantised)."""
    y = grouped(np.asarray(x, np.float64), g)
    e = scale_exponent(np.abs(y).max(-1), float(np.float32(1e-4)), 448.0)
    v = e4m3(np.clip(np.ldexp(y, -e[..., None]), -448, 448))
    n = x.shape[-1]
    flat = x.shape[:-1] + (y.shape[-2] * g,)
    return v.reshape(flat)[..., :n], e, np.ldexp(v, e[..., None]).reshape(flat)[..., :n]


def quant4(x, g=32):
    y = grouped(np.asarray(x, np.float64), g)
    e = scale_exponent(np.abs(y).max(-1), 6 * 2.0 ** -126, 6.0)
    v = e2m1(np.clip(np.ldexp(y, -e[..., None]), -6, 6))
    n = x.shape[-1]
    flat = x.shape[:-1] + (y.shape[-2] * g,)
    return v.reshape(flat)[..., :n], e, np.ldexp(v, e[..., None]).reshape(flat)[..., :n]


class Weight:
    """A stored weight: kind f32 | bf16 | fp8 | fp4, its bytes, its dequantised float64 value."""

    def __init__(self, kind, data, scale=None):
        self.kind, self.data, self.scale = kind, data, scale
        if kind in ("f32", "bf16"):
            self.value = np.asarray(data, np.float64)
        elif kind == "fp8":
            s = np.exp2(scale.astype(float) - 127)
            r, c = data.shape
            self.value = e4m3_value(data) * s.repeat(128, 0)[:r].repeat(128, 1)[:, :c]
        else:
            codes = np.stack([data & 15, data >> 4], -1).reshape(data.shape[0], -1)
            self.value = e2m1_value(codes) * np.exp2(scale.astype(float) - 127).repeat(32, 1)

    @staticmethod
    def store(w, kind):
        """Quantise w as a released checkpoint would."""
        if kind == "f32":
            return Weight(kind, w.astype(np.float32))
        if kind == "bf16":
            return Weight(kind, bf16(w).astype(np.float32))
        r, c = w.shape
        if kind == "fp4":
            v, e, _ = quant4(w)
            k = e2m1_code(v)
            return Weight(kind, k[:, 0::2] | k[:, 1::2] << 4, (e + 127).astype(np.uint8))
        e = np.array([[scale_exponent(np.abs(w[i:i + 128, j:j + 128]).max(), 1e-30, 448.0)
                       for j in range(0, c, 128)] for i in range(0, r, 128)])
        s = np.exp2(e.astype(float)).repeat(128, 0)[:r].repeat(128, 1)[:, :c]
        return Weight(kind, e4m3_code(e4m3(np.clip(w / s, -448, 448))), (e + 127).astype(np.uint8))

    @property
    def quantised(self):
        return self.kind in ("fp8", "fp4")
