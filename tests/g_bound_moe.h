/* SPDX-License-Identifier: Apache-2.0
 *
 * g_bound_moe: how far the experts' results may lie from float64 ones.
 *
 * Three products with two steps in between: silu(g) u weight, rounded; and, in released numerics, its e4m3 codes.  A
 * code is a step function of what it is made from: where that lies within its bound of the place where two codes meet,
 * either is right, and it moves every output.  So the two halves are judged one by one.  `picked` is what the GPU gave
 * for the same pairs with a w2 that has a single 1 in each of its rows: sums with zeros are exact, so these are the
 * very numbers that it multiplies with w2.
 *
 *   First half.  g and u lie within the bound of their sums (g_bound.h) and are rounded.  silu's range follows from
 *   where it rises and falls; expf and four float32 operations add 2^-21 of it (and 2^-121: expf overflows where silu
 *   is less); the result is rounded, and the codes of the range's ends are the range of the code.  Every number must
 *   lie in it: one that differs from float64's comes from within the bound of a place where two codes meet.
 *   Second half.  The output against the float64 sum of w2 times the picked numbers: the bound of a sum, no more.
 */
#ifndef LF_TEST_G_BOUND_MOE_H
#define LF_TEST_G_BOUND_MOE_H

#include "g_bound.h"

typedef struct gb_range {
    double lo, hi;
} gb_range;

/* One expert, its matrices in host memory; how they are multiplied and what is quantised before. */
typedef struct gb_expert {
    const lf_weight *w1, *w2, *w3;
    gb_way first, second;
    int bf16, quantises;                   /* activations; released numerics and weights with scales */
    float limit;
} gb_expert;

typedef struct gb_pairs {                  /* of one expert */
    const float *x;                        /* [.., hidden] */
    const int32_t *src;                    /* [n] */
    const float *weight;                   /* [n] */
    int64_t n;
    const float *picked, *got;             /* [n, hidden]: number i of the second product's input in column i; output */
} gb_pairs;

typedef struct gb_tally {
    int64_t codes, differ, outside;        /* inputs of the second product; not float64's; in no range */
    int64_t values, off;                   /* of the output; beyond their bound */
    double first, second;                  /* the share of the bounds that explains all of each */
} gb_tally;

static inline gb_range gb_round(gb_range r, int bf16)
{
    return bf16 ? (gb_range){ lf_round_bf16((float)r.lo), lf_round_bf16((float)r.hi) } : r;
}

static inline gb_range gb_around(gb_sum s, double share, int bf16)
{
    return gb_round((gb_range){ s.value - share * s.bound, s.value + share * s.bound }, bf16);
}

static inline double gb_silu(double g)
{
    return g / (1 + exp(-g));
}

static inline gb_range gb_times(gb_range a, gb_range b)
{
    double c[4] = { a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi };

    return (gb_range){ fmin(fmin(c[0], c[1]), fmin(c[2], c[3])), fmax(fmax(c[0], c[1]), fmax(c[2], c[3])) };
}

/* silu falls up to its least value, -0.2784645428 at -1.2784645428, and rises from there. */
static inline gb_range gb_swiglu(gb_range g, gb_range u, float weight, float limit, double slack)
{
    const double turn = -1.2784645427610738, tiny = slack > 0 ? 0x1p-121 : 0;

    if (limit > 0) {
        g = (gb_range){ fmin(g.lo, limit), fmin(g.hi, limit) };
        u = (gb_range){ fmax(fmin(u.lo, limit), -limit), fmax(fmin(u.hi, limit), -limit) };
    }
    double a = gb_silu(g.lo), b = gb_silu(g.hi);
    gb_range s = { (g.lo <= turn && turn <= g.hi ? gb_silu(turn) : fmin(a, b)) - tiny, fmax(a, b) + tiny };
    gb_range h = gb_times(gb_times(s, u), (gb_range){ weight, weight });
    return (gb_range){ h.lo - slack * fabs(h.lo), h.hi + slack * fabs(h.hi) };
}

/* A row's ranges to those of their codes, times the scale, which the range of the group's largest may leave open. */
static inline void gb_codes(gb_range *r, int64_t n)
{
    for (int64_t g = 0; g < n; g += 128) {
        int64_t end = lf_min(n, g + 128);
        double least = 0, most = 0;
        for (int64_t j = g; j < end; j++) {
            least = fmax(least, r[j].lo > 0 ? r[j].lo : r[j].hi < 0 ? -r[j].hi : 0);
            most = fmax(most, fmax(-r[j].lo, r[j].hi));
        }
        uint8_t from = lf_scale_e4m3((float)least), to = lf_scale_e4m3((float)most);
        for (int64_t j = g; j < end; j++) {
            gb_range all = { INFINITY, -INFINITY };
            for (int b = from; b <= to; b++) {
                float scale = lf_e8m0_f32((uint8_t)b);
                all.lo = fmin(all.lo, lf_e4m3_table[lf_f32_e4m3((float)r[j].lo / scale)] * scale);
                all.hi = fmax(all.hi, lf_e4m3_table[lf_f32_e4m3((float)r[j].hi / scale)] * scale);
            }
            r[j] = all;
        }
    }
}

/* The ranges of a row of the second product's input at a share of the bounds of g and u. */
static inline void gb_inputs(gb_range *r, const gb_expert *e, const gb_sum *g, const gb_sum *u, float weight,
                             double share)
{
    for (int64_t j = 0; j < e->w1->rows; j++)
        r[j] = gb_round(gb_swiglu(gb_around(g[j], share, e->bf16), gb_around(u[j], share, e->bf16), weight, e->limit,
                                  share > 0 ? 0x1p-21 : 0), e->bf16);
    if (e->quantises)
        gb_codes(r, e->w1->rows);
}

static inline void gb_first_half(gb_tally *t, const gb_expert *e, const float *x, float weight, const float *w1,
                                 const float *w3, const float *picked)
{
    static const double share[] = { 0, 0.125, 0.25, 0.5, 1 };
    enum { SHARES = sizeof share / sizeof *share };
    int64_t n = e->w1->rows, k = e->w1->cols;
    gb_sum *g = lf_alloc((size_t)n * sizeof *g), *u = lf_alloc((size_t)n * sizeof *u);
    gb_range *r = lf_alloc((size_t)n * SHARES * sizeof *r);

    for (int64_t j = 0; j < n; j++) {
        g[j] = gb_dot(x, w1 + j * k, k, e->first);
        u[j] = gb_dot(x, w3 + j * k, k, e->first);
    }
    for (int s = 0; s < SHARES; s++)
        gb_inputs(r + s * n, e, g, u, weight, share[s]);
    for (int64_t j = 0; j < n; j++) {
        int s = 0;
        while (s < SHARES && !(picked[j] >= r[s * n + j].lo && picked[j] <= r[s * n + j].hi))
            s++;
        t->codes++;
        t->differ += s > 0;
        t->outside += s == SHARES;
        t->first = s == SHARES ? INFINITY : fmax(t->first, share[s]);
    }
    free(g);
    free(u);
    free(r);
}

static inline void gb_second_half(gb_tally *t, const gb_expert *e, const float *w2, const float *picked,
                                  const float *got)
{
    int64_t k = e->w2->cols;

    for (int64_t i = 0; i < e->w2->rows; i++) {
        double share = gb_share(got[i], gb_dot(picked, w2 + i * k, k, e->second), e->bf16);
        t->values++;
        t->off += share > 1;
        t->second = fmax(t->second, share);
    }
}

static inline void gb_add(gb_tally *t, const gb_tally *more)
{
    t->codes += more->codes;
    t->differ += more->differ;
    t->outside += more->outside;
    t->values += more->values;
    t->off += more->off;
    t->first = fmax(t->first, more->first);
    t->second = fmax(t->second, more->second);
}

static inline void gb_judge_pairs(gb_tally *t, const gb_expert *e, const gb_pairs *p)
{
    int64_t hidden = e->w1->cols;
    float *w1 = gb_weight(e->w1), *w2 = gb_weight(e->w2), *w3 = gb_weight(e->w3);

#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < p->n; i++) {
        const float *x = p->x + p->src[i] * hidden, *picked = p->picked + i * hidden;
        float *q = lf_alloc((size_t)hidden * 4 + 4);
        gb_tally mine = { 0 };
        memcpy(q, x, (size_t)hidden * 4);
        if (e->quantises)
            gb_quantise(q, x, hidden);
        gb_first_half(&mine, e, q, p->weight[i], w1, w3, picked);
        gb_second_half(&mine, e, w2, picked, p->got + i * hidden);
        free(q);
#pragma omp critical
        gb_add(t, &mine);
    }
    free(w1);
    free(w2);
    free(w3);
}

static inline void gb_report_pairs(const gb_tally *t)
{
    printf("# %.3g %% of the second product's inputs are not float64's; the worst is at %.3g of its bound\n",
           100.0 * (double)t->differ / (double)lf_max(t->codes, 1), t->first);
    TAP_CHECK(t->codes > 0 && t->outside == 0,
              "  %lld inputs of the second product: %lld are not explained by the bounds of g and u",
              (long long)t->codes, (long long)t->outside);
    printf("# worst %.3g of the bound\n", t->second);
    TAP_CHECK(t->values > 0 && t->off == 0, "  %lld outputs from these: %lld beyond the bound of their sum",
              (long long)t->values, (long long)t->off);
}

/* How an expert is multiplied with: in fp8 if a kernel can, and LONGFILL_KERNELS asks at most for one that loses less.
 * folds: what its packed matrices do. */
static inline gb_expert gb_expert_of(lf_numerics numerics, int act_bytes, const lf_weight *w1, const lf_weight *w2,
                                     const lf_weight *w3, int folds, float limit)
{
    int fp8 = lf_cuda_expert_fits(numerics, w1, w2, w3, folds) != 1 << LF_EXPERT_PLAIN;

    return (gb_expert){ .w1 = w1, .w2 = w2, .w3 = w3, .first = fp8 ? GB_FP8 : gb_way_of(numerics, act_bytes, 0, w1),
                        .second = fp8 ? GB_FP8 : gb_way_of(numerics, act_bytes, 0, w2), .bf16 = act_bytes == 2,
                        .quantises = numerics == LF_RELEASED && gb_quantised(w1), .limit = limit };
}

#endif
