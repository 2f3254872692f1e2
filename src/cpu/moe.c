/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixture of experts: routing, experts, combination.   Source: model.md, "MoE".
 */
#include "cpu.h"

#include <math.h>

enum { PAIRS = 512 };                      /* (token, expert) pairs of one expert worked on at a time */

/* sqrt(softplus(x)), without overflow. */
static float router_score(float x)
{
    return sqrtf(log1pf(expf(-fabsf(x))) + fmaxf(x, 0));
}

static void route_row(lf_cpu *c, const lf_route *r, int64_t t, float *score)
{
    const lf_model *m = c->dev.model;
    int k = m->experts_per_tok;
    int32_t *chosen = r->expert + t * k;
    float *weight = r->weight + t * k, sum = 0;

    for (int e = 0; e < m->experts; e++)
        score[e] = router_score(score[e]);
    if (r->tid2eid) {
        for (int j = 0; j < k; j++)
            chosen[j] = (int32_t)r->tid2eid[r->ids[t] * (int64_t)k + j];
    } else {
        float *biased = lf_cpu_own(c, 0, sizeof(float) * (size_t)m->experts);
        uint64_t *key = lf_cpu_own(c, 1, sizeof *key * (size_t)m->experts);
        for (int e = 0; e < m->experts; e++)
            biased[e] = score[e] + r->bias[e];
        lf_cpu_select(chosen, biased, m->experts, k, 1, key);
    }
    for (int j = 0; j < k; j++)
        sum += weight[j] = score[chosen[j]];
    for (int j = 0; j < k; j++)
        weight[j] = weight[j] / sum * m->routed_scale;
}

void lf_cpu_route(lf_dev *d, const lf_route *r)
{
    lf_cpu *c = lf_cpu_of(d);
    int64_t experts = d->model->experts;
    float *logits = lf_cpu_shared(c, 1, sizeof(float) * (size_t)(r->m * experts));
    lf_gemm g = { .x = r->y, .m = r->m, .ldx = d->model->hidden, .w = r->gate, .out = logits, .ldo = experts,
                  .kind = LF_OUT_F32 };

    lf_cpu_gemm(d, &g);
#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t t = 0; t < r->m; t++)
        route_row(c, r, t, logits + t * experts);
}

static float silu(float g)
{
    return g / (1 + expf(-g));
}

/* h = silu(g) u weight, clamped first when limit > 0. */
static void activate(lf_cpu *c, float *g, const float *u, const float *weight, int64_t rows, int64_t inter, float limit)
{
#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < inter; j++) {
            float a = g[i * inter + j], b = u[i * inter + j];
            if (limit > 0) {
                a = a > limit ? limit : a;
                b = b > limit ? limit : b < -limit ? -limit : b;
            }
            g[i * inter + j] = lf_r(c, silu(a) * b * weight[i]);
        }
}

static void product(lf_dev *d, const float *x, int64_t m, const lf_weight *w, float *out)
{
    lf_gemm g = { .x = (const lf_act *)(const void *)x, .m = m, .ldx = w->cols, .w = w, .out = out, .ldo = w->rows,
                  .kind = LF_OUT_ACT };

    lf_cpu_gemm(d, &g);
}

static void expert_pairs(lf_cpu *c, const lf_experts *e, int expert, int64_t p0, int64_t n)
{
    int64_t hidden = e->w1[expert].cols, inter = e->w1[expert].rows;
    float *x = lf_cpu_shared(c, 2, sizeof(float) * (size_t)(n * hidden));
    float *g = lf_cpu_shared(c, 3, sizeof(float) * (size_t)(n * inter));
    float *u = lf_cpu_shared(c, 4, sizeof(float) * (size_t)(n * inter));

    for (int64_t i = 0; i < n; i++)
        memcpy(x + i * hidden, lf_cf(e->x) + e->src[p0 + i] * hidden, sizeof(float) * (size_t)hidden);
    product(&c->dev, x, n, &e->w1[expert], g);
    product(&c->dev, x, n, &e->w3[expert], u);
    activate(c, g, u, e->weight + p0, n, inter, e->limit);
    product(&c->dev, g, n, &e->w2[expert], lf_f(e->out) + p0 * hidden);
}

void lf_cpu_experts(lf_dev *d, const lf_experts *e)
{
    for (int x = 0; x < e->experts; x++)
        for (int64_t p = e->first[x]; p < e->first[x + 1]; p += PAIRS)
            expert_pairs(lf_cpu_of(d), e, x, p, lf_min(PAIRS, e->first[x + 1] - p));
}

void lf_cpu_combine(lf_dev *d, lf_act *out, const lf_act *z, const int32_t *slot, int k, const lf_act *shared,
                    int64_t m)
{
    lf_cpu *c = lf_cpu_of(d);
    int64_t hidden = d->model->hidden;

#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t t = 0; t < m; t++)
        for (int64_t i = 0; i < hidden; i++) {
            float sum = 0;
            for (int j = 0; j < k; j++)
                sum += lf_cf(z)[slot[t * k + j] * hidden + i];
            lf_f(out)[t * hidden + i] = lf_r(c, sum + lf_cf(shared)[t * hidden + i]);
        }
}
