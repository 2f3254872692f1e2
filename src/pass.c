/* SPDX-License-Identifier: Apache-2.0 */
#include "pass.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 };                      /* of every buffer, in bytes */

/* --- tiles --- */

/* Cuts the runs of a share into tiles; with tile and piece NULL only counts. */
static int cut(const lf_shard *s, int64_t tile_rows, lf_tile *tile, lf_piece *piece, int *pieces)
{
    int tiles = 0, n = 0;
    int64_t used = tile_rows, row = 0;                 /* "full": the first piece opens a tile */

    for (int r = 0; r < s->runs; r++)
        for (int64_t off = 0, take; off < s->run[r].len; off += take) {
            int64_t left = s->run[r].len - off;
            take = lf_min(left, tile_rows - used);
            if (take < left)
                take -= take % LF_BLOCK;
            if (take == 0) {
                used = 0;
                tiles++;
                take = lf_min(left, tile_rows);
                if (tile)
                    tile[tiles - 1] = (lf_tile){ .row0 = row, .piece0 = n };
            }
            if (tile) {
                piece[n] = (lf_piece){ .run = r, .off = off, .len = take, .row = used };
                tile[tiles - 1].rows += take;
                tile[tiles - 1].pieces++;
            }
            n++;
            used += take;
            row += take;
        }
    *pieces = n;
    return tiles;
}

static void make_tiles(lf_pass *p)
{
    int pieces, pcp = p->mine->pcp;

    p->tiling = lf_alloc(sizeof *p->tiling * (size_t)pcp);
    p->my = &p->tiling[p->mine->rank];
    for (int r = 0; r < pcp; r++) {
        lf_tiling *g = &p->tiling[r];
        g->tiles = cut(&p->shard[r], p->tile_rows, NULL, NULL, &pieces);
        g->tile = lf_alloc(sizeof *g->tile * (size_t)g->tiles);
        g->piece = lf_alloc(sizeof *g->piece * (size_t)pieces);
        cut(&p->shard[r], p->tile_rows, g->tile, g->piece, &pieces);
        p->rounds = g->tiles > p->rounds ? g->tiles : p->rounds;
    }
}

const lf_tile *lf_tiling_at(const lf_tiling *g, int t)
{
    static const lf_tile none;

    return t < g->tiles ? &g->tile[t] : &none;
}

int64_t lf_slice(const lf_pass *p, const lf_tile *t, int tp_rank, int64_t *rows)
{
    int tp = p->engine->topo->grid.tp;
    int64_t first = t->rows * tp_rank / tp;

    *rows = t->rows * (tp_rank + 1) / tp - first;
    return first;
}

void lf_tiling_clip(const lf_tiling *g, const lf_tile *t, int i, int64_t first, int64_t rows, lf_piece *x)
{
    *x = g->piece[t->piece0 + i];
    int64_t from = lf_max(x->row, first), end = lf_min(x->row + x->len, first + rows);

    x->off += from - x->row;
    x->len = lf_max(0, end - from);
    x->row = from - first;
}

int lf_slice_gather(lf_pass *p, const lf_tile *t, void *dst, const void *src, size_t bytes)
{
    int tp = p->engine->topo->grid.tp;
    size_t *count = lf_alloc(sizeof *count * 2 * (size_t)tp), *at = count + tp;

    for (int r = 0; r < tp; r++) {
        int64_t rows, first = lf_slice(p, t, r, &rows);
        count[r] = (size_t)rows * bytes;
        at[r] = (size_t)first * bytes;
    }
    int bad = lf_coll_gather(p->engine->topo->tp, p->dev, dst, count, at, src, p->err);
    free(count);
    return bad;
}

int64_t lf_pass_entry0(const lf_pass *p, int s, int ratio)
{
    int64_t n = 0;

    for (int i = 0; i < s; i++)
        n += p->mine->length[i] / ratio;
    return n;
}

int64_t lf_share_entry0(const lf_shard *s, int run, int ratio)
{
    int64_t n = 0, first, count;

    for (int i = 0; i < run; i++) {
        lf_run_blocks(&s->run[i], ratio, &first, &count);
        n += count;
    }
    return n;
}

int64_t lf_pass_rows_at(const lf_pass *p, int run, int ratio)
{
    int64_t first, count;

    if (p->merge)
        return lf_share_entry0(p->mine, run, ratio);
    lf_run_blocks(&p->mine->run[run], ratio, &first, &count);
    return lf_pass_entry0(p, p->mine->run[run].seq, ratio) + first;
}

/* --- buffers --- */

typedef struct want {
    void **at;
    size_t bytes;
} want;

typedef struct wants {
    want w[96];
    int n;
    size_t bytes, of[LF_MEMORY_KINDS];
    lf_memory_kind kind;                   /* of what is asked for next */
} wants;

static void ask(wants *w, void *at, double count, size_t each)
{
    want *x = &w->w[w->n++];

    *x = (want){ .at = at, .bytes = ((size_t)count * each / ALIGN + 1) * ALIGN };
    w->bytes += x->bytes;
    w->of[w->kind] += x->bytes;
}

static void ask_pool(wants *w, lf_pass *p, lf_pool *k, int64_t width, int index)
{
    const lf_shard *s = p->mine;
    lf_row_fmt fmt = index ? p->engine->index_fmt : p->engine->row_fmt;
    size_t row = lf_row_bytes(p->model, fmt, width);
    int64_t runs = s->runs, own = lf_share_entry0(s, s->runs, 4);
    int64_t all = p->merge ? own : lf_pass_entry0(p, s->sequences, 4);

    k->width = width;
    k->open_floats = width * (index ? 6 : 127);
    ask(w, &k->head_u, (double)runs * 8 * (double)width, 4);
    ask(w, &k->head_g, (double)runs * 8 * (double)width, 4);
    ask(w, &k->tail_u, (double)runs * 4 * (double)width, 4);
    ask(w, &k->tail_g, (double)runs * 4 * (double)width, 4);
    ask(w, &k->prev_u, (double)runs * 4 * (double)width, 4);
    ask(w, &k->prev_g, (double)runs * 4 * (double)width, 4);
    ask(w, &k->open_u, (double)(s->sequences * k->open_floats), 4);
    ask(w, &k->open_g, (double)(s->sequences * k->open_floats), 4);
    ask(w, &k->mine, (double)own, row);
    ask(w, &k->all, p->merge ? 0 : (double)all, row);
    ask(w, &k->rows, (double)all * (double)width, p->dev->act_bytes);
}

static void ask_experts(wants *w, lf_pass *p)
{
    const lf_model *m = p->model;
    size_t act = p->dev->act_bytes;
    const lf_grid *g = &p->engine->topo->grid;
    int64_t slice = lf_ceil_div(p->tile_rows, g->tp), k = m->experts_per_tok, spread = g->ep > 1;
    double pairs = (double)(slice * k), most = (double)(p->tile_rows * k) * g->pcp, d = (double)m->hidden;

    ask(w, &p->ones, (double)p->tile_rows, 4);
    ask(w, &p->iota, (double)p->tile_rows, 4);
    ask(w, &p->expert, pairs, 4);
    ask(w, &p->token, pairs, 4);
    ask(w, &p->count, m->experts, 4);
    ask(w, &p->weight, pairs, 4);
    ask(w, &p->pair_weight, most, 4);
    ask(w, &p->done, most * d, act);
    ask(w, &p->sent_weight, spread ? pairs : 0, 4);
    ask(w, &p->shared, spread ? (double)slice * d : 0, act);
    ask(w, &p->sent, spread ? pairs * d : 0, act);
    ask(w, &p->back, spread ? pairs * d : 0, act);
    ask(w, &p->src, spread ? most : 0, 4);
    ask(w, &p->home, spread ? most : 0, 4);
    for (int i = 0; i < 3; i++)
        ask(w, &p->slot[i], i == 0 || spread ? pairs : 0, 4);
    for (int i = 0; i < 2; i++) {
        ask(w, &p->came[i], spread ? most * d : 0, act);
        ask(w, &p->came_weight[i], spread ? most : 0, 4);
    }
}

static void ask_tile(wants *w, lf_pass *p)
{
    const lf_model *m = p->model;
    size_t act = p->dev->act_bytes;
    double t = (double)p->tile_rows, heads = (double)p->engine->weights.heads * m->head_dim;
    double entry = lf_max(m->head_dim, m->index_dim), wide = (double)lf_max(m->hidden, m->head_dim);

    ask(w, &p->y, t * (double)m->hidden, act);
    ask(w, &p->z, t * (double)m->hidden, act);
    ask(w, &p->q, t * heads, act);
    ask(w, &p->o, t * heads, act);
    ask(w, &p->o_lat, t * (double)p->engine->weights.groups * (double)m->o_rank, act);
    ask(w, &p->t, t * wide, act);
    ask(w, &p->index_q, t * m->index_heads * m->index_dim, act);
    ask(w, &p->sel, t * m->index_topk, 4);
    ask(w, &p->u, t * 2 * entry, 4);
    ask(w, &p->g, t * 2 * entry, 4);
    ask(w, &p->file_rows, t * entry, 4);
    ask_experts(w, p);
}

static void ask_merge(wants *w, lf_pass *p)
{
    const lf_model *m = p->model;
    size_t act = p->dev->act_bytes;
    int pcp = p->mine->pcp;
    double all = p->merge ? (double)p->tile_rows * pcp : 0, heads = p->engine->weights.heads, row = heads * m->head_dim;
    double parts = p->merge ? (double)p->tile_rows * (2 * pcp + 1) : 0;

    ask(w, &p->all_q, all * row, act);
    ask(w, &p->all_index_q, all * m->index_heads * m->index_dim, act);
    ask(w, &p->all_index_w, all * m->index_heads, 4);
    ask(w, &p->all_sel, all * m->index_topk, 4);
    ask(w, &p->part_out, 2 * all * row, act);
    ask(w, &p->part_lse, 2 * all * heads, 4);
    ask(w, &p->parts, parts * row, act);
    ask(w, &p->parts_lse, parts * heads, 4);
    ask(w, &p->cand, 2 * all * m->index_topk, 4);
    ask(w, &p->cand_score, 2 * all * m->index_topk, 4);
    ask(w, &p->cands, parts * m->index_topk, 4);
    ask(w, &p->cands_score, parts * m->index_topk, 4);
}

static void ask_tp(wants *w, lf_pass *p)
{
    const lf_model *m = p->model;
    int tp = p->engine->topo->grid.tp;
    double t = tp > 1 ? (double)p->tile_rows : 0, head = tp > 1 ? LF_HEAD_TILE : 0;

    ask(w, &p->partial, t * (double)m->hidden, 4);
    ask(w, &p->sum_room, tp > 1 ? (double)(lf_min(p->tile_rows * m->hidden, LF_SUM_BLOCK) + tp) : 0, 4);
    ask(w, &p->sel_slice, t * m->index_topk, 4);
    ask(w, &p->slice, t * (double)m->hidden, p->dev->act_bytes);
    ask(w, &p->logit_part, head * (double)p->engine->weights.vocab, 4);
    ask(w, &p->logit_parts, head * (double)m->vocab, 4);
}

static void ask_head(wants *w, lf_pass *p)
{
    double rows = LF_HEAD_TILE, topk = (double)lf_max(1, p->engine->setup.logits.topk);

    ask(w, &p->logits, rows * (double)p->model->vocab, 4);
    ask(w, &p->top_ids, rows * topk, 4);
    ask(w, &p->top_values, rows * topk, 4);
    ask(w, &p->logprob, rows, 4);
    ask(w, &p->next, rows, 4);
}

static void ask_all(wants *w, lf_pass *p)
{
    const lf_model *m = p->model;
    size_t act = p->dev->act_bytes;
    double rows = (double)p->mine->rows;

    w->kind = LF_MEMORY_STREAMS;
    ask(w, &p->x, rows * m->hc * (double)m->hidden, act);
    w->kind = LF_MEMORY_WINDOW;
    ask(w, &p->kv, (double)p->mine->kv_rows * m->head_dim, act);
    w->kind = LF_MEMORY_TOKENS;
    ask(w, &p->q_lat, rows * (double)m->q_rank, act);
    ask(w, &p->index_w, rows * m->index_heads, 4);
    ask(w, &p->mix, rows * (m->hc + m->hc * m->hc), 4);
    ask(w, &p->pos, rows, 8);
    ask(w, &p->kv_row, rows, 8);
    ask(w, &p->ids, rows, 4);
    w->kind = LF_MEMORY_COMPRESSED;
    ask_pool(w, p, &p->main, m->head_dim, 0);
    ask_pool(w, p, &p->index, m->index_dim, 1);
    w->kind = LF_MEMORY_WORKSPACE;
    ask_tile(w, p);
    ask_head(w, p);
    ask_tp(w, p);
    ask_merge(w, p);
}

static int take_all(lf_pass *p, const wants *w)
{
    lf_engine *e = p->engine;
    char *at, need[24];

    if (e->arena_bytes < w->bytes) {
        p->ops->give(p->dev, e->arena);
        e->arena = NULL;
        e->arena_bytes = 0;
        if (p->ops->take(p->dev, &e->arena, w->bytes, "the buffers of a pass", p->err))
            return lf_fail_in(p->err, "this pass needs %s of device memory on this rank",
                              lf_human_bytes(need, (double)w->bytes));
        e->arena_bytes = w->bytes;
    }
    at = e->arena;
    for (int i = 0; i < w->n; i++) {
        *w->w[i].at = at;
        at += w->w[i].bytes;
    }
    return 0;
}

/* What the operations need for themselves. */
static int reserve(lf_pass *p)
{
    lf_dev_load load;

    if (!p->ops->reserve)
        return 0;
    lf_pass_load(p, &load);
    return p->ops->reserve(p->dev, &load, p->err);
}

/* --- open, close --- */

/* Not more than the busiest rank's tokens, and the same on all ranks. */
static int64_t tile_of(const lf_pass *p, int64_t asked)
{
    int64_t tile = asked ? asked : lf_engine_tile(p->dev->tile, &p->engine->topo->grid, p->merge), most = 1;

    for (int r = 0; r < p->mine->pcp; r++)
        most = lf_max(most, p->shard[r].rows);
    return lf_min(tile, lf_round_up(most, LF_BLOCK));
}

static void share(lf_pass *p, lf_engine *e, int n, const int64_t *lengths)
{
    const lf_grid *g = &e->topo->grid;

    p->engine = e;
    p->dev = e->dev;
    p->ops = e->dev->ops;                  /* NULL for a plan, which computes nothing */
    p->model = e->model;
    p->merge = e->setup.merge && g->pcp > 1;
    p->shard = lf_alloc(sizeof *p->shard * (size_t)g->pcp);
    for (int r = 0; r < g->pcp; r++)
        lf_shard_make(&p->shard[r], g->pcp, r, e->model->window, n, lengths);
    p->mine = &p->shard[g->pcp_rank];
    p->tile_rows = tile_of(p, e->setup.tile);
}

static void unshare(lf_pass *p)
{
    for (int r = 0; r < p->engine->topo->grid.pcp; r++) {
        lf_shard_free(&p->shard[r]);
        if (p->tiling) {
            free(p->tiling[r].tile);
            free(p->tiling[r].piece);
        }
    }
    free(p->shard);
    free(p->tiling);
}

/* Host copies of what put_rows puts. */
static size_t rows_bytes(const lf_pass *p)
{
    return (8 + 8 + 4) * (size_t)p->mine->rows + (4 + 4) * (size_t)p->tile_rows;
}

/* Positions, window slots and token ids of the local rows. */
static void put_rows(lf_pass *p)
{
    size_t rows = (size_t)p->mine->rows, tile = (size_t)p->tile_rows;
    void *host = lf_alloc(rows_bytes(p));
    int64_t *pos = host, *slot = pos + rows;
    uint32_t *ids = (uint32_t *)(slot + rows);
    float *ones = (float *)(ids + rows);
    int32_t *iota = (int32_t *)(ones + tile);

    for (int r = 0; r < p->mine->runs; r++) {
        const lf_run *k = &p->mine->run[r];
        for (int64_t i = 0; i < k->len; i++) {
            pos[k->row0 + i] = k->pos0 + i;
            slot[k->row0 + i] = k->kv_row0 + k->halo + i;
            ids[k->row0 + i] = p->prompts[k->seq].ids[k->pos0 + i];
        }
    }
    for (int64_t i = 0; i < p->tile_rows; i++) {
        ones[i] = 1;
        iota[i] = (int32_t)i;
    }
    p->ops->put(p->dev, p->pos, pos, 8 * rows);
    p->ops->put(p->dev, p->kv_row, slot, 8 * rows);
    p->ops->put(p->dev, p->ids, ids, 4 * rows);
    p->ops->put(p->dev, p->ones, ones, 4 * tile);
    p->ops->put(p->dev, p->iota, iota, 4 * tile);
    free(host);
}

int lf_pass_open(lf_pass *p, lf_engine *e, int n, const lf_prompt *prompts, const lf_sink *sink, double *seconds,
                 lf_err *err)
{
    int64_t *lengths = lf_alloc(sizeof *lengths * (size_t)n);
    wants w = { .n = 0 };

    for (int i = 0; i < n; i++)
        lengths[i] = prompts[i].tokens;
    *p = (lf_pass){ .prompts = prompts, .sink = sink, .seconds = seconds, .err = err };
    share(p, e, n, lengths);
    p->ops->stamp(p->dev, NULL, lf_phase_name(p->phase));
    free(lengths);
    make_tiles(p);
    ask_all(&w, p);
    if (take_all(p, &w) || reserve(p) || lf_out_open(p))
        return -1;
    put_rows(p);
    return 0;
}

void lf_pass_close(lf_pass *p)
{
    if (!p->engine)
        return;
    unshare(p);
    lf_out_close(p);
    *p = (lf_pass){ 0 };
}

size_t lf_pass_plan(const lf_engine *e, int n, const int64_t *lengths, size_t of[LF_MEMORY_KINDS], lf_dev_load *load,
                    size_t host[LF_HOST_KINDS])
{
    lf_pass p = { 0 };
    wants w = { .n = 0 };

    share(&p, (lf_engine *)(uintptr_t)e, n, lengths);
    ask_all(&w, &p);
    if (load)
        lf_pass_load(&p, load);
    if (host) {
        host[LF_HOST_OUTPUT] = lf_out_bytes(&p) + lf_engine_counts(e->model);
        host[LF_HOST_PROMPTS] = rows_bytes(&p);
    }
    unshare(&p);
    if (of)
        memcpy(of, w.of, sizeof w.of);
    return w.bytes;
}

void lf_pass_phase(lf_pass *p, lf_phase phase)
{
    p->ops->stamp(p->dev, &p->seconds[p->phase], lf_phase_name(phase));
    p->phase = phase;
}

void lf_pass_add_back(lf_pass *p, const lf_tile *t)
{
    lf_pass_phase(p, LF_PHASE_MHC);
    p->ops->hc_post(p->dev, lf_pass_streams(p, t->row0), p->z, lf_pass_mix(p, t->row0), t->rows);
}

void lf_exchange_begin(lf_pass *p)
{
    p->ops->mark(p->dev, LF_MARK_FORK);
    lf_exchange_from(p, LF_MARK_FORK);
}

void lf_exchange_from(lf_pass *p, int mark)
{
    p->ops->stamp(p->dev, &p->seconds[p->phase], lf_phase_name(LF_PHASE_COMMUNICATION));
    p->ops->use(p->dev, LF_QUEUE_EXCHANGE);
    p->ops->after(p->dev, mark);
}

void lf_exchange_end(lf_pass *p, int mark)
{
    p->ops->mark(p->dev, mark);
    p->ops->use(p->dev, LF_QUEUE_COMPUTE);
    p->ops->stamp(p->dev, &p->seconds[LF_PHASE_COMMUNICATION], lf_phase_name(p->phase));
}

void lf_exchange_await(lf_pass *p, int mark)
{
    p->ops->stamp(p->dev, &p->seconds[p->phase], lf_phase_name(LF_PHASE_COMMUNICATION));
    p->ops->after(p->dev, mark);
    p->ops->stamp(p->dev, &p->seconds[LF_PHASE_COMMUNICATION], lf_phase_name(p->phase));
}
