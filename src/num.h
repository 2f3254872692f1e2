/* SPDX-License-Identifier: Apache-2.0
 *
 * num: the number formats of the released checkpoint (model.md, "Released checkpoint format" and "Numerics").  Floor 0.
 * e4m3 is everywhere the OCP "fn" form: no infinities, 0x7f and 0xff are NaN, largest 448.  e8m0 byte b means
 * 2^(b-127), 0xff is NaN.  e2m1: 0 .5 1 1.5 2 3 4 6 and negatives; two codes a byte, the low nibble first.
 * All conversions round to nearest, ties to even.
 */
#ifndef LF_NUM_H
#define LF_NUM_H

#include "base.h"

#include <string.h>

typedef enum lf_dtype {
    LF_F32, LF_BF16, LF_F16, LF_E4M3, LF_E8M0, LF_I8, LF_U8, LF_I32, LF_I64, LF_U32, LF_DTYPES
} lf_dtype;

size_t lf_dtype_bytes(lf_dtype t);
const char *lf_dtype_name(lf_dtype t);                 /* safetensors' spelling: "F8_E4M3" */
int lf_dtype_parse(const char *name, lf_dtype *out);   /* -1: not one of ours */

static inline float lf_bits_f32(uint32_t u)
{
    float f;

    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t lf_f32_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, 4);
    return u;
}

static inline float lf_bf16_f32(uint16_t b)
{
    return lf_bits_f32((uint32_t)b << 16);
}

static inline uint16_t lf_f32_bf16(float f)            /* NaN stays NaN */
{
    uint32_t u = lf_f32_bits(f);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static inline float lf_round_bf16(float f)
{
    return lf_bf16_f32(lf_f32_bf16(f));
}

static inline float lf_e8m0_f32(uint8_t b)             /* exact; b = 0 is the subnormal 2^-127 */
{
    return b == 255 ? lf_bits_f32(0x7fc00000u) : b ? lf_bits_f32((uint32_t)b << 23) : lf_bits_f32(0x00400000u);
}

float lf_f16_f32(uint16_t h);
extern const float lf_e4m3_table[256];
extern const float lf_e2m1_table[16];
uint8_t lf_f32_e4m3(float f);                          /* clamps to +-448; NaN gives 0x7f */
uint8_t lf_f32_e2m1(float f);                          /* a code 0..15; clamps to +-6; NaN gives 0 */

/* The power-of-two scale of a group: the e8m0 byte of 2^ceil(log2(max(amax, floor) / max)).
 * e4m3: floor 1e-4, max 448.  e2m1: floor 6 * 2^-126, max 6.  Exact integer arithmetic on the bits. */
uint8_t lf_scale_e4m3(float amax);
uint8_t lf_scale_e2m1(float amax);

#endif
