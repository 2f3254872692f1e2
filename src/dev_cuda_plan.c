/* SPDX-License-Identifier: Apache-2.0 */
#include "dev_cuda_plan.h"

#include <string.h>

static int64_t stored(int64_t bytes)
{
    return lf_round_up(bytes, LF_CUDA_WEIGHT_ALIGN);
}

int64_t lf_cuda_weight_bytes(lf_dtype dtype, int64_t rows, int64_t cols)
{
    int64_t n = rows * cols, down = lf_ceil_div(rows, 128), wide = lf_ceil_div(cols, 128);

    switch (dtype) {
    case LF_E4M3:
        return stored(n) + stored(down * wide) + stored(4 * down * lf_cuda_scale_ld(cols));
    case LF_I8:
        return stored(n / 2) + stored(n / 32);
    default:
        return stored(n * (int64_t)lf_dtype_bytes(dtype));
    }
}

/* ---- products ---- */

int lf_cuda_fp8_fits(const lf_weight *w)
{
    return w->dtype == LF_E4M3 && w->row0 % 128 == 0 && w->col0 % 128 == 0 && w->rows % 8 == 0 && w->cols % 16 == 0 &&
           w->all_cols % 16 == 0 && w->rows >= 128 && w->cols >= 128;
}

int64_t lf_cuda_scale_ld(int64_t cols)
{
    return lf_round_up(lf_ceil_div(cols, 128), 4);
}

int lf_cuda_scales_fit(const lf_weight *w)
{
    return w->col0 == 0 && lf_cuda_scale_ld(w->cols) == lf_cuda_scale_ld(w->all_cols);
}

/* With bf16 activations sums are not byte-equal over tp anyway: there parts are of no use. */
unsigned lf_cuda_gemm_fits(const lf_dev *d, const lf_gemm *g)
{
    unsigned parts = g->parts > 1 && d->act_bytes == 4 && g->w->cols % g->parts == 0;
    unsigned fp8 = d->numerics == LF_RELEASED && !g->plain && lf_cuda_fp8_fits(g->w);

    return !parts << LF_GEMM_PLAIN | parts << LF_GEMM_PARTS | fp8 << LF_GEMM_FP8;
}

void lf_cuda_gemm_form(lf_gemm_form *f, const lf_dev *d, const lf_gemm *g)
{
    const lf_weight *w = g->w;
    int wide = d->act_bytes == 4 || w->dtype == LF_F32, quantised = w->dtype == LF_E4M3 || w->dtype == LF_I8;

    f->element = wide ? 4 : 2;
    f->want = g->kind == LF_OUT_F32 ? 4 : d->act_bytes;
    f->have = wide || f->want == 4 ? 4 : 2;
    f->k = lf_round_up(w->cols, 8);
    f->quantise = d->numerics == LF_RELEASED && !g->plain && quantised;
    f->direct_x = !f->quantise && f->element == d->act_bytes && w->cols % 8 == 0 &&
                  lf_cuda_aligned(g->x, g->ldx, f->element);
    uintptr_t at = (uintptr_t)w->data + f->element * (size_t)(w->row0 * w->all_cols + w->col0);
    f->direct_w = w->dtype == (wide ? LF_F32 : LF_BF16) && w->cols % 8 == 0 &&
                  lf_cuda_aligned((const void *)at, w->all_cols, f->element);
    f->direct_out = f->have == f->want && lf_cuda_aligned(g->out, g->ldo, f->want);
    f->ldo = f->direct_out ? g->ldo : lf_round_up(w->rows, 8);
}

int lf_cuda_gemm_levels(int parts)
{
    int levels = 1;

    while (1 << (levels - 1) < parts)
        levels++;
    return levels;
}

/* ---- experts ---- */

static int packed(const lf_weight *w)
{
    return w->dtype == LF_I8 && w->rows == w->all_rows && w->cols == w->all_cols;
}

/* 128 | inter: then w1 and w3 stand one above the other without a block of both. */
unsigned lf_cuda_expert_fits(lf_numerics numerics, const lf_weight *w1, const lf_weight *w2, const lf_weight *w3,
                             int folds)
{
    unsigned released = numerics == LF_RELEASED;
    unsigned stored = released && lf_cuda_fp8_fits(w1) && lf_cuda_fp8_fits(w2) && lf_cuda_fp8_fits(w3);
    unsigned folded = released && folds && packed(w1) && packed(w2) && packed(w3) && w1->rows % 128 == 0 &&
                      w1->cols % 16 == 0 && w1->cols >= 128;

    return 1 << LF_EXPERT_PLAIN | stored << LF_EXPERT_STORED | folded << LF_EXPERT_FOLDED;
}

int64_t lf_cuda_bank_codes(int64_t hidden, int64_t inter)
{
    return 3 * hidden * inter;
}

int64_t lf_cuda_bank_scales(int64_t hidden, int64_t inter)
{
    return 2 * inter / 128 * lf_cuda_scale_ld(hidden) + lf_ceil_div(hidden, 128) * lf_cuda_scale_ld(inter);
}

/* ---- the rest ---- */

size_t lf_cuda_hc_scratch(int64_t rows, int64_t cols, int outs)
{
    return sizeof(float) * (size_t)(lf_ceil_div(cols, LF_CUDA_HC_PIECE) * rows * (outs + 1));
}

size_t lf_cuda_topk_scratch(int64_t queries, int64_t rows)
{
    int64_t row = 4 * lf_round_up(lf_max(rows, 1), 4);

    return (size_t)lf_max(row, lf_min(row * lf_min(queries, LF_CUDA_SCORE_QUERIES), LF_CUDA_SCORES));
}

unsigned lf_cuda_index_fits(const lf_dev *d)
{
    int heads = d->model->index_heads, width = d->model->index_dim, bf16 = d->act_bytes == 2;
    unsigned mma = bf16 && heads % 8 == 0 && heads <= 256 && (width == 32 || width == 64 || width == 128);
    unsigned wgmma = bf16 && heads == 64 && width == 128, fp8 = wgmma && d->numerics == LF_RELEASED;

    return 1 << LF_INDEX_GENERAL | mma << LF_INDEX_MMA | wgmma << LF_INDEX_WGMMA | fp8 << LF_INDEX_FP8;
}

/* Codes and scales of queries and keys, and marks of those that do not fit; each a multiple of 512. */
size_t lf_cuda_index_fold_scratch(const lf_dev *d, int64_t queries, int64_t rows)
{
    const lf_model *m = d->model;
    int64_t n = lf_min(queries, LF_CUDA_FOLD_QUERIES), grain = 512, heads = m->index_heads, width = m->index_dim;

    if (lf_kernel_of(d->kernels, LF_CHOICE_INDEX, lf_cuda_index_fits(d)) != LF_INDEX_FP8)
        return 0;
    return (size_t)(n * heads * (width + 4) + lf_round_up(rows * width, grain) + lf_round_up(4 * rows, grain) + grain +
                    lf_round_up(lf_ceil_div(rows, 256), grain) + lf_round_up(n, grain));
}

size_t lf_cuda_sort_scratch(int64_t rows, int64_t vocab, int k)
{
    int64_t n = 2;

    while (n < lf_min(k, vocab))
        n *= 2;
    return n > LF_CUDA_SORT ? 8 * (size_t)(rows * n) : 0;
}

size_t lf_cuda_pairs_scratch(int64_t pairs, int64_t experts)
{
    return sizeof(int32_t) * (size_t)(lf_ceil_div(pairs, LF_CUDA_PAIRS) * experts);
}

size_t lf_cuda_arrivals_scratch(int64_t senders, int64_t experts)
{
    return 2 * sizeof(int32_t) * (size_t)(senders * experts);
}

/* ---- all of it ---- */

static void most(size_t *slot, lf_cuda_slot which, int64_t bytes)
{
    if (bytes > 0 && slot[which] < (size_t)bytes)
        slot[which] = (size_t)bytes;
}

static void fp8_room(size_t *slot, const lf_gemm *g)
{
    int64_t m = lf_round_up(g->m, 4), element = g->kind == LF_OUT_F32 ? 4 : 2;
    const lf_weight *w = g->w;

    most(slot, LF_SCRATCH_GEMM_X, m * w->cols);
    most(slot, LF_SCRATCH_GEMM_X_SCALE, 4 * m * lf_ceil_div(w->cols, 128));
    if (!lf_cuda_scales_fit(w))
        most(slot, LF_SCRATCH_GEMM_W_SCALE, 4 * lf_ceil_div(w->rows, 128) * lf_cuda_scale_ld(w->cols));
    most(slot, LF_SCRATCH_GEMM_OUT, element * w->rows * (lf_cuda_aligned(g->out, g->ldo, (size_t)element) ? 4 : m));
}

static void plain_room(size_t *slot, const lf_dev *d, const lf_gemm *g)
{
    lf_gemm_form f;

    lf_cuda_gemm_form(&f, d, g);
    if (!f.direct_x)
        most(slot, LF_SCRATCH_GEMM_X, (int64_t)f.element * g->m * f.k);
    if (!f.direct_w)
        most(slot, LF_SCRATCH_GEMM_W, (int64_t)f.element * lf_min(LF_CUDA_STRIP, g->w->rows) * f.k);
    if (!f.direct_out)
        most(slot, LF_SCRATCH_GEMM_OUT, (int64_t)f.have * g->m * f.ldo);
}

static void parts_room(size_t *slot, const lf_dev *d, const lf_gemm *g)
{
    int64_t part = g->w->cols / g->parts, ld = lf_round_up(g->w->rows, 8);

    for (int i = 0; i < g->parts; i++) {
        lf_weight w = lf_weight_cols(*g->w, i * part, part);
        uintptr_t x = (uintptr_t)g->x + d->act_bytes * (size_t)(i * part);
        lf_gemm one = { .x = (const lf_act *)x, .m = g->m, .ldx = g->ldx, .w = &w, .ldo = ld,
                        .kind = LF_OUT_F32 };
        plain_room(slot, d, &one);
    }
    most(slot, LF_SCRATCH_GEMM_PARTS, 4 * lf_cuda_gemm_levels(g->parts) * g->m * ld);
}

static void gemm_room(size_t *slot, const lf_dev *d, const lf_gemm *g)
{
    switch (lf_kernel_of(d->kernels, LF_CHOICE_GEMM, lf_cuda_gemm_fits(d, g))) {
    case LF_GEMM_FP8:
        fp8_room(slot, g);
        break;
    case LF_GEMM_PARTS:
        parts_room(slot, d, g);
        break;
    case LF_GEMM_PLAIN:
        plain_room(slot, d, g);
    }
}

static void plain_expert_room(size_t *slot, const lf_dev *d, const lf_load_experts *e)
{
    int64_t n = lf_min(LF_CUDA_EXPERT_PLAIN, e->most), act = (int64_t)d->act_bytes;
    const lf_weight *w[3] = { &e->w1, &e->w3, &e->w2 };

    most(slot, LF_SCRATCH_MOE_X, act * n * e->w1.cols);
    most(slot, LF_SCRATCH_MOE_GU, act * 2 * n * e->w1.rows);
    for (int i = 0; i < 3; i++) {
        lf_gemm g = { .m = n, .ldx = w[i]->cols, .w = w[i], .ldo = w[i]->rows, .kind = LF_OUT_ACT };
        gemm_room(slot, d, &g);
    }
}

/* Every expert's pairs are padded to a multiple of 4. */
static void batch_room(size_t *slot, const lf_dev *d, const lf_load_experts *e, int way)
{
    int64_t hidden = e->w1.cols, inter = e->w1.rows, experts = e->experts;
    int64_t rows = lf_min(LF_CUDA_EXPERT_ROWS, e->pairs + 3 * lf_min(experts, e->pairs));

    most(slot, LF_SCRATCH_MOE_TABLE, LF_CUDA_SEGMENT * (experts + 4));
    most(slot, LF_SCRATCH_MOE_X, rows * hidden);
    most(slot, LF_SCRATCH_MOE_X_SCALE, 4 * rows * lf_ceil_div(hidden, 128));
    most(slot, LF_SCRATCH_MOE_GU, 4 * rows * inter);
    most(slot, LF_SCRATCH_MOE_H, rows * inter);
    most(slot, LF_SCRATCH_MOE_H_SCALE, 4 * rows * lf_ceil_div(inter, 128));
    most(slot, LF_SCRATCH_MOE_OUT, 2 * 4 * hidden);
    for (int i = 0; way == LF_EXPERT_FOLDED && i < lf_min(LF_CUDA_BANKS, d->model->layers); i++) {
        most(slot, lf_cuda_bank_slot(i), experts * lf_cuda_bank_codes(hidden, inter));
        most(slot, lf_cuda_bank_scale_slot(i), 4 * experts * lf_cuda_bank_scales(hidden, inter));
    }
}

/* Which packed experts fold, their values say: there is room for all that do and for all that do not. */
static void expert_room(size_t *slot, const lf_dev *d, const lf_load_experts *e)
{
    for (int folds = 0; folds < 2 && e->pairs; folds++) {
        int way = lf_kernel_of(d->kernels, LF_CHOICE_EXPERTS,
                               lf_cuda_expert_fits(d->numerics, &e->w1, &e->w2, &e->w3, folds));
        if (way == LF_EXPERT_PLAIN)
            plain_expert_room(slot, d, e);
        else if (way >= 0)
            batch_room(slot, d, e, way);
    }
}

/* A kernel that was asked for and cannot do its shape has no room: the operation will refuse it. */
void lf_cuda_room(size_t slot[LF_SCRATCH_SLOTS], const lf_dev *d, const lf_dev_load *l)
{
    const lf_model *m = d->model;

    memset(slot, 0, sizeof *slot * LF_SCRATCH_SLOTS);
    for (int i = 0; i < l->gemms; i++) {
        lf_gemm g = l->gemm[i].g;
        g.w = &l->gemm[i].w;
        gemm_room(slot, d, &g);
    }
    for (int i = 0; i < l->experts_n; i++)
        expert_room(slot, d, &l->experts[i]);
    most(slot, LF_SCRATCH_A, (int64_t)lf_cuda_hc_scratch(l->rows, m->hc * m->hidden, (2 + m->hc) * m->hc));
    if (l->queries) {
        most(slot, LF_SCRATCH_A, (int64_t)lf_cuda_topk_scratch(l->queries, l->keys));
        most(slot, LF_SCRATCH_B, (int64_t)lf_cuda_index_fold_scratch(d, l->queries, l->keys));
    }
    most(slot, LF_SCRATCH_A, (int64_t)lf_cuda_sort_scratch(l->logit_rows, m->vocab, l->logit_topk));
    most(slot, LF_SCRATCH_ROUTE, 4 * l->routed * m->experts);
    most(slot, LF_SCRATCH_A, (int64_t)lf_cuda_pairs_scratch(l->routed * m->experts_per_tok, m->experts));
    most(slot, LF_SCRATCH_A, (int64_t)lf_cuda_arrivals_scratch(1, m->experts));       /* of all senders together */
}

static int64_t grains(size_t bytes)
{
    return lf_round_up((int64_t)bytes, LF_CUDA_GRAIN);
}

int64_t lf_cuda_room_bank(const size_t slot[LF_SCRATCH_SLOTS])
{
    int64_t n = 0;

    for (int i = 0; i < LF_CUDA_BANKS; i++)
        n += grains(slot[lf_cuda_bank_slot(i)]) + grains(slot[lf_cuda_bank_scale_slot(i)]);
    return n;
}

int64_t lf_cuda_room_rest(const size_t slot[LF_SCRATCH_SLOTS])
{
    int64_t n = -lf_cuda_room_bank(slot);

    for (int i = 0; i < LF_SCRATCH_SLOTS; i++)
        n += grains(slot[i]);
    return n;
}
