/* SPDX-License-Identifier: Apache-2.0
 *
 * route, experts, combine.
 */
#include "ops.h"

/* opt: hashed, kind.  A row is K expert ids and their K weights, by ascending id. */
static void route(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t K = r->model.experts_per_tok;
    lf_weight gate = ops_weight(r, "w", ops_opt(r, 1));
    int32_t *expert = ops_device(r, (size_t)(m * K) * 4), *he = ops_host(r, (size_t)(m * K) * 4);
    float *weight = ops_device(r, (size_t)(m * K) * 4), *hw = ops_host(r, (size_t)(m * K) * 4);
    lf_route a = { .expert = expert, .weight = weight, .y = ops_gather(r, "y", 1, rows, m), .m = m,
        .gate = &gate };

    if (ops_opt(r, 0)) {
        const ops_entry *e = ops_get(r, "tid2eid");
        a.tid2eid = ops_put(r, e->data, (size_t)e->count * 8);
        a.ids = ops_gather_raw(r, "ids", 1, 4, rows, m);
    } else {
        a.bias = ops_put_floats(r, "bias");
    }
    r->dev->ops->route(r->dev, &a);
    ops_get_raw(r, he, expert, (size_t)(m * K) * 4);
    ops_get_raw(r, hw, weight, (size_t)(m * K) * 4);
    for (int64_t i = 0; i < m; i++) {
        int32_t *o = (int32_t *)(void *)out + i * 2 * K;
        for (int64_t j = 0; j < K; j++) {
            int64_t place = 0;
            for (int64_t l = 0; l < K; l++)
                place += he[i * K + l] < he[i * K + j] || (he[i * K + l] == he[i * K + j] && l < j);
            o[place] = he[i * K + j];
            memcpy(o + K + place, hw + i * K + j, 4);
        }
    }
}

static void judge_route(ops_run *r, const uint8_t *out, int64_t m)
{
    int64_t K = r->model.experts_per_tok;
    const ops_entry *e = ops_get(r, r->suffix == 'e' ? "expert.e" : "expert.r");
    float *w = ops_host(r, (size_t)(m * K) * 4);
    int bad = 0;

    for (int64_t i = 0; i < m; i++) {
        TAP_QUIET(bad, memcmp(out + i * 2 * K * 4, e->data + i * K * 4, (size_t)K * 4) == 0,
                  "experts of row %d", (int)i);
        memcpy(w + i * K, out + (i * 2 * K + K) * 4, (size_t)K * 4);
    }
    TAP_CHECK(bad == 0, "route, case %d, %s: experts", r->n, ops_opt(r, 0) ? "by token id" : "learned");
    ops_compare(r, "weight", w, 0, (ops_tol){ 2e-6, 0, 0 });
}

/* opt: kind, experts, clamp.  Rows are pairs in the case's order; whatever is asked for is sorted by expert. */
static void experts(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t n = ops_opt(r, 1), D = r->model.hidden, at = 0, *of = ops_host(r, (size_t)(m + 1) * 8);
    int64_t *first = ops_host(r, (size_t)(n + 1) * 8), bounds[16];
    int32_t *src = ops_host(r, (size_t)(m + 1) * 4);
    float *weight = ops_host(r, (size_t)(m + 1) * 4), *back = ops_host(r, (size_t)(m * D) * 4);
    const float *w = ops_floats(r, "weight");
    lf_weight *w1 = ops_host(r, (size_t)n * sizeof *w1), *w2 = ops_host(r, (size_t)n * sizeof *w2);
    lf_weight *w3 = ops_host(r, (size_t)n * sizeof *w3);
    lf_act *y = ops_new_act(r, m * D);
    char name[16];

    memcpy(bounds, ops_get(r, "first")->data, (size_t)(n + 1) * 8);
    for (int64_t e = 0; e < n; e++) {
        snprintf(name, sizeof name, "w1.%d", (int)e);
        w1[e] = ops_weight(r, name, ops_opt(r, 0));
        name[1] = '2';
        w2[e] = ops_weight(r, name, ops_opt(r, 0));
        name[1] = '3';
        w3[e] = ops_weight(r, name, ops_opt(r, 0));
        first[e] = at;
        for (int64_t i = 0; i < m; i++)
            if (rows[i] >= bounds[e] && rows[i] < bounds[e + 1]) {
                memcpy(&src[at], ops_get(r, "src")->data + rows[i] * 4, 4);
                weight[at] = w[rows[i]];
                of[at++] = i;
            }
    }
    first[n] = at;
    lf_experts a = { .out = y, .x = ops_put_act(r, ops_floats(r, "x"), ops_get(r, "x")->count),
        .src = ops_put(r, src, (size_t)m * 4), .weight = ops_put(r, weight, (size_t)m * 4), .first = first,
        .experts = (int)n, .w1 = w1, .w2 = w2, .w3 = w3, .limit = ops_opt(r, 2) ? r->model.swiglu_limit : 0 };
    r->dev->ops->experts(r->dev, &a);
    ops_get_act(r, back, y, m * D);
    for (int64_t i = 0; i < m; i++)
        memcpy(out + of[i] * D * 4, back + i * D, (size_t)D * 4);
}

/* No near-ties before the last rounding among these inputs, so released values are off by one step at most. */
static void judge_experts(ops_run *r, const uint8_t *out, int64_t m)
{
    (void)m;
    ops_compare(r, "y", (const float *)(const void *)out, 1, (ops_tol){ 2e-6, 1, 0.005 });
}

static void combine(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t D = r->model.hidden, K = ops_opt(r, 0);
    const ops_entry *z = ops_get(r, "z");
    lf_act *y = ops_new_act(r, m * D);

    r->dev->ops->combine(r->dev, y, ops_put_act(r, ops_floats(r, "z"), z->count),
                         ops_gather_raw(r, "slot", K, 4, rows, m),
                         (int)K, ops_gather(r, "shared", 1, rows, m), m);
    ops_get_act(r, (float *)(void *)out, y, m * D);
}

static void judge_combine(ops_run *r, const uint8_t *out, int64_t m)
{
    (void)m;
    ops_compare(r, "y", (const float *)(const void *)out, 1, (ops_tol){ 5e-7, 1, 0.005 });
}

int main(void)
{
    ops_file f;

    ops_load(&f, "moe.bin");
    for (int i = 0; i < f.cases; i++) {
        ops_run r = { .file = &f, .n = i };
        ops_model(&r);
        if (ops_is(&r, "route"))
            ops_check(&f, i, route, ops_get(&r, "y")->shape[0], (size_t)r.model.experts_per_tok * 8, 0,
                      judge_route);
        else if (ops_is(&r, "experts"))
            ops_check(&f, i, experts, ops_get(&r, "src")->count, (size_t)r.model.hidden * 4, 0, judge_experts);
        else
            ops_check(&f, i, combine, ops_get(&r, "shared")->shape[0], (size_t)r.model.hidden * 4, 0,
                      judge_combine);
        ops_clear(&r);
    }
    ops_unload(&f);
    return tap_done();
}
