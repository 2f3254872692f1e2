/* SPDX-License-Identifier: Apache-2.0
 *
 * The compressors of a layer over a sharded prompt.   Source: model.md, "Compressor"; engine.md,
 * "One layer on one rank".
 *
 * A ratio-4 entry pools its own block and the one before it.  Inside a run the one before is at hand; the first entry
 * of a run waits until the halo exchange has brought it from its owner.
 */
#include "pass.h"

#include <stdlib.h>

typedef struct part {
    lf_pool *pool;
    const lf_compressor *w;
    int ratio, index;
    int64_t width, ld;                     /* channels of an entry; of a u or g row */
    lf_row_fmt fmt;
    size_t row_bytes;
} part;

static part part_of(lf_pass *p, int layer, int index)
{
    const lf_layer *y = &p->engine->weights.layer[layer];
    part k = { .pool = index ? &p->index : &p->main, .w = index ? &y->index : &y->main, .index = index,
               .ratio = lf_pass_ratio(p, layer), .fmt = index ? p->engine->index_fmt : p->engine->row_fmt };

    k.width = k.pool->width;
    k.ld = k.ratio == 4 ? 2 * k.width : k.width;
    k.row_bytes = lf_row_bytes(p->model, k.fmt, k.width);
    return k;
}

/* Entries from u, g on, packed to where they belong among this rank's own. */
static void entries(lf_pass *p, const part *k, int run, const float *u, const float *g, int64_t block0, int64_t blocks,
                    const float *prev_u, const float *prev_g, int64_t prev_ld)
{
    const lf_run *r = &p->mine->run[run];
    lf_compress c = { .out = p->t, .u = u, .g = g, .blocks = blocks, .block0 = r->pos0 / k->ratio + block0,
                      .ratio = k->ratio, .width = k->width, .prev_u = prev_u, .prev_g = prev_g, .prev_ld = prev_ld,
                      .norm = k->w->norm, .rope = p->engine->weights.rope_compressed };

    p->ops->compress(p->dev, &c);
    p->ops->row_pack(p->dev, k->pool->mine + (size_t)(lf_share_entry0(p->mine, run, k->ratio) + block0) * k->row_bytes,
                     p->t, blocks, k->width, k->fmt, 0);
}

/* The tokens after the last complete block of the sequence are its state. */
static void keep_open(lf_pass *p, const part *k, const lf_run *r, const float *u, const float *g, int64_t rows)
{
    size_t bytes = sizeof(float) * (size_t)(rows * k->ld);

    p->ops->copy(p->dev, k->pool->open_u + r->seq * k->pool->open_floats, u, bytes);
    p->ops->copy(p->dev, k->pool->open_g + r->seq * k->pool->open_floats, g, bytes);
}

static void keep_tail(lf_pass *p, const part *k, int run, const float *u, const float *g)
{
    size_t width = sizeof(float) * (size_t)k->width, ld = sizeof(float) * (size_t)k->ld;

    p->ops->copy_rows(p->dev, k->pool->tail_u + run * 4 * k->width, width, u, ld, width, 4);
    p->ops->copy_rows(p->dev, k->pool->tail_g + run * 4 * k->width, width, g, ld, width, 4);
}

static void piece4(lf_pass *p, const part *k, const lf_piece *x, const float *u, const float *g)
{
    int64_t blocks = x->len / 4, ld = k->ld, at = x->run * 4 * k->width;
    size_t block = sizeof(float) * (size_t)(4 * ld);

    if (blocks == 0)
        return;
    if (x->off == 0) {
        p->ops->copy(p->dev, k->pool->head_u + x->run * 4 * ld, u, block);
        p->ops->copy(p->dev, k->pool->head_g + x->run * 4 * ld, g, block);
        if (blocks > 1)
            entries(p, k, x->run, u + 4 * ld, g + 4 * ld, 1, blocks - 1, u, g, ld);
    } else
        entries(p, k, x->run, u, g, x->off / 4, blocks, k->pool->tail_u + at, k->pool->tail_g + at, k->width);
    keep_tail(p, k, x->run, u + (blocks - 1) * 4 * ld, g + (blocks - 1) * 4 * ld);
}

void lf_compress_tile(lf_pass *p, int layer, const lf_tile *tile, int index)
{
    part k = part_of(p, layer, index);
    lf_gemm u = { .x = p->y, .m = tile->rows, .ldx = p->model->hidden, .w = &k.w->wkv, .out = p->u, .ldo = k.ld,
                  .kind = LF_OUT_F32 };
    lf_gemm g = { .x = p->y, .m = tile->rows, .ldx = p->model->hidden, .w = &k.w->wgate, .out = p->g, .ldo = k.ld,
                  .kind = LF_OUT_F32 };

    p->ops->gemm(p->dev, &u);
    p->ops->gemm(p->dev, &g);
    for (int i = 0; i < tile->pieces; i++) {
        const lf_piece *x = &p->my->piece[tile->piece0 + i];
        float *pu = p->u + x->row * k.ld, *pg = p->g + x->row * k.ld;
        int64_t whole = x->len / k.ratio;
        p->ops->add_ape(p->dev, pg, x->len, k.ld, k.w->ape, k.ratio);
        if (k.ratio == 4)
            piece4(p, &k, x, pu, pg);
        else if (whole)
            entries(p, &k, x->run, pu, pg, x->off / k.ratio, whole, NULL, NULL, 0);
        if (x->len % k.ratio)
            keep_open(p, &k, &p->mine->run[x->run], pu + whole * k.ratio * k.ld, pg + whole * k.ratio * k.ld,
                      x->len % k.ratio);
    }
}

void lf_compress_heads(lf_pass *p, int layer, int index)
{
    part k = part_of(p, layer, index);

    for (int r = 0; k.ratio == 4 && r < p->mine->runs; r++) {
        int64_t first, count, at = r * 4 * k.width;
        int has_prev = p->mine->run[r].pos0 > 0;
        lf_run_blocks(&p->mine->run[r], 4, &first, &count);
        if (count)
            entries(p, &k, r, k.pool->head_u + 2 * at, k.pool->head_g + 2 * at, 0, 1,
                    has_prev ? k.pool->prev_u + at : NULL, has_prev ? k.pool->prev_g + at : NULL, k.width);
    }
}

/* The entries of rank r's runs, packed at `from`, unpacked to their places. */
static void unpack_share(lf_pass *p, const part *k, int r, const uint8_t *from)
{
    const lf_shard *s = &p->shard[r];
    int64_t first, n, at = 0;

    for (int i = 0; i < s->runs; i++, at += n) {
        lf_run_blocks(&s->run[i], k->ratio, &first, &n);
        int64_t to = p->merge ? at : lf_pass_entry0(p, s->run[i].seq, k->ratio) + first;
        p->ops->row_unpack(p->dev, lf_act_at(p->dev, k->pool->rows, to * k->width), from + (size_t)at * k->row_bytes, n,
                           k->width, k->fmt);
    }
}

/* Where every rank's packed entries lie in the pool's `all`, rank after rank; returned: the caller's, [2 pcp], counts
 * first. */
static size_t *places(const lf_pass *p, const part *k)
{
    int pcp = p->mine->pcp;
    size_t *count = lf_alloc(sizeof *count * 2 * (size_t)pcp), used = 0;

    for (int r = 0; r < pcp; r++) {
        count[r] = (size_t)lf_share_entry0(&p->shard[r], p->shard[r].runs, k->ratio) * k->row_bytes;
        count[pcp + r] = used;
        used += count[r];
    }
    return count;
}

int lf_compress_gather(lf_pass *p, int layer, int index)
{
    part k = part_of(p, layer, index);

    if (p->merge)
        return 0;
    size_t *count = places(p, &k);
    int bad = lf_coll_gather(p->engine->topo->pcp, p->dev, k.pool->all, count, count + p->mine->pcp, k.pool->mine,
                             p->err);
    free(count);
    return bad;
}

void lf_compress_unpack(lf_pass *p, int layer, int index)
{
    part k = part_of(p, layer, index);

    if (p->merge) {
        unpack_share(p, &k, p->mine->rank, k.pool->mine);
        return;
    }
    size_t *count = places(p, &k);
    for (int r = 0; r < p->mine->pcp; r++)
        unpack_share(p, &k, r, k.pool->all + count[p->mine->pcp + r]);
    free(count);
}

/* --- halos --- */

typedef struct xfers {
    lf_xfer *send, *recv;
    int sends, recvs;
} xfers;

static int run_index(const lf_shard *s, int seq, int64_t pos)
{
    return (int)(lf_shard_find(s, seq, pos) - s->run);
}

static void one_way(lf_pass *p, xfers *x, const lf_halo *h, void *from, void *to, size_t bytes)
{
    int me = p->mine->rank;

    if (h->from == me && h->to == me)
        p->ops->copy(p->dev, to, from, bytes);
    else if (h->from == me)
        x->send[x->sends++] = (lf_xfer){ .peer = h->to, .data = from, .bytes = bytes };
    else if (h->to == me)
        x->recv[x->recvs++] = (lf_xfer){ .peer = h->from, .data = to, .bytes = bytes };
}

static void window_halo(lf_pass *p, xfers *x, const lf_halo *h)
{
    int64_t d = p->model->head_dim;
    void *from = NULL, *to = NULL;

    if (h->from == p->mine->rank) {
        const lf_run *r = lf_shard_find(p->mine, h->seq, h->pos0);
        from = lf_act_at(p->dev, p->kv, (r->kv_row0 + r->halo + h->pos0 - r->pos0) * d);
    }
    if (h->to == p->mine->rank) {
        const lf_run *r = lf_shard_find(p->mine, h->seq, h->need);
        to = lf_act_at(p->dev, p->kv, (r->kv_row0 + r->halo - (r->pos0 - h->pos0)) * d);
    }
    one_way(p, x, h, from, to, (size_t)(h->len * d) * p->dev->act_bytes);
}

/* The run before ends where the needing one begins, so its tail is the block asked for. */
static void pool_halo(lf_pass *p, xfers *x, const lf_halo *h, lf_pool *k)
{
    int64_t from = h->from == p->mine->rank ? run_index(p->mine, h->seq, h->pos0) * 4 * k->width : 0;
    int64_t to = h->to == p->mine->rank ? run_index(p->mine, h->seq, h->need) * 4 * k->width : 0;
    size_t bytes = sizeof(float) * (size_t)(4 * k->width);

    one_way(p, x, h, k->tail_u + from, k->prev_u + to, bytes);
    one_way(p, x, h, k->tail_g + from, k->prev_g + to, bytes);
}

int lf_halo_exchange(lf_pass *p, int layer)
{
    lf_halo *win, *four;
    int wins = lf_shard_halos(p->mine, p->model->window - 1, &win);
    int fours = lf_shard_halos(p->mine, 4, &four);
    size_t most = sizeof(lf_xfer) * (size_t)(wins + 4 * fours);
    xfers x = { .send = lf_alloc(most), .recv = lf_alloc(most) };

    for (int i = 0; i < wins; i++)
        window_halo(p, &x, &win[i]);
    for (int i = 0; lf_pass_ratio(p, layer) == 4 && i < fours; i++) {
        pool_halo(p, &x, &four[i], &p->main);
        pool_halo(p, &x, &four[i], &p->index);
    }
    int bad = lf_coll_exchange(p->engine->topo->pcp, p->dev, x.send, x.sends, x.recv, x.recvs, p->err);
    free(win);
    free(four);
    free(x.send);
    free(x.recv);
    return bad;
}
