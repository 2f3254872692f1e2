/* SPDX-License-Identifier: Apache-2.0
 *
 * index_score: the indexer's scores, written out for a tile of queries.   Source: model.md, "Indexer".
 */
#ifndef LF_INDEX_SCORE_CUH
#define LF_INDEX_SCORE_CUH

#include "cuda.cuh"

/* Keys and queries as e4m3, one power of two per row aside; in released numerics, where a row is e2m1 values with
 * scales that are mostly close together, that loses nothing.  Where it would, the row is marked.  All device memory. */
enum { LF_FOLD_TILE = 256, LF_FOLD_KEY = 0, LF_FOLD_QUERY = 1 };

typedef struct lf_cuda_folded {
    uint8_t *q;                            /* [queries, 64, 128] */
    float *w;                              /* [queries, 64]: times the scales of q */
    uint8_t *keys;                         /* [rows, 128] */
    float *key_scale;                      /* [rows]; 0: does not fit */
    uint8_t *query_misfit;                 /* [queries] 1: one of its heads does not fit */
    uint8_t *tile_misfit;                  /* of each 256 rows: one of them does not fit */
    int *misfits;                          /* [2] any key, any query */
} lf_cuda_folded;

/* score[i][c] = sum_h w[i][h] relu(q[i][h] . key_c) for c below what query i sees; beyond that undefined. */
typedef struct lf_cuda_scores {
    float *score;                          /* [queries, ld], ld >= rows */
    int64_t ld;
    const lf_act *q;                       /* [queries, Hi, di] */
    const float *w;                        /* [queries, Hi] */
    int64_t queries, pos0;
    const lf_act *keys;                    /* [rows, di], row 0 is entry row_first */
    int64_t row_first, rows;               /* rows: what the last query sees, at least 1 */
    int kernel;                            /* lf_index_kernel */
    const lf_cuda_folded *folded;          /* of fp8 only: the same keys and queries in e4m3 */
} lf_cuda_scores;

void lf_cuda_index_score(lf_cuda *c, const lf_cuda_scores *s);

/* index_fold.cu: keys, then up to LF_CUDA_FOLD_QUERIES queries at a time, into lf_cuda_index_fold_scratch bytes.  -1:
 * recorded. */
int lf_cuda_fold_keys(lf_cuda *c, lf_cuda_folded *f, const lf_act *keys, int64_t rows, int64_t queries);
int lf_cuda_fold_queries(lf_cuda *c, const lf_cuda_folded *f, const lf_act *q, const float *w, int64_t queries);

/* index_wgmma.cu: the kernels wgmma and fp8. */
void lf_cuda_index_wgmma(lf_cuda *c, const lf_cuda_scores *s);

static __device__ __forceinline__ float lf_relu(float x)       /* lets NaN through */
{
    float y;

    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
    return y;
}

#endif
