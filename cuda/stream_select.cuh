/* SPDX-License-Identifier: Apache-2.0
 *
 * stream_select: the k largest of a row of scores, by one block that reads them once.   Exact, in the order of
 * select.cuh.
 *
 * Scores and their places become 64-bit keys of which no two are equal.  What beats the bar goes to a list in shared
 * memory; when the next step might not fit there, the list is cut to its k largest and the bar rises.  k of all scores
 * have at least the bar's key at any time, so nothing that is left out could belong to the k.  The bar is found by
 * halving: an interval of keys that holds the wanted one shrinks until as many as wanted lie above.  Scores that keep
 * rising cost a cut each few thousand of them, nothing else.
 */
#ifndef LF_STREAM_SELECT_CUH
#define LF_STREAM_SELECT_CUH

#include "select.cuh"

enum {
    LF_STREAM_THREADS = 512, LF_STREAM_WARPS = LF_STREAM_THREADS / 32,
    LF_STREAM_STEP = 8 * LF_STREAM_THREADS,            /* scores between two looks at the list */
    LF_STREAM_ROOM = 2 * LF_STREAM_STEP,
    LF_STREAM_EACH = LF_STREAM_ROOM / LF_STREAM_THREADS,
    LF_STREAM_MOST = LF_STREAM_STEP / 2                /* k, at most: a cut must make room for a step */
};

struct lf_stream {
    uint64_t list[LF_STREAM_ROOM];
    uint64_t least, largest;
    uint32_t sum[3];
    uint32_t count;
};

/* The sum over the block; all threads.  turn: 0, 1, 2 over and over.  The place of the next turn but one was read
 * before this barrier and is added to after the next one: so it can be cleared here. */
static __device__ __forceinline__ uint32_t lf_stream_sum(lf_stream *s, uint32_t x, int turn)
{
    x = __reduce_add_sync(~0u, x);
    if ((threadIdx.x & 31) == 0)
        atomicAdd(&s->sum[turn], x);
    __syncthreads();
    if (threadIdx.x == 0)
        s->sum[turn == 0 ? 2 : turn - 1] = 0;
    return s->sum[turn];
}

/* This thread's share of the list; 0, which is no key, beyond its end.  And the largest and least of all. */
static __device__ void lf_stream_take(lf_stream *s, uint64_t (&key)[LF_STREAM_EACH], uint32_t count)
{
    uint64_t least = ~0ull, largest = 0;

    if (threadIdx.x == 0) {
        s->least = ~0ull;
        s->largest = 0;
        s->sum[0] = s->sum[1] = s->sum[2] = 0;
    }
#pragma unroll
    for (int u = 0; u < LF_STREAM_EACH; u++) {
        uint32_t i = threadIdx.x + u * LF_STREAM_THREADS;
        key[u] = i < count ? s->list[i] : 0;
        largest = max(largest, key[u]);
        least = i < count ? min(least, key[u]) : least;
    }
#pragma unroll
    for (int d = 16; d; d /= 2) {
        least = min(least, __shfl_xor_sync(~0u, least, d));
        largest = max(largest, __shfl_xor_sync(~0u, largest, d));
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0) {
        atomicMin((unsigned long long *)&s->least, (unsigned long long)least);
        atomicMax((unsigned long long *)&s->largest, (unsigned long long)largest);
    }
    __syncthreads();
}

/* Cuts the list to its k largest, k < count, and returns a bar: exactly these have at least that key. */
static __device__ uint64_t lf_stream_cut(lf_stream *s, uint32_t k)
{
    uint64_t key[LF_STREAM_EACH];

    lf_stream_take(s, key, s->count);
    uint64_t low = s->least, high = s->largest;        /* more than k from low on; the bar is in (low, high] */
    for (int turn = 0; high - low > 1; turn = turn == 2 ? 0 : turn + 1) {
        uint64_t middle = low + (high - low) / 2;
        uint32_t mine = 0;
#pragma unroll
        for (int u = 0; u < LF_STREAM_EACH; u++)
            mine += key[u] >= middle;
        uint32_t all = lf_stream_sum(s, mine, turn);
        if (all > k)
            low = middle;
        else
            high = middle;
        if (all == k)
            break;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        s->count = 0;
    __syncthreads();
#pragma unroll
    for (int u = 0; u < LF_STREAM_EACH; u++)
        if (key[u] >= high)
            s->list[atomicAdd(&s->count, 1u)] = key[u];
    __syncthreads();
    return high;
}

/* Four scores from place i on (rows of scores are padded to fours). */
static __device__ __forceinline__ float4 lf_stream_fetch(const float *score, int64_t i, int64_t n)
{
    return i < n ? *(const float4 *)(score + i) : make_float4(0, 0, 0, 0);
}

static __device__ __forceinline__ void lf_stream_add(lf_stream *s, float4 v, int64_t i, int64_t n, uint64_t bar)
{
    float x[4] = { v.x, v.y, v.z, v.w };

#pragma unroll
    for (int u = 0; u < 4; u++) {
        uint64_t key = lf_rank_key(x[u], (uint32_t)(i + u));
        if (key >= bar && i + u < n)
            s->list[atomicAdd(&s->count, 1u)] = key;
    }
}

/* The list's k entries to put(place, index), places by ascending index; sort_n: the power of two from k on. */
template <typename Put> static __device__ void lf_stream_put(lf_stream *s, uint32_t k, uint32_t sort_n, Put put)
{
    uint32_t *place = (uint32_t *)s->list, mine[LF_STREAM_MOST / LF_STREAM_THREADS];

#pragma unroll
    for (int u = 0; u < LF_STREAM_MOST / LF_STREAM_THREADS; u++) {
        uint32_t j = threadIdx.x + u * LF_STREAM_THREADS;
        mine[u] = j < k ? (uint32_t)s->list[j] : 0;    /* complements: the largest first is the lowest index first */
    }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < LF_STREAM_MOST / LF_STREAM_THREADS; u++)
        if (threadIdx.x + u * LF_STREAM_THREADS < sort_n)
            place[threadIdx.x + u * LF_STREAM_THREADS] = mine[u];
    lf_sort(place, sort_n);
    for (uint32_t j = threadIdx.x; j < k; j += LF_STREAM_THREADS)
        put(j, (int64_t)(uint32_t)~place[j]);
}

/* put(place, index) for each of the min(k, n) best of n < 2^32, places by ascending index; k at most LF_STREAM_MOST;
 * score 16-byte aligned, padded to a multiple of four.  All threads of the block. */
template <typename Put>
static __device__ void lf_stream_select(lf_stream *s, const float *score, int64_t n, uint32_t k, uint32_t sort_n,
                                        Put put)
{
    constexpr int HALF = LF_STREAM_STEP / 2;
    int64_t i = 4 * threadIdx.x;
    uint64_t bar = 0;
    uint32_t count = 0;

    if (n <= k) {
        for (i = threadIdx.x; i < n; i += LF_STREAM_THREADS)
            put(i, i);
        return;
    }
    if (threadIdx.x == 0)
        s->count = 0;
    __syncthreads();
    float4 first = lf_stream_fetch(score, i, n), second = lf_stream_fetch(score, i + HALF, n);
    for (int64_t begin = 0; begin < n; begin += LF_STREAM_STEP, i += LF_STREAM_STEP) {
        float4 now = first, then = second;
        first = lf_stream_fetch(score, i + LF_STREAM_STEP, n);
        second = lf_stream_fetch(score, i + LF_STREAM_STEP + HALF, n);
        lf_stream_add(s, now, i, n, bar);
        lf_stream_add(s, then, i + HALF, n, bar);
        __syncthreads();
        count = s->count;
        __syncthreads();                               /* all have read it: then adding may go on */
        if (count > LF_STREAM_ROOM - LF_STREAM_STEP) {
            bar = lf_stream_cut(s, k);
            count = k;
        }
    }
    if (count > k)
        lf_stream_cut(s, k);
    lf_stream_put(s, k, sort_n, put);
}

#endif
