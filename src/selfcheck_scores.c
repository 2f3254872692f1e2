/* SPDX-License-Identifier: Apache-2.0 */
#include "selfcheck_parts.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 256, LANES = 4 };           /* entries of a piece of work; scored at once */

typedef struct entry {
    int64_t row;
    double score, bound;                   /* e(c) of selfcheck.h */
    int chosen;
} entry;

typedef struct query {
    const lf_selfcheck_layer *y;
    double *q;                             /* [index_heads, index_dim] */
    const float *w;
    double weight;                         /* (di + Hi + 2) 2^-24 sum_h |w_h| |q_h| */
} query;

static double *doubles(const void *from, int64_t first, int64_t n, int64_t room, int act_bytes)
{
    float *x = lf_alloc(sizeof *x * (size_t)n);
    double *y = lf_alloc(sizeof *y * (size_t)room);

    lf_selfcheck_load(x, from, first, n, act_bytes);
    for (int64_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    free(x);
    return y;
}

static double norm(const double *x, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += x[i] * x[i];
    return sqrt(s);
}

static query query_of(const lf_selfcheck_layer *y, const lf_selfcheck_query *from)
{
    int64_t d = y->index_dim, n = d * y->index_heads;
    query k = { .y = y, .q = doubles(from->index_q, 0, n, n, y->act_bytes), .w = from->index_w };

    for (int h = 0; h < y->index_heads; h++)
        k.weight += fabs((double)k.w[h]) * norm(k.q + h * d, d);
    k.weight *= (double)(d + y->index_heads + 2) * 0x1p-24;
    return k;
}

/* LANES keys against all heads.  relu lets what is not a number through. */
static void score_lanes(const query *k, const double *key, double *score)
{
    int64_t d = k->y->index_dim;
    const double *k0 = key, *k1 = key + d, *k2 = key + 2 * d, *k3 = key + 3 * d;

    for (int i = 0; i < LANES; i++)
        score[i] = 0;
    for (int h = 0; h < k->y->index_heads; h++) {
        const double *q = k->q + h * d;
        double s0 = 0, s1 = 0, s2 = 0, s3 = 0, w = (double)k->w[h];
#pragma omp simd reduction(+ : s0, s1, s2, s3)
        for (int64_t j = 0; j < d; j++) {
            s0 += q[j] * k0[j];
            s1 += q[j] * k1[j];
            s2 += q[j] * k2[j];
            s3 += q[j] * k3[j];
        }
        score[0] += w * (s0 < 0 ? 0 : s0);
        score[1] += w * (s1 < 0 ? 0 : s1);
        score[2] += w * (s2 < 0 ? 0 : s2);
        score[3] += w * (s3 < 0 ? 0 : s3);
    }
}

static void score_block(const query *k, entry *e, int64_t first, int64_t n)
{
    int64_t d = k->y->index_dim;
    double *key = doubles(k->y->keys, first * d, n * d, lf_round_up(n, LANES) * d, k->y->act_bytes), score[LANES];

    for (int64_t i = 0; i < n; i++) {
        if (i % LANES == 0)
            score_lanes(k, key + i * d, score);
        e[i] = (entry){ first + i, score[i % LANES], k->weight * norm(key + i * d, d), 0 };
    }
    free(key);
}

static entry *all_scores(const query *k, int64_t visible)
{
    entry *e = lf_alloc(sizeof *e * (size_t)lf_max(visible, 1));

#pragma omp parallel for schedule(dynamic)
    for (int64_t first = 0; first < visible; first += BLOCK)
        score_block(k, e + first, first, lf_min(BLOCK, visible - first));
    return e;
}

static int better(const entry *a, const entry *b)
{
    return a->score > b->score || (a->score == b->score && a->row < b->row);
}

static int by_rank(const void *a, const void *b)
{
    return better(a, b) ? -1 : better(b, a);
}

/* The chosen entries, and the others that are better than the worst of them; best first. */
static entry *contenders(const entry *e, int64_t visible, int64_t *count)
{
    const entry *worst = NULL;
    entry *c = lf_alloc(sizeof *c * (size_t)lf_max(visible, 1));

    *count = 0;
    for (int64_t i = 0; i < visible; i++)
        if (e[i].chosen && (!worst || better(worst, &e[i])))
            worst = &e[i];
    for (int64_t i = 0; i < visible; i++)
        if (e[i].chosen || (worst && better(&e[i], worst)))
            c[(*count)++] = e[i];
    qsort(c, (size_t)*count, sizeof *c, by_rank);
    return c;
}

static int same_key(const lf_selfcheck_layer *y, int64_t a, int64_t b)
{
    size_t bytes = (size_t)(y->index_dim * y->act_bytes);

    return memcmp((const char *)y->keys + (size_t)a * bytes, (const char *)y->keys + (size_t)b * bytes, bytes) == 0;
}

/* `out` was chosen although `in`, which is better, was not. */
static int excusable(const lf_selfcheck_layer *y, const entry *out, const entry *in)
{
    if (in->score == out->score && same_key(y, in->row, out->row))
        return 0;
    return out->score + out->bound >= in->score - in->bound;
}

/* Every contender that is not chosen must have an excuse for each worse one that is. */
static int compare_sets(lf_selfcheck_result *r, const lf_selfcheck_layer *y, const entry *c, int64_t count,
                        lf_err *err)
{
    for (int64_t out = r->chosen; out < count; out++)
        r->exchanged += c[out].chosen;
    for (int64_t in = 0; in < count; in++)
        for (int64_t out = in + 1; !c[in].chosen && out < count; out++)
            if (c[out].chosen && !excusable(y, &c[out], &c[in]))
                return lf_fail(err, "entry %lld is chosen with score %.9g, but not entry %lld with %.9g (errors: "
                               "%.1e)", (long long)c[out].row, c[out].score, (long long)c[in].row, c[in].score,
                               c[out].bound + c[in].bound);
    return 0;
}

static void count_near_ties(lf_selfcheck_result *r, const entry *e, const entry *kth)
{
    for (int64_t i = 0; i < r->visible; i++)
        if (e[i].row != kth->row && fabs(e[i].score - kth->score) <= e[i].bound + kth->bound)
            r->near_ties++;
}

/* The device's own scores of the chosen, and the same choice of this query alone. */
static int check_chosen(lf_selfcheck_result *r, const lf_selfcheck_query *q, entry *e, int64_t k, lf_err *err)
{
    for (int64_t i = 0; i < k; i++)
        if (q->again[i] != q->sel[i])
            return lf_fail(err, "alone the query chooses entry %d where it chose entry %d in its tile", q->again[i],
                           q->sel[i]);
    for (int64_t i = 0; i < r->chosen; i++) {
        entry *x = &e[q->sel[i]];
        double off = fabs((double)q->score[i] - x->score);
        x->chosen = 1;
        r->score_error = off == 0 ? r->score_error : fmax(r->score_error, off / x->bound);
        if (!(off <= x->bound))
            return lf_fail(err, "entry %d has score %.9g on the device, %.9g in float64 (error: %.1e)", q->sel[i],
                           (double)q->score[i], x->score, x->bound);
    }
    return 0;
}

int lf_selfcheck_scores(lf_selfcheck_result *r, const lf_selfcheck_layer *y, const lf_selfcheck_query *q,
                        lf_err *err)
{
    query k = query_of(y, q);
    entry *e = all_scores(&k, r->visible), *c = NULL;
    int64_t count;
    int bad = check_chosen(r, q, e, y->topk, err);

    if (!bad && r->chosen < r->visible) {
        c = contenders(e, r->visible, &count);
        count_near_ties(r, e, &c[r->chosen - 1]);
        bad = compare_sets(r, y, c, count, err);
    }
    free(c);
    free(e);
    free(k.q);
    return bad;
}
