/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill: prompts through the model, layer-major.  Floor 4.   Source: engine.md.
 *
 * An engine is the model on one rank: its weights, its workspaces, its place in the grid.  A pass runs one or more
 * prompts from embedding to logits: one layer over all tokens, then the next.  What is finished (rows, state, logits)
 * goes to a sink, in layer order, as packed bytes in host memory.
 */
#ifndef LF_PREFILL_H
#define LF_PREFILL_H

#include "dev.h"
#include "kvlayout.h"
#include "topo.h"

typedef enum lf_phase {
    LF_PHASE_PROJECTIONS, LF_PHASE_INDEXER, LF_PHASE_ATTENTION, LF_PHASE_MOE, LF_PHASE_MHC, LF_PHASE_HEAD,
    LF_PHASE_COMMUNICATION, LF_PHASE_WRITE_WAIT, LF_PHASES
} lf_phase;

const char *lf_phase_name(lf_phase p);

/* Which logits a pass produces. */
typedef struct lf_logits_want {
    int last;                              /* the last token's, float32 [vocab] */
    int all;                               /* every token's */
    int topk;                              /* > 0: the k largest of every token */
    int logprob;                           /* log p(next token) of every token; NaN for the last */
} lf_logits_want;

typedef enum lf_logits_kind {
    LF_LOGITS_LAST,                        /* f32 [1, vocab] */
    LF_LOGITS_ALL,                         /* f32 [rows, vocab] */
    LF_LOGITS_TOPK_IDS,                    /* i32 [rows, k] */
    LF_LOGITS_TOPK_VALUES,                 /* f32 [rows, k] */
    LF_LOGITS_LOGPROB                      /* f32 [rows] */
} lf_logits_kind;

/* Called on the computing thread of the rank that owns the rows; `data` is valid during the call only.  A call that
 * fails stops nothing: the engine finishes the pass (every rank enters every collective) and reports nothing of it;
 * the sink remembers.  Rows of a layer may come after its `layer_done`, all of them before the pass ends; TTFT ends at
 * `first_token`. */
typedef struct lf_sink {
    void *ctx;
    void (*rows)(void *ctx, int seq, int layer, lf_kv_part part, int64_t row0, int64_t rows, const void *packed,
                 size_t bytes);
    void (*logits)(void *ctx, int seq, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data, size_t bytes);
    void (*first_token)(void *ctx);                   /* last-token logits of every sequence are in host memory */
    void (*layer_done)(void *ctx, int layer);          /* for progress: on every rank, in order; rows may come later */
} lf_sink;

typedef struct lf_engine lf_engine;
typedef struct lf_probe lf_probe;          /* probe.h */

typedef struct lf_engine_setup {
    const lf_model *model;
    lf_checkpoint *checkpoint;             /* NULL: made-up weights in the released format (bench --weights dummy) */
    uint64_t seed;                         /* of those */
    lf_dev *dev;
    lf_topo *topo;                         /* this rank's place in the grid, and its communicators */
    lf_kv_dtype kv_dtype;                  /* resolved: not auto */
    lf_logits_want logits;
    int64_t tile;                          /* tokens of a tile, a multiple of 128; 0: the default */
    int merge;                             /* --pcp-attention merge: compressed rows stay sharded */
    const lf_probe *probe;                 /* NULL: nobody looks on; not together with merge */
} lf_engine_setup;

/* The default tile, of a device's own (lf_dev.tile): a quarter in merge mode, where a round holds the queries of all
 * ranks. */
int64_t lf_engine_tile(int64_t own, const lf_grid *g, int merge);

/* Loads (CPU: maps) this rank's weights.  Collective over the dp group. */
int lf_engine_open(lf_engine **out, const lf_engine_setup *s, lf_err *err);
void lf_engine_close(lf_engine *e);
int64_t lf_engine_loaded(const lf_engine *e);          /* bytes of matrices read from files; 0 where they stay mapped */

/* One pass over `n` prompts.  Collective over the dp group.  seconds[LF_PHASES] is added to.  Everything the pass needs
 * is taken before the first token; when it does not fit, nothing was computed and err says the sizes. */
typedef struct lf_prompt {
    const uint32_t *ids;
    int64_t tokens;
} lf_prompt;

/* -1: no rank of the group began, and all return it; -2: this rank failed in the middle, where others may wait for
 * it. */
int lf_engine_run(lf_engine *e, int n, const lf_prompt *prompts, const lf_sink *sink, double *seconds, lf_err *err);

/* What a pass takes, by what it is for. */
typedef enum lf_memory_kind {
    LF_MEMORY_STREAMS,                     /* residual streams of the local tokens */
    LF_MEMORY_TOKENS,                      /* what else each local token keeps through a layer */
    LF_MEMORY_WINDOW,                      /* window rows and their halo */
    LF_MEMORY_COMPRESSED,                  /* compressed and index rows (gather: of all ranks), compressor state */
    LF_MEMORY_WORKSPACE,                   /* of a tile, of the experts, of the logits */
    LF_MEMORY_KINDS
} lf_memory_kind;

const char *lf_memory_name(lf_memory_kind k);          /* "streams", ... */

/* What a run takes of host memory, on a CPU beside all that. */
typedef enum lf_host_kind {
    LF_HOST_OUTPUT,                        /* finished rows and logits on their way out: pinned on a GPU, as the next */
    LF_HOST_STAGING,                       /* of a GPU's copies */
    LF_HOST_WRITER,                        /* finished rows on their way to the files; not an engine's */
    LF_HOST_PROMPTS,                       /* token ids of all prompts; what a pass puts on its device at first */
    LF_HOST_KINDS
} lf_host_kind;

const char *lf_host_name(lf_host_kind k);              /* "output", ... */

/* Sizes, before there is a device or a checkpoint: for planning. */
typedef struct lf_engine_plan {
    const lf_model *model;
    lf_grid grid;                          /* one rank's place */
    lf_numerics numerics;
    int on_host;                           /* the CPU backend; else a GPU */
    size_t act_bytes;                      /* 4: float32; 2: bf16 */
    int64_t tile;                          /* 0: the default */
    int merge;
    lf_kv_dtype kv_dtype;                  /* resolved; of host memory only */
    lf_logits_want logits;
    const unsigned *stores;                /* [LF_ROLES] of lf_weights, for lf_engine_plan_room */
    uint32_t kernels;                      /* as in lf_dev */
} lf_engine_plan;

/* What the operations of a GPU take for themselves: two layers' packed experts expanded to fp8, and all else. */
void lf_engine_plan_room(const lf_engine_plan *s, int n, const int64_t *lengths, int64_t *expanded, int64_t *rest);

size_t lf_engine_plan_bytes(const lf_engine_plan *s, int n, const int64_t *lengths, size_t of[LF_MEMORY_KINDS]);

/* Host memory of an engine and of a pass; token ids, and what is not an engine's, are 0. */
void lf_engine_plan_host(const lf_engine_plan *s, int n, const int64_t *lengths, size_t of[LF_HOST_KINDS]);

#endif
