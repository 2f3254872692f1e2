/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda: the CUDA backend of dev.h, private to cuda/.  One H200-class GPU (compute capability 9.0) per lf_cuda.
 *
 * A queue of dev.h is a stream; `stream` is that of the queue in use.  Kernels are templates over the activation type T
 * (float, __nv_bfloat16) and compute in float32; "rounded" means stored as T.  Released numerics always have bf16
 * activations.
 *
 * Invariance: a row's bits depend on the row alone.  So: reductions in a fixed order (the helpers below), no atomics on
 * floats, no split over K, one algorithm per weight.
 *
 * Errors: the first one is kept (lf_cuda_fail, LF_CUDA, LF_LAUNCHED) and handed out by sync(), which forgets it.  An
 * operation that finds a shape it cannot do records that and returns; it never does something else instead.
 */
#ifndef LF_CUDA_CUH
#define LF_CUDA_CUH

extern "C" {
#include "dev.h"
#include "dev_cuda_plan.h"
}
#include "dev_cuda.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

typedef struct lf_cuda_area {
    void *p;
    size_t bytes;
} lf_cuda_area;

/* Pinned host memory that put() and get() go through, in pieces; `done` follows the last copy from or to a piece. */
enum { LF_STAGES = 32, LF_STAGE_BYTES = 2 << 20 };

typedef struct lf_cuda_stage {
    char *p;
    cudaEvent_t done;
} lf_cuda_stage;

typedef struct lf_cuda_held {              /* memory handed out by take() */
    void *p;
    size_t bytes;
} lf_cuda_held;

typedef struct lf_cuda_line {
    char text[224];
} lf_cuda_line;

/* A collective that the exchange queue was given: number i of all is in i mod LF_CALLS. */
enum { LF_CALLS = 64 };

typedef struct lf_cuda_call {
    char text[128];                        /* "exchange 12 on pcp, rank 0, layer 3, tile 2": as it was given */
    cudaEvent_t done;                      /* follows it */
} lf_cuda_call;

typedef struct lf_cuda_plans lf_cuda_plans;            /* gemm.cu: the algorithm of each product */
typedef struct lf_cuda_stores lf_cuda_stores;          /* weight.cu: memory of uploaded weights */
typedef struct lf_cuda_clock lf_cuda_clock;            /* clock.cu: time stamps not yet read */
typedef struct lf_cuda_loader lf_cuda_loader;          /* load.cu: readers of weights, while these are loaded */
typedef struct lf_cuda_looks lf_cuda_looks;            /* fold.cu: packed weights that are looked at */
typedef struct lf_cuda_banks lf_cuda_banks;            /* bank.cuh: layers' experts, expanded to fp8 */

typedef struct lf_cuda {
    lf_dev dev;                            /* first: an lf_dev is this */
    int device, sms;
    size_t smem_max;                       /* dynamic shared memory a block may opt in to */
    cudaStream_t stream;                   /* of the queue in use */
    lf_queue queue;
    cudaStream_t streams[LF_QUEUES];
    cudaEvent_t marks[LF_MARKS];
    cudaEvent_t end;                       /* of a stream, when sync waits for it */
    cudaEvent_t turn;                      /* where one queue hands over to another (lf_cuda_turn) */
    cublasLtHandle_t blas;
    lf_cuda_area scratch[LF_SCRATCH_SLOTS];
    int reserved;                          /* scratch has been reserved: growing it is told by -v */
    lf_cuda_stage stage[LF_STAGES];
    int next_stage;
    lf_cuda_held *held;
    int helds, held_room;
    lf_cuda_plans *plans;
    lf_cuda_stores *stores;
    lf_cuda_looks *looks;
    lf_cuda_banks *banks;
    lf_cuda_loader *loader;                /* NULL: nothing is being loaded */
    lf_cuda_clock *clock;
    lf_cuda_line *told;                    /* what -v has said of kernels (choice.cu) */
    int tolds;
    int failed;
    lf_err error;
    char where[64];                        /* "layer 3, tile 2", when the caller says so; part of every error */
    volatile struct lf_cuda_place *place;  /* that the GPU has come to; pinned host memory */
    lf_cuda_call call[LF_CALLS];
    int64_t calls;                         /* given so far */
    struct lf_nccl *comms;                 /* nccl.cu: open communicators; and what waits do with them, NULL before */
    int (*comms_look)(struct lf_cuda *c, lf_err *why);         /* the first is open: -1 and why, where one failed; */
    void (*comms_abort)(struct lf_cuda *c);                    /* end them all, whatever they do */
    double patience;                       /* seconds that the host waits for the GPU: another rank may be gone */
    int given_up;                          /* that was too long, or a communicator failed: nothing works any more */
} lf_cuda;

static inline lf_cuda *lf_cuda_of(lf_dev *d)
{
    return (lf_cuda *)(void *)d;
}

/* Memory of an operation while it runs (dev_cuda_plan.h).  NULL when there is none (recorded): return then. */
void *lf_cuda_scratch(lf_cuda *c, lf_cuda_slot slot, size_t bytes);

int lf_cuda_memory_open(lf_cuda *c, lf_err *err);      /* pinned pieces */
void lf_cuda_memory_free(lf_cuda *c);                  /* these, scratch, and what was never given back */

/* ---- errors (error.cu) ---- */

int lf_cuda_errors_open(lf_cuda *c, lf_err *err);
void lf_cuda_errors_free(lf_cuda *c);
void lf_cuda_fail(lf_cuda *c, const char *fmt, ...) LF_PRINTF(2, 3);
int lf_cuda_check(lf_cuda *c, cudaError_t rc, const char *what);        /* 0, or -1 and recorded */

/* ---- kernels ---- */

/* The kernel that does a shape, of those that can (choice.cu, dev_cuda_choice.h): -v tells each with its shape, once,
 * in words that do not hang on how many rows there are.  -1: recorded; return then. */
int lf_cuda_choose(lf_cuda *c, lf_choice op, unsigned fits, const char *fmt, ...) LF_PRINTF(4, 5);
void lf_cuda_told_free(lf_cuda *c);

static inline const char *lf_cuda_act_name(const lf_cuda *c)
{
    return c->dev.act_bytes == 2 ? "bf16" : "float32";
}

/* Queues (queue.cu).  turn: queue `to` goes on after what queue `from` was given so far. */
int lf_cuda_queues_open(lf_cuda *c, lf_err *err);
void lf_cuda_queues_free(lf_cuda *c);
void lf_cuda_turn(lf_cuda *c, lf_queue from, lf_queue to);

/* wait.cu: the host waits for an event.  An error after c->patience seconds, or when a communicator fails. */
int lf_cuda_wait(lf_cuda *c, cudaEvent_t event, const char *what);
int lf_cuda_rests(lf_cuda *c);             /* waits for all queues; 0: what hangs there will not end */

/* Around each collective, with the exchange queue in use; calls_wait: until all are done. */
int lf_cuda_calls_open(lf_cuda *c, lf_err *err);
void lf_cuda_calls_free(lf_cuda *c);
void lf_cuda_call_begin(lf_cuda *c, const char *fmt, ...) LF_PRINTF(2, 3);
void lf_cuda_call_end(lf_cuda *c);
int lf_cuda_calls_wait(lf_cuda *c);

#define LF_CUDA(c, call, what) lf_cuda_check((c), (call), (what))
/* After every launch: LF_LAUNCHED(c, "norm"); */
#define LF_LAUNCHED(c, name) lf_cuda_check((c), cudaGetLastError(), "kernel " name)

/* The body once for each activation type, as T:  LF_ACT(c, { kernel<T><<<...>>>(lf_ptr<T>(x), ...); }); */
#define LF_ACT(c, ...)                                                                                        \
    do {                                                                                                      \
        if ((c)->dev.act_bytes == 2) {                                                                        \
            typedef __nv_bfloat16 T;                                                                          \
            __VA_ARGS__;                                                                                      \
        } else {                                                                                              \
            typedef float T;                                                                                  \
            __VA_ARGS__;                                                                                      \
        }                                                                                                     \
    } while (0)

template <typename T> static inline T *lf_ptr(lf_act *p)
{
    return (T *)(void *)p;
}

template <typename T> static inline const T *lf_ptr(const lf_act *p)
{
    return (const T *)(const void *)p;
}

/* Blocks for n items of `per` each; a launch with 0 blocks is an error in CUDA, so return before on n == 0. */
static inline unsigned lf_blocks(int64_t n, int64_t per)
{
    return (unsigned)lf_ceil_div(n, per);
}

#include "lane.cuh"

/* ---- weights (weight.cu) ---- */

/* What a weight has besides its bytes: lf_weight.extra, host memory, owned by the device. */
typedef struct lf_cuda_extra {
    const float *scale;                    /* e4m3: device memory [ceil(all_rows/128)][scale_ld] */
    int64_t scale_ld;                      /* ceil(all_cols/128), up to a multiple of 4: as cuBLASLt has it */
    int folds;                             /* packed e2m1: every 128x128 block fits e4m3 with one scale, exactly; known
                                            * after lf_cuda_fold_settle */
} lf_cuda_extra;

/* Memory for a weight of w's type and whole shape; and, when its bytes are there, what goes with them. */
int lf_cuda_weight_place(lf_cuda *c, lf_weight *w, size_t bytes, size_t scale_bytes, lf_err *err);
int lf_cuda_weight_finish(lf_cuda *c, lf_weight *w, lf_err *err);

/* Its bytes are there: the scale table is made, and whether it folds is looked at (w->extra). */
void lf_cuda_weight_arrived(lf_cuda *c, const lf_weight *w);

/* Rows of a tensor in host memory, `step` bytes from one to the next. */
typedef struct lf_cuda_rows {
    const char *data;
    int64_t rows;
    size_t bytes, step;                    /* of a row: those that are wanted, at its beginning; and all */
} lf_cuda_rows;

/* load.cu, while c->loader: rows to the GPU, without gaps there, then what finishes a weight, in this order but later;
 * the end waits. */
void lf_cuda_load_rows(lf_cuda *c, const lf_cuda_rows *from, void *to);
void lf_cuda_load_finish(lf_cuda *c, const lf_weight *w);
void lf_cuda_load_end(lf_cuda *c);

/* Columns 0 .. cols-1 of rows r0 .. r0+n-1 of a slice as bf16 or float32, rows ldo apart (a multiple of 8, out 16-byte
 * aligned); columns cols .. ldo-1 become 0.  bf16 is exact for all but float32 weights. */
void lf_cuda_expand(lf_cuda *c, const lf_weight *w, int64_t r0, int64_t n, __nv_bfloat16 *out, int64_t ldo);
void lf_cuda_expand(lf_cuda *c, const lf_weight *w, int64_t r0, int64_t n, float *out, int64_t ldo);
void lf_cuda_stores_free(lf_cuda *c);

/* fold.cu: a whole packed e2m1 weight as e4m3 codes with a scale per 128x128. */
typedef struct lf_cuda_folding {
    const lf_weight *w;
    uint8_t *out;                          /* [rows, cols]; NULL: only *misfit is wanted */
    float *scale;                          /* [ceil(rows/128)][scale_ld], the columns that the weight has */
    int64_t scale_ld;
    int *misfit;                           /* device memory: becomes 1 where something would be lost, and NaN stands
                                            * there; may be NULL */
} lf_cuda_folding;

void lf_cuda_fold(lf_cuda *c, const lf_cuda_folding *f, int n);
/* Whether it works, for lf_cuda_extra: asked of the GPU for one weight; answered for all of them, with one wait. */
void lf_cuda_fold_look(lf_cuda *c, const lf_weight *w);
void lf_cuda_fold_settle(lf_cuda *c);
void lf_cuda_looks_free(lf_cuda *c);

/* ---- products ---- */

typedef enum lf_cuda_precision { LF_CUDA_FP8, LF_CUDA_BF16, LF_CUDA_F32 } lf_cuda_precision;

/* out [m, n] = x [m, k] w[n, k]^T, both sides in one precision, float32 accumulation (never tf32), out bf16 or float32.
 * All pointers and rows 16-byte aligned.  fp8, both sides quantised: m a multiple of 4, n of 8, k of 16; x_scale
 * [ceil(k/128)][m]; w_scale [ceil(n/128)][up to a multiple of 4 of ceil(k/128)], one per 128x128. */
typedef struct lf_cuda_product {
    lf_cuda_precision precision;
    int f32_out;
    const void *x, *w;
    const float *x_scale, *w_scale;        /* fp8 only */
    void *out;
    int64_t m, n, k, ldx, ldw, ldo;
} lf_cuda_product;

void lf_cuda_multiply(lf_cuda *c, const lf_cuda_product *p);           /* product.cu */

/* gemm.cu: the scales of a weight that fits fp8 products, in the form that they take (NULL: recorded). */
const float *lf_cuda_fp8_scale(lf_cuda *c, const lf_weight *w);
int lf_cuda_plans_open(lf_cuda *c, lf_err *err);
void lf_cuda_plans_free(lf_cuda *c);
int lf_cuda_clock_open(lf_cuda *c, lf_err *err);
void lf_cuda_clock_free(lf_cuda *c);
void lf_cuda_clock_settle(lf_cuda *c);     /* waits for the last stamp and adds up all */
int lf_cuda_banks_open(lf_cuda *c, lf_err *err);
void lf_cuda_banks_free(lf_cuda *c);
void lf_cuda_banks_wait(lf_cuda *c);       /* the host waits for what is being expanded */
void lf_cuda_banks_forget(lf_cuda *c);     /* weights have changed: what was expanded is worth nothing */

/* ---- the operations, one file a concept ---- */

int lf_cuda_take(lf_dev *d, void **out, size_t bytes, const char *what, lf_err *err);
void lf_cuda_give(lf_dev *d, void *p);
void lf_cuda_put(lf_dev *d, void *dst, const void *host, size_t bytes);
void lf_cuda_get(lf_dev *d, void *host, const void *src, size_t bytes);
void lf_cuda_copy(lf_dev *d, void *dst, const void *src, size_t bytes);
void lf_cuda_copy_rows(lf_dev *d, void *dst, size_t ldd, const void *src, size_t lds, size_t row_bytes, int64_t rows);
void lf_cuda_gather(lf_dev *d, void *dst, const void *src, const int32_t *idx, int64_t rows, size_t row_bytes);
void lf_cuda_fill(lf_dev *d, void *dst, int byte, size_t bytes);
int lf_cuda_weight(lf_dev *d, lf_weight *w, int64_t file_cols, const void *data, size_t bytes, const void *scale,
                   size_t scale_bytes, lf_err *err);
int lf_cuda_expect(lf_dev *d, int64_t bytes, lf_err *err);
int lf_cuda_load(lf_dev *d, const lf_dev_files *files, lf_err *err);
int lf_cuda_reserve(lf_dev *d, const lf_dev_load *load, lf_err *err);
int64_t lf_cuda_left(lf_dev *d);
int lf_cuda_made_up(lf_dev *d, lf_weight *w, const lf_inventory_item *item, lf_storage store, const int64_t at[2],
                    uint64_t seed, lf_err *err);
void lf_cuda_at(lf_dev *d, int layer, int tile);
void lf_cuda_stamp(lf_dev *d, double *to, const char *next);
void lf_cuda_use(lf_dev *d, lf_queue q);
void lf_cuda_mark(lf_dev *d, int mark);
void lf_cuda_after(lf_dev *d, int mark);
void lf_cuda_await(lf_dev *d, int mark);
int lf_cuda_past(lf_dev *d, int mark);
int lf_cuda_host_take(lf_dev *d, void **out, size_t bytes, const char *what, lf_err *err);
void lf_cuda_host_give(lf_dev *d, void *p);
void lf_cuda_fetch(lf_dev *d, void *host, const void *src, size_t bytes);
void lf_cuda_gemm(lf_dev *d, const lf_gemm *g);
void lf_cuda_embed(lf_dev *d, lf_act *x, const uint32_t *ids, int64_t m, const lf_weight *embed);
void lf_cuda_hc_pre(lf_dev *d, lf_act *y, float *mix, const lf_act *x, int64_t m, const lf_hc *hc, const float *norm);
void lf_cuda_hc_post(lf_dev *d, lf_act *x, const lf_act *z, const float *mix, int64_t m);
void lf_cuda_hc_head(lf_dev *d, lf_act *y, const lf_act *x, int64_t m, const lf_hc *hc, const float *norm);
void lf_cuda_norm(lf_dev *d, lf_act *x, int64_t m, int64_t n, const float *norm);
void lf_cuda_query(lf_dev *d, lf_act *q, int64_t m, int heads, const int64_t *pos, const lf_rope *rope);
void lf_cuda_rotate(lf_dev *d, lf_act *x, int64_t m, int heads, int64_t width, const int64_t *pos, const lf_rope *rope,
                    int inverse);
void lf_cuda_window(lf_dev *d, lf_act *dst, const int64_t *dst_row, const lf_act *x, int64_t m, const float *norm,
                    const int64_t *pos, const lf_rope *rope);
void lf_cuda_index_query(lf_dev *d, lf_act *q, int64_t m, int heads, int64_t width, const int64_t *pos,
                         const lf_rope *rope);
void lf_cuda_scale(lf_dev *d, float *x, int64_t n, float s);
void lf_cuda_add(lf_dev *d, float *x, const float *y, int64_t n);
void lf_cuda_round(lf_dev *d, lf_act *y, const float *x, int64_t n);
void lf_cuda_add_ape(lf_dev *d, float *g, int64_t m, int64_t n, const float *ape, int ratio);
void lf_cuda_compress(lf_dev *d, const lf_compress *c);
void lf_cuda_row_pack(lf_dev *d, uint8_t *dst, const lf_act *x, int64_t m, int64_t width, lf_row_fmt fmt,
                      int transformed);
void lf_cuda_row_unpack(lf_dev *d, lf_act *x, const uint8_t *src, int64_t m, int64_t width, lf_row_fmt fmt);
void lf_cuda_index_topk(lf_dev *d, const lf_topk *t);
void lf_cuda_topk_merge(lf_dev *d, int32_t *sel, const int32_t *cand, const float *score, int parts, int64_t m, int k);
void lf_cuda_attention(lf_dev *d, const lf_attn *a);
void lf_cuda_merge(lf_dev *d, lf_act *out, const lf_act *part, const float *lse, int parts, int64_t m, int heads,
                   const float *sink);
void lf_cuda_route(lf_dev *d, const lf_route *r);
void lf_cuda_pairs(lf_dev *d, const lf_pairs *p);
void lf_cuda_arrivals(lf_dev *d, const lf_arrivals *a);
void lf_cuda_prepare(lf_dev *d, const lf_experts *e);
void lf_cuda_experts(lf_dev *d, const lf_experts *e);
void lf_cuda_combine(lf_dev *d, lf_act *out, const lf_act *z, const int32_t *slot, int k, const lf_act *shared,
                     int64_t m);
void lf_cuda_logits_topk(lf_dev *d, int32_t *ids, float *values, const float *logits, int64_t m, int64_t vocab, int k);
void lf_cuda_logprob(lf_dev *d, float *out, const float *logits, const uint32_t *next, int64_t m, int64_t vocab);

#endif
