/* SPDX-License-Identifier: Apache-2.0
 *
 * index_topk at the released models' shapes, timed: not a test.  Random e2m1 values with a power of two per 32, as they
 * are in released numerics.  Wall clock around one call and sync(), the median of several after a warm-up; the scores
 * alone by what index_topk calls for them; the choice is the difference.
 *
 *   TFLOP/s = 2 * heads * width * rows * queries / seconds / 1e12
 */
#include "../cuda/index_score.cuh"

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

enum { HEADS = 64, WIDTH = 128, QUERIES = 2048, ROUNDS = 7, DISTINCT = 64 };

static void die(const char *what, const lf_err *err)
{
    printf("%s: %s\n", what, err->text);
    exit(1);
}

static void sync(lf_dev *d)
{
    lf_err err;

    if (d->ops->sync(d, &err) != 0)
        die("index_topk", &err);
}

static void *put(lf_dev *d, const void *host, size_t have, size_t bytes)      /* over and over */
{
    lf_err err;
    void *p;

    if (d->ops->take(d, &p, bytes, "benchmark", &err) != 0)
        die("take", &err);
    for (size_t at = 0; host && at < bytes; at += have)
        d->ops->put(d, (char *)p + at, host, std::min(have, bytes - at));
    sync(d);
    return p;
}

static uint64_t next(uint64_t *s)
{
    uint64_t z = (*s += 0x9e3779b97f4a7c15u);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static std::vector<uint16_t> values(int64_t n, uint64_t seed)
{
    static const float value[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    std::vector<uint16_t> x((size_t)n);

    for (int64_t i = 0; i < n; i += 32) {
        uint64_t u = next(&seed), v = next(&seed), more = next(&seed);
        float unit = (float)(1 << (more & 3)) / 8;
        for (int j = 0; j < 32; j++) {
            uint64_t code = ((j < 16 ? u : v) >> (j % 16 * 4)) & 15;
            x[(size_t)(i + j)] = lf_f32_bf16((code & 8 ? -unit : unit) * value[code & 7]);
        }
    }
    return x;
}

/* What index_topk does, without the choice. */
static void scores_only(lf_dev *d, const lf_topk *t)
{
    lf_cuda *c = lf_cuda_of(d);
    int64_t ld = lf_round_up(t->row_count, 4), tile = lf_min(t->queries, (256 << 20) / (4 * ld));
    float *score = (float *)lf_cuda_scratch(c, LF_SCRATCH_A, lf_cuda_topk_scratch(t->queries, t->row_count));
    int fold = lf_cuda_index_fold_scratch(d, 1, 1) > 0;
    lf_cuda_folded f;

    if (fold)
        lf_cuda_fold_keys(c, &f, t->keys, t->row_count, t->queries);
    for (int64_t q = 0; q < t->queries && !c->failed; q += tile) {
        lf_cuda_scores s = { score, ld, lf_act_at(d, t->q, q * HEADS * WIDTH), t->w + q * HEADS,
                             lf_min(tile, t->queries - q), t->pos0 + q, t->keys, 0, t->row_count,
                             fold ? LF_INDEX_FP8 : LF_INDEX_WGMMA, &f };
        if (fold)
            lf_cuda_fold_queries(c, &f, s.q, s.w, s.queries);
        lf_cuda_index_score(c, &s);
    }
}

static double measure(lf_dev *d, const lf_topk *t, void (*fn)(lf_dev *d, const lf_topk *t))
{
    std::vector<double> took;

    for (int i = -2; i < ROUNDS; i++) {
        double start = lf_now();
        fn(d, t);
        sync(d);
        if (i >= 0)
            took.push_back(lf_now() - start);
    }
    std::sort(took.begin(), took.end());
    return took[ROUNDS / 2];
}

static void whole(lf_dev *d, const lf_topk *t)
{
    d->ops->index_topk(d, t);
}

static void one(lf_numerics numerics, int64_t rows, int k)
{
    lf_model m = {};
    lf_dev *d;
    lf_err err;

    m.layers = m.o_groups = m.hc = m.experts_per_tok = 1;
    m.max_positions = 1 << 20;
    m.vocab = m.hidden = m.head_dim = m.expert_inter = m.window = 128;
    m.heads = m.q_rank = m.o_rank = m.experts = m.rope_dim = 64;
    m.index_heads = HEADS;
    m.index_dim = WIDTH;
    m.index_topk = k;
    if (lf_cuda_open(&d, &m, numerics, 2, 0, &err) != 0)
        die("open", &err);
    std::vector<uint16_t> q = values(DISTINCT * HEADS * WIDTH, 1), keys = values(rows * WIDTH, 2);
    std::vector<float> w(DISTINCT * HEADS);
    uint64_t seed = 3;
    for (float &x : w)
        x = (float)((double)(next(&seed) >> 11) / 9007199254740992.0 - 0.3) / 90;
    lf_topk t = {};
    t.q = (lf_act *)put(d, q.data(), 2 * q.size(), (size_t)QUERIES * HEADS * WIDTH * 2);
    t.w = (float *)put(d, w.data(), 4 * w.size(), (size_t)QUERIES * HEADS * 4);
    t.keys = (lf_act *)put(d, keys.data(), 2 * keys.size(), 2 * keys.size());
    t.sel = (int32_t *)put(d, NULL, 0, (size_t)QUERIES * k * 4);
    t.queries = QUERIES;
    t.pos0 = 4 * rows - 1;
    t.row_count = rows;
    t.k = k;
    double score = measure(d, &t, scores_only), all = measure(d, &t, whole);
    double flop = 2.0 * HEADS * WIDTH * rows * QUERIES;
    printf("%-8s %7lld rows, k %4d: scores %7.3f us a query, %6.1f TFLOP/s; choice %6.3f us; together %7.3f us, %6.1f "
           "TFLOP/s\n", numerics == LF_RELEASED ? "e4m3" : "bf16", (long long)rows, k, 1e6 * score / QUERIES,
           flop / score / 1e12, 1e6 * (all - score) / QUERIES, 1e6 * all / QUERIES, flop / all / 1e12);
    for (const void *p : { (const void *)t.q, (const void *)t.w, (const void *)t.keys, (const void *)t.sel })
        d->ops->give(d, (void *)p);
    lf_dev_close(d);
}

int main(void)
{
    static const int64_t rows[] = { 8192, 32768, 131072, 262144 };
    int count;
    lf_err err;

    if (lf_cuda_devices(&count, &err) != 0) {
        printf("no GPU: %s\n", err.text);
        return 77;
    }
    for (int fold = 0; fold < 2; fold++)
        for (int64_t n : rows)
            for (int k = 512; k <= 1024; k *= 2)
                one(fold ? LF_RELEASED : LF_EXACT, n, k);
    return 0;
}
