/* SPDX-License-Identifier: Apache-2.0
 *
 * index_topk: the choice is exact, ties and NaN included; logits_topk; logprob.
 */
#include "ops.h"

/* A row is k chosen entries and their k scores (0 beside -1).  Every other call asks for no scores. */
static void topk(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t k = ops_opt(r, 0), b = m ? rows[0] : 0, each = ops_row(ops_get(r, "q"));
    const float *q = ops_floats(r, "q"), *w = ops_floats(r, "w");
    const ops_entry *keys = ops_get(r, "keys");
    int32_t *sel = ops_device(r, (size_t)(m * k) * 4), *hs = ops_host(r, (size_t)(m * k) * 4);
    float *score = ops_device(r, (size_t)(m * k) * 4), *hf = ops_host(r, (size_t)(m * k) * 4);
    lf_topk t = { .sel = sel, .score = score, .q = ops_put_act(r, q + b * each, m * each),
        .w = ops_put(r, w + b * r->model.index_heads, (size_t)(m * r->model.index_heads) * 4), .queries = m,
        .pos0 = ops_opt(r, 1) + b, .keys = ops_put_act(r, ops_floats(r, "keys"), keys->count),
        .row_first = ops_opt(r, 2), .row_count = keys->shape[0], .k = (int)k };

    r->dev->ops->index_topk(r->dev, &t);
    ops_get_raw(r, hs, sel, (size_t)(m * k) * 4);
    ops_get_raw(r, hf, score, (size_t)(m * k) * 4);
    for (int64_t i = 0; i < m; i++) {
        int32_t *o = (int32_t *)(void *)out + i * 2 * k;
        memcpy(o, hs + i * k, (size_t)k * 4);
        for (int64_t j = 0; j < k; j++)
            if (hs[i * k + j] >= 0)
                memcpy(o + k + j, hf + i * k + j, 4);
            else
                memset(o + k + j, 0, 4);
    }
    t.score = NULL;
    r->dev->ops->fill(r->dev, sel, 0x11, (size_t)(m * k) * 4);
    r->dev->ops->index_topk(r->dev, &t);
    int32_t *again = ops_host(r, (size_t)(m * k) * 4);
    ops_get_raw(r, again, sel, (size_t)(m * k) * 4);
    if (memcmp(again, hs, (size_t)(m * k) * 4) != 0)
        TAP_CHECK(0, "index_topk, case %d: the choice depends on whether scores are asked for", r->n);
}

static void judge_topk(ops_run *r, const uint8_t *out, int64_t m)
{
    int64_t k = ops_opt(r, 0);
    const float *score = ops_floats(r, "score");
    int bad = 0, off = 0;
    double top = 0;

    for (int64_t i = 0; i < m * k; i++)
        top = isfinite(score[i]) ? fmax(top, fabs((double)score[i])) : top;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < k; j++) {
            int32_t got, want;
            float f, s = score[i * k + j];
            memcpy(&got, out + (i * 2 * k + j) * 4, 4);
            memcpy(&f, out + (i * 2 * k + k + j) * 4, 4);
            memcpy(&want, ops_get(r, "sel")->data + (i * k + j) * 4, 4);
            TAP_QUIET(bad, got == want, "query %d place %d: got %d, expected %d", (int)i, (int)j, got, want);
            TAP_QUIET(off, ops_near(f, s, 2e-6 * top, 0), "query %d place %d: score %.9g, expected %.9g",
                      (int)i, (int)j,
                      (double)f, (double)s);
        }
    TAP_CHECK(bad == 0, "index_topk, case %d: the chosen entries", r->n);
    TAP_CHECK(off == 0, "  and their scores");
}

/* Rows are queries; the lists of all parts are gathered for them. */
static void topk_merge(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    const ops_entry *e = ops_get(r, "cand");
    int64_t parts = e->shape[0], all = e->shape[1], k = e->shape[2];
    const float *score = ops_floats(r, "score");
    int32_t *c = ops_host(r, (size_t)(parts * m * k) * 4), *sel = ops_device(r, (size_t)(m * k) * 4);
    float *s = ops_host(r, (size_t)(parts * m * k) * 4);

    for (int64_t p = 0; p < parts; p++)
        for (int64_t i = 0; i < m; i++) {
            memcpy(c + (p * m + i) * k, e->data + (p * all + rows[i]) * k * 4, (size_t)k * 4);
            memcpy(s + (p * m + i) * k, score + (p * all + rows[i]) * k, (size_t)k * 4);
        }
    r->dev->ops->topk_merge(r->dev, sel, ops_put(r, c, (size_t)(parts * m * k) * 4),
                            ops_put(r, s, (size_t)(parts * m * k) * 4), (int)parts, m, (int)k);
    ops_get_raw(r, out, sel, (size_t)(m * k) * 4);
}

static void judge_merge(ops_run *r, const uint8_t *out, int64_t m)
{
    const ops_entry *e = ops_get(r, "sel");

    TAP_CHECK(memcmp(out, e->data, (size_t)(m * e->shape[1]) * 4) == 0, "topk_merge, case %d", r->n);
}

/* A row is k ids and their k values, then the log probability. */
static void logits(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t k = ops_opt(r, 0), v = ops_get(r, "x")->shape[1], width = 2 * k + 1;
    float *x = ops_gather_raw(r, "x", 1, 4, rows, m), *h = ops_host(r, (size_t)(m * v) * 4);
    const float *shift = ops_floats(r, "shift");
    int32_t *ids = ops_device(r, (size_t)(m * k) * 4), *hi = ops_host(r, (size_t)(m * k) * 4);
    float *value = ops_device(r, (size_t)(m * k) * 4), *hv = ops_host(r, (size_t)(m * k) * 4);
    float *p = ops_device(r, (size_t)m * 4), *hp = ops_host(r, (size_t)m * 4);

    r->dev->ops->logits_topk(r->dev, ids, value, x, m, v, (int)k);
    ops_get_raw(r, hi, ids, (size_t)(m * k) * 4);
    ops_get_raw(r, hv, value, (size_t)(m * k) * 4);
    ops_get_raw(r, h, x, (size_t)(m * v) * 4);
    for (int64_t i = 0; i < m * v; i++)                        /* far from zero: exp alone would overflow */
        h[i] += shift[rows[i / v]];
    r->dev->ops->logprob(r->dev, p, ops_put(r, h, (size_t)(m * v) * 4), ops_gather_raw(r, "next", 1, 4, rows,
                                                                                       m), m, v);
    ops_get_raw(r, hp, p, (size_t)m * 4);
    for (int64_t i = 0; i < m; i++) {
        memcpy(out + (size_t)(i * width) * 4, hi + i * k, (size_t)k * 4);
        memcpy(out + (size_t)(i * width + k) * 4, hv + i * k, (size_t)k * 4);
        memcpy(out + (size_t)(i * width + 2 * k) * 4, hp + i, 4);
    }
}

static void judge_logits(ops_run *r, const uint8_t *out, int64_t m)
{
    int64_t k = ops_opt(r, 0), width = 2 * k + 1;
    const float *value = ops_floats(r, "value"), *lp = ops_floats(r, "logprob");
    int bad = 0;

    for (int64_t i = 0; i < m; i++) {
        float p;
        TAP_QUIET(bad, memcmp(out + i * width * 4, ops_get(r, "ids")->data + i * k * 4, (size_t)k * 4) == 0,
                  "ids of row %d", (int)i);
        TAP_QUIET(bad, memcmp(out + (i * width + k) * 4, value + i * k, (size_t)k * 4) == 0,
                  "values of row %d", (int)i);
        memcpy(&p, out + (i * width + 2 * k) * 4, 4);
        /* logits of up to 900 are themselves rounded to 2^-15 by the shift */
        TAP_QUIET(bad, fabs((double)p - (double)lp[i]) <= 1e-4, "logprob of row %d: got %.9g, expected %.9g",
                  (int)i, (double)p,
                  (double)lp[i]);
    }
    TAP_CHECK(bad == 0, "logits_topk and logprob, case %d", r->n);
}

static void logprob_sharp(void)
{
    ops_file f;
    ops_load(&f, "topk.bin");
    ops_run r = { .file = &f, .n = 0, .suffix = 'e' };
    float x[4] = { 0, 1, 2, 3 }, p;
    uint32_t next = 1;

    ops_model(&r);
    ops_open(&r, 1);
    float *o = ops_device(&r, 4);
    r.dev->ops->logprob(r.dev, o, ops_put(&r, x, sizeof x), ops_put(&r, &next, 4), 1, 4);
    ops_get_raw(&r, &p, o, 4);
    TAP_NEAR(p, -2.4401896985611953, 2e-7, "log softmax of 0 1 2 3 at 1");
    ops_close(&r);
    ops_unload(&f);
}

int main(void)
{
    ops_file f;

    ops_load(&f, "topk.bin");
    for (int i = 0; i < f.cases; i++) {
        ops_run r = { .file = &f, .n = i };
        ops_model(&r);
        if (ops_is(&r, "index_topk"))
            ops_check(&f, i, topk, ops_get(&r, "q")->shape[0], (size_t)ops_opt(&r, 0) * 8, 1, judge_topk);
        else if (ops_is(&r, "topk_merge"))
            ops_check(&f, i, topk_merge, ops_get(&r, "cand")->shape[1], (size_t)ops_opt(&r, 0) * 4, 0, judge_merge);
        else
            ops_check(&f, i, logits, ops_get(&r, "x")->shape[0], (size_t)ops_opt(&r, 0) * 8 + 4, 0,
                      judge_logits);
        ops_clear(&r);
    }
    ops_unload(&f);
    logprob_sharp();
    return tap_done();
}
