/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_case: random inputs of one attention call, on a device: what g_attention and bench_attention share.
 * Values are normal, those of a bf16 device rounded to bf16, so that a float32 device gets the same numbers.
 */
#ifndef LF_TEST_ATTENTION_CASE_H
#define LF_TEST_ATTENTION_CASE_H

#include "../src/dev_cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct att_shape {
    int heads, width, window;
} att_shape;

typedef struct att_case {
    int64_t pos0, queries;
    int ratio, k;                          /* ratio 0: window only; k 0: dense, else so many chosen, at most */
    int64_t first, count;                  /* entries on the device; count < 0: all that the last query sees */
    int no_window, sink, lse;
    float spread;                          /* of the queries: 1 as in the model; larger: peaked weights */
} att_case;

typedef struct att_host {                  /* the same inputs for every device */
    att_shape shape;
    att_case c;
    float *q, *win, *rows, *sink;
    int32_t *sel;
    int64_t win_pos0, win_rows, count;
} att_host;

static inline uint64_t att_next(uint64_t *s)
{
    uint64_t z = (*s += 0x9e3779b97f4a7c15u);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline double att_uniform(uint64_t *s)          /* in (0, 1) */
{
    return ((double)(att_next(s) >> 12) + 0.5) / 4503599627370496.0;
}

static inline float *att_normal(int64_t n, float spread, int bf16, uint64_t seed)
{
    float *x = lf_alloc(sizeof *x * (size_t)(n + 1));

    for (int64_t i = 0; i < n; i++) {
        double v = sqrt(-2 * log(att_uniform(&seed))) * cos(6.283185307179586 * att_uniform(&seed));
        x[i] = spread * (float)v;
        if (bf16)
            x[i] = lf_round_bf16(x[i]);
    }
    return x;
}

/* `want` of `all` entries, at random, ascending: each is taken with the chance that makes all sets equally likely. */
static inline void att_choose(int32_t *sel, int64_t k, int64_t all, uint64_t seed)
{
    int64_t want = all < k ? all : k, have = 0;

    for (int64_t e = 0; e < all && have < want; e++)
        if (att_uniform(&seed) * (double)(all - e) < (double)(want - have))
            sel[have++] = (int32_t)e;
    while (have < k)
        sel[have++] = -1;
}

static inline void att_make(att_host *h, att_shape shape, att_case c, int bf16, uint64_t seed)
{
    int64_t last = c.pos0 + c.queries - 1, seen = c.ratio ? (last + 1) / c.ratio : 0;

    memset(h, 0, sizeof *h);
    h->shape = shape;
    h->c = c;
    h->q = att_normal(c.queries * shape.heads * shape.width, c.spread, bf16, seed + 1);
    if (!c.no_window) {
        h->win_pos0 = c.pos0 > shape.window + 2 ? c.pos0 - shape.window - 2 : 0;
        h->win_rows = last + 1 - h->win_pos0;
        h->win = att_normal(h->win_rows * shape.width, 1, bf16, seed + 2);
    }
    h->count = c.count < 0 ? (seen > c.first ? seen - c.first : 0) : c.count;
    if (c.ratio)
        h->rows = att_normal(h->count * shape.width, 1, bf16, seed + 3);
    if (c.sink)
        h->sink = att_normal(shape.heads, 2, 0, seed + 4);
    if (c.k) {
        h->sel = lf_alloc(sizeof *h->sel * (size_t)(c.queries * c.k + 1));
        for (int64_t i = 0; i < c.queries; i++)
            att_choose(h->sel + i * c.k, c.k, (c.pos0 + i + 1) / c.ratio, seed + 5 + (uint64_t)i);
    }
}

static inline void att_free(att_host *h)
{
    free(h->q);
    free(h->win);
    free(h->rows);
    free(h->sink);
    free(h->sel);
}

static inline lf_model att_model(att_shape s)
{
    return (lf_model){ .type = "deepseek_v4", .layers = 1, .max_positions = 1048576, .vocab = 128, .hidden = 128,
                       .heads = s.heads, .head_dim = s.width, .rope_dim = s.width / 4, .q_rank = 64, .o_groups = 1,
                       .o_rank = 64, .experts = 4, .experts_per_tok = 2, .expert_inter = 128, .window = s.window,
                       .index_heads = 4, .index_dim = 32, .index_topk = 512, .hc = 4, .hc_iters = 4, .rms_eps = 1e-6f,
                       .hc_eps = 1e-6f, .rope_theta = 10000, .compress_theta = 160000 };
}

/* ---- a call on one device ---- */

typedef struct att_dev {
    lf_dev *d;
    lf_attn a;
    void *held[16];
    int helds;
} att_dev;

static inline void att_die(const char *what, const lf_err *err)
{
    printf("Bail out! %s: %s\n", what, err->text);
    exit(1);
}

static inline void *att_take(att_dev *v, size_t bytes)
{
    void *p;
    lf_err err;

    if (v->d->ops->take(v->d, &p, bytes ? bytes : 16, "a test", &err) != 0)
        att_die("take", &err);
    v->held[v->helds++] = p;
    return p;
}

static inline void *att_put(att_dev *v, const void *x, size_t bytes)
{
    void *p = att_take(v, bytes);

    v->d->ops->put(v->d, p, x, bytes);
    return p;
}

static inline lf_act *att_put_act(att_dev *v, const float *x, int64_t n)
{
    if (!x)
        return NULL;
    if (v->d->act_bytes == 4)
        return att_put(v, x, sizeof *x * (size_t)n);
    uint16_t *y = lf_alloc(sizeof *y * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++)
        y[i] = lf_f32_bf16(x[i]);
    lf_act *p = att_put(v, y, sizeof *y * (size_t)n);
    free(y);
    return p;
}

static inline void att_load(att_dev *v, lf_dev *d, const att_host *h)
{
    const att_case *c = &h->c;
    int64_t out = c->queries * h->shape.heads, width = h->shape.width;

    memset(v, 0, sizeof *v);
    v->d = d;
    v->a = (lf_attn){ .queries = c->queries, .pos0 = c->pos0, .heads = h->shape.heads, .win_pos0 = h->win_pos0,
                      .win_rows = h->win_rows, .row_first = c->first, .row_count = h->count, .ratio = c->ratio,
                      .sel_ld = c->k };
    v->a.out = att_take(v, (size_t)(out * width) * d->act_bytes);
    d->ops->fill(d, v->a.out, 0x7f, (size_t)(out * width) * d->act_bytes);
    v->a.q = att_put_act(v, h->q, out * width);
    v->a.win = att_put_act(v, h->win, h->win_rows * width);
    v->a.rows = att_put_act(v, h->rows, h->count * width);
    if (h->sel)
        v->a.sel = att_put(v, h->sel, sizeof *h->sel * (size_t)(c->queries * c->k));
    if (h->sink)
        v->a.sink = att_put(v, h->sink, sizeof *h->sink * (size_t)h->shape.heads);
    if (c->lse)
        v->a.lse = att_take(v, sizeof(float) * (size_t)out);
}

static inline void att_sync(lf_dev *d)
{
    lf_err err;

    if (d->ops->sync(d, &err) != 0)
        att_die("attention", &err);
}

static inline void att_unload(att_dev *v)
{
    while (v->helds)
        v->d->ops->give(v->d, v->held[--v->helds]);
}

#endif
