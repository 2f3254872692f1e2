/* SPDX-License-Identifier: Apache-2.0
 *
 * selfcheck: did a query choose and attend as the stored rows say?  All of it once more in float64.  Floor 1: host
 * memory only.   Source: model.md, "Attention", "Indexer".
 *
 * Scores.  score(c) = sum_h w_h relu(q_h . key_c) is summed in float32 from products of bf16 or float32 values;
 * each of the di + Hi + 2 roundings on the way takes at most 2^-24 of the magnitudes under it, in any order (the
 * tensor cores truncate, but once for 16 terms).  So a score is within
 *     e(c) = (di + Hi + 2) 2^-24 sum_h |w_h| |q_h| |key_c|
 * of the float64 one (norms of vectors; their product is at least the sum of |terms|): 1.2e-5 of that for 128 x 64.
 *
 * The chosen set must be the k best visible entries by (score descending, entry ascending), each once.  Entry a may
 * stand in for a better b when score(a) + e(a) >= score(b) - e(b); not when their keys are the same bytes, which have
 * the same score in any arithmetic.
 *
 * Outputs.  |o - o64| / |o64| of each head.  float32: 1e-5, scores of magnitude 20 summed over 512 channels.  bf16:
 * 4e-3: the output, and on tensor cores the weights of the softmax too, are rounded to 8 bits.  One rounding is off
 * by at most 2^-8 of a value, 1.7e-3 in the root mean square over mantissas; both together 2.4e-3.
 */
#ifndef LF_SELFCHECK_H
#define LF_SELFCHECK_H

#include "base.h"

#define LF_SELFCHECK_F32 1e-5
#define LF_SELFCHECK_BF16 4e-3

/* The stored rows of one layer and sequence.  Rows, keys and queries are activations, act_bytes wide. */
typedef struct lf_selfcheck_layer {
    int layer, seq, ratio;                 /* 4: entries are chosen by score; 128: all are seen; 0: there are none */
    int act_bytes;                         /* 4: float32; 2: bf16 */
    int rounded;                           /* outputs are rounded to bf16, whatever act_bytes */
    int heads, head_dim, window;           /* heads of this tp rank */
    int index_heads, index_dim, topk;
    int64_t entries;
    void *rows;                            /* [entries, head_dim] */
    void *keys;                            /* [entries, index_dim]; ratio 4 only */
    float *sink;                           /* [heads] */
} lf_selfcheck_layer;

/* What one position was given. */
typedef struct lf_selfcheck_query {
    int layer, seq;
    int64_t pos;
    void *q, *out;                         /* [heads, head_dim]; out is not yet rotated back */
    int64_t window_rows;                   /* positions pos - window_rows + 1 .. pos */
    void *window;                          /* [window_rows, head_dim] */
    int32_t *sel;                          /* [topk] ascending, -1 after the last; ratio 4 only */
    void *index_q;                         /* [index_heads, index_dim]; NULL: another tp rank has it */
    float *index_w;                        /* [index_heads] */
    int32_t *again;                        /* [topk] chosen once more for this query alone, and their scores */
    float *score;
} lf_selfcheck_query;

typedef struct lf_selfcheck_result {
    int64_t visible, chosen;               /* entries */
    int64_t exchanged;                     /* chosen ones that are not among the best k in float64 */
    int64_t near_ties;                     /* entries that float32 cannot tell from the k-th */
    double score_error;                    /* of the chosen, the largest in e(c); at most 1 passes */
    double output_error, output_limit;     /* of the worst head */
} lf_selfcheck_result;

/* -1: something disagrees, and err says what; r is filled as far as that.  Uses OpenMP. */
int lf_selfcheck(lf_selfcheck_result *r, const lf_selfcheck_layer *y, const lf_selfcheck_query *q, lf_err *err);

void lf_selfcheck_layer_free(lf_selfcheck_layer *y);   /* what it points at, from lf_alloc */
void lf_selfcheck_query_free(lf_selfcheck_query *q);

#endif
