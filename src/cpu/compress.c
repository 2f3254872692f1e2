/* SPDX-License-Identifier: Apache-2.0
 *
 * The compressors: gated pooling of token blocks into cache entries.   Source: model.md, "Compressor".
 */
#include "cpu.h"

#include <math.h>

enum { MOST_ROWS = 128 };                    /* the larger ratio */

void lf_cpu_add_ape(lf_dev *d, float *g, int64_t m, int64_t n, const float *ape, int ratio)
{
#pragma omp parallel for num_threads(lf_cpu_of(d)->threads) schedule(static)
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            g[i * n + j] += ape[i % ratio * n + j];
}

/* The rows that one entry pools: u and g of each, `width` channels from the pointer on. */
typedef struct pool {
    const float *u[MOST_ROWS], *g[MOST_ROWS];
    int rows;
} pool;

static void pool_rows(pool *p, const float *u, const float *g, int64_t ld, int n)
{
    for (int i = 0; i < n; i++) {
        p->u[p->rows] = u + i * ld;
        p->g[p->rows++] = g + i * ld;
    }
}

static void pool_of(pool *p, const lf_compress *k, int64_t b)
{
    int64_t ld = k->ratio == 4 ? 2 * k->width : k->width;
    const float *u = k->u + b * k->ratio * ld, *g = k->g + b * k->ratio * ld;

    p->rows = 0;
    if (k->ratio == 4 && b > 0)
        pool_rows(p, u - 4 * ld, g - 4 * ld, ld, 4);
    else if (k->ratio == 4 && k->prev_u)
        pool_rows(p, k->prev_u, k->prev_g, k->prev_ld, 4);
    if (k->ratio == 4)
        pool_rows(p, u + k->width, g + k->width, ld, 4);
    else
        pool_rows(p, u, g, ld, k->ratio);
}

/* sum_j softmax_j(g_j) u_j of one channel. */
static float pooled(const pool *p, int64_t channel)
{
    float top = -INFINITY, sum = 0, out = 0;

    for (int j = 0; j < p->rows; j++)
        top = fmaxf(top, p->g[j][channel]);
    for (int j = 0; j < p->rows; j++) {
        float e = expf(p->g[j][channel] - top);
        sum += e;
        out += e * p->u[j][channel];
    }
    return out / sum;
}

void lf_cpu_compress(lf_dev *d, const lf_compress *k)
{
    lf_cpu *c = lf_cpu_of(d);

#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t b = 0; b < k->blocks; b++) {
        float *out = lf_f(k->out) + b * k->width;
        float *cs = lf_cpu_own(c, 0, sizeof(float) * (size_t)k->rope.rope_dim);
        pool p;
        pool_of(&p, k, b);
        for (int64_t j = 0; j < k->width; j++)
            out[j] = lf_r(c, pooled(&p, j));
        float r = lf_cpu_rms(out, k->width, d->model->rms_eps);
        for (int64_t j = 0; j < k->width; j++)
            out[j] = lf_r(c, out[j] * r * k->norm[j]);
        lf_cpu_angles(cs, &k->rope, (k->block0 + b) * k->ratio);
        lf_cpu_rotate_row(c, out, k->width, cs, k->rope.rope_dim, 0);
    }
}
