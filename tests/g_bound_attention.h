/* SPDX-License-Identifier: Apache-2.0
 *
 * g_bound_attention: how far attention may lie from float64 on the same numbers.
 *
 * Say z_j are the scaled scores, p_j the weights (their sum and the sink's are 1), v_j a channel of the rows and o the
 * output there.  A weight that is off by its share e_j moves the output by p_j e_j (v_j - o), and the log-sum-exp by
 * p_j e_j.  The signs of v_j are random, so that squares add, as in g_bound.h:
 *
 *   a score     off by its bound (g_bound.h: in bf16 on wgmma, else float32) times the scale: e_j;
 *   arithmetic  scales, differences and exponentials in float32 leave e_j below 2^-22 (2 max |z| + 2), and the running
 *               maximum's factors, one a block of 32 rows or more, 2^-22 each of either sign;
 *   bf16        on wgmma weights are rounded, 2^-8 of each at most, but not those in their sum: p_j e_j v_j;
 *   sums        the output's sum of p_j v_j, as g_bound.h has it; that of the weights, whose terms are positive, by
 *               6 * 2^-24 sqrt(n) of itself, and what follows it by 2^-20: as much of the output and, added, of the
 *               log-sum-exp, which ends with a rounding of its own, 2^-22 of it or of the largest score.
 *
 * Bounds of the kind 6 c are not multiplied by 6 again.
 */
#ifndef LF_TEST_G_BOUND_ATTENTION_H
#define LF_TEST_G_BOUND_ATTENTION_H

#include "g_bound.h"

typedef struct gb_attn {                   /* as lf_attn, in host memory */
    const float *q, *win, *rows, *sink;
    const int32_t *sel;
    int64_t queries, pos0, win_pos0, win_rows, row_first, row_count, sel_ld;
    int heads, width, window, ratio;
    int wgmma, bf16;                       /* the kernel; the output is rounded */
} gb_attn;

typedef struct gb_head {                   /* of one head: over its rows, then over its channels */
    double *weight, *error;                /* [n]: p; e, as it enters squares */
    double *sum, *squares, *first, *second;            /* [width]: of p v, (p v)^2, (p e)^2 v, (p e)^2 v^2 */
    double top, lse;
} gb_head;

/* The rows that query i sees, in order; returns how many. */
static inline int64_t gb_rows(const gb_attn *a, int64_t i, const float **row)
{
    int64_t t = a->pos0 + i, n = 0, w = a->width;

    for (int64_t p = lf_max(lf_max(0, t - a->window + 1), a->win_pos0);
         a->win && p <= lf_min(t, a->win_pos0 + a->win_rows - 1); p++)
        row[n++] = a->win + (p - a->win_pos0) * w;
    if (a->rows && a->sel)
        for (int64_t s = 0; s < a->sel_ld && a->sel[i * a->sel_ld + s] >= 0; s++) {
            int64_t r = a->sel[i * a->sel_ld + s] - a->row_first;
            if (r >= 0 && r < a->row_count)
                row[n++] = a->rows + r * w;
        }
    else if (a->rows)
        for (int64_t r = 0; r < lf_min((t + 1) / a->ratio - a->row_first, a->row_count); r++)
            row[n++] = a->rows + r * w;
    return n;
}

/* Weights, their errors, and the log-sum-exp. */
static inline void gb_weigh(gb_head *h, const gb_attn *a, const float *q, const float **row, int64_t n,
                            const float *sink)
{
    double scale = 1 / sqrt((double)a->width), top = sink ? *sink : -INFINITY, sum, large = 0;

    for (int64_t j = 0; j < n; j++) {
        gb_sum s = gb_dot(q, row[j], a->width, a->wgmma ? GB_BF16 : GB_FLOAT32);
        h->weight[j] = scale * s.value;
        h->error[j] = scale * s.bound;
        top = fmax(top, h->weight[j]);
        large = fmax(large, fabs(h->weight[j]));
    }
    double rough = GB_TIMES * 0x1p-22 * (2 * large + 2 + sqrt((double)n / 32));
    sum = sink ? exp(*sink - top) : 0;
    for (int64_t j = 0; j < n; j++) {
        sum += h->weight[j] = exp(h->weight[j] - top);
        h->error[j] = sqrt(h->error[j] * h->error[j] + rough * rough);
    }
    for (int64_t j = 0; j < n; j++)
        h->weight[j] /= sum;
    h->top = large;
    h->lse = top + log(sum);
}

static inline void gb_gather(gb_head *h, const float **row, int64_t n, int64_t width)
{
    memset(h->sum, 0, sizeof *h->sum * 4 * (size_t)width);
    for (int64_t j = 0; j < n; j++) {
        const float *v = row[j];
        double p = h->weight[j], e = p * h->error[j] * (p * h->error[j]), *sum = h->sum, *squares = h->squares;
        double *first = h->first, *second = h->second;
#pragma omp simd
        for (int64_t c = 0; c < width; c++) {
            double x = v[c], t = p * x;
            sum[c] += t;
            squares[c] += t * t;
            first[c] += e * x;
            second[c] += e * x * x;
        }
    }
}

/* One head against what the GPU gave; lse NULL: not asked for. */
static inline void gb_judge_head(const gb_attn *a, gb_head *h, const float **row, int64_t n, const float *q,
                                 const float *sink, const float *got, const float *lse, double *worst,
                                 double *worst_lse)
{
    double all = 0, after = GB_TIMES * 0x1p-24 * sqrt((double)n) + 0x1p-20;

    gb_weigh(h, a, q, row, n, sink);
    gb_gather(h, row, n, a->width);
    for (int64_t j = 0; j < n; j++)
        all += h->weight[j] * h->error[j] * (h->weight[j] * h->error[j]);
    for (int64_t c = 0; c < a->width; c++) {
        double o = h->sum[c], moved = h->second[c] - 2 * o * h->first[c] + o * o * all;
        double rounded = a->wgmma ? GB_TIMES * GB_TIMES * 0x1p-16 * h->squares[c] : 0;
        double lost = gb_lost(a->wgmma ? GB_BF16 : GB_FLOAT32, n, h->squares[c], o);
        double share = gb_share(got[c], (gb_sum){ o, sqrt(fmax(moved, 0) + rounded) + lost + after * fabs(o) },
                                a->bf16);
        *worst = fmax(*worst, share);
    }
    if (lse) {
        double end = 0x1p-22 * fmax(fabs(h->lse), h->top);
        double share = n == 0 && !sink ? (*lse == -INFINITY ? 0 : INFINITY)
                                       : gb_share(*lse, (gb_sum){ h->lse, sqrt(all) + after + end }, 0);
        *worst_lse = fmax(*worst_lse, share);
    }
}

/* got [queries, heads, width]; lse [queries, heads], or NULL. */
static inline void gb_judge_attention(const gb_attn *a, const float *got, const float *lse)
{
    int64_t most = a->window + lf_max(a->sel_ld, a->row_count) + 1, w = a->width;
    double worst = 0, worst_lse = 0;

#pragma omp parallel for schedule(dynamic) reduction(max : worst, worst_lse)
    for (int64_t i = 0; i < a->queries; i++) {
        const float **row = lf_alloc((size_t)most * sizeof *row);
        double *room = lf_alloc((size_t)(2 * most + 4 * w) * sizeof *room), *at = room + 2 * most;
        gb_head h = { room, room + most, at, at + w, at + 2 * w, at + 3 * w, 0, 0 };
        int64_t n = gb_rows(a, i, row);
        for (int k = 0; k < a->heads; k++) {
            int64_t at_head = i * a->heads + k;
            gb_judge_head(a, &h, row, n, a->q + at_head * w, a->sink ? a->sink + k : NULL, got + at_head * w,
                          lse ? lse + at_head : NULL, &worst, &worst_lse);
        }
        free(row);
        free(room);
    }
    gb_report(worst);
    if (lse) {
        printf("# log-sum-exp: worst %.3g of the bound\n", worst_lse);
        TAP_CHECK(worst_lse <= 1, "  and every log-sum-exp");
    }
}

#endif
