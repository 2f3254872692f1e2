/* SPDX-License-Identifier: Apache-2.0
 *
 * dev: the seam between the model and what computes it.  Floor 2.   Source of every operation: model.md.
 *
 * A device gives memory, copies, and a table of operations that are each worth a kernel.  The model above is written
 * once against this page; src/cpu implements it with BLIS and OpenMP and is the reference for the others.
 *
 * Memory.  All pointers in operations are device memory; the host may do arithmetic on them but not look behind them
 * (copies do that).  Two element types: `float`, and the activation type `lf_act`, dev->act_bytes wide: float32 or
 * bf16 as the device and numerics have it.  All matrices are row-major; rows lie `ld` elements apart where an ld is
 * given and are contiguous otherwise.  Row counts may be 0 everywhere.
 *
 * Numerics.  `exact`: weights dequantised, activations as they are, float32 accumulation.  `released`: products with
 * e4m3 and e2m1 weights quantise their input per 1x128; results that are activations are rounded to bf16; finished rows
 * are quantised as kvlayout.h says.  "Rounded" below means: to bf16 in released numerics, not at all in exact.
 *
 * Invariance.  A row's result does not depend on the other rows of the call, on their number, on the number of
 * threads, or on where a tile begins.
 *
 * Queues.  What is given to one queue is done in that order; queues run side by side where the device can, and in the
 * order of the calls on the CPU.  Operations go to the queue in use, LF_QUEUE_COMPUTE unless use() says another.  The
 * others take put, fetch, copy, copy_rows, gather, row_pack, stamp and collectives (coll.h) only: all other operations
 * share memory of their own.  A mark stands for what its queue was given before; after() makes the queue in use go on
 * when that is done.
 *
 * Errors.  Operations that cannot fail on valid shapes return void; a device that can lose a launch records it and
 * sync() reports it with kernel, layer and tile.
 */
#ifndef LF_DEV_H
#define LF_DEV_H

#include "kvlayout.h"
#include "inventory.h"

typedef struct lf_act lf_act;              /* incomplete on purpose: step with lf_act_at */
typedef struct lf_dev lf_dev;

/* A weight [rows, cols] (out, in) as stored, or a slice of one.  Slices keep the scales of the whole tensor. */
typedef struct lf_weight {
    lf_dtype dtype;                        /* LF_F32, LF_BF16, LF_E4M3 (scales 128x128), LF_I8 (packed e2m1,
                                              scales 1x32) */
    int64_t rows, cols;                    /* of this slice */
    int64_t row0, col0;                    /* where it begins in the whole */
    int64_t all_rows, all_cols;            /* the whole, as the device has it: its rows, and from one to the next */
    const uint8_t *data, *scale;           /* device memory, of the whole; scale NULL when unquantised */
    const void *extra;                     /* what the device keeps beside it; its own, the same for every slice */
} lf_weight;

/* cos/sin of position * inv_freq[i], i < rope_dim/2; the argument is a float32 product, reduced in double. */
typedef struct lf_rope {
    int rope_dim;
    const float *inv_freq;                 /* [rope_dim / 2], device memory */
} lf_rope;

/* One stretch of bytes for or from another rank (coll.h). */
typedef struct lf_xfer {
    int peer;
    void *data;                            /* device memory: source of a send, destination of a receive */
    size_t bytes;
} lf_xfer;

typedef enum lf_queue { LF_QUEUE_COMPUTE, LF_QUEUE_EXCHANGE, LF_QUEUE_OUT, LF_QUEUES } lf_queue;

enum { LF_MARKS = 32 };                    /* 0 .. LF_MARKS-1, to be set again and again */

typedef enum lf_gemm_out { LF_OUT_ACT, LF_OUT_F32 } lf_gemm_out;

typedef struct lf_gemm {
    const lf_act *x;                       /* [m, w->cols], rows ldx apart */
    int64_t m, ldx;
    const lf_weight *w;
    void *out;                             /* [m, w->rows], rows ldo apart: x w^T */
    int64_t ldo;
    lf_gemm_out kind;                      /* activations (rounded), or float32 as accumulated */
    int plain;                             /* released numerics too: do not quantise the input (wo_a) */
    int parts;                             /* > 1: the columns are that many equal ranges; each is summed by itself, and
                                            * ranges lo .. hi-1 as (lo .. mid-1) + (mid .. hi-1), mid = (lo + hi) / 2,
                                            * so that tp ranks that own whole halves add up to the same bits (exact
                                            * numerics) */
} lf_gemm;

/* mHC weights of one sublayer, or of the head: fn [(2+n)n or n, nD], scale [3 or 1], base [(2+n)n or n]. */
typedef struct lf_hc {
    lf_weight fn;
    const float *scale, *base;
} lf_hc;

typedef struct lf_attn {
    lf_act *out;                           /* [queries, heads, d], not yet rotated back; rounded unless lse is wanted */
    const lf_act *q;                       /* [queries, heads, d] */
    int64_t queries, pos0;                 /* positions pos0 .. pos0+queries-1 of one sequence */
    int heads;
    const lf_act *win;                     /* window rows [.., d]; row 0 is position win_pos0 */
    int64_t win_pos0, win_rows;            /* win_rows 0: no window part (a merge-mode partial) */
    const lf_act *rows;                    /* compressed rows [.., d], row 0 is entry row_first; NULL: none */
    int64_t row_first, row_count;
    int ratio;
    const int32_t *sel;                    /* [queries, sel_ld] chosen entries, ascending, -1 after the last; NULL:
                                              every visible one */
    int64_t sel_ld;
    const float *sink;                     /* [heads]; NULL: no sink column */
    float *lse;                            /* [queries, heads] natural log-sum-exp of this part (sink included if
                                              given); may be NULL */
} lf_attn;

typedef struct lf_topk {
    int32_t *sel;                          /* [queries, k] out: rows ascending, -1 after the last */
    float *score;                          /* [queries, k] out, beside sel; may be NULL */
    const lf_act *q;                       /* [queries, Hi, di], prepared by index_query */
    const float *w;                        /* [queries, Hi], weights_proj y * Hi^-1/2 di^-1/2 */
    int64_t queries, pos0;
    const lf_act *keys;                    /* [row_count, di]; row 0 is entry row_first */
    int64_t row_first, row_count;
    int k;
} lf_topk;

typedef struct lf_compress {
    lf_act *out;                           /* [blocks, width]: pooled, normed, rotated, rounded; not yet quantised */
    const float *u, *g;                    /* [blocks * ratio, a * width]; g has ape added */
    int64_t blocks, block0;                /* block0: global index of the first: rotates at (block0 + b) * ratio */
    int ratio;                             /* 4: a = 2, overlapping; 128: a = 1 */
    int64_t width;
    const float *prev_u, *prev_g;          /* ratio 4: the 4 rows before, first `width` channels; NULL: none (c = 0) */
    int64_t prev_ld;
    const float *norm;                     /* [width] */
    lf_rope rope;
} lf_compress;

typedef struct lf_route {
    int32_t *expert;                       /* [m, K] out */
    float *weight;                         /* [m, K] out */
    const lf_act *y;                       /* [m, D] */
    int64_t m;
    const lf_weight *gate;                 /* [E, D] */
    const float *bias;                     /* [E]; learned layers */
    const int64_t *tid2eid;                /* [vocab, K]; hash layers; else NULL */
    const uint32_t *ids;                   /* [m] token ids, used by hash layers */
} lf_route;

/* The (token, expert) pairs of a choice by expert, in the order of the tokens within one.  m K below 2^31. */
typedef struct lf_pairs {
    int32_t *slot;                         /* [m, K] out: the place of pair (t, j) among all */
    int32_t *token;                        /* [m K] out: the row t of the pair in each place */
    float *weight;                         /* [m K] out, place by place */
    int32_t *count;                        /* [experts] out: pairs of each */
    const int32_t *expert;                 /* [m, K], in 0 .. experts-1 */
    const float *of;                       /* [m, K]: the weights */
    int64_t m;
    int k, experts;
} lf_pairs;

/* What came lies sender by sender and expert by expert within one: its places by expert, senders in their order within
 * one.  received = the sum of the counts, below 2^31. */
typedef struct lf_arrivals {
    int32_t *src;                          /* [received] out: place by expert -> place in what came */
    int32_t *home;                         /* [received] out: the inverse */
    const int64_t *count;                  /* HOST memory [senders, experts]; not looked at after the call */
    int senders, experts;
} lf_arrivals;

/* One batch of (token, expert) pairs on the rank that owns the experts.  Pairs sorted by expert. */
typedef struct lf_experts {
    lf_act *out;                           /* [pairs, D], in pair order */
    const lf_act *x;                       /* [.., D] */
    const int32_t *src;                    /* [pairs] row of x */
    const float *weight;                   /* [pairs] */
    const int64_t *first;                  /* HOST memory [experts + 1]: expert e has pairs first[e] .. first[e+1]-1 */
    int experts;
    const lf_weight *w1, *w2, *w3;         /* [experts] each */
    float limit;                           /* swiglu_limit, of the shared expert too; <= 0: no clamp */
} lf_experts;

/* What a pass asks of the operations at most: pass_load.c.  Pointers are NULL where memory would be aligned. */
typedef struct lf_load_gemm {
    lf_gemm g;                             /* g.w is not set */
    lf_weight w;
} lf_load_gemm;

typedef struct lf_load_experts {
    lf_weight w1, w2, w3;                  /* of one */
    int experts;
    int64_t pairs, most;                   /* of all of them together; of one */
} lf_load_experts;

/* Files that weights come from.  find: the descriptor that mapped bytes are read by, and where; -1: only mapped. */
typedef struct lf_dev_files {
    void *ctx;
    int (*find)(void *ctx, const void *data, size_t bytes, int64_t *at);
} lf_dev_files;

enum { LF_LOAD_GEMMS = 96, LF_LOAD_EXPERTS = 8 };

typedef struct lf_dev_load {
    lf_load_gemm gemm[LF_LOAD_GEMMS];
    lf_load_experts experts[LF_LOAD_EXPERTS];
    int gemms, experts_n;
    int64_t rows, routed;                  /* of hc_pre; of route */
    int64_t queries, keys;                 /* of index_topk */
    int64_t logit_rows;                    /* of logits_topk */
    int logit_topk;
} lf_dev_load;

typedef struct lf_dev_ops {
    const char *name;                      /* "cpu", "cuda" */
    void (*close)(lf_dev *d);

    /* Memory: planned by the caller, taken before the first token.  What a fresh buffer holds is not defined. */
    int (*take)(lf_dev *d, void **out, size_t bytes, const char *what, lf_err *err);
    void (*give)(lf_dev *d, void *p);
    void (*put)(lf_dev *d, void *dst, const void *host, size_t bytes);
    /* Done when it returns; what an error kept away is 0. */
    void (*get)(lf_dev *d, void *host, const void *src, size_t bytes);
    void (*copy)(lf_dev *d, void *dst, const void *src, size_t bytes);
    void (*copy_rows)(lf_dev *d, void *dst, size_t ldd, const void *src, size_t lds, size_t row_bytes, int64_t rows);
    /* dst row i = src row idx[i]; rows of row_bytes, contiguous. */
    void (*gather)(lf_dev *d, void *dst, const void *src, const int32_t *idx, int64_t rows, size_t row_bytes);
    void (*fill)(lf_dev *d, void *dst, int byte, size_t bytes);
    int (*sync)(lf_dev *d, lf_err *err);               /* all queues */
    /* Device time from the queue's stamp before to here is added to *to (NULL: to nothing), at the latest when sync
     * returns.  next names what follows, for profilers; NULL: nothing does. */
    void (*stamp)(lf_dev *d, double *to, const char *next);

    /* Queues and marks.  wait: the host waits; past: is it done already?  A mark never set is done. */
    void (*use)(lf_dev *d, lf_queue q);
    void (*mark)(lf_dev *d, int mark);                 /* of the queue in use */
    void (*after)(lf_dev *d, int mark);                /* the queue in use waits */
    void (*wait)(lf_dev *d, int mark);
    int (*past)(lf_dev *d, int mark);

    /* Host memory that copies need not wait for; fetch is get that returns at once: done when a later mark is. */
    int (*host_take)(lf_dev *d, void **out, size_t bytes, const char *what, lf_err *err);
    void (*host_give)(lf_dev *d, void *p);
    void (*fetch)(lf_dev *d, void *host, const void *src, size_t bytes);

    /* May be NULL.  -1 and why, where something has failed that sync will report; waits for nothing. */
    int (*failed)(lf_dev *d, lf_err *err);
    void (*at)(lf_dev *d, int layer, int tile);        /* where the model is, for the texts of errors; -1: nowhere */

    /* May be NULL: then there is nothing to prepare.  expect: the matrices of weight() and made_up() that follow take
     * so many bytes.  reserve: take what the operations need for themselves now, and not in the middle of a pass.
     * load: from here to the next sync() weight() may read its bytes after it returned, by several threads from files.
     * left: bytes that take() can still hand out. */
    int (*expect)(lf_dev *d, int64_t bytes, lf_err *err);
    int (*reserve)(lf_dev *d, const lf_dev_load *load, lf_err *err);
    int (*load)(lf_dev *d, const lf_dev_files *files, lf_err *err);
    int64_t (*left)(lf_dev *d);

    /* Make a tensor (mapped file memory) usable as w->data, w->scale: all_rows rows of all_cols columns.  In the file a
     * row has file_cols: data and scale point to the first that is wanted, on a block of scales (lf_inventory_block),
     * bytes and scale_bytes are of what is wanted.  The CPU uses them in place, all_cols becomes file_cols; a GPU reads
     * no other columns. */
    int (*weight)(lf_dev *d, lf_weight *w, int64_t file_cols, const void *data, size_t bytes, const void *scale,
                  size_t scale_bytes, lf_err *err);

    /* The same with made-up values: those that synth.h gives the item's w->all_rows rows from at[0] on, their
     * w->all_cols columns from at[1] on, as lf_synth_part has it. */
    int (*made_up)(lf_dev *d, lf_weight *w, const lf_inventory_item *item, lf_storage store, const int64_t at[2],
                   uint64_t seed, lf_err *err);

    void (*gemm)(lf_dev *d, const lf_gemm *g);

    /* x [m, n, D]: all n streams equal to the embedding row. */
    void (*embed)(lf_dev *d, lf_act *x, const uint32_t *ids, int64_t m, const lf_weight *embed);
    /* y [m, D] = rmsnorm(sum_i pre_i x_i) * norm, both rounded; mix [m, n + n*n] float: post, then C row by row. */
    void (*hc_pre)(lf_dev *d, lf_act *y, float *mix, const lf_act *x, int64_t m, const lf_hc *hc, const float *norm);
    /* x_j = post_j z + sum_i C[i,j] x_i, in place, rounded. */
    void (*hc_post)(lf_dev *d, lf_act *x, const lf_act *z, const float *mix, int64_t m);
    /* y [m, D] = rmsnorm(sum_i (sigmoid(..) + eps) x_i) * norm, both rounded. */
    void (*hc_head)(lf_dev *d, lf_act *y, const lf_act *x, int64_t m, const lf_hc *hc, const float *norm);

    /* x [m, n] = rmsnorm(x) * norm, in place, rounded. */
    void (*norm)(lf_dev *d, lf_act *x, int64_t m, int64_t n, const float *norm);
    /* q [m, heads, d]: unweighted rmsnorm of each head, rotation of the last rd channels at pos[row]; in place. */
    void (*query)(lf_dev *d, lf_act *q, int64_t m, int heads, const int64_t *pos, const lf_rope *rope);
    /* x [m, heads, width]: rotation of the last rd channels at pos[row], inverse if asked; in place, rounded. */
    void (*rotate)(lf_dev *d, lf_act *x, int64_t m, int heads, int64_t width, const int64_t *pos, const lf_rope *rope,
                   int inverse);
    /* dst row dst_row[i] = quantise(rotate(rmsnorm(x[i]) * norm)): the window rows [.., d]; released: through fp8. */
    void (*window)(lf_dev *d, lf_act *dst, const int64_t *dst_row, const lf_act *x, int64_t m, const float *norm,
                   const int64_t *pos, const lf_rope *rope);
    /* q [m, Hi, di]: rotation; released: Hadamard, e2m1 per 32 and back.  In place. */
    void (*index_query)(lf_dev *d, lf_act *q, int64_t m, int heads, int64_t width, const int64_t *pos,
                        const lf_rope *rope);
    /* x *= s, x += y over n floats; and n floats as activations, rounded. */
    void (*scale)(lf_dev *d, float *x, int64_t n, float s);
    void (*add)(lf_dev *d, float *x, const float *y, int64_t n);
    void (*round)(lf_dev *d, lf_act *y, const float *x, int64_t n);

    /* g [m, n] += ape[(row) mod ratio]; the first row's position is a multiple of ratio. */
    void (*add_ape)(lf_dev *d, float *g, int64_t m, int64_t n, const float *ape, int ratio);
    void (*compress)(lf_dev *d, const lf_compress *c);

    /* Rows <-> packed bytes (kvlayout.h).  `transformed`: index rows of x are in the Hadamard domain already (they came
     * out of row_unpack of LF_ROW_FP4); otherwise packing to LF_ROW_FP4 transforms.  Unpacking is exact. */
    void (*row_pack)(lf_dev *d, uint8_t *dst, const lf_act *x, int64_t m, int64_t width, lf_row_fmt fmt,
                     int transformed);
    void (*row_unpack)(lf_dev *d, lf_act *x, const uint8_t *src, int64_t m, int64_t width, lf_row_fmt fmt);

    /* The k largest of sum_h w_h relu(q_h . key_c) over c < (t+1)/4; ties to the lower row; NaN ranks last. */
    void (*index_topk)(lf_dev *d, const lf_topk *t);
    /* Of `parts` candidate lists [parts, m, k] with their scores (-1 where there is none): the k best of each row, in
     * the same total order, ascending, -1 after the last. */
    void (*topk_merge)(lf_dev *d, int32_t *sel, const int32_t *cand, const float *score, int parts, int64_t m, int k);
    void (*attention)(lf_dev *d, const lf_attn *a);
    /* Merge `parts` partial outputs [parts, m*heads, d] float-accumulated by their lse [parts, m*heads]; sink once. */
    void (*merge)(lf_dev *d, lf_act *out, const lf_act *part, const float *lse, int parts, int64_t m, int heads,
                  const float *sink);

    void (*route)(lf_dev *d, const lf_route *r);
    void (*pairs)(lf_dev *d, const lf_pairs *p);
    void (*arrivals)(lf_dev *d, const lf_arrivals *a);
    /* May be NULL.  The experts (w1, w2, w3) that are multiplied with soon: the device may get them ready beside what
     * runs.  Two sets at most wait at a time; experts() of others does without. */
    void (*prepare)(lf_dev *d, const lf_experts *e);
    void (*experts)(lf_dev *d, const lf_experts *e);
    /* out[t] = sum over slots j, in their order, of z[slot[t*K + j]], plus shared[t]; rounded. */
    void (*combine)(lf_dev *d, lf_act *out, const lf_act *z, const int32_t *slot, int k, const lf_act *shared,
                    int64_t m);

    /* Of float logits [m, vocab]: the k largest (descending; ties to the lower id), and log softmax at next[row]. */
    void (*logits_topk)(lf_dev *d, int32_t *ids, float *values, const float *logits, int64_t m, int64_t vocab, int k);
    void (*logprob)(lf_dev *d, float *out, const float *logits, const uint32_t *next, int64_t m, int64_t vocab);
} lf_dev_ops;

struct lf_dev {
    const lf_dev_ops *ops;
    const lf_model *model;
    lf_numerics numerics;
    size_t act_bytes;
    int64_t tile;                          /* tokens that fill the device: a good size of tiles, a multiple of 512 */
    char name[96];                         /* "NVIDIA H200", "AMD EPYC 9654" */
    size_t taken, peak;                    /* bytes of take() now and at most */
    uint32_t kernels;                      /* asked for, for tests (dev_cuda_choice.h); 0: each operation chooses */
};

static inline lf_act *lf_act_at(const lf_dev *d, const lf_act *p, int64_t elements)
{
    return (lf_act *)((char *)(uintptr_t)p + elements * (int64_t)d->act_bytes);
}

/* A view of rows r0 .. r0+n-1, or of columns c0 .. c0+n-1, of a weight. */
static inline lf_weight lf_weight_rows(lf_weight w, int64_t r0, int64_t n)
{
    w.row0 += r0;
    w.rows = n;
    return w;
}

static inline lf_weight lf_weight_cols(lf_weight w, int64_t c0, int64_t n)
{
    w.col0 += c0;
    w.cols = n;
    return w;
}

enum { LF_CPU_TILE = 512, LF_CUDA_TILE = 8192 };       /* their lf_dev.tile */

/* The CPU backend: BLIS for products, OpenMP over tiles of fixed height.  threads 0: OMP_NUM_THREADS or all cores. */
int lf_cpu_open(lf_dev **out, const lf_model *m, lf_numerics numerics, int threads, lf_err *err);
const char *lf_cpu_blis(void);             /* the version of BLIS, as it says itself */
void lf_dev_close(lf_dev *d);              /* NULL is fine */

#endif
