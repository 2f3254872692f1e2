/* SPDX-License-Identifier: Apache-2.0 */
#include "weight.h"
#include "synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct loader {
    lf_weights *w;
    const lf_model *m;
    lf_checkpoint *c;                      /* NULL: made-up weights */
    uint64_t seed;
    lf_dev *d;
    const lf_grid *g;
    lf_err *err;
} loader;

/* The rotation a frequency makes over the original context decides how much of it YaRN stretches. */
static double correction_dim(const lf_model *m, double rotations)
{
    return m->rope_dim * log((double)m->yarn.original / (rotations * 2 * M_PI)) / (2 * log(m->compress_theta));
}

void lf_rope_frequencies(const lf_model *m, int compressed, float *inv_freq)
{
    int half = m->rope_dim / 2;
    double base = compressed ? m->compress_theta : m->rope_theta, low = 0, high = 0;
    int yarn = compressed && m->yarn.on;

    if (yarn) {
        low = fmax(floor(correction_dim(m, m->yarn.beta_fast)), 0);
        high = fmin(ceil(correction_dim(m, m->yarn.beta_slow)), m->rope_dim - 1);
        high = high == low ? high + 0.001 : high;
    }
    for (int i = 0; i < half; i++) {
        float f = (float)(1 / powf((float)base, (float)(2 * i) / (float)m->rope_dim));
        if (yarn) {
            float ramp = (float)fmin(fmax((i - low) / (high - low), 0), 1);
            f = f / (float)m->yarn.factor * ramp + f * (1 - ramp);
        }
        inv_freq[i] = f;
    }
}

static int own(loader *l, void **out, size_t bytes, const char *name)
{
    lf_weights *w = l->w;

    if (l->d->ops->take(l->d, out, bytes, name, l->err))
        return -1;
    w->owned = lf_realloc(w->owned, sizeof(void *) * (size_t)(w->owns + 1));
    w->owned[w->owns++] = *out;
    return 0;
}

static int is_number(loader *l, const char *name, const float *v, int64_t n, int64_t first)
{
    for (int64_t i = 0; i < n; i++)
        if (isnan(v[i]))
            return lf_fail(l->err, "%s: value %lld is NaN; compare the checkpoint with its source", name,
                           (long long)(first + i));
    return 0;
}

/* A vector (or small table) as float32 in device memory. */
static int vector(loader *l, float **out, int layer, lf_role role)
{
    lf_inventory_item item;
    lf_inventory_found found;
    const void *data;

    if (lf_inventory_item_of(l->m, layer, role, 0, &item))
        return lf_fail(l->err, "layer %d has no tensor of role %d", layer, (int)role);
    int64_t n = item.rows * item.cols;
    if (own(l, (void **)out, sizeof(float) * (size_t)n, item.name))
        return -1;
    float *host = lf_alloc(sizeof(float) * (size_t)n);
    int bad = l->c && (lf_inventory_find(l->c, &item, &found, l->err) ||
                       lf_checkpoint_data(l->c, found.weight, &data, l->err));
    if (!bad && l->c)
        lf_inventory_floats(found.weight->dtype, data, 0, n, host);
    else if (!bad)
        lf_synth_values(&item, l->seed, 0, n, host);
    for (int64_t i = 0; !l->c && item.released == LF_STORE_BF16 && i < n; i++)
        host[i] = lf_round_bf16(host[i]);
    if (!bad && l->c)
        bad = is_number(l, item.name, host, n, 0);
    if (!bad)
        l->d->ops->put(l->d, *out, host, sizeof(float) * (size_t)n);
    free(host);
    return bad ? -1 : 0;
}

static int scales_are_numbers(loader *l, const char *name, const lf_tensor *scale)
{
    const void *data, *byte;

    if (!scale)
        return 0;
    if (lf_checkpoint_data(l->c, scale, &data, l->err))
        return -1;
    byte = memchr(data, 0xff, scale->bytes);
    return byte ? lf_fail(l->err, "%s: scale %lld is NaN; compare the checkpoint with its source", name,
                          (long long)((const char *)byte - (const char *)data)) : 0;
}

/* A matrix whose NaN no stored row would show: the indexer only orders, and e2m1, which keeps its keys, has none. */
static int numbers(loader *l, int layer, lf_role role)
{
    lf_inventory_item item;
    lf_inventory_found f;
    const void *data;

    if (!l->c)
        return 0;
    if (lf_inventory_item_of(l->m, layer, role, 0, &item) || lf_inventory_find(l->c, &item, &f, l->err) ||
        lf_checkpoint_data(l->c, f.weight, &data, l->err) || scales_are_numbers(l, item.name, f.scale))
        return -1;
    float *row = lf_alloc(sizeof *row * (size_t)item.cols);
    int bad = 0;
    for (int64_t r = 0; r < item.rows && !bad; r++) {
        const uint8_t *codes = (const uint8_t *)data + r * item.cols;
        if (f.weight->dtype != LF_E4M3)
            lf_inventory_floats(f.weight->dtype, data, r * item.cols, item.cols, row);
        for (int64_t i = 0; i < item.cols && f.weight->dtype == LF_E4M3; i++)
            row[i] = lf_e4m3_table[codes[i]];
        bad = is_number(l, item.name, row, item.cols, r * item.cols);
    }
    free(row);
    return bad;
}

/* From the checkpoint: the bytes of what is kept. */
static int stored(loader *l, lf_weight *w, const lf_inventory_item *item)
{
    lf_inventory_item part = *item;
    lf_inventory_found f;
    int64_t at[2], block[2], shape[2], scales[2];
    const void *data, *scale = NULL;

    if (lf_inventory_find(l->c, item, &f, l->err) || lf_checkpoint_data(l->c, f.weight, &data, l->err) ||
        (f.scale && lf_checkpoint_data(l->c, f.scale, &scale, l->err)))
        return -1;
    lf_weights_view(w, at, item, f.store, l->m, l->g);
    part.rows = w->all_rows;
    part.cols = w->all_cols;
    lf_inventory_block(f.store, block);
    lf_inventory_stored(&part, f.store, &w->dtype, shape, scales);
    size_t row = f.weight->bytes / (size_t)item->rows;
    size_t bytes = (size_t)(shape[0] * shape[1]) * lf_dtype_bytes(w->dtype), more = (size_t)(scales[0] * scales[1]);
    data = (const char *)data + (size_t)at[0] * row + (size_t)at[1] * row / (size_t)item->cols;
    if (scale)
        scale = (const char *)scale + at[0] / block[0] * f.scale->shape[1] + at[1] / block[1];
    if (l->d->ops->weight(l->d, w, item->cols, data, bytes, scale, more, l->err))
        return -1;
    if (w->data != data)
        l->w->read += (int64_t)(bytes + more);
    return 0;
}

static int made_up(loader *l, lf_weight *w, const lf_inventory_item *item)
{
    int64_t at[2];

    lf_weights_view(w, at, item, item->released, l->m, l->g);
    return l->d->ops->made_up(l->d, w, item, item->released, at, l->seed, l->err);
}

/* This rank's rows and columns (lf_weights_view). */
static int matrix_of(loader *l, lf_weight *w, int layer, lf_role role, int expert)
{
    lf_inventory_item item;

    if (lf_inventory_item_of(l->m, layer, role, expert, &item))
        return lf_fail(l->err, "layer %d has no tensor of role %d", layer, (int)role);
    int bad = l->c ? stored(l, w, &item) : made_up(l, w, &item);
    return bad ? lf_fail_in(l->err, "%s", item.name) : 0;
}

static int matrix(loader *l, lf_weight *w, int layer, lf_role role)
{
    return matrix_of(l, w, layer, role, 0);
}

/* fn, base and scale stand one after the other in lf_role. */
static int hyper(loader *l, lf_hc *hc, int layer, lf_role fn)
{
    float *scale, *base;

    if (matrix(l, &hc->fn, layer, fn) || vector(l, &base, layer, fn + 1) || vector(l, &scale, layer, fn + 2))
        return -1;
    hc->scale = scale;
    hc->base = base;
    return 0;
}

/* So do a compressor's ape, wkv, wgate and norm. */
static int compressor(loader *l, lf_compressor *c, int layer, lf_role ape)
{
    return vector(l, &c->ape, layer, ape) || matrix(l, &c->wkv, layer, ape + 1) ||
           matrix(l, &c->wgate, layer, ape + 2) || vector(l, &c->norm, layer, ape + 3) ? -1 : 0;
}

static int attention(loader *l, lf_layer *y, int layer)
{
    int64_t heads = l->w->heads;

    if (matrix(l, &y->wq_a, layer, LF_ROLE_WQ_A) || vector(l, &y->q_norm, layer, LF_ROLE_Q_NORM) ||
        matrix(l, &y->wq_b, layer, LF_ROLE_WQ_B) || matrix(l, &y->wkv, layer, LF_ROLE_WKV) ||
        vector(l, &y->kv_norm, layer, LF_ROLE_KV_NORM) ||
        vector(l, &y->sink, layer, LF_ROLE_SINK) || matrix(l, &y->wo_a, layer, LF_ROLE_WO_A) ||
        matrix(l, &y->wo_b, layer, LF_ROLE_WO_B))
        return -1;
    y->sink += l->g->tp_rank * heads;
    if (y->kind != LF_SWA && compressor(l, &y->main, layer, LF_ROLE_COMP_APE))
        return -1;
    if (y->kind != LF_C4)
        return 0;
    return numbers(l, layer, LF_ROLE_INDEX_WKV) || numbers(l, layer, LF_ROLE_INDEX_WGATE) ||
           numbers(l, layer, LF_ROLE_INDEX_WQ_B) || numbers(l, layer, LF_ROLE_INDEX_WEIGHTS) ||
           compressor(l, &y->index, layer, LF_ROLE_INDEX_APE) ||
           matrix(l, &y->index_wq_b, layer, LF_ROLE_INDEX_WQ_B) ||
           matrix(l, &y->index_proj, layer, LF_ROLE_INDEX_WEIGHTS) ? -1 : 0;
}

/* The table as the checkpoint has it.  An id out of range would be a wild read later: refuse it here, by its place. */
static int read_table(loader *l, int64_t *host, int64_t n, const lf_inventory_item *item)
{
    lf_inventory_found found;
    const void *data;

    if (lf_inventory_find(l->c, item, &found, l->err) || lf_checkpoint_data(l->c, found.weight, &data, l->err))
        return -1;
    memcpy(host, data, sizeof(int64_t) * (size_t)n);
    for (int64_t i = 0; i < n; i++)
        if (host[i] < 0 || host[i] >= l->m->experts)
            return lf_fail(l->err, "%s: token %lld names expert %lld; the model has experts 0 to %d", item->name,
                           (long long)(i / l->m->experts_per_tok), (long long)host[i], l->m->experts - 1);
    return 0;
}

/* Token id -> expert ids. */
static int hash_table(loader *l, int64_t **out, int layer)
{
    lf_inventory_item item;
    int64_t n = l->m->vocab * l->m->experts_per_tok, *host = lf_alloc(sizeof(int64_t) * (size_t)n);
    int bad = lf_inventory_item_of(l->m, layer, LF_ROLE_TID2EID, 0, &item) ||
              own(l, (void **)out, sizeof(int64_t) * (size_t)n, "gate.tid2eid") ||
              (l->c && read_table(l, host, n, &item));

    if (!bad && !l->c)
        lf_synth_rows(&item, LF_STORE_I64, l->seed, l->m->experts, 0, item.rows, host, NULL, NULL);
    if (!bad)
        l->d->ops->put(l->d, *out, host, sizeof(int64_t) * (size_t)n);
    free(host);
    return bad ? -1 : 0;
}

static int experts(loader *l, lf_layer *y, int layer)
{
    size_t bytes = sizeof(lf_weight) * (size_t)l->w->experts;

    y->w1 = lf_alloc(bytes);
    y->w2 = lf_alloc(bytes);
    y->w3 = lf_alloc(bytes);
    if (matrix(l, &y->gate, layer, LF_ROLE_GATE) ||
        (layer < l->m->hash_layers ? hash_table(l, &y->tid2eid, layer) : vector(l, &y->bias, layer, LF_ROLE_GATE_BIAS)))
        return -1;
    for (int i = 0, e = l->w->expert0; i < l->w->experts; i++, e++)
        if (matrix_of(l, &y->w1[i], layer, LF_ROLE_W1, e) || matrix_of(l, &y->w2[i], layer, LF_ROLE_W2, e) ||
            matrix_of(l, &y->w3[i], layer, LF_ROLE_W3, e))
            return -1;
    return matrix(l, &y->shared1, layer, LF_ROLE_SHARED_W1) || matrix(l, &y->shared2, layer, LF_ROLE_SHARED_W2) ||
           matrix(l, &y->shared3, layer, LF_ROLE_SHARED_W3) ? -1 : 0;
}

static int one_layer(loader *l, int layer)
{
    lf_layer *y = &l->w->layer[layer];

    y->kind = l->m->kind[layer];
    return hyper(l, &y->hc_attn, layer, LF_ROLE_HC_ATTN_FN) || hyper(l, &y->hc_ffn, layer, LF_ROLE_HC_FFN_FN) ||
           vector(l, &y->attn_norm, layer, LF_ROLE_ATTN_NORM) || vector(l, &y->ffn_norm, layer, LF_ROLE_FFN_NORM) ||
           attention(l, y, layer) || experts(l, y, layer) ? -1 : 0;
}

static int rope(loader *l, lf_rope *r, int compressed)
{
    float *dev, *host = lf_alloc(sizeof(float) * (size_t)(l->m->rope_dim / 2));
    size_t bytes = sizeof(float) * (size_t)(l->m->rope_dim / 2);
    int bad = own(l, (void **)&dev, bytes, "rope frequencies");

    if (!bad) {
        lf_rope_frequencies(l->m, compressed, host);
        l->d->ops->put(l->d, dev, host, bytes);
        *r = (lf_rope){ .rope_dim = l->m->rope_dim, .inv_freq = dev };
    }
    free(host);
    return bad;
}

int64_t lf_vocab_at(const lf_model *m, int tp, int tp_rank)
{
    return m->vocab * tp_rank / tp;
}

void lf_weights_shape(lf_weights *w, const lf_model *m, const lf_grid *g)
{
    *w = (lf_weights){ .heads = m->heads / g->tp, .groups = m->o_groups / g->tp, .experts = m->experts / g->ep,
                       .expert0 = g->ep_rank * (m->experts / g->ep), .layers = m->layers,
                       .vocab0 = lf_vocab_at(m, g->tp, g->tp_rank) };
    w->vocab = lf_vocab_at(m, g->tp, g->tp_rank + 1) - w->vocab0;
}

static int find_file(void *ctx, const void *data, size_t bytes, int64_t *at)
{
    return lf_checkpoint_file(ctx, data, bytes, at);
}

static int prepare(loader *l)
{
    const lf_dev_ops *ops = l->d->ops;
    lf_dev_files files = { l->c, find_file };
    int64_t bytes;

    if (ops->expect && (lf_weights_survey(l->w->stores, &bytes, l->m, l->c, l->g, l->err) ||
                        ops->expect(l->d, bytes, l->err)))
        return -1;
    return ops->load && l->c ? ops->load(l->d, &files, l->err) : 0;
}

static int load_all(loader *l)
{
    lf_weights *w = l->w;

    if (prepare(l) || matrix(l, &w->embed, -1, LF_ROLE_EMBED) || matrix(l, &w->head, -1, LF_ROLE_HEAD) ||
        vector(l, &w->norm, -1, LF_ROLE_NORM) ||
        hyper(l, &w->hc_head, -1, LF_ROLE_HC_HEAD_FN) || rope(l, &w->rope, 0) || rope(l, &w->rope_compressed, 1))
        return -1;
    for (int i = 0; i < l->m->layers; i++)
        if (one_layer(l, i))
            return -1;
    return 0;
}

int lf_weights_load(lf_weights *w, const lf_model *m, lf_checkpoint *c, uint64_t seed, lf_dev *d, const lf_grid *g,
                    lf_err *err)
{
    loader l = { .w = w, .m = m, .c = c, .seed = seed, .d = d, .g = g, .err = err };

    lf_weights_shape(w, m, g);
    w->dev = d;
    w->layer = lf_alloc(sizeof *w->layer * (size_t)m->layers);
    int bad = load_all(&l);
    return d->ops->sync(d, bad ? &(lf_err){ "" } : err) || bad ? -1 : 0;           /* nothing is read after this */
}

void lf_weights_free(lf_weights *w)
{
    for (int i = 0; i < w->owns; i++)
        w->dev->ops->give(w->dev, w->owned[i]);
    for (int i = 0; w->layer && i < w->layers; i++) {
        free(w->layer[i].w1);
        free(w->layer[i].w2);
        free(w->layer[i].w3);
    }
    free(w->owned);
    free(w->layer);
    *w = (lf_weights){ 0 };
}
