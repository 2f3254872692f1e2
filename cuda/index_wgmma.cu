/* SPDX-License-Identifier: Apache-2.0
 *
 * The indexer's scores for 64 heads of 128 channels, on the warpgroup products of Hopper.
 *
 * A block of threads takes 256 keys and up to 32 queries at a time.  One warpgroup copies: the keys once, the queries
 * into a ring.  The other two keep 128 keys each in registers, as two left factors of 64 rows; the heads of one query
 * after another are the columns.  While one product runs, the warpgroup weighs and sums the columns of the one before:
 * per thread over its columns, even and odd ones apart, then over the four threads that share a row.  So a score
 * depends on its key, its query and the weights alone.
 *
 * Rows are bf16 (256 bytes) or e4m3 (128 bytes, index_fold.cu): the same bytes go the same ways.  What does not fit
 * e4m3 exactly is scored from bf16 by a launch that mends: it writes these pairs of query and key alone.
 */
#include "index_score.cuh"
#include "wgmma.cuh"

enum {
    HEADS = 64,
    KEYS = LF_FOLD_TILE, MINE = KEYS / 2,              /* keys of a block of threads, of a warpgroup */
    QUERIES = 32, RUN = 4,
    GROUP = 128, THREADS = 3 * GROUP,
    STAGES = 6,
    COPY_REGISTERS = 56, MATH_REGISTERS = 224
};

struct score_args {
    float *score;
    const uint8_t *q, *keys;
    const float *w;
    int64_t ld, queries, pos0, row_first, rows;
    lf_cuda_folded f;                                  /* e4m3, and mending */
};

template <int BYTES> struct memory {
    uint8_t keys[BYTES / 128][KEYS * 128];             /* panels */
    uint8_t query[STAGES][BYTES / 128][HEADS * 128];
    float weight[STAGES][HEADS];
    uint64_t full[STAGES], empty[STAGES], keys_full, keys_empty;
};

struct work {                                          /* of a block of threads: queries first .. last-1, if any */
    int64_t key0, first, last;
};

struct place {                                         /* in the ring */
    int stage;
    uint32_t parity;
};

static __device__ __forceinline__ void step(place &p)
{
    if (++p.stage == STAGES) {
        p.stage = 0;
        p.parity ^= 1;
    }
}

/* Queries that see none of the keys are left out: query i sees entries below (pos0 + i + 1) / 4. */
template <bool MEND> static __device__ __forceinline__ work work_at(const score_args &a, int64_t number, int64_t tiles)
{
    int64_t group = number / tiles;
    work w = { (number - group * tiles) * KEYS, group * QUERIES, min((group + 1) * QUERIES, a.queries) };

    w.first = max(w.first, 4 * (a.row_first + w.key0 + 1) - a.pos0 - 1);
    if (MEND && !a.f.tile_misfit[w.key0 / KEYS]) {
        bool any = false;
        for (int64_t i = w.first; a.f.misfits[LF_FOLD_QUERY] && i < w.last; i++)
            any |= a.f.query_misfit[i] != 0;
        w.first = any ? w.first : w.last;
    }
    return w;
}

/* ---- the warpgroup that copies ---- */

template <int BYTES> static __device__ void copy_keys(const score_args &a, memory<BYTES> *m, int64_t key0)
{
    constexpr int CHUNKS = BYTES / 16;

#pragma unroll 4
    for (int i = (int)threadIdx.x % GROUP; i < KEYS * CHUNKS; i += GROUP) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        bool valid = key0 + row < a.rows;
        lf_copy16(lf_shared(m->keys[chunk / 8]) + lf_panel_at((uint32_t)row, (uint32_t)chunk & 7),
                  a.keys + (valid ? (key0 + row) * BYTES + chunk * 16 : 0), valid);
    }
    lf_bar_arrive_copies(&m->keys_full);
}

template <int BYTES>
static __device__ void copy_query(const score_args &a, memory<BYTES> *m, int stage, int64_t query)
{
    constexpr int CHUNKS = BYTES / 16;
    const uint8_t *q = a.q + query * HEADS * BYTES;
    int thread = (int)threadIdx.x % GROUP;

#pragma unroll
    for (int i = 0; i < HEADS * CHUNKS / GROUP; i++) {
        int row = (i * GROUP + thread) / CHUNKS, chunk = (i * GROUP + thread) % CHUNKS;
        lf_copy16(lf_shared(m->query[stage][chunk / 8]) + lf_panel_at((uint32_t)row, (uint32_t)chunk & 7),
                  q + (i * GROUP + thread) * 16, true);
    }
    if (thread < HEADS / 4)
        lf_copy16(lf_shared(m->weight[stage]) + 16 * (uint32_t)thread, a.w + query * HEADS + 4 * thread, true);
    lf_bar_arrive_copies(&m->full[stage]);
}

template <int BYTES, bool MEND>
static __device__ void copy_all(const score_args &a, memory<BYTES> *m, int64_t tiles, int64_t works)
{
    place p = { 0, 0 };
    uint32_t turn = 0;

    for (int64_t n = blockIdx.x; n < works; n += gridDim.x) {
        work w = work_at<MEND>(a, n, tiles);
        if (w.first >= w.last)
            continue;
        lf_bar_wait(&m->keys_empty, (turn++ & 1) ^ 1);
        copy_keys<BYTES>(a, m, w.key0);
        for (int64_t query = w.first; query < w.last; query++, step(p)) {
            lf_bar_wait(&m->empty[p.stage], p.parity ^ 1);
            copy_query<BYTES>(a, m, p.stage, query);
        }
    }
    lf_copies_wait();
}

/* ---- the warpgroups that multiply ---- */

/* This warpgroup's keys as left factors: k[i] has keys 64 i ... */
template <int BYTES>
static __device__ __forceinline__ void load_keys(uint32_t (&k)[2][BYTES / 32][4], memory<BYTES> *m, int who)
{
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x % GROUP / 32;

#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int s = 0; s < BYTES / 32; s++)
            lf_ldmatrix4(k[i][s], lf_shared(m->keys[s / 4]) +
                         lf_panel_at((uint32_t)(who * MINE + 64 * i + 16 * warp + (lane & 15)),
                                     (uint32_t)(2 * (s & 3) + lane / 16)));
}

/* Begins d = k q^T. */
template <int BYTES>
static __device__ __forceinline__ void multiply(float (&d)[32], const uint32_t (&k)[BYTES / 32][4], memory<BYTES> *m,
                                                int stage)
{
    uint64_t q = lf_panel_desc(lf_shared(m->query[stage][0]), HEADS * 128);

    lf_wgmma_pin(d);
    lf_wgmma_fence();
#pragma unroll
    for (int s = 0; s < BYTES / 32; s++) {
        uint64_t at = q + (uint64_t)((s / 4 * HEADS * 128 + s % 4 * 32) >> 4);
        if constexpr (BYTES == 256)
            lf_wgmma_64x64(d, k[s], at, s > 0);
        else
            lf_wgmma_64x64_e4m3(d, k[s], at, s > 0);
    }
    lf_wgmma_commit();
}

static __device__ __forceinline__ void load_weights(float (&w)[16], const float *weight)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 both = *(const float2 *)(weight + 8 * j + 2 * (threadIdx.x & 3));
        w[2 * j] = both.x;
        w[2 * j + 1] = both.y;
    }
}

/* sum[r] = this thread's columns' share of the scores of its two rows. */
static __device__ __forceinline__ void weigh(float (&sum)[2], const float (&d)[32], const float (&w)[16])
{
    float odd[2] = { 0, 0 };

    sum[0] = sum[1] = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] = fmaf(w[2 * j], lf_relu(d[4 * j + 2 * r]), sum[r]);
            odd[r] = fmaf(w[2 * j + 1], lf_relu(d[4 * j + 2 * r + 1]), odd[r]);
        }
    sum[0] += odd[0];
    sum[1] += odd[1];
}

/* Sums the four threads of a row, (0 + 1) + (2 + 3); each is left with one of their four rows: own_key. */
static __device__ __forceinline__ float share(const float (&one)[2], const float (&two)[2])
{
    int odd = (int)threadIdx.x & 1, high = (int)threadIdx.x & 2;
    float a = odd ? one[1] : one[0], b = odd ? two[1] : two[0];

    a += __shfl_xor_sync(~0u, odd ? one[0] : one[1], 1);
    b += __shfl_xor_sync(~0u, odd ? two[0] : two[1], 1);
    float other = __shfl_xor_sync(~0u, high ? a : b, 2);
    return (high ? b : a) + other;
}

static __device__ __forceinline__ int own_key(int who)
{
    int lane = (int)threadIdx.x & 31;

    return who * MINE + 32 * (lane & 2) + (int)threadIdx.x % GROUP / 32 * 16 + 8 * (lane & 1) + lane / 4;
}

/* Of one thread: its key, and where the score of the query at hand goes. */
struct target {
    float *to;
    float scale;
    bool valid, misfit;                                /* a real key; one that does not fit e4m3 */
    const uint8_t *query_misfit;
};

template <bool MEND>
static __device__ __forceinline__ void put(target &t, int64_t ld, const float (&one)[2], const float (&two)[2])
{
    float x = share(one, two);
    bool wanted = t.valid;

    if (MEND)
        wanted = wanted && (t.misfit | *t.query_misfit++);
    if (wanted)
        *t.to = x * t.scale;
    t.to += ld;
}

template <int BYTES, bool MEND>
static __device__ __forceinline__ target target_of(const score_args &a, int64_t query, int64_t key)
{
    target t = { a.score + query * a.ld + key, 1, key < a.rows, false, NULL };

    if (BYTES == 128 && t.valid)
        t.scale = a.f.key_scale[key];
    if (MEND) {
        t.misfit = t.valid && a.f.key_scale[key] == 0;
        t.query_misfit = a.f.query_misfit + query;
    }
    return t;
}

/* N queries; `two` runs while `one` is weighed and the other way round, so that only the last finds no other product
 * running.  (The compiler follows registers in use by products through straight code only.) */
template <int BYTES, bool MEND, int N>
static __device__ __forceinline__ void score_some(memory<BYTES> *m, place &p, const uint32_t (&k)[2][BYTES / 32][4],
                                                  target &t, int64_t ld)
{
    float one[32], two[32], w[16], sum_one[2], sum_two[2];

    lf_bar_wait(&m->full[p.stage], p.parity);
    lf_fence_async();
    multiply<BYTES>(one, k[0], m, p.stage);
#pragma unroll
    for (int i = 0; i < N; i++) {
        int now = p.stage;
        multiply<BYTES>(two, k[1], m, now);
        load_weights(w, m->weight[now]);
        lf_wgmma_wait<1>();
        lf_wgmma_pin(one);
        weigh(sum_one, one, w);
        step(p);
        if (i + 1 < N) {
            lf_bar_wait(&m->full[p.stage], p.parity);
            lf_fence_async();
            multiply<BYTES>(one, k[0], m, p.stage);
            lf_wgmma_wait<1>();
        } else {
            lf_wgmma_wait<0>();
        }
        lf_wgmma_pin(two);
        lf_bar_arrive(&m->empty[now]);
        weigh(sum_two, two, w);
        put<MEND>(t, ld, sum_one, sum_two);
    }
}

template <int BYTES, bool MEND>
static __device__ __forceinline__ void score_all(const score_args &a, memory<BYTES> *m, int64_t tiles, int64_t works,
                                                 int who)
{
    place p = { 0, 0 };
    uint32_t turn = 0;

    for (int64_t n = blockIdx.x; n < works; n += gridDim.x) {
        uint32_t k[2][BYTES / 32][4];
        work w = work_at<MEND>(a, n, tiles);
        if (w.first >= w.last)
            continue;
        target t = target_of<BYTES, MEND>(a, w.first, w.key0 + own_key(who));
        lf_bar_wait(&m->keys_full, turn++ & 1);
        load_keys<BYTES>(k, m, who);
        lf_bar_arrive(&m->keys_empty);
        int64_t left = w.last - w.first;
        for (; left >= RUN; left -= RUN)
            score_some<BYTES, MEND, RUN>(m, p, k, t, a.ld);
        for (; left > 0; left--)
            score_some<BYTES, MEND, 1>(m, p, k, t, a.ld);
    }
}

template <int BYTES, bool MEND>
static __global__ void __launch_bounds__(THREADS, 1) score_wgmma(const __grid_constant__ score_args a, int64_t tiles,
                                                                 int64_t works)
{
    extern __shared__ uint8_t raw[];
    memory<BYTES> *m = (memory<BYTES> *)(raw + (-lf_shared(raw) & 1023));
    int group = __shfl_sync(~0u, (int)threadIdx.x / GROUP, 0);

    if (MEND && !a.f.misfits[LF_FOLD_KEY] && !a.f.misfits[LF_FOLD_QUERY])
        return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            lf_bar_init(&m->full[i], GROUP);
            lf_bar_init(&m->empty[i], 2 * GROUP);
        }
        lf_bar_init(&m->keys_full, GROUP);
        lf_bar_init(&m->keys_empty, 2 * GROUP);
    }
    __syncthreads();
    if (group == 0) {
        lf_registers_less<COPY_REGISTERS>();
        copy_all<BYTES, MEND>(a, m, tiles, works);
    } else {
        lf_registers_more<MATH_REGISTERS>();
        score_all<BYTES, MEND>(a, m, tiles, works, group - 1);
    }
}

template <int BYTES, bool MEND> static void launch(lf_cuda *c, const score_args *a, const char *name)
{
    int64_t tiles = lf_ceil_div(a->rows, KEYS), works = tiles * lf_ceil_div(a->queries, QUERIES);
    size_t bytes = sizeof(memory<BYTES>) + 1024;

    if (LF_CUDA(c, cudaFuncSetAttribute(score_wgmma<BYTES, MEND>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)bytes), name))
        return;
    score_wgmma<BYTES, MEND><<<(unsigned)lf_min(works, c->sms), THREADS, bytes, c->stream>>>(*a, tiles, works);
    LF_CUDA(c, cudaGetLastError(), name);
}

void lf_cuda_index_wgmma(lf_cuda *c, const lf_cuda_scores *s)
{
    int fp8 = s->kernel == LF_INDEX_FP8;
    score_args a = { s->score, (const uint8_t *)(const void *)s->q, (const uint8_t *)(const void *)s->keys, s->w, s->ld,
                     s->queries, s->pos0, s->row_first, s->rows, fp8 ? *s->folded : lf_cuda_folded{} };

    if (((uintptr_t)s->q | (uintptr_t)s->keys | (uintptr_t)s->w) & 15) {
        lf_cuda_fail(c, "index_topk: queries, keys or weights are not aligned to 16 bytes");
    } else if (fp8) {
        score_args e4m3 = { s->score, a.f.q, a.f.keys, a.f.w, s->ld, s->queries, s->pos0, s->row_first, s->rows, a.f };
        launch<128, false>(c, &e4m3, "kernel index_topk, scores in e4m3");
        launch<256, true>(c, &a, "kernel index_topk, scores that e4m3 cannot give");
    } else {
        launch<256, false>(c, &a, "kernel index_topk, scores in bf16");
    }
}
