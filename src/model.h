/* SPDX-License-Identifier: Apache-2.0
 *
 * model: config.json -> a validated description of the model, and from it the exact inventory of tensors.
 * Floor 1: no device, no MPI, no HDF5.   Source: model.md ("Dimensions of the released models", "Released checkpoint
 * format").
 */
#ifndef LF_MODEL_H
#define LF_MODEL_H

#include "num.h"

enum { LF_MAX_LAYERS = 512, LF_MAX_HC = 8 };

typedef enum lf_kind { LF_SWA, LF_C4, LF_C128 } lf_kind;      /* window only; + ratio 4 with indexer; + ratio 128 */

typedef enum lf_numerics { LF_EXACT, LF_RELEASED } lf_numerics;

typedef struct lf_yarn {
    int on;
    double factor, beta_fast, beta_slow;
    int64_t original;                      /* original_max_position_embeddings */
} lf_yarn;

typedef struct lf_model {
    char type[64];                         /* "deepseek_v4" */
    int64_t vocab, hidden, max_positions;
    int layers;                            /* num_hidden_layers; entries of the schedule beyond it are ignored */
    lf_kind kind[LF_MAX_LAYERS];
    int heads, head_dim, rope_dim;         /* H, d, rd */
    int64_t q_rank;                        /* R */
    int o_groups;                          /* G */
    int64_t o_rank;                        /* O */
    int experts, experts_per_tok;          /* E, K */
    int64_t expert_inter;                  /* I */
    int hash_layers;                       /* the first so many layers choose experts by token id */
    int window;                            /* W */
    int index_heads, index_dim, index_topk;/* Hi, di, k */
    int hc, hc_iters;                      /* n = hc_mult, hc_sinkhorn_iters */
    float rms_eps, hc_eps, swiglu_limit, routed_scale;
    double rope_theta, compress_theta;
    lf_yarn yarn;                          /* of the compressed layers */
    int64_t bos, eos;                      /* -1 when the config names none */
    char *text;                            /* the config file's text, owned */
    char sha256[65];                       /* of that text, hexadecimal */
} lf_model;

/* Reads DIR/config.json in the old form (compress_ratios, num_hash_layers, rope_scaling) or the new (layer_types,
 * compress_rates, mlp_layer_types, rope_parameters {main, compress}), or both when they agree.  Every field is checked
 * against every other; an unknown architecture is refused by its name.  Errors name file, field, value and
 * what works. */
int lf_model_read(lf_model *m, const char *dir, lf_err *err);
int lf_model_parse(lf_model *m, const char *text, size_t bytes, const char *where, lf_err *err);
void lf_model_free(lf_model *m);

static inline int lf_kind_ratio(lf_kind k)
{
    return k == LF_C4 ? 4 : k == LF_C128 ? 128 : 0;
}

const char *lf_kind_name(lf_kind k);       /* "swa", "c4", "c128" */

#endif
