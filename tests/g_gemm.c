/* SPDX-License-Identifier: Apache-2.0
 *
 * Products, embedding and copies on the GPU against the CPU backend.
 *
 * Every value lies within the bound that g_bound.h derives for its sum, against float64 on the same codes.  Beside
 * that, the Euclidean distance of a row from the CPU's.  Float32 out of float32 or bf16 sides: 1e-5, sums of up to 4096
 * terms in two orders, measured.  bf16 out: 4e-3, one rounding of at most 2^-8 of a value (exact: the reference has
 * none; released: the two may fall on different sides, which few do).  Float32 out of fp8 products: 1e-3, measured:
 * the tensor cores keep 13 bits below the largest term.
 */
#include "gpu_pair.h"

#include "g_bound.h"

typedef struct shape {
    int64_t rows, cols;                    /* the whole weight */
    int64_t row0, n, col0, k;              /* the slice */
    int64_t pad_x, pad_out;                /* how much wider than the slice the rows are */
} shape;

static const shape shapes[] = {
    { 256, 384, 0, 256, 0, 384, 0, 0 },            /* whole blocks */
    { 1024, 4096, 0, 1024, 0, 4096, 0, 0 },        /* released size: wq_a */
    { 520, 672, 0, 520, 0, 672, 0, 0 },            /* ragged last blocks, still fp8 */
    { 512, 1024, 128, 256, 512, 512, 0, 0 },       /* a tp slice of rows and columns */
    { 512, 1024, 128, 256, 128, 896, 64, 8 },      /* scales of a slice that begins elsewhere; wide rows */
    { 512, 384, 40, 200, 0, 384, 0, 0 },           /* rows that begin inside a block */
    { 96, 160, 0, 96, 32, 64, 0, 0 },              /* small: nano */
    { 33, 96, 0, 33, 0, 96, 3, 5 },                /* odd sizes and strides */
    { 4, 64, 0, 4, 0, 64, 0, 0 },
    { 9000, 64, 0, 9000, 0, 64, 0, 0 },            /* more than one strip */
};

static const int64_t counts[] = { 1, 2, 3, 4, 5, 64, 130, 515 };

typedef struct product {
    float *x;                              /* host, [m, ldx] */
    int64_t m;
    const shape *s;
    lf_gemm_out kind;
    int plain, parts;
} product;

/* Rows row0 .. row0+m-1, on the host with the strides of the output. */
static float *multiply(pair *p, int side, const lf_weight *whole, const product *a, int64_t row0, int64_t m)
{
    const shape *s = a->s;
    int64_t ldx = s->k + s->pad_x, ldo = s->n + s->pad_out;
    lf_weight w = lf_weight_cols(lf_weight_rows(*whole, s->row0, s->n), s->col0, s->k);
    int f32 = a->kind == LF_OUT_F32;
    void *out = pair_device(p, side, (size_t)(m * ldo) * (f32 ? 4 : p->dev[side]->act_bytes));
    lf_gemm g = { .x = pair_act(p, side, a->x + row0 * ldx, m * ldx), .m = m, .ldx = ldx, .w = &w, .out = out,
                  .ldo = ldo, .kind = a->kind, .plain = a->plain, .parts = a->parts };

    p->dev[side]->ops->gemm(p->dev[side], &g);
    return pair_get(p, side, out, m * ldo, f32);
}

/* Every count of rows gives each row the bits that it has among all, and nothing is written between rows. */
static int invariant(pair *p, const lf_weight *w, const product *a, const float *all)
{
    int64_t n = a->s->n, ldo = n + a->s->pad_out;
    int bad = 0;

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t m = counts[i], row0 = m < a->m ? (a->m - m) / 2 : 0;
        if (m > a->m)
            continue;
        float *part = multiply(p, PAIR_GPU, w, a, row0, m);
        for (int64_t r = 0; r < m; r++) {
            TAP_QUIET(bad, memcmp(part + r * ldo, all + (row0 + r) * ldo, (size_t)n * 4) == 0, "row %d of %d differs",
                      (int)r, (int)m);
            for (int64_t j = n; j < ldo; j++)
                TAP_QUIET(bad, isnan(part[r * ldo + j]), "row %d of %d: something between rows", (int)r, (int)m);
        }
    }
    return bad == 0;
}

static double beyond(const pair *p, const lf_weight *whole, const product *a, const float *got)
{
    const shape *s = a->s;
    lf_numerics numerics = p->dev[PAIR_GPU]->numerics;
    lf_weight w = lf_weight_cols(lf_weight_rows(*whole, s->row0, s->n), s->col0, s->k);
    gb_product b = { .x = a->x, .got = got, .m = a->m, .ldx = s->k + s->pad_x, .ldo = s->n + s->pad_out, .w = &w,
                     .way = gb_way_of(numerics, p->bf16 ? 2 : 4, a->plain, &w),
                     .quantise = numerics == LF_RELEASED && !a->plain && gb_quantised(&w),
                     .bf16 = p->bf16 && a->kind == LF_OUT_ACT };

    return gb_judge(&b);
}

static void one(pair *p, lf_dtype type, const shape *s, lf_gemm_out kind, int plain, int parts, double tol)
{
    int64_t m = 515;
    pair_weight w = pair_weight_new(p, type, s->rows, s->cols, 9, 0);
    product a = { pair_values(p, m * (s->k + s->pad_x)), m, s, kind, plain, parts };
    float *want = multiply(p, PAIR_CPU, &w.side[PAIR_CPU], &a, 0, m);
    float *got = multiply(p, PAIR_GPU, &w.side[PAIR_GPU], &a, 0, m);
    double e = pair_worst(got, want, m, s->n, s->n + s->pad_out);

    TAP_CHECK(e <= tol, "%s, %s in, %s weight [%d, %d] of [%d, %d], %s out%s%s: off by %.2g, at most %.2g",
              p->dev[0]->numerics == LF_RELEASED ? "released" : "exact", p->bf16 ? "bf16" : "float32",
              lf_dtype_name(type), (int)s->n, (int)s->k, (int)s->rows, (int)s->cols,
              kind == LF_OUT_F32 ? "float32" : "act", plain ? ", plain" : "", parts > 1 ? ", in parts" : "", e, tol);
    gb_report(beyond(p, &w.side[PAIR_CPU], &a, got));
    TAP_CHECK(invariant(p, &w.side[PAIR_GPU], &a, got), "  and its bits depend on nothing but the row");
    pair_sync(p, "gemm");
    pair_clear(p);
}

static void all_products(const lf_model *m, lf_numerics numerics, int act_bytes)
{
    static const lf_dtype types[] = { LF_E4M3, LF_I8, LF_BF16, LF_F32 };
    int quantised;
    pair p;

    pair_open(&p, m, numerics, act_bytes);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 4; t++) {
            quantised = numerics == LF_RELEASED && types[t] == LF_E4M3;
            one(&p, types[t], &shapes[i], LF_OUT_ACT, 0, 0, act_bytes == 2 ? 4e-3 : 1e-5);
            one(&p, types[t], &shapes[i], LF_OUT_F32, 0, 0, quantised ? 1e-3 : 1e-5);
        }
    one(&p, LF_E4M3, &shapes[0], LF_OUT_ACT, 1, 0, act_bytes == 2 ? 4e-3 : 1e-5);
    if (act_bytes == 4)
        one(&p, LF_E4M3, &shapes[0], LF_OUT_ACT, 0, 3, 1e-5);
    pair_close(&p);
}

/* tp ranks that own halves of the parts add up to the bits of one rank with all. */
static void halves(const lf_model *m)
{
    static const shape whole = { 192, 512, 0, 192, 0, 512, 0, 0 }, half[2] = { { 192, 512, 0, 192, 0, 256, 256, 0 },
                                                                              { 192, 512, 0, 192, 256, 256, 256, 0 } };
    int64_t rows = 70;
    int bad = 0;
    pair p;

    pair_open(&p, m, LF_EXACT, 4);
    pair_weight w = pair_weight_new(&p, LF_E4M3, 192, 512, 9, 0);
    product a = { pair_values(&p, (rows + 1) * 512), rows, &whole, LF_OUT_F32, 0, 4 }, b = a;
    float *all = multiply(&p, PAIR_GPU, &w.side[PAIR_GPU], &a, 0, rows), *sum[2];
    b.parts = 2;
    for (int h = 0; h < 2; h++) {
        b.s = &half[h];
        b.x = a.x + 256 * h;
        sum[h] = multiply(&p, PAIR_GPU, &w.side[PAIR_GPU], &b, 0, rows);
    }
    for (int64_t i = 0; i < rows * 192; i++)
        TAP_QUIET(bad, all[i] == sum[0][i] + sum[1][i], "value %d", (int)i);
    TAP_CHECK(bad == 0, "float32: the sums of two halves of the parts add up to the sum of all, bit by bit");
    pair_sync(&p, "halves");
    pair_close(&p);
}

static void embed(const lf_model *m, int act_bytes)
{
    enum { M = 300 };
    pair p;
    uint32_t ids[M];
    float *y[PAIR_SIDES];
    int64_t n = M * m->hc * m->hidden;

    pair_open(&p, m, LF_EXACT, act_bytes);
    pair_weight w = pair_weight_new(&p, LF_BF16, m->vocab, m->hidden, 0, 0);
    for (int i = 0; i < M; i++)
        ids[i] = pair_random(&p) % (uint32_t)m->vocab;
    for (int s = 0; s < PAIR_SIDES; s++) {
        lf_act *x = pair_device(&p, s, (size_t)n * p.dev[s]->act_bytes);
        p.dev[s]->ops->embed(p.dev[s], x, pair_put(&p, s, ids, sizeof ids), M, &w.side[s]);
        y[s] = pair_get(&p, s, x, n, 0);
    }
    TAP_CHECK(memcmp(y[0], y[1], (size_t)n * 4) == 0, "embed, %d bytes: every stream has the token's row", act_bytes);
    pair_sync(&p, "embed");
    pair_close(&p);
}

/* Bytes through put, gather, copy_rows, get: sizes around the pieces of the staging memory. */
static void copies(const lf_model *m)
{
    static const size_t sizes[] = { 1, 4095, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 70 << 20 };
    static const size_t rows[] = { 1, 4, 7, 12, 16, 48, 1040 };
    pair p;
    lf_dev *d;

    pair_open(&p, m, LF_EXACT, 4);
    d = p.dev[PAIR_GPU];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t *from = pair_host(&p, sizes[i]), *to = pair_host(&p, sizes[i]);
        for (size_t j = 0; j < sizes[i]; j += 1 + j / 999)
            from[j] = (uint8_t)pair_random(&p);
        void *v = pair_put(&p, PAIR_GPU, from, sizes[i]);
        d->ops->get(d, to, v, sizes[i]);
        TAP_CHECK(memcmp(from, to, sizes[i]) == 0, "%zu bytes there and back", sizes[i]);
        pair_clear(&p);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum { N = 70 };
        size_t b = rows[i];
        int32_t idx[N];
        int bad = 0;
        uint8_t *from = pair_host(&p, N * b), *to = pair_host(&p, N * b), *wide = pair_host(&p, N * (b + 3));
        for (size_t j = 0; j < N * b; j++)
            from[j] = (uint8_t)pair_random(&p);
        for (int j = 0; j < N; j++)
            idx[j] = (int32_t)(pair_random(&p) % N);
        void *src = pair_put(&p, PAIR_GPU, from, N * b), *dst = pair_device(&p, PAIR_GPU, N * b);
        void *apart = pair_device(&p, PAIR_GPU, N * (b + 3));
        d->ops->gather(d, dst, src, pair_put(&p, PAIR_GPU, idx, sizeof idx), N, b);
        d->ops->copy_rows(d, apart, b + 3, dst, b, b, N);
        d->ops->get(d, to, dst, N * b);
        d->ops->get(d, wide, apart, N * (b + 3));
        for (int j = 0; j < N; j++)
            TAP_QUIET(bad, memcmp(to + j * b, from + (size_t)idx[j] * b, b) == 0 &&
                      memcmp(wide + j * (b + 3), to + j * b, b) == 0, "row %d", j);
        TAP_CHECK(bad == 0, "rows of %zu bytes gathered and spread", b);
        pair_clear(&p);
    }
    pair_sync(&p, "copies");
    TAP_CHECK(d->peak >= d->taken && d->taken < d->peak, "memory is counted: %zu now, %zu at most", d->taken, d->peak);
    pair_close(&p);
}

int main(void)
{
    lf_model m = { .vocab = 1000, .hidden = 72, .hc = 4, .index_dim = 32 };

    if (!pair_gpu("products"))
        return tap_done();
    copies(&m);
    embed(&m, 2);
    embed(&m, 4);
    all_products(&m, LF_EXACT, 4);
    all_products(&m, LF_EXACT, 2);
    all_products(&m, LF_RELEASED, 2);
    halves(&m);
    return tap_done();
}
