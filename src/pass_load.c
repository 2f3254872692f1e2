/* SPDX-License-Identifier: Apache-2.0
 *
 * The largest calls that a pass makes, from the shapes of its tiles: what attention.c, compressor.c, moe.c and head.c
 * ask for.
 */
#include "pass.h"

#include <string.h>

typedef struct maker {
    lf_dev_load *load;
    const lf_pass *p;
    const lf_weights *w;
    const lf_grid *g;
} maker;

/* A product of m rows with a matrix, once for each way it is stored; g has what is special, zeros are filled in.
 * rows > 0: with so many of its rows at a time. */
static void product(maker *k, int layer, lf_role role, int64_t m, int64_t rows, lf_gemm g)
{
    lf_dev_load *l = k->load;
    lf_inventory_item item;
    int64_t at[2];

    if (lf_inventory_item_of(k->p->model, layer, role, 0, &item))
        return;
    for (int s = 0; s < LF_STORES; s++) {
        lf_load_gemm one = { .g = g };
        if (!(k->w->stores[role] >> s & 1) || l->gemms == LF_LOAD_GEMMS)
            continue;
        lf_weights_view(&one.w, at, &item, (lf_storage)s, k->p->model, k->g);
        if (rows)
            one.w.rows = rows;
        one.g.m = m;
        one.g.ldx = g.ldx ? g.ldx : one.w.cols;
        one.g.ldo = g.ldo ? g.ldo : one.w.rows;
        l->gemm[l->gemms++] = one;
    }
}

static void attention(maker *k, int layer, int64_t tile, int64_t slice)
{
    const lf_model *m = k->p->model;
    int groups = k->w->groups;
    int64_t cols = (int64_t)m->heads / m->o_groups * m->head_dim;
    lf_gemm act = { .kind = LF_OUT_ACT }, f32 = { .kind = LF_OUT_F32 }, last = { .parts = groups };
    lf_gemm wo_a = { .plain = 1, .ldx = groups * cols, .ldo = groups * m->o_rank };

    if (groups > 1)                        /* where the second group's begins */
        wo_a.out = (void *)(uintptr_t)(k->p->dev->act_bytes * (size_t)m->o_rank);
    last.kind = k->g->tp > 1 ? LF_OUT_F32 : LF_OUT_ACT;
    product(k, layer, LF_ROLE_WQ_A, tile, 0, act);
    product(k, layer, LF_ROLE_WQ_B, tile, 0, act);
    product(k, layer, LF_ROLE_WKV, tile, 0, act);
    product(k, layer, LF_ROLE_WO_A, tile, m->o_rank, wo_a);
    product(k, layer, LF_ROLE_WO_B, tile, 0, last);
    product(k, layer, LF_ROLE_COMP_WKV, tile, 0, f32);
    product(k, layer, LF_ROLE_COMP_WGATE, tile, 0, f32);
    product(k, layer, LF_ROLE_INDEX_WKV, tile, 0, f32);
    product(k, layer, LF_ROLE_INDEX_WGATE, tile, 0, f32);
    product(k, layer, LF_ROLE_INDEX_WEIGHTS, tile, 0, f32);
    product(k, layer, LF_ROLE_INDEX_WQ_B, slice, 0, act);
}

/* An expert's three matrices alike, where that way of storing is there for all of them. */
static void expert_set(maker *k, lf_role w1, int experts, int64_t pairs, int64_t most)
{
    lf_dev_load *l = k->load;

    for (int s = 0; s < LF_STORES; s++) {
        lf_load_experts *e = &l->experts[l->experts_n];
        lf_weight *w[3] = { &e->w1, &e->w2, &e->w3 };
        if (!(k->w->stores[w1] >> s & 1) || l->experts_n == LF_LOAD_EXPERTS)
            continue;
        for (int i = 0; i < 3; i++) {
            lf_inventory_item item;
            int64_t at[2];
            unsigned stores = k->w->stores[w1 + i];
            int store = stores >> s & 1 ? s : __builtin_ctz(stores | 1u << LF_STORES);
            if (!lf_inventory_item_of(k->p->model, 0, w1 + i, 0, &item) && store < LF_STORES)
                lf_weights_view(w[i], at, &item, (lf_storage)store, k->p->model, k->g);
        }
        e->experts = experts;
        e->pairs = pairs;
        e->most = most;
        l->experts_n++;
    }
}

/* The longest stretch of queries and of keys in one call. */
static void choice(lf_dev_load *l, const lf_pass *p, int64_t slice)
{
    const lf_model *m = p->model;
    int any = 0;

    for (int i = 0; i < m->layers; i++)
        any = any || m->kind[i] == LF_C4;
    for (int r = 0; any && r < p->mine->pcp; r++) {
        const lf_shard *s = &p->shard[r];
        for (int i = 0; i < s->runs && (p->merge || s == p->mine); i++)
            l->queries = lf_max(l->queries, lf_min(slice, s->run[i].len));
    }
    for (int i = 0; any && p->merge && i < p->mine->runs; i++) {
        int64_t first, n;
        lf_run_blocks(&p->mine->run[i], 4, &first, &n);
        l->keys = lf_max(l->keys, n);
    }
    for (int i = 0; any && !p->merge && i < p->mine->sequences; i++)
        l->keys = lf_max(l->keys, p->mine->length[i] / 4);
}

void lf_pass_load(const lf_pass *p, lf_dev_load *l)
{
    const lf_model *m = p->model;
    const lf_weights *w = &p->engine->weights;
    maker k = { .load = l, .p = p, .w = w, .g = &p->engine->topo->grid };
    int64_t tile = p->tile_rows, slice = lf_ceil_div(tile, k.g->tp), together = tile * k.g->pcp;
    lf_gemm f32 = { .kind = LF_OUT_F32 };
    unsigned seen = 0;

    memset(l, 0, sizeof *l);
    for (int i = 0; i < m->layers; i++) {
        if (!(seen >> m->kind[i] & 1))
            attention(&k, i, tile, slice);
        seen |= 1u << m->kind[i];
    }
    product(&k, 0, LF_ROLE_GATE, slice, 0, f32);
    product(&k, -1, LF_ROLE_HEAD, LF_HEAD_TILE, 0, f32);
    expert_set(&k, LF_ROLE_W1, w->experts, together * m->experts_per_tok, together);
    expert_set(&k, LF_ROLE_SHARED_W1, 1, slice, slice);
    l->rows = tile;
    l->routed = slice;
    choice(l, p, slice);
    l->logit_rows = LF_HEAD_TILE;
    l->logit_topk = p->engine->setup.logits.topk;
}
