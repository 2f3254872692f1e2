/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of single queries over their window and compressed rows, with the sink in the denominator.
 * Source: model.md, "Attention"; engine.md, "merge mode".
 *
 * Keys are values.  Each query is two small products per part (heads x rows, heads x channels), whose shapes depend on
 * the query's position only.
 */
#include "cpu.h"

#include <math.h>

typedef struct keys {
    const float *win, *rows;               /* first row of each part */
    int64_t wins, count;
} keys;

static void window_part(keys *k, const lf_attn *a, int64_t t, int64_t width, int window)
{
    int64_t first = lf_max(lf_max(0, t - window + 1), a->win_pos0);
    int64_t last = lf_min(t, a->win_pos0 + a->win_rows - 1);

    k->wins = lf_max(0, last - first + 1);
    k->win = lf_cf(a->win) + (first - a->win_pos0) * width;
}

static void chosen_part(lf_cpu *c, keys *k, const lf_attn *a, int64_t i, int64_t width)
{
    const int32_t *sel = a->sel + i * a->sel_ld;
    float *gathered = lf_cpu_own(c, 0, sizeof(float) * (size_t)(a->sel_ld * width));

    for (int64_t s = 0; s < a->sel_ld && sel[s] >= 0; s++) {
        int64_t row = sel[s] - a->row_first;
        if (row >= 0 && row < a->row_count)
            memcpy(gathered + k->count++ * width, lf_cf(a->rows) + row * width, sizeof(float) * (size_t)width);
    }
    k->rows = gathered;
}

static void keys_of(lf_cpu *c, keys *k, const lf_attn *a, int64_t i)
{
    int64_t width = c->dev.model->head_dim, t = a->pos0 + i;

    *k = (keys){ 0 };
    if (a->win && a->win_rows)
        window_part(k, a, t, width, c->dev.model->window);
    if (a->rows && a->sel)
        chosen_part(c, k, a, i, width);
    else if (a->rows) {
        k->rows = lf_cf(a->rows);
        k->count = lf_max(0, lf_min((t + 1) / a->ratio - a->row_first, a->row_count));
    }
}

/* Scores of one head to weights, in place; returns the log of the denominator (-inf: nothing visible, weights 0). */
static float softmax(float *s, int64_t n, float scale, const float *sink)
{
    float top = sink ? *sink : -INFINITY, sum;

    for (int64_t j = 0; j < n; j++) {
        s[j] *= scale;
        top = fmaxf(top, s[j]);
    }
    if (top == -INFINITY)
        return -INFINITY;
    sum = sink ? expf(*sink - top) : 0;
    for (int64_t j = 0; j < n; j++)
        sum += s[j] = expf(s[j] - top);
    for (int64_t j = 0; j < n; j++)
        s[j] /= sum;
    return top + logf(sum);
}

static void one_query(lf_cpu *c, const lf_attn *a, int64_t i)
{
    int64_t width = c->dev.model->head_dim;
    const float *q = lf_cf(a->q) + i * a->heads * width;
    float *out = lf_f(a->out) + i * a->heads * width;
    keys k;

    keys_of(c, &k, a, i);
    int64_t n = k.wins + k.count;
    float *s = lf_cpu_own(c, 1, sizeof(float) * (size_t)(a->heads * lf_max(n, 1)));
    if (k.wins)
        lf_cpu_abt(a->heads, k.wins, width, q, width, k.win, width, s, n);
    if (k.count)
        lf_cpu_abt(a->heads, k.count, width, q, width, k.rows, width, s + k.wins, n);
    for (int h = 0; h < a->heads; h++) {
        float lse = softmax(s + h * n, n, (float)(1 / sqrt((double)width)), a->sink ? a->sink + h : NULL);
        if (a->lse)
            a->lse[i * a->heads + h] = lse;
    }
    memset(out, 0, sizeof(float) * (size_t)(a->heads * width));
    if (k.wins)
        lf_cpu_ab_add(a->heads, width, k.wins, s, n, k.win, width, out, width);
    if (k.count)
        lf_cpu_ab_add(a->heads, width, k.count, s + k.wins, n, k.rows, width, out, width);
    if (c->dev.numerics == LF_RELEASED && !a->lse)
        for (int64_t j = 0; j < a->heads * width; j++)
            out[j] = lf_round_bf16(out[j]);
}

void lf_cpu_attention(lf_dev *d, const lf_attn *a)
{
    lf_cpu *c = lf_cpu_of(d);

#pragma omp parallel for num_threads(c->threads) schedule(dynamic, 8)
    for (int64_t i = 0; i < a->queries; i++)
        one_query(c, a, i);
}

/* O = sum_p e^(lse_p - Lse) O_p with Lse = ln(e^sink + sum_p e^lse_p): the sink once; an empty part has weight 0. */
void lf_cpu_merge(lf_dev *d, lf_act *out, const lf_act *part, const float *lse, int parts, int64_t m, int heads,
                  const float *sink)
{
    lf_cpu *c = lf_cpu_of(d);
    int64_t width = d->model->head_dim, rows = m * heads;

#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float top = sink ? sink[r % heads] : -INFINITY, sum = 0;
        float *o = lf_f(out) + r * width;
        for (int p = 0; p < parts; p++)
            top = fmaxf(top, lse[p * rows + r]);
        if (sink)
            sum = expf(sink[r % heads] - top);
        for (int p = 0; p < parts && top > -INFINITY; p++)
            sum += expf(lse[p * rows + r] - top);
        for (int64_t j = 0; j < width; j++) {
            float v = 0;
            for (int p = 0; p < parts; p++)
                if (lse[p * rows + r] > -INFINITY)
                    v += expf(lse[p * rows + r] - top) / sum * lf_cf(part)[(p * rows + r) * width + j];
            o[j] = lf_r(c, v);
        }
    }
}
