/* SPDX-License-Identifier: Apache-2.0
 *
 * gemm with every stored format, slices, strides; embed.
 */
#include "ops.h"

/* opt: kind, row0, rows, col0, cols, m, ldx, ldo, float32 out, plain */
static void gemm(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t n = ops_opt(r, 2), ldo = ops_opt(r, 7);
    int f32 = (int)ops_opt(r, 8);
    lf_weight w = lf_weight_cols(lf_weight_rows(ops_weight(r, "w", ops_opt(r, 0)), ops_opt(r, 1), n),
                                 ops_opt(r, 3),
                                 ops_opt(r, 4));
    float *mark = ops_host(r, (size_t)(m * ldo + 1) * 4);
    float *back = ops_host(r, (size_t)(m * ldo + 1) * 4);
    int touched = 0;

    for (int64_t i = 0; i < m * ldo; i++)
        mark[i] = -7.0f;
    void *y = f32 ? ops_put(r, mark, (size_t)(m * ldo) * 4) : ops_put_act(r, mark, m * ldo);
    lf_gemm g = { .x = ops_gather(r, "x", 1, rows, m), .m = m, .ldx = ops_opt(r, 6), .w = &w, .out = y,
        .ldo = ldo,
        .kind = f32 ? LF_OUT_F32 : LF_OUT_ACT, .plain = (int)ops_opt(r, 9) };
    r->dev->ops->gemm(r->dev, &g);
    if (f32)
        ops_get_raw(r, back, y, (size_t)(m * ldo) * 4);
    else
        ops_get_act(r, back, y, m * ldo);
    for (int64_t i = 0; i < m; i++) {
        memcpy(out + (size_t)(i * n) * 4, back + i * ldo, (size_t)n * 4);
        for (int64_t j = n; j < ldo; j++)
            touched += back[i * ldo + j] != -7.0f;
    }
    if (touched)
        TAP_CHECK(0, "gemm case %d wrote between the rows of its output", r->n);
}

static void judge_gemm(ops_run *r, const uint8_t *out, int64_t n)
{
    (void)n;
    ops_compare(r, "y", (const float *)(const void *)out, !ops_opt(r, 8), (ops_tol){ 1e-6, 1, 0.005 });
}

static void embed(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t n = r->model.hc * r->model.hidden;
    lf_weight w = ops_weight(r, "w", ops_opt(r, 0));
    lf_act *x = ops_new_act(r, m * n);

    r->dev->ops->embed(r->dev, x, ops_gather_raw(r, "ids", 1, 4, rows, m), m, &w);
    ops_get_act(r, (float *)(void *)out, x, m * n);
}

static void judge_embed(ops_run *r, const uint8_t *out, int64_t n)
{
    (void)n;
    ops_compare(r, "y", (const float *)(const void *)out, 1, (ops_tol){ 0, 0, 0 });
}

int main(void)
{
    ops_file f;

    ops_load(&f, "gemm.bin");
    for (int i = 0; i < f.cases; i++) {
        ops_run r = { .file = &f, .n = i };
        ops_model(&r);
        if (ops_is(&r, "gemm"))
            ops_check(&f, i, gemm, ops_opt(&r, 5), (size_t)ops_opt(&r, 2) * 4, 0, judge_gemm);
        else
            ops_check(&f, i, embed, ops_get(&r, "ids")->count, (size_t)(r.model.hc * r.model.hidden) * 4, 0,
                      judge_embed);
        ops_clear(&r);
    }
    ops_unload(&f);
    return tap_done();
}
