/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with weights of any stored format.  Weights stay as stored (mapped from the file); a strip of LF_TILE_N
 * output columns is expanded to float32 at a time, in the thread that multiplies with it.
 */
#include "cpu.h"

#include <math.h>

static void expand_e4m3(const lf_weight *w, int64_t row, float *out)
{
    const uint8_t *p = w->data + row * w->all_cols + w->col0;
    const uint8_t *s = w->scale + row / 128 * lf_ceil_div(w->all_cols, 128);

    for (int64_t j = 0; j < w->cols;) {
        int64_t end = lf_min(w->cols, (w->col0 + j) / 128 * 128 + 128 - w->col0);
        float scale = lf_e8m0_f32(s[(w->col0 + j) / 128]);
        for (; j < end; j++)
            out[j] = lf_e4m3_table[p[j]] * scale;
    }
}

static void expand_fp4(const lf_weight *w, int64_t row, float *out)
{
    const uint8_t *p = w->data + row * (w->all_cols / 2);
    const uint8_t *s = w->scale + row * (w->all_cols / 32);

    for (int64_t j = 0; j < w->cols; j++) {
        int64_t c = w->col0 + j;
        int code = p[c / 2] >> (c & 1 ? 4 : 0) & 15;
        out[j] = lf_e2m1_table[code] * lf_e8m0_f32(s[c / 32]);
    }
}

static void expand_bf16(const uint8_t *p, int64_t n, float *out)
{
    for (int64_t j = 0; j < n; j++) {
        uint16_t b;
        memcpy(&b, p + 2 * j, 2);
        out[j] = lf_bf16_f32(b);
    }
}

/* Rows r0 .. r0+n-1 of a weight slice as float32 [n, cols]. */
static void expand(const lf_weight *w, int64_t r0, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++, out += w->cols) {
        int64_t row = w->row0 + r0 + i;
        switch (w->dtype) {
        case LF_E4M3:
            expand_e4m3(w, row, out);
            break;
        case LF_I8:
            expand_fp4(w, row, out);
            break;
        case LF_BF16:
            expand_bf16(w->data + 2 * (row * w->all_cols + w->col0), w->cols, out);
            break;
        default:
            memcpy(out, w->data + 4 * (row * w->all_cols + w->col0), 4 * (size_t)w->cols);
        }
    }
}

void lf_cpu_quantise(float *y, const float *x, int64_t n, int64_t group)
{
    for (int64_t g = 0; g < n; g += group) {
        int64_t end = lf_min(n, g + group);
        float amax = 0;
        for (int64_t j = g; j < end; j++)
            amax = fmaxf(amax, fabsf(x[j]));
        float scale = lf_e8m0_f32(lf_scale_e4m3(amax)), inv = 1 / scale;     /* a power of two: both exact */
        for (int64_t j = g; j < end; j++)
            y[j] = lf_e4m3_table[lf_f32_e4m3(x[j] * inv)] * scale;
    }
}

/* A row tile of the input: as it is, or padded with zero rows to the one height. */
static const float *tile_input(lf_cpu *c, const float *x, int64_t ldx, int64_t rows, int64_t k, int64_t *ld)
{
    if (rows == LF_TILE_M) {
        *ld = ldx;
        return x;
    }
    float *pad = lf_cpu_own(c, 1, sizeof(float) * LF_TILE_M * (size_t)k);
    for (int64_t i = 0; i < rows; i++)
        memcpy(pad + i * k, x + i * ldx, sizeof(float) * (size_t)k);
    memset(pad + rows * k, 0, sizeof(float) * (size_t)((LF_TILE_M - rows) * k));
    *ld = k;
    return pad;
}

static void store_tile(lf_cpu *c, const lf_gemm *g, const float *tile, int64_t r0, int64_t rows, int64_t n0, int64_t n)
{
    float *out = (float *)g->out + r0 * g->ldo + n0;
    int round = g->kind == LF_OUT_ACT && c->dev.numerics == LF_RELEASED;

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++)
            out[i * g->ldo + j] = round ? lf_round_bf16(tile[i * LF_TILE_N + j]) : tile[i * LF_TILE_N + j];
}

typedef struct factors {
    const float *a, *w;                    /* a tile's rows and a strip's weights, both [.., k] */
    int64_t lda, k, n, part;               /* columns; strip width; columns of a part */
} factors;

/* out [LF_TILE_M, LF_TILE_N] = the sum over parts lo .. hi-1, pairwise; spare: room for the halves not yet added. */
static void sum_parts(const factors *f, int lo, int hi, float *out, float *spare)
{
    if (hi - lo == 1) {
        lf_cpu_abt(LF_TILE_M, f->n, f->part, f->a + lo * f->part, f->lda, f->w + lo * f->part, f->k, out, LF_TILE_N);
        return;
    }
    sum_parts(f, lo, (lo + hi) / 2, out, spare);
    sum_parts(f, (lo + hi) / 2, hi, spare, spare + LF_TILE_M * LF_TILE_N);
    for (int64_t i = 0; i < LF_TILE_M; i++)
        for (int64_t j = 0; j < f->n; j++)
            out[i * LF_TILE_N + j] += spare[i * LF_TILE_N + j];
}

/* One strip of output columns times row tiles t0 .. t1-1. */
static void strip(lf_cpu *c, const lf_gemm *g, const float *x, int64_t ldx, int64_t n0, int64_t t0, int64_t t1)
{
    int64_t k = g->w->cols, n = lf_min(LF_TILE_N, g->w->rows - n0);
    float *w = lf_cpu_own(c, 0, sizeof(float) * (size_t)(n * k));
    int parts = g->parts > 1 ? g->parts : 1;
    float *tile = lf_cpu_own(c, 2, sizeof(float) * LF_TILE_M * LF_TILE_N * (size_t)(parts + 1));

    expand(g->w, n0, n, w);
    for (int64_t t = t0; t < t1; t++) {
        int64_t r0 = t * LF_TILE_M, rows = lf_min(LF_TILE_M, g->m - r0), ld;
        factors f = { .a = tile_input(c, x + r0 * ldx, ldx, rows, k, &ld), .w = w, .k = k, .n = n, .part = k / parts };
        f.lda = ld;
        sum_parts(&f, 0, parts, tile, tile + LF_TILE_M * LF_TILE_N);
        store_tile(c, g, tile, r0, rows, n0, n);
    }
}

static int quantises_input(const lf_cpu *c, const lf_gemm *g)
{
    return c->dev.numerics == LF_RELEASED && !g->plain && (g->w->dtype == LF_E4M3 || g->w->dtype == LF_I8);
}

void lf_cpu_gemm(lf_dev *d, const lf_gemm *g)
{
    lf_cpu *c = lf_cpu_of(d);
    const float *x = lf_cf(g->x);
    int64_t ldx = g->ldx, k = g->w->cols;

    if (g->m == 0 || g->w->rows == 0)
        return;
    if (quantises_input(c, g)) {
        float *q = lf_cpu_shared(c, 0, sizeof(float) * (size_t)(g->m * k));
#pragma omp parallel for num_threads(c->threads) schedule(static)
        for (int64_t i = 0; i < g->m; i++)
            lf_cpu_quantise(q + i * k, x + i * ldx, k, 128);
        x = q;
        ldx = k;
    }
    /* Enough pieces for the threads: few strips are shared out by row tiles as well. */
    int64_t strips = lf_ceil_div(g->w->rows, LF_TILE_N), tiles = lf_ceil_div(g->m, LF_TILE_M);
    int64_t groups = lf_min(tiles, lf_ceil_div(2 * c->threads, strips)), each = lf_ceil_div(tiles, groups);
#pragma omp parallel for num_threads(c->threads) schedule(dynamic)
    for (int64_t u = 0; u < strips * groups; u++) {
        int64_t t0 = u % groups * each;
        strip(c, g, x, ldx, u / groups * LF_TILE_N, t0, lf_min(tiles, t0 + each));
    }
}

void lf_cpu_embed(lf_dev *d, lf_act *x, const uint32_t *ids, int64_t m, const lf_weight *embed)
{
    int64_t n = d->model->hc, hidden = d->model->hidden;
    float *out = lf_f(x);

#pragma omp parallel for num_threads(lf_cpu_of(d)->threads) schedule(static)
    for (int64_t i = 0; i < m; i++) {
        float *row = out + i * n * hidden;
        expand(embed, ids[i], 1, row);
        for (int64_t j = 0; j < hidden; j++)
            row[j] = lf_r(lf_cpu_of(d), row[j]);
        for (int64_t s = 1; s < n; s++)
            memcpy(row + s * hidden, row, sizeof(float) * (size_t)hidden);
    }
}
