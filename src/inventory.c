/* SPDX-License-Identifier: Apache-2.0 */
#include "inventory.h"

#include <stdio.h>
#include <stdlib.h>

/* Sizes that shapes are made of. */
typedef enum size_of {
    ONE,
    THREE,
    D,
    V,
    H,
    R,
    N,
    ND,
    MIX,
    HEADS_D,
    GROUP_D,
    GO,
    HEAD,
    RATIO,
    COMP,
    INDEX,
    INDEX_COMP,
    INDEX_Q,
    HI,
    E,
    K,
    I
} size_of;

/* Which layers have the tensor. */
typedef enum place { MODEL, EVERY, COMPRESSED, C4, LEARNED, HASHED } place;

enum {
    PLAIN = 1 << LF_STORE_BF16,
    FP8 = PLAIN | 1 << LF_STORE_FP8,
    FP4 = FP8 | 1 << LF_STORE_FP4,
    F32 = PLAIN | 1 << LF_STORE_F32,
    I64 = 1 << LF_STORE_I64,
};

static const struct role {
    const char *name;                      /* a %d stands for the expert */
    place place;
    unsigned stores;
    size_of rows, cols;                    /* rows ONE: a vector */
} roles[LF_ROLES] = {
    [LF_ROLE_EMBED] = { "embed.weight", MODEL, PLAIN, V, D },
    [LF_ROLE_HEAD] = { "head.weight", MODEL, PLAIN, V, D },
    [LF_ROLE_NORM] = { "norm.weight", MODEL, PLAIN, ONE, D },
    [LF_ROLE_HC_HEAD_FN] = { "hc_head_fn", MODEL, F32, N, ND },
    [LF_ROLE_HC_HEAD_BASE] = { "hc_head_base", MODEL, F32, ONE, N },
    [LF_ROLE_HC_HEAD_SCALE] = { "hc_head_scale", MODEL, F32, ONE, ONE },
    [LF_ROLE_HC_ATTN_FN] = { "hc_attn_fn", EVERY, F32, MIX, ND },
    [LF_ROLE_HC_ATTN_BASE] = { "hc_attn_base", EVERY, F32, ONE, MIX },
    [LF_ROLE_HC_ATTN_SCALE] = { "hc_attn_scale", EVERY, F32, ONE, THREE },
    [LF_ROLE_HC_FFN_FN] = { "hc_ffn_fn", EVERY, F32, MIX, ND },
    [LF_ROLE_HC_FFN_BASE] = { "hc_ffn_base", EVERY, F32, ONE, MIX },
    [LF_ROLE_HC_FFN_SCALE] = { "hc_ffn_scale", EVERY, F32, ONE, THREE },
    [LF_ROLE_ATTN_NORM] = { "attn_norm.weight", EVERY, PLAIN, ONE, D },
    [LF_ROLE_FFN_NORM] = { "ffn_norm.weight", EVERY, PLAIN, ONE, D },
    [LF_ROLE_SINK] = { "attn.attn_sink", EVERY, F32, ONE, H },
    [LF_ROLE_WQ_A] = { "attn.wq_a.weight", EVERY, FP8, R, D },
    [LF_ROLE_Q_NORM] = { "attn.q_norm.weight", EVERY, PLAIN, ONE, R },
    [LF_ROLE_WQ_B] = { "attn.wq_b.weight", EVERY, FP8, HEADS_D, R },
    [LF_ROLE_WKV] = { "attn.wkv.weight", EVERY, FP8, HEAD, D },
    [LF_ROLE_KV_NORM] = { "attn.kv_norm.weight", EVERY, PLAIN, ONE, HEAD },
    [LF_ROLE_WO_A] = { "attn.wo_a.weight", EVERY, FP8, GO, GROUP_D },
    [LF_ROLE_WO_B] = { "attn.wo_b.weight", EVERY, FP8, D, GO },
    [LF_ROLE_COMP_APE] = { "attn.compressor.ape", COMPRESSED, F32, RATIO, COMP },
    [LF_ROLE_COMP_WKV] = { "attn.compressor.wkv.weight", COMPRESSED, PLAIN, COMP, D },
    [LF_ROLE_COMP_WGATE] = { "attn.compressor.wgate.weight", COMPRESSED, PLAIN, COMP, D },
    [LF_ROLE_COMP_NORM] = { "attn.compressor.norm.weight", COMPRESSED, PLAIN, ONE, HEAD },
    [LF_ROLE_INDEX_APE] = { "attn.indexer.compressor.ape", C4, F32, RATIO, INDEX_COMP },
    [LF_ROLE_INDEX_WKV] = { "attn.indexer.compressor.wkv.weight", C4, PLAIN, INDEX_COMP, D },
    [LF_ROLE_INDEX_WGATE] = { "attn.indexer.compressor.wgate.weight", C4, PLAIN, INDEX_COMP, D },
    [LF_ROLE_INDEX_NORM] = { "attn.indexer.compressor.norm.weight", C4, PLAIN, ONE, INDEX },
    [LF_ROLE_INDEX_WQ_B] = { "attn.indexer.wq_b.weight", C4, FP8, INDEX_Q, R },
    [LF_ROLE_INDEX_WEIGHTS] = { "attn.indexer.weights_proj.weight", C4, PLAIN, HI, D },
    [LF_ROLE_GATE] = { "ffn.gate.weight", EVERY, PLAIN, E, D },
    [LF_ROLE_GATE_BIAS] = { "ffn.gate.bias", LEARNED, F32, ONE, E },
    [LF_ROLE_TID2EID] = { "ffn.gate.tid2eid", HASHED, I64, V, K },
    [LF_ROLE_W1] = { "ffn.experts.%d.w1.weight", EVERY, FP4, I, D },
    [LF_ROLE_W2] = { "ffn.experts.%d.w2.weight", EVERY, FP4, D, I },
    [LF_ROLE_W3] = { "ffn.experts.%d.w3.weight", EVERY, FP4, I, D },
    [LF_ROLE_SHARED_W1] = { "ffn.shared_experts.w1.weight", EVERY, FP8, I, D },
    [LF_ROLE_SHARED_W2] = { "ffn.shared_experts.w2.weight", EVERY, FP8, D, I },
    [LF_ROLE_SHARED_W3] = { "ffn.shared_experts.w3.weight", EVERY, FP8, I, D },
};

static int64_t size(const lf_model *m, int layer, size_of s)
{
    int64_t ratio = layer < 0 ? 0 : lf_kind_ratio(m->kind[layer]), twice = ratio == 4 ? 2 : 1;
    int64_t of[] = {
        [ONE] = 1,
        [THREE] = 3,
        [D] = m->hidden,
        [V] = m->vocab,
        [H] = m->heads,
        [R] = m->q_rank,
        [N] = m->hc,
        [ND] = m->hc * m->hidden,
        [MIX] = (int64_t)(2 + m->hc) * m->hc,
        [HEADS_D] = (int64_t)m->heads * m->head_dim,
        [GROUP_D] = (int64_t)(m->heads / m->o_groups) * m->head_dim,
        [GO] = m->o_groups * m->o_rank,
        [HEAD] = m->head_dim,
        [RATIO] = ratio,
        [COMP] = twice * m->head_dim,
        [INDEX] = m->index_dim,
        [INDEX_COMP] = twice * m->index_dim,
        [INDEX_Q] = (int64_t)m->index_heads * m->index_dim,
        [HI] = m->index_heads,
        [E] = m->experts,
        [K] = m->experts_per_tok,
        [I] = m->expert_inter,
    };

    return of[s];
}

static int has(const lf_model *m, int layer, place p)
{
    if (layer < 0 || p == MODEL)
        return layer < 0 && p == MODEL;
    switch (p) {
    case COMPRESSED:
        return m->kind[layer] != LF_SWA;
    case C4:
        return m->kind[layer] == LF_C4;
    case LEARNED:
        return layer >= m->hash_layers;
    case HASHED:
        return layer < m->hash_layers;
    default:
        return 1;
    }
}

static int is_routed(lf_role role)
{
    return role == LF_ROLE_W1 || role == LF_ROLE_W2 || role == LF_ROLE_W3;
}

static lf_storage released_store(unsigned stores)
{
    return stores & 1 << LF_STORE_FP4   ? LF_STORE_FP4
           : stores & 1 << LF_STORE_FP8 ? LF_STORE_FP8
           : stores & 1 << LF_STORE_F32 ? LF_STORE_F32
           : stores & 1 << LF_STORE_I64 ? LF_STORE_I64
                                        : LF_STORE_BF16;
}

static void name_item(lf_inventory_item *item)
{
    const char *name = roles[item->role].name;
    int n = 0;

    if (item->layer >= 0)
        n = snprintf(item->name, sizeof item->name, "layers.%d.", item->layer);
    if (item->expert >= 0) {
        const char *tail = strstr(name, "%d") + 2;
        snprintf(item->name + n, sizeof item->name - (size_t)n, "ffn.experts.%d%s", item->expert, tail);
    } else {
        snprintf(item->name + n, sizeof item->name - (size_t)n, "%s", name);
    }
    item->scale[0] = 0;
    if (item->stores & 1 << LF_STORE_FP8)
        snprintf(item->scale, sizeof item->scale, "%.*s.scale", (int)strlen(item->name) - 7, item->name);
}

int lf_inventory_item_of(const lf_model *m, int layer, lf_role role, int expert, lf_inventory_item *item)
{
    const struct role *r = &roles[role];

    if (layer < -1 || layer >= m->layers || !has(m, layer, r->place))
        return -1;
    if (is_routed(role) && (expert < 0 || expert >= m->experts))
        return -1;
    item->role = role;
    item->layer = layer;
    item->expert = is_routed(role) ? expert : -1;
    item->ndim = r->rows == ONE ? 1 : 2;
    item->rows = size(m, layer, r->rows);
    item->cols = size(m, layer, r->cols);
    item->stores = r->stores;
    if (item->cols % 32)
        item->stores &= ~(1u << LF_STORE_FP4);
    item->released = released_store(item->stores);
    name_item(item);
    return 0;
}

static int visit_role(const lf_model *m, int layer, lf_role role, int expert, lf_inventory_visit visit,
                      void *arg, lf_err *err)
{
    lf_inventory_item item;

    if (lf_inventory_item_of(m, layer, role, expert, &item))
        return 0;
    return visit(arg, &item, err);
}

static int visit_experts(const lf_model *m, int layer, lf_inventory_visit visit, void *arg, lf_err *err)
{
    int rc = 0;

    for (int e = 0; rc == 0 && e < m->experts; e++)
        for (lf_role r = LF_ROLE_W1; rc == 0 && r <= LF_ROLE_W3; r++)
            rc = visit_role(m, layer, r, e, visit, arg, err);
    return rc;
}

int lf_inventory_layer(const lf_model *m, int layer, lf_inventory_visit visit, void *arg, lf_err *err)
{
    int rc = 0;

    for (lf_role r = 0; rc == 0 && r < LF_ROLES; r++) {
        if (!is_routed(r))
            rc = visit_role(m, layer, r, -1, visit, arg, err);
        else if (r == LF_ROLE_W1 && layer >= 0)
            rc = visit_experts(m, layer, visit, arg, err);
    }
    return rc;
}

int lf_inventory_each(const lf_model *m, lf_inventory_visit visit, void *arg, lf_err *err)
{
    int rc = visit_role(m, -1, LF_ROLE_EMBED, -1, visit, arg, err);

    for (int l = 0; rc == 0 && l < m->layers; l++)
        rc = lf_inventory_layer(m, l, visit, arg, err);
    for (lf_role r = LF_ROLE_HEAD; rc == 0 && r <= LF_ROLE_HC_HEAD_SCALE; r++)
        rc = visit_role(m, -1, r, -1, visit, arg, err);
    return rc;
}

void lf_inventory_stored(const lf_inventory_item *item, lf_storage store, lf_dtype *dtype, int64_t shape[2],
                         int64_t scale_shape[2])
{
    static const lf_dtype types[LF_STORES] = {
        [LF_STORE_BF16] = LF_BF16, [LF_STORE_FP8] = LF_E4M3, [LF_STORE_FP4] = LF_I8,
        [LF_STORE_F32] = LF_F32,   [LF_STORE_I64] = LF_I64,
    };

    *dtype = types[store];
    shape[0] = item->rows;
    shape[1] = store == LF_STORE_FP4 ? item->cols / 2 : item->cols;
    scale_shape[0] = scale_shape[1] = 0;
    if (store == LF_STORE_FP8) {
        scale_shape[0] = lf_ceil_div(item->rows, 128);
        scale_shape[1] = lf_ceil_div(item->cols, 128);
    } else if (store == LF_STORE_FP4) {
        scale_shape[0] = item->rows;
        scale_shape[1] = item->cols / 32;
    }
}

void lf_inventory_block(lf_storage store, int64_t block[2])
{
    block[0] = store == LF_STORE_FP8 ? 128 : 1;
    block[1] = store == LF_STORE_FP8 ? 128 : store == LF_STORE_FP4 ? 32 : 1;
}

int64_t lf_inventory_bytes(const lf_inventory_item *item, lf_storage store)
{
    lf_dtype dtype;
    int64_t shape[2], scale[2];

    lf_inventory_stored(item, store, &dtype, shape, scale);
    return shape[0] * shape[1] * (int64_t)lf_dtype_bytes(dtype) + scale[0] * scale[1];
}
