/* SPDX-License-Identifier: Apache-2.0
 *
 * index_score: the indexer's scores, written out for a tile of queries.   Source: model.md, "Indexer".
 */
#ifndef LF_INDEX_SCORE_CUH
#define LF_INDEX_SCORE_CUH

#include "cuda.cuh"

/* score[i][c] = sum_h w[i][h] relu(q[i][h] . key_c) for c below what query i sees; beyond that undefined. */
typedef struct lf_cuda_scores {
    float *score;                          /* [queries, ld], ld >= rows */
    int64_t ld;
    const lf_act *q;                       /* [queries, Hi, di] */
    const float *w;                        /* [queries, Hi] */
    int64_t queries, pos0;
    const lf_act *keys;                    /* [rows, di], row 0 is entry row_first */
    int64_t row_first, rows;               /* rows: what the last query sees, at least 1 */
} lf_cuda_scores;

void lf_cuda_index_score(lf_cuda *c, const lf_cuda_scores *s);

/* Device memory that index_topk's scores take at most. */
size_t lf_cuda_topk_scratch(int64_t queries, int64_t rows);

#endif
