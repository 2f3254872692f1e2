/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include "inventory.h"
#include "kvlayout.h"

#include <string.h>

/* Weights by what they do, as a reader of the model's paper would ask. */
typedef enum group {
    EMBEDDING,
    HEAD,
    ATTENTION,
    COMPRESSOR,
    INDEXER,
    ROUTER,
    EXPERTS,
    SHARED,
    MHC,
    NORMS,
    GROUPS
} group;

static const char *const group_name[GROUPS] = { "embedding", "head",   "attention", "compressor",
                                                "indexer",   "router", "experts",   "shared_experts",
                                                "mhc",       "norms" };

static const struct { lf_role first, last; group is; } roles[] = {
    { LF_ROLE_EMBED, LF_ROLE_EMBED, EMBEDDING },
    { LF_ROLE_HEAD, LF_ROLE_HEAD, HEAD },
    { LF_ROLE_NORM, LF_ROLE_NORM, NORMS },
    { LF_ROLE_HC_HEAD_FN, LF_ROLE_HC_FFN_SCALE, MHC },
    { LF_ROLE_ATTN_NORM, LF_ROLE_FFN_NORM, NORMS },
    { LF_ROLE_SINK, LF_ROLE_WO_B, ATTENTION },
    { LF_ROLE_COMP_APE, LF_ROLE_COMP_NORM, COMPRESSOR },
    { LF_ROLE_INDEX_APE, LF_ROLE_INDEX_WEIGHTS, INDEXER },
    { LF_ROLE_GATE, LF_ROLE_TID2EID, ROUTER },
    { LF_ROLE_W1, LF_ROLE_W3, EXPERTS },
    { LF_ROLE_SHARED_W1, LF_ROLE_SHARED_W3, SHARED },
};

typedef struct plan {
    const lf_checkpoint *checkpoint;
    int64_t bytes[GROUPS], total, parameters;
} plan;

static group group_of(lf_role role)
{
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (role >= roles[i].first && role <= roles[i].last)
            return roles[i].is;
    return NORMS;
}

static int item_add(void *arg, const lf_inventory_item *item, lf_err *err)
{
    lf_inventory_found found;
    plan *p = arg;

    if (lf_inventory_find(p->checkpoint, item, &found, err))
        return -1;
    int64_t bytes = lf_inventory_bytes(item, found.store);
    p->bytes[group_of(item->role)] += bytes;
    p->total += bytes;
    p->parameters += item->role == LF_ROLE_TID2EID ? 0 : item->rows * item->cols;
    return 0;
}

/* What a prompt's rows take: so much for every token, and a constant (window and state). */
static double bytes_per_token(const lf_model *m, lf_kv_dtype t)
{
    const int64_t n = 1 << 20;

    return (lf_kv_bytes(m, t, 2 * n) - lf_kv_bytes(m, t, n)) / (double)n;
}

static json_t *plan_json(const plan *p, const lf_model *m, int64_t length)
{
    static const lf_kv_dtype types[] = { LF_KV_FP8, LF_KV_BF16, LF_KV_F32 };
    json_t *weights = json_object(), *kv = json_object(), *layers = json_object();
    int64_t of_kind[3] = { 0, 0, 0 };

    for (int i = 0; i < GROUPS; i++)
        json_object_set_new(weights, group_name[i], json_integer(p->bytes[i]));
    for (int i = 0; i < 3; i++) {
        json_t *o = json_object();
        json_object_set_new(o, "bytes", json_integer((json_int_t)lf_kv_bytes(m, types[i], length)));
        json_object_set_new(o, "bytes_per_token", json_real(bytes_per_token(m, types[i])));
        json_object_set_new(kv, lf_kv_dtype_name(types[i]), o);
    }
    for (int i = 0; i < m->layers; i++)
        of_kind[m->kind[i]]++;
    for (int i = 0; i < 3; i++)
        json_object_set_new(layers, lf_kind_name((lf_kind)i), json_integer(of_kind[i]));
    return json_pack("{s:s, s:s, s:s, s:o, s:I, s:I, s:o, s:I, s:o}", "model_type", m->type, "config_sha256",
                     m->sha256, "weights_id", lf_checkpoint_id(p->checkpoint), "layers", layers, "parameters",
                     (json_int_t)p->parameters, "weight_bytes", (json_int_t)p->total, "weights", weights,
                     "length", (json_int_t)length, "kv", kv);
}

static void plan_text(FILE *out, json_t *o)
{
    const char *key;
    char buf[24];
    json_t *v;

    fprintf(out, "model       %s,", json_string_value(json_object_get(o, "model_type")));
    json_object_foreach(json_object_get(o, "layers"), key, v)
        fprintf(out, " %lld %s", (long long)json_integer_value(v), key);
    fprintf(out, " layers, %lld parameters\n",
            (long long)json_integer_value(json_object_get(o, "parameters")));
    fprintf(out, "\nweights, every rank holds all of them\n");
    json_object_foreach(json_object_get(o, "weights"), key, v)
        if (json_integer_value(v))
            fprintf(out, "  %-14s %12s\n", key, lf_human_bytes(buf, json_number_value(v)));
    fprintf(out, "  %-14s %12s\n", "total",
            lf_human_bytes(buf, json_number_value(json_object_get(o, "weight_bytes"))));
    fprintf(out, "\nKV of a prompt of %lld tokens\n",
            (long long)json_integer_value(json_object_get(o, "length")));
    json_object_foreach(json_object_get(o, "kv"), key, v)
        fprintf(out, "  %-14s %12s  %.1f bytes for each token more\n", key,
                lf_human_bytes(buf, json_number_value(json_object_get(v, "bytes"))),
                json_number_value(json_object_get(v, "bytes_per_token")));
}

static int plan_run(const lf_options *o, const lf_model *m, const lf_checkpoint *c, lf_err *err)
{
    plan p = { .checkpoint = c };
    int64_t length = lf_options_given(o, "length") ? o->length : lf_min(o->length, m->max_positions);

    if (length > m->max_positions)
        return lf_fail(err, "--length %lld: the model has %lld positions", (long long)length,
                       (long long)m->max_positions);
    if (lf_inventory_each(m, item_add, &p, err))
        return -1;
    json_t *all = plan_json(&p, m, length);
    if (o->json) {
        json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
        fputc('\n', stdout);
    } else {
        plan_text(stdout, all);
    }
    json_decref(all);
    return 0;
}

int lf_cmd_plan(const lf_options *o, lf_err *err)
{
    lf_checkpoint *c = NULL;
    lf_model m;

    if (lf_model_read(&m, o->model, err))
        return LF_EXIT_FAILED;
    int bad = lf_checkpoint_open(&c, o->model, err) || plan_run(o, &m, c, err);
    lf_checkpoint_close(c);
    lf_model_free(&m);
    return bad ? LF_EXIT_FAILED : LF_EXIT_DONE;
}
