/* SPDX-License-Identifier: Apache-2.0 */
#include "weight.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct loader {
    lf_weights *w;
    const lf_model *m;
    lf_checkpoint *c;
    lf_dev *d;
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

static const lf_tensor *tensor(loader *l, const char *name, const void **data)
{
    const lf_tensor *t = lf_checkpoint_find(l->c, name);

    if (!t) {
        lf_fail(l->err, "the checkpoint has no tensor %s", name);
        return NULL;
    }
    return lf_checkpoint_data(l->c, t, data, l->err) ? NULL : t;
}

/* A stored vector (or small table) of n values as float32 in device memory. */
static int vector(loader *l, float **out, const char *prefix, const char *name, int64_t n)
{
    char full[256];
    const void *data;

    snprintf(full, sizeof full, "%s%s", prefix, name);
    const lf_tensor *t = tensor(l, full, &data);
    if (!t || own(l, (void **)out, sizeof(float) * (size_t)n, full))
        return -1;
    float *host = lf_alloc(sizeof(float) * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        uint16_t b;
        if (t->dtype == LF_BF16) {
            memcpy(&b, (const char *)data + 2 * i, 2);
            host[i] = lf_bf16_f32(b);
        } else
            memcpy(&host[i], (const char *)data + 4 * i, 4);
    }
    l->d->ops->put(l->d, *out, host, sizeof(float) * (size_t)n);
    free(host);
    return 0;
}

/* A stored matrix [rows, cols] as it is. */
static int matrix(loader *l, lf_weight *w, const char *prefix, const char *name, int64_t rows, int64_t cols)
{
    char full[256];
    const void *data, *scale = NULL;
    const lf_tensor *s = NULL;

    snprintf(full, sizeof full, "%s%s.weight", prefix, name);
    if (!lf_checkpoint_find(l->c, full))
        snprintf(full, sizeof full, "%s%s", prefix, name);             /* hc_*_fn has no ".weight" */
    const lf_tensor *t = tensor(l, full, &data);
    if (!t)
        return -1;
    if (t->dtype == LF_E4M3 || t->dtype == LF_I8) {
        snprintf(full, sizeof full, "%s%s.scale", prefix, name);
        if (!(s = tensor(l, full, &scale)))
            return -1;
    }
    *w = (lf_weight){ .dtype = t->dtype, .rows = rows, .cols = cols, .all_rows = rows, .all_cols = cols };
    return l->d->ops->weight(l->d, w, data, t->bytes, scale, s ? s->bytes : 0, l->err);
}

static int hyper(loader *l, lf_hc *hc, const char *prefix, const char *name, int64_t outs, int scales)
{
    char full[96];
    float *scale, *base;

    snprintf(full, sizeof full, "%s_fn", name);
    if (matrix(l, &hc->fn, prefix, full, outs, l->m->hc * l->m->hidden))
        return -1;
    snprintf(full, sizeof full, "%s_scale", name);
    if (vector(l, &scale, prefix, full, scales))
        return -1;
    snprintf(full, sizeof full, "%s_base", name);
    if (vector(l, &base, prefix, full, outs))
        return -1;
    hc->scale = scale;
    hc->base = base;
    return 0;
}

static int compressor(loader *l, lf_compressor *c, const char *prefix, int ratio, int64_t width)
{
    int64_t outs = ratio == 4 ? 2 * width : width;

    return matrix(l, &c->wkv, prefix, "compressor.wkv", outs, l->m->hidden) ||
           matrix(l, &c->wgate, prefix, "compressor.wgate", outs, l->m->hidden) ||
           vector(l, &c->ape, prefix, "compressor.ape", ratio * outs) ||
           vector(l, &c->norm, prefix, "compressor.norm.weight", width);
}

static int attention(loader *l, lf_layer *y, const char *prefix, const lf_grid *g)
{
    const lf_model *m = l->m;
    int64_t d = m->head_dim, per_group = m->heads / m->o_groups * d;
    int heads = l->w->heads, groups = l->w->groups;
    char index[160];

    snprintf(index, sizeof index, "%sindexer.", prefix);
    if (matrix(l, &y->wq_a, prefix, "wq_a", m->q_rank, m->hidden) ||
        vector(l, &y->q_norm, prefix, "q_norm.weight", m->q_rank) ||
        matrix(l, &y->wq_b, prefix, "wq_b", m->heads * d, m->q_rank) ||
        matrix(l, &y->wkv, prefix, "wkv", d, m->hidden) ||
        vector(l, &y->kv_norm, prefix, "kv_norm.weight", d) || vector(l, &y->sink, prefix, "attn_sink", m->heads) ||
        matrix(l, &y->wo_a, prefix, "wo_a", m->o_groups * m->o_rank, per_group) ||
        matrix(l, &y->wo_b, prefix, "wo_b", m->hidden, m->o_groups * m->o_rank))
        return -1;
    y->wq_b = lf_weight_rows(y->wq_b, g->tp_rank * heads * d, heads * d);
    y->sink += g->tp_rank * heads;
    y->wo_a = lf_weight_rows(y->wo_a, g->tp_rank * groups * m->o_rank, groups * m->o_rank);
    y->wo_b = lf_weight_cols(y->wo_b, g->tp_rank * groups * m->o_rank, groups * m->o_rank);
    if (y->kind != LF_SWA && compressor(l, &y->main, prefix, lf_kind_ratio(y->kind), d))
        return -1;
    if (y->kind != LF_C4)
        return 0;
    return compressor(l, &y->index, index, 4, m->index_dim) ||
           matrix(l, &y->index_wq_b, index, "wq_b", (int64_t)m->index_heads * m->index_dim, m->q_rank) ||
           matrix(l, &y->index_proj, index, "weights_proj", m->index_heads, m->hidden);
}

/* Token id -> expert ids.  An id out of range would be a wild read later: refuse it here, by its place. */
static int hash_table(loader *l, int64_t **out, const char *prefix)
{
    char full[256];
    const void *data;
    int64_t n = l->m->vocab * l->m->experts_per_tok;

    snprintf(full, sizeof full, "%sgate.tid2eid", prefix);
    const lf_tensor *t = tensor(l, full, &data);
    if (!t || own(l, (void **)out, sizeof(int64_t) * (size_t)n, full))
        return -1;
    int64_t *host = lf_alloc(sizeof(int64_t) * (size_t)n), bad = -1;
    for (int64_t i = 0; i < n; i++) {
        int32_t small;
        memcpy(t->dtype == LF_I32 ? (void *)&small : (void *)&host[i],
               (const char *)data + i * (int64_t)lf_dtype_bytes(t->dtype), lf_dtype_bytes(t->dtype));
        host[i] = t->dtype == LF_I32 ? small : host[i];
        if (bad < 0 && (host[i] < 0 || host[i] >= l->m->experts))
            bad = i;
    }
    if (bad >= 0)
        lf_fail(l->err, "%s: token %lld names expert %lld; the model has experts 0 to %d", full,
                (long long)(bad / l->m->experts_per_tok), (long long)host[bad], l->m->experts - 1);
    else
        l->d->ops->put(l->d, *out, host, sizeof(int64_t) * (size_t)n);
    free(host);
    return bad >= 0 ? -1 : 0;
}

static int expert(loader *l, lf_weight *w1, lf_weight *w2, lf_weight *w3, const char *prefix, const char *name)
{
    char full[64];
    int64_t inter = l->m->expert_inter, hidden = l->m->hidden;

    snprintf(full, sizeof full, "%s.w1", name);
    if (matrix(l, w1, prefix, full, inter, hidden))
        return -1;
    snprintf(full, sizeof full, "%s.w2", name);
    if (matrix(l, w2, prefix, full, hidden, inter))
        return -1;
    snprintf(full, sizeof full, "%s.w3", name);
    return matrix(l, w3, prefix, full, inter, hidden);
}

static int experts(loader *l, lf_layer *y, const char *prefix, int layer)
{
    const lf_model *m = l->m;
    size_t bytes = sizeof(lf_weight) * (size_t)l->w->experts;
    char name[64];

    y->w1 = lf_alloc(bytes);
    y->w2 = lf_alloc(bytes);
    y->w3 = lf_alloc(bytes);
    if (matrix(l, &y->gate, prefix, "gate", m->experts, m->hidden) ||
        (layer < m->hash_layers ? hash_table(l, &y->tid2eid, prefix)
                                : vector(l, &y->bias, prefix, "gate.bias", m->experts)))
        return -1;
    for (int e = 0; e < l->w->experts; e++) {
        snprintf(name, sizeof name, "experts.%d", l->w->expert0 + e);
        if (expert(l, &y->w1[e], &y->w2[e], &y->w3[e], prefix, name))
            return -1;
    }
    return expert(l, &y->shared1, &y->shared2, &y->shared3, prefix, "shared_experts");
}

static int one_layer(loader *l, int layer, const lf_grid *g)
{
    lf_layer *y = &l->w->layer[layer];
    int64_t n = l->m->hc, mix = (2 + n) * n;
    char prefix[64], sub[96];

    y->kind = l->m->kind[layer];
    snprintf(prefix, sizeof prefix, "layers.%d.", layer);
    if (hyper(l, &y->hc_attn, prefix, "hc_attn", mix, 3) || hyper(l, &y->hc_ffn, prefix, "hc_ffn", mix, 3) ||
        vector(l, &y->attn_norm, prefix, "attn_norm.weight", l->m->hidden) ||
        vector(l, &y->ffn_norm, prefix, "ffn_norm.weight", l->m->hidden))
        return -1;
    snprintf(sub, sizeof sub, "%sattn.", prefix);
    if (attention(l, y, sub, g))
        return -1;
    snprintf(sub, sizeof sub, "%sffn.", prefix);
    return experts(l, y, sub, layer);
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

int lf_weights_load(lf_weights *w, const lf_model *m, lf_checkpoint *c, lf_dev *d, const lf_grid *g, lf_err *err)
{
    loader l = { .w = w, .m = m, .c = c, .d = d, .err = err };

    lf_weights_shape(w, m, g);
    w->dev = d;
    w->layer = lf_alloc(sizeof *w->layer * (size_t)m->layers);
    if (matrix(&l, &w->embed, "", "embed", m->vocab, m->hidden) ||
        matrix(&l, &w->head, "", "head", m->vocab, m->hidden) ||
        vector(&l, &w->norm, "", "norm.weight", m->hidden) || hyper(&l, &w->hc_head, "", "hc_head", m->hc, 1) ||
        rope(&l, &w->rope, 0) || rope(&l, &w->rope_compressed, 1))
        return -1;
    w->head = lf_weight_rows(w->head, w->vocab0, w->vocab);
    for (int i = 0; i < m->layers; i++)
        if (one_layer(&l, i, g))
            return -1;
    return 0;
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
