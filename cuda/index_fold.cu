/* SPDX-License-Identifier: Apache-2.0
 *
 * Index keys and queries from bf16 to e4m3: each row times the power of two that brings its largest value to the top of
 * e4m3's range.   Source: model.md, "Indexer": values are e2m1 with a power of two per 32.
 *
 * The tensor cores add e4m3 products with 13 bits below the largest term.  All terms are multiples of the product of
 * the least units, so a sum is exact while it stays below 2^14 of those: with scales alike, 4096 where 36 is the
 * largest product of two values; with scales that differ by 2^a in the query and 2^b in the key, 2^(a+b) less, and
 * beyond that off by 2^-13 of itself.
 *
 * Nothing is assumed of the values: a row fits if every one of them comes back the same.  A query's scales go into its
 * weights (relu(s x) = s relu(x) for s > 0); a key's is applied to its score.
 */
#include "index_score.cuh"

enum { WIDTH = 128, HEADS = 64, WARPS = 8 };

/* The power of two to multiply a row by, whose largest magnitude is amax; 0: none will do (infinite, NaN, very
 * small). */
static __device__ __forceinline__ float factor_of(float amax)
{
    uint32_t u = __float_as_uint(amax);
    int e = (int)(u >> 23) - 127, top = (u & 0x7fffff) <= 0x600000 ? 8 : 7;   /* 448 = 1.75 * 2^8 */

    if (amax == 0)
        return 1;
    return e < -100 || e > 127 - 8 ? 0 : __uint_as_float((uint32_t)(127 + top - e) << 23);
}

/* One warp, one row: its codes; returns its factor, 0 if it does not fit.  Every lane. */
static __device__ __forceinline__ float fold_row(uint8_t *out, const __nv_bfloat16 *row)
{
    int lane = (int)threadIdx.x & 31;
    uint2 u = *(const uint2 *)(row + 4 * lane);
    float x[4] = { __uint_as_float(u.x << 16), __uint_as_float(u.x & 0xffff0000u), __uint_as_float(u.y << 16),
                   __uint_as_float(u.y & 0xffff0000u) };
    uint32_t top = 0, codes = 0;
    bool fits = true;

#pragma unroll
    for (int i = 0; i < 4; i++)
        top = max(top, __float_as_uint(x[i]) & 0x7fffffffu);   /* NaN is largest */
#pragma unroll
    for (int d = 16; d; d /= 2)
        top = max(top, __shfl_xor_sync(~0u, top, d));
    float factor = factor_of(__uint_as_float(top));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint8_t code = lf_to_e4m3(x[i] * factor);
        codes |= (uint32_t)code << 8 * i;
        fits = fits && lf_e4m3(code) == x[i] * factor;
    }
    *(uint32_t *)(out + 4 * lane) = codes;
    return __ballot_sync(~0u, fits) == ~0u ? factor : 0;
}

/* 1 / 2^n */
static __device__ __forceinline__ float inverse(float factor)
{
    return __uint_as_float((254u << 23) - __float_as_uint(factor));
}

static __global__ void __launch_bounds__(WARPS * 32) fold_keys_kernel(lf_cuda_folded f, const __nv_bfloat16 *keys,
                                                                      int64_t rows)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;

    if (row >= rows)
        return;
    float factor = fold_row(f.keys + row * WIDTH, keys + row * WIDTH);
    if ((threadIdx.x & 31) == 0) {
        f.key_scale[row] = factor == 0 ? 0 : inverse(factor);
        if (factor == 0) {
            f.tile_misfit[row / LF_FOLD_TILE] = 1;
            f.misfits[LF_FOLD_KEY] = 1;
        }
    }
}

/* Rows are heads of queries. */
static __global__ void __launch_bounds__(WARPS * 32) fold_queries_kernel(lf_cuda_folded f, const __nv_bfloat16 *q,
                                                                         const float *w, int64_t rows)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;

    if (row >= rows)
        return;
    float factor = fold_row(f.q + row * WIDTH, q + row * WIDTH);
    if ((threadIdx.x & 31) == 0) {
        float scaled = factor == 0 ? 0 : w[row] * inverse(factor);
        f.w[row] = scaled;
        if (factor == 0 || scaled * factor != w[row]) {        /* NaN does not fit either */
            f.query_misfit[row / HEADS] = 1;
            f.misfits[LF_FOLD_QUERY] = 1;
        }
    }
}

/* The areas one after another, as lf_cuda_index_fold_scratch counts them; returns their end. */
static uint8_t *place_all(lf_cuda_folded *f, uint8_t *p, int64_t queries, int64_t rows)
{
    int64_t n = lf_min(queries, LF_CUDA_FOLD_QUERIES), marks = lf_ceil_div(rows, LF_FOLD_TILE), g = LF_CUDA_GRAIN;

    f->q = p;
    p += n * HEADS * WIDTH;
    f->w = (float *)(void *)p;
    p += n * HEADS * 4;
    f->keys = p;
    p += lf_round_up(rows * WIDTH, g);
    f->key_scale = (float *)(void *)p;
    p += lf_round_up(rows * 4, g);
    f->misfits = (int *)(void *)p;
    p += g;
    f->tile_misfit = p;
    p += lf_round_up(marks, g);
    f->query_misfit = p;
    return p + lf_round_up(n, g);
}

int lf_cuda_fold_keys(lf_cuda *c, lf_cuda_folded *f, const lf_act *keys, int64_t rows, int64_t queries)
{
    size_t bytes = lf_cuda_index_fold_scratch(&c->dev, queries, rows);
    uint8_t *p = (uint8_t *)lf_cuda_scratch(c, LF_SCRATCH_B, bytes);

    if (!p)
        return -1;
    if (place_all(f, p, queries, rows) != p + bytes) {
        lf_cuda_fail(c, "index_topk: room for keys and queries in e4m3 is not what was planned");
        return -1;
    }
    if (LF_CUDA(c, cudaMemsetAsync(f->misfits, 0, (size_t)(f->query_misfit - (uint8_t *)(void *)f->misfits), c->stream),
                "index_topk: clearing marks"))
        return -1;
    if (rows == 0)
        return 0;
    fold_keys_kernel<<<lf_blocks(rows, WARPS), WARPS * 32, 0, c->stream>>>(*f, lf_ptr<__nv_bfloat16>(keys), rows);
    return LF_LAUNCHED(c, "index_topk, keys to e4m3");
}

int lf_cuda_fold_queries(lf_cuda *c, const lf_cuda_folded *f, const lf_act *q, const float *w, int64_t queries)
{
    int64_t rows = queries * HEADS;

    if (LF_CUDA(c, cudaMemsetAsync(f->misfits + LF_FOLD_QUERY, 0, sizeof *f->misfits, c->stream),
                "index_topk: clearing marks") ||
        LF_CUDA(c, cudaMemsetAsync(f->query_misfit, 0, (size_t)queries, c->stream), "index_topk: clearing marks"))
        return -1;
    fold_queries_kernel<<<lf_blocks(rows, WARPS), WARPS * 32, 0, c->stream>>>(*f, lf_ptr<__nv_bfloat16>(q), w, rows);
    return LF_LAUNCHED(c, "index_topk, queries to e4m3");
}
