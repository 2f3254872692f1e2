/* SPDX-License-Identifier: Apache-2.0 */
#include "pass.h"

#include <stdlib.h>

enum { ALIGN = 64, MOST = 512 << 20 };     /* bytes of a half at most, where a single piece is not larger */

struct lf_out_piece {
    int logits;                            /* else rows */
    int seq, layer, part;                  /* lf_kv_part, or lf_logits_kind */
    int64_t row0, rows;
    size_t at, bytes;
};

/* --- how much --- */

/* Values and gates of what a run's compressors leave, floats of 4 bytes: the open block; ratio 4: the block before. */
static size_t state_bytes(const lf_pass *p, int ratio, int64_t len)
{
    if (ratio == 4)
        return 8 * (size_t)((3 * 2 + 4) * (p->main.width + p->index.width));
    return ratio ? 8 * (size_t)(lf_min(ratio - 1, len) * p->main.width) : 0;
}

/* A layer's rows and state of this rank, not less. */
static size_t layer_bytes(const lf_pass *p, int ratio)
{
    const lf_model *m = p->model;
    lf_kv_dtype kv = p->engine->setup.kv_dtype;
    size_t window = lf_row_bytes(m, lf_part_fmt(LF_PART_SWA, kv), m->head_dim), n = 0;
    size_t entry = lf_row_bytes(m, lf_part_fmt(LF_PART_COMPRESSED, kv), m->head_dim);

    if (ratio == 4)
        entry += lf_row_bytes(m, lf_part_fmt(LF_PART_INDEX, kv), m->index_dim);
    for (int i = 0; i < p->mine->runs; i++) {
        int64_t len = p->mine->run[i].len;
        n += window * (size_t)lf_min(m->window, len) + state_bytes(p, ratio, len) + 16 * ALIGN;
    }
    int64_t entries = ratio ? lf_share_entry0(p->mine, p->mine->runs, ratio) : 0;
    return n + (entry + ALIGN) * (size_t)entries;
}

/* A tile of rows, or of logits: what must lie in a half together. */
static size_t piece_bytes(const lf_pass *p)
{
    const lf_logits_want *want = &p->engine->setup.logits;
    size_t rows = 4 * (size_t)(p->tile_rows * lf_max(p->model->head_dim, p->model->index_dim)), head = 0;

    if (want->all)
        head = 4 * (size_t)p->model->vocab;
    head = LF_HEAD_TILE * (head + 8 * (size_t)want->topk + 4) + 4 * ALIGN;
    return ALIGN + (rows > head ? rows : head);
}

static size_t half_bytes(const lf_pass *p)
{
    size_t most = layer_bytes(p, 0), one = piece_bytes(p);

    if (p->engine->topo->grid.tp_rank != 0)
        return ALIGN;                      /* the first tp rank writes */
    for (int i = 0; i < p->model->layers; i++) {
        size_t n = layer_bytes(p, lf_pass_ratio(p, i));
        most = n > most ? n : most;
    }
    most = most < MOST ? most : MOST;
    return most > one ? most : one;
}

size_t lf_out_bytes(const lf_pass *p)
{
    return 2 * ((half_bytes(p) + ALIGN - 1) / ALIGN * ALIGN);
}

int lf_out_open(lf_pass *p)
{
    lf_engine *e = p->engine;
    size_t both = lf_out_bytes(p);

    if (e->out_bytes < both) {
        p->ops->host_give(p->dev, e->out_host);
        e->out_host = NULL;
        e->out_bytes = 0;
        if (p->ops->host_take(p->dev, &e->out_host, both, "finished rows", p->err))
            return -1;
        e->out_bytes = both;
    }
    p->out.bytes = both / 2;
    for (int i = 0; i < 2; i++)
        p->out.half[i] = (lf_out_half){ .host = (char *)e->out_host + (size_t)i * p->out.bytes };
    return 0;
}

void lf_out_close(lf_pass *p)
{
    for (int i = 0; i < 2; i++)
        free(p->out.half[i].piece);
}

/* --- to the sink --- */

static void hand_over(lf_pass *p, lf_out_half *h)
{
    const lf_sink *s = p->sink;

    for (int i = 0; i < h->pieces; i++) {
        const lf_out_piece *x = &h->piece[i];
        if (x->logits)
            s->logits(s->ctx, x->seq, (lf_logits_kind)x->part, x->row0, x->rows, h->host + x->at, x->bytes);
        else
            s->rows(s->ctx, x->seq, x->layer, (lf_kv_part)x->part, x->row0, x->rows, h->host + x->at, x->bytes);
    }
    h->pieces = 0;
    h->used = 0;
}

/* Empties a half: once its copies have come. */
static void empty(lf_pass *p, int half)
{
    lf_phase before = p->phase;

    lf_pass_phase(p, LF_PHASE_WRITE_WAIT);
    p->ops->wait(p->dev, LF_MARK_OUT + half);
    hand_over(p, &p->out.half[half]);
    lf_pass_phase(p, before);
}

/* The older half first. */
void lf_out_drain(lf_pass *p, int all)
{
    for (int i = 1; i >= 0; i--) {
        int half = p->out.now ^ i;
        if (p->out.half[half].pieces == 0)
            continue;
        if (!all && !p->ops->past(p->dev, LF_MARK_OUT + half))
            return;
        empty(p, half);
    }
}

/* --- from the device --- */

static void turn(lf_pass *p)
{
    p->out.now ^= 1;
    if (p->out.half[p->out.now].pieces)
        empty(p, p->out.now);
}

void lf_out_begin(lf_pass *p)
{
    turn(p);
    p->ops->mark(p->dev, LF_MARK_FINISHED);
    p->ops->use(p->dev, LF_QUEUE_OUT);
    p->ops->after(p->dev, LF_MARK_FINISHED);
}

void lf_out_end(lf_pass *p)
{
    p->ops->mark(p->dev, LF_MARK_OUT + p->out.now);
    p->ops->use(p->dev, LF_QUEUE_COMPUTE);
}

/* A half that is full leaves at once, and the other is filled. */
static void add(lf_pass *p, lf_out_piece x, const void *src)
{
    lf_out_half *h = &p->out.half[p->out.now];

    if (h->used + x.bytes > p->out.bytes) {
        lf_out_end(p);
        lf_out_begin(p);
        h = &p->out.half[p->out.now];
    }
    if (h->pieces == h->room) {
        h->room = h->room ? 2 * h->room : 64;
        h->piece = lf_realloc(h->piece, sizeof *h->piece * (size_t)h->room);
    }
    x.at = h->used;
    h->piece[h->pieces++] = x;
    h->used = lf_min(p->out.bytes, (x.at + x.bytes + ALIGN - 1) / ALIGN * ALIGN);
    p->ops->fetch(p->dev, h->host + x.at, src, x.bytes);
}

void lf_out_rows(lf_pass *p, int seq, int layer, lf_kv_part part, int64_t row0, int64_t rows, const void *src,
                 size_t bytes)
{
    add(p, (lf_out_piece){ .seq = seq, .layer = layer, .part = (int)part, .row0 = row0, .rows = rows, .bytes = bytes },
        src);
}

void lf_out_logits(lf_pass *p, int seq, int kind, int64_t row0, int64_t rows, const void *src, size_t bytes)
{
    add(p, (lf_out_piece){ .logits = 1, .seq = seq, .part = kind, .row0 = row0, .rows = rows, .bytes = bytes }, src);
}

void lf_out_settled(lf_pass *p)
{
    lf_phase before = p->phase;

    lf_pass_phase(p, LF_PHASE_WRITE_WAIT);
    p->ops->after(p->dev, LF_MARK_OUT + p->out.now);
    lf_pass_phase(p, before);
}
