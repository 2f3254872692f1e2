/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda: the CUDA backend of dev.h, private to cuda/.  One H200-class GPU (compute capability 9.0) per lf_cuda.
 *
 * Everything runs in order on one stream.  Kernels are templates over the activation type T (float, __nv_bfloat16) and
 * compute in float32; "rounded" means stored as T.  Released numerics always have bf16 activations.
 *
 * Invariance: a row's bits depend on the row alone.  So: reductions in a fixed order (the helpers below), no atomics on
 * floats, no split over K, one algorithm per weight.
 *
 * Errors: the first one is kept (lf_cuda_fail, LF_CUDA, LF_LAUNCHED) and handed out by sync(), which forgets it.  An
 * operation that finds a shape it cannot do records that and returns; it never does something else instead.
 */
#ifndef LF_CUDA_CUH
#define LF_CUDA_CUH

extern "C" {
#include "dev.h"
}
#include "dev_cuda.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

/* ---- scratch: device memory of an operation while it runs.  Grows, is kept; contents undefined.  Slots A to H are for
 * the operations that call no other; the rest belong to who they are named after. ---- */
typedef enum lf_cuda_slot {
    LF_SCRATCH_A, LF_SCRATCH_B, LF_SCRATCH_C, LF_SCRATCH_D, LF_SCRATCH_E, LF_SCRATCH_F, LF_SCRATCH_G, LF_SCRATCH_H,
    LF_SCRATCH_GEMM_X, LF_SCRATCH_GEMM_X_SCALE, LF_SCRATCH_GEMM_W, LF_SCRATCH_GEMM_W_SCALE, LF_SCRATCH_GEMM_OUT,
    LF_SCRATCH_GEMM_PARTS,
    LF_SCRATCH_ROUTE,
    LF_SCRATCH_MOE_TABLE, LF_SCRATCH_MOE_X, LF_SCRATCH_MOE_X_SCALE, LF_SCRATCH_MOE_GU, LF_SCRATCH_MOE_H,
    LF_SCRATCH_MOE_H_SCALE, LF_SCRATCH_MOE_OUT, LF_SCRATCH_MOE_BANK, LF_SCRATCH_MOE_BANK_SCALE,
    LF_SCRATCH_SLOTS
} lf_cuda_slot;

typedef struct lf_cuda_area {
    void *p;
    size_t bytes;
} lf_cuda_area;

/* Pinned host memory that put() and get() go through, in pieces; `done` follows the last copy from or to a piece. */
enum { LF_STAGES = 32, LF_STAGE_BYTES = 2 << 20 };

typedef struct lf_cuda_stage {
    char *p;
    cudaEvent_t done;
} lf_cuda_stage;

typedef struct lf_cuda_held {              /* memory handed out by take() */
    void *p;
    size_t bytes;
} lf_cuda_held;

typedef struct lf_cuda_plans lf_cuda_plans;            /* gemm.cu: the algorithm of each product */
typedef struct lf_cuda_stores lf_cuda_stores;          /* weight.cu: memory of uploaded weights */
typedef struct lf_cuda_clock lf_cuda_clock;            /* clock.cu: time stamps not yet read */
typedef struct lf_cuda_bank lf_cuda_bank;              /* bank.cuh: a layer's experts, expanded to fp8 */

typedef struct lf_cuda {
    lf_dev dev;                            /* first: an lf_dev is this */
    int device, sms;
    size_t smem_max;                       /* dynamic shared memory a block may opt in to */
    cudaStream_t stream;
    cudaEvent_t end;                       /* of the stream, when sync waits for it */
    cublasLtHandle_t blas;
    lf_cuda_area scratch[LF_SCRATCH_SLOTS];
    lf_cuda_stage stage[LF_STAGES];
    int next_stage;
    lf_cuda_held *held;
    int helds, held_room;
    lf_cuda_plans *plans;
    lf_cuda_stores *stores;
    lf_cuda_bank *bank;
    lf_cuda_clock *clock;
    unsigned told;                         /* what -v has said once */
    int failed;
    lf_err error;
    char where[64];                        /* "layer 3, tile 2", when the caller says so; part of every error */
    char call[64];                         /* the newest collective: "gather 12 on pcp"; part of a time-out's text */
    double patience;                       /* seconds that the host waits for the GPU: another rank may be gone */
} lf_cuda;

static inline lf_cuda *lf_cuda_of(lf_dev *d)
{
    return (lf_cuda *)(void *)d;
}

/* NULL when there is no memory (recorded): return then. */
void *lf_cuda_scratch(lf_cuda *c, lf_cuda_slot slot, size_t bytes);

int lf_cuda_memory_open(lf_cuda *c, lf_err *err);      /* pinned pieces */
void lf_cuda_memory_free(lf_cuda *c);                  /* these, scratch, and what was never given back */

/* ---- errors ---- */

void lf_cuda_fail(lf_cuda *c, const char *fmt, ...) LF_PRINTF(2, 3);
int lf_cuda_check(lf_cuda *c, cudaError_t rc, const char *what);        /* 0, or -1 and recorded */

/* The host waits for an event; after c->patience seconds that is an error. */
int lf_cuda_wait(lf_cuda *c, cudaEvent_t event, const char *what);

#define LF_CUDA(c, call, what) lf_cuda_check((c), (call), (what))
/* After every launch: LF_LAUNCHED(c, "norm"); */
#define LF_LAUNCHED(c, name) lf_cuda_check((c), cudaGetLastError(), "kernel " name)

/* The body once for each activation type, as T:  LF_ACT(c, { kernel<T><<<...>>>(lf_ptr<T>(x), ...); }); */
#define LF_ACT(c, ...)                                                                                        \
    do {                                                                                                      \
        if ((c)->dev.act_bytes == 2) {                                                                        \
            typedef __nv_bfloat16 T;                                                                          \
            __VA_ARGS__;                                                                                      \
        } else {                                                                                              \
            typedef float T;                                                                                  \
            __VA_ARGS__;                                                                                      \
        }                                                                                                     \
    } while (0)

template <typename T> static inline T *lf_ptr(lf_act *p)
{
    return (T *)(void *)p;
}

template <typename T> static inline const T *lf_ptr(const lf_act *p)
{
    return (const T *)(const void *)p;
}

/* Blocks for n items of `per` each; a launch with 0 blocks is an error in CUDA, so return before on n == 0. */
static inline unsigned lf_blocks(int64_t n, int64_t per)
{
    return (unsigned)lf_ceil_div(n, per);
}

/* ---- device helpers ---- */

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

/* ---- weights (weight.cu) ---- */

/* What a weight has besides its bytes: lf_weight.extra, host memory, owned by the device. */
typedef struct lf_cuda_extra {
    const float *scale;                    /* e4m3: device memory [ceil(all_rows/128)][scale_ld] */
    int64_t scale_ld;                      /* ceil(all_cols/128), up to a multiple of 4: as cuBLASLt has it */
    int folds;                             /* packed e2m1: every 128x128 block fits e4m3 with one scale, exactly */
} lf_cuda_extra;

/* Memory for a weight of w's type and whole shape; and, when its bytes are there, what goes with them. */
int lf_cuda_weight_place(lf_cuda *c, lf_weight *w, size_t bytes, size_t scale_bytes, lf_err *err);
int lf_cuda_weight_finish(lf_cuda *c, lf_weight *w, lf_err *err);

/* Columns 0 .. cols-1 of rows r0 .. r0+n-1 of a slice as bf16 or float32, rows ldo apart (a multiple of 8, out 16-byte
 * aligned); columns cols .. ldo-1 become 0.  bf16 is exact for all but float32 weights. */
void lf_cuda_expand(lf_cuda *c, const lf_weight *w, int64_t r0, int64_t n, __nv_bfloat16 *out, int64_t ldo);
void lf_cuda_expand(lf_cuda *c, const lf_weight *w, int64_t r0, int64_t n, float *out, int64_t ldo);
void lf_cuda_stores_free(lf_cuda *c);

/* fold.cu: a whole packed e2m1 weight as e4m3 codes [rows, cols] with scales [ceil(rows/128)][scale_ld]; *misfit
 * (device memory) becomes 1 where that would lose something, and NaN stands there.  folds: whether it works. */
int lf_cuda_folds(lf_cuda *c, const lf_weight *w, int *folds, lf_err *err);
void lf_cuda_fold(lf_cuda *c, const lf_weight *w, uint8_t *out, float *scale, int64_t scale_ld, int *misfit);

/* ---- products ---- */

typedef enum lf_cuda_precision { LF_CUDA_FP8, LF_CUDA_BF16, LF_CUDA_F32 } lf_cuda_precision;

/* out [m, n] = x [m, k] w[n, k]^T, both sides in one precision, float32 accumulation (never tf32), out bf16 or float32.
 * All pointers and rows 16-byte aligned.  fp8, both sides quantised: m a multiple of 4, n of 8, k of 16; x_scale
 * [ceil(k/128)][m]; w_scale [ceil(n/128)][up to a multiple of 4 of ceil(k/128)], one per 128x128. */
typedef struct lf_cuda_product {
    lf_cuda_precision precision;
    int f32_out;
    const void *x, *w;
    const float *x_scale, *w_scale;        /* fp8 only */
    void *out;
    int64_t m, n, k, ldx, ldw, ldo;
} lf_cuda_product;

void lf_cuda_multiply(lf_cuda *c, const lf_cuda_product *p);           /* product.cu */

/* gemm.cu: whether a slice of a weight can be the w of an fp8 product as it is stored, and its scales in that form
 * (NULL: recorded). */
int lf_cuda_fp8_fits(const lf_weight *w);
const float *lf_cuda_fp8_scale(lf_cuda *c, const lf_weight *w);
int lf_cuda_plans_open(lf_cuda *c, lf_err *err);
void lf_cuda_plans_free(lf_cuda *c);
int lf_cuda_clock_open(lf_cuda *c, lf_err *err);
void lf_cuda_clock_free(lf_cuda *c);
void lf_cuda_clock_settle(lf_cuda *c);     /* waits for the last stamp and adds up all */
void lf_cuda_bank_free(lf_cuda *c);
void lf_cuda_bank_forget(lf_cuda *c);      /* weights have changed: what was expanded is worth nothing */

/* ---- the operations, one file a concept ---- */

int lf_cuda_take(lf_dev *d, void **out, size_t bytes, const char *what, lf_err *err);
void lf_cuda_give(lf_dev *d, void *p);
void lf_cuda_put(lf_dev *d, void *dst, const void *host, size_t bytes);
void lf_cuda_get(lf_dev *d, void *host, const void *src, size_t bytes);
void lf_cuda_copy(lf_dev *d, void *dst, const void *src, size_t bytes);
void lf_cuda_copy_rows(lf_dev *d, void *dst, size_t ldd, const void *src, size_t lds, size_t row_bytes, int64_t rows);
void lf_cuda_gather(lf_dev *d, void *dst, const void *src, const int32_t *idx, int64_t rows, size_t row_bytes);
void lf_cuda_fill(lf_dev *d, void *dst, int byte, size_t bytes);
int lf_cuda_weight(lf_dev *d, lf_weight *w, const void *data, size_t bytes, const void *scale, size_t scale_bytes,
                   lf_err *err);
int lf_cuda_made_up(lf_dev *d, lf_weight *w, const lf_inventory_item *item, lf_storage store, uint64_t seed, lf_err *err);
void lf_cuda_stamp(lf_dev *d, double *to);
void lf_cuda_gemm(lf_dev *d, const lf_gemm *g);
void lf_cuda_embed(lf_dev *d, lf_act *x, const uint32_t *ids, int64_t m, const lf_weight *embed);
void lf_cuda_hc_pre(lf_dev *d, lf_act *y, float *mix, const lf_act *x, int64_t m, const lf_hc *hc, const float *norm);
void lf_cuda_hc_post(lf_dev *d, lf_act *x, const lf_act *z, const float *mix, int64_t m);
void lf_cuda_hc_head(lf_dev *d, lf_act *y, const lf_act *x, int64_t m, const lf_hc *hc, const float *norm);
void lf_cuda_norm(lf_dev *d, lf_act *x, int64_t m, int64_t n, const float *norm);
void lf_cuda_query(lf_dev *d, lf_act *q, int64_t m, int heads, const int64_t *pos, const lf_rope *rope);
void lf_cuda_rotate(lf_dev *d, lf_act *x, int64_t m, int heads, int64_t width, const int64_t *pos, const lf_rope *rope,
                    int inverse);
void lf_cuda_window(lf_dev *d, lf_act *dst, const int64_t *dst_row, const lf_act *x, int64_t m, const float *norm,
                    const int64_t *pos, const lf_rope *rope);
void lf_cuda_index_query(lf_dev *d, lf_act *q, int64_t m, int heads, int64_t width, const int64_t *pos,
                         const lf_rope *rope);
void lf_cuda_scale(lf_dev *d, float *x, int64_t n, float s);
void lf_cuda_round(lf_dev *d, lf_act *y, const float *x, int64_t n);
void lf_cuda_add_ape(lf_dev *d, float *g, int64_t m, int64_t n, const float *ape, int ratio);
void lf_cuda_compress(lf_dev *d, const lf_compress *c);
void lf_cuda_row_pack(lf_dev *d, uint8_t *dst, const lf_act *x, int64_t m, int64_t width, lf_row_fmt fmt,
                      int transformed);
void lf_cuda_row_unpack(lf_dev *d, lf_act *x, const uint8_t *src, int64_t m, int64_t width, lf_row_fmt fmt);
void lf_cuda_index_topk(lf_dev *d, const lf_topk *t);
void lf_cuda_topk_merge(lf_dev *d, int32_t *sel, const int32_t *cand, const float *score, int parts, int64_t m, int k);
void lf_cuda_attention(lf_dev *d, const lf_attn *a);
void lf_cuda_merge(lf_dev *d, lf_act *out, const lf_act *part, const float *lse, int parts, int64_t m, int heads,
                   const float *sink);
void lf_cuda_route(lf_dev *d, const lf_route *r);
void lf_cuda_experts(lf_dev *d, const lf_experts *e);
void lf_cuda_combine(lf_dev *d, lf_act *out, const lf_act *z, const int32_t *slot, int k, const lf_act *shared,
                     int64_t m);
void lf_cuda_logits_topk(lf_dev *d, int32_t *ids, float *values, const float *logits, int64_t m, int64_t vocab, int k);
void lf_cuda_logprob(lf_dev *d, float *out, const float *logits, const uint32_t *next, int64_t m, int64_t vocab);

#endif
