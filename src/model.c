/* SPDX-License-Identifier: Apache-2.0 */
#include "model_parts.h"
#include "file.h"

#include "hash.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* The sizes are bounded so that a product of any three stays far below 2^63. */
enum { MANY = 1 << 20, CONFIG_LIMIT = 16 << 20 };

const char *lf_kind_name(lf_kind k)
{
    return k == LF_C4 ? "c4" : k == LF_C128 ? "c128" : "swa";
}

typedef struct int_rule {
    const char *key;
    size_t at;
    int wide;                              /* int64_t, not int */
    int needed;
    int64_t lo, hi;
} int_rule;

#define NARROW(member) offsetof(lf_model, member), 0
#define WIDE(member) offsetof(lf_model, member), 1

static const int_rule int_rules[] = {
    { "num_hidden_layers", NARROW(layers), 1, 1, LF_MAX_LAYERS },
    { "vocab_size", WIDE(vocab), 1, 1, 1 << 24 },
    { "hidden_size", WIDE(hidden), 1, 1, MANY },
    { "max_position_embeddings", WIDE(max_positions), 1, 1, (int64_t)1 << 32 },
    { "num_attention_heads", NARROW(heads), 1, 1, 1 << 16 },
    { "head_dim", NARROW(head_dim), 1, 4, 1 << 14 },
    { "q_lora_rank", WIDE(q_rank), 1, 1, MANY },
    { "o_groups", NARROW(o_groups), 1, 1, 1 << 16 },
    { "o_lora_rank", WIDE(o_rank), 1, 1, MANY },
    { "n_routed_experts", NARROW(experts), 1, 1, 1 << 16 },
    { "num_experts_per_tok", NARROW(experts_per_tok), 1, 1, 1 << 16 },
    { "moe_intermediate_size", WIDE(expert_inter), 1, 1, MANY },
    { "sliding_window", NARROW(window), 0, 1, MANY },
    { "index_n_heads", NARROW(index_heads), 1, 1, 1 << 14 },
    { "index_head_dim", NARROW(index_dim), 1, 2, 1 << 14 },
    { "index_topk", NARROW(index_topk), 1, 1, MANY },
    { "hc_mult", NARROW(hc), 0, 1, LF_MAX_HC },
    { "hc_sinkhorn_iters", NARROW(hc_iters), 0, 1, 1000 },
};

static int read_ints(lf_model *m, const lf_field *f)
{
    for (size_t i = 0; i < sizeof int_rules / sizeof *int_rules; i++) {
        const int_rule *r = &int_rules[i];
        char *at = (char *)m + r->at;
        int64_t v = r->wide ? *(int64_t *)(void *)at : *(int *)(void *)at;
        if (lf_field_int(f, r->key, r->needed, r->lo, r->hi, &v))
            return -1;
        if (r->wide)
            *(int64_t *)(void *)at = v;
        else
            *(int *)(void *)at = (int)v;
    }
    return 0;
}

static int read_float(const lf_field *f, const char *key, int needed, double lo, double hi, float *out)
{
    double v = (double)*out;

    if (lf_field_real(f, key, needed, lo, hi, &v))
        return -1;
    *out = (float)v;
    return 0;
}

static int read_reals(lf_model *m, const lf_field *f)
{
    if (read_float(f, "rms_norm_eps", 0, 1e-30, 1, &m->rms_eps) ||
        read_float(f, "hc_eps", 0, 1e-30, 1, &m->hc_eps) ||
        read_float(f, "swiglu_limit", 0, 1e-6, 1e30, &m->swiglu_limit) ||
        read_float(f, "routed_scaling_factor", 1, 1e-6, 1e6, &m->routed_scale))
        return -1;
    return 0;
}

/* An id, or (end of text) a list of ids of which the first counts. */
static int read_id(const lf_model *m, const lf_field *f, const char *key, int64_t *out)
{
    const json_t *v = lf_field_get(f, key);
    char shown[64];

    *out = -1;
    if (v && json_is_array(v) && json_array_size(v) > 0)
        v = json_array_get(v, 0);
    if (!v)
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= m->vocab)
        return lf_fail(f->err, "%s: field %s is %s; it must be a token id below vocab_size (%lld)", f->where,
                       key, lf_field_show(lf_field_get(f, key), shown, sizeof shown), (long long)m->vocab);
    *out = (int64_t)json_integer_value(v);
    return 0;
}

/* What the fields must be to one another. */
static int check_shapes(const lf_model *m, const lf_field *f)
{
    if (m->heads % m->o_groups)
        return lf_fail(f->err, "%s: num_attention_heads (%d) is not a multiple of o_groups (%d)", f->where,
                       m->heads, m->o_groups);
    if ((int64_t)m->heads * m->head_dim > 1 << 26)
        return lf_fail(f->err, "%s: num_attention_heads (%d) times head_dim (%d) is more than %d", f->where,
                       m->heads, m->head_dim, 1 << 26);
    if (m->o_groups * m->o_rank > 1 << 26)
        return lf_fail(f->err, "%s: o_groups (%d) times o_lora_rank (%lld) is more than %d", f->where,
                       m->o_groups, (long long)m->o_rank, 1 << 26);
    if (m->experts_per_tok > m->experts)
        return lf_fail(f->err, "%s: num_experts_per_tok (%d) is more than n_routed_experts (%d)", f->where,
                       m->experts_per_tok, m->experts);
    if (m->rope_dim % 2 || m->rope_dim < 2 || m->rope_dim >= m->head_dim)
        return lf_fail(f->err, "%s: qk_rope_head_dim is %d; it must be even, above 0 and below head_dim (%d)",
                       f->where, m->rope_dim, m->head_dim);
    if (m->rope_dim > m->index_dim)
        return lf_fail(f->err, "%s: qk_rope_head_dim (%d) is more than index_head_dim (%d)", f->where,
                       m->rope_dim, m->index_dim);
    return 0;
}

static int fill(lf_model *m, const lf_field *f)
{
    if (lf_model_identity(m, f) || read_ints(m, f) || read_reals(m, f) || lf_model_schedule(m, f) ||
        lf_model_rope(m, f) || check_shapes(m, f) || lf_model_quantization(f))
        return -1;
    return read_id(m, f, "bos_token_id", &m->bos) || read_id(m, f, "eos_token_id", &m->eos) ? -1 : 0;
}

/* Constants of the architecture, the same in every released model: what transformers fills in as well. */
static void set_defaults(lf_model *m)
{
    *m = (lf_model){ .window = 128,
                     .hc = 4,
                     .hc_iters = 20,
                     .rms_eps = 1e-6f,
                     .hc_eps = 1e-6f,
                     .swiglu_limit = 10,
                     .rope_theta = 10000,
                     .compress_theta = 160000,
                     .bos = -1,
                     .eos = -1 };
}

int lf_model_parse(lf_model *m, const char *text, size_t bytes, const char *where, lf_err *err)
{
    json_error_t bad;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &bad);
    lf_field f = { root, where, "", err };

    set_defaults(m);
    if (!root)
        return lf_fail(err, "%s:%d:%d: not JSON: %s", where, bad.line, bad.column, bad.text);
    int rc = json_is_object(root) ? fill(m, &f) : lf_fail(err, "%s: not a JSON object", where);
    json_decref(root);
    if (rc)
        return -1;
    m->text = lf_alloc(bytes + 1);
    memcpy(m->text, text, bytes);
    lf_sha256_hex(text, bytes, m->sha256);
    return 0;
}

static int directory_check(const char *dir, lf_err *err)
{
    struct stat st;
    int none = stat(dir, &st) ? errno == ENOENT || errno == ENOTDIR : !S_ISDIR(st.st_mode);

    return none ? lf_fail(err, "cannot open %s/config.json: there is no such directory; a model is a directory on this "
                          "disk, and nothing is downloaded", dir) : 0;
}

int lf_model_read(lf_model *m, const char *dir, lf_err *err)
{
    char *path = lf_printf("%s/config.json", dir), *text = NULL;
    size_t bytes = 0;
    int rc = directory_check(dir, err) || lf_file_read(path, CONFIG_LIMIT, &text, &bytes, err) ? -1 : 0;

    set_defaults(m);
    if (rc == 0)
        rc = lf_model_parse(m, text, bytes, path, err);
    free(text);
    free(path);
    return rc;
}

void lf_model_free(lf_model *m)
{
    free(m->text);
    m->text = NULL;
}
