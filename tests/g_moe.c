/* SPDX-License-Identifier: Apache-2.0
 *
 * Routing, experts and combination on the GPU against the CPU backend.
 *
 * Every number that the experts make lies within a bound that g_bound_moe.h derives.  Tighter, but measured: the
 * Euclidean distance of a row from the CPU's.  Float32 3e-5, as some rows are what is left of terms that differ by
 * 2^14; exact with bf16 activations 1e-2: three results are rounded one after the other, 2^-8 each at most, where the
 * reference has no rounding; released 3e-2: what the sums of g and u lose moves about 1 % of the second product's
 * inputs by a step of e4m3, 2^-4 to 2^-3 of the value.  Up to 2.1e-2 was measured on an H200, in two small shapes with
 * ragged blocks; emulated in software, g_bound.h's account of the tensor cores gives 2.1e-2 and 1.9e-2 in these.
 */
#include "gpu_pair.h"

#include "g_bound_moe.h"

#include <string.h>

enum { EXPERTS = 5, MISFIT = 2, MOST = 130 };      /* the one that does not fold; pairs of one, at most */

typedef struct shape {
    int64_t hidden, inter;
    lf_dtype type;
    int spread, misfit;                    /* powers of two that the scales cover; an expert that does not fold */
    float limit;
} shape;

static const shape shapes[] = {
    { 96, 64, LF_I8, 9, 0, 4 },                    /* small: through gemm */
    { 96, 64, LF_BF16, 0, 0, 4 },
    { 256, 128, LF_I8, 14, 0, 4 },                 /* folds, at the limit */
    { 416, 384, LF_I8, 9, 0, 0 },                  /* folds, ragged last block */
    { 256, 128, LF_I8, 9, 1, 4 },                  /* some fold, one does not */
    { 256, 192, LF_E4M3, 3, 0, 4 },                /* as stored */
    { 4096, 2048, LF_I8, 4, 0, 10 },               /* released size */
    { 4096, 2048, LF_E4M3, 4, 0, 10 },
};

/* Pairs of each expert: none, one, around multiples of 4, many. */
static const int64_t counts[][EXPERTS] = { { 0, 1, 5, 64, 3 }, { 7, 0, 130, 2, 1 }, { 1, 0, 0, 0, 0 },
                                           { 4, 8, 0, 12, 4 } };

typedef struct experts {
    pair_weight w1[EXPERTS], w2[EXPERTS], w3[EXPERTS];
    const shape *s;
    float *x;                              /* [tokens, hidden] */
    int64_t tokens;
} experts;

static experts experts_new(pair *p, const shape *s)
{
    experts e = { .s = s, .tokens = 40 };

    for (int i = 0; i < EXPERTS; i++) {
        e.w1[i] = pair_weight_new(p, s->type, s->inter, s->hidden, s->spread, 0);
        e.w3[i] = pair_weight_new(p, s->type, s->inter, s->hidden, s->spread, s->misfit && i == MISFIT);
        e.w2[i] = pair_weight_new(p, s->type, s->hidden, s->inter, s->spread, 0);
    }
    e.x = pair_values(p, e.tokens * s->hidden);
    return e;
}

/* Pair i of expert n: its token, and its weight. */
static int32_t pair_src(const experts *e, int n, int64_t i)
{
    return (int32_t)((17 * n + 5 * i) % e->tokens);
}

static float pair_share(int n, int64_t i)
{
    return 0.125f + 0.01f * (float)((n + i) % 7);
}

/* The three matrices of each, of one side. */
static void matrices(const experts *e, int side, lf_weight w[3][EXPERTS])
{
    for (int n = 0; n < EXPERTS; n++) {
        w[0][n] = e->w1[n].side[side];
        w[1][n] = e->w2[n].side[side];
        w[2][n] = e->w3[n].side[side];
    }
}

static void prepare(pair *p, const experts *e)
{
    lf_weight w[3][EXPERTS];
    lf_experts a = { .experts = EXPERTS, .w1 = w[0], .w2 = w[1], .w3 = w[2] };

    matrices(e, PAIR_GPU, w);
    p->dev[PAIR_GPU]->ops->prepare(p->dev[PAIR_GPU], &a);
}

/* A call of experts() on one side, its memory in place. */
typedef struct call {
    lf_experts a;
    lf_weight w[3][EXPERTS];
    int64_t first[EXPERTS + 1], pairs, values;         /* values: of the output */
    int side;
} call;

static call *call_new(pair *p, int side, const experts *e, const int64_t *count)
{
    call *k = pair_host(p, sizeof *k);

    for (int n = 0; n < EXPERTS; n++)
        k->pairs += count[n];
    int32_t *src = pair_host(p, 4 * (size_t)k->pairs);
    float *weight = pair_host(p, 4 * (size_t)k->pairs);
    for (int n = 0; n < EXPERTS; n++) {
        k->first[n + 1] = k->first[n] + count[n];
        for (int64_t i = 0; i < count[n]; i++) {
            src[k->first[n] + i] = pair_src(e, n, i);
            weight[k->first[n] + i] = pair_share(n, i);
        }
    }
    matrices(e, side, k->w);
    k->side = side;
    k->values = k->pairs * e->s->hidden;
    k->a = (lf_experts){ .out = pair_device(p, side, p->dev[side]->act_bytes * (size_t)k->values),
                         .x = pair_act(p, side, e->x, e->tokens * e->s->hidden),
                         .src = pair_put(p, side, src, 4 * (size_t)k->pairs),
                         .weight = pair_put(p, side, weight, 4 * (size_t)k->pairs), .first = k->first,
                         .experts = EXPERTS, .w1 = k->w[0], .w2 = k->w[1], .w3 = k->w[2], .limit = e->s->limit };
    return k;
}

static void call_do(pair *p, const call *k)
{
    lf_dev *d = p->dev[k->side];

    d->ops->fill(d, k->a.out, 0xff, d->act_bytes * (size_t)k->values);
    d->ops->experts(d, &k->a);
}

static float *run(pair *p, int side, const experts *e, const int64_t *count)
{
    const call *k = call_new(p, side, e, count);

    call_do(p, k);
    /* One activation more: what lies behind the output must not be touched. */
    float *y = pair_get(p, side, k->a.out, k->values + 16, 0);
    if (side == PAIR_GPU)
        TAP_CHECK(isnan(y[k->values]) && isnan(y[k->values + 15]),
                  "  experts of [%d, %d]: nothing behind the output", (int)e->s->hidden, (int)e->s->inter);
    return y;
}

/* Pair i of an expert has the same bits in both calls, where both have it. */
static int same(const experts *e, const float *a, const int64_t *ca, const float *b, const int64_t *cb)
{
    int64_t h = e->s->hidden;
    int bad = 0;

    for (int n = 0; n < EXPERTS; n++) {
        TAP_QUIET(bad, memcmp(a, b, 4 * (size_t)(lf_min(ca[n], cb[n]) * h)) == 0, "expert %d", n);
        a += ca[n] * h;
        b += cb[n] * h;
    }
    return bad == 0;
}

/* The same experts with a w2 that shows what it is multiplied with.  w1 is loaded again: a layer is known by it. */
static experts picking(pair *p, const experts *e)
{
    const shape *s = e->s;
    experts q = *e;

    for (int n = 0; n < EXPERTS; n++) {
        pair_weight_put(p, &q.w1[n], s->type, s->inter, s->hidden);
        q.w2[n] = pair_weight_one(p, s->type, s->hidden, s->inter);
    }
    return q;
}

static void bounds(const pair *p, const experts *e, const int64_t *count, const float *picked, const float *got)
{
    gb_tally t = { 0 };

    for (int n = 0; n < EXPERTS; n++) {
        const lf_weight *w1 = &e->w1[n].side[PAIR_CPU], *w2 = &e->w2[n].side[PAIR_CPU], *w3 = &e->w3[n].side[PAIR_CPU];
        gb_expert x = gb_expert_of(p->dev[PAIR_GPU]->numerics, p->bf16 ? 2 : 4, w1, w2, w3,
                                   !(e->s->misfit && n == MISFIT), e->s->limit);
        int32_t src[MOST];
        float weight[MOST];
        for (int64_t i = 0; i < count[n]; i++) {
            src[i] = pair_src(e, n, i);
            weight[i] = pair_share(n, i);
        }
        gb_judge_pairs(&t, &x, &(gb_pairs){ e->x, src, weight, count[n], picked, got });
        picked += count[n] * e->s->hidden;
        got += count[n] * e->s->hidden;
    }
    gb_report_pairs(&t);
}

static void all_experts(const lf_model *m, lf_numerics numerics, int act_bytes, double tol)
{
    pair p;

    pair_open(&p, m, numerics, act_bytes);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        experts e = experts_new(&p, s);
        float *got[4];
        for (int c = 0; c < 4; c++) {
            int64_t pairs = 0;
            for (int n = 0; n < EXPERTS; n++)
                pairs += counts[c][n];
            got[c] = run(&p, PAIR_GPU, &e, counts[c]);
            if (c > 1)
                continue;
            float *want = run(&p, PAIR_CPU, &e, counts[c]);
            double off = pair_worst(got[c], want, pairs, s->hidden, s->hidden);
            TAP_CHECK(off <= tol, "%s, %s in, %s experts of [%d, %d]%s: off by %.2g, at most %.2g",
                      numerics == LF_RELEASED ? "released" : "exact", act_bytes == 2 ? "bf16" : "float32",
                      lf_dtype_name(s->type), (int)s->hidden, (int)s->inter, s->misfit ? ", one does not fold" : "",
                      off, tol);
            experts q = picking(&p, &e);
            bounds(&p, &e, counts[c], run(&p, PAIR_GPU, &q, counts[c]), got[c]);
        }
        TAP_CHECK(same(&e, got[0], counts[0], got[1], counts[1]) && same(&e, got[1], counts[1], got[3], counts[3]) &&
                  same(&e, got[0], counts[0], got[2], counts[2]), "  and a pair's bits depend on nothing but the pair");
        pair_sync(&p, "experts");
        pair_clear(&p);
    }
    pair_close(&p);
}

/* A way that is asked for.  fits: all of the experts can be multiplied with so. */
static void one_way(pair *p, const experts *e, const float *own, lf_expert_way way, int fits, double tol)
{
    const shape *s = e->s;
    char *text = lf_printf("experts=%s", lf_kernel_name(LF_CHOICE_EXPERTS, way)), *why;
    int64_t pairs = 0;
    lf_err err = { "" };

    for (int n = 0; n < EXPERTS; n++)
        pairs += counts[1][n];
    if (lf_kernels_parse(&p->dev[PAIR_GPU]->kernels, text, &err))
        pair_die(text, err.text);
    float *got = run(p, PAIR_GPU, e, counts[1]);
    int bad = p->dev[PAIR_GPU]->ops->sync(p->dev[PAIR_GPU], &err);
    if (way == LF_EXPERT_PLAIN) {
        experts q = picking(p, e);
        bounds(p, e, counts[1], run(p, PAIR_GPU, &q, counts[1]), got);
    }
    p->dev[PAIR_GPU]->kernels = 0;
    if (fits && way != LF_EXPERT_PLAIN) {
        TAP_CHECK(!bad && memcmp(got, own, 4 * (size_t)(pairs * s->hidden)) == 0,
                  "%s, %s experts of [%d, %d]: what they choose by themselves %s", text, lf_dtype_name(s->type),
                  (int)s->hidden, (int)s->inter, err.text);
    } else if (fits) {
        double off = pair_worst(got, run(p, PAIR_CPU, e, counts[1]), pairs, s->hidden, s->hidden);
        TAP_CHECK(!bad && off <= tol, "%s, %s experts of [%d, %d]: off by %.2g, at most %.2g %s", text,
                  lf_dtype_name(s->type), (int)s->hidden, (int)s->inter, off, tol, err.text);
    } else {
        why = lf_printf("%s, which cannot do ", text);
        TAP_CHECK(bad && strstr(err.text, why) && isnan(got[0]), "%s, %s experts of [%d, %d]: refused: %s", text,
                  lf_dtype_name(s->type), (int)s->hidden, (int)s->inter, err.text);
        free(why);
    }
    free(text);
}

/* Every way, asked for: plain does all; one of the others at most, and not where an expert does not fold. */
static void all_ways(const lf_model *m, lf_numerics numerics, double tol)
{
    pair p;

    pair_open(&p, m, numerics, 2);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        experts e = experts_new(&p, s);
        float *own = run(&p, PAIR_GPU, &e, counts[1]);
        int released = numerics == LF_RELEASED;
        one_way(&p, &e, own, LF_EXPERT_PLAIN, 1, tol);
        one_way(&p, &e, own, LF_EXPERT_STORED, released && s->type == LF_E4M3, tol);
        one_way(&p, &e, own, LF_EXPERT_FOLDED, released && s->type == LF_I8 && s->inter % 128 == 0 && !s->misfit, tol);
        pair_sync(&p, "ways");
        pair_clear(&p);
    }
    pair_close(&p);
}

enum { LAYERS = 4, TILES = 2 };

typedef struct stack {                     /* layers' experts, and calls of some tiles of each */
    experts layer[LAYERS];
    call *call[LAYERS][TILES];
    float *want[LAYERS][TILES];
} stack;

static int as_wanted(pair *p, const stack *s, int layer, int tile)
{
    const call *k = s->call[layer][tile];

    return memcmp(pair_get(p, PAIR_GPU, k->a.out, k->values, 0), s->want[layer][tile], 4 * (size_t)k->values) == 0;
}

/* As in a pass: the next layer's are prepared before a layer's tiles.  The host waits for nothing, so that fills and
 * products meet if nothing keeps them apart. */
static void in_order(pair *p, const stack *s, const shape *of)
{
    int bad = 0;

    for (int pass = 0; pass < 2; pass++) {
        prepare(p, &s->layer[0]);
        for (int i = 0; i < LAYERS; i++) {
            if (i + 1 < LAYERS)
                prepare(p, &s->layer[i + 1]);
            for (int t = 0; t < TILES; t++)
                call_do(p, s->call[i][t]);
        }
        for (int i = 0; i < LAYERS * TILES; i++)
            TAP_QUIET(bad, as_wanted(p, s, i / TILES, i % TILES), "pass %d, layer %d, tile %d", pass, i / TILES,
                      i % TILES);
    }
    TAP_CHECK(bad == 0, "experts of [%d, %d] prepared a layer ahead: the same bits", (int)of->hidden, (int)of->inter);
}

/* What nobody expects: prepared and not used, used and not prepared, three at once. */
static void out_of_order(pair *p, const stack *s)
{
    static const int layer[] = { 2, 2, 0, 3, 1, 0, 2 };
    int bad = 0, n = sizeof layer / sizeof *layer;

    for (int i = 0; i < n; i++) {
        if (i % 3 == 0)
            for (int j = 0; j < 3; j++)
                prepare(p, &s->layer[(i + j) % LAYERS]);
        call_do(p, s->call[layer[i]][i % TILES]);
        prepare(p, &s->layer[(i + 1) % LAYERS]);
        TAP_QUIET(bad, as_wanted(p, s, layer[i], i % TILES), "call %d, of layer %d", i, layer[i]);
    }
    TAP_CHECK(bad == 0, "  and in any other order");
}

static void prepared(pair *p, const shape *of)
{
    stack s;

    for (int i = 0; i < LAYERS; i++) {
        s.layer[i] = experts_new(p, of);
        for (int t = 0; t < TILES; t++) {
            s.want[i][t] = run(p, PAIR_GPU, &s.layer[i], counts[t]);
            s.call[i][t] = call_new(p, PAIR_GPU, &s.layer[i], counts[t]);
        }
    }
    size_t all = 4 * (size_t)s.call[0][1]->values;
    TAP_CHECK(memcmp(s.want[0][1], s.want[1][1], all) != 0 && memcmp(s.want[1][1], s.want[2][1], all) != 0,
              "layers differ");
    in_order(p, &s, of);
    out_of_order(p, &s);
    pair_sync(p, "experts");
    pair_clear(p);
}

/* Other bytes in the same place, and a weight that is loaded: what was expanded is forgotten. */
static void replaced(pair *p, const shape *s)
{
    lf_dev *d = p->dev[PAIR_GPU];
    experts a = experts_new(p, s), b = experts_new(p, s);
    size_t bytes = (size_t)(s->hidden * s->inter / 2), scales = (size_t)(s->hidden * s->inter / 32);
    int64_t pairs = 0;

    for (int n = 0; n < EXPERTS; n++)
        pairs += counts[1][n];
    size_t all = 4 * (size_t)(pairs * s->hidden);
    float *of_a = run(p, PAIR_GPU, &a, counts[1]), *of_b = run(p, PAIR_GPU, &b, counts[1]);
    prepare(p, &a);
    for (int n = 0; n < EXPERTS; n++) {
        const pair_weight *to[3] = { &a.w1[n], &a.w2[n], &a.w3[n] }, *from[3] = { &b.w1[n], &b.w2[n], &b.w3[n] };
        for (int i = 0; i < 3; i++) {
            d->ops->put(d, (void *)(uintptr_t)to[i]->side[PAIR_GPU].data, from[i]->data, bytes);
            d->ops->put(d, (void *)(uintptr_t)to[i]->side[PAIR_GPU].scale, from[i]->scale, scales);
        }
    }
    pair_weight_new(p, LF_BF16, 8, 8, 0, 0);
    memcpy(a.x, b.x, 4 * (size_t)(b.tokens * s->hidden));
    prepare(p, &a);
    float *now = run(p, PAIR_GPU, &a, counts[1]);
    TAP_CHECK(memcmp(now, of_b, all) == 0 && memcmp(now, of_a, all) != 0,
              "what was expanded of other bytes is forgotten");
    pair_sync(p, "experts");
    pair_clear(p);
}

static void prepared_experts(const lf_model *m)
{
    pair p;

    pair_open(&p, m, LF_RELEASED, 2);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (shapes[i].type == LF_I8)
            prepared(&p, &shapes[i]);
    replaced(&p, &shapes[3]);
    pair_close(&p);
}

static void route(pair *p, int64_t m, int hashed)
{
    const lf_model *x = &p->model;
    int64_t n = m * x->experts_per_tok, vocab = 50;
    pair_weight gate = pair_weight_new(p, LF_BF16, x->experts, x->hidden, 0, 0);
    float *y = pair_values(p, m * x->hidden), *bias = pair_values(p, x->experts), *weight[PAIR_SIDES];
    int64_t *table = pair_host(p, 8 * (size_t)(vocab * x->experts_per_tok));
    uint32_t *ids = pair_host(p, 4 * (size_t)m);
    int32_t *expert[PAIR_SIDES];

    for (int64_t i = 0; i < vocab * x->experts_per_tok; i++)
        table[i] = pair_random(p) % (uint32_t)x->experts;
    for (int64_t i = 0; i < m; i++)
        ids[i] = pair_random(p) % (uint32_t)vocab;
    for (int s = 0; s < PAIR_SIDES; s++) {
        lf_route r = { .expert = pair_device(p, s, 4 * (size_t)n), .weight = pair_device(p, s, 4 * (size_t)n),
                       .y = pair_act(p, s, y, m * x->hidden), .m = m, .gate = &gate.side[s] };
        if (hashed) {
            r.tid2eid = pair_put(p, s, table, 8 * (size_t)(vocab * x->experts_per_tok));
            r.ids = pair_put(p, s, ids, 4 * (size_t)m);
        } else
            r.bias = pair_put(p, s, bias, 4 * (size_t)x->experts);
        p->dev[s]->ops->route(p->dev[s], &r);
        expert[s] = pair_host(p, 4 * (size_t)n);
        p->dev[s]->ops->get(p->dev[s], expert[s], r.expert, 4 * (size_t)n);
        weight[s] = pair_get(p, s, r.weight, n, 1);
    }
    double off = pair_worst(weight[0], weight[1], m, x->experts_per_tok, x->experts_per_tok);
    TAP_CHECK(memcmp(expert[0], expert[1], 4 * (size_t)n) == 0, "%s, %d rows: the experts, best first",
              hashed ? "hash layer" : "learned layer", (int)m);
    TAP_CHECK(off <= 1e-5, "  and their weights: off by %.2g, at most 1e-5", off);
    pair_sync(p, "route");
    pair_clear(p);
}

static void combine(pair *p, int64_t m)
{
    enum { K = 6 };
    int64_t h = p->model.hidden;
    float *z = pair_values(p, m * K * h), *shared = pair_values(p, m * h), *y[PAIR_SIDES];
    int32_t *slot = pair_host(p, 4 * (size_t)(m * K));

    for (int64_t i = 0; i < m * K; i++)
        slot[i] = (int32_t)(m * K - 1 - i);
    for (int s = 0; s < PAIR_SIDES; s++) {
        lf_act *out = pair_device(p, s, p->dev[s]->act_bytes * (size_t)(m * h));
        p->dev[s]->ops->combine(p->dev[s], out, pair_act(p, s, z, m * K * h),
                                pair_put(p, s, slot, 4 * (size_t)(m * K)), K, pair_act(p, s, shared, m * h), m);
        y[s] = pair_get(p, s, out, m * h, 0);
    }
    for (int64_t i = 0; p->bf16 && i < m * h; i++)
        y[PAIR_CPU][i] = lf_round_bf16(y[PAIR_CPU][i]);
    TAP_CHECK(memcmp(y[0], y[1], 4 * (size_t)(m * h)) == 0, "combine, rows of %d: the same bits", (int)h);
    pair_sync(p, "combine");
    pair_clear(p);
}

static void small_ones(const lf_model *base, int act_bytes, int64_t hidden, int chosen, int among)
{
    lf_model m = *base;
    pair p;

    m.hidden = hidden;
    m.experts = among;
    m.experts_per_tok = chosen;
    pair_open(&p, &m, LF_EXACT, act_bytes);
    route(&p, 301, 0);
    route(&p, 3, 1);
    combine(&p, 77);
    pair_close(&p);
}

int main(void)
{
    lf_model m = { .vocab = 100, .hc = 4, .index_dim = 32, .routed_scale = 1.5f };

    if (!pair_gpu("experts"))
        return tap_done();
    small_ones(&m, 4, 96, 2, 7);
    small_ones(&m, 2, 1024, 6, 256);
    small_ones(&m, 2, 77, 3, 33);
    all_experts(&m, LF_EXACT, 4, 3e-5);
    all_experts(&m, LF_EXACT, 2, 1e-2);
    all_experts(&m, LF_RELEASED, 2, 3e-2);
    all_ways(&m, LF_EXACT, 1e-2);
    all_ways(&m, LF_RELEASED, 3e-2);
    prepared_experts(&m);
    return tap_done();
}
