/* SPDX-License-Identifier: Apache-2.0
 *
 * Manifold-constrained hyper-connections: n residual streams, mixed by a doubly stochastic matrix per token.
 * Source: model.md, "mHC".
 */
#include "cpu.h"

#include <math.h>

/* m = fn x [rows, outs], not yet divided by the rms. */
static const float *mix_logits(lf_cpu *c, const lf_act *x, int64_t m, const lf_hc *hc)
{
    int64_t all = c->dev.model->hc * c->dev.model->hidden;
    float *out = lf_cpu_shared(c, 1, sizeof(float) * (size_t)(m * hc->fn.rows));
    lf_gemm g = { .x = x, .m = m, .ldx = all, .w = &hc->fn, .out = out, .ldo = hc->fn.rows, .kind = LF_OUT_F32 };

    lf_cpu_gemm(&c->dev, &g);
    return out;
}

static float sigmoid(float v)
{
    return 1 / (1 + expf(-v));
}

static void softmax_rows(float *m, int n, float eps)
{
    for (int i = 0; i < n; i++) {
        float *row = m + i * n, top = row[0], sum = 0;
        for (int j = 1; j < n; j++)
            top = fmaxf(top, row[j]);
        for (int j = 0; j < n; j++)
            sum += row[j] = expf(row[j] - top);
        for (int j = 0; j < n; j++)
            row[j] = row[j] / sum + eps;
    }
}

static void divide_columns(float *m, int n, float eps)
{
    for (int j = 0; j < n; j++) {
        float sum = 0;
        for (int i = 0; i < n; i++)
            sum += m[i * n + j];
        for (int i = 0; i < n; i++)
            m[i * n + j] /= sum + eps;
    }
}

static void divide_rows(float *m, int n, float eps)
{
    for (int i = 0; i < n; i++) {
        float sum = 0;
        for (int j = 0; j < n; j++)
            sum += m[i * n + j];
        for (int j = 0; j < n; j++)
            m[i * n + j] /= sum + eps;
    }
}

/* pre [n] and mix = post [n], C [n, n] of one token from its logits. */
static void mixture(const lf_model *model, float *pre, float *mix, const float *logits, float r, const lf_hc *hc)
{
    int n = model->hc;
    float eps = model->hc_eps, *comb = mix + n;

    for (int i = 0; i < n; i++) {
        pre[i] = sigmoid(logits[i] * r * hc->scale[0] + hc->base[i]) + eps;
        mix[i] = 2 * sigmoid(logits[n + i] * r * hc->scale[1] + hc->base[n + i]);
    }
    for (int i = 0; i < n * n; i++)
        comb[i] = logits[2 * n + i] * r * hc->scale[2] + hc->base[2 * n + i];
    softmax_rows(comb, n, eps);
    divide_columns(comb, n, eps);
    for (int it = 1; it < model->hc_iters; it++) {
        divide_rows(comb, n, eps);
        divide_columns(comb, n, eps);
    }
}

/* y = rmsnorm(round(sum_i pre_i x_i)) * norm */
static void collect(const lf_cpu *c, float *y, const float *x, const float *pre, const float *norm)
{
    const lf_model *model = c->dev.model;
    int64_t hidden = model->hidden;

    for (int64_t j = 0; j < hidden; j++) {
        float sum = 0;
        for (int i = 0; i < model->hc; i++)
            sum += pre[i] * x[i * hidden + j];
        y[j] = lf_r(c, sum);
    }
    float r = lf_cpu_rms(y, hidden, model->rms_eps);
    for (int64_t j = 0; j < hidden; j++)
        y[j] = lf_r(c, y[j] * r * norm[j]);
}

void lf_cpu_hc_pre(lf_dev *d, lf_act *y, float *mix, const lf_act *x, int64_t m, const lf_hc *hc, const float *norm)
{
    lf_cpu *c = lf_cpu_of(d);
    int n = d->model->hc;
    int64_t all = n * d->model->hidden;
    const float *logits = mix_logits(c, x, m, hc);

#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t t = 0; t < m; t++) {
        float pre[LF_MAX_HC];
        const float *row = lf_cf(x) + t * all;
        mixture(d->model, pre, mix + t * (n + n * n), logits + t * hc->fn.rows,
                lf_cpu_rms(row, all, d->model->rms_eps), hc);
        collect(c, lf_f(y) + t * d->model->hidden, row, pre, norm);
    }
}

void lf_cpu_hc_post(lf_dev *d, lf_act *x, const lf_act *z, const float *mix, int64_t m)
{
    lf_cpu *c = lf_cpu_of(d);
    int n = d->model->hc;
    int64_t hidden = d->model->hidden;

#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t t = 0; t < m; t++) {
        const float *post = mix + t * (n + n * n), *comb = post + n, *zt = lf_cf(z) + t * hidden;
        float *xt = lf_f(x) + t * n * hidden;
        for (int64_t k = 0; k < hidden; k++) {
            float old[LF_MAX_HC];
            for (int i = 0; i < n; i++)
                old[i] = xt[i * hidden + k];
            for (int j = 0; j < n; j++) {
                float sum = 0;
                for (int i = 0; i < n; i++)
                    sum += comb[i * n + j] * old[i];
                xt[j * hidden + k] = lf_r(c, post[j] * zt[k] + sum);
            }
        }
    }
}

void lf_cpu_hc_head(lf_dev *d, lf_act *y, const lf_act *x, int64_t m, const lf_hc *hc, const float *norm)
{
    lf_cpu *c = lf_cpu_of(d);
    int n = d->model->hc;
    int64_t all = n * d->model->hidden;
    const float *logits = mix_logits(c, x, m, hc);

#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t t = 0; t < m; t++) {
        float pre[LF_MAX_HC];
        const float *row = lf_cf(x) + t * all;
        float r = lf_cpu_rms(row, all, d->model->rms_eps);
        for (int i = 0; i < n; i++)
            pre[i] = sigmoid(logits[t * n + i] * r * hc->scale[0] + hc->base[i]) + d->model->hc_eps;
        collect(c, lf_f(y) + t * d->model->hidden, row, pre, norm);
    }
}
