/* SPDX-License-Identifier: Apache-2.0
 *
 * On the GPU: norm, query, rotate, window, index_query, scale, round, add_ape, compress, row_pack,
 * row_unpack.
 *
 * Tolerances.  Float32: sums in another order, 1e-5 of a row's largest value.  bf16: a float32 difference may
 * turn a near-tie into one step, on few values; where a rotation follows, a step of either value of a pair
 * (2^-8 of the row's largest at most) reaches both.  Codes: a near-tie may round the other way, by one code,
 * rarely.
 */
#include "g_ops.h"

static g_tol rounded(const g_run *r, int steps)
{
    return r->act == 4 ? (g_tol){ 1e-5, 0, 0, 1e-5 }
                       : (g_tol){ steps > 1 ? 0.004 : 1e-5, steps, 0.005, 2e-3 };
}

static void norm(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t n = r->opt[0];
    lf_act *x = g_act(r, d, (const float *)r->in[0] + first * n, m * n);

    d->ops->norm(d, x, m, n, g_put(r, d, r->in[1], (size_t)n * 4));
    g_get_act(d, out, x, m * n);
}

static void query(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t n = (int64_t)r->model.heads * r->model.head_dim;
    lf_act *q = g_act(r, d, (const float *)r->in[0] + first * n, m * n);
    lf_rope rope = g_rope(r, d);

    d->ops->query(d, q, m, r->model.heads, g_put(r, d, (const int64_t *)r->in[1] + first, (size_t)m * 8), &rope);
    g_get_act(d, out, q, m * n);
}

/* opt: heads, width, inverse, index_query instead */
static void rotate(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t n = r->opt[0] * r->opt[1];
    lf_act *x = g_act(r, d, (const float *)r->in[0] + first * n, m * n);
    const int64_t *pos = g_put(r, d, (const int64_t *)r->in[1] + first, (size_t)m * 8);
    lf_rope rope = g_rope(r, d);

    if (r->opt[3])
        d->ops->index_query(d, x, m, (int)r->opt[0], r->opt[1], pos, &rope);
    else
        d->ops->rotate(d, x, m, (int)r->opt[0], r->opt[1], pos, &rope, (int)r->opt[2]);
    g_get_act(d, out, x, m * n);
}

/* Rows go to every other place, backwards. */
static void window(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t n = r->model.head_dim, *to = lf_alloc((size_t)m * 8 + 8);
    lf_act *y = g_new_act(r, d, 2 * m * n);
    float *all = lf_alloc((size_t)(2 * m * n) * 4 + 4);
    lf_rope rope = g_rope(r, d);
    int bad = 0;

    for (int64_t i = 0; i < m; i++)
        to[i] = 2 * (m - 1 - i) + 1;
    d->ops->window(d, y, g_put(r, d, to, (size_t)m * 8), g_act(r, d, (const float *)r->in[0] + first * n, m * n), m,
                   g_put(r, d, r->in[2], (size_t)n * 4), g_put(r, d, (const int64_t *)r->in[1] + first, (size_t)m * 8),
                   &rope);
    g_get_act(d, all, y, 2 * m * n);
    for (int64_t i = 0; i < m; i++) {
        memcpy(out + i * n, all + to[i] * n, (size_t)n * 4);
        for (int64_t j = 0; j < n; j++)
            bad += !isnan(all[2 * i * n + j]);                 /* as filled */
    }
    if (bad)
        TAP_CHECK(0, "window wrote rows that are nobody's");
    free(to);
    free(all);
}

static void scale_add_round(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    float *x = g_put(r, d, (const float *)r->in[0] + first * 7, (size_t)m * 28);
    const float *other = g_put(r, d, (const float *)r->in[0] + first * 7, (size_t)m * 28);
    lf_act *y = g_new_act(r, d, m * 7);

    d->ops->scale(d, x, m * 7, 0.37f);
    d->ops->add(d, x, other, m * 7);
    d->ops->round(d, y, x, m * 7);
    g_get_act(d, out, y, m * 7);
}

/* A row is `ratio` tokens of gates with ape; opt: width of a gate row, ratio */
static void ape(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t n = r->opt[0] * r->opt[1];
    float *g = g_put(r, d, (const float *)r->in[0] + first * n, (size_t)(m * n) * 4);

    d->ops->add_ape(d, g, m * r->opt[1], r->opt[0], g_put(r, d, r->in[1], (size_t)n * 4), (int)r->opt[1]);
    g_get(d, out, g, (size_t)(m * n) * 4);
}

/* opt: width, ratio, a block before.  The case has a block of tokens in front of the first row's. */
static void compress(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t width = r->opt[0], ratio = r->opt[1], ld = ratio == 4 ? 2 * width : width, n = ratio * ld;
    const float *u = (const float *)r->in[0] + (first + 1) * n, *g = (const float *)r->in[1] + (first + 1) * n;
    lf_compress c = { .out = g_new_act(r, d, m * width), .u = g_put(r, d, u, (size_t)(m * n) * 4),
                      .g = g_put(r, d, g, (size_t)(m * n) * 4), .blocks = m, .block0 = 1000 + first,
                      .ratio = (int)ratio, .width = width,
                      .norm = g_put(r, d, r->in[2], (size_t)width * 4), .rope = g_rope(r, d) };

    if (ratio == 4 && (first > 0 || r->opt[2])) {
        c.prev_u = g_put(r, d, u - n, (size_t)n * 4);
        c.prev_g = g_put(r, d, g - n, (size_t)n * 4);
        c.prev_ld = ld;
    }
    d->ops->compress(d, &c);
    g_get_act(d, out, c.out, m * width);
}

/* opt: width, format, transformed, unpack too.  A row is its packed bytes, or what comes back. */
static void packed(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t n = r->opt[0], bytes = (int64_t)lf_row_bytes(&r->model, (lf_row_fmt)r->opt[1], n);
    uint8_t *p = g_new(r, d, (size_t)(m * bytes));
    lf_act *back = g_new_act(r, d, m * n);

    d->ops->row_pack(d, p, g_act(r, d, (const float *)r->in[0] + first * n, m * n), m, n, (lf_row_fmt)r->opt[1],
                     (int)r->opt[2]);
    if (!r->opt[3]) {
        g_get_bytes(d, out, p, m * bytes);
        return;
    }
    d->ops->row_unpack(d, back, p, m, n, (lf_row_fmt)r->opt[1]);
    g_get_act(d, out, back, m * n);
}

/* ---- cases ---- */

static void norms(g_run *r)
{
    const lf_model *m = &r->model;
    int64_t widths[2] = { m->q_rank, m->head_dim + 2 };

    r->quantises = 0;
    for (int i = 0; i < 2; i++) {
        r->opt[0] = widths[i];
        r->in[0] = g_values(r, r->rows * widths[i], 3);
        r->in[1] = g_floats(r, widths[i], 1);
        g_check(r, i ? "norm, rows in pairs" : "norm", norm, r->rows, widths[i], rounded(r, 1));
    }
    r->in[0] = g_values(r, r->rows * m->heads * m->head_dim, 3);
    r->in[1] = g_positions(r, r->rows);
    g_check(r, "query", query, r->rows, (int64_t)m->heads * m->head_dim, rounded(r, 2));
    g_forget(r);
}

static void rotations(g_run *r)
{
    const lf_model *m = &r->model;

    r->quantises = 0;
    for (int inverse = 0; inverse < 2; inverse++) {
        memcpy(r->opt, (int64_t[]){ m->heads, m->head_dim, inverse, 0 }, 32);
        r->in[0] = g_values(r, r->rows * m->heads * m->head_dim, 1);
        r->in[1] = g_positions(r, r->rows);
        g_check(r, inverse ? "rotate back" : "rotate", rotate, r->rows, (int64_t)m->heads * m->head_dim, rounded(r, 1));
    }
    memcpy(r->opt, (int64_t[]){ m->index_heads, m->index_dim, 0, 1 }, 32);
    r->in[0] = g_values(r, r->rows * m->index_heads * m->index_dim, 1);
    r->quantises = 1;
    /* exact: one rounding, which the exact CPU does not do.  released: a near-tie moves a value by one e2m1 step,
     * at most a third of its group's largest */
    g_check(r, "index_query", rotate, r->rows, (int64_t)m->index_heads * m->index_dim,
            r->act == 4 ? rounded(r, 0) : r->numerics == LF_EXACT ? (g_tol){ 1e-5, 1, 1, 4e-3 }
                                                                  : (g_tol){ 0.34, 0, 0.001, 0.02 });
    r->in[0] = g_values(r, r->rows * m->head_dim, 2);
    r->in[2] = g_floats(r, m->head_dim, 1);
    /* exact: two roundings, of values up to the row's largest.  released: one e4m3 step, an eighth of the group's
     * largest at most, rarely */
    g_check(r, "window", window, r->rows, m->head_dim,
            r->act == 4 ? rounded(r, 0) : r->numerics == LF_EXACT ? (g_tol){ 0.008, 1, 1, 6e-3 }
                                                                  : (g_tol){ 0.125, 0, 0.005, 0.02 });
    g_forget(r);
}

static void compressors(g_run *r)
{
    const lf_model *m = &r->model;
    const char *const name[] = { "compress, ratio 128", "compress, ratio 4",
                                 "compress, ratio 4, from the first block" };

    r->quantises = 0;
    r->in[0] = g_floats(r, r->rows * 7, 1);
    g_check(r, "scale and round", scale_add_round, r->rows, 7, rounded(r, 1));
    for (int i = 0; i < 3; i++) {
        int64_t ratio = i ? 4 : 128, width = i == 2 ? m->index_dim : m->head_dim, ld = i ? 2 * width : width;
        int64_t rows = i ? r->rows : 17;
        memcpy(r->opt, (int64_t[]){ width, ratio, i == 1 }, 24);
        r->in[0] = g_floats(r, (rows + 1) * ratio * ld, 1);
        r->in[1] = g_floats(r, (rows + 1) * ratio * ld, 2);
        r->in[2] = g_floats(r, width, 1);
        g_check(r, name[i], compress, rows, width, rounded(r, 3));
        r->opt[0] = ld;
        r->in[1] = g_floats(r, ratio * ld, 1);
        g_check(r, "add_ape", ape, rows, ratio * ld, (g_tol){ 0, 0, 0, 0 });
        g_forget(r);
    }
}

/* The CPU packs exactly what the GPU packs, given the same values: no tolerance, but for the Hadamard
 * transform of values that are no bf16 numbers, where sums in double may round apart. */
static void packing(g_run *r)
{
    const lf_model *m = &r->model;
    static const char *const name[] = { "float32", "bf16", "fp8", "fp4", "fp4, transformed" };

    r->quantises = 1;
    for (int f = 0; f < 5; f++)
        for (int back = 0; back < 2; back++) {
            int fmt = f > 3 ? 3 : f;
            int64_t width = fmt == 3 ? m->index_dim : m->head_dim;
            char text[64];
            memcpy(r->opt, (int64_t[]){ width, fmt, f == 4, back }, 32);
            r->in[0] = g_values(r, r->rows * width, 2);
            snprintf(text, sizeof text, "row_%s %s", back ? "unpack" : "pack", name[f]);
            g_check(r, text, packed, r->rows, back ? width : (int64_t)lf_row_bytes(m, (lf_row_fmt)fmt, width),
                    (g_tol){ 0, 0, 0, 0 });
        }
    g_forget(r);
}

/* Of narrow what has a kernel for its width of index rows. */
static void all(g_run *r)
{
    if (r->narrow) {
        rotations(r);
        packing(r);
        return;
    }
    norms(r);
    rotations(r);
    compressors(r);
    packing(r);
}

int main(void)
{
    return g_main("rows on the GPU", all);
}
