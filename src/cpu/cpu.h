/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu: the CPU backend of dev.h, private to src/cpu.  Device memory is host memory; activations are float32, holding
 * bf16 values in released numerics.
 *
 * Parallelism is one level, here: OpenMP over independent rows, queries or product tiles.  BLIS runs on one thread per
 * call and always on tiles of the same height, so that a row's bits depend on nothing but the row.
 */
#ifndef LF_CPU_H
#define LF_CPU_H

#include "../dev.h"

enum {
    LF_TILE_M = 64,                        /* rows of every product handed to BLIS; the last tile is padded */
    LF_TILE_N = 128,                       /* output columns whose weights are expanded to float32 at a time */
    LF_SLOTS = 6                           /* independent scratch areas of a thread */
};

typedef struct lf_cpu_area {
    void *p;
    size_t bytes;
} lf_cpu_area;

typedef struct lf_cpu {
    lf_dev dev;                            /* first: an lf_dev is this */
    int threads;
    void **made;                           /* [mades] weights that were made up: freed at close */
    int64_t mades;
    lf_queue queue;                        /* in use: each has its own stamps */
    double stamped[LF_QUEUES];             /* lf_now() of the last stamp */
    lf_cpu_area (*own)[LF_SLOTS];           /* [threads] */
    lf_cpu_area shared[LF_SLOTS];           /* used outside parallel regions only */
} lf_cpu;

static inline lf_cpu *lf_cpu_of(lf_dev *d)
{
    return (lf_cpu *)(void *)d;
}

static inline float *lf_f(lf_act *a)
{
    return (float *)(void *)a;
}

static inline const float *lf_cf(const lf_act *a)
{
    return (const float *)(const void *)a;
}

/* Rounding of activations: to bf16 in released numerics. */
static inline float lf_r(const lf_cpu *c, float x)
{
    return c->dev.numerics == LF_RELEASED ? lf_round_bf16(x) : x;
}

/* Scratch of this thread (inside a parallel region) or of the call (outside): grown when needed, kept, 64-byte aligned,
 * contents undefined. */
void *lf_cpu_own(lf_cpu *c, int slot, size_t bytes);
void *lf_cpu_shared(lf_cpu *c, int slot, size_t bytes);

/* C [m, n] = (beta) C + A [m, k] B^T, B [n, k]: BLIS, one thread. */
void lf_cpu_abt(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                int64_t ldc);
/* C [m, n] += A [m, k] B [k, n] */
void lf_cpu_ab_add(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                   int64_t ldc);

/* y = quantise-dequantise of x in groups of `group` (the last may be short), e4m3 with power-of-two scales. */
void lf_cpu_quantise(float *y, const float *x, int64_t n, int64_t group);
void lf_cpu_hadamard(float *x, int64_t n);             /* in place, scaled n^-1/2, rounded to bf16; n a power of two */

/* 1 / sqrt(mean(x^2) + eps) over n channels. */
float lf_cpu_rms(const float *x, int64_t n, float eps);
void lf_cpu_angles(float *cos_sin, const lf_rope *rope, int64_t pos);                 /* [rope_dim]: cos, sin pairs */
void lf_cpu_rotate_row(const lf_cpu *c, float *x, int64_t width, const float *cos_sin, int rope_dim, int inverse);

/* The operations, one file a concept. */
int lf_cpu_made_up(lf_dev *d, lf_weight *w, const lf_inventory_item *item, lf_storage store, const int64_t at[2],
                   uint64_t seed, lf_err *err);
void lf_cpu_made_free(lf_cpu *c);
void lf_cpu_gemm(lf_dev *d, const lf_gemm *g);
void lf_cpu_embed(lf_dev *d, lf_act *x, const uint32_t *ids, int64_t m, const lf_weight *embed);
void lf_cpu_hc_pre(lf_dev *d, lf_act *y, float *mix, const lf_act *x, int64_t m, const lf_hc *hc, const float *norm);
void lf_cpu_hc_post(lf_dev *d, lf_act *x, const lf_act *z, const float *mix, int64_t m);
void lf_cpu_hc_head(lf_dev *d, lf_act *y, const lf_act *x, int64_t m, const lf_hc *hc, const float *norm);
void lf_cpu_norm(lf_dev *d, lf_act *x, int64_t m, int64_t n, const float *norm);
void lf_cpu_query(lf_dev *d, lf_act *q, int64_t m, int heads, const int64_t *pos, const lf_rope *rope);
void lf_cpu_rotate(lf_dev *d, lf_act *x, int64_t m, int heads, int64_t width, const int64_t *pos, const lf_rope *rope,
                   int inverse);
void lf_cpu_window(lf_dev *d, lf_act *dst, const int64_t *dst_row, const lf_act *x, int64_t m, const float *norm,
                   const int64_t *pos, const lf_rope *rope);
void lf_cpu_index_query(lf_dev *d, lf_act *q, int64_t m, int heads, int64_t width, const int64_t *pos,
                        const lf_rope *rope);
void lf_cpu_scale(lf_dev *d, float *x, int64_t n, float s);
void lf_cpu_add(lf_dev *d, float *x, const float *y, int64_t n);
void lf_cpu_round(lf_dev *d, lf_act *y, const float *x, int64_t n);
void lf_cpu_add_ape(lf_dev *d, float *g, int64_t m, int64_t n, const float *ape, int ratio);
void lf_cpu_compress(lf_dev *d, const lf_compress *c);
void lf_cpu_row_pack(lf_dev *d, uint8_t *dst, const lf_act *x, int64_t m, int64_t width, lf_row_fmt fmt,
                     int transformed);
void lf_cpu_row_unpack(lf_dev *d, lf_act *x, const uint8_t *src, int64_t m, int64_t width, lf_row_fmt fmt);
void lf_cpu_index_topk(lf_dev *d, const lf_topk *t);
void lf_cpu_topk_merge(lf_dev *d, int32_t *sel, const int32_t *cand, const float *score, int parts, int64_t m, int k);
void lf_cpu_attention(lf_dev *d, const lf_attn *a);
void lf_cpu_merge(lf_dev *d, lf_act *out, const lf_act *part, const float *lse, int parts, int64_t m, int heads,
                  const float *sink);
void lf_cpu_route(lf_dev *d, const lf_route *r);
void lf_cpu_pairs(lf_dev *d, const lf_pairs *p);
void lf_cpu_arrivals(lf_dev *d, const lf_arrivals *a);
void lf_cpu_experts(lf_dev *d, const lf_experts *e);
void lf_cpu_combine(lf_dev *d, lf_act *out, const lf_act *z, const int32_t *slot, int k, const lf_act *shared,
                    int64_t m);
void lf_cpu_logits_topk(lf_dev *d, int32_t *ids, float *values, const float *logits, int64_t m, int64_t vocab, int k);
void lf_cpu_logprob(lf_dev *d, float *out, const float *logits, const uint32_t *next, int64_t m, int64_t vocab);

/* The k largest of n scores, ties to the lower index, NaN last; idx ascending unless by_score (then best first).
 * key: scratch [n].  Returns how many there are: min(k, n).  The second form ranks rows that bring their numbers. */
int lf_cpu_select(int32_t *idx, const float *score, int64_t n, int k, int by_score, uint64_t *key);
int lf_cpu_select_rows(int32_t *out, const int32_t *row, const float *score, int64_t n, int k, uint64_t *key);

#endif
