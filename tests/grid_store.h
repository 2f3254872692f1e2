/* SPDX-License-Identifier: Apache-2.0
 *
 * grid_store: a sink that keeps everything one pass hands over in memory, and compares it with what another kept.
 */
#ifndef LF_GRID_STORE_H
#define LF_GRID_STORE_H

#include "prefill.h"

#include <math.h>
#include <stdlib.h>

enum { STORE_KINDS = LF_LOGITS_LOGPROB + 1 };

typedef struct store_blob {
    uint8_t *data;
    size_t row, rows;                      /* bytes of a row; rows in all */
    uint8_t *seen;                         /* [rows]: how often each was handed over */
} store_blob;

typedef struct store {
    const lf_model *model;
    lf_kv_dtype dtype;
    int prompts, first_token, layers_done;
    const lf_prompt *prompt;
    store_blob *kv;                        /* [prompts][layers][parts] */
    store_blob *logits;                    /* [prompts][kinds] */
} store;

static inline store_blob *store_kv(const store *s, int seq, int layer, int part)
{
    return &s->kv[((int64_t)seq * s->model->layers + layer) * LF_PARTS + part];
}

static inline void store_put(store_blob *b, int64_t rows_all, int64_t row0, int64_t rows, const void *data,
                             size_t bytes)
{
    if (rows == 0)
        return;
    if (!b->data) {
        b->row = bytes / (size_t)rows;
        b->rows = (size_t)rows_all;
        b->data = lf_alloc(b->row * b->rows);
        b->seen = lf_alloc(b->rows);
    }
    if ((size_t)(row0 + rows) > b->rows || bytes != b->row * (size_t)rows)
        abort();
    memcpy(b->data + (size_t)row0 * b->row, data, bytes);
    for (int64_t i = row0; i < row0 + rows; i++)
        b->seen[i]++;
}

static inline void store_rows(void *ctx, int seq, int layer, lf_kv_part part, int64_t row0, int64_t rows,
                              const void *packed, size_t bytes)
{
    store *s = ctx;

    store_put(store_kv(s, seq, layer, part),
              lf_part_rows(s->model, s->model->kind[layer], part, s->prompt[seq].tokens), row0, rows, packed, bytes);
}

static inline void store_logits(void *ctx, int seq, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data,
                                size_t bytes)
{
    store *s = ctx;

    store_put(&s->logits[seq * STORE_KINDS + kind], kind == LF_LOGITS_LAST ? 1 : s->prompt[seq].tokens, row0, rows,
              data, bytes);
}

static inline void store_first_token(void *ctx)
{
    ((store *)ctx)->first_token++;
}

static inline void store_layer_done(void *ctx, int layer)
{
    (void)layer;
    ((store *)ctx)->layers_done++;
}

static inline store store_make(const lf_model *m, lf_kv_dtype t, int n, const lf_prompt *prompt)
{
    store s = { .model = m, .dtype = t, .prompts = n, .prompt = prompt };

    s.kv = lf_alloc(sizeof *s.kv * (size_t)(n * m->layers * LF_PARTS));
    s.logits = lf_alloc(sizeof *s.logits * (size_t)(n * STORE_KINDS));
    return s;
}

static inline void store_free(store *s)
{
    for (int i = 0; i < s->prompts * s->model->layers * LF_PARTS; i++) {
        free(s->kv[i].data);
        free(s->kv[i].seen);
    }
    for (int i = 0; i < s->prompts * STORE_KINDS; i++) {
        free(s->logits[i].data);
        free(s->logits[i].seen);
    }
    free(s->kv);
    free(s->logits);
}

static inline lf_sink store_sink(store *s)
{
    return (lf_sink){ .ctx = s, .rows = store_rows, .logits = store_logits, .first_token = store_first_token,
                      .layer_done = store_layer_done };
}

/* Of the rows that `got` holds: how many differ in any bit from `want`; and the sums for a relative norm. */
typedef struct store_diff {
    int64_t rows, differ;
    double square, of;
} store_diff;

static inline void store_compare(store_diff *d, const store_blob *got, const store_blob *want, int floats)
{
    for (size_t i = 0; i < got->rows; i++) {
        const uint8_t *a = got->data + i * got->row, *b = want->data ? want->data + i * got->row : NULL;
        if (!got->seen[i])
            continue;
        d->rows++;
        d->differ += !b || want->row != got->row || memcmp(a, b, got->row) != 0;
        for (size_t j = 0; floats && b && j < got->row; j += 4) {
            float x, y;
            memcpy(&x, a + j, 4);
            memcpy(&y, b + j, 4);
            if (isnan(x) && isnan(y))
                continue;
            d->square += ((double)x - y) * ((double)x - y);
            d->of += (double)y * y;
        }
    }
}

/* Rows of part number i of the two, which may be stored in different formats. */
static inline void store_compare_kv(store_diff *d, const store *got, const store *want, int i)
{
    const lf_model *m = got->model;
    const store_blob *a = &got->kv[i], *b = &want->kv[i];
    lf_kv_part part = i % LF_PARTS;
    int64_t width = lf_part_width(m, m->kind[i / LF_PARTS % m->layers], part);
    float *x = lf_alloc(4 * (size_t)(width + 1)), *y = lf_alloc(4 * (size_t)(width + 1));

    for (size_t r = 0; r < a->rows; r++) {
        if (!a->seen[r])
            continue;
        d->rows++;
        d->differ += !b->data || b->row != a->row || memcmp(a->data + r * a->row, b->data + r * b->row, a->row) != 0;
        if (!b->data)
            continue;
        lf_row_floats(m, lf_part_fmt(part, got->dtype), width, a->data + r * a->row, x);
        lf_row_floats(m, lf_part_fmt(part, want->dtype), width, b->data + r * b->row, y);
        for (int64_t j = 0; j < width; j++) {
            d->square += ((double)x[j] - y[j]) * ((double)x[j] - y[j]);
            d->of += (double)y[j] * y[j];
        }
    }
    free(x);
    free(y);
}

static inline double store_relative(const store_diff *d)
{
    return sqrt(d->square / (d->of > 0 ? d->of : 1));
}

#endif
