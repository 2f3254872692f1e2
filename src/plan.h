/* SPDX-License-Identifier: Apache-2.0
 *
 * plan: what a prompt of a length takes on each rank of a grid, from config.json and the headers of the weights.
 * Floor 6.
 *
 * The sizes come from the functions that the loader and the pass take their memory by.  Of a grid's ranks the one that
 * takes most is shown.  A GPU holds the weights, two layers' packed experts expanded to fp8 (cuda/bank.cu), and
 * what its operations take for themselves (dev_cuda_plan.h); on the CPU weights stay in the mapped files, and only what
 * is kept as float32 counts.  Not counted: scratch memory of the CPU, and what the CUDA context and NCCL keep for
 * themselves.
 *
 * Where a GPU's memory would not do, tiles of fewer tokens may: a half, a quarter or an eighth.  Rows do not depend on
 * that (engine.md), but products of fewer rows are slower.
 *
 * Host memory is that of `longfill prefill` in its passes.  Pieces for loading weights (cuda/load.cu) are given back
 * before, and are less than what the writer takes.  Not counted: what CUDA, NCCL, MPI and HDF5 keep for themselves.
 */
#ifndef LF_PLAN_H
#define LF_PLAN_H

#include "inventory.h"
#include "prefill.h"

/* Weights by what they do, as a reader of the model's paper would ask. */
typedef enum lf_plan_group {
    LF_PLAN_EMBEDDING, LF_PLAN_HEAD, LF_PLAN_ATTENTION, LF_PLAN_COMPRESSOR, LF_PLAN_INDEXER, LF_PLAN_ROUTER,
    LF_PLAN_EXPERTS, LF_PLAN_SHARED, LF_PLAN_MHC, LF_PLAN_NORMS, LF_PLAN_GROUPS
} lf_plan_group;

const char *lf_plan_group_name(lf_plan_group g);

typedef struct lf_plan_item {
    lf_inventory_item item;
    lf_storage store;
} lf_plan_item;

typedef struct lf_plan {
    const lf_model *model;
    const lf_checkpoint *checkpoint;       /* NULL: stored as released */
    lf_plan_item *item;
    int64_t items;
    unsigned stores[LF_ROLES];             /* as in lf_weights */
    int64_t bytes[LF_PLAN_GROUPS], total, parameters;      /* in the files */

    /* the question */
    int ranks;
    lf_numerics numerics;
    size_t act_bytes;
    int on_host;                           /* CPU: matrices from files take no memory of their own */
    int made_up;                           /* weights without a checkpoint, on the CPU too: they take memory */
    int merge;
    int64_t tile;                          /* of lf_plan_pass_size, tokens of one; 0: the default */
    lf_kv_dtype kv_dtype;                  /* resolved; of host memory only */
    lf_logits_want logits;
    int64_t tokens;                        /* of all prompts of the run, whose ids every rank keeps */
    uint32_t kernels;                      /* as in lf_dev */
    int64_t length, memory;                /* of the prompt; bytes a rank may take */
    const int64_t *lengths;                /* [prompts] of a pass of several, instead of `length`; or NULL */
    int prompts;
} lf_plan;

/* One grid, as its fullest rank sees it; host memory may be another rank's. */
typedef struct lf_plan_grid {
    lf_grid grid;
    int64_t tile;
    int64_t group[LF_PLAN_GROUPS];         /* weights that take device memory */
    int64_t weights, mapped;               /* their sum; what stays in mapped files */
    size_t pass[LF_MEMORY_KINDS];
    int64_t expanded;                      /* layers' experts as fp8: of the one that runs, and of the next */
    int64_t kernels;                       /* what else a GPU's operations take for themselves */
    int64_t pass_bytes, device_bytes;      /* device_bytes = weights + expanded + kernels + pass_bytes */
    size_t host[LF_HOST_KINDS];
    int64_t host_bytes;                    /* their sum */
    int fits;
} lf_plan_grid;

/* Every tensor of the model, with the way it is stored.  Fails when the checkpoint lacks one. */
int lf_plan_open(lf_plan *p, const lf_model *m, const lf_checkpoint *c, lf_err *err);
void lf_plan_free(lf_plan *p);

/* One rank, g->grid says which: its weights; then, with these, a pass and the sum. */
void lf_plan_weights_size(const lf_plan *p, lf_plan_grid *g);
void lf_plan_pass_size(const lf_plan *p, lf_plan_grid *g);
/* What is more in g goes into *most: the sizes of the device, and those of the host. */
void lf_plan_most(lf_plan_grid *most, const lf_plan_grid *g);
/* Of a CPU rank, all that it will have touched: the writer's ring is a bound that small runs stay far below. */
int64_t lf_plan_on_host(const lf_plan_grid *g);
/* The most tokens that a tile of this grid may have, and half of `tile`, or 0 where that is too few for a GPU; a CPU's
 * are as they are. */
int64_t lf_plan_tile(const lf_plan *p, const lf_grid *g);
int64_t lf_plan_tile_half(const lf_plan *p, const lf_grid *g, int64_t tile);
/* g->grid's sizes are given; with the most tokens a tile that fit, or else the fewest. */
void lf_plan_grid_size(const lf_plan *p, lf_plan_grid *g);
/* All grids of p->ranks ranks that divide the model, smallest tp first, then largest pcp; *out is the caller's. */
int lf_plan_grids(const lf_plan *p, lf_plan_grid **out);
/* The first that fits, or -1: rows that travel are small and experts are spread over pcp and tp alike, so tp,
 * which adds sums of activations, is taken only when the prompt does not fit otherwise. */
int lf_plan_choose(const lf_plan_grid *g, int n);
/* The fewest ranks that one prompt fits on, as the grid that is chosen of theirs.  More ranks than experts cannot share
 * one: -1 when it fits on no grid at all; then *g is the one that takes least. */
int lf_plan_smallest(const lf_plan *p, lf_plan_grid *g);

#endif
