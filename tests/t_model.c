/* SPDX-License-Identifier: Apache-2.0 */
#include "field.h"
#include "file.h"
#include "model.h"
#include "tap.h"

#include <stdlib.h>

static const char old_form[] =
    "{\"architectures\": [\"DeepseekV4ForCausalLM\"],"
    " \"model_type\": \"deepseek_v4\", \"attention_bias\": false,"
    " \"bos_token_id\": 0, \"eos_token_id\": 1, \"hidden_act\": \"silu\","
    " \"max_position_embeddings\": 1048576,"
    " \"n_shared_experts\": 1, \"norm_topk_prob\": true, \"num_key_value_heads\": 1, \"rms_norm_eps\": 1e-06,"
    " \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16, \"beta_fast\": 32, \"beta_slow\": 1,"
    " \"original_max_position_embeddings\": 65536}, \"rope_theta\": 10000, \"compress_rope_theta\": 160000,"
    " \"routed_scaling_factor\": 1.5, \"scoring_func\": \"sqrtsoftplus\", \"topk_method\": \"noaux_tc\","
    " \"swiglu_limit\": 10.0, \"hc_mult\": 4, \"hc_sinkhorn_iters\": 20, \"hc_eps\": 1e-06,"
    " \"tie_word_embeddings\": false, \"vocab_size\": 96, \"hidden_size\": 64, \"moe_intermediate_size\": 32,"
    " \"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"head_dim\": 32, \"qk_rope_head_dim\": 16,"
    " \"q_lora_rank\": 24, \"o_groups\": 2, \"o_lora_rank\": 16, \"n_routed_experts\": 6,"
    " \"num_experts_per_tok\": 2, \"num_hash_layers\": 1, \"index_n_heads\": 16, \"index_head_dim\": 64,"
    " \"index_topk\": 5, \"sliding_window\": 8, \"compress_ratios\": [0, 4, 128, 4, 0]}";

/* Sets (or, with the value "absent", removes) one field of a document; key is a path with dots. */
static void edit(json_t *root, const char *key, const char *value)
{
    char head[64];
    const char *dot = strchr(key, '.');

    if (dot) {
        snprintf(head, sizeof head, "%.*s", (int)(dot - key), key);
        edit(json_object_get(root, head), dot + 1, value);
    } else if (strcmp(value, "absent") == 0) {
        json_object_del(root, key);
    } else {
        json_object_set_new(root, key, json_loads(value, JSON_DECODE_ANY, NULL));
    }
}

/* Parses `base` after up to three edits "key=value". */
static int parse_edited(lf_model *m, const char *base, const char *const edits[3], lf_err *err)
{
    json_t *root = json_loads(base, 0, NULL);

    for (int i = 0; i < 3 && edits[i]; i++) {
        char key[96];
        const char *eq = strchr(edits[i], '=');
        snprintf(key, sizeof key, "%.*s", (int)(eq - edits[i]), edits[i]);
        edit(root, key, eq + 1);
    }
    char *text = json_dumps(root, 0);
    int rc = lf_model_parse(m, text, strlen(text), "config.json", err);
    free(text);
    json_decref(root);
    return rc;
}

static void check_old(void)
{
    lf_model m;
    lf_err err = { "" };
    int rc = lf_model_parse(&m, old_form, strlen(old_form), "config.json", &err);

    TAP_CHECK(rc == 0, "the old form is read %s", err.text);
    TAP_CHECK(m.layers == 4 && m.kind[0] == LF_SWA && m.kind[1] == LF_C4 && m.kind[2] == LF_C128 &&
                  m.kind[3] == LF_C4,
              "compress_ratios gives the kind of each layer, entries beyond the layers are ignored");
    TAP_CHECK(m.vocab == 96 && m.hidden == 64 && m.max_positions == 1048576 && m.heads == 4 &&
                  m.head_dim == 32 && m.rope_dim == 16 && m.q_rank == 24 && m.o_groups == 2 && m.o_rank == 16,
              "attention sizes");
    TAP_CHECK(m.experts == 6 && m.experts_per_tok == 2 && m.expert_inter == 32 && m.hash_layers == 1,
              "expert sizes");
    TAP_CHECK(m.window == 8 && m.index_heads == 16 && m.index_dim == 64 && m.index_topk == 5 && m.hc == 4 &&
                  m.hc_iters == 20,
              "window, indexer and mHC sizes");
    TAP_CHECK(m.rms_eps == 1e-6f && m.hc_eps == 1e-6f && m.swiglu_limit == 10 && m.routed_scale == 1.5f,
              "constants");
    TAP_CHECK(m.rope_theta == 10000 && m.compress_theta == 160000 && m.yarn.on && m.yarn.factor == 16 &&
                  m.yarn.beta_fast == 32 && m.yarn.beta_slow == 1 && m.yarn.original == 65536,
              "rotary bases and yarn");
    TAP_CHECK(m.bos == 0 && m.eos == 1 && strcmp(m.type, "deepseek_v4") == 0, "token ids and type");
    TAP_CHECK(m.text && strcmp(m.text, old_form) == 0 && strlen(m.sha256) == 64,
              "the text and its digest are kept");
    lf_model_free(&m);
}

static void check_new(void)
{
    const char *srcdir = getenv("srcdir");
    char *path = lf_printf("%s/../data/configs/transformers.json", srcdir ? srcdir : "."), *text = NULL;
    lf_model a, b;
    lf_err err = { "" };
    static const char *const same[3] = { "q_lora_rank=32", "index_head_dim=32", "index_topk=4" };

    TAP_CHECK(lf_file_read(path, 1 << 20, &text, NULL, &err) == 0, "a file that transformers saved is there");
    TAP_CHECK(lf_model_parse(&b, text, strlen(text), path, &err) == 0, "the new form is read %s", err.text);
    TAP_CHECK(parse_edited(&a, old_form, same, &err) == 0, "and the same model in the old form");
    free(a.text);
    free(b.text);
    a.text = b.text = NULL;
    memset(a.sha256, 0, sizeof a.sha256);
    memset(b.sha256, 0, sizeof b.sha256);
    TAP_CHECK(memcmp(a.kind, b.kind, sizeof a.kind) == 0 && a.hash_layers == b.hash_layers,
              "both schedules agree");
    TAP_CHECK(a.rope_dim == b.rope_dim && a.rope_theta == b.rope_theta &&
                  a.compress_theta == b.compress_theta && memcmp(&a.yarn, &b.yarn, sizeof a.yarn) == 0,
              "both rotary descriptions agree");
    TAP_CHECK(memcmp(&a, &b, sizeof a) == 0, "and so does every other field");
    free(text);
    free(path);
}

static const struct {
    const char *what;
    const char *edits[3];
} good[] = {
    { "a list of end-of-text ids", { "eos_token_id=[7, 8]" } },
    { "no token ids", { "bos_token_id=null", "eos_token_id=absent" } },
    { "no rope_scaling", { "rope_scaling=null" } },
    { "rope_type as well as type", { "rope_scaling.rope_type=\"yarn\"" } },
    { "rope_type for type", { "rope_scaling.type=absent", "rope_scaling.rope_type=\"yarn\"" } },
    { "both forms of the schedule that agree",
      { "layer_types=[\"sliding_attention\",\"compressed_sparse_attention\",\"heavily_compressed_attention\","
        "\"compressed_sparse_attention\"]",
        "mlp_layer_types=[\"hash_moe\",\"moe\",\"moe\",\"moe\"]" } },
    { "both forms of the rotary that agree",
      { "rope_parameters={\"main\":{\"rope_type\":\"default\",\"rope_theta\":10000,\"partial_rotary_factor\":0.5},"
        "\"compress\":{\"rope_type\":\"yarn\",\"factor\":16.0,\"original_max_position_embeddings\":65536,"
        "\"rope_theta\":160000,\"attention_factor\":1.0}}" } },
    { "flat rope_parameters",
      { "rope_scaling=absent", "rope_parameters={\"rope_type\":\"yarn\",\"factor\":16,"
                               "\"original_max_position_embeddings\":65536,\"rope_theta\":10000}" } },
    { "no hash layers", { "num_hash_layers=0" } },
    { "fp8 with fp4 experts",
      { "quantization_config={\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\","
        "\"fmt\":\"e4m3\",\"scale_fmt\":\"ue8m0\",\"weight_block_size\":[128,128],"
        "\"expert_dtype\":\"fp4\"}",
        "expert_dtype=\"fp4\"" } },
    { "constants left to their defaults", { "hc_mult=absent", "swiglu_limit=absent", "rope_theta=absent" } },
    { "a prime vocabulary", { "vocab_size=97" } },
    { "MTP and unknown fields", { "num_nextn_predict_layers=1", "some_future_field={\"a\":1}" } },
    { "the window of one", { "sliding_window=1" } },
};

static void check_good(void)
{
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        lf_model m;
        lf_err err = { "" };
        TAP_CHECK(parse_edited(&m, old_form, good[i].edits, &err) == 0, "accepted: %s %s", good[i].what,
                  err.text);
        lf_model_free(&m);
    }
}

/* Every text must name the field. */
static const struct {
    const char *edits[3];
    const char *says[2];
} bad[] = {
    { { "architectures=[\"LlamaForCausalLM\"]" }, { "LlamaForCausalLM", "DeepseekV4ForCausalLM" } },
    { { "architectures=[]" }, { "architectures" } },
    { { "architectures=\"DeepseekV4ForCausalLM\"" }, { "architectures" } },
    { { "model_type=\"deepseek_v3\"" }, { "deepseek_v3", "deepseek_v4" } },
    { { "model_type=absent" }, { "model_type", "missing" } },
    { { "model_type=4" }, { "model_type" } },
    { { "vocab_size=absent" }, { "vocab_size", "missing" } },
    { { "vocab_size=0" }, { "vocab_size" } },
    { { "vocab_size=-5" }, { "vocab_size", "-5" } },
    { { "vocab_size=1e3" }, { "vocab_size" } },
    { { "vocab_size=9007199254740993" }, { "vocab_size", "9007199254740993" } },
    { { "hidden_size=\"64\"" }, { "hidden_size" } },
    { { "hidden_size=2097152" }, { "hidden_size" } },
    { { "num_hidden_layers=0" }, { "num_hidden_layers" } },
    { { "num_hidden_layers=513" }, { "num_hidden_layers", "512" } },
    { { "num_hidden_layers=6" }, { "compress_ratios has 5", "num_hidden_layers is 6" } },
    { { "num_attention_heads=5" }, { "num_attention_heads (5)", "o_groups (2)" } },
    { { "num_attention_heads=65536", "head_dim=16384", "qk_rope_head_dim=64" }, { "head_dim" } },
    { { "o_groups=3" }, { "num_attention_heads (4)", "o_groups (3)" } },
    { { "o_groups=0" }, { "o_groups" } },
    { { "head_dim=16" }, { "qk_rope_head_dim" } },
    { { "qk_rope_head_dim=15" }, { "qk_rope_head_dim is 15", "even" } },
    { { "qk_rope_head_dim=32" }, { "qk_rope_head_dim" } },
    { { "qk_rope_head_dim=0" }, { "qk_rope_head_dim" } },
    { { "index_head_dim=8" }, { "qk_rope_head_dim (16)", "index_head_dim (8)" } },
    { { "index_topk=0" }, { "index_topk" } },
    { { "partial_rotary_factor=0.25" }, { "qk_rope_head_dim", "partial_rotary_factor" } },
    { { "num_experts_per_tok=7" }, { "num_experts_per_tok (7)", "n_routed_experts (6)" } },
    { { "num_experts_per_tok=0" }, { "num_experts_per_tok" } },
    { { "num_hash_layers=5" }, { "num_hash_layers", "4" } },
    { { "num_hash_layers=-1" }, { "num_hash_layers" } },
    { { "n_shared_experts=2" }, { "n_shared_experts", "2" } },
    { { "num_key_value_heads=8" }, { "num_key_value_heads", "8" } },
    { { "scoring_func=\"softmax\"" }, { "scoring_func", "sqrtsoftplus" } },
    { { "topk_method=\"greedy\"" }, { "topk_method", "noaux_tc" } },
    { { "hidden_act=\"gelu\"" }, { "hidden_act", "silu" } },
    { { "norm_topk_prob=false" }, { "norm_topk_prob", "true" } },
    { { "tie_word_embeddings=true" }, { "tie_word_embeddings" } },
    { { "attention_bias=true" }, { "attention_bias" } },
    { { "mlp_bias=1" }, { "mlp_bias" } },
    { { "n_group=8" }, { "n_group" } },
    { { "first_k_dense_replace=3" }, { "first_k_dense_replace" } },
    { { "hc_mult=9" }, { "hc_mult", "8" } },
    { { "hc_sinkhorn_iters=0" }, { "hc_sinkhorn_iters" } },
    { { "rms_norm_eps=0" }, { "rms_norm_eps" } },
    { { "rms_norm_eps=\"1e-6\"" }, { "rms_norm_eps" } },
    { { "hc_eps=-1" }, { "hc_eps" } },
    { { "swiglu_limit=0" }, { "swiglu_limit" } },
    { { "routed_scaling_factor=absent" }, { "routed_scaling_factor", "missing" } },
    { { "sliding_window=0" }, { "sliding_window" } },
    { { "max_position_embeddings=8589934592" }, { "max_position_embeddings" } },
    { { "rope_theta=0" }, { "rope_theta" } },
    { { "bos_token_id=96" }, { "bos_token_id", "vocab_size (96)" } },
    { { "eos_token_id=\"<eos>\"" }, { "eos_token_id" } },
    { { "compress_ratios=[0,4,8,4]" }, { "compress_ratios[2] is 8", "0, 4 and 128" } },
    { { "compress_ratios=[0,4,\"4\",4]" }, { "compress_ratios[2]" } },
    { { "compress_ratios=4" }, { "compress_ratios", "list" } },
    { { "compress_ratios=absent" }, { "compress_ratios", "layer_types" } },
    { { "layer_types=[\"sliding_attention\"]" }, { "layer_types has 1" } },
    { { "layer_types=[\"sliding_attention\",\"compressed_sparse_attention\",\"compressed_sparse_attention\","
        "\"compressed_sparse_attention\"]" },
      { "compress_ratios and layer_types", "layer 2" } },
    { { "compress_ratios=absent", "layer_types=[\"full_attention\",\"a\",\"a\",\"a\"]" },
      { "full_attention" } },
    { { "compress_rates={\"compressed_sparse_attention\":8}" },
      { "compress_rates.compressed_sparse_attention" } },
    { { "compress_rate_hca=64" }, { "compress_rate_hca", "64" } },
    { { "mlp_layer_types=[\"hash_moe\",\"hash_moe\",\"moe\",\"moe\"]" },
      { "num_hash_layers (1)", "mlp_layer_types" } },
    { { "mlp_layer_types=[\"moe\",\"hash_moe\",\"moe\",\"moe\"]" }, { "mlp_layer_types[1]", "first" } },
    { { "mlp_layer_types=[\"hash_moe\",\"dense\",\"moe\",\"moe\"]" }, { "mlp_layer_types[1]", "dense" } },
    { { "rope_scaling=[]" }, { "rope_scaling" } },
    { { "rope_scaling.type=\"linear\"" }, { "rope_scaling.type", "linear" } },
    { { "rope_scaling.rope_type=\"default\"" }, { "rope_scaling.type", "rope_scaling.rope_type" } },
    { { "rope_scaling.factor=absent" }, { "rope_scaling.factor", "missing" } },
    { { "rope_scaling.factor=0.5" }, { "rope_scaling.factor" } },
    { { "rope_scaling.beta_fast=0.5" }, { "beta_fast", "beta_slow" } },
    { { "rope_scaling.original_max_position_embeddings=0" },
      { "rope_scaling.original_max_position_embeddings" } },
    { { "rope_scaling.attention_factor=1.27" }, { "attention_factor" } },
    { { "rope_scaling.truncate=false" }, { "truncate" } },
    { { "rope_parameters={\"main\":{}}" }, { "rope_parameters.compress", "missing" } },
    { { "rope_parameters={\"main\":{\"rope_theta\":5000},\"compress\":{}}" },
      { "rope_theta (10000)", "rope_parameters.main.rope_theta (5000)" } },
    { { "rope_parameters={\"main\":{},\"compress\":{\"rope_theta\":5000}}" },
      { "compress_rope_theta", "rope_parameters.compress.rope_theta" } },
    { { "rope_parameters={\"main\":{},\"compress\":{}}" }, { "rope_scaling and rope_parameters" } },
    { { "rope_parameters={\"main\":{\"type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":9},"
        "\"compress\":{}}" },
      { "rope_parameters.main" } },
    { { "rope_parameters={\"main\":{\"partial_rotary_factor\":0.25},\"compress\":{}}" },
      { "rope_parameters.main.partial_rotary_factor", "qk_rope_head_dim" } },
    { { "quantization_config=8" }, { "quantization_config" } },
    { { "quantization_config={}" }, { "quant_method" } },
    { { "quantization_config={\"quant_method\":\"gptq\"}" }, { "quant_method", "gptq" } },
    { { "quantization_config={\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}" }, { "fmt", "e5m2" } },
    { { "quantization_config={\"quant_method\":\"fp8\",\"scale_fmt\":\"float\"}" },
      { "scale_fmt", "ue8m0" } },
    { { "quantization_config={\"quant_method\":\"fp8\",\"weight_block_size\":[64,128]}" },
      { "weight_block_size" } },
    { { "quantization_config={\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}" },
      { "activation_scheme" } },
    { { "expert_dtype=\"int4\"" }, { "expert_dtype", "int4" } },
};

static void check_bad(void)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lf_model m;
        lf_err err = { "" };
        int rc = parse_edited(&m, old_form, bad[i].edits, &err);
        int named = strstr(err.text, "config.json") && strstr(err.text, bad[i].says[0]) &&
                    (!bad[i].says[1] || strstr(err.text, bad[i].says[1]));
        TAP_CHECK(rc == -1 && named && !strchr(err.text, '\n'), "refused: %s", bad[i].edits[0]);
        if (!named)
            printf("# %s\n", err.text);
        lf_model_free(&m);
    }
}

static void check_not_json(void)
{
    static const char *const texts[] = { "",
                                         "{",
                                         "[]",
                                         "null",
                                         "3",
                                         "{\"vocab_size\": 1, \"vocab_size\": 2}",
                                         "{\"a\": 1} x",
                                         "{\"a\\\n\"}",
                                         "\xff\xfe",
                                         "{\"vocab_size\": 99999999999999999999999}" };
    int wrong = 0;

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        lf_model m;
        lf_err err = { "" };
        TAP_QUIET(wrong,
                  lf_model_parse(&m, texts[i], strlen(texts[i]), "config.json", &err) == -1 && err.text[0] &&
                      !strchr(err.text, '\n'),
                  "text %zu", i);
        lf_model_free(&m);
    }
    TAP_CHECK(wrong == 0, "texts that are no JSON object, or name a field twice, are refused");
    lf_model m;
    lf_err err = { "" };
    TAP_CHECK(lf_model_read(&m, "/nonexistent", &err) == -1 && strstr(err.text, "/nonexistent/config.json"),
              "a missing file is named: %s", err.text);
    TAP_CHECK(strstr(err.text, "nothing is downloaded") != NULL, "and that nothing brings it: %s",
              err.text);
    lf_model_free(&m);
}

int main(void)
{
    check_old();
    check_new();
    check_good();
    check_bad();
    check_not_json();
    TAP_CHECK(strcmp(lf_kind_name(LF_SWA), "swa") == 0 && strcmp(lf_kind_name(LF_C4), "c4") == 0 &&
                  strcmp(lf_kind_name(LF_C128), "c128") == 0 && lf_kind_ratio(LF_C128) == 128,
              "kinds have names");
    return tap_done();
}
