/* SPDX-License-Identifier: Apache-2.0
 *
 * select: the k largest of a row of scores, by one block.  Exact: four passes over eight bits of the key each
 * find the k-th largest key, and a last pass takes what lies above it and the lowest indices that equal it.
 * No capacity limits, nothing sampled.   The order: score descending, then index ascending; NaN after
 * everything.
 */
#ifndef LF_SELECT_CUH
#define LF_SELECT_CUH

#include "cuda.cuh"

enum { LF_SELECT_THREADS = 1024, LF_SELECT_WARPS = LF_SELECT_THREADS / 32, LF_SELECT_EACH = 4 };

struct lf_selection {
    uint32_t bins[LF_SELECT_WARPS][256];   /* a histogram a warp */
    uint32_t total[256];
    uint32_t scan[LF_SELECT_WARPS];
    uint32_t digit;
    int64_t left;
};

static __device__ __forceinline__ uint32_t lf_select_key(float score)
{
    return (uint32_t)(lf_rank_key(score, 0) >> 32);
}

/* Counts the digits at `shift` of the keys that agree with `prefix` above it.  A thread adds runs of equal
 * digits at once: massive ties (relu gives many zeros) would queue at one counter otherwise. */
static __device__ void lf_select_count(lf_selection *s, const float *score, int64_t n, uint32_t prefix, int shift)
{
    uint32_t *bins = s->bins[threadIdx.x / 32], last = 0, run = 0;

    for (int i = threadIdx.x; i < LF_SELECT_WARPS * 256; i += LF_SELECT_THREADS)
        (&s->bins[0][0])[i] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += LF_SELECT_EACH * LF_SELECT_THREADS) {
        float v[LF_SELECT_EACH];
#pragma unroll
        for (int u = 0; u < LF_SELECT_EACH; u++)
            v[u] = i + u * LF_SELECT_THREADS < n ? score[i + u * LF_SELECT_THREADS] : 0;
#pragma unroll
        for (int u = 0; u < LF_SELECT_EACH; u++) {
            uint32_t key = lf_select_key(v[u]), digit = key >> shift & 255;
            if (i + u * LF_SELECT_THREADS >= n || (shift < 24 && key >> (shift + 8) != prefix))
                continue;
            if (digit != last) {
                if (run)
                    atomicAdd(&bins[last], run);
                last = digit;
                run = 0;
            }
            run++;
        }
    }
    if (run)
        atomicAdd(&bins[last], run);
    __syncthreads();
    if (threadIdx.x < 256) {
        uint32_t sum = 0;
        for (int w = 0; w < LF_SELECT_WARPS; w++)
            sum += s->bins[w][threadIdx.x];
        s->total[threadIdx.x] = sum;
    }
    __syncthreads();
}

/* The key of the k-th largest of n scores, 1 <= k <= n; *equal: how many with just this key belong to the k. */
static __device__ uint32_t lf_select_kth(lf_selection *s, const float *score, int64_t n, int64_t k, int64_t *equal)
{
    uint32_t prefix = 0;

    for (int shift = 24; shift >= 0; shift -= 8) {
        lf_select_count(s, score, n, prefix, shift);
        if (threadIdx.x == 0) {
            int64_t above = 0;
            int digit = 255;
            while (above + s->total[digit] < k)
                above += s->total[digit--];
            s->digit = (uint32_t)digit;
            s->left = k - above;
        }
        __syncthreads();
        prefix = prefix << 8 | s->digit;
        k = s->left;
        __syncthreads();
    }
    *equal = k;
    return prefix;
}

/* Sum over the threads before this one, and over all: at most 2^31. */
static __device__ __forceinline__ uint32_t lf_select_scan(lf_selection *s, uint32_t x, uint32_t *all)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t sum = x, before = 0, total = 0;

#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        uint32_t y = __shfl_up_sync(~0u, sum, d);
        sum += lane >= d ? y : 0;
    }
    if (lane == 31)
        s->scan[warp] = sum;
    __syncthreads();
    for (int w = 0; w < LF_SELECT_WARPS; w++) {
        before += w < warp ? s->scan[w] : 0;
        total += s->scan[w];
    }
    __syncthreads();
    *all = total;
    return before + sum - x;
}

/* put(place, index) for each of the min(k, n) best, places by ascending index.  All threads of the block. */
template <typename Put>
static __device__ void lf_select(lf_selection *s, const float *score, int64_t n, int64_t k, Put put)
{
    int64_t equal, taken = 0, equals = 0;

    if (n <= k) {
        for (int64_t i = threadIdx.x; i < n; i += LF_SELECT_THREADS)
            put(i, i);
        return;
    }
    uint32_t kth = lf_select_kth(s, score, n, k, &equal);
    for (int64_t i0 = 0; i0 < n && taken < k; i0 += LF_SELECT_EACH * LF_SELECT_THREADS) {
        int64_t i = i0 + LF_SELECT_EACH * threadIdx.x, room = equals < equal ? equal - equals : 0;
        uint32_t mine[LF_SELECT_EACH], sum = 0, all;       /* keys above in the high half, equal ones in the low one */
#pragma unroll
        for (int u = 0; u < LF_SELECT_EACH; u++) {
            uint32_t key = i + u < n ? lf_select_key(score[i + u]) : 0;
            mine[u] = i + u >= n ? 0 : key > kth ? 1 << 16 : key == kth;
            sum += mine[u];
        }
        if (!__syncthreads_or(sum != 0))
            continue;
        uint32_t before = lf_select_scan(s, sum, &all);
#pragma unroll
        for (int u = 0; u < LF_SELECT_EACH; u++) {
            int64_t same = before & 0xffff;
            if (mine[u] >> 16 || (mine[u] && same < room))
                put(taken + (before >> 16) + (same < room ? same : room), i + u);
            before += mine[u];
        }
        taken += (all >> 16) + ((int64_t)(all & 0xffff) < room ? all & 0xffff : room);
        equals += all & 0xffff;
    }
}

/* Bitonic sort of n keys, n a power of two, largest first, by one block; key in shared or global memory. */
template <typename K> static __device__ void lf_sort(K *key, int64_t n)
{
    for (int64_t size = 2; size <= n; size *= 2)
        for (int64_t step = size / 2; step; step /= 2) {
            __syncthreads();
            for (int64_t t = threadIdx.x; t < n / 2; t += blockDim.x) {
                int64_t i = 2 * t - (t & (step - 1)), j = i + step;
                K a = key[i], b = key[j];
                if ((a < b) == ((i & size) == 0)) {
                    key[i] = b;
                    key[j] = a;
                }
            }
        }
    __syncthreads();
}

#endif
