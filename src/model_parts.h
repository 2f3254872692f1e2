/* SPDX-License-Identifier: Apache-2.0
 *
 * model_parts: the pieces of lf_model_parse.  Included by model*.c only.  Each fills its part of the model from the
 * config's root object, with layers and head_dim already set, and returns 0 or -1 with f->err filled.
 */
#ifndef LF_MODEL_PARTS_H
#define LF_MODEL_PARTS_H

#include "field.h"
#include "model.h"

/* kind[] from compress_ratios or layer_types; hash_layers from num_hash_layers or mlp_layer_types. */
int lf_model_schedule(lf_model *m, const lf_field *f);

/* rope_dim, rope_theta, compress_theta, yarn from rope_scaling or rope_parameters. */
int lf_model_rope(lf_model *m, const lf_field *f);

/* architectures, model_type and every field that has one supported value only. */
int lf_model_identity(lf_model *m, const lf_field *f);
int lf_model_quantization(const lf_field *f);

#endif
