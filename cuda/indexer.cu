/* SPDX-License-Identifier: Apache-2.0
 *
 * The indexer: which compressed entries a query of a ratio-4 layer attends to.   Source: model.md, "Indexer";
 * what it gives: src/cpu/indexer.c.
 *
 * The scores of a tile of queries are written out (index_score.cu), then a block a query selects, exactly.
 */
#include "index_score.cuh"
#include "stream_select.cuh"

struct choose_args {
    int32_t *sel;
    float *out;                            /* may be NULL */
    const float *score;                    /* [queries, ld] */
    int64_t ld, pos0, row_first, row_count;
    int k;
    uint32_t sort_n;                       /* the power of two from k on */
};

struct put_row {
    int32_t *sel;
    float *out;
    const float *score;
    int64_t row_first;

    __device__ void operator()(int64_t place, int64_t i) const
    {
        sel[place] = (int32_t)(i + row_first);
        if (out)
            out[place] = score[i];
    }
};

static __device__ int64_t seen(const choose_args &a)
{
    return max((int64_t)0, min((a.pos0 + blockIdx.x + 1) / 4 - a.row_first, a.row_count));
}

static __device__ put_row put_of(const choose_args &a)
{
    int64_t i = blockIdx.x;

    return put_row{ a.sel + i * a.k, a.out ? a.out + i * a.k : NULL, a.score + i * a.ld, a.row_first };
}

static __device__ void put_none(const choose_args &a, const put_row &put, int64_t n)
{
    for (int64_t j = n + threadIdx.x; j < a.k; j += blockDim.x) {
        put.sel[j] = -1;
        if (put.out)
            put.out[j] = -INFINITY;
    }
}

static __global__ void __launch_bounds__(LF_STREAM_THREADS, 2) choose_kernel(choose_args a)
{
    extern __shared__ uint4 room[];
    put_row put = put_of(a);
    int64_t n = seen(a);

    lf_stream_select((lf_stream *)room, put.score, n, (uint32_t)a.k, a.sort_n, put);
    put_none(a, put, n);
}

static __global__ void __launch_bounds__(LF_SELECT_THREADS) choose_many_kernel(choose_args a)
{
    __shared__ lf_selection s;
    put_row put = put_of(a);
    int64_t n = seen(a);

    lf_select(&s, put.score, n, a.k, put);
    put_none(a, put, n);
}

static_assert(LF_STREAM_MOST == 2048, "dev_cuda_choice.c has another number");

static void choose(lf_cuda *c, choose_args a, int64_t queries)
{
    unsigned fits = 1 << LF_SELECT_GENERAL | (a.k <= LF_STREAM_MOST) << LF_SELECT_STREAM;
    int kernel = lf_cuda_choose(c, LF_CHOICE_SELECT, fits, "%d entries a query", a.k);

    if (kernel < 0)
        return;
    if (kernel == LF_SELECT_GENERAL) {
        choose_many_kernel<<<(unsigned)queries, LF_SELECT_THREADS, 0, c->stream>>>(a);
        LF_LAUNCHED(c, "index_topk, choose many");
        return;
    }
    for (a.sort_n = 2; a.sort_n < (uint32_t)a.k;)
        a.sort_n *= 2;
    if (LF_CUDA(c, cudaFuncSetAttribute(choose_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)sizeof(lf_stream)), "index_topk: shared memory for the choice"))
        return;
    choose_kernel<<<(unsigned)queries, LF_STREAM_THREADS, sizeof(lf_stream), c->stream>>>(a);
    LF_LAUNCHED(c, "index_topk, choose");
}

static int64_t visible(const lf_topk *t, int64_t query)
{
    return lf_max(0, lf_min((t->pos0 + query + 1) / 4 - t->row_first, t->row_count));
}

static int score_kernel(lf_cuda *c)
{
    const lf_model *m = c->dev.model;

    return lf_cuda_choose(c, LF_CHOICE_INDEX, lf_cuda_index_fits(&c->dev), "%d heads of %d, %s%s", m->index_heads,
                          m->index_dim, lf_cuda_act_name(c), c->dev.numerics == LF_RELEASED ? ", released" : ", exact");
}

/* Queries of which `ld` scores each are held at a time. */
static int64_t tile_of(int64_t queries, int64_t ld)
{
    return lf_max(1, lf_min(lf_min(queries, LF_CUDA_SCORE_QUERIES), LF_CUDA_SCORES / (4 * ld)));
}

void lf_cuda_index_topk(lf_dev *d, const lf_topk *t)
{
    lf_cuda *c = lf_cuda_of(d);

    if (t->queries == 0 || t->k <= 0)
        return;
    int64_t most = visible(t, t->queries - 1), ld = lf_round_up(lf_max(most, 1), 4), tile = tile_of(t->queries, ld);
    int64_t each = (int64_t)d->model->index_heads * d->model->index_dim;
    float *score = (float *)lf_cuda_scratch(c, LF_SCRATCH_A, lf_cuda_topk_scratch(t->queries, t->row_count));
    if (!score)
        return;
    lf_cuda_folded folded;
    int64_t unseen = t->score ? 0 : t->k;                      /* so few are chosen all, without scores */
    int kernel = most > unseen ? score_kernel(c) : LF_INDEX_GENERAL, fold = kernel == LF_INDEX_FP8;
    if (kernel < 0)
        return;
    if (fold) {
        tile = lf_min(tile, LF_CUDA_FOLD_QUERIES);
        if (lf_cuda_fold_keys(c, &folded, t->keys, most, t->queries))
            return;
    }
    for (int64_t q0 = 0; q0 < t->queries && !c->failed; q0 += tile) {
        int64_t n = lf_min(tile, t->queries - q0), sees = visible(t, q0 + n - 1);
        lf_cuda_scores s = { score, ld, lf_act_at(d, t->q, q0 * each), t->w + q0 * d->model->index_heads, n,
                             t->pos0 + q0, t->keys, t->row_first, sees, kernel, &folded };
        choose_args a = { t->sel + q0 * t->k, t->score ? t->score + q0 * t->k : NULL, score, ld, t->pos0 + q0,
                          t->row_first, t->row_count, t->k, 0 };
        if (sees > unseen) {
            if (fold && lf_cuda_fold_queries(c, &folded, s.q, s.w, n))
                return;
            lf_cuda_index_score(c, &s);
        }
        choose(c, a, n);
    }
}

/* ---- merging candidate lists ---- */

struct merge_args {
    int32_t *sel;
    const int32_t *cand;                   /* [parts, m, k] */
    const float *score;
    int64_t m;
    int parts, k;
    int64_t sort_n;                        /* the power of two from k on */
};

static __device__ __forceinline__ uint64_t candidate(const merge_args &a, int64_t i)
{
    int64_t at = (i / a.k * a.m + blockIdx.x) * a.k + i % a.k;
    int32_t row = a.cand[at];

    return row < 0 ? 0 : lf_rank_key(a.score[at], (uint32_t)row);              /* 0: below all that there are */
}

/* The k-th largest candidate of n; 0 when there are fewer. */
static __device__ uint64_t kth_candidate(lf_selection *s, const merge_args &a, int64_t n)
{
    uint64_t prefix = 0;
    int64_t k = a.k;

    for (int shift = 56; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256)
            s->total[threadIdx.x] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            uint64_t key = candidate(a, i);
            if (shift == 56 || key >> (shift + 8) == prefix)
                atomicAdd(&s->total[key >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int64_t above = 0;
            int digit = 255;
            while (digit > 0 && above + s->total[digit] < k)
                above += s->total[digit--];
            s->digit = (uint32_t)digit;
            s->left = k - above;
        }
        __syncthreads();
        prefix = prefix << 8 | s->digit;
        k = s->left;
    }
    return prefix;
}

static __global__ void __launch_bounds__(LF_SELECT_THREADS) merge_kernel(merge_args a)
{
    extern __shared__ uint32_t row[];      /* complements: the largest first is the lowest row first */
    __shared__ lf_selection s;
    __shared__ uint32_t count;
    int64_t n = (int64_t)a.parts * a.k;

    for (int64_t i = threadIdx.x; i < a.sort_n; i += blockDim.x)
        row[i] = 0;
    if (threadIdx.x == 0)
        count = 0;
    uint64_t kth = kth_candidate(&s, a, n);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        uint64_t key = candidate(a, i);
        if (key && key >= kth) {
            uint32_t place = atomicAdd(&count, 1u);
            if (place < (uint32_t)a.k)
                row[place] = (uint32_t)key;
        }
    }
    lf_sort(row, a.sort_n);
    for (int64_t i = threadIdx.x; i < a.k; i += blockDim.x)
        a.sel[blockIdx.x * (int64_t)a.k + i] = row[i] ? (int32_t)~row[i] : -1;
}

void lf_cuda_topk_merge(lf_dev *d, int32_t *sel, const int32_t *cand, const float *score, int parts, int64_t m, int k)
{
    lf_cuda *c = lf_cuda_of(d);
    merge_args a = { sel, cand, score, m, parts, k, 2 };

    if (m == 0 || k <= 0)
        return;
    while (a.sort_n < k)
        a.sort_n *= 2;
    size_t shared = 4 * (size_t)a.sort_n;
    if (shared > (size_t)128 << 10) {
        lf_cuda_fail(c, "topk_merge: index_topk %d; up to 32768 rows can be merged", k);
        return;
    }
    if (LF_CUDA(c, cudaFuncSetAttribute(merge_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                "topk_merge: shared memory"))
        return;
    merge_kernel<<<(unsigned)m, LF_SELECT_THREADS, shared, c->stream>>>(a);
    LF_LAUNCHED(c, "topk_merge");
}
