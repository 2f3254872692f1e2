/* SPDX-License-Identifier: Apache-2.0
 *
 * row: what the row-wise kernels share: vectors of activations, rotations, Hadamard in a warp.
 */
#ifndef LF_ROW_CUH
#define LF_ROW_CUH

#include "cuda.cuh"

/* x as T, when T is a template's. */
template <typename T> static __device__ __forceinline__ T lf_to(float x)
{
    T t;

    lf_store(&t, x);
    return t;
}

/* V neighbours, in accesses of up to 16 bytes; the address is aligned to the access. */
template <typename T, int V> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) lf_pack {
    T v[V];
};

template <typename T, int V> static __device__ __forceinline__ void lf_loadv(float (&out)[V], const T *p)
{
    lf_pack<T, V> a = *reinterpret_cast<const lf_pack<T, V> *>(p);

#pragma unroll
    for (int i = 0; i < V; i++)
        out[i] = lf_load(&a.v[i]);
}

template <typename T, int V> static __device__ __forceinline__ void lf_storev(T *p, const float (&x)[V])
{
    lf_pack<T, V> a;

#pragma unroll
    for (int i = 0; i < V; i++)
        a.v[i] = lf_to<T>(x[i]);
    *reinterpret_cast<lf_pack<T, V> *>(p) = a;
}

static __device__ __forceinline__ float lf_rms_factor(float sum, int64_t n, float eps)
{
    return (float)(1 / sqrt((double)sum / (double)n + (double)eps));
}

/* The products of two float32 values are exact in double, so one rounding to double and one to float32 remain. */
static __device__ __forceinline__ void lf_turn(float *a, float *b, float co, float si)
{
    double x = *a, y = *b;

    *a = (float)(x * co - y * si);
    *b = (float)(x * si + y * co);
}

/* Hadamard transform of 32 E values of a warp, lane l holding E l .. E l + E-1 (width below 32: E is 1 and
 * the lanes from `width` on hold zero), scaled width^-1/2 and rounded to bf16.  In double: exact for bf16
 * input but for the last step. */
template <int E> static __device__ void lf_hadamard(float (&x)[E], int width)
{
    double t[E], scale = 1 / sqrt((double)width);
    int lane = threadIdx.x & 31;

#pragma unroll
    for (int i = 0; i < E; i++)
        t[i] = x[i];
#pragma unroll
    for (int h = 1; h < E; h *= 2)
#pragma unroll
        for (int i = 0; i < E; i++)
            if ((i & h) == 0) {
                double a = t[i], b = t[i + h];
                t[i] = a + b;
                t[i + h] = a - b;
            }
    for (int m = 1; m * E < width; m *= 2)
#pragma unroll
        for (int i = 0; i < E; i++) {
            double other = __shfl_xor_sync(0xffffffffu, t[i], m);
            t[i] = lane & m ? other - t[i] : t[i] + other;
        }
#pragma unroll
    for (int i = 0; i < E; i++)
        x[i] = lf_rounded<__nv_bfloat16>((float)(t[i] * scale));
}

/* The largest magnitude of each group of 32 of those values, in all its lanes. */
template <int E> static __device__ float lf_amax32(const float (&x)[E])
{
    float a = 0;

#pragma unroll
    for (int i = 0; i < E; i++)
        a = fmaxf(a, fabsf(x[i]));
#pragma unroll
    for (int m = 16 / E; m; m /= 2)
        a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, m));
    return a;
}

/* The body with E = width / 32, at least 1, for lf_hadamard; other widths are recorded as an error. */
#define LF_BY_WIDTH32(c, width, name, ...)                                                                    \
    do {                                                                                                      \
        switch ((width) >= 2 && ((width) & ((width) - 1)) == 0 ? ((width) + 31) / 32 : 0) {                   \
            LF_WITH_E(1, __VA_ARGS__)                                                                         \
            LF_WITH_E(2, __VA_ARGS__)                                                                         \
            LF_WITH_E(4, __VA_ARGS__)                                                                         \
            LF_WITH_E(8, __VA_ARGS__)                                                                         \
            LF_WITH_E(16, __VA_ARGS__)                                                                        \
            LF_WITH_E(32, __VA_ARGS__)                                                                        \
        default:                                                                                              \
            lf_cuda_fail(c, "%s: a Hadamard transform of size %lld; powers of two up to 1024 work", name,     \
                         (long long)(width));                                                                 \
        }                                                                                                     \
    } while (0)

#define LF_WITH_E(e, ...)                                                                                     \
    case e: {                                                                                                 \
        enum { E = e };                                                                                       \
        __VA_ARGS__;                                                                                          \
        break;                                                                                                \
    }

/* norm_rope.cu: x [m, width] = rotate(rmsnorm(x) * norm), row b at position (block0 + b) * ratio, in place. */
void lf_cuda_entry_finish(lf_cuda *c, lf_act *x, int64_t m, int64_t width, const float *norm, const lf_rope *rope,
                          int64_t block0, int ratio);

#endif
