/* SPDX-License-Identifier: Apache-2.0
 *
 * Pairs by expert: a stable sort in three kernels.  Each block counts its stretch of pairs by expert; a scan over the
 * blocks gives each (block, expert) its first place; each warp then places 32 neighbours at a time.  Only counts are
 * added up atomically, so places depend on no schedule.
 */
#include "cuda.cuh"

#include <stdlib.h>

enum { WARPS = 8, THREADS = 32 * WARPS, STRETCH = LF_CUDA_PAIRS / WARPS };
static_assert(STRETCH % 32 == 0, "a warp's stretch of pairs is whole rounds of 32");

typedef struct sorting {
    lf_pairs p;
    int64_t pairs, blocks;
    int32_t *table;                        /* [experts, blocks]: pairs, then pairs of that expert in earlier blocks */
} sorting;

static __global__ void count_block(sorting s)
{
    extern __shared__ int32_t seen[];      /* [experts] */
    int64_t first = (int64_t)blockIdx.x * LF_CUDA_PAIRS, end = min(first + LF_CUDA_PAIRS, s.pairs);

    for (int e = (int)threadIdx.x; e < s.p.experts; e += THREADS)
        seen[e] = 0;
    __syncthreads();
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS)
        atomicAdd(&seen[s.p.expert[i]], 1);
    __syncthreads();
    for (int e = (int)threadIdx.x; e < s.p.experts; e += THREADS)
        s.table[e * s.blocks + blockIdx.x] = seen[e];
}

/* The sum over the lanes before this one; *all: over all of them. */
static __device__ int32_t sum_before(int32_t x, int32_t *all)
{
    int lane = (int)threadIdx.x & 31;
    int32_t sum = x;

#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        int32_t other = __shfl_up_sync(~0u, sum, i);
        sum += lane >= i ? other : 0;
    }
    *all = __shfl_sync(~0u, sum, 31);
    return sum - x;
}

/* x[n] becomes the sums over what is before; a warp; returns the sum of all. */
static __device__ int32_t scan_warp(int32_t *to, const int32_t *x, int64_t n)
{
    int32_t sum = 0, all;

    for (int64_t at = 0; at < n; at += 32) {
        int64_t i = at + (threadIdx.x & 31);
        int32_t before = sum_before(i < n ? x[i] : 0, &all);
        if (i < n)
            to[i] = sum + before;
        sum += all;
    }
    return sum;
}

/* A warp an expert. */
static __global__ void scan_experts(sorting s)
{
    int e = (int)(blockIdx.x * WARPS + (threadIdx.x >> 5));

    if (e >= s.p.experts)
        return;
    int32_t *row = s.table + e * s.blocks, sum = scan_warp(row, row, s.blocks);
    if ((threadIdx.x & 31) == 0)
        s.p.count[e] = sum;
}

/* Places of a warp's pairs; next [experts]: where its first pair of each goes. */
static __device__ void place_warp(const sorting *s, int32_t *next, int64_t first)
{
    int lane = (int)threadIdx.x & 31;

    for (int round = 0; round < STRETCH; round += 32) {
        int64_t i = first + round + lane;
        int e = i < s->pairs ? s->p.expert[i] : -1;
        unsigned same = __match_any_sync(~0u, e), before = same & ((1u << lane) - 1);
        int32_t at = e < 0 ? 0 : next[e] + __popc(before);
        __syncwarp();                      /* all have read next */
        if (e >= 0 && before == 0)
            next[e] += __popc(same);
        __syncwarp();
        if (e >= 0) {
            s->p.slot[i] = at;
            s->p.token[at] = (int32_t)(i / s->p.k);
            s->p.weight[at] = s->p.of[i];
        }
    }
}

static __global__ void place_block(sorting s)
{
    extern __shared__ int32_t shared[];    /* [experts]: first places of all; [WARPS, experts]: of each warp */
    int experts = s.p.experts, warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;
    int32_t *next = shared + experts, *mine = next + warp * experts;
    int64_t first = (int64_t)blockIdx.x * LF_CUDA_PAIRS + warp * STRETCH, end = min(first + STRETCH, s.pairs);

    if (warp == 0)
        scan_warp(shared, s.p.count, experts);
    for (int e = lane; e < experts; e += 32)
        mine[e] = 0;
    __syncwarp();
    for (int64_t i = first + lane; i < end; i += 32)
        atomicAdd(&mine[s.p.expert[i]], 1);
    __syncthreads();
    for (int e = (int)threadIdx.x; e < experts; e += THREADS) {
        int32_t at = shared[e] + s.table[e * s.blocks + blockIdx.x];
        for (int w = 0; w < WARPS; w++) {
            int32_t n = next[w * experts + e];
            next[w * experts + e] = at;
            at += n;
        }
    }
    __syncthreads();
    place_warp(&s, mine, first);
}

void lf_cuda_pairs(lf_dev *d, const lf_pairs *p)
{
    lf_cuda *c = lf_cuda_of(d);
    sorting s = { *p, p->m * p->k, lf_ceil_div(p->m * p->k, LF_CUDA_PAIRS) };
    size_t one = sizeof(int32_t) * (size_t)p->experts, shared = (WARPS + 1) * one;

    if (s.pairs == 0) {
        lf_cuda_fill(d, p->count, 0, one);
        return;
    }
    if (shared > 48 * 1024 || s.pairs > INT32_MAX) {
        lf_cuda_fail(c, "sorting %lld pairs among %d experts: the kernel has room for %d and for %d",
                     (long long)s.pairs, p->experts, INT32_MAX, 48 * 1024 / (int)(sizeof(int32_t) * (WARPS + 1)));
        return;
    }
    s.table = (int32_t *)lf_cuda_scratch(c, LF_SCRATCH_A, lf_cuda_pairs_scratch(s.pairs, p->experts));
    if (!s.table)
        return;
    count_block<<<(unsigned)s.blocks, THREADS, one, c->stream>>>(s);
    LF_LAUNCHED(c, "pairs, counts");
    scan_experts<<<lf_blocks(p->experts, WARPS), THREADS, 0, c->stream>>>(s);
    LF_LAUNCHED(c, "pairs, scan");
    place_block<<<(unsigned)s.blocks, THREADS, shared, c->stream>>>(s);
    LF_LAUNCHED(c, "pairs");
}

/* ---- on the rank that owns the experts ---- */

/* What one sender has for one expert: its first place by expert, and in what came. */
typedef struct batch {
    int32_t first, at;
} batch;

/* A thread a place: it belongs to the last batch that begins at it or before. */
static __global__ void place_arrivals(int32_t *src, int32_t *home, const batch *b, int batches, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int low = 0, high = batches;           /* it is in low .. high-1 */

    if (i >= n)
        return;
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (b[mid].first <= i)
            low = mid;
        else
            high = mid;
    }
    int32_t from = b[low].at + (int32_t)(i - b[low].first);
    src[i] = from;
    home[from] = (int32_t)i;
}

/* Batches expert by expert, senders in their order within one; returns what is received. */
static int64_t batches_of(batch *b, const lf_arrivals *a)
{
    int64_t came = 0, used = 0;

    for (int s = 0; s < a->senders; s++)
        for (int e = 0; e < a->experts; e++) {
            b[e * a->senders + s].at = (int32_t)came;
            came += a->count[s * a->experts + e];
        }
    for (int e = 0; e < a->experts; e++)
        for (int s = 0; s < a->senders; s++) {
            b[e * a->senders + s].first = (int32_t)used;
            used += a->count[s * a->experts + e];
        }
    return used;
}

void lf_cuda_arrivals(lf_dev *d, const lf_arrivals *a)
{
    lf_cuda *c = lf_cuda_of(d);
    int n = a->senders * a->experts;
    batch *host = (batch *)lf_alloc(sizeof *host * (size_t)n);
    int64_t received = batches_of(host, a);

    if (received > INT32_MAX)
        lf_cuda_fail(c, "%lld pairs came at once: places are 32-bit; smaller tiles would work", (long long)received);
    else if (received > 0) {
        batch *b = (batch *)lf_cuda_scratch(c, LF_SCRATCH_A, lf_cuda_arrivals_scratch(a->senders, a->experts));
        if (b) {
            lf_cuda_put(d, b, host, sizeof *host * (size_t)n);
            place_arrivals<<<lf_blocks(received, 256), 256, 0, c->stream>>>(a->src, a->home, b, n, received);
            LF_LAUNCHED(c, "arrivals");
        }
    }
    free(host);
}
