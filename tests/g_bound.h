/* SPDX-License-Identifier: Apache-2.0
 *
 * g_bound: how far the GPU's sums may lie from float64 ones of the same numbers.
 *
 * Both sides multiply the same codes, so every product is exact and only its sum differs.  Say the K terms are t_i,
 * Q = sqrt(sum t_i^2), r their sum.
 *
 *   float32   An addition rounds, by 2^-24 of the partial sum at most.
 *   bf16      wgmma adds 16 terms to the sum at a time: aligned to the largest and cut off 25 bits below it, then the
 *             result is cut off to 24 bits, always towards zero: 2^-23 of the partial sum a step at most, so that
 *             steps add up; and the terms' 2^-25 each.
 *   fp8       32 terms at a time, cut off 13 bits below the largest of them and the sum, and so is the result.  After
 *             128 terms the sum is scaled and added in float32.  Say T is the largest term of these 128, or the sum of
 *             some of their four groups of 32, whatever the order: each of the 128 terms loses less than 2^-13 T, and
 *             the four sums that, twice.
 *   Source of the two: "MMA-Sim: bit-accurate reference model of tensor cores and matrix cores", arXiv 2511.10909;
 *   "DeepSeek-V3 technical report", section 3.5.2, found the same 14 bits.
 *
 * The terms' signs are random here, inputs are made so, and with them the signs of what is lost; only the steps of
 * bf16, and those within 128 terms of fp8, are taken to lose in one direction.  Hoeffding: independent losses of random
 * sign, at most c_i each, exceed 6 sqrt(sum c_i^2) with a chance below 2 exp(-18) = 3e-8, and as they are spread evenly
 * below c_i, far less often.  Partial sums: a walk of random steps is on average not longer than max(Q, |r|).  So:
 *
 *   float32   6 * 2^-24 sqrt(K) max(Q, |r|)
 *   bf16      that, and 2^-23 K / 16 max(Q, |r|)
 *   fp8       that of float32, and 6 * 2^-13 sqrt(sum over blocks of (128 + 8^2) T^2)
 *
 * Then a result is rounded to bf16 or not: what counts is how far outside the numbers that round to it float64's lies.
 */
#ifndef LF_TEST_G_BOUND_H
#define LF_TEST_G_BOUND_H

#include "../src/dev_cuda_plan.h"

#include "tap.h"

#include <stdlib.h>

typedef enum gb_way { GB_FLOAT32, GB_BF16, GB_FP8 } gb_way;

typedef struct gb_sum {
    double value, bound;
} gb_sum;

enum { GB_TIMES = 6, GB_STEP = 32, GB_BLOCK = 128 };

static inline double gb_step(const float *x, const float *w, int64_t n, double *squares, double *largest)
{
    double sum = 0, sum2 = 0, top = *largest;

#pragma omp simd reduction(+ : sum, sum2) reduction(max : top)
    for (int64_t i = 0; i < n; i++) {
        double t = (double)x[i] * w[i], a = fabs(t);
        sum += t;
        sum2 += t * t;
        top = a > top ? a : top;
    }
    *squares += sum2;
    *largest = top;
    return sum;
}

/* What a sum of k terms loses in float32, or cut off as bf16 products are. */
static inline double gb_lost(gb_way way, int64_t k, double squares, double value)
{
    double size = fmax(sqrt(squares), fabs(value)), each = way == GB_BF16 ? 0x1p-23 * (double)k / 16 : 0;

    return size * (GB_TIMES * 0x1p-24 * sqrt((double)k) + each);
}

/* The sum of x_i w_i, both with their scales in them. */
static inline gb_sum gb_dot(const float *x, const float *w, int64_t k, gb_way way)
{
    gb_sum s = { 0, 0 };
    double squares = 0, cut = 0;

    for (int64_t b = 0; b < k; b += GB_BLOCK) {
        double top = 0, up = 0, down = 0;
        for (int64_t i = b; i < lf_min(k, b + GB_BLOCK); i += GB_STEP) {
            double part = gb_step(x + i, w + i, lf_min(GB_STEP, k - i), &squares, &top);
            up += part > 0 ? part : 0;
            down -= part < 0 ? part : 0;
        }
        top = fmax(top, fmax(up, down));
        cut += (128 + 8 * 8) * 0x1p-26 * top * top;
        s.value += up - down;
    }
    s.bound = gb_lost(way, k, squares, s.value) + (way == GB_FP8 ? GB_TIMES * sqrt(cut) : 0);
    return s;
}

/* Half a step of bf16 at x. */
static inline double gb_half_step(double x)
{
    int e;

    frexp(x, &e);
    return x == 0 ? 0 : ldexp(1, e - 9);
}

/* How far a result is off as a share of what it may be: at most 1 if all is well; NaN counts as infinite. */
static inline double gb_share(double got, gb_sum want, int bf16)
{
    double far = fabs(got - want.value) - (bf16 ? gb_half_step(got) : 0);

    return far <= 0 ? 0 : isfinite(far) && want.bound > 0 ? far / want.bound : INFINITY;
}

/* ---- the numbers that are multiplied ---- */

/* One value of a weight in host memory (the CPU's side). */
static inline float gb_weight_at(const lf_weight *w, int64_t row, int64_t col)
{
    int64_t r = w->row0 + row, c = w->col0 + col, i = r * w->all_cols + c;
    uint16_t h;
    float f;

    switch (w->dtype) {
    case LF_E4M3:
        return lf_e4m3_table[w->data[i]] * lf_e8m0_f32(w->scale[r / 128 * lf_ceil_div(w->all_cols, 128) + c / 128]);
    case LF_I8:
        return lf_e2m1_table[w->data[i / 2] >> 4 * (i & 1) & 15] * lf_e8m0_f32(w->scale[i / 32]);
    case LF_BF16:
        memcpy(&h, w->data + 2 * i, 2);
        return lf_bf16_f32(h);
    default:
        memcpy(&f, w->data + 4 * i, 4);
        return f;
    }
}

/* All of a slice, [rows, cols]. */
static inline float *gb_weight(const lf_weight *w)
{
    float *out = lf_alloc((size_t)(w->rows * w->cols) * 4 + 4);

#pragma omp parallel for
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t c = 0; c < w->cols; c++)
            out[r * w->cols + c] = gb_weight_at(w, r, c);
    return out;
}

static inline int gb_quantised(const lf_weight *w)
{
    return w->dtype == LF_E4M3 || w->dtype == LF_I8;
}

/* A row of an input as e4m3 with a power of two per 128 would hold it. */
static inline void gb_quantise(float *y, const float *x, int64_t n)
{
    for (int64_t g = 0; g < n; g += 128) {
        float most = 0;
        for (int64_t j = g; j < lf_min(n, g + 128); j++)
            most = fmaxf(most, fabsf(x[j]));
        float scale = lf_e8m0_f32(lf_scale_e4m3(most));
        for (int64_t j = g; j < lf_min(n, g + 128); j++)
            y[j] = lf_e4m3_table[lf_f32_e4m3(x[j] / scale)] * scale;
    }
}

/* ---- products ---- */

/* How a product is done for activations of so many bytes. */
static inline gb_way gb_way_of(lf_numerics numerics, int act_bytes, int plain, const lf_weight *w)
{
    if (numerics == LF_RELEASED && !plain && lf_cuda_fp8_fits(w))
        return GB_FP8;
    return act_bytes == 4 || w->dtype == LF_F32 ? GB_FLOAT32 : GB_BF16;
}

typedef struct gb_product {
    const float *x, *got;                  /* [m, w->cols], rows ldx apart; the output [m, w->rows], rows ldo apart */
    int64_t m, ldx, ldo;
    const lf_weight *w;                    /* host memory */
    gb_way way;
    int quantise, bf16;                    /* the input; the output is rounded */
} gb_product;

/* The largest share of its bound that a value is off by. */
static inline double gb_judge(const gb_product *p)
{
    float *w = gb_weight(p->w);
    int64_t k = p->w->cols, n = p->w->rows;
    double worst = 0;

#pragma omp parallel for reduction(max : worst)
    for (int64_t i = 0; i < p->m; i++) {
        float *x = lf_alloc((size_t)k * 4 + 4);
        memcpy(x, p->x + i * p->ldx, (size_t)k * 4);
        if (p->quantise)
            gb_quantise(x, p->x + i * p->ldx, k);
        for (int64_t j = 0; j < n; j++) {
            double share = gb_share(p->got[i * p->ldo + j], gb_dot(x, w + j * k, k, p->way), p->bf16);
            worst = share > worst ? share : worst;
        }
        free(x);
    }
    free(w);
    return worst;
}

static inline void gb_report(double worst)
{
    printf("# worst %.3g of the bound\n", worst);
    TAP_CHECK(worst <= 1, "  every value within its bound");
}

#endif
