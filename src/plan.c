/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include "weight.h"
#include "writer.h"

#include <stdlib.h>
#include <string.h>

static const struct { lf_role first, last; lf_plan_group is; } roles[] = {
    { LF_ROLE_EMBED, LF_ROLE_EMBED, LF_PLAN_EMBEDDING },
    { LF_ROLE_HEAD, LF_ROLE_HEAD, LF_PLAN_HEAD },
    { LF_ROLE_NORM, LF_ROLE_NORM, LF_PLAN_NORMS },
    { LF_ROLE_HC_HEAD_FN, LF_ROLE_HC_FFN_SCALE, LF_PLAN_MHC },
    { LF_ROLE_ATTN_NORM, LF_ROLE_FFN_NORM, LF_PLAN_NORMS },
    { LF_ROLE_SINK, LF_ROLE_WO_B, LF_PLAN_ATTENTION },
    { LF_ROLE_COMP_APE, LF_ROLE_COMP_NORM, LF_PLAN_COMPRESSOR },
    { LF_ROLE_INDEX_APE, LF_ROLE_INDEX_WEIGHTS, LF_PLAN_INDEXER },
    { LF_ROLE_GATE, LF_ROLE_TID2EID, LF_PLAN_ROUTER },
    { LF_ROLE_W1, LF_ROLE_W3, LF_PLAN_EXPERTS },
    { LF_ROLE_SHARED_W1, LF_ROLE_SHARED_W3, LF_PLAN_SHARED },
};

const char *lf_plan_group_name(lf_plan_group g)
{
    static const char *const name[LF_PLAN_GROUPS] = { "embedding", "head",    "attention",      "compressor", "indexer",
                                                      "router",    "experts", "shared_experts", "mhc",        "norms" };

    return name[g];
}

static lf_plan_group group_of(lf_role role)
{
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (role >= roles[i].first && role <= roles[i].last)
            return roles[i].is;
    return LF_PLAN_NORMS;
}

static int item_add(void *arg, const lf_inventory_item *item, lf_err *err)
{
    lf_inventory_found found = { .store = item->released };
    lf_plan *p = arg;

    if (p->checkpoint && lf_inventory_find(p->checkpoint, item, &found, err))
        return -1;
    if ((p->items & (p->items - 1)) == 0)
        p->item = lf_realloc(p->item, (size_t)(p->items ? 2 * p->items : 1) * sizeof *p->item);
    p->item[p->items++] = (lf_plan_item){ *item, found.store };
    p->stores[item->role] |= 1u << found.store;
    int64_t bytes = lf_inventory_bytes(item, found.store);
    p->bytes[group_of(item->role)] += bytes;
    p->total += bytes;
    p->parameters += item->role == LF_ROLE_TID2EID ? 0 : item->rows * item->cols;
    return 0;
}

int lf_plan_open(lf_plan *p, const lf_model *m, const lf_checkpoint *c, lf_err *err)
{
    *p = (lf_plan){ .model = m, .checkpoint = c, .ranks = 1 };
    int bad = lf_inventory_each(m, item_add, p, err);
    return bad && c ? lf_fail_in(err, "%s", lf_checkpoint_dir(c)) : bad;
}

void lf_plan_free(lf_plan *p)
{
    free(p->item);
    memset(p, 0, sizeof *p);
}

/* ---- one rank ---- */

void lf_plan_weights_size(const lf_plan *p, lf_plan_grid *g)
{
    g->weights = g->mapped = 0;
    memset(g->group, 0, sizeof g->group);
    for (int64_t i = 0; i < p->items; i++) {
        int matrix;
        const lf_plan_item *x = &p->item[i];
        int64_t bytes = p->on_host ? lf_weights_share(&x->item, x->store, p->model, &g->grid, &matrix)
                                   : lf_weights_on_gpu(&x->item, x->store, p->model, &g->grid, &matrix);
        if (matrix && p->on_host && !p->made_up) {
            g->mapped += bytes;
        } else {
            g->group[group_of(p->item[i].item.role)] += bytes;
            g->weights += bytes;
        }
    }
}

void lf_plan_pass_size(const lf_plan *p, lf_plan_grid *g)
{
    lf_engine_plan e = { .model = p->model, .grid = g->grid, .numerics = p->numerics, .on_host = p->on_host,
                         .act_bytes = p->act_bytes, .tile = p->tile ? p->tile : lf_plan_tile(p, &g->grid),
                         .merge = p->merge, .kv_dtype = p->kv_dtype, .logits = p->logits, .stores = p->stores,
                         .kernels = p->kernels };
    const int64_t *lengths = p->lengths ? p->lengths : &p->length;
    int n = p->lengths ? p->prompts : 1;

    g->tile = e.tile;
    g->pass_bytes = (int64_t)lf_engine_plan_bytes(&e, n, lengths, g->pass);
    lf_engine_plan_room(&e, n, lengths, &g->expanded, &g->kernels);
    g->device_bytes = g->weights + g->expanded + g->kernels + g->pass_bytes;
    lf_engine_plan_host(&e, n, lengths, g->host);
    g->host[LF_HOST_WRITER] = g->grid.tp_rank ? 0 : lf_writer_budget(p->model);        /* the first tp rank writes */
    g->host[LF_HOST_PROMPTS] += sizeof(uint32_t) * (size_t)p->tokens;
    g->host_bytes = 0;
    for (int i = 0; i < LF_HOST_KINDS; i++)
        g->host_bytes += (int64_t)g->host[i];
    g->fits = (p->on_host ? lf_plan_on_host(g) : g->device_bytes) <= p->memory;
}

int64_t lf_plan_on_host(const lf_plan_grid *g)
{
    return g->device_bytes + g->host_bytes - (int64_t)g->host[LF_HOST_WRITER];
}

void lf_plan_most(lf_plan_grid *most, const lf_plan_grid *g)
{
    lf_plan_grid device = g->device_bytes > most->device_bytes ? *g : *most;
    const lf_plan_grid *host = g->host_bytes > most->host_bytes ? g : most;

    memcpy(device.host, host->host, sizeof device.host);
    device.host_bytes = host->host_bytes;
    *most = device;
}

static void place(lf_grid *g, int pcp_rank, int tp_rank)
{
    g->pcp_rank = pcp_rank;
    g->tp_rank = tp_rank;
    g->ep = g->pcp * g->tp;
    g->rank = g->ep_rank = pcp_rank * g->tp + tp_rank;
    g->dp_rank = 0;
}

int64_t lf_plan_tile(const lf_plan *p, const lf_grid *g)
{
    return lf_engine_tile(p->on_host ? LF_CPU_TILE : LF_CUDA_TILE, g, p->merge);
}

int64_t lf_plan_tile_half(const lf_plan *p, const lf_grid *g, int64_t tile)
{
    return p->on_host || tile / 2 < lf_plan_tile(p, g) / 8 ? 0 : tile / 2;
}

/* Experts are as many on every rank, so the weights differ over tp only, by a few rows or columns. */
static void size_all(const lf_plan *p, lf_plan_grid *g)
{
    lf_plan_grid one = { .grid = g->grid }, most = { .device_bytes = -1 };

    for (int t = 0; t < g->grid.tp; t++) {
        place(&one.grid, 0, t);
        lf_plan_weights_size(p, &one);
        for (int c = 0; c < g->grid.pcp; c++) {
            place(&one.grid, c, t);
            lf_plan_pass_size(p, &one);
            lf_plan_most(&most, &one);
        }
    }
    *g = most;
}

void lf_plan_grid_size(const lf_plan *p, lf_plan_grid *g)
{
    lf_plan with = *p;

    g->fits = 0;
    for (int64_t t = lf_plan_tile(p, &g->grid); t && !g->fits; t = lf_plan_tile_half(p, &g->grid, t)) {
        with.tile = t;
        size_all(&with, g);
    }
}

/* ---- all grids ---- */

int lf_plan_grids(const lf_plan *p, lf_plan_grid **out)
{
    lf_plan_grid *all = NULL;
    lf_err err;
    int n = 0;

    for (int tp = 1; tp <= p->ranks; tp++)
        for (int pcp = p->ranks / tp; pcp >= 1 && p->ranks % tp == 0; pcp--) {
            lf_plan_grid g = { 0 };
            if (p->ranks / tp % pcp ||
                lf_grid_make(&g.grid, p->model, p->ranks, 0, p->ranks / tp / pcp, pcp, tp, &err))
                continue;
            all = lf_realloc(all, (size_t)(n + 1) * sizeof *all);
            lf_plan_grid_size(p, &g);
            all[n++] = g;
        }
    *out = all;
    return n;
}

int lf_plan_choose(const lf_plan_grid *g, int n)
{
    for (int i = 0; i < n; i++)
        if (g[i].fits)
            return i;
    return -1;
}

/* What dp groups there are changes nothing for a rank. */
int lf_plan_smallest(const lf_plan *p, lf_plan_grid *g)
{
    lf_plan_grid one = { 0 };
    lf_err err;

    g->device_bytes = -1;
    for (int ranks = 1; ranks <= p->model->experts; ranks++)
        for (int tp = 1; tp <= ranks && p->model->experts % ranks == 0; tp++) {
            if (ranks % tp || lf_grid_make(&one.grid, p->model, ranks, 0, 1, ranks / tp, tp, &err))
                continue;
            lf_plan_grid_size(p, &one);
            if (g->device_bytes < 0 || one.fits || one.device_bytes < g->device_bytes)
                *g = one;
            if (one.fits)
                return 0;
        }
    return -1;
}
