/* SPDX-License-Identifier: Apache-2.0 */
#include "model_parts.h"

#include <stdio.h>

#define ARCHITECTURE "DeepseekV4ForCausalLM"
#define MODEL_TYPE "deepseek_v4"

static int check_architecture(const lf_field *f)
{
    const json_t *list = lf_field_get(f, "architectures");
    char shown[64];

    if (!list)
        return 0;
    if (!json_is_array(list) || json_array_size(list) != 1)
        return lf_fail(f->err, "%s: field architectures is %s; it must be [\"" ARCHITECTURE "\"]", f->where,
                       lf_field_show(list, shown, sizeof shown));
    const char *name = json_string_value(json_array_get(list, 0));
    if (!name || strcmp(name, ARCHITECTURE))
        return lf_fail(f->err, "%s: architecture %s is not supported; " ARCHITECTURE " is", f->where,
                       lf_field_show(json_array_get(list, 0), shown, sizeof shown));
    return 0;
}

static int check_type(lf_model *m, const lf_field *f)
{
    const char *type = NULL;

    if (lf_field_text(f, "model_type", LF_FIELD_NEEDED, &type))
        return -1;
    if (strcmp(type, MODEL_TYPE))
        return lf_fail(f->err, "%s: model_type \"%.80s\" is not supported; \"" MODEL_TYPE "\" is", f->where,
                       type);
    snprintf(m->type, sizeof m->type, "%s", type);
    return 0;
}

/* Fields that other models of the family use and this one has one value for. */
int lf_model_identity(lf_model *m, const lf_field *f)
{
    static const char *const ones[] = { "n_shared_experts", "num_key_value_heads", "n_group", "topk_group",
                                        "moe_layer_freq" };
    static const char *const off[] = { "attention_bias", "mlp_bias", "tie_word_embeddings" };

    if (check_architecture(f) || check_type(m, f))
        return -1;
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        if (lf_field_is_int(f, ones[i], 1))
            return -1;
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (lf_field_is_bool(f, off[i], 0))
            return -1;
    if (lf_field_is_int(f, "first_k_dense_replace", 0) || lf_field_is_bool(f, "norm_topk_prob", 1) ||
        lf_field_is_text(f, "scoring_func", "sqrtsoftplus") ||
        lf_field_is_text(f, "topk_method", "noaux_tc") || lf_field_is_text(f, "hidden_act", "silu"))
        return -1;
    return 0;
}

static int check_experts(const lf_field *f)
{
    const char *type = NULL;

    if (lf_field_text(f, "expert_dtype", LF_FIELD_OPTIONAL, &type))
        return -1;
    if (type && strcmp(type, "fp4") && strcmp(type, "fp8") && strcmp(type, "bf16"))
        return lf_fail(f->err, "%s: field %sexpert_dtype is \"%.40s\"; fp4, fp8 and bf16 are supported",
                       f->where, f->prefix, type);
    return 0;
}

static int check_block(const lf_field *f)
{
    const json_t *block = lf_field_get(f, "weight_block_size");
    char shown[64];
    int ok = !block || (json_array_size(block) == 2 && json_integer_value(json_array_get(block, 0)) == 128 &&
                        json_integer_value(json_array_get(block, 1)) == 128);

    if (ok)
        return 0;
    return lf_fail(f->err, "%s: field %sweight_block_size is %s; only [128,128] is supported", f->where,
                   f->prefix, lf_field_show(block, shown, sizeof shown));
}

/* How weights are stored is read from the tensors themselves: here only what no tensor would show. */
int lf_model_quantization(const lf_field *f)
{
    const json_t *q = lf_field_get(f, "quantization_config");
    lf_field in = { q, f->where, "quantization_config.", f->err };

    if (check_experts(f))
        return -1;
    if (!q)
        return 0;
    if (!json_is_object(q))
        return lf_fail(f->err, "%s: field quantization_config is not an object", f->where);
    if (!lf_field_get(&in, "quant_method"))
        return lf_fail(f->err, "%s: field quantization_config.quant_method is missing", f->where);
    if (lf_field_is_text(&in, "quant_method", "fp8") || lf_field_is_text(&in, "fmt", "e4m3") ||
        lf_field_is_text(&in, "scale_fmt", "ue8m0") ||
        lf_field_is_text(&in, "activation_scheme", "dynamic") || check_block(&in))
        return -1;
    return check_experts(&in);
}
