/* SPDX-License-Identifier: Apache-2.0
 *
 * selfcheck_run: what the self-check's tests share: a model with made-up weights from a preset or a config, a probed
 * pass on a grid, and the checks of what it gave, told by rank 0 for all.
 */
#ifndef LF_SELFCHECK_RUN_H
#define LF_SELFCHECK_RUN_H

#include "tap.h"

#include "device.h"
#include "made_ids.h"
#include "probe.h"
#include "synth.h"

#include <stdlib.h>
#include <string.h>

typedef struct look_setting {
    int pcp, tp, merge, device, threads;
    lf_numerics numerics;
    lf_kv_dtype kv;
    int64_t tile;
    const uint8_t *layers;                 /* wanted; [model layers] */
    const lf_probe_at *at;
    int positions;
} look_setting;

/* What a rank's probe was told. */
typedef struct look {
    const lf_model *model;
    lf_selfcheck_layer *layer;
    lf_selfcheck_query *query;
    int layers, queries;
    double seconds;                        /* of the pass */
    size_t peak;                           /* bytes of its device */
    char device[96];
} look;

/* One check, as rank 0 hears of it. */
typedef struct look_record {
    int layer, seq, rank, bad, scored;
    int64_t pos;
    lf_selfcheck_result r;
    char text[256];
} look_record;

static inline void look_rows(void *ctx, const lf_selfcheck_layer *y)
{
    look *l = ctx;

    l->layer = lf_realloc(l->layer, sizeof *y * (size_t)(l->layers + 1));
    l->layer[l->layers++] = *y;
}

static inline void look_query(void *ctx, const lf_selfcheck_query *q)
{
    look *l = ctx;

    l->query = lf_realloc(l->query, sizeof *q * (size_t)(l->queries + 1));
    l->query[l->queries++] = *q;
}

static inline void look_free(look *l)
{
    for (int i = 0; i < l->layers; i++)
        lf_selfcheck_layer_free(&l->layer[i]);
    for (int i = 0; i < l->queries; i++)
        lf_selfcheck_query_free(&l->query[i]);
    free(l->layer);
    free(l->query);
    *l = (look){ 0 };
}

static inline void sink_rows(void *ctx, int seq, int layer, lf_kv_part part, int64_t row0, int64_t rows,
                             const void *packed, size_t bytes)
{
    (void)ctx, (void)seq, (void)layer, (void)part, (void)row0, (void)rows, (void)packed, (void)bytes;
}

static inline void sink_logits(void *ctx, int seq, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data,
                               size_t bytes)
{
    (void)ctx, (void)seq, (void)kind, (void)row0, (void)rows, (void)data, (void)bytes;
}

static inline void sink_first_token(void *ctx)
{
    (void)ctx;
}

static inline void sink_layer(void *ctx, int layer)
{
    (void)ctx, (void)layer;
}

/* Fails on all ranks or on none; a pass that stops in the middle ends the job. */
static inline int look_pass(look *l, lf_dev *d, lf_topo *t, const look_setting *s, int n, const lf_prompt *prompt,
                            lf_err *err)
{
    lf_probe probe = { l, s->at, s->positions, s->layers, look_rows, look_query };
    lf_engine_setup setup = { .model = l->model, .seed = 7, .dev = d, .topo = t, .kv_dtype = s->kv,
                              .logits = { .last = 1 }, .tile = s->tile, .merge = s->merge, .probe = &probe };
    lf_sink sink = { NULL, sink_rows, sink_logits, sink_first_token, sink_layer };
    double seconds[LF_PHASES] = { 0 };
    lf_engine *e = NULL;
    int any, bad = lf_engine_open(&e, &setup, err);

    if (lf_topo_any(t->world, bad, &any, err) || any) {
        if (!bad)
            lf_engine_close(e);
        return -1;
    }
    l->seconds = -lf_now();
    bad = lf_engine_run(e, n, prompt, &sink, seconds, err);
    l->seconds += lf_now();
    l->peak = d->peak;
    snprintf(l->device, sizeof l->device, "%s", d->name);
    lf_engine_close(e);
    if (bad == -2) {
        printf("Bail out! %s\n", err->text);
        lf_topo_abort(1);
    }
    return bad;
}

static inline int look_run(look *l, const lf_model *m, int rank, int size, const look_setting *s, int n,
                           const lf_prompt *prompt, lf_err *err)
{
    lf_grid g;
    lf_topo t;
    lf_dev *d = NULL;

    *l = (look){ .model = m };
    if (lf_grid_make(&g, m, size, rank, size / (s->pcp * s->tp), s->pcp, s->tp, err) || lf_topo_open(&t, &g, err))
        return -1;
    int bad = lf_device_open(&d, &t, m, s->numerics, s->kv, s->device, s->threads, err);
    bad = bad || look_pass(l, d, &t, s, n, prompt, err);
    lf_topo_close(&t);
    lf_dev_close(d);
    return bad;
}

static inline const lf_selfcheck_layer *look_find(const look *l, const lf_selfcheck_query *q)
{
    for (int i = 0; i < l->layers; i++)
        if (l->layer[i].layer == q->layer && l->layer[i].seq == q->seq)
            return &l->layer[i];
    return NULL;
}

/* Checks all that this rank was told; one record each. */
static inline look_record *look_check(const look *l, int rank)
{
    look_record *all = lf_alloc(sizeof *all * (size_t)(l->queries + 1));

    for (int i = 0; i < l->queries; i++) {
        const lf_selfcheck_query *q = &l->query[i];
        const lf_selfcheck_layer *y = look_find(l, q);
        look_record *k = &all[i];
        lf_err err = { "no rows came before the query" };
        *k = (look_record){ .layer = q->layer, .seq = q->seq, .rank = rank, .pos = q->pos, .scored = !!q->index_q };
        k->bad = y ? lf_selfcheck(&k->r, y, q, &err) : -1;
        if (k->bad)
            snprintf(k->text, sizeof k->text, "%.250s", err.text);
    }
    return all;
}

static inline int look_order(const void *x, const void *y)
{
    const look_record *a = x, *b = y;

    return a->layer != b->layer ? a->layer - b->layer : a->seq != b->seq ? a->seq - b->seq
           : a->pos != b->pos   ? (a->pos > b->pos) - (a->pos < b->pos) : a->rank - b->rank;
}

static inline void look_print(const lf_model *m, const look_record *k)
{
    char text[160] = "";

    if (k->scored)
        snprintf(text, sizeof text, ", %lld near ties, %lld of them exchanged, scores within %.2g of their bound",
                 (long long)k->r.near_ties, (long long)k->r.exchanged, k->r.score_error);
    TAP_CHECK(!k->bad, "layer %d (%s) prompt %d position %lld rank %d: %lld of %lld entries%s, output %.2e of %.0e",
              k->layer, lf_kind_name(m->kind[k->layer]), k->seq, (long long)k->pos, k->rank, (long long)k->r.chosen,
              (long long)k->r.visible, text, k->r.output_error, k->r.output_limit);
    if (k->bad)
        printf("# %s\n", k->text);
}

/* One line: how many checks, and the worst of each kind. */
static inline void look_summary(const look_record *all, int n)
{
    int64_t bad = 0, scored = 0, near = 0, exchanged = 0;
    double score = 0, output = 0;

    for (int i = 0; i < n; i++) {
        bad += all[i].bad != 0;
        scored += all[i].scored && all[i].r.chosen < all[i].r.visible;
        near += all[i].r.near_ties;
        exchanged += all[i].r.exchanged;
        score = fmax(score, all[i].r.score_error);
        output = fmax(output, all[i].r.output_error);
    }
    printf("# summary: %d checks, %lld failed; %lld chose by score: %lld near ties, %lld exchanged, scores within "
           "%.2g of their bound; outputs within %.2e\n", n, (long long)bad, (long long)scored, (long long)near,
           (long long)exchanged, score, output);
}

/* Rank 0 gets everybody's records, in order; elsewhere *all is NULL.  Collective over c. */
static inline int look_gather(lf_comm *c, const look_record *mine, int n, look_record **all, lf_err *err)
{
    void *got = NULL;
    size_t bytes = 0;

    *all = NULL;
    if (lf_topo_gather(c, mine, sizeof *mine * (size_t)n, &got, &bytes, 0, err))
        return -1;
    *all = got;
    if (got)
        qsort(got, bytes / sizeof **all, sizeof **all, look_order);
    return (int)(bytes / sizeof **all);
}

static inline int look_model(lf_model *m, const char *preset, const char *const *set, int sets, lf_err *err)
{
    char *text = NULL;
    lf_synth_options o = { .preset = preset, .set = set, .sets = sets };
    int bad = lf_synth_config(&o, &text, err) || lf_model_parse(m, text, strlen(text), preset, err);

    free(text);
    return bad;
}

#endif
