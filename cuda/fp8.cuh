/* SPDX-License-Identifier: Apache-2.0
 *
 * fp8: inputs of products per 1x128 as e4m3 codes and power-of-two scales.  Private to cuda/.   Source: model.md,
 * "Numerics".
 */
#ifndef LF_FP8_CUH
#define LF_FP8_CUH

#include "cuda.cuh"

/* A warp has a group of 128: lane l values 4l .. 4l+3, zeros past its end.  The four codes, lowest first; the scale's
 * byte is every lane's. */
__device__ __forceinline__ uint32_t lf_quantise_4(const float *v, uint8_t *byte)
{
    float amax = lf_warp_max(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))));
    uint32_t codes = 0;

    *byte = lf_scale_byte_e4m3(amax);
    float inverse = lf_e8m0_inverse(*byte);
#pragma unroll
    for (int i = 0; i < 4; i++)
        codes |= (uint32_t)lf_to_e4m3(v[i] * inverse) << 8 * i;
    return codes;
}

/* Values j .. j+3 of a row of n; zeros past its end. */
__device__ __forceinline__ void lf_load_4(float *v, const __nv_bfloat16 *x, int64_t j, int64_t n)
{
    if (j + 4 <= n && ((uintptr_t)(x + j) & 7) == 0) {
        uint2 u = *(const uint2 *)(x + j);
        v[0] = __uint_as_float(u.x << 16);
        v[1] = __uint_as_float(u.x & 0xffff0000u);
        v[2] = __uint_as_float(u.y << 16);
        v[3] = __uint_as_float(u.y & 0xffff0000u);
    } else
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = j + i < n ? __bfloat162float(x[j + i]) : 0.0f;
}

enum { LF_QUANTISE_ROWS = 8, LF_QUANTISE_GROUPS = 4 };                 /* of a block of 256 threads */

static inline dim3 lf_quantise_blocks(int64_t rows, int64_t k)
{
    return dim3(lf_blocks(rows, LF_QUANTISE_ROWS), lf_blocks(k, 128 * LF_QUANTISE_GROUPS));
}

/* code [rows, k], k a multiple of 4; R says for a row where its input lies (NULL: a row of zeros), and where the scale
 * of its first group goes and how far apart those of one row lie. */
template <typename R>
static __global__ void __launch_bounds__(256)
    lf_quantise_rows(uint8_t *code, float *scale, R rows, int64_t total, int64_t k)
{
    int64_t row = (int64_t)blockIdx.x * LF_QUANTISE_ROWS + (threadIdx.x >> 5), groups = (k + 127) / 128;
    int lane = (int)threadIdx.x & 31;

    if (row >= total)
        return;
    int64_t at, step;
    const __nv_bfloat16 *x = rows.at(row, groups, &at, &step);
#pragma unroll
    for (int i = 0; i < LF_QUANTISE_GROUPS; i++) {
        int64_t group = (int64_t)blockIdx.y * LF_QUANTISE_GROUPS + i, j = group * 128 + lane * 4;
        float v[4] = { 0, 0, 0, 0 };
        uint8_t byte;
        if (group >= groups)
            return;
        if (x)
            lf_load_4(v, x, j, k);
        uint32_t codes = lf_quantise_4(v, &byte);
        if (j < k)
            *(uint32_t *)(code + row * k + j) = codes;
        if (lane == 0)
            scale[at + group * step] = lf_e8m0(byte);
    }
}

#endif
