/* SPDX-License-Identifier: Apache-2.0
 *
 * weight: the checkpoint's tensors as this rank computes with them.  Floor 4.   Source: model.md, "Released checkpoint
 * format"; engine.md, "tp".
 *
 * Matrices are views of the stored tensors (lf_weight), sliced for tp and ep; vectors are float32 device buffers.
 * Everything was checked against the inventory before; what is checked here is content (expert ids of hash layers).
 */
#ifndef LF_WEIGHT_H
#define LF_WEIGHT_H

#include "dev.h"
#include "grid.h"
#include "inventory.h"

typedef struct lf_compressor {
    lf_weight wkv, wgate;
    float *ape, *norm;
} lf_compressor;

typedef struct lf_layer {
    lf_kind kind;
    lf_hc hc_attn, hc_ffn;
    float *attn_norm, *ffn_norm;
    lf_weight wq_a, wq_b, wkv, wo_a, wo_b;             /* wq_b, wo_a, wo_b: of this tp rank's heads and groups */
    float *q_norm, *kv_norm, *sink;                    /* sink: [heads of this rank] */
    lf_compressor main, index;
    lf_weight index_wq_b, index_proj;
    lf_weight gate;
    float *bias;                                       /* learned layers */
    int64_t *tid2eid;                                  /* hash layers: [vocab, K] */
    lf_weight *w1, *w2, *w3;                           /* [experts of this rank] */
    lf_weight shared1, shared2, shared3;
} lf_layer;

typedef struct lf_weights {
    lf_dev *dev;
    int heads, groups, experts;                        /* of this rank */
    int expert0;                                       /* global id of its first expert */
    int64_t vocab, vocab0;                             /* rows of the head on this tp rank, and the first */
    lf_weight embed, head;
    float *norm;
    lf_hc hc_head;
    lf_rope rope, rope_compressed;                     /* window-only layers; compressed layers */
    unsigned stores[LF_ROLES];                         /* bit 1 << lf_storage: a tensor of this role is stored so */
    int64_t read;                                      /* bytes of files that went to a device */
    int layers;
    lf_layer *layer;
    void **owned;                                      /* device buffers to give back */
    int owns;
} lf_weights;

/* First vocabulary row of a tp rank; of rank tp: the vocabulary's size. */
int64_t lf_vocab_at(const lf_model *m, int tp, int tp_rank);

/* The counts of w (heads .. vocab0, layers), which is zero otherwise; loads nothing. */
void lf_weights_shape(lf_weights *w, const lf_model *m, const lf_grid *g);
/* c NULL: made-up weights of this seed. */
int lf_weights_load(lf_weights *w, const lf_model *m, lf_checkpoint *c, uint64_t seed, lf_dev *d, const lf_grid *g,
                    lf_err *err);
void lf_weights_free(lf_weights *w);

/* Bytes of an item on this rank as lf_weights_load takes them (0: an expert of another rank), stored this way.
 * *matrix: 1 when it is kept as stored, which on the CPU takes no memory of its own when it comes from a file; 0 when
 * it is kept as float32 (expert ids: int64) beside it. */
int64_t lf_weights_share(const lf_inventory_item *item, lf_storage store, const lf_model *m, const lf_grid *g,
                         int *matrix);

/* The same as a GPU takes it (dev_cuda_plan.h): matrices among the weights, vectors by themselves. */
int64_t lf_weights_on_gpu(const lf_inventory_item *item, lf_storage store, const lf_model *m, const lf_grid *g,
                          int *matrix);

/* A matrix as it is loaded: *w has all but memory, its rows and columns those of this rank.  Kept (all_rows, all_cols)
 * are the blocks of scales that these lie in, from the item's row at[0] and column at[1] on. */
void lf_weights_view(lf_weight *w, int64_t at[2], const lf_inventory_item *item, lf_storage store, const lf_model *m,
                     const lf_grid *g);

/* stores[LF_ROLES] of lf_weights, and the bytes of all matrices on a GPU. */
int lf_weights_survey(unsigned *stores, int64_t *bytes, const lf_model *m, const lf_checkpoint *c, const lf_grid *g,
                      lf_err *err);

/* inv_freq [rope_dim / 2] in float32, with YaRN when the layer is compressed and the config asks for it. */
void lf_rope_frequencies(const lf_model *m, int compressed, float *inv_freq);

#endif
