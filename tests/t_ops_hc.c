/* SPDX-License-Identifier: Apache-2.0
 *
 * The hyper-connections: hc_pre, hc_post, hc_head.
 */
#include "ops.h"

static lf_hc weights(ops_run *r)
{
    lf_hc h = { .fn = ops_weight(r, "fn", 0), .scale = ops_put_floats(r, "scale"),
                .base = ops_put_floats(r, "base") };

    return h;
}

/* A row is y and then mix. */
static void pre(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t D = r->model.hidden, n = r->model.hc, mixes = n + n * n;
    lf_hc h = weights(r);
    lf_act *y = ops_new_act(r, m * D);
    float *mix = ops_device(r, (size_t)(m * mixes) * 4), *o = (float *)(void *)out;
    float *hy = ops_host(r, (size_t)(m * D) * 4), *hm = ops_host(r, (size_t)(m * mixes) * 4);

    r->dev->ops->hc_pre(r->dev, y, mix, ops_gather(r, "x", 1, rows, m), m, &h, ops_put_floats(r, "norm"));
    ops_get_act(r, hy, y, m * D);
    ops_get_raw(r, hm, mix, (size_t)(m * mixes) * 4);
    for (int64_t i = 0; i < m; i++) {
        memcpy(o + i * (D + mixes), hy + i * D, (size_t)D * 4);
        memcpy(o + i * (D + mixes) + D, hm + i * mixes, (size_t)mixes * 4);
    }
}

static void judge_pre(ops_run *r, const uint8_t *out, int64_t m)
{
    int64_t D = r->model.hidden, mixes = r->model.hc + r->model.hc * r->model.hc;
    const float *o = (const float *)(const void *)out;
    float *y = ops_host(r, (size_t)(m * D) * 4), *mix = ops_host(r, (size_t)(m * mixes) * 4);

    for (int64_t i = 0; i < m; i++) {
        memcpy(y + i * D, o + i * (D + mixes), (size_t)D * 4);
        memcpy(mix + i * mixes, o + i * (D + mixes) + D, (size_t)mixes * 4);
    }
    ops_compare(r, "y", y, 1, (ops_tol){ 2e-6, 2, 0.01 });
    ops_compare(r, "mix", mix, 0, (ops_tol){ 4e-6, 0, 0 });
}

static void post(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    lf_act *x = ops_gather(r, "x", 1, rows, m);

    r->dev->ops->hc_post(r->dev, x, ops_gather(r, "z", 1, rows, m), ops_gather_raw(r, "mix", 1, 4, rows, m),
                         m);
    ops_get_act(r, (float *)(void *)out, x, m * r->model.hc * r->model.hidden);
}

static void head(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    lf_hc h = weights(r);
    lf_act *y = ops_new_act(r, m * r->model.hidden);

    r->dev->ops->hc_head(r->dev, y, ops_gather(r, "x", 1, rows, m), m, &h, ops_put_floats(r, "norm"));
    ops_get_act(r, (float *)(void *)out, y, m * r->model.hidden);
}

static void judge_one(ops_run *r, const uint8_t *out, int64_t m)
{
    (void)m;
    ops_compare(r, "y", (const float *)(const void *)out, 1,
                ops_is(r, "hc_head") ? (ops_tol){ 2e-6, 2, 0.01 } : (ops_tol){ 5e-7, 1, 0.005 });
}

int main(void)
{
    ops_file f;

    ops_load(&f, "hc.bin");
    for (int i = 0; i < f.cases; i++) {
        ops_run r = { .file = &f, .n = i };
        ops_model(&r);
        size_t D = (size_t)r.model.hidden, n = (size_t)r.model.hc;
        int64_t m = ops_get(&r, "x")->shape[0];
        if (ops_is(&r, "hc_pre"))
            ops_check(&f, i, pre, m, (D + n + n * n) * 4, 0, judge_pre);
        else if (ops_is(&r, "hc_post"))
            ops_check(&f, i, post, m, n * D * 4, 0, judge_one);
        else
            ops_check(&f, i, head, m, D * 4, 0, judge_one);
        ops_clear(&r);
    }
    ops_unload(&f);
    return tap_done();
}
