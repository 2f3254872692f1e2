/* SPDX-License-Identifier: Apache-2.0
 *
 * The mixture-of-experts sublayer: each rank routes its own tokens, sends them to the owners of their experts and gets
 * the results back.   Source: model.md, "MoE"; engine.md, "One layer on one rank", step 7.
 *
 * A pair is one (token, chosen expert).  Results come back per pair and are summed at home in the order of the choice,
 * so the sum does not depend on where the experts live.
 */
#include "pass.h"

#include <stdlib.h>

/* The host's view of one tile's exchange. */
typedef struct dispatch {
    int64_t pairs;                         /* of this rank's tokens */
    int32_t *slot, *token;                 /* [pairs]: pair (t, j) -> its place in expert order; place -> token */
    float *weight;                         /* [pairs], expert order */
    int64_t *send, *recv;                  /* [ep, local experts]: pairs to and from each rank, by its experts */
    int64_t received;
    int32_t *src;                          /* [received]: expert order over all senders -> place in what came */
    int64_t *first;                        /* [local experts + 1] */
} dispatch;

static void dispatch_free(dispatch *d)
{
    free(d->slot);
    free(d->token);
    free(d->weight);
    free(d->send);
    free(d->recv);
    free(d->src);
    free(d->first);
}

/* Places of this rank's pairs when sorted by expert, in token order within one. */
static void sort_pairs(dispatch *d, const int32_t *expert, const float *weight, int k, int experts)
{
    int64_t *next = lf_alloc(sizeof *next * (size_t)(experts + 1));

    d->slot = lf_alloc(sizeof *d->slot * (size_t)d->pairs);
    d->token = lf_alloc(sizeof *d->token * (size_t)d->pairs);
    d->weight = lf_alloc(sizeof *d->weight * (size_t)d->pairs);
    d->send = lf_alloc(sizeof *d->send * (size_t)experts);
    for (int64_t i = 0; i < d->pairs; i++)
        d->send[expert[i]]++;
    for (int e = 0; e < experts; e++)
        next[e + 1] = next[e] + d->send[e];
    for (int64_t i = 0; i < d->pairs; i++) {
        int64_t at = next[expert[i]]++;
        d->slot[i] = (int32_t)at;
        d->token[at] = (int32_t)(i / k);
        d->weight[at] = weight[i];
    }
    free(next);
}

/* What came lies sender by sender, expert by expert within one; the products want it expert by expert. */
static void sort_received(dispatch *d, int ep, int local)
{
    int64_t *at = lf_alloc(sizeof *at * (size_t)(ep * local)), used = 0;

    d->first = lf_alloc(sizeof *d->first * (size_t)(local + 1));
    for (int i = 0; i < ep * local; i++) {
        at[i] = d->received;
        d->received += d->recv[i];
    }
    d->src = lf_alloc(sizeof *d->src * (size_t)d->received);
    for (int e = 0; e < local; e++) {
        for (int r = 0; r < ep; r++)
            for (int64_t i = 0; i < d->recv[r * local + e]; i++)
                d->src[used++] = (int32_t)(at[r * local + e] + i);
        d->first[e + 1] = used;
    }
    free(at);
}

static int64_t sum_of(const int64_t *v, int n)
{
    int64_t s = 0;

    for (int i = 0; i < n; i++)
        s += v[i];
    return s;
}

/* all-to-all of rows of `bytes`, this rank's pairs out and the owners' in, or (back) the other way. */
static int move_rows(lf_pass *p, const dispatch *d, void *dst, const void *src, size_t bytes, int back)
{
    int ep = p->engine->topo->grid.ep, local = p->engine->weights.experts;
    size_t *v = lf_alloc(sizeof *v * 4 * (size_t)ep), *sc = v, *sa = v + ep, *rc = v + 2 * ep, *ra = v + 3 * ep;

    for (int r = 0; r < ep; r++) {
        sc[r] = bytes * (size_t)sum_of((back ? d->recv : d->send) + r * local, local);
        rc[r] = bytes * (size_t)sum_of((back ? d->send : d->recv) + r * local, local);
        sa[r] = r ? sa[r - 1] + sc[r - 1] : 0;
        ra[r] = r ? ra[r - 1] + rc[r - 1] : 0;
    }
    int bad = lf_coll_all_to_all(p->engine->topo->group, p->dev, dst, rc, ra, src, sc, sa, p->err);
    free(v);
    return bad;
}

/* Router output to the host, and from it who sends what to whom. */
static int plan_dispatch(lf_pass *p, dispatch *d, int64_t rows)
{
    int k = p->model->experts_per_tok, ep = p->engine->topo->grid.ep, local = p->engine->weights.experts;
    size_t bytes = 4 * (size_t)(rows * k);

    *d = (dispatch){ .pairs = rows * k };
    int32_t *expert = lf_pass_host(p, 2 * bytes + 8);
    float *weight = (float *)(void *)(expert + rows * k);
    p->ops->get(p->dev, expert, p->expert, bytes);
    p->ops->get(p->dev, weight, p->weight, bytes);
    if (p->ops->failed && p->ops->failed(p->dev, p->err))
        return -1;                         /* before the counts: another rank may be gone */
    sort_pairs(d, expert, weight, k, ep * local);
    d->recv = lf_alloc(sizeof *d->recv * (size_t)(ep * local));
    lf_pass_phase(p, LF_PHASE_COMMUNICATION);
    if (lf_coll_counts(p->engine->topo->group, d->recv, d->send, local, p->err))
        return -1;
    lf_pass_phase(p, LF_PHASE_MOE);
    sort_received(d, ep, local);
    p->ops->put(p->dev, p->slot, d->slot, bytes);
    return 0;
}

static void run_experts(lf_pass *p, const lf_layer *y, const dispatch *d, const lf_act *x, const int32_t *src)
{
    lf_experts e = { .out = p->done, .x = x, .src = src, .weight = p->pair_weight, .first = d->first,
                     .experts = p->engine->weights.experts, .w1 = y->w1, .w2 = y->w2, .w3 = y->w3,
                     .limit = p->model->swiglu_limit };

    p->ops->experts(p->dev, &e);
}

/* All experts are here: no exchange, rows are read where they are. */
static int experts_here(lf_pass *p, const lf_layer *y, const dispatch *d, const lf_act *x, const lf_act **z)
{
    size_t n = (size_t)d->pairs;

    p->ops->put(p->dev, p->src, d->token, 4 * n);
    p->ops->put(p->dev, p->pair_weight, d->weight, 4 * n);
    run_experts(p, y, d, x, p->src);
    *z = p->done;
    return 0;
}

/* Out to the owners, through their experts, and back; results return to the place their pair was sent from. */
static int experts_spread(lf_pass *p, const lf_layer *y, const dispatch *d, const lf_act *x, const lf_act **z)
{
    size_t row = (size_t)p->model->hidden * p->dev->act_bytes;
    float *arrived = p->pair_weight;

    p->ops->put(p->dev, p->src, d->token, 4 * (size_t)d->pairs);
    p->ops->gather(p->dev, p->sent, x, p->src, d->pairs, row);
    p->ops->put(p->dev, p->weight, d->weight, 4 * (size_t)d->pairs);
    lf_pass_phase(p, LF_PHASE_COMMUNICATION);
    if (move_rows(p, d, p->came, p->sent, row, 0) || move_rows(p, d, p->came_weight, p->weight, 4, 0))
        return -1;
    lf_pass_phase(p, LF_PHASE_MOE);
    p->ops->put(p->dev, p->src, d->src, 4 * (size_t)d->received);
    p->ops->gather(p->dev, arrived, p->came_weight, p->src, d->received, 4);
    run_experts(p, y, d, p->came, p->src);
    /* Expert order back to arrival order: the inverse permutation. */
    int32_t *inverse = lf_alloc(4 * (size_t)d->received);
    for (int64_t i = 0; i < d->received; i++)
        inverse[d->src[i]] = (int32_t)i;
    p->ops->put(p->dev, p->src, inverse, 4 * (size_t)d->received);
    free(inverse);
    p->ops->gather(p->dev, p->came, p->done, p->src, d->received, row);
    lf_pass_phase(p, LF_PHASE_COMMUNICATION);
    if (move_rows(p, d, p->sent, p->came, row, 1))
        return -1;
    lf_pass_phase(p, LF_PHASE_MOE);
    *z = p->sent;
    return 0;
}

static void shared_expert(lf_pass *p, const lf_layer *y, const lf_act *x, int64_t rows)
{
    int64_t first[2] = { 0, rows };
    lf_experts e = { .out = p->t, .x = x, .src = p->iota, .weight = p->ones, .first = first, .experts = 1,
                     .w1 = &y->shared1, .w2 = &y->shared2, .w3 = &y->shared3,
                     .limit = p->model->swiglu_limit };

    p->ops->experts(p->dev, &e);
}

/* The tokens of one tile that are this tp rank's, first .. first+rows-1: through their experts, to out. */
static int own_tokens(lf_pass *p, int layer, const lf_tile *t, int64_t first, int64_t rows, lf_act *out)
{
    const lf_layer *y = &p->engine->weights.layer[layer];
    const lf_act *z, *in = lf_act_at(p->dev, p->y, first * p->model->hidden);
    lf_route r = { .expert = p->expert, .weight = p->weight, .y = in, .m = rows, .gate = &y->gate,
                   .bias = y->bias, .tid2eid = y->tid2eid, .ids = p->ids + t->row0 + first };
    dispatch d;

    p->ops->route(p->dev, &r);
    int bad = plan_dispatch(p, &d, rows);
    if (!bad)
        bad = p->engine->topo->grid.ep > 1 ? experts_spread(p, y, &d, in, &z) : experts_here(p, y, &d, in, &z);
    if (!bad) {
        shared_expert(p, y, in, rows);
        p->ops->combine(p->dev, out, z, p->slot, p->model->experts_per_tok, p->t, rows);
    }
    dispatch_free(&d);
    return bad;
}

/* One tile; a rank that has run out of tiles comes with an empty one, so that all enter the exchange together. */
static int moe_tile(lf_pass *p, int layer, const lf_tile *t)
{
    const lf_layer *y = &p->engine->weights.layer[layer];
    const lf_model *m = p->model;
    const lf_grid *g = &p->engine->topo->grid;
    lf_act *x = lf_act_at(p->dev, p->x, t->row0 * m->hc * m->hidden);
    float *mix = p->mix + t->row0 * (m->hc + m->hc * m->hc);
    int64_t rows, first = lf_slice(p, t, g->tp_rank, &rows);

    lf_pass_phase(p, LF_PHASE_MHC);
    p->ops->hc_pre(p->dev, p->y, mix, x, t->rows, &y->hc_ffn, y->ffn_norm);
    lf_pass_phase(p, LF_PHASE_MOE);
    if (own_tokens(p, layer, t, first, rows, g->tp > 1 ? p->slice : p->z))
        return -1;
    if (g->tp > 1) {
        lf_pass_phase(p, LF_PHASE_COMMUNICATION);
        if (lf_slice_gather(p, t, p->z, p->slice, (size_t)m->hidden * p->dev->act_bytes))
            return -1;
    }
    lf_pass_phase(p, LF_PHASE_MHC);
    p->ops->hc_post(p->dev, x, p->z, mix, t->rows);
    return 0;
}

int lf_moe_sublayer(lf_pass *p, int layer)
{
    for (int t = 0; t < p->rounds; t++) {
        p->ops->at(p->dev, layer, t);
        if (moe_tile(p, layer, lf_tiling_at(p->my, t)))
            return -1;
    }
    return 0;
}
