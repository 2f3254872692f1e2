/* SPDX-License-Identifier: Apache-2.0 */
#include "pass.h"
#include "probe.h"

/* A copy of n elements of device memory, the callee's to free. */
static void *fetch(lf_pass *p, const void *from, int64_t n, size_t each)
{
    void *to = lf_alloc((size_t)n * each + 1);

    if (n > 0)
        p->ops->get(p->dev, to, from, (size_t)n * each);
    return to;
}

static void *fetch_act(lf_pass *p, const lf_act *from, int64_t first, int64_t n)
{
    return fetch(p, lf_act_at(p->dev, from, first), n, p->dev->act_bytes);
}

static int wanted(const lf_pass *p, int layer)
{
    const lf_probe *w = p->engine->setup.probe;

    return w && w->layers[layer];
}

static int owns_any(const lf_pass *p, const lf_probe *w, int seq)
{
    for (int i = 0; i < w->positions; i++)
        if (w->at[i].seq == seq && lf_shard_find(p->mine, seq, w->at[i].pos))
            return 1;
    return 0;
}

void lf_probe_layer(lf_pass *p, int layer)
{
    const lf_probe *w = p->engine->setup.probe;
    const lf_model *m = p->model;
    int ratio = lf_pass_ratio(p, layer);

    for (int s = 0; wanted(p, layer) && s < p->mine->sequences; s++) {
        if (!owns_any(p, w, s))
            continue;
        lf_selfcheck_layer y = { .layer = layer, .seq = s, .ratio = ratio, .act_bytes = (int)p->dev->act_bytes,
                                 .rounded = p->dev->numerics == LF_RELEASED, .heads = p->engine->weights.heads,
                                 .head_dim = m->head_dim, .window = m->window };
        y.sink = fetch(p, p->engine->weights.layer[layer].sink, y.heads, sizeof(float));
        if (ratio) {
            y.entries = p->mine->length[s] / ratio;
            y.rows = fetch_act(p, p->main.rows, lf_pass_entry0(p, s, ratio) * m->head_dim, y.entries * m->head_dim);
        }
        if (ratio == 4) {
            y.index_heads = m->index_heads;
            y.index_dim = m->index_dim;
            y.topk = m->index_topk;
            y.keys = fetch_act(p, p->index.rows, lf_pass_entry0(p, s, 4) * m->index_dim, y.entries * m->index_dim);
        }
        w->rows(w->ctx, &y);
    }
}

/* The query alone, by the same operation, for its scores. */
static void choose_again(lf_pass *p, lf_selfcheck_query *q, const lf_act *index_q, const float *index_w)
{
    const lf_model *m = p->model;
    size_t list = sizeof(int32_t) * (size_t)m->index_topk;
    void *room;

    if (p->ops->take(p->dev, &room, 2 * list, "a probed query", p->err))
        return;
    lf_topk k = { .sel = room, .score = (float *)room + m->index_topk, .q = index_q, .w = index_w, .queries = 1,
                  .pos0 = q->pos, .row_count = p->mine->length[q->seq] / 4, .k = m->index_topk,
                  .keys = lf_act_at(p->dev, p->index.rows, lf_pass_entry0(p, q->seq, 4) * m->index_dim) };
    p->ops->index_topk(p->dev, &k);
    q->again = fetch(p, k.sel, m->index_topk, sizeof(int32_t));
    q->score = fetch(p, k.score, m->index_topk, sizeof(float));
    p->ops->give(p->dev, room);
}

/* Row `row` of the tile: what the indexer had for it, if this tp rank did its part of the tile. */
static void fetch_index(lf_pass *p, lf_selfcheck_query *q, const lf_tile *t, int64_t row)
{
    const lf_model *m = p->model;
    int64_t rows, first = lf_slice(p, t, p->engine->topo->grid.tp_rank, &rows), n = m->index_heads * m->index_dim;
    const float *w = p->index_w + (t->row0 + row) * m->index_heads;

    q->sel = fetch(p, p->sel + row * m->index_topk, m->index_topk, sizeof(int32_t));
    if (row < first || row >= first + rows)
        return;
    q->index_q = fetch_act(p, p->index_q, (row - first) * n, n);
    q->index_w = fetch(p, w, m->index_heads, sizeof(float));
    choose_again(p, q, lf_act_at(p->dev, p->index_q, (row - first) * n), w);
}

static void tell(lf_pass *p, int layer, const lf_tile *t, const lf_piece *x, int64_t pos)
{
    const lf_probe *w = p->engine->setup.probe;
    const lf_run *r = &p->mine->run[x->run];
    int64_t d = p->model->head_dim, n = p->engine->weights.heads * d, row = x->row + pos - (r->pos0 + x->off);
    lf_selfcheck_query q = { .layer = layer, .seq = r->seq, .pos = pos };

    q.window_rows = lf_min(p->model->window, pos + 1);
    int64_t first = pos - q.window_rows + 1 - (r->pos0 - r->halo);     /* within the run and its halo */
    q.window = fetch_act(p, p->kv, (r->kv_row0 + first) * d, q.window_rows * d);
    q.q = fetch_act(p, p->q, row * n, n);
    q.out = fetch_act(p, p->o, row * n, n);
    if (p->model->kind[layer] == LF_C4)
        fetch_index(p, &q, t, row);
    w->query(w->ctx, &q);
}

void lf_probe_tile(lf_pass *p, int layer, const lf_tile *t)
{
    const lf_probe *w = p->engine->setup.probe;

    for (int i = 0; wanted(p, layer) && i < t->pieces; i++) {
        const lf_piece *x = &p->my->piece[t->piece0 + i];
        const lf_run *r = &p->mine->run[x->run];
        for (int j = 0; j < w->positions; j++) {
            int64_t at = w->at[j].pos - r->pos0 - x->off;
            if (w->at[j].seq == r->seq && at >= 0 && at < x->len)
                tell(p, layer, t, x, w->at[j].pos);
        }
    }
}
