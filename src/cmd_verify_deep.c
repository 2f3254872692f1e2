/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd_verify_deep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct lf_deep {
    lf_model model;
    int have_model;
    lf_checkpoint *checkpoint;
    lf_topo topo;
    int topo_open, threads;
};

static int threads_wanted(void)
{
    const char *asked = getenv("OMP_NUM_THREADS");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    return asked && atoi(asked) > 0 ? atoi(asked) : cores > 0 ? (int)cores : 1;
}

static int topo_start(lf_deep *d, lf_err *err)
{
    lf_grid one = { .dp = 1, .pcp = 1, .tp = 1, .ep = 1 };
    int argc = 0, rank, world;
    char **argv = NULL;

    if (lf_topo_start(&argc, &argv, &rank, &world, err))
        return -1;
    if (world > 1)
        return lf_fail(err, "--deep runs in one process, and %d were started", world);
    d->topo_open = 1;
    return lf_topo_open(&d->topo, &one, err);
}

int lf_deep_open(lf_deep **out, const char *model_dir, lf_err *err)
{
    lf_deep *d = lf_alloc(sizeof *d);

    d->threads = threads_wanted();
    int bad = lf_model_read(&d->model, model_dir, err);
    d->have_model = !bad;
    if (bad || lf_checkpoint_open(&d->checkpoint, model_dir, err) || topo_start(d, err)) {
        lf_deep_close(d);
        return -1;
    }
    *out = d;
    return 0;
}

void lf_deep_close(lf_deep *d)
{
    if (!d)
        return;
    if (d->topo_open)
        lf_topo_close(&d->topo);
    lf_topo_end();
    lf_checkpoint_close(d->checkpoint);
    if (d->have_model)
        lf_model_free(&d->model);
    free(d);
}

/* ---- comparing ---- */

typedef struct unsure {                    /* in layers from `layer` on, and in logits */
    int layer;
    int index;                             /* in index rows, whose codes are large steps, from the layer before on */
    const char *why;                       /* for people */
} unsure;

typedef struct deep_run {
    lf_kvread *r;
    const lf_kv_meta *meta;
    int64_t tokens;                        /* of the pass */
    unsure rounding;                       /* what can make sound rows be off */
    lf_deep_report *report;
    lf_err bad;                            /* the first stretch that is off by more than rounding */
} deep_run;

static int is_prefix(const deep_run *x)
{
    return x->tokens < x->meta->num_tokens;
}

static double off(const float *have, const float *want, int64_t n)
{
    double square = 0, of = 0;

    for (int64_t i = 0; i < n; i++) {
        if (isnan(have[i]) && isnan(want[i]))
            continue;
        square += ((double)have[i] - want[i]) * ((double)have[i] - want[i]);
        of += (double)want[i] * want[i];
    }
    return square == 0 ? 0 : sqrt(square / (of > 0 ? of : 1));
}

static void count(deep_run *x, const uint8_t *have, const uint8_t *want, int64_t rows, size_t row_bytes)
{
    x->report->rows += rows;
    for (int64_t i = 0; i < rows; i++)
        x->report->differ += memcmp(have + row_bytes * (size_t)i, want + row_bytes * (size_t)i, row_bytes) != 0;
}

/* With released numerics codes fall the other way by rounding, and layer by layer more do.  A GPU's sums round unlike a
 * CPU's, and those of several tp ranks unlike one's: from the second layer on, as the first sees nothing but the
 * prompt.  The first layer that merges has its own rows before it does; what comes after holds its results.  A file of
 * one writer that does not say how it was made was not merged, and none that does not say so is from a GPU or tp ranks.
 */
static unsure unsure_of(const lf_kvread *r)
{
    const lf_kv_meta *m = lf_kvread_meta(r);
    int none = m->model->layers + 1, first = 0;

    if (m->numerics == LF_EXACT)
        return (unsure){ none, 0, "" };
    if (m->device && strcmp(m->device, "cuda") == 0)
        return (unsure){ 1, 1, "a GPU made this file" };
    if (m->tp > 1)
        return (unsure){ 1, 0, "several tp ranks made this file" };
    while (first < m->model->layers && m->model->kind[first] == LF_SWA)
        first++;
    if (!m->pcp_attention && lf_kvread_parts(r) > 0)
        return (unsure){ first + 1, 0, "merge mode may have made this file, which does not say" };
    if (m->pcp_attention && strcmp(m->pcp_attention, "merge") == 0)
        return (unsure){ first + 1, 0, "merge mode made this file" };
    return (unsure){ none, 0, "" };
}

/* layer: the number of layers for logits. */
static void judge(deep_run *x, double is_off, int layer, const char *what, int64_t row0, int64_t rows)
{
    double limit = x->meta->numerics == LF_EXACT ? 1e-4 : 5e-2;
    int sound = layer >= x->rounding.layer && isfinite(is_off);          /* perhaps */
    lf_err *to = sound ? &x->report->unsure : &x->bad;

    x->report->worst = fmax(x->report->worst, is_off);
    if (is_off <= limit || to->text[0])
        return;
    lf_fail(to, "%s, rows %lld..%lld are off by %.1e from what the model gives%s%s%s", what, (long long)row0,
            (long long)(row0 + rows - 1), is_off, sound ? "; " : "", sound ? x->rounding.why : "",
            sound ? ", and with released numerics the rounding of its sums can grow to that in a sound file" : "");
}

static void sink_rows(void *ctx, int seq, int layer, lf_kv_part part, int64_t row0, int64_t rows, const void *packed,
                      size_t bytes)
{
    deep_run *x = ctx;
    lf_row_fmt fmt = lf_part_fmt(part, x->meta->kv_dtype);
    int64_t width = lf_part_width(x->meta->model, x->meta->model->kind[layer], part);
    size_t row_bytes = lf_row_bytes(x->meta->model, fmt, width);
    char what[64];

    (void)seq;
    if (x->bad.text[0] || rows == 0 || (is_prefix(x) && part != LF_PART_COMPRESSED && part != LF_PART_INDEX))
        return;
    uint8_t *have = lf_alloc(bytes);
    float *a = lf_alloc((size_t)(rows * width) * sizeof *a), *b = lf_alloc((size_t)(rows * width) * sizeof *b);
    if (!lf_kvread_rows(x->r, 0, layer, part, row0, rows, have, &x->bad)) {
        count(x, have, packed, rows, row_bytes);
        for (int64_t i = 0; i < rows; i++) {
            lf_row_floats(x->meta->model, fmt, width, have + row_bytes * (size_t)i, a + i * width);
            lf_row_floats(x->meta->model, fmt, width, (const uint8_t *)packed + row_bytes * (size_t)i, b + i * width);
        }
        snprintf(what, sizeof what, "/layers/%03d/%s", layer, lf_part_path(part));
        judge(x, off(a, b, rows * width), layer + (part == LF_PART_INDEX && x->rounding.index), what, row0, rows);
    }
    free(have);
    free(a);
    free(b);
}

static void sink_logits(void *ctx, int seq, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data,
                        size_t bytes)
{
    deep_run *x = ctx;
    size_t row_bytes = rows ? bytes / (size_t)rows : 0;

    (void)seq;
    /* The token after the last of a prefix is known to the file only. */
    if (is_prefix(x) && kind == LF_LOGITS_LOGPROB && row0 + rows == x->tokens)
        rows--;
    if (x->bad.text[0] || rows == 0 || (is_prefix(x) && kind == LF_LOGITS_LAST))
        return;
    uint8_t *have = lf_alloc(bytes);
    if (!lf_kvread_logits(x->r, kind, row0, rows, have, &x->bad)) {
        count(x, have, data, rows, row_bytes);
        if (kind != LF_LOGITS_TOPK_IDS)
            judge(x, off((const float *)(const void *)have, data, rows * (int64_t)(row_bytes / 4)),
                  x->meta->model->layers, "/logits", row0, rows);
    }
    free(have);
}

static void sink_first_token(void *ctx)
{
    (void)ctx;
}

static void sink_layer_done(void *ctx, int layer)
{
    (void)ctx;
    (void)layer;
}

/* ---- running ---- */

static int same_model(const lf_deep *d, const lf_kv_meta *m, lf_err *err)
{
    if (strcmp(m->model->sha256, d->model.sha256))
        return lf_fail(err, "it is of another model: its config.json has another sha256");
    if (strcmp(m->weights_id, lf_checkpoint_id(d->checkpoint)))
        return lf_fail(err, "it is of other weights: %s, and the checkpoint has %s", m->weights_id,
                       lf_checkpoint_id(d->checkpoint));
    return 0;
}

static int pass(lf_deep *d, deep_run *x, const lf_prompt *prompt, lf_err *err)
{
    const lf_kv_meta *m = x->meta;
    lf_engine_setup s = { .model = &d->model, .checkpoint = d->checkpoint, .topo = &d->topo,
                          .kv_dtype = m->kv_dtype, .logits = m->logits };
    lf_sink sink = { x, sink_rows, sink_logits, sink_first_token, sink_layer_done };
    double seconds[LF_PHASES] = { 0 };
    lf_engine *e = NULL;

    if (lf_cpu_open(&s.dev, &d->model, m->numerics, d->threads, err))
        return -1;
    int bad = lf_engine_open(&e, &s, err) || lf_engine_run(e, 1, prompt, &sink, seconds, err);
    lf_engine_close(e);
    lf_dev_close(s.dev);
    return bad ? -1 : 0;
}

int lf_deep_run(lf_deep *d, lf_kvread *r, int64_t tokens, lf_deep_report *report, lf_err *err)
{
    const lf_kv_meta *m = lf_kvread_meta(r);
    deep_run x = { .r = r, .meta = m, .tokens = lf_min(tokens, m->num_tokens), .rounding = unsure_of(r),
                   .report = report };
    lf_prompt prompt = { NULL, x.tokens };

    *report = (lf_deep_report){ .tokens = x.tokens };
    if (same_model(d, m, err))
        return -1;
    uint32_t *ids = lf_alloc((size_t)x.tokens * sizeof *ids);
    prompt.ids = ids;
    int bad = lf_kvread_tokens(r, 0, x.tokens, ids, err) || pass(d, &x, &prompt, err) ? -1 : 0;
    free(ids);
    if (!bad && x.bad.text[0]) {
        *err = x.bad;
        bad = -1;
    }
    return bad;
}
