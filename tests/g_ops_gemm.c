/* SPDX-License-Identifier: Apache-2.0
 *
 * On the GPU: gemm with every stored format, slices, strides, parts; the bytes that memory operations move.
 *
 * Every value lies within the bound that g_bound.h derives for its sum, against float64 on the same codes.  Beside
 * that, against the CPU, which is tighter.  Float32: 1e-5 of the row's largest value, measured.  bf16 activations,
 * nothing quantised: exact products, float32 sums, one rounding, 2^-8 of a value and so of a row at most (exact: the
 * reference has none; released: no more than 0.5 % of the values fall on different sides, a step apart).  Released,
 * quantised: codes and scales are the same on both sides and products exact, but the tensor cores keep 13 bits below
 * the largest term; 1.5e-3 of the row was measured, output rounding included, so 4e-3.
 */
#include "g_kernels.h"

#include "g_bound.h"

enum { ROW0, ROWS, COL0, COLS, LDX, LDO, F32, PLAIN, PARTS, KIND };    /* opt; the weight is number 0 */

static void gemm(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t n = r->opt[ROWS], ldx = r->opt[LDX], ldo = r->opt[LDO], size = r->opt[F32] ? 4 : (int64_t)d->act_bytes;
    lf_weight w = lf_weight_cols(lf_weight_rows(*g_weight_on(r, d, 0), r->opt[ROW0], n), r->opt[COL0], r->opt[COLS]);
    void *y = g_new(r, d, (size_t)(m * ldo * size));
    float *back = lf_alloc((size_t)(m * ldo) * 4 + 4);
    lf_gemm g = { .x = g_act(r, d, (const float *)r->in[0] + first * ldx, m * ldx), .m = m, .ldx = ldx, .w = &w,
                  .out = y, .ldo = ldo, .kind = r->opt[F32] ? LF_OUT_F32 : LF_OUT_ACT, .plain = (int)r->opt[PLAIN],
                  .parts = (int)r->opt[PARTS] };
    int touched = 0;

    d->ops->gemm(d, &g);
    if (r->opt[F32])
        g_get(d, back, y, (size_t)(m * ldo) * 4);
    else
        g_get_act(d, back, y, m * ldo);
    for (int64_t i = 0; i < m; i++) {
        memcpy(out + i * n, back + i * ldo, (size_t)n * 4);
        for (int64_t j = n; j < ldo; j++)
            touched += !isnan(back[i * ldo + j]);
    }
    if (touched)
        TAP_CHECK(0, "gemm wrote between the rows of its output");
    free(back);
}

static g_tol tolerance(const g_run *r)
{
    int fp8 = r->opt[KIND] >= G_E4M3 && !r->opt[PLAIN] && r->numerics == LF_RELEASED;

    if (fp8)
        return (g_tol){ 4e-3, 1, 1, 4e-3 };
    if (r->act == 4 || r->opt[F32])
        return (g_tol){ 1e-5, 0, 0, 1e-5 };
    return r->numerics == LF_EXACT ? (g_tol){ 1e-5, 1, 1, 4e-3 }       /* the exact CPU does not round */
                                   : (g_tol){ 1e-5, 1, 0.005, 4e-3 };      /* a short row's largest, 2^-8 off */
}

/* The kernels that can do the product at hand: by the weight's whole columns, and what is asked. */
static unsigned fitting(const g_run *r, int64_t all_cols)
{
    const int64_t *o = r->opt;
    int parts = o[PARTS] > 1 && r->act == 4, blocks = o[ROW0] % 128 == 0 && o[COL0] % 128 == 0;
    int sizes = o[ROWS] >= 128 && o[ROWS] % 8 == 0 && o[COLS] >= 128 && o[COLS] % 16 == 0 && all_cols % 16 == 0;

    if (parts)
        return 1u << LF_GEMM_PARTS;
    if (r->numerics == LF_RELEASED && !o[PLAIN] && o[KIND] == G_E4M3 && blocks && sizes)
        return 1u << LF_GEMM_PLAIN | 1u << LF_GEMM_FP8;
    return 1u << LF_GEMM_PLAIN;
}

static void bounds(g_run *r, gb_way way)
{
    int64_t n = r->opt[ROWS];
    lf_weight w = lf_weight_cols(lf_weight_rows(r->weight[0][0], r->opt[ROW0], n), r->opt[COL0], r->opt[COLS]);
    float *got = lf_alloc((size_t)(r->rows * n) * 4);
    gb_product p = { .x = r->in[0], .got = got, .m = r->rows, .ldx = r->opt[LDX], .ldo = n, .w = &w, .way = way,
                     .quantise = r->numerics == LF_RELEASED && !r->opt[PLAIN] && gb_quantised(&w),
                     .bf16 = r->act == 2 && !r->opt[F32] };

    gemm(r, r->gpu, 0, r->rows, got);
    g_release(r);
    gb_report(gb_judge(&p));
    free(got);
}

static void product(g_run *r, const char *name, int64_t rows, int64_t cols, const int64_t *opt)
{
    static const char *const kind[] = { "f32", "bf16", "e4m3", "e2m1", "e2m1, wide" };
    char text[96];

    memcpy(r->opt, opt, sizeof(int64_t) * 10);
    gb_way plain = r->act == 4 || r->opt[KIND] == G_F32 ? GB_FLOAT32 : GB_BF16;
    r->quantises = 1;
    g_weight(r, (g_kind)r->opt[KIND], rows, cols);
    r->in[0] = g_values(r, r->rows * r->opt[LDX], 1);
    unsigned fits = fitting(r, cols);
    if (r->narrow)
        g_ask(r, LF_CHOICE_GEMM, LF_GEMM_FP8);
    snprintf(text, sizeof text, "gemm %s, %s [%lld, %lld]%s", name, kind[r->opt[KIND]], (long long)rows,
             (long long)cols, r->opt[F32] ? ", float32 out" : "");
    g_check(r, text, gemm, r->rows, r->opt[ROWS], tolerance(r));
    bounds(r, fits >> LF_GEMM_FP8 ? GB_FP8 : plain);
    if (fits >> LF_GEMM_FP8 && !r->narrow) {
        g_ask(r, LF_CHOICE_GEMM, LF_GEMM_PLAIN);
        g_check(r, text, gemm, r->rows, r->opt[ROWS], tolerance(r));
        bounds(r, plain);
    }
    g_refused(r, LF_CHOICE_GEMM, fits, text, gemm, r->opt[ROWS]);
    g_forget(r);
}

static void products(g_run *r)
{
    const lf_model *m = &r->model;
    int64_t d = m->hidden, q = m->q_rank, wide = (int64_t)m->heads * m->head_dim, small = lf_min(wide, 4096);
    int64_t group = wide / m->o_groups, o = m->o_rank;

    for (int64_t k = G_F32; k <= G_FP4_WIDE; k++)
        for (int64_t f32 = 0; f32 < 2; f32++) {
            product(r, "whole", q, d, (int64_t[]){ 0, q, 0, d, d, q, f32, 0, 0, k });
            product(r, "strided", 96, d, (int64_t[]){ 0, 96, 0, d, d + 32, 96 + 40, f32, 0, 0, k });
        }
    for (int64_t k = G_BF16; k <= G_E4M3; k++) {
        product(r, "odd rows", 83, d, (int64_t[]){ 0, 83, 0, d, d, 83, 0, 0, 0, k });
        product(r, "a range of rows", 2 * q, d, (int64_t[]){ q, q, 0, d, d, q, 0, 0, 0, k });
        product(r, "a range of columns", q, 2 * d, (int64_t[]){ 0, q, d, d, d, q, 1, 0, 0, k });
        product(r, "columns from inside a scale on", q, 2 * d, (int64_t[]){ 0, q, 32, d, d, q, 1, 0, 0, k });
        product(r, "two parts", q, d, (int64_t[]){ 0, q, 0, d, d, q, 0, 1, 2, k });
        product(r, "a group of wo_a, plain", o * m->o_groups, group,
                (int64_t[]){ o, o, 0, group, wide, o * m->o_groups, 0, 1, 0, k });
        product(r, "wq_b", small, q, (int64_t[]){ 0, small, 0, q, q, small, 0, 0, 0, k });
    }
}

/* Bytes, moved about: every one must arrive. */
static void memory(g_run *r)
{
    enum { N = 1 << 20 };
    lf_dev *d = r->gpu;
    uint8_t *h = g_keep(r, 5 * N), *back = g_keep(r, 5 * N);
    int32_t *idx = g_keep(r, 4 * 999);
    int bad = 0;

    for (int64_t i = 0; i < 5 * N; i++)
        h[i] = (uint8_t)(g_next(r) >> 13);
    uint8_t *a = g_put(r, d, h, 5 * N), *b = g_new(r, d, 5 * N);
    d->ops->copy(d, b, a + 3, N);
    g_get(d, back, b, N);
    TAP_CHECK(memcmp(back, h + 3, N) == 0, "put, copy and get move every byte");
    d->ops->fill(d, b, 0x5a, 5 * N);
    d->ops->copy_rows(d, b + 1, 37, a + 2, 101, 29, 999);
    d->ops->copy_rows(d, b, 37, a, 101, 29, 0);
    g_get(d, back, b, 999 * 37 + 64);
    for (int64_t i = 0; i < 999; i++)
        for (int64_t j = 0; j < 37; j++)
            bad += back[1 + i * 37 + j] != (j < 29 ? h[2 + i * 101 + j] : 0x5a);
    TAP_CHECK(bad == 0 && back[0] == 0x5a, "copy_rows and fill");
    for (int i = 0; i < 999; i++)
        idx[i] = (int32_t)g_below(r, 1000);
    const int32_t *di = g_put(r, d, idx, 4 * 999);
    for (size_t bytes = 1; bytes < 5000; bytes = bytes * 3 + bytes % 2 + 1) {
        bad = 0;
        d->ops->gather(d, b, a, di, 999, bytes);
        d->ops->gather(d, b, a, di, 0, bytes);
        g_get(d, back, b, 999 * bytes);
        for (size_t i = 0; i < 999; i++)
            bad += memcmp(back + i * bytes, h + (size_t)idx[i] * bytes, bytes) != 0;
        TAP_CHECK(bad == 0, "gather of rows of %d bytes", (int)bytes);
    }
    g_forget(r);
}

/* Of seven rows four go straight to the output and three through padding; columns are a number of whole groups of 128,
 * more than a block quantises, or end within one; the scales lie as the product wants them, or do not. */
static void released_kernel(g_run *r)
{
    int64_t d = r->model.hidden, q = r->model.q_rank;

    r->rows = 7;
    for (int64_t f32 = 0; f32 < 2; f32++) {
        product(r, "whole", q, d, (int64_t[]){ 0, q, 0, d, d, q, f32, 0, 0, G_E4M3 });
        product(r, "ragged", 200, 400, (int64_t[]){ 0, 200, 0, 400, 432, 236, f32, 0, 0, G_E4M3 });
        product(r, "a range of columns", q, 2 * d, (int64_t[]){ 0, q, d, d, d, q, f32, 0, 0, G_E4M3 });
    }
}

static void all(g_run *r)
{
    if (r->narrow) {
        released_kernel(r);
        return;
    }
    memory(r);
    products(r);
}

int main(void)
{
    return g_main("products on the GPU", all);
}
