/* SPDX-License-Identifier: Apache-2.0
 *
 * grid_noise: rows in released numerics that cannot be the same bytes, judged by the exact ones.
 *
 * Released numerics amplify any difference in rounding: a value on the other side of a bf16 boundary moves e4m3 codes
 * of the next product's input by 1/16 to 1/8, so that after a few layers two sound runs are as far from each other as
 * each is from the exact rows, and no bound on their difference tells sound from broken.  But both are about as far
 * from the exact rows; what a grid computes wrongly takes its rows further away, if it is much beside the noise.
 *
 * Compared are medians, over stretches of NOISE_ROWS rows of one part of one layer of one prompt, of the difference
 * from the exact row as a share of its norm.  Only in the first layers: later ones amplify what a few early tokens of a
 * prompt had, the rows of a stretch differ together, and their median is no better than one row.
 *
 * Which model shows what a grid computes?  One whose first layers have compressed entries, as many as window rows.
 * Measured with it on the CPU, with 2, 3, 4 and 8 ranks: merge mode is at most 1.02 times as far as one rank, 1.06
 * times if partial outputs are rounded to bf16 as on a GPU, and 1.41 times if one of a rank's two slots is never
 * computed.
 */
#ifndef LF_GRID_NOISE_H
#define LF_GRID_NOISE_H

#include "grid_store.h"

enum { NOISE_ROWS = 64, NOISE_LAYERS = 3 };

#define NOISE 1.2

#define NOISY_MODEL                                                                                                  \
    "n_routed_experts=24", "num_attention_heads=8", "o_groups=4", "o_lora_rank=128", "num_hash_layers=2",            \
    "sliding_window=64", "index_topk=64", "compress_ratios=[4,128,4,0,0]"

static inline int noise_order(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Of NOISE_ROWS values, which are sorted; a NaN counts as infinitely far. */
static inline float noise_median(float *x)
{
    for (int i = 0; i < NOISE_ROWS; i++)
        x[i] = isnan(x[i]) ? INFINITY : x[i];
    qsort(x, NOISE_ROWS, sizeof *x, noise_order);
    return x[NOISE_ROWS / 2];
}

/* How far each row of part number i is from the exact one; 0 for rows that `got` does not hold.  `exact` holds all. */
static inline void noise_of(float *out, const store *got, const store *exact, int i)
{
    const lf_model *m = got->model;
    const store_blob *a = &got->kv[i], *b = &exact->kv[i];
    lf_kv_part part = i % LF_PARTS;
    int64_t width = lf_part_width(m, m->kind[i / LF_PARTS % m->layers], part);
    float *x = lf_alloc(4 * (size_t)(width + 1)), *y = lf_alloc(4 * (size_t)(width + 1));

    for (size_t r = 0; r < b->rows; r++) {
        double square = 0, of = 0;
        out[r] = 0;
        if (!a->data || !a->seen[r])
            continue;
        lf_row_floats(m, lf_part_fmt(part, got->dtype), width, a->data + r * a->row, x);
        lf_row_floats(m, lf_part_fmt(part, exact->dtype), width, b->data + r * b->row, y);
        for (int64_t j = 0; j < width; j++) {
            square += ((double)x[j] - y[j]) * ((double)x[j] - y[j]);
            of += (double)y[j] * y[j];
        }
        out[r] = (float)sqrt(square / (of > 0 ? of : 1));
    }
    free(x);
    free(y);
}

#endif
