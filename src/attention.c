/* SPDX-License-Identifier: Apache-2.0
 *
 * The attention sublayer.   Source: model.md, "Attention" and "Indexer"; engine.md, "One layer on one rank".
 *
 * First sweep over the tiles: whatever a token gives by itself (query latent, window row, compressor rows).  Then the
 * exchange: halos, finished rows.  Second sweep: queries against window and compressed rows, output projection.
 *
 * What hides an exchange: the halo, the first tile's queries; index entries, its index queries; main entries, its
 * choice of rows; the choice over tp, the tile's queries; the sum over tp, the next tile's attention.
 */
#include "pass.h"

#include <math.h>

static const lf_layer *layer_of(const lf_pass *p, int layer)
{
    return &p->engine->weights.layer[layer];
}

static const lf_rope *rope_of(const lf_pass *p, int layer)
{
    return lf_pass_ratio(p, layer) ? &p->engine->weights.rope_compressed : &p->engine->weights.rope;
}

static void product(lf_pass *p, void *out, const lf_act *x, int64_t m, const lf_weight *w, lf_gemm_out kind)
{
    lf_gemm g = { .x = x, .m = m, .ldx = w->cols, .w = w, .out = out, .ldo = w->rows, .kind = kind };

    p->ops->gemm(p->dev, &g);
}

static void project_tile(lf_pass *p, int layer, const lf_tile *t)
{
    const lf_layer *y = layer_of(p, layer);
    const lf_model *m = p->model;
    lf_act *q_lat = lf_act_at(p->dev, p->q_lat, t->row0 * m->q_rank);
    float *index_w = p->index_w + t->row0 * m->index_heads;

    p->ops->at(p->dev, layer, (int)(t - p->my->tile));
    lf_pass_phase(p, LF_PHASE_MHC);
    p->ops->hc_pre(p->dev, p->y, lf_pass_mix(p, t->row0), lf_pass_streams(p, t->row0), t->rows,
                   &y->hc_attn, y->attn_norm);
    lf_pass_phase(p, LF_PHASE_PROJECTIONS);
    product(p, q_lat, p->y, t->rows, &y->wq_a, LF_OUT_ACT);
    p->ops->norm(p->dev, q_lat, t->rows, m->q_rank, y->q_norm);
    product(p, p->t, p->y, t->rows, &y->wkv, LF_OUT_ACT);
    p->ops->window(p->dev, p->kv, p->kv_row + t->row0, p->t, t->rows, y->kv_norm, p->pos + t->row0,
                   rope_of(p, layer));
    if (y->kind != LF_SWA)
        lf_compress_tile(p, layer, t, 0);
    if (y->kind != LF_C4)
        return;
    lf_pass_phase(p, LF_PHASE_INDEXER);
    lf_compress_tile(p, layer, t, 1);
    product(p, index_w, p->y, t->rows, &y->index_proj, LF_OUT_F32);
    p->ops->scale(p->dev, index_w, t->rows * m->index_heads,
                  (float)(1 / sqrt((double)m->index_heads * (double)m->index_dim)));
}

/* Everything that a tile's queries need besides the rows of others. */
static void queries(lf_pass *p, int layer, const lf_tile *t)
{
    const lf_layer *y = layer_of(p, layer);

    lf_pass_phase(p, LF_PHASE_PROJECTIONS);
    product(p, p->q, lf_act_at(p->dev, p->q_lat, t->row0 * p->model->q_rank), t->rows, &y->wq_b, LF_OUT_ACT);
    p->ops->query(p->dev, p->q, t->rows, p->engine->weights.heads, p->pos + t->row0, rope_of(p, layer));
}

/* The entries of all ranks are on their way when it returns.  Under the halo: the first tile's queries. */
static int exchange(lf_pass *p, int layer)
{
    lf_kind kind = p->model->kind[layer];
    int bad;

    lf_exchange_begin(p);
    bad = lf_halo_exchange(p, layer);
    lf_exchange_end(p, LF_MARK_HALO);
    if (bad)
        return -1;
    queries(p, layer, lf_tiling_at(p->my, 0));
    lf_exchange_await(p, LF_MARK_HALO);
    if (kind == LF_SWA)
        return 0;
    if (kind == LF_C4) {
        lf_compress_heads(p, layer, 1);
        lf_compress_heads(p, layer, 0);
        lf_exchange_begin(p);
        bad = lf_compress_gather(p, layer, 1);         /* index rows first: the indexer waits for them */
        lf_exchange_end(p, LF_MARK_INDEX);
    }
    lf_exchange_begin(p);
    bad = bad || lf_compress_gather(p, layer, 0);
    lf_exchange_end(p, LF_MARK_MAIN);
    return bad;
}

/* The entries are needed now.  With the last of them the layer's rows are finished, and leave. */
static void index_here(lf_pass *p, int layer)
{
    if (p->model->kind[layer] != LF_C4)
        return;
    lf_exchange_await(p, LF_MARK_INDEX);
    lf_compress_unpack(p, layer, 1);
}

static void rows_here(lf_pass *p, int layer)
{
    if (p->model->kind[layer] != LF_SWA) {
        lf_exchange_await(p, LF_MARK_MAIN);
        lf_compress_unpack(p, layer, 0);
    }
    lf_state_hand_over(p, layer);
    lf_probe_layer(p, layer);
}

/* Index queries of this tp rank's tokens of a tile: p->index_q. */
static void index_queries(lf_pass *p, int layer, const lf_tile *t, int64_t first, int64_t rows)
{
    const lf_model *m = p->model;
    int64_t row0 = t->row0 + first;

    product(p, p->index_q, lf_act_at(p->dev, p->q_lat, row0 * m->q_rank), rows, &layer_of(p, layer)->index_wq_b,
            LF_OUT_ACT);
    p->ops->index_query(p->dev, p->index_q, rows, m->index_heads, m->index_dim, p->pos + row0, rope_of(p, layer));
}

static void choose_here(lf_pass *p, const lf_tile *t, int64_t first, int64_t rows, int32_t *sel)
{
    const lf_model *m = p->model;
    int64_t row = (int64_t)m->index_heads * m->index_dim;

    for (int i = 0; i < t->pieces; i++) {
        lf_piece x;
        lf_tiling_clip(p->my, t, i, first, rows, &x);
        const lf_run *r = &p->mine->run[x.run];
        lf_topk k = { .sel = sel + x.row * m->index_topk, .q = lf_act_at(p->dev, p->index_q, x.row * row),
                      .w = p->index_w + (t->row0 + first + x.row) * m->index_heads, .queries = x.len,
                      .pos0 = r->pos0 + x.off, .row_count = p->mine->length[r->seq] / 4, .k = m->index_topk,
                      .keys = lf_act_at(p->dev, p->index.rows, lf_pass_entry0(p, r->seq, 4) * m->index_dim) };
        p->ops->index_topk(p->dev, &k);
    }
}

/* The chosen rows of a tile's queries.  Scores are the same for every head's owner: tp ranks share the tokens. */
static int choose(lf_pass *p, int layer, int round)
{
    const lf_tile *t = lf_tiling_at(p->my, round);
    int64_t rows, first = lf_slice(p, t, p->engine->topo->grid.tp_rank, &rows);
    int32_t *sel = p->engine->topo->grid.tp > 1 ? p->sel_slice : p->sel;
    int bad;

    lf_pass_phase(p, LF_PHASE_INDEXER);
    index_queries(p, layer, t, first, rows);
    if (round == 0)
        index_here(p, layer);
    if (!p->merge)
        choose_here(p, t, first, rows, sel);
    else if (lf_merge_choose(p, layer, round, sel))
        return -1;
    if (sel == p->sel)
        return 0;
    lf_exchange_begin(p);
    bad = lf_slice_gather(p, t, p->sel, sel, sizeof(int32_t) * (size_t)p->model->index_topk);
    lf_exchange_end(p, LF_MARK_CHOICE);
    return bad;
}

static void attend_piece(lf_pass *p, int layer, const lf_piece *x)
{
    const lf_run *r = &p->mine->run[x->run];
    const lf_layer *y = layer_of(p, layer);
    int64_t d = p->model->head_dim, row = p->engine->weights.heads * d;
    int ratio = lf_pass_ratio(p, layer);
    lf_attn a = { .out = lf_act_at(p->dev, p->o, x->row * row), .q = lf_act_at(p->dev, p->q, x->row * row),
                  .queries = x->len, .pos0 = r->pos0 + x->off, .heads = p->engine->weights.heads,
                  .win = lf_act_at(p->dev, p->kv, r->kv_row0 * d), .win_pos0 = r->pos0 - r->halo,
                  .win_rows = r->halo + r->len, .ratio = ratio, .sink = y->sink };

    if (ratio) {
        a.rows = lf_act_at(p->dev, p->main.rows, lf_pass_entry0(p, r->seq, ratio) * d);
        a.row_count = p->mine->length[r->seq] / ratio;
    }
    if (y->kind == LF_C4) {
        a.sel = p->sel + x->row * p->model->index_topk;
        a.sel_ld = p->model->index_topk;
    }
    p->ops->attention(p->dev, &a);
}

/* wo_b, summed group by group: tp ranks then add up to what one rank computes. */
static void last_product(lf_pass *p, const lf_layer *y, void *out, int64_t rows, lf_gemm_out kind)
{
    lf_gemm g = { .x = p->o_lat, .m = rows, .ldx = y->wo_b.cols, .w = &y->wo_b, .out = out, .ldo = y->wo_b.rows,
                  .kind = kind, .parts = p->engine->weights.groups };

    p->ops->gemm(p->dev, &g);
}

/* The tile whose output projection is being summed over tp, if any: that goes on under the next tile's attention. */
static void settle_sum(lf_pass *p, const lf_tile **summed)
{
    const lf_tile *t = *summed;

    if (!t)
        return;
    lf_exchange_await(p, LF_MARK_SUM);
    p->ops->round(p->dev, p->z, p->partial, t->rows * p->model->hidden);
    lf_pass_add_back(p, t);
    *summed = NULL;
}

/* wo_a group by group, in plain precision; wo_b; the sum over tp. */
static int project_out(lf_pass *p, int layer, const lf_tile *t, const lf_tile **summed)
{
    const lf_layer *y = layer_of(p, layer);
    int groups = p->engine->weights.groups;
    int64_t o_rank = p->model->o_rank, per_group = y->wo_a.cols, n = t->rows * p->model->hidden;

    for (int g = 0; g < groups; g++) {
        lf_weight w = lf_weight_rows(y->wo_a, g * o_rank, o_rank);
        lf_gemm k = { .x = lf_act_at(p->dev, p->o, g * per_group), .m = t->rows, .ldx = groups * per_group, .w = &w,
                      .out = lf_act_at(p->dev, p->o_lat, g * o_rank), .ldo = groups * o_rank, .kind = LF_OUT_ACT,
                      .plain = 1 };
        p->ops->gemm(p->dev, &k);
    }
    if (p->engine->topo->grid.tp == 1) {
        last_product(p, y, p->z, t->rows, LF_OUT_ACT);
        lf_pass_add_back(p, t);
        return 0;
    }
    settle_sum(p, summed);
    lf_pass_phase(p, LF_PHASE_PROJECTIONS);
    last_product(p, y, p->partial, t->rows, LF_OUT_F32);
    lf_exchange_begin(p);
    int bad = lf_coll_sum(p->engine->topo->tp, p->dev, p->partial, n, p->sum_room, p->err);
    lf_exchange_end(p, LF_MARK_SUM);
    *summed = t;
    return bad;
}

static int attend(lf_pass *p, int layer, int round)
{
    const lf_tile *t = lf_tiling_at(p->my, round);

    if (p->merge && layer_of(p, layer)->kind != LF_SWA)
        return lf_merge_attend(p, layer, round);
    lf_pass_phase(p, LF_PHASE_ATTENTION);
    for (int i = 0; i < t->pieces; i++)
        attend_piece(p, layer, &p->my->piece[t->piece0 + i]);
    return 0;
}

static int attend_tile(lf_pass *p, int layer, int round, const lf_tile **summed)
{
    const lf_tile *t = lf_tiling_at(p->my, round);
    const lf_layer *y = layer_of(p, layer);
    int sliced = y->kind == LF_C4 && p->engine->topo->grid.tp > 1;

    p->ops->at(p->dev, layer, round);
    if (y->kind == LF_C4 && choose(p, layer, round))
        return -1;
    if (round == 0)
        rows_here(p, layer);
    else
        queries(p, layer, t);
    if (sliced)
        lf_exchange_await(p, LF_MARK_CHOICE);
    if (attend(p, layer, round))
        return -1;
    lf_probe_tile(p, layer, t);
    lf_pass_phase(p, LF_PHASE_PROJECTIONS);
    p->ops->rotate(p->dev, p->o, t->rows, p->engine->weights.heads, p->model->head_dim, p->pos + t->row0,
                   rope_of(p, layer), 1);
    return project_out(p, layer, t, summed);
}

/* In merge mode a rank that has run out of tiles still computes for the others'. */
int lf_attention_sublayer(lf_pass *p, int layer)
{
    int rounds = p->merge ? p->rounds : p->my->tiles;
    const lf_tile *summed = NULL;

    lf_out_settled(p);
    for (int t = 0; t < p->my->tiles; t++)
        project_tile(p, layer, &p->my->tile[t]);
    if (exchange(p, layer))
        return -1;
    for (int t = 0; t < rounds; t++)
        if (attend_tile(p, layer, t, &summed))
            return -1;
    if (rounds == 0) {                     /* without a token: nothing is finished, nothing is asked for */
        lf_exchange_await(p, LF_MARK_MAIN);
        lf_state_hand_over(p, layer);
    }
    settle_sum(p, &summed);
    return 0;
}
