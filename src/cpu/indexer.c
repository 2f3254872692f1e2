/* SPDX-License-Identifier: Apache-2.0
 *
 * The indexer: which compressed entries a query of a ratio-4 layer attends to.   Source: model.md, "Indexer".
 *
 * Several queries times all index heads are the rows of one product with a strip of keys, always of the same three
 * sizes, so that no score depends on the tiling.
 */
#include "cpu.h"

#include <math.h>

enum { STRIP = 256 };

typedef struct job {
    lf_cpu *c;
    const lf_topk *t;
    int64_t q0, queries;                   /* this tile */
    int per_tile, heads, width;
    float *products, *score;               /* [per_tile * heads, STRIP], [per_tile, row_count] */
    float *padded;                         /* [STRIP, width] */
} job;

static int64_t visible(const lf_topk *t, int64_t query)
{
    return lf_max(0, lf_min((t->pos0 + query + 1) / 4 - t->row_first, t->row_count));
}

/* score[q][c] = sum_h w_h relu(q_h . key_c) for one strip of keys. */
static void score_strip(job *j, const float *q, int64_t key0)
{
    const lf_topk *t = j->t;
    int64_t n = lf_min(STRIP, t->row_count - key0);
    const float *keys = lf_cf(t->keys) + key0 * j->width;

    if (n < STRIP) {
        memcpy(j->padded, keys, sizeof(float) * (size_t)(n * j->width));
        memset(j->padded + n * j->width, 0, sizeof(float) * (size_t)((STRIP - n) * j->width));
        keys = j->padded;
    }
    lf_cpu_abt((int64_t)j->per_tile * j->heads, STRIP, j->width, q, j->width, keys, j->width, j->products, STRIP);
    for (int64_t i = 0; i < j->queries; i++) {
        float *out = j->score + i * t->row_count + key0;
        const float *w = t->w + (j->q0 + i) * j->heads;
        for (int64_t c = 0; c < n; c++)
            out[c] = 0;
        for (int h = 0; h < j->heads; h++) {
            const float *row = j->products + (i * j->heads + h) * STRIP;
            for (int64_t c = 0; c < n; c++)
                out[c] += w[h] * (row[c] < 0 ? 0 : row[c]);            /* relu that lets NaN through */
        }
    }
}

static void choose(job *j, int64_t i, uint64_t *key)
{
    const lf_topk *t = j->t;
    int32_t *sel = t->sel + (j->q0 + i) * t->k;
    const float *score = j->score + i * t->row_count;
    int n = lf_cpu_select(sel, score, visible(t, j->q0 + i), t->k, 0, key);

    for (int s = 0; s < t->k; s++) {
        if (t->score)
            t->score[(j->q0 + i) * t->k + s] = s < n ? score[sel[s]] : -INFINITY;
        sel[s] = s < n ? sel[s] + (int32_t)t->row_first : -1;
    }
}

static void one_tile(job *j)
{
    const lf_topk *t = j->t;
    int64_t row = (int64_t)j->heads * j->width;
    const float *q = lf_cf(t->q) + j->q0 * row;

    if (j->queries < j->per_tile) {
        float *pad = lf_cpu_own(j->c, 3, sizeof(float) * (size_t)(j->per_tile * row));
        memcpy(pad, q, sizeof(float) * (size_t)(j->queries * row));
        memset(pad + j->queries * row, 0, sizeof(float) * (size_t)((j->per_tile - j->queries) * row));
        q = pad;
    }
    int64_t most = visible(t, j->q0 + j->queries - 1);
    for (int64_t key0 = 0; key0 < most; key0 += STRIP)
        score_strip(j, q, key0);
    uint64_t *key = lf_cpu_own(j->c, 4, sizeof *key * (size_t)lf_max(most, 1));
    for (int64_t i = 0; i < j->queries; i++)
        choose(j, i, key);
}

void lf_cpu_index_topk(lf_dev *d, const lf_topk *t)
{
    lf_cpu *c = lf_cpu_of(d);
    int heads = d->model->index_heads, width = d->model->index_dim;
    int per_tile = (int)lf_max(1, 128 / heads);

#pragma omp parallel for num_threads(c->threads) schedule(dynamic)
    for (int64_t q0 = 0; q0 < t->queries; q0 += per_tile) {
        job j = { .c = c, .t = t, .q0 = q0, .queries = lf_min(per_tile, t->queries - q0),
                  .per_tile = per_tile, .heads = heads, .width = width };
        j.products = lf_cpu_own(c, 0, sizeof(float) * (size_t)per_tile * (size_t)heads * STRIP);
        j.score = lf_cpu_own(c, 1, sizeof(float) * (size_t)per_tile * (size_t)lf_max(t->row_count, 1));
        j.padded = lf_cpu_own(c, 2, sizeof(float) * STRIP * (size_t)width);
        one_tile(&j);
    }
}

static void merge_row(lf_cpu *c, int32_t *sel, const int32_t *cand, const float *score, int parts, int64_t stride,
                      int k)
{
    size_t most = (size_t)parts * (size_t)k;
    int32_t *row = lf_cpu_own(c, 0, 4 * most);
    float *value = lf_cpu_own(c, 1, 4 * most);
    uint64_t *key = lf_cpu_own(c, 2, 8 * most);
    int64_t n = 0;

    for (int p = 0; p < parts; p++)
        for (int j = 0; j < k && cand[p * stride + j] >= 0; j++) {
            row[n] = cand[p * stride + j];
            value[n++] = score[p * stride + j];
        }
    for (int j = lf_cpu_select_rows(sel, row, value, n, k, key); j < k; j++)
        sel[j] = -1;
}

void lf_cpu_topk_merge(lf_dev *d, int32_t *sel, const int32_t *cand, const float *score, int parts, int64_t m, int k)
{
    lf_cpu *c = lf_cpu_of(d);

#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t i = 0; i < m; i++)
        merge_row(c, sel + i * k, cand + i * k, score + i * k, parts, m * k, k);
}
