/* SPDX-License-Identifier: Apache-2.0
 *
 * Merge mode: compressed rows stay with their owners.   Source: engine.md, "merge mode".
 *
 * A round is one tile of every rank.  All ranks see all queries of the round, work on them over their own rows, and
 * send the parts home: candidates of the top-k, partial outputs with their log-sum-exp.  A rank has at most two runs
 * of a sequence; each is a part of its own, so a query comes home in 2 pcp parts, empty ones included.
 *
 * Layouts: to send, [home rank][2][rows of its tile][..]; as received, [2 pcp][rows of the own tile][..].
 */
#include "pass.h"

#include <stdlib.h>

enum { SLOTS = 2 };

/* One rank's share of a round: for top-k the tokens of this tp rank, for attention all of the tile's. */
typedef struct share {
    const lf_tile *tile;
    int64_t first, rows;                   /* within the tile */
    int64_t before;                        /* rows of the ranks before */
} share;

static void round_shares(const lf_pass *p, int round, int sliced, share *s)
{
    int64_t before = 0;

    for (int r = 0; r < p->mine->pcp; r++) {
        s[r].tile = lf_tiling_at(&p->tiling[r], round);
        s[r].first = 0;
        s[r].rows = s[r].tile->rows;
        if (sliced)
            s[r].first = lf_slice(p, s[r].tile, p->engine->topo->grid.tp_rank, &s[r].rows);
        s[r].before = before;
        before += s[r].rows;
    }
}

static share *shares_of(const lf_pass *p, int round, int sliced)
{
    share *s = lf_alloc(sizeof *s * (size_t)p->mine->pcp);

    round_shares(p, round, sliced, s);
    return s;
}

/* Everybody's rows to everybody. */
static int gather(lf_pass *p, const share *s, void *dst, const void *src, size_t row)
{
    int pcp = p->mine->pcp;
    size_t *count = lf_alloc(sizeof *count * 2 * (size_t)pcp), *at = count + pcp;

    for (int r = 0; r < pcp; r++) {
        count[r] = (size_t)s[r].rows * row;
        at[r] = (size_t)s[r].before * row;
    }
    int bad = lf_coll_gather(p->engine->topo->pcp, p->dev, dst, count, at, src, p->err);
    free(count);
    return bad;
}

/* Parts home: SLOTS parts for each rank's rows go to that rank. */
static int home(lf_pass *p, const share *s, void *dst, const void *src, size_t row)
{
    int pcp = p->mine->pcp, me = p->mine->rank;
    size_t *v = lf_alloc(sizeof *v * 4 * (size_t)pcp), *sc = v, *sa = v + pcp, *rc = v + 2 * pcp, *ra = v + 3 * pcp;

    for (int r = 0; r < pcp; r++) {
        sc[r] = SLOTS * (size_t)s[r].rows * row;
        sa[r] = SLOTS * (size_t)s[r].before * row;
        rc[r] = SLOTS * (size_t)s[me].rows * row;
        ra[r] = (size_t)r * rc[r];
    }
    int bad = lf_coll_all_to_all(p->engine->topo->pcp, p->dev, dst, rc, ra, src, sc, sa, p->err);
    free(v);
    return bad;
}

/* This rank's run number `slot` of a sequence, or -1. */
static int own_run(const lf_pass *p, int seq, int slot)
{
    for (int i = 0; i < p->mine->runs; i++)
        if (p->mine->run[i].seq == seq && slot-- == 0)
            return i;
    return -1;
}

/* The entries that this rank can offer to queries of a sequence in one slot. */
typedef struct offer {
    int64_t first, count, at;              /* global entry, how many, where in the pool's rows */
} offer;

static offer offer_of(const lf_pass *p, int seq, int slot, int ratio)
{
    offer o = { 0, 0, 0 };
    int run = own_run(p, seq, slot);

    if (run >= 0) {
        lf_run_blocks(&p->mine->run[run], ratio, &o.first, &o.count);
        o.at = lf_pass_rows_at(p, run, ratio);
    }
    return o;
}

static void candidates(lf_pass *p, const share *s, int r, int slot)
{
    const lf_model *m = p->model;
    int64_t to = (SLOTS * s[r].before + slot * s[r].rows) * m->index_topk;

    for (int i = 0; i < s[r].tile->pieces; i++) {
        lf_piece x;
        lf_tiling_clip(&p->tiling[r], s[r].tile, i, s[r].first, s[r].rows, &x);
        const lf_run *q = &p->shard[r].run[x.run];
        offer o = offer_of(p, q->seq, slot, 4);
        int64_t row = s[r].before + x.row;
        lf_topk k = { .sel = p->cand + to + x.row * m->index_topk, .score = p->cand_score + to + x.row * m->index_topk,
                      .q = lf_act_at(p->dev, p->all_index_q, row * m->index_heads * m->index_dim),
                      .w = p->all_index_w + row * m->index_heads, .queries = x.len, .pos0 = q->pos0 + x.off,
                      .keys = lf_act_at(p->dev, p->index.rows, o.at * m->index_dim), .row_first = o.first,
                      .row_count = o.count, .k = m->index_topk };
        p->ops->index_topk(p->dev, &k);
    }
}

int lf_merge_choose(lf_pass *p, int layer, int round, int32_t *sel)
{
    const lf_model *m = p->model;
    share *s = shares_of(p, round, 1);
    const share *own = &s[p->mine->rank];
    const float *w = p->index_w + (own->tile->row0 + own->first) * m->index_heads;
    size_t row = (size_t)(m->index_heads * m->index_dim) * p->dev->act_bytes, list = 4 * (size_t)m->index_topk;

    (void)layer;
    lf_pass_phase(p, LF_PHASE_COMMUNICATION);
    int bad = gather(p, s, p->all_index_q, p->index_q, row) ||
              gather(p, s, p->all_index_w, w, sizeof(float) * (size_t)m->index_heads);
    lf_pass_phase(p, LF_PHASE_INDEXER);
    for (int r = 0; r < p->mine->pcp && !bad; r++)
        for (int slot = 0; slot < SLOTS; slot++)
            candidates(p, s, r, slot);
    lf_pass_phase(p, LF_PHASE_COMMUNICATION);
    bad = bad || home(p, s, p->cands, p->cand, list) || home(p, s, p->cands_score, p->cand_score, list);
    lf_pass_phase(p, LF_PHASE_INDEXER);
    if (!bad)
        p->ops->topk_merge(p->dev, sel, p->cands, p->cands_score, SLOTS * p->mine->pcp, own->rows, m->index_topk);
    free(s);
    return bad ? -1 : 0;
}

/* Attention of rank r's queries over this rank's entries in one slot: no window, no sink. */
static void partial(lf_pass *p, int layer, const share *s, int r, int slot)
{
    int heads = p->engine->weights.heads, ratio = lf_pass_ratio(p, layer), k = p->model->index_topk;
    int64_t d = p->model->head_dim, to = SLOTS * s[r].before + slot * s[r].rows;

    for (int i = 0; i < s[r].tile->pieces; i++) {
        const lf_piece *x = &p->tiling[r].piece[s[r].tile->piece0 + i];
        const lf_run *q = &p->shard[r].run[x->run];
        offer o = offer_of(p, q->seq, slot, ratio);
        int64_t row = s[r].before + x->row;
        lf_attn a = { .out = lf_act_at(p->dev, p->part_out, (to + x->row) * heads * d),
                      .q = lf_act_at(p->dev, p->all_q, row * heads * d), .queries = x->len, .pos0 = q->pos0 + x->off,
                      .heads = heads, .rows = lf_act_at(p->dev, p->main.rows, o.at * d), .row_first = o.first,
                      .row_count = o.count, .ratio = ratio, .lse = p->part_lse + (to + x->row) * heads };
        if (p->model->kind[layer] == LF_C4) {
            a.sel = p->all_sel + row * k;
            a.sel_ld = k;
        }
        p->ops->attention(p->dev, &a);
    }
}

/* The window is at home: the last part. */
static void window_part(lf_pass *p, const share *own)
{
    int heads = p->engine->weights.heads;
    int64_t d = p->model->head_dim, at = SLOTS * p->mine->pcp * own->rows;

    for (int i = 0; i < own->tile->pieces; i++) {
        const lf_piece *x = &p->my->piece[own->tile->piece0 + i];
        const lf_run *r = &p->mine->run[x->run];
        lf_attn a = { .out = lf_act_at(p->dev, p->parts, (at + x->row) * heads * d),
                      .q = lf_act_at(p->dev, p->q, x->row * heads * d), .queries = x->len, .pos0 = r->pos0 + x->off,
                      .heads = heads, .win = lf_act_at(p->dev, p->kv, r->kv_row0 * d), .win_pos0 = r->pos0 - r->halo,
                      .win_rows = r->halo + r->len, .lse = p->parts_lse + (at + x->row) * heads };
        p->ops->attention(p->dev, &a);
    }
}

int lf_merge_attend(lf_pass *p, int layer, int round)
{
    share *s = shares_of(p, round, 0);
    const share *own = &s[p->mine->rank];
    int heads = p->engine->weights.heads;
    size_t row = (size_t)(heads * p->model->head_dim) * p->dev->act_bytes;

    lf_pass_phase(p, LF_PHASE_COMMUNICATION);
    int bad = gather(p, s, p->all_q, p->q, row);
    if (p->model->kind[layer] == LF_C4)
        bad = bad || gather(p, s, p->all_sel, p->sel, 4 * (size_t)p->model->index_topk);
    lf_pass_phase(p, LF_PHASE_ATTENTION);
    for (int r = 0; r < p->mine->pcp && !bad; r++)
        for (int slot = 0; slot < SLOTS; slot++)
            partial(p, layer, s, r, slot);
    lf_pass_phase(p, LF_PHASE_COMMUNICATION);
    bad = bad || home(p, s, p->parts, p->part_out, row) ||
          home(p, s, p->parts_lse, p->part_lse, sizeof(float) * (size_t)heads);
    lf_pass_phase(p, LF_PHASE_ATTENTION);
    if (!bad) {
        window_part(p, own);
        p->ops->merge(p->dev, p->o, p->parts, p->parts_lse, SLOTS * p->mine->pcp + 1, own->rows, heads,
                      p->engine->weights.layer[layer].sink);
    }
    free(s);
    return bad ? -1 : 0;
}
