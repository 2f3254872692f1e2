/* SPDX-License-Identifier: Apache-2.0 */
#include "num.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[LF_DTYPES] = {
    [LF_F32] = { "F32", 4 },      [LF_BF16] = { "BF16", 2 },    [LF_F16] = { "F16", 2 },
    [LF_E4M3] = { "F8_E4M3", 1 }, [LF_E8M0] = { "F8_E8M0", 1 }, [LF_I8] = { "I8", 1 },
    [LF_U8] = { "U8", 1 },        [LF_I32] = { "I32", 4 },      [LF_I64] = { "I64", 8 },
    [LF_U32] = { "U32", 4 },
};

size_t lf_dtype_bytes(lf_dtype t)
{
    return dtypes[t].bytes;
}

const char *lf_dtype_name(lf_dtype t)
{
    return dtypes[t].name;
}

int lf_dtype_parse(const char *name, lf_dtype *out)
{
    for (int t = 0; t < LF_DTYPES; t++)
        if (strcmp(name, dtypes[t].name) == 0) {
            *out = (lf_dtype)t;
            return 0;
        }
    return -1;
}

/* The table is written as arithmetic on constants, so that no number is typed twice. */
#define SUB(s, m) ((s) * (float)(m) / 512.0f)
#define NORM(s, e, m) ((s) * (float)(8 + (m)) * (float)(1 << (e)) / 1024.0f)
#define ROW(s, e)                                                                                            \
    NORM(s, e, 0), NORM(s, e, 1), NORM(s, e, 2), NORM(s, e, 3), NORM(s, e, 4), NORM(s, e, 5), NORM(s, e, 6)
#define HALF(s)                                                                                              \
    SUB(s, 0), SUB(s, 1), SUB(s, 2), SUB(s, 3), SUB(s, 4), SUB(s, 5), SUB(s, 6), SUB(s, 7), ROW(s, 1),       \
        NORM(s, 1, 7), ROW(s, 2), NORM(s, 2, 7), ROW(s, 3), NORM(s, 3, 7), ROW(s, 4), NORM(s, 4, 7),         \
        ROW(s, 5), NORM(s, 5, 7), ROW(s, 6), NORM(s, 6, 7), ROW(s, 7), NORM(s, 7, 7), ROW(s, 8),             \
        NORM(s, 8, 7), ROW(s, 9), NORM(s, 9, 7), ROW(s, 10), NORM(s, 10, 7), ROW(s, 11), NORM(s, 11, 7),     \
        ROW(s, 12), NORM(s, 12, 7), ROW(s, 13), NORM(s, 13, 7), ROW(s, 14), NORM(s, 14, 7), ROW(s, 15),      \
        (s)*__builtin_nanf("")

const float lf_e4m3_table[256] = { HALF(1.0f), HALF(-1.0f) };

const float lf_e2m1_table[16] = {
    0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f,
};

float lf_f16_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31, mantissa = h & 0x3ff;

    if (exponent == 31)
        return lf_bits_f32(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) {
        float f = (float)mantissa * 0x1p-24f;
        return lf_bits_f32(sign | lf_f32_bits(f));
    }
    return lf_bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint8_t lf_f32_e4m3(float f)
{
    uint32_t u = lf_f32_bits(f), a = u & 0x7fffffffu;
    uint8_t sign = (uint8_t)(u >> 24 & 0x80);

    if (a > 0x7f800000u)
        return 0x7f;
    if (a >= 0x43e00000u) /* 448 and above, infinity too */
        return sign | 0x7e;
    if (a < 0x3c800000u) { /* below 2^-6: at 2^14 the last bit of a float is worth 2^-9 */
        uint32_t r = lf_f32_bits(lf_bits_f32(a) + 0x1p14f) - lf_f32_bits(0x1p14f);
        return sign | (uint8_t)r;
    }
    a += 0x7ffffu + (a >> 20 & 1);
    return sign | (uint8_t)((a >> 20) - (120u << 3));
}

/* Between neighbours the even code wins a tie: hence > and >= in turn. */
uint8_t lf_f32_e2m1(float f)
{
    uint32_t u = lf_f32_bits(f);
    float a = lf_bits_f32(u & 0x7fffffffu);
    int code =
        (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);

    if (a != a)
        return 0;
    return (uint8_t)(code | (int)(u >> 28 & 8));
}

/* With a = 1.m * 2^e and max = 1.t * 2^p: a <= max * 2^k holds from k = e - p when 1.m <= 1.t,
 * else from k = e - p + 1. */
static uint8_t scale_of(float amax, float least, uint32_t top_mantissa, int top_exponent)
{
    float a = amax > least ? amax : least;
    uint32_t u = lf_f32_bits(a);

    if (amax != amax)
        return 255;
    return (uint8_t)((int)(u >> 23) - top_exponent + ((u & 0x7fffffu) > top_mantissa));
}

uint8_t lf_scale_e4m3(float amax)
{
    return scale_of(amax, 1e-4f, 0x600000u, 8); /* 448 = 1.75 * 2^8 */
}

uint8_t lf_scale_e2m1(float amax)
{
    return scale_of(amax, 0x1.8p-124f, 0x400000u, 2); /* 6 = 1.5 * 2^2 */
}
