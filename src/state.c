/* SPDX-License-Identifier: Apache-2.0
 *
 * What a finished layer leaves behind, as the KV file wants it.   Source: product.md, "The KV file, version 1".
 *
 * Each writing rank (tp rank 0) hands over the rows it owns: window rows of the last W positions, its compressed
 * entries, and, where the sequence ends here, the compressors' state.
 */
#include "pass.h"

/* Activation rows, a tile at a time, in the file's format; packed on the output queue, which alone uses file_rows. */
static void rows_out(lf_pass *p, int seq, int layer, lf_kv_part part, int64_t row0, int64_t rows, const lf_act *x,
                     int64_t width)
{
    lf_row_fmt fmt = lf_part_fmt(part, p->engine->setup.kv_dtype);
    size_t bytes = lf_row_bytes(p->model, fmt, width);
    int transformed = p->dev->numerics == LF_RELEASED;

    for (int64_t at = 0, n; at < rows; at += n) {
        n = lf_min(p->tile_rows, rows - at);
        p->ops->row_pack(p->dev, p->file_rows, lf_act_at(p->dev, x, at * width), n, width, fmt, transformed);
        lf_out_rows(p, seq, layer, part, row0 + at, n, p->file_rows, bytes * (size_t)n);
    }
}

static void window_out(lf_pass *p, int layer, const lf_run *r)
{
    int64_t length = p->mine->length[r->seq], first = lf_max(0, length - p->model->window), d = p->model->head_dim;
    int64_t from = lf_max(first, r->pos0), end = r->pos0 + r->len;

    if (from < end)
        rows_out(p, r->seq, layer, LF_PART_SWA, from - first, end - from,
                 lf_act_at(p->dev, p->kv, (r->kv_row0 + r->halo + from - r->pos0) * d), d);
}

static void entries_out(lf_pass *p, int layer, int run, const lf_pool *k, lf_kv_part part)
{
    const lf_run *r = &p->mine->run[run];
    int ratio = lf_pass_ratio(p, layer);
    int64_t first, count;

    lf_run_blocks(r, ratio, &first, &count);
    rows_out(p, r->seq, layer, part, first, count,
             lf_act_at(p->dev, k->rows, lf_pass_rows_at(p, run, ratio) * k->width), k->width);
}

static void floats_out(lf_pass *p, int seq, int layer, lf_kv_part part, const float *u, const float *g, int64_t rows,
                       int64_t width)
{
    size_t bytes = sizeof(float) * (size_t)(rows * width);

    if (rows == 0)
        return;
    lf_out_rows(p, seq, layer, part, 0, rows, u, bytes);
    lf_out_rows(p, seq, layer, part + 1, 0, rows, g, bytes);       /* gates follow values in lf_kv_part */
}

/* The open block, and for ratio 4 the first channels of the block before it, which may lie on another rank. */
static void state_out(lf_pass *p, int layer, int run, const lf_pool *k, lf_kv_part open, lf_kv_part prev)
{
    const lf_run *r = &p->mine->run[run];
    int ratio = lf_pass_ratio(p, layer);
    int64_t length = p->mine->length[r->seq], first, count, at = run * 4 * k->width;

    if (r->pos0 + r->len != length)
        return;
    floats_out(p, r->seq, layer, open, k->open_u + r->seq * k->open_floats, k->open_g + r->seq * k->open_floats,
               length % ratio, ratio == 4 ? 2 * k->width : k->width);
    if (ratio != 4 || length < 4)
        return;
    lf_run_blocks(r, 4, &first, &count);
    floats_out(p, r->seq, layer, prev, (count ? k->tail_u : k->prev_u) + at, (count ? k->tail_g : k->prev_g) + at, 4,
               k->width);
}

static void run_out(lf_pass *p, int layer, int run)
{
    lf_kind kind = p->model->kind[layer];

    window_out(p, layer, &p->mine->run[run]);
    if (kind == LF_SWA)
        return;
    entries_out(p, layer, run, &p->main, LF_PART_COMPRESSED);
    state_out(p, layer, run, &p->main, LF_PART_MAIN_OPEN_KV, LF_PART_MAIN_PREV_KV);
    if (kind != LF_C4)
        return;
    entries_out(p, layer, run, &p->index, LF_PART_INDEX);
    state_out(p, layer, run, &p->index, LF_PART_INDEX_OPEN_KV, LF_PART_INDEX_PREV_KV);
}

void lf_state_hand_over(lf_pass *p, int layer)
{
    lf_out_begin(p);
    for (int i = 0; p->engine->topo->grid.tp_rank == 0 && i < p->mine->runs; i++)
        run_out(p, layer, i);
    lf_out_end(p);
}
