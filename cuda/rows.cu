/* SPDX-License-Identifier: Apache-2.0
 *
 * Cache rows to packed bytes and back.   Source: kvlayout.h; model.md, "Numerics"; what they give:
 * src/cpu/rows.c.
 *
 * Packed rows begin at even addresses (every format has even row sizes), not necessarily at multiples of 4.
 */
#include "row.cuh"

enum { THREADS = 128 };

struct packing {
    int64_t m, width, bytes;               /* rows; channels and packed bytes of a row */
    int plain, groups;                     /* fp8: channels that are codes, and their scales */
    int64_t rope_at, scale_at;
    int transformed;
};

static packing packing_of(lf_cuda *c, int64_t m, int64_t width, lf_row_fmt fmt, int transformed)
{
    const lf_model *model = c->dev.model;

    return { m, width, (int64_t)lf_row_bytes(model, fmt, width), model->head_dim - model->rope_dim,
             lf_fp8_groups(model), (int64_t)lf_fp8_rope_at(model), (int64_t)lf_fp8_scale_at(model), transformed };
}

/* ---- unquantised: an element a thread, at any address ---- */

static __device__ __forceinline__ void put_f32(uint8_t *dst, float x)
{
    uint32_t v = __float_as_uint(x);

    if (((uintptr_t)dst & 3) == 0) {
        *(uint32_t *)dst = v;
        return;
    }
    ((uint16_t *)dst)[0] = (uint16_t)v;
    ((uint16_t *)dst)[1] = (uint16_t)(v >> 16);
}

static __device__ __forceinline__ float get_f32(const uint8_t *src)
{
    const uint16_t *h = (const uint16_t *)src;

    return ((uintptr_t)src & 3) == 0 ? *(const float *)src : __uint_as_float(h[0] | (uint32_t)h[1] << 16);
}

/* Whole, not byte by byte: ptxas 13.0 makes of the low byte of a freshly rounded bf16 a conversion to an integer. */
static __device__ __forceinline__ void put_bf16(uint8_t *dst, float x)
{
    *(__nv_bfloat16 *)dst = __float2bfloat16_rn(x);
}

static __device__ __forceinline__ float get_bf16(const uint8_t *src)
{
    return __bfloat162float(*(const __nv_bfloat16 *)src);
}

template <typename T, int WIDE> static __global__ void pack_plain_kernel(uint8_t *dst, const T *x, int64_t n)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;

    if (i >= n)
        return;
    if (WIDE)
        put_f32(dst + 4 * i, lf_load(&x[i]));
    else
        put_bf16(dst + 2 * i, lf_load(&x[i]));
}

template <typename T, int WIDE> static __global__ void unpack_plain_kernel(T *x, const uint8_t *src, int64_t n)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;

    if (i < n)
        lf_store(&x[i], WIDE ? get_f32(src + 4 * i) : get_bf16(src + 2 * i));
}

/* ---- fp8 main rows: one warp a row ---- */

static __device__ __forceinline__ int64_t warp_row(void)
{
    return blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
}

template <typename T> static __global__ void pack_fp8_kernel(uint8_t *dst, const T *x, packing k)
{
    int64_t row = warp_row();
    int lane = threadIdx.x & 31, size = k.plain / k.groups;

    if (row >= k.m)
        return;
    dst += row * k.bytes;
    x += row * k.width;
    for (int g = 0; g < k.groups; g++) {
        float amax = 0;
        for (int j = lane; j < size; j += 32)
            amax = fmaxf(amax, fabsf(lf_load(&x[g * size + j])));
        uint8_t byte = lf_scale_byte_e4m3(lf_warp_max(amax));
        float scale = lf_e8m0(byte);
        for (int j = lane; j < size; j += 32)
            dst[g * size + j] = lf_to_e4m3(lf_load(&x[g * size + j]) / scale);
        if (lane == 0)
            dst[k.scale_at + g] = byte;
    }
    for (int64_t j = lane; j < k.width - k.plain; j += 32)
        put_bf16(dst + k.rope_at + 2 * j, lf_load(&x[k.plain + j]));
    for (int64_t j = k.scale_at + k.groups + lane; j < k.bytes; j += 32)
        dst[j] = 0;
}

template <typename T> static __global__ void unpack_fp8_kernel(T *x, const uint8_t *src, packing k)
{
    int64_t row = warp_row();
    int lane = threadIdx.x & 31, size = k.plain / k.groups;

    if (row >= k.m)
        return;
    src += row * k.bytes;
    x += row * k.width;
    for (int j = lane; j < k.plain; j += 32)
        lf_store(&x[j], lf_e4m3(src[j]) * lf_e8m0(src[k.scale_at + j / size]));
    for (int64_t j = lane; j < k.width - k.plain; j += 32)
        lf_store(&x[k.plain + j], get_bf16(src + k.rope_at + 2 * j));
}

/* ---- fp4 index rows: one warp a row, E neighbouring channels a lane ---- */

template <typename T, int E> static __global__ void pack_fp4_kernel(uint8_t *dst, const T *x, packing k)
{
    int64_t row = warp_row();
    int lane = threadIdx.x & 31;
    float v[E];

    if (row >= k.m)
        return;
    dst += row * k.bytes;
    lf_loadv<T, E>(v, x + row * k.width + lane * E);
    if (!k.transformed)
        lf_hadamard<E>(v, (int)k.width);
    uint8_t byte = lf_scale_byte_e2m1(lf_amax32<E>(v));
    float scale = lf_e8m0(byte);
    if (lane * E % 32 == 0)
        dst[k.width / 2 + lane * E / 32] = byte;
    if constexpr (E == 1) {                /* the neighbour has the other half of the byte */
        int code = lf_to_e2m1(v[0] / scale), other = __shfl_down_sync(~0u, code, 1);
        if (lane % 2 == 0)
            dst[lane / 2] = (uint8_t)(code | other << 4);
    } else {
#pragma unroll
        for (int i = 0; i < E; i += 2)
            dst[(lane * E + i) / 2] = (uint8_t)(lf_to_e2m1(v[i] / scale) | lf_to_e2m1(v[i + 1] / scale) << 4);
    }
}

template <typename T> static __global__ void unpack_fp4_kernel(T *x, const uint8_t *src, packing k)
{
    int64_t pair = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, half = k.width / 2;

    if (pair >= k.m * half)
        return;
    int64_t row = pair / half, j = pair % half;
    uint8_t codes = src[row * k.bytes + j];
    float scale = lf_e8m0(src[row * k.bytes + half + j / 16]);
    lf_store(&x[row * k.width + 2 * j], lf_e2m1(codes & 15) * scale);
    lf_store(&x[row * k.width + 2 * j + 1], lf_e2m1(codes >> 4) * scale);
}

/* ---- the operations ---- */

/* fp8 rows are as wide as the model's heads, fp4 rows whole groups. */
static int fits(lf_cuda *c, int64_t width, lf_row_fmt fmt)
{
    if (fmt == LF_ROW_FP8 && width != c->dev.model->head_dim)
        lf_cuda_fail(c, "fp8 rows: %lld channels, but the model's rows have %d", (long long)width,
                     c->dev.model->head_dim);
    else if (fmt == LF_ROW_FP4 && width % 32)
        lf_cuda_fail(c, "fp4 rows: %lld channels are no whole groups of 32", (long long)width);
    else
        return 1;
    return 0;
}

void lf_cuda_row_pack(lf_dev *d, uint8_t *dst, const lf_act *x, int64_t m, int64_t width, lf_row_fmt fmt,
                      int transformed)
{
    lf_cuda *c = lf_cuda_of(d);
    packing k = packing_of(c, m, width, fmt, transformed);
    unsigned plain = lf_blocks(m * width, THREADS), warps = lf_blocks(m, THREADS / 32);

    if (m == 0 || !fits(c, width, fmt))
        return;
    LF_ACT(c, {
        const T *p = lf_ptr<T>(x);
        if (fmt == LF_ROW_F32)
            pack_plain_kernel<T, 1><<<plain, THREADS, 0, c->stream>>>(dst, p, m * width);
        else if (fmt == LF_ROW_BF16)
            pack_plain_kernel<T, 0><<<plain, THREADS, 0, c->stream>>>(dst, p, m * width);
        else if (fmt == LF_ROW_FP8)
            pack_fp8_kernel<T><<<warps, THREADS, 0, c->stream>>>(dst, p, k);
        else
            LF_BY_WIDTH32(c, width, "row_pack", pack_fp4_kernel<T, E><<<warps, THREADS, 0, c->stream>>>(dst, p, k));
    });
    LF_LAUNCHED(c, "row_pack");
}

void lf_cuda_row_unpack(lf_dev *d, lf_act *x, const uint8_t *src, int64_t m, int64_t width, lf_row_fmt fmt)
{
    lf_cuda *c = lf_cuda_of(d);
    packing k = packing_of(c, m, width, fmt, 0);
    unsigned plain = lf_blocks(m * width, THREADS), warps = lf_blocks(m, THREADS / 32);

    if (m == 0 || !fits(c, width, fmt))
        return;
    LF_ACT(c, {
        T *p = lf_ptr<T>(x);
        if (fmt == LF_ROW_F32)
            unpack_plain_kernel<T, 1><<<plain, THREADS, 0, c->stream>>>(p, src, m * width);
        else if (fmt == LF_ROW_BF16)
            unpack_plain_kernel<T, 0><<<plain, THREADS, 0, c->stream>>>(p, src, m * width);
        else if (fmt == LF_ROW_FP8)
            unpack_fp8_kernel<T><<<warps, THREADS, 0, c->stream>>>(p, src, k);
        else
            unpack_fp4_kernel<T><<<lf_blocks(m * width / 2, THREADS), THREADS, 0, c->stream>>>(p, src, k);
    });
    LF_LAUNCHED(c, "row_unpack");
}
