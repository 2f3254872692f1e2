/* SPDX-License-Identifier: Apache-2.0
 *
 * The experts' products.   Source: model.md, "MoE".
 *
 * fp8: the pairs of all experts of a batch lie one expert after the other, each padded with rows of zeros to a multiple
 * of 4: quantised together, multiplied expert by expert, activated and quantised together, multiplied again.
 * Plain: expert by expert through gemm.
 */
#include "bank.cuh"
#include "fp8.cuh"

#include <stdlib.h>

/* Pairs p0 .. p0+n-1, all of one expert, in rows at .. of the batch. */
typedef struct segment {
    int64_t at, p0, n;
    int expert;
    lf_expert_way way;
} segment;

static_assert(sizeof(segment) == LF_CUDA_SEGMENT, "dev_cuda_plan.h has another size");

typedef struct batch {
    lf_cuda *c;
    const lf_experts *e;
    const lf_cuda_bank *bank;
    int64_t hidden, inter, rows, pairs;    /* rows: of the batch, padded; pairs: of the whole call */
    segment *seg;                          /* host, and the same on the device */
    const segment *table;
    int segs;
    uint8_t *x, *h;                        /* codes [rows, hidden], [rows, inter] */
    float *x_scale, *h_scale;              /* of each segment: [groups][its rows, padded] */
    __nv_bfloat16 *gu;                     /* [rows, 2 inter]: w1 x, then w3 x */
} batch;

static __host__ __device__ int64_t padded(int64_t n)
{
    return (n + 3) / 4 * 4;
}

/* The last segment that begins at or before a row. */
static __device__ segment segment_of(const segment *table, int segs, int64_t row)
{
    int lo = 0, hi = segs - 1;

    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (table[mid].at <= row)
            lo = mid;
        else
            hi = mid - 1;
    }
    return table[lo];
}

struct pair_rows {
    const __nv_bfloat16 *x;
    int64_t hidden;
    const int32_t *src;
    const segment *table;
    int segs;

    __device__ const __nv_bfloat16 *at(int64_t row, int64_t groups, int64_t *scale, int64_t *step) const
    {
        segment s = segment_of(table, segs, row);
        int64_t i = row - s.at;

        *scale = s.at * groups + i;
        *step = padded(s.n);
        return i < s.n ? x + src[s.p0 + i] * hidden : NULL;
    }
};

/* silu(g) u weight, clamped first when limit > 0. */
static __device__ float swiglu(float g, float u, float weight, float limit)
{
    if (limit > 0) {
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
    }
    return g / (1 + expf(-g)) * u * weight;
}

/* A warp a row and group, four groups each, as lf_quantise_rows. */
static __global__ void __launch_bounds__(256)
    activate(uint8_t *code, float *scale, const __nv_bfloat16 *gu, int64_t rows, int64_t inter, const float *weight,
             const segment *table, int segs, float limit)
{
    int64_t row = (int64_t)blockIdx.x * LF_QUANTISE_ROWS + (threadIdx.x >> 5), groups = (inter + 127) / 128;
    int lane = (int)threadIdx.x & 31;

    if (row >= rows)
        return;
    segment s = segment_of(table, segs, row);
    int64_t i = row - s.at;
    float w = i < s.n ? weight[s.p0 + i] : 0.0f;
#pragma unroll
    for (int k = 0; k < LF_QUANTISE_GROUPS; k++) {
        int64_t group = (int64_t)blockIdx.y * LF_QUANTISE_GROUPS + k, j = group * 128 + lane * 4;
        float g[4], u[4];
        uint8_t byte;
        if (group >= groups)
            return;
        lf_load_4(g, gu + row * 2 * inter, j, inter);
        lf_load_4(u, gu + row * 2 * inter + inter, j, inter);
#pragma unroll
        for (int v = 0; v < 4; v++)
            g[v] = i < s.n ? lf_rounded<__nv_bfloat16>(swiglu(g[v], u[v], w, limit)) : 0.0f;
        uint32_t codes = lf_quantise_4(g, &byte);
        if (j < inter)
            *(uint32_t *)(code + row * inter + j) = codes;
        if (lane == 0)
            scale[s.at * groups + i + group * padded(s.n)] = lf_e8m0(byte);
    }
}

template <typename T>
static __global__ void activate_plain(T *g, const T *u, const float *weight, int64_t n, int64_t inter, float limit)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n * inter)
        lf_store(g + i, swiglu(lf_load(g + i), lf_load(u + i), weight[i / inter], limit));
}

/* ---- plain ---- */

static void product(lf_cuda *c, const void *x, int64_t m, const lf_weight *w, void *out)
{
    lf_gemm g = { (const lf_act *)x, m, w->cols, w, out, w->rows, LF_OUT_ACT };

    lf_cuda_gemm(&c->dev, &g);
}

static void plain_pairs(lf_cuda *c, const lf_experts *e, int expert, int64_t p0, int64_t n)
{
    int64_t hidden = e->w1[expert].cols, inter = e->w1[expert].rows;
    size_t size = c->dev.act_bytes;
    void *x = lf_cuda_scratch(c, LF_SCRATCH_MOE_X, size * (size_t)(n * hidden));
    char *g = (char *)lf_cuda_scratch(c, LF_SCRATCH_MOE_GU, size * (size_t)(2 * n * inter)), *u;

    if (!x || !g)
        return;
    u = g + size * (size_t)(n * inter);
    lf_cuda_gather(&c->dev, x, e->x, e->src + p0, n, size * (size_t)hidden);
    product(c, x, n, &e->w1[expert], g);
    product(c, x, n, &e->w3[expert], u);
    LF_ACT(c, activate_plain<<<lf_blocks(n * inter, 256), 256, 0, c->stream>>>(
                  (T *)(void *)g, (const T *)(void *)u, e->weight + p0, n, inter, e->limit));
    LF_LAUNCHED(c, "activate");
    product(c, g, n, &e->w2[expert], lf_act_at(&c->dev, e->out, p0 * hidden));
}

static void plain_expert(lf_cuda *c, const lf_experts *e, int expert, int64_t p0, int64_t n)
{
    for (int64_t at = 0; at < n; at += LF_CUDA_EXPERT_PLAIN)
        plain_pairs(c, e, expert, p0 + at, lf_min(LF_CUDA_EXPERT_PLAIN, n - at));
}

/* ---- fp8 ---- */

static int batch_room(batch *b)
{
    lf_cuda *c = b->c;
    int64_t gx = lf_ceil_div(b->hidden, 128), gh = lf_ceil_div(b->inter, 128);
    size_t rows = (size_t)b->rows, bytes = sizeof(segment) * (size_t)b->segs;
    segment *table = (segment *)lf_cuda_scratch(c, LF_SCRATCH_MOE_TABLE, bytes);

    b->table = table;
    b->x = (uint8_t *)lf_cuda_scratch(c, LF_SCRATCH_MOE_X, rows * (size_t)b->hidden);
    b->x_scale = (float *)lf_cuda_scratch(c, LF_SCRATCH_MOE_X_SCALE, sizeof(float) * rows * (size_t)gx);
    b->gu = (__nv_bfloat16 *)lf_cuda_scratch(c, LF_SCRATCH_MOE_GU, 4 * rows * (size_t)b->inter);
    b->h = (uint8_t *)lf_cuda_scratch(c, LF_SCRATCH_MOE_H, rows * (size_t)b->inter);
    b->h_scale = (float *)lf_cuda_scratch(c, LF_SCRATCH_MOE_H_SCALE, sizeof(float) * rows * (size_t)gh);
    if (!table || !b->x || !b->x_scale || !b->gu || !b->h || !b->h_scale)
        return -1;
    lf_cuda_put(&c->dev, table, b->seg, bytes);
    return 0;
}

/* w: NULL takes the bank's codes. */
static void multiply(const batch *b, const segment *s, int second, const lf_weight *w, void *out, int64_t n,
                     int64_t ldo)
{
    int64_t k = second ? b->inter : b->hidden, groups = lf_ceil_div(k, 128);
    lf_cuda_product p = { LF_CUDA_FP8, 0 };

    p.x = (second ? b->h : b->x) + s->at * k;
    p.x_scale = (second ? b->h_scale : b->x_scale) + s->at * groups;
    p.w = w ? w->data + w->row0 * w->all_cols + w->col0 : lf_bank_code(b->bank, s->expert, second);
    p.w_scale = w ? lf_cuda_fp8_scale(b->c, w) : lf_bank_scale(b->bank, s->expert, second);
    p.ldw = w ? w->all_cols : k;
    p.out = out;
    p.ldo = ldo;
    p.m = padded(s->n);
    p.n = n;
    p.k = p.ldx = k;
    if (p.w_scale)
        lf_cuda_multiply(b->c, &p);
}

static void first_products(const batch *b, const segment *s)
{
    __nv_bfloat16 *gu = b->gu + s->at * 2 * b->inter;

    if (s->way == LF_EXPERT_FOLDED)
        multiply(b, s, 0, NULL, gu, 2 * b->inter, 2 * b->inter);
    else {
        multiply(b, s, 0, &b->e->w1[s->expert], gu, b->inter, 2 * b->inter);
        multiply(b, s, 0, &b->e->w3[s->expert], gu + b->inter, b->inter, 2 * b->inter);
    }
}

/* The rows of zeros at the end go where the next pairs' results will be written; at the end of all, where there is no
 * such place, through a buffer. */
static void second_product(const batch *b, const segment *s)
{
    lf_cuda *c = b->c;
    __nv_bfloat16 *out = lf_ptr<__nv_bfloat16>(b->e->out) + s->p0 * b->hidden;
    int direct = s->p0 + padded(s->n) <= b->pairs && (uintptr_t)out % 16 == 0;
    size_t row = 2 * (size_t)b->hidden;
    void *to = direct ? out : lf_cuda_scratch(c, LF_SCRATCH_MOE_OUT, row * (size_t)padded(s->n));

    if (!to)
        return;
    multiply(b, s, 1, s->way == LF_EXPERT_FOLDED ? NULL : &b->e->w2[s->expert], to, b->hidden, b->hidden);
    if (!direct)
        lf_cuda_copy(&c->dev, out, to, row * (size_t)s->n);
}

/* In the order of the pairs: see second_product. */
static void batch_run(batch *b)
{
    lf_cuda *c = b->c;
    const lf_experts *e = b->e;

    if (b->rows) {
        if (batch_room(b))
            return;
        pair_rows rows = { lf_ptr<__nv_bfloat16>(e->x), b->hidden, e->src, b->table, b->segs };
        lf_quantise_rows<<<lf_quantise_blocks(b->rows, b->hidden), 256, 0, c->stream>>>(b->x, b->x_scale, rows,
                                                                                        b->rows, b->hidden);
        LF_LAUNCHED(c, "quantise of pairs");
        for (int i = 0; i < b->segs; i++)
            if (b->seg[i].way != LF_EXPERT_PLAIN)
                first_products(b, &b->seg[i]);
        activate<<<lf_quantise_blocks(b->rows, b->inter), 256, 0, c->stream>>>(
            b->h, b->h_scale, b->gu, b->rows, b->inter, e->weight, b->table, b->segs, e->limit);
        LF_LAUNCHED(c, "activate");
    }
    for (int i = 0; i < b->segs && !c->failed; i++)
        if (b->seg[i].way == LF_EXPERT_PLAIN)
            plain_expert(c, e, b->seg[i].expert, b->seg[i].p0, b->seg[i].n);
        else
            second_product(b, &b->seg[i]);
    b->segs = 0;
    b->rows = 0;
}

/* Plain segments take no rows of the batch. */
static void batch_add(batch *b, int expert, lf_expert_way way, int64_t p0, int64_t n)
{
    segment s = { b->rows, p0, n, expert, way };

    b->seg[b->segs++] = s;
    if (way != LF_EXPERT_PLAIN)
        b->rows += padded(n);
}

void lf_cuda_experts(lf_dev *d, const lf_experts *e)
{
    lf_cuda *c = lf_cuda_of(d);
    batch b = { c, e };

    if (e->experts == 0 || e->first[e->experts] == e->first[0])
        return;
    int banked = lf_cuda_bank_wanted(c, e);
    if (c->failed || (banked && !(b.bank = lf_cuda_bank_of(c, e))))
        return;
    b.hidden = e->w1[0].cols;
    b.inter = e->w1[0].rows;
    b.pairs = e->first[e->experts];
    int most = e->experts + 4;             /* of segments: an expert's, and four that end the pairs may be in two */
    b.seg = (segment *)lf_alloc(sizeof *b.seg * (size_t)most);
    for (int x = 0; x < e->experts && !c->failed; x++) {
        lf_expert_way way = lf_cuda_expert_way(c, e, x);
        for (int64_t p = e->first[x], n; p < e->first[x + 1]; p += n) {
            n = lf_min(e->first[x + 1] - p, LF_CUDA_EXPERT_ROWS);
            if (way != LF_EXPERT_PLAIN && p + padded(n) > b.pairs && n > 4)       /* so few rows need a buffer */
                n = n / 4 * 4;
            if (b.segs == most || b.rows + padded(n) > LF_CUDA_EXPERT_ROWS)
                batch_run(&b);
            batch_add(&b, x, way, p, n);
        }
    }
    if (b.segs)
        batch_run(&b);
    free(b.seg);
}
