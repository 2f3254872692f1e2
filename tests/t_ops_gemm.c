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

/* Exact numerics: columns in 4 parts, whole, have the bits of 4 products with column slices added as halves. */
static void parts(const ops_file *f, int n_case)
{
    ops_run r = { .file = f, .n = n_case, .suffix = 'e' };
    ops_model(&r);
    ops_open(&r, 2);
    int64_t m = ops_opt(&r, 5), ldx = ops_opt(&r, 6);
    lf_weight w = ops_weight(&r, "w", ops_opt(&r, 0));
    int64_t k = w.cols, n = w.rows, size = m * n;
    float *sum[4], *whole = ops_host(&r, (size_t)size * 4);
    lf_act *x = ops_put_act(&r, ops_floats(&r, "x"), m * ldx);
    float *y = ops_device(&r, (size_t)size * 4);
    int bad = 0;

    for (int p = 0; p < 4; p++) {
        lf_weight part = lf_weight_cols(w, p * (k / 4), k / 4);
        lf_gemm g = { .x = lf_act_at(r.dev, x, p * (k / 4)), .m = m, .ldx = ldx, .w = &part, .out = y,
            .ldo = n,
            .kind = LF_OUT_F32 };
        sum[p] = ops_host(&r, (size_t)size * 4);
        r.dev->ops->gemm(r.dev, &g);
        ops_get_raw(&r, sum[p], y, (size_t)size * 4);
    }
    lf_gemm g = { .x = x, .m = m, .ldx = ldx, .w = &w, .out = y, .ldo = n, .kind = LF_OUT_F32, .parts = 4 };
    r.dev->ops->gemm(r.dev, &g);
    ops_get_raw(&r, whole, y, (size_t)size * 4);
    for (int64_t i = 0; i < size; i++) {
        float a = sum[0][i] + sum[1][i], b = sum[2][i] + sum[3][i];
        bad += lf_f32_bits(whole[i]) != lf_f32_bits(a + b);
    }
    TAP_CHECK(bad == 0, "gemm, case %d, kind %d: 4 parts add up to the bits of 4 column slices", n_case,
              (int)ops_opt(&r, 0));
    ops_compare(&r, "y", whole, 0, (ops_tol){ 1e-6, 0, 0 });
    ops_close(&r);
}

int main(void)
{
    ops_file f;

    ops_load(&f, "gemm.bin");
    for (int i = 0; i < f.cases; i++) {
        ops_run r = { .file = &f, .n = i };
        ops_model(&r);
        if (ops_is(&r, "gemm") && ops_opt(&r, 2) == ops_opt(&r, 10) && ops_opt(&r, 4) == ops_opt(&r, 11)
            && ops_opt(&r, 7) == ops_opt(&r, 2) && ops_opt(&r, 4) % 64 == 0)
            parts(&f, i);
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
