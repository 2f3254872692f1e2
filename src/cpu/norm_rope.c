/* SPDX-License-Identifier: Apache-2.0
 *
 * RMS norms and rotary positions.   Source: model.md, "Attention" and "RoPE bases".
 */
#include "cpu.h"

#include <math.h>

float lf_cpu_rms(const float *x, int64_t n, float eps)
{
    double sum = 0;

    for (int64_t j = 0; j < n; j++)
        sum += (double)x[j] * x[j];
    return (float)(1 / sqrt(sum / (double)n + eps));
}

void lf_cpu_angles(float *cos_sin, const lf_rope *rope, int64_t pos)
{
    for (int i = 0; i < rope->rope_dim / 2; i++) {
        double angle = (double)((float)pos * rope->inv_freq[i]);      /* the product is a float32 one: model.md */
        cos_sin[2 * i] = (float)cos(angle);
        cos_sin[2 * i + 1] = (float)sin(angle);
    }
}

void lf_cpu_rotate_row(const lf_cpu *c, float *x, int64_t width, const float *cos_sin, int rope_dim, int inverse)
{
    float *p = x + width - rope_dim;

    for (int i = 0; i < rope_dim; i += 2) {
        double a = p[i], b = p[i + 1], co = cos_sin[i], si = inverse ? -cos_sin[i + 1] : cos_sin[i + 1];
        p[i] = lf_r(c, (float)(a * co - b * si));
        p[i + 1] = lf_r(c, (float)(a * si + b * co));
    }
}

static void norm_row(const lf_cpu *c, float *x, int64_t n, const float *norm)
{
    float r = lf_cpu_rms(x, n, c->dev.model->rms_eps);

    for (int64_t j = 0; j < n; j++)
        x[j] = lf_r(c, norm ? x[j] * r * norm[j] : x[j] * r);
}

void lf_cpu_norm(lf_dev *d, lf_act *x, int64_t m, int64_t n, const float *norm)
{
    lf_cpu *c = lf_cpu_of(d);

#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t i = 0; i < m; i++)
        norm_row(c, lf_f(x) + i * n, n, norm);
}

void lf_cpu_query(lf_dev *d, lf_act *q, int64_t m, int heads, const int64_t *pos, const lf_rope *rope)
{
    lf_cpu *c = lf_cpu_of(d);
    int64_t width = d->model->head_dim;

#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t i = 0; i < m; i++) {
        float *cs = lf_cpu_own(c, 0, sizeof(float) * (size_t)rope->rope_dim);
        lf_cpu_angles(cs, rope, pos[i]);
        for (int h = 0; h < heads; h++) {
            float *row = lf_f(q) + (i * heads + h) * width;
            norm_row(c, row, width, NULL);
            lf_cpu_rotate_row(c, row, width, cs, rope->rope_dim, 0);
        }
    }
}

void lf_cpu_rotate(lf_dev *d, lf_act *x, int64_t m, int heads, int64_t width, const int64_t *pos, const lf_rope *rope,
                   int inverse)
{
    lf_cpu *c = lf_cpu_of(d);

#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t i = 0; i < m; i++) {
        float *cs = lf_cpu_own(c, 0, sizeof(float) * (size_t)rope->rope_dim);
        lf_cpu_angles(cs, rope, pos[i]);
        for (int h = 0; h < heads; h++)
            lf_cpu_rotate_row(c, lf_f(x) + (i * heads + h) * width, width, cs, rope->rope_dim, inverse);
    }
}

void lf_cpu_window(lf_dev *d, lf_act *dst, const int64_t *dst_row, const lf_act *x, int64_t m, const float *norm,
                   const int64_t *pos, const lf_rope *rope)
{
    lf_cpu *c = lf_cpu_of(d);
    int64_t width = d->model->head_dim, plain = width - d->model->rope_dim;

#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t i = 0; i < m; i++) {
        float *cs = lf_cpu_own(c, 0, sizeof(float) * (size_t)rope->rope_dim);
        float *row = lf_f(dst) + dst_row[i] * width;
        memcpy(row, lf_cf(x) + i * width, sizeof(float) * (size_t)width);
        norm_row(c, row, width, norm);
        lf_cpu_angles(cs, rope, pos[i]);
        lf_cpu_rotate_row(c, row, width, cs, rope->rope_dim, 0);
        if (d->numerics == LF_RELEASED)
            lf_cpu_quantise(row, row, plain, plain / lf_fp8_groups(d->model));
    }
}

/* Through e2m1 and back, in groups of 32. */
static void quantise_e2m1(float *x, int64_t n)
{
    for (int64_t g = 0; g < n; g += 32) {
        int64_t end = lf_min(n, g + 32);
        float amax = 0;
        for (int64_t j = g; j < end; j++)
            amax = fmaxf(amax, fabsf(x[j]));
        float scale = lf_e8m0_f32(lf_scale_e2m1(amax));
        for (int64_t j = g; j < end; j++)
            x[j] = lf_e2m1_table[lf_f32_e2m1(x[j] / scale)] * scale;
    }
}

void lf_cpu_index_query(lf_dev *d, lf_act *q, int64_t m, int heads, int64_t width, const int64_t *pos,
                        const lf_rope *rope)
{
    lf_cpu *c = lf_cpu_of(d);

    lf_cpu_rotate(d, q, m, heads, width, pos, rope, 0);
    if (d->numerics != LF_RELEASED)
        return;
#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t i = 0; i < m * heads; i++) {
        lf_cpu_hadamard(lf_f(q) + i * width, width);
        quantise_e2m1(lf_f(q) + i * width, width);
    }
}

void lf_cpu_scale(lf_dev *d, float *x, int64_t n, float s)
{
    (void)d;
    for (int64_t i = 0; i < n; i++)
        x[i] *= s;
}

void lf_cpu_add(lf_dev *d, float *x, const float *y, int64_t n)
{
    (void)d;
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

void lf_cpu_round(lf_dev *d, lf_act *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        lf_f(y)[i] = lf_r(lf_cpu_of(d), x[i]);
}
