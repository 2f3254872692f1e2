/* SPDX-License-Identifier: Apache-2.0
 *
 * The mixture-of-experts sublayer: each rank routes its own tokens, sends them to the owners of their experts and gets
 * the results back.   Source: model.md, "MoE"; engine.md, "One layer on one rank", step 7.
 *
 * A pair is one (token, chosen expert).  Results come back per pair and are summed at home in the order of the choice,
 * so the sum does not depend on where the experts live.
 *
 * The host needs the counts of each expert's pairs, once a tile, and waits for them while the device has other work.
 * With ep = 1: route, shared expert, [counts], experts, sum.  Else tiles go through a pipeline.  Step t:
 *
 *     compute   route t | experts t-1 | sum t-2 | results of t-1 in the order in which rows came | shared expert t
 *     host      counts of t, of this rank's pairs and of those that come: under what the compute queue was just given
 *     exchange  rows of t out | slices of t-2 over tp | results of t-1 home
 *     compute   streams of t-2
 *
 * So rows go out under the experts of the tile before, with one tile only under its shared expert; results come home
 * under the next tile's routing and experts.  The host gives a step to the queues and is a step ahead when it waits.
 * The buffers that two or three tiles share: pass.h.
 */
#include "pass.h"

#include <stdlib.h>

/* What the host knows of one tile's pairs. */
typedef struct dispatch {
    int64_t *send, *recv;                  /* [ep, local experts]: pairs to and from each rank, by its experts */
    int64_t *first;                        /* [local experts + 1]: of those that came, by expert */
    int64_t received;
} dispatch;

typedef struct flow {
    lf_pass *p;
    const lf_layer *y;
    int layer, ep, local;                  /* local: experts of this rank */
    dispatch of[2];                        /* of even and of odd tiles */
} flow;

static dispatch *dispatch_of(flow *f, int round)
{
    return &f->of[round % 2];
}

static const lf_tile *tile_of(const flow *f, int round)
{
    return lf_tiling_at(f->p->my, round);
}

/* This rank's tokens of a tile: first row in it, and how many. */
static int64_t own_rows(const flow *f, int round, int64_t *rows)
{
    return lf_slice(f->p, tile_of(f, round), f->p->engine->topo->grid.tp_rank, rows);
}

/* The inputs of the experts, until the next tile is routed. */
static const lf_act *inputs(const flow *f, int round)
{
    int64_t rows, first = own_rows(f, round, &rows);

    return lf_act_at(f->p->dev, f->p->y, first * f->p->model->hidden);
}

static int32_t *slot_of(const flow *f, int round)
{
    return f->p->slot[f->ep > 1 ? round % 3 : 0];
}

static lf_act *shared_of(const flow *f, int round)
{
    return f->ep > 1 && round % 2 ? f->p->shared : f->p->t;
}

static size_t row_bytes(const flow *f)
{
    return (size_t)f->p->model->hidden * f->p->dev->act_bytes;
}

/* --- the parts of a tile's way --- */

/* Pairs by expert: slots, tokens, weights; counts on their way to the host. */
static void sort_pairs(flow *f, int round, int64_t rows)
{
    lf_pass *p = f->p;
    int experts = p->model->experts;
    lf_pairs k = { .slot = slot_of(f, round), .token = p->token, .weight = f->ep > 1 ? p->sent_weight : p->pair_weight,
                   .count = p->count, .expert = p->expert, .of = p->weight, .m = rows,
                   .k = p->model->experts_per_tok, .experts = experts };

    p->ops->pairs(p->dev, &k);
    p->ops->fetch(p->dev, p->engine->host_count, p->count, sizeof *p->count * (size_t)experts);
    p->ops->mark(p->dev, LF_MARK_MOE_COUNTS);
}

/* A rank that has run out of tiles comes with an empty one, so that all enter the exchange together. */
static void route(flow *f, int round)
{
    lf_pass *p = f->p;
    const lf_tile *t = tile_of(f, round);
    int64_t rows, first = own_rows(f, round, &rows);
    lf_route r = { .expert = p->expert, .weight = p->weight, .y = inputs(f, round), .m = rows, .gate = &f->y->gate,
                   .bias = f->y->bias, .tid2eid = f->y->tid2eid, .ids = p->ids + t->row0 + first };

    p->ops->at(p->dev, f->layer, round);
    lf_pass_phase(p, LF_PHASE_MHC);
    p->ops->hc_pre(p->dev, p->y, lf_pass_mix(p, t->row0), lf_pass_streams(p, t->row0), t->rows,
                   &f->y->hc_ffn, f->y->ffn_norm);
    lf_pass_phase(p, LF_PHASE_MOE);
    p->ops->route(p->dev, &r);
    if (f->ep > 1 && round > 0)
        lf_exchange_await(p, LF_MARK_MOE_CAME);        /* the tile before has left `sent` and `sent_weight` */
    sort_pairs(f, round, rows);
    if (f->ep > 1) {
        p->ops->gather(p->dev, p->sent, r.y, p->token, rows * p->model->experts_per_tok, row_bytes(f));
        p->ops->mark(p->dev, LF_MARK_MOE_PACKED);
    }
}

static void shared_expert(flow *f, int round)
{
    lf_pass *p = f->p;
    int64_t first[2] = { 0 };
    lf_experts e = { .out = shared_of(f, round), .x = inputs(f, round), .src = p->iota, .weight = p->ones,
                     .first = first, .experts = 1, .w1 = &f->y->shared1, .w2 = &f->y->shared2, .w3 = &f->y->shared3,
                     .limit = p->model->swiglu_limit };

    own_rows(f, round, &first[1]);
    p->ops->experts(p->dev, &e);
}

/* The host's one wait for the device.  On a CPU the exchange of counts is communication; on a GPU as far as the compute
 * queue runs empty meanwhile. */
static int count_pairs(flow *f, int round)
{
    lf_pass *p = f->p;
    dispatch *d = dispatch_of(f, round);
    const int32_t *count = p->engine->host_count;

    lf_pass_phase(p, LF_PHASE_COMMUNICATION);
    p->ops->wait(p->dev, LF_MARK_MOE_COUNTS);
    if (p->ops->failed && p->ops->failed(p->dev, p->err))
        return -1;                         /* before the counts: another rank may be gone */
    for (int i = 0; i < f->ep * f->local; i++)
        d->send[i] = count[i];
    if (lf_coll_counts(p->engine->topo->group, d->recv, d->send, f->local, p->err))
        return lf_fail_in(p->err, "tile %d", round);
    lf_pass_phase(p, LF_PHASE_MOE);
    for (int e = 0; e < f->local; e++) {
        d->first[e + 1] = d->first[e];
        for (int r = 0; r < f->ep; r++)
            d->first[e + 1] += d->recv[r * f->local + e];
    }
    d->received = d->first[f->local];
    return 0;
}

static int64_t sum_of(const int64_t *v, int n)
{
    int64_t s = 0;

    for (int i = 0; i < n; i++)
        s += v[i];
    return s;
}

/* all-to-all of rows of `bytes`, this rank's pairs out and the owners' in, or (back) the other way. */
static int move_rows(flow *f, const dispatch *d, void *dst, const void *src, size_t bytes, int back)
{
    lf_pass *p = f->p;
    int ep = f->ep, local = f->local;
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

static int rows_out(flow *f, int round)
{
    lf_pass *p = f->p;
    const dispatch *d = dispatch_of(f, round);

    lf_exchange_from(p, LF_MARK_MOE_PACKED);
    int bad = move_rows(f, d, p->came[round % 2], p->sent, row_bytes(f), 0) ||
              move_rows(f, d, p->came_weight[round % 2], p->sent_weight, sizeof(float), 0);
    lf_exchange_end(p, LF_MARK_MOE_CAME);
    return bad;
}

/* Results return to the place their pair was sent from. */
static int results_home(flow *f, int round)
{
    lf_pass *p = f->p;

    lf_exchange_from(p, LF_MARK_MOE_DONE);
    int bad = move_rows(f, dispatch_of(f, round), p->back, p->came[round % 2], row_bytes(f), 1);
    lf_exchange_end(p, LF_MARK_MOE_HOME);
    return bad;
}

static void run_experts(flow *f, const dispatch *d, const lf_act *x, const int32_t *src)
{
    lf_pass *p = f->p;
    lf_experts e = { .out = p->done, .x = x, .src = src, .weight = p->pair_weight, .first = d->first,
                     .experts = f->local, .w1 = f->y->w1, .w2 = f->y->w2, .w3 = f->y->w3,
                     .limit = p->model->swiglu_limit };

    p->ops->experts(p->dev, &e);
}

static void experts(flow *f, int round)
{
    lf_pass *p = f->p;
    const dispatch *d = dispatch_of(f, round);
    lf_arrivals a = { .src = p->src, .home = p->home, .count = d->recv, .senders = f->ep, .experts = f->local };

    p->ops->at(p->dev, f->layer, round);
    lf_pass_phase(p, LF_PHASE_MOE);
    p->ops->arrivals(p->dev, &a);
    lf_exchange_await(p, LF_MARK_MOE_CAME);
    p->ops->gather(p->dev, p->pair_weight, p->came_weight[round % 2], p->src, d->received, sizeof(float));
    run_experts(f, d, p->came[round % 2], p->src);
}

/* Into the place of the rows that came. */
static void results(flow *f, int round)
{
    lf_pass *p = f->p;

    p->ops->gather(p->dev, p->came[round % 2], p->done, p->home, dispatch_of(f, round)->received, row_bytes(f));
    p->ops->mark(p->dev, LF_MARK_MOE_DONE);
}

static void sum(flow *f, int round, const lf_act *z)
{
    lf_pass *p = f->p;
    int64_t rows;

    own_rows(f, round, &rows);
    p->ops->combine(p->dev, p->engine->topo->grid.tp > 1 ? p->slice : p->z, z, slot_of(f, round),
                    p->model->experts_per_tok, shared_of(f, round), rows);
    p->ops->mark(p->dev, LF_MARK_MOE_SLICE);
}

static int slices(flow *f, int round)
{
    lf_pass *p = f->p;

    lf_exchange_from(p, LF_MARK_MOE_SLICE);
    int bad = lf_slice_gather(p, tile_of(f, round), p->z, p->slice, row_bytes(f));
    lf_exchange_end(p, LF_MARK_MOE_GATHERED);
    return bad;
}

/* --- all tiles --- */

/* All experts are here: rows are read where they are, one tile after the other. */
static int here(flow *f, int round)
{
    route(f, round);
    shared_expert(f, round);
    if (count_pairs(f, round))
        return -1;
    run_experts(f, dispatch_of(f, round), inputs(f, round), f->p->token);
    sum(f, round, f->p->done);
    lf_pass_add_back(f->p, tile_of(f, round));
    return 0;
}

static int step(flow *f, int t)
{
    int rounds = f->p->rounds, routed = t < rounds, left = t >= 1 && t - 1 < rounds, back = t >= 2, bad = 0;
    int sliced = back && f->p->engine->topo->grid.tp > 1;

    if (routed)
        route(f, t);
    if (left)
        experts(f, t - 1);
    if (back) {
        lf_pass_phase(f->p, LF_PHASE_MOE);
        lf_exchange_await(f->p, LF_MARK_MOE_HOME);
        sum(f, t - 2, f->p->back);
    }
    if (left)
        results(f, t - 1);
    if (routed) {
        shared_expert(f, t);
        bad = count_pairs(f, t) || rows_out(f, t);
    }
    bad = bad || (sliced && slices(f, t - 2)) || (left && results_home(f, t - 1));
    if (back && !bad) {
        if (sliced)
            lf_exchange_await(f->p, LF_MARK_MOE_GATHERED);
        lf_pass_add_back(f->p, tile_of(f, t - 2));
    }
    return bad;
}

static void flow_open(flow *f, lf_pass *p, int layer)
{
    int ep = p->engine->topo->grid.ep, local = p->engine->weights.experts;

    *f = (flow){ .p = p, .y = &p->engine->weights.layer[layer], .layer = layer, .ep = ep, .local = local };
    for (int i = 0; i < 2; i++) {
        f->of[i].send = lf_alloc(sizeof *f->of[i].send * (size_t)(2 * ep * local + local + 1));
        f->of[i].recv = f->of[i].send + ep * local;
        f->of[i].first = f->of[i].recv + ep * local;
    }
}

int lf_moe_sublayer(lf_pass *p, int layer)
{
    flow f;
    int bad = 0;

    flow_open(&f, p, layer);
    if (f.ep == 1)
        for (int t = 0; t < p->rounds && !bad; t++)
            bad = here(&f, t);
    else
        for (int t = 0; t < p->rounds + 2 && !bad; t++)
            bad = step(&f, t);
    free(f.of[0].send);
    free(f.of[1].send);
    return bad ? -1 : 0;
}
