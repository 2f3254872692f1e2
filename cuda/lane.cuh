/* SPDX-License-Identifier: Apache-2.0
 *
 * lane: what kernels share: loads and stores of activations, number formats, reductions in a fixed order, angles, the
 * total order of top-k.  Included by cuda.cuh.
 */
#ifndef LF_LANE_CUH
#define LF_LANE_CUH

__device__ __forceinline__ float lf_load(const float *p) { return *p; }
__device__ __forceinline__ float lf_load(const __nv_bfloat16 *p) { return __bfloat162float(*p); }
__device__ __forceinline__ void lf_store(float *p, float x) { *p = x; }
__device__ __forceinline__ void lf_store(__nv_bfloat16 *p, float x) { *p = __float2bfloat16_rn(x); }

/* x as an activation would hold it. */
template <typename T> __device__ __forceinline__ float lf_rounded(float x);
template <> __device__ __forceinline__ float lf_rounded<float>(float x) { return x; }
template <> __device__ __forceinline__ float lf_rounded<__nv_bfloat16>(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* Eight neighbours in one or two 16-byte accesses; p must be 16-byte aligned. */
__device__ __forceinline__ void lf_load8(float *out, const float *p)
{
    float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);

    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}

__device__ __forceinline__ void lf_load8(float *out, const __nv_bfloat16 *p)
{
    uint4 u = *(const uint4 *)p;
    uint32_t w[4] = { u.x, u.y, u.z, u.w };

#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __uint_as_float(w[i] << 16);
        out[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

__device__ __forceinline__ void lf_store8(float *p, const float *x)
{
    *(float4 *)p = make_float4(x[0], x[1], x[2], x[3]);
    *(float4 *)(p + 4) = make_float4(x[4], x[5], x[6], x[7]);
}

__device__ __forceinline__ void lf_store8(__nv_bfloat16 *p, const float *x)
{
    __nv_bfloat162 v[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
    *(uint4 *)p = *(const uint4 *)v;
}

__device__ __forceinline__ float lf_e4m3(uint8_t code)
{
    __nv_fp8_e4m3 v;

    v.__x = code;
    return (float)v;
}

/* To nearest, ties to even, clamped to +-448; NaN gives 0x7f. */
__device__ __forceinline__ uint8_t lf_to_e4m3(float x)
{
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

__device__ __forceinline__ float lf_e8m0(uint8_t b)    /* exact; 0 is the subnormal 2^-127, 255 NaN */
{
    return __uint_as_float(b == 255 ? 0x7fc00000u : b ? (uint32_t)b << 23 : 0x00400000u);
}

__device__ __forceinline__ float lf_e2m1(int code)
{
    int e = code >> 1 & 3, m = code & 1;
    float a = e ? __uint_as_float((uint32_t)(126 + e) << 23 | (uint32_t)m << 22) : 0.5f * m;

    return code & 8 ? -a : a;
}

/* As lf_f32_e2m1: between neighbours the even code wins a tie; NaN gives 0. */
__device__ __forceinline__ int lf_to_e2m1(float x)
{
    float a = fabsf(x);
    int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);

    return x != x ? 0 : code | (int)(__float_as_uint(x) >> 28 & 8);
}

/* As lf_scale_e4m3 and lf_scale_e2m1: the e8m0 byte of a group whose largest magnitude is amax. */
__device__ __forceinline__ uint8_t lf_scale_byte(float amax, float least, uint32_t top_mantissa, int top_exponent)
{
    uint32_t u = __float_as_uint(amax > least ? amax : least);

    return amax != amax ? 255 : (uint8_t)((int)(u >> 23) - top_exponent + ((u & 0x7fffffu) > top_mantissa));
}

__device__ __forceinline__ uint8_t lf_scale_byte_e4m3(float amax)
{
    return lf_scale_byte(amax, 1e-4f, 0x600000u, 8);
}

__device__ __forceinline__ uint8_t lf_scale_byte_e2m1(float amax)
{
    return lf_scale_byte(amax, 0x1.8p-124f, 0x400000u, 2);
}

/* 1 / 2^(b-127), exact for the bytes that the two functions above give (b <= 253; 255 gives NaN). */
__device__ __forceinline__ float lf_e8m0_inverse(uint8_t b)
{
    return b == 255 ? __uint_as_float(0x7fc00000u) : lf_e8m0((uint8_t)(254 - b));
}

/* Reductions in a fixed order; every lane (thread) gets the result. */
template <typename V> __device__ __forceinline__ V lf_warp_sum(V x)
{
#pragma unroll
    for (int i = 16; i; i >>= 1)
        x += __shfl_xor_sync(~0u, x, i);
    return x;
}

__device__ __forceinline__ float lf_warp_max(float x)
{
#pragma unroll
    for (int i = 16; i; i >>= 1)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

/* Of a whole block of whole warps, at most 1024 threads; spare: shared memory [33] that nobody else uses meanwhile. */
template <typename V> __device__ __forceinline__ V lf_block_sum(V x, V *spare)
{
    int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, warps = (int)blockDim.x >> 5;

    x = lf_warp_sum(x);
    __syncthreads();
    if (lane == 0)
        spare[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = lf_warp_sum(lane < warps ? spare[lane] : (V)0);
        if (lane == 0)
            spare[32] = x;
    }
    __syncthreads();
    return spare[32];
}

__device__ __forceinline__ float lf_block_max(float x, float *spare)
{
    int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, warps = (int)blockDim.x >> 5;

    x = lf_warp_max(x);
    __syncthreads();
    if (lane == 0)
        spare[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = lf_warp_max(lane < warps ? spare[lane] : -INFINITY);
        if (lane == 0)
            spare[32] = x;
    }
    __syncthreads();
    return spare[32];
}

/* cos and sin of pos * inv_freq: a float32 product, reduced in double (model.md).  Once per (row, pair): it is slow. */
__device__ __forceinline__ void lf_angle(float *cosine, float *sine, int64_t pos, float inv_freq)
{
    double s, co;

    sincos((double)__fmul_rn((float)pos, inv_freq), &s, &co);
    *cosine = (float)co;
    *sine = (float)s;
}

/* The total order of top-k: larger is better: score descending, then index ascending; NaN after everything. */
__device__ __forceinline__ uint64_t lf_rank_key(float score, uint32_t index)
{
    uint32_t u = __float_as_uint(score + 0.0f);

    if (score != score)
        u = 0;
    else
        u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t)~index;
}

#endif
