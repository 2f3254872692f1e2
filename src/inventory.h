/* SPDX-License-Identifier: Apache-2.0
 *
 * inventory: every tensor that a model needs, with its shape and the ways it may be stored.  Floor 1, pure.
 * Source: model.md, "Released checkpoint format".  One enumeration serves the loader, plan and synth.
 *
 * Ways of storing (of a weight [out, in]):
 *   LF_STORE_BF16  [out, in] BF16                     LF_STORE_F32  [...] F32             LF_STORE_I64  [...] I64
 *   LF_STORE_FP8   [out, in] F8_E4M3, and its companion F8_E8M0 [ceil(out/128), ceil(in/128)]
 *   LF_STORE_FP4   [out, in/2] I8 (two e2m1 codes a byte, low nibble first), and F8_E8M0 [out, in/32]
 * Weights that the released checkpoint quantises may be BF16 as well, routed experts FP4, FP8 or BF16 (all of a layer
 * alike).  What it keeps in F32 may be BF16: conversion to float32 loses nothing (lf_inventory_floats).
 */
#ifndef LF_INVENTORY_H
#define LF_INVENTORY_H

#include "model.h"
#include "safetensors.h"

typedef enum lf_storage { LF_STORE_BF16, LF_STORE_FP8, LF_STORE_FP4, LF_STORE_F32, LF_STORE_I64, LF_STORES } lf_storage;

/* What a tensor is.  The three of an expert, and the parts of the two compressors, lie in one order. */
typedef enum lf_role {
    LF_ROLE_EMBED, LF_ROLE_HEAD, LF_ROLE_NORM, LF_ROLE_HC_HEAD_FN, LF_ROLE_HC_HEAD_BASE, LF_ROLE_HC_HEAD_SCALE,
    LF_ROLE_HC_ATTN_FN, LF_ROLE_HC_ATTN_BASE, LF_ROLE_HC_ATTN_SCALE,
    LF_ROLE_HC_FFN_FN, LF_ROLE_HC_FFN_BASE, LF_ROLE_HC_FFN_SCALE,
    LF_ROLE_ATTN_NORM, LF_ROLE_FFN_NORM, LF_ROLE_SINK,
    LF_ROLE_WQ_A, LF_ROLE_Q_NORM, LF_ROLE_WQ_B, LF_ROLE_WKV, LF_ROLE_KV_NORM, LF_ROLE_WO_A, LF_ROLE_WO_B,
    LF_ROLE_COMP_APE, LF_ROLE_COMP_WKV, LF_ROLE_COMP_WGATE, LF_ROLE_COMP_NORM,
    LF_ROLE_INDEX_APE, LF_ROLE_INDEX_WKV, LF_ROLE_INDEX_WGATE, LF_ROLE_INDEX_NORM,
    LF_ROLE_INDEX_WQ_B, LF_ROLE_INDEX_WEIGHTS,
    LF_ROLE_GATE, LF_ROLE_GATE_BIAS, LF_ROLE_TID2EID,
    LF_ROLE_W1, LF_ROLE_W2, LF_ROLE_W3, LF_ROLE_SHARED_W1, LF_ROLE_SHARED_W2, LF_ROLE_SHARED_W3,
    LF_ROLES
} lf_role;

typedef struct lf_inventory_item {
    char name[80];                         /* "layers.3.attn.wq_a.weight" */
    char scale[80];                        /* "layers.3.attn.wq_a.scale"; empty when it is never quantised */
    lf_role role;
    int layer, expert;                     /* -1: outside the layers; no routed expert */
    unsigned stores;                       /* bit 1 << lf_storage: may be stored so (fp4 only if 32 divides in) */
    lf_storage released;                     /* the released checkpoint's way (for fp4 with such an `in`: fp8) */
    int ndim;                              /* 1 or 2 */
    int64_t rows, cols;                    /* logical [out, in]; a vector has rows 1 */
} lf_inventory_item;

/* Called for each item in turn; what is not 0 ends the enumeration and is returned. */
typedef int (*lf_inventory_visit)(void *arg, const lf_inventory_item *item, lf_err *err);

/* All of the model: embed, the layers in order, then norm, head and hc_head; or one layer's (-1: those outside). */
int lf_inventory_each(const lf_model *m, lf_inventory_visit visit, void *arg, lf_err *err);
int lf_inventory_layer(const lf_model *m, int layer, lf_inventory_visit visit, void *arg, lf_err *err);

/* One item by role; expert counts for the routed experts' roles only.  0, or -1 when the layer has no such tensor. */
int lf_inventory_item_of(const lf_model *m, int layer, lf_role role, int expert, lf_inventory_item *item);

/* Type and shape as the file has them: the weight's, and its companion's (0, 0: none); a vector is [1, n] here. */
void lf_inventory_stored(const lf_inventory_item *item, lf_storage store, lf_dtype *dtype, int64_t shape[2],
                         int64_t scale_shape[2]);
int64_t lf_inventory_bytes(const lf_inventory_item *item, lf_storage store);      /* both together */
/* Rows and columns that share a scale: 128 and 128 (fp8), 1 and 32 (fp4), else 1 and 1. */
void lf_inventory_block(lf_storage store, int64_t block[2]);

typedef struct lf_inventory_found {
    lf_storage store;
    const lf_tensor *weight, *scale;       /* scale: NULL unless fp8 or fp4 */
} lf_inventory_found;

/* The item's tensors in a checkpoint, their types and shapes checked. */
int lf_inventory_find(const lf_checkpoint *c, const lf_inventory_item *item, lf_inventory_found *found, lf_err *err);

typedef struct lf_inventory_report {
    int64_t items, tensors;                /* needed: logical, and in the files (with scales) */
    int64_t of_dtype[LF_DTYPES];           /* of these tensors */
    int64_t bytes;
    int64_t mtp;                           /* mtp.*: not needed for prefill */
    int64_t unknown;                       /* other tensors that the model has no use for */
    const char *first_unknown;             /* the checkpoint's; NULL: none */
} lf_inventory_report;

/* Everything the model needs is there, of a right type and shape.  report may be NULL. */
int lf_inventory_check(const lf_model *m, const lf_checkpoint *c, lf_inventory_report *report, lf_err *err);

/* n values of a BF16, F16 or F32 tensor's data, from the first-th on, as float32. */
void lf_inventory_floats(lf_dtype dtype, const void *data, int64_t first, int64_t n, float *out);

#endif
