/* SPDX-License-Identifier: Apache-2.0 */
#include "selfcheck_parts.h"

#include <math.h>
#include <stdlib.h>

/* The entries seen, [n]: the chosen ones, or all that are complete.  Each is visible, and there once. */
static int entries_of(lf_selfcheck_result *r, const lf_selfcheck_layer *y, const lf_selfcheck_query *q,
                      int32_t **out, lf_err *err)
{
    int64_t n = 0, want;

    r->visible = y->ratio ? lf_min((q->pos + 1) / y->ratio, y->entries) : 0;
    want = r->chosen = y->ratio == 4 ? lf_min(y->topk, r->visible) : r->visible;
    int32_t *e = *out = lf_alloc(sizeof *e * (size_t)(want + 1));
    for (; n < want; n++) {
        e[n] = y->ratio == 4 ? q->sel[n] : (int32_t)n;
        if (e[n] < 0)
            return lf_fail(err, "chosen: %lld of %lld that are visible; k is %d", (long long)n,
                           (long long)r->visible, y->topk);
        if (e[n] >= r->visible)
            return lf_fail(err, "entry %d is chosen, but only %lld are complete", e[n], (long long)r->visible);
        if (n && e[n] <= e[n - 1])
            return lf_fail(err, e[n] == e[n - 1] ? "entry %d is chosen twice"
                                : "entry %d comes after entry %d: not ascending", e[n], e[n - 1]);
    }
    for (; y->ratio == 4 && n < y->topk; n++)
        if (q->sel[n] != -1)
            return lf_fail(err, "entry %d is chosen after all that are visible", q->sel[n]);
    return 0;
}

/* Window rows, then entries: [n, head_dim] as floats. */
static float *keys_of(const lf_selfcheck_layer *y, const lf_selfcheck_query *q, const int32_t *entry,
                      int64_t entries)
{
    int64_t d = y->head_dim;
    float *k = lf_alloc(sizeof *k * (size_t)((q->window_rows + entries) * d));

    lf_selfcheck_load(k, q->window, 0, q->window_rows * d, y->act_bytes);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < entries; i++)
        lf_selfcheck_load(k + (q->window_rows + i) * d, y->rows, entry[i] * d, d, y->act_bytes);
    return k;
}

/* One head: out[d] in float64; s has room for n. */
static void attend(double *out, double *s, const float *q, const float *keys, int64_t n, int64_t d, float sink)
{
    double top = sink, sum;

    for (int64_t i = 0; i < n; i++) {
        const float *k = keys + i * d;
        double dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t j = 0; j < d; j++)
            dot += (double)q[j] * (double)k[j];
        s[i] = dot / sqrt((double)d);
        top = fmax(top, s[i]);
    }
    sum = exp((double)sink - top);
    for (int64_t i = 0; i < n; i++) {
        double w = exp(s[i] - top);
        const float *k = keys + i * d;
        sum += w;
#pragma omp simd
        for (int64_t j = 0; j < d; j++)
            out[j] += w * (double)k[j];
    }
    for (int64_t j = 0; j < d; j++)
        out[j] /= sum;
}

/* |o - o64| / |o64| of a head; what is not a number is infinitely far. */
static double head_error(const lf_selfcheck_layer *y, const lf_selfcheck_query *q, const float *keys, int64_t n,
                         int h)
{
    int64_t d = y->head_dim;
    double *want = lf_alloc(sizeof *want * (size_t)(d + n)), off = 0, all = 0;
    float *query = lf_alloc(sizeof *query * (size_t)(2 * d)), *got = query + d;

    lf_selfcheck_load(query, q->q, h * d, d, y->act_bytes);
    lf_selfcheck_load(got, q->out, h * d, d, y->act_bytes);
    attend(want, want + d, query, keys, n, d, y->sink[h]);
    for (int64_t j = 0; j < d; j++) {
        off += (got[j] - want[j]) * (got[j] - want[j]);
        all += want[j] * want[j];
    }
    free(want);
    free(query);
    double e = off == 0 ? 0 : sqrt(off / all);
    return isnan(e) ? INFINITY : e;
}

static int check_output(lf_selfcheck_result *r, const lf_selfcheck_layer *y, const lf_selfcheck_query *q,
                        const int32_t *entry, lf_err *err)
{
    int64_t n = q->window_rows + r->chosen;
    float *keys = keys_of(y, q, entry, r->chosen);
    double *error = lf_alloc(sizeof *error * (size_t)y->heads);
    int worst = 0;

#pragma omp parallel for schedule(dynamic)
    for (int h = 0; h < y->heads; h++)
        error[h] = head_error(y, q, keys, n, h);
    for (int h = 1; h < y->heads; h++)
        worst = error[h] > error[worst] ? h : worst;
    r->output_error = error[worst];
    free(error);
    free(keys);
    if (r->output_error <= r->output_limit)
        return 0;
    return lf_fail(err, "the output of head %d is %.2e from the float64 one, more than %.0e", worst, r->output_error,
                   r->output_limit);
}

int lf_selfcheck(lf_selfcheck_result *r, const lf_selfcheck_layer *y, const lf_selfcheck_query *q, lf_err *err)
{
    int32_t *entry = NULL;
    int64_t window = lf_min(y->window, q->pos + 1);

    *r = (lf_selfcheck_result){ 0 };
    r->output_limit = y->rounded || y->act_bytes == 2 ? LF_SELFCHECK_BF16 : LF_SELFCHECK_F32;
    int bad = q->window_rows == window ? 0 : lf_fail(err, "%lld row%s in the window, not %lld",
                                                     (long long)q->window_rows, lf_s(q->window_rows),
                                                     (long long)window);
    bad = bad || entries_of(r, y, q, &entry, err);
    if (!bad && q->index_q && !q->again)
        bad = lf_fail(err, "the query could not be repeated alone: is there no memory for %d entries?", y->topk);
    if (!bad && y->ratio == 4 && q->index_q)
        bad = lf_selfcheck_scores(r, y, q, err);
    bad = bad || check_output(r, y, q, entry, err);
    free(entry);
    return bad ? -1 : 0;
}

void lf_selfcheck_layer_free(lf_selfcheck_layer *y)
{
    free(y->rows);
    free(y->keys);
    free(y->sink);
    *y = (lf_selfcheck_layer){ 0 };
}

void lf_selfcheck_query_free(lf_selfcheck_query *q)
{
    free(q->q);
    free(q->out);
    free(q->window);
    free(q->sel);
    free(q->index_q);
    free(q->index_w);
    free(q->again);
    free(q->score);
    *q = (lf_selfcheck_query){ 0 };
}
