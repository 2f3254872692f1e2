/* SPDX-License-Identifier: Apache-2.0 */
#include "synth.h"

#include "model.h"
#include "options.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>

/* What every model of the architecture has. */
static const char common[] =
    "{\"architectures\": [\"DeepseekV4ForCausalLM\"], \"model_type\": \"deepseek_v4\", "
    " \"attention_bias\": false, \"attention_dropout\": 0.0, \"bos_token_id\": 0,"
    " \"eos_token_id\": 1, \"hidden_act\": \"silu\","
    " \"initializer_range\": 0.02, \"max_position_embeddings\": 1048576, \"n_shared_experts\": 1,"
    " \"norm_topk_prob\": true, \"num_key_value_heads\": 1, \"num_nextn_predict_layers\": 0,"
    " \"rms_norm_eps\": 1e-06, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16, \"beta_fast\": 32,"
    " \"beta_slow\": 1, \"original_max_position_embeddings\": 65536}, \"rope_theta\": 10000,"
    " \"compress_rope_theta\": 160000, \"routed_scaling_factor\": 1.5, \"scoring_func\": \"sqrtsoftplus\","
    " \"topk_method\": \"noaux_tc\", \"swiglu_limit\": 10.0, \"hc_mult\": 4, \"hc_sinkhorn_iters\": 20,"
    " \"hc_eps\": 1e-06, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", \"use_cache\": true}";

static const char quantised[] =
    "{\"quantization_config\": {\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\", "
    " \"fmt\": \"e4m3\", \"scale_fmt\": \"ue8m0\", \"weight_block_size\": [128, 128]},"
    " \"expert_dtype\": \"fp4\"}";

/* The schedule is `first`, then 4 and 128 in turn. */
static const struct preset {
    const char *name, *sizes;
    int first[2], firsts;
} presets[] = {
    { "nano",
      "{\"vocab_size\": 96, \"hidden_size\": 64, \"moe_intermediate_size\": 32, \"num_hidden_layers\": 4,"
      " \"num_attention_heads\": 4, \"head_dim\": 32, \"qk_rope_head_dim\": 16, \"q_lora_rank\": 32,"
      " \"o_groups\": 2, \"o_lora_rank\": 16, \"n_routed_experts\": 6, \"num_experts_per_tok\": 2,"
      " \"num_hash_layers\": 1, \"index_n_heads\": 16, \"index_head_dim\": 32, \"index_topk\": 4,"
      " \"sliding_window\": 8}",
      { 0 },
      1 },
    { "mini",
      "{\"vocab_size\": 512, \"hidden_size\": 128, \"moe_intermediate_size\": 64, \"num_hidden_layers\": 6,"
      " \"num_attention_heads\": 8, \"head_dim\": 512, \"qk_rope_head_dim\": 64, \"q_lora_rank\": 64,"
      " \"o_groups\": 2, \"o_lora_rank\": 32, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2,"
      " \"num_hash_layers\": 2, \"index_n_heads\": 16, \"index_head_dim\": 128, \"index_topk\": 16,"
      " \"sliding_window\": 128}",
      { 0 },
      1 },
    { "flash",
      "{\"vocab_size\": 129280, \"hidden_size\": 4096, \"moe_intermediate_size\": 2048,"
      " \"num_hidden_layers\": 43, \"num_attention_heads\": 64, \"head_dim\": 512,"
      " \"qk_rope_head_dim\": 64, \"q_lora_rank\": 1024,"
      " \"o_groups\": 8, \"o_lora_rank\": 1024, \"n_routed_experts\": 256, \"num_experts_per_tok\": 6,"
      " \"num_hash_layers\": 3, \"index_n_heads\": 64, \"index_head_dim\": 128, \"index_topk\": 512,"
      " \"sliding_window\": 128}",
      { 0, 0 },
      2 },
    { "pro",
      "{\"vocab_size\": 129280, \"hidden_size\": 7168, \"moe_intermediate_size\": 3072,"
      " \"num_hidden_layers\": 61, \"num_attention_heads\": 128, \"head_dim\": 512,"
      " \"qk_rope_head_dim\": 64, \"q_lora_rank\": 1536,"
      " \"o_groups\": 16, \"o_lora_rank\": 1024, \"n_routed_experts\": 384, \"num_experts_per_tok\": 6,"
      " \"num_hash_layers\": 3, \"index_n_heads\": 64, \"index_head_dim\": 128, \"index_topk\": 1024,"
      " \"sliding_window\": 128, \"routed_scaling_factor\": 2.5}",
      { 128, 128 },
      2 },
};

/* Fields that may be set although no preset has them. */
static const char *const others[] = {
    "layer_types",       "compress_rates",      "mlp_layer_types", "rope_parameters", "partial_rotary_factor",
    "mlp_bias",          "quantization_config", "expert_dtype",    "dtype",           "pad_token_id",
    "compress_rate_csa", "compress_rate_hca",
};

static const struct preset *find_preset(const char *name, lf_err *err)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(name, presets[i].name) == 0)
            return &presets[i];
    lf_fail(err, "there is no preset \"%.40s\"; nano, mini, flash and pro are there", name);
    return NULL;
}

static void add_fields(json_t *config, const char *text)
{
    json_t *more = json_loads(text, 0, NULL);

    json_object_update(config, more);
    json_decref(more);
}

static int known(const json_t *config, const char *key)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(key, others[i]) == 0)
            return 1;
    return json_object_get(config, key) != NULL;
}

/* As other programs call them, and what all presets have. */
static const char *const elsewhere[][2] = {
    { "num_layers", "num_hidden_layers" }, { "n_layers", "num_hidden_layers" },
    { "num_heads", "num_attention_heads" }, { "n_heads", "num_attention_heads" },
    { "num_experts", "n_routed_experts" }, { "num_local_experts", "n_routed_experts" },
    { "top_k", "num_experts_per_tok" }, { "n_activated_experts", "num_experts_per_tok" },
    { "dim", "hidden_size" }, { "d_model", "hidden_size" },
    { "window_size", "sliding_window" }, { "max_seq_len", "max_position_embeddings" },
};

static const char *field_near(const json_t *config, const char *name)
{
    enum { SHOWN = 128 };
    const char *names[SHOWN];
    json_t *field;
    const char *key;
    int n = 0;

    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (!strcmp(name, elsewhere[i][0]))
            return elsewhere[i][1];
    json_object_foreach((json_t *)(uintptr_t)config, key, field)
        if (n < SHOWN)
            names[n++] = key;
    for (size_t i = 0; i < sizeof others / sizeof *others && n < SHOWN; i++)
        names[n++] = others[i];
    return *name ? lf_options_nearest(name, names, n) : NULL;
}

static int field_refuse(const json_t *config, const char *name, const char *setting, lf_err *err)
{
    const char *near = field_near(config, name);

    return near ? lf_fail(err, "\"%.80s\": there is no such field in config.json; did you mean %s?", setting, near)
                : lf_fail(err, "\"%.80s\": there is no such field in config.json", setting);
}

/* "key=value" or "object.key=value". */
static int set_field(json_t *config, const char *setting, lf_err *err)
{
    const char *eq = strchr(setting, '='), *dot = strchr(setting, '.');
    json_t *in = config;

    if (!eq || eq == setting)
        return lf_fail(err, "\"%.80s\" is not of the form key=value", setting);
    char *key = lf_alloc((size_t)(eq - setting) + 1);
    memcpy(key, setting, (size_t)(eq - setting));
    char *name = key;
    if (dot && dot < eq) {
        key[dot - setting] = 0;
        in = json_object_get(config, key);
        name = key + (dot - setting) + 1;
    }
    int rc = 0;
    if (!json_is_object(in) || !*name || (in == config && !known(config, name)))
        rc = field_refuse(config, in == config ? name : in ? "" : key, setting, err);
    json_t *value = json_loads(eq + 1, JSON_DECODE_ANY, NULL);
    if (!value)
        value = json_string(eq + 1);
    if (rc == 0 && (!value || json_object_set(in, name, value)))
        rc = lf_fail(err, "\"%.80s\": the value is neither JSON nor UTF-8 text", setting);
    json_decref(value);
    free(key);
    return rc;
}

/* One entry more than there are layers, as the released files have for their MTP layer. */
static void add_schedule(json_t *config, const struct preset *p)
{
    json_int_t layers = json_integer_value(json_object_get(config, "num_hidden_layers"));
    json_t *ratios = json_array();

    for (json_int_t l = 0; l < lf_min(layers, LF_MAX_LAYERS); l++)
        json_array_append_new(ratios, json_integer(l < p->firsts         ? p->first[l]
                                                   : (l - p->firsts) % 2 ? 128
                                                                         : 4));
    json_array_append_new(ratios, json_integer(0));
    json_object_set_new(config, "compress_ratios", ratios);
}

static int apply_settings(json_t *config, const lf_synth_options *o, const struct preset *p, lf_err *err)
{
    int scheduled = 0;

    add_schedule(config, p);
    for (int i = 0; i < o->sets; i++) {
        if (set_field(config, o->set[i], err))
            return -1;
        if (strncmp(o->set[i], "num_hidden_layers=", 18) == 0 && !scheduled)
            add_schedule(config, p);
        if (strncmp(o->set[i], "compress_ratios=", 16) == 0)
            scheduled = 1;
        if (strncmp(o->set[i], "layer_types=", 12) == 0)
            json_object_del(config, "compress_ratios");
    }
    return 0;
}

int lf_synth_config(const lf_synth_options *o, char **text, lf_err *err)
{
    const struct preset *p = find_preset(o->preset, err);
    lf_model m;

    if (!p)
        return -1;
    json_t *config = json_object();
    add_fields(config, common);
    add_fields(config, p->sizes);
    if (!o->bf16)
        add_fields(config, quantised);
    int rc = apply_settings(config, o, p, err);
    *text = NULL;
    if (rc == 0) {
        char *dump = json_dumps(config, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
        *text = lf_printf("%s\n", dump);
        free(dump);
        rc = lf_model_parse(&m, *text, strlen(*text), "the settings", err);
        lf_model_free(&m);
    }
    json_decref(config);
    if (rc) {
        free(*text);
        *text = NULL;
    }
    return rc;
}
