/* SPDX-License-Identifier: Apache-2.0
 *
 * On the GPU: embed, hc_pre, hc_post, hc_head.
 *
 * Tolerances.  Float32: 1e-5 of the row's largest value for y and x; the mix went through 39 divisions, 2e-5.
 * bf16: one step per rounding, on few values.  The mix is float32 in every mode.  embed copies.
 */
#include "g_ops.h"

static g_tol rounded(const g_run *r)
{
    return r->act == 4 ? (g_tol){ 1e-5, 0, 0, 1e-5 } : (g_tol){ 1e-5, 2, 0.005, 2e-3 };
}

/* A weight [outs, n D] in float32 (or bf16: unquantised checkpoints); its bytes stay in the case's host memory. */
static lf_hc weights(g_run *r, lf_dev *d)
{
    int64_t n = r->model.hc, all = n * r->model.hidden;
    lf_hc hc = { .fn = { .dtype = r->opt[2] ? LF_BF16 : LF_F32, .rows = r->opt[0], .cols = all, .all_rows = r->opt[0],
                         .all_cols = all } };
    lf_err err;

    if (d->ops->weight(d, &hc.fn, all, r->in[1], (size_t)(r->opt[0] * all) * (r->opt[2] ? 2 : 4), NULL, 0, &err) != 0)
        g_die("weight", err.text);
    hc.scale = g_put(r, d, r->in[2], 12);
    hc.base = g_put(r, d, r->in[3], (size_t)r->opt[0] * 4);
    return hc;
}

/* opt: outputs, what to return (0 y, 1 mix, 2 head), bf16 weight */
static void pre(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t n = r->model.hc, hidden = r->model.hidden, mixes = n + n * n;
    lf_act *x = g_act(r, d, (const float *)r->in[0] + first * n * hidden, m * n * hidden);
    lf_act *y = g_new_act(r, d, m * hidden);
    float *mix = g_new(r, d, (size_t)(m * mixes) * 4);
    const float *norm = g_put(r, d, r->in[4], (size_t)hidden * 4);
    lf_hc hc = weights(r, d);

    if (r->opt[1] == 2)
        d->ops->hc_head(d, y, x, m, &hc, norm);
    else
        d->ops->hc_pre(d, y, mix, x, m, &hc, norm);
    if (r->opt[1] == 1)
        g_get(d, out, mix, (size_t)(m * mixes) * 4);
    else
        g_get_act(d, out, y, m * hidden);
}

static void post(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t n = r->model.hc, hidden = r->model.hidden, mixes = n + n * n;
    lf_act *x = g_act(r, d, (const float *)r->in[0] + first * n * hidden, m * n * hidden);

    d->ops->hc_post(d, x, g_act(r, d, (const float *)r->in[1] + first * hidden, m * hidden),
                    g_put(r, d, (const float *)r->in[2] + first * mixes, (size_t)(m * mixes) * 4), m);
    g_get_act(d, out, x, m * n * hidden);
}

static void embed(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t n = r->model.hc, hidden = r->model.hidden, vocab = r->opt[0];
    lf_weight w = { .dtype = LF_BF16, .rows = vocab, .cols = hidden, .all_rows = vocab, .all_cols = hidden };
    lf_act *x = g_new_act(r, d, m * n * hidden);
    lf_err err;

    if (d->ops->weight(d, &w, hidden, r->in[0], (size_t)(vocab * hidden) * 2, NULL, 0, &err) != 0)
        g_die("weight", err.text);
    d->ops->embed(d, x, g_put(r, d, (const uint32_t *)r->in[1] + first, (size_t)m * 4), m, &w);
    g_get_act(d, out, x, m * n * hidden);
}

static uint16_t *bf16(g_run *r, int64_t n, float scale)
{
    float *x = g_floats(r, n, scale);
    uint16_t *h = g_keep(r, (size_t)n * 2);

    for (int64_t i = 0; i < n; i++)
        h[i] = lf_f32_bf16(x[i]);
    return h;
}

static void pres(g_run *r)
{
    static const char *const name[] = { "hc_pre", "hc_pre, its mix", "hc_head" };
    int64_t n = r->model.hc, hidden = r->model.hidden, all = n * hidden;
    float scale = 1 / sqrtf((float)all);

    for (int what = 0; what < 3; what++)
        for (int half = 0; half < 2; half++) {
            int64_t outs = what == 2 ? n : (2 + n) * n;
            char text[40];
            snprintf(text, sizeof text, "%s%s", name[what], half ? ", bf16 weight" : "");
            memcpy(r->opt, (int64_t[]){ outs, what, half }, 24);
            r->in[0] = g_values(r, r->rows * all, 2);
            r->in[1] = half ? (const void *)bf16(r, outs * all, scale) : g_floats(r, outs * all, scale);
            r->in[2] = g_floats(r, 3, 1);
            r->in[3] = g_floats(r, outs, 1);
            r->in[4] = g_floats(r, hidden, 1);
            g_check(r, text, pre, r->rows, what == 1 ? n + n * n : hidden,
                    what == 1 ? (g_tol){ 2e-5, 0, 1, 2e-5 } : rounded(r));
            g_forget(r);
        }
}

static void all(g_run *r)
{
    int64_t n = r->model.hc, hidden = r->model.hidden, vocab = lf_min(r->model.vocab, 600);
    uint32_t *ids;

    pres(r);
    r->in[0] = g_values(r, r->rows * n * hidden, 1);
    r->in[1] = g_values(r, r->rows * hidden, 1);
    r->in[2] = g_floats(r, r->rows * (n + n * n), 0.5f);
    g_check(r, "hc_post", post, r->rows, n * hidden, rounded(r));
    g_forget(r);
    ids = g_keep(r, (size_t)r->rows * 4);
    for (int64_t i = 0; i < r->rows; i++)
        ids[i] = i == 0 ? (uint32_t)vocab - 1 : (uint32_t)g_below(r, vocab);
    r->opt[0] = vocab;
    r->in[0] = bf16(r, vocab * hidden, 1);
    r->in[1] = ids;
    g_check(r, "embed", embed, r->rows, n * hidden, (g_tol){ 0, 0, 0, 0 });
    g_forget(r);
}

int main(void)
{
    return g_main("streams on the GPU", all);
}
