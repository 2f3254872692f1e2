/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include "kvfile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { KINDS = LF_C128 + 1, SETS = 4 };

/* What is shown apart: window, compressed, index, and all state together. */
static const char *const set_name[SETS] = { "swa", "compressed", "index", "state" };

typedef struct amount {
    int64_t rows, bytes;
} amount;

typedef struct kind_sum {
    int layers;
    amount set[SETS];
    int64_t bytes;
} kind_sum;

typedef struct info {
    const char *path;
    const lf_kv_meta *meta;
    int64_t file_bytes, data_bytes, frontier_bytes, logits_bytes, layer_bytes;
    int parts;
    kind_sum kind[KINDS];
} info;

static amount layer_set(const lf_kv_meta *m, int layer, int set)
{
    amount a = { 0, 0 };
    lf_kv_table t;

    for (int p = 0; p < LF_PARTS; p++) {
        if ((p < 3 ? p : 3) != set || !lf_kv_table_at(m, lf_kv_part_number(m, 0, layer, (lf_kv_part)p), &t))
            continue;
        a.rows += t.rows;
        a.bytes += (int64_t)lf_kv_table_bytes(&t);
    }
    return a;
}

static void add_layers(info *x)
{
    const lf_kv_meta *m = x->meta;

    for (int l = 0; l < m->model->layers; l++) {
        kind_sum *k = &x->kind[m->model->kind[l]];
        k->layers++;
        for (int s = 0; s < SETS; s++) {
            amount a = layer_set(m, l, s);
            k->set[s].rows += a.rows;
            k->set[s].bytes += a.bytes;
            k->bytes += a.bytes;
            x->layer_bytes += a.bytes;
        }
    }
}

static void add_others(info *x)
{
    const lf_kv_meta *m = x->meta;
    int64_t first = (int64_t)m->model->layers * LF_PARTS, logits = lf_kv_logits_number(m, LF_LOGITS_LAST);
    lf_kv_table t;

    for (int64_t i = first; i < lf_kv_tokens_number(m); i++) {
        if (lf_kv_table_at(m, i, &t))
            *(i < logits ? &x->frontier_bytes : &x->logits_bytes) += (int64_t)lf_kv_table_bytes(&t);
    }
}

static void info_make(info *x, const char *path, const lf_kvread *r)
{
    struct stat st;

    memset(x, 0, sizeof *x);
    x->path = path;
    x->meta = lf_kvread_meta(r);
    x->parts = lf_kvread_parts(r);
    x->file_bytes = (stat(path, &st) ? 0 : st.st_size) + lf_kvread_part_bytes(r);
    add_layers(x);
    add_others(x);
    x->data_bytes = x->layer_bytes + x->frontier_bytes + x->logits_bytes + 4 * x->meta->num_tokens +
                    32 * lf_kv_page_count(x->meta->num_tokens);
}

/* ---- for people ---- */

/* Ids and names come from files: nothing in them may steer a terminal. */
static void print_text(const char *name, const char *text)
{
    printf("%-14s ", name);
    for (const char *p = text; *p; p++)
        putchar((unsigned char)*p < 32 || *p == 127 ? '?' : *p);
    putchar('\n');
}

static void print_kind(const info *x, lf_kind kind)
{
    const kind_sum *k = &x->kind[kind];
    char size[24], ratio[24] = "-";

    if (!k->layers)
        return;
    if (lf_kind_ratio(kind))
        snprintf(ratio, sizeof ratio, "%d", lf_kind_ratio(kind));
    printf("  %-6s %6d %6s %12lld %12lld %12lld %12lld  %s\n", lf_kind_name(kind), k->layers, ratio,
           (long long)k->set[0].rows / k->layers, (long long)k->set[1].rows / k->layers,
           (long long)k->set[2].rows / k->layers, (long long)k->set[3].rows / k->layers,
           lf_human_bytes(size, (double)k->bytes));
}

static void print_storage(const info *x)
{
    const lf_kv_meta *m = x->meta;
    int64_t growing = 0;
    char a[24], b[24], c[24];

    for (int k = 0; k < KINDS; k++)
        growing += x->kind[k].set[1].bytes + x->kind[k].set[2].bytes;
    printf("%-14s %s: %.1f bytes a token in compressed and index rows, and %s of window and state\n", "rows",
           lf_human_bytes(a, (double)x->layer_bytes), (double)growing / (double)m->num_tokens,
           lf_human_bytes(b, (double)(x->layer_bytes - growing)));
    if (m->frontier)
        printf("%-14s every %lld tokens, %lld in all, %s\n", "frontiers", (long long)m->frontier,
               (long long)lf_kv_frontiers(m), lf_human_bytes(c, (double)x->frontier_bytes));
    printf("  %-6s %6s %6s %12s %12s %12s %12s  %s\n", "kind", "layers", "ratio", "swa", "compressed", "index", "state",
           "(rows a layer; bytes of all)");
    for (int k = 0; k < KINDS; k++)
        print_kind(x, (lf_kind)k);
}

static void print_info(const info *x)
{
    const lf_kv_meta *m = x->meta;
    char size[24], logits[64];

    lf_kv_logits_text(&m->logits, logits);
    print_text("file", x->path);
    print_text("custom_id", m->custom_id);
    print_text("model", m->model->type);
    print_text("config_sha256", m->model->sha256);
    print_text("weights_id", m->weights_id);
    print_text("tokenizer", m->tokenizer_sha256 ? m->tokenizer_sha256 : "none: token ids were given");
    printf("%-14s %lld\n", "num_tokens", (long long)m->num_tokens);
    print_text("numerics", m->numerics == LF_RELEASED ? "released" : "exact");
    print_text("device", m->device ? m->device : "not recorded");
    print_text("pcp_attention", m->pcp_attention ? m->pcp_attention : "not recorded");
    if (m->tp)
        printf("%-14s %lld\n", "tp", (long long)m->tp);
    else
        print_text("tp", "not recorded");
    print_text("kv_dtype", lf_kv_dtype_name(m->kv_dtype));
    print_storage(x);
    printf("%-14s %s, %s\n", "logits", logits, lf_human_bytes(size, (double)x->logits_bytes));
    printf("%-14s %s\n", "size", lf_human_bytes(size, (double)x->file_bytes));
    if (x->parts)
        printf("%-14s %d file%s of the right size\n", "writer parts", x->parts, lf_s(x->parts));
    else
        print_text("writer parts", "none: one file holds everything");
    print_text("producer", m->producer);
    print_text("created", m->created);
    print_text("complete", "yes");
}

/* ---- for programs ---- */

static json_t *amount_json(const amount *a)
{
    return json_pack("{s:I, s:I}", "rows", (json_int_t)a->rows, "bytes", (json_int_t)a->bytes);
}

static json_t *kinds_json(const info *x)
{
    json_t *all = json_object();

    for (int k = 0; k < KINDS; k++) {
        const kind_sum *sum = &x->kind[k];
        if (!sum->layers)
            continue;
        json_t *one = json_pack("{s:i, s:i, s:I}", "layers", sum->layers, "ratio", lf_kind_ratio((lf_kind)k), "bytes",
                                (json_int_t)sum->bytes);
        for (int s = 0; s < SETS; s++)
            json_object_set_new(one, set_name[s], amount_json(&sum->set[s]));
        json_object_set_new(all, lf_kind_name((lf_kind)k), one);
    }
    return all;
}

static json_t *layers_json(const info *x)
{
    const lf_model *model = x->meta->model;
    json_t *all = json_array();

    for (int l = 0; l < model->layers; l++) {
        json_t *one = json_pack("{s:i, s:s, s:i}", "layer", l, "kind", lf_kind_name(model->kind[l]), "ratio",
                                lf_kind_ratio(model->kind[l]));
        for (int s = 0; s < SETS; s++) {
            amount a = layer_set(x->meta, l, s);
            json_object_set_new(one, set_name[s], amount_json(&a));
        }
        json_array_append_new(all, one);
    }
    return all;
}

/* The identity as the file has it, without the config's text, and then what it adds up to. */
static json_t *info_json(const info *x)
{
    char *identity = lf_kv_identity(x->meta, 1);
    json_t *j = identity ? json_loads(identity, 0, NULL) : NULL;

    free(identity);
    if (!j)
        return NULL;
    json_object_del(j, "config");
    if (!x->meta->tokenizer_sha256)
        json_object_set_new(j, "tokenizer_sha256", json_null());
    if (!x->meta->device)
        json_object_set_new(j, "device", json_null());
    if (!x->meta->pcp_attention)
        json_object_set_new(j, "pcp_attention", json_null());
    if (!x->meta->tp)
        json_object_set_new(j, "tp", json_null());
    json_t *path = json_string(x->path);
    json_object_set_new(j, "file", path ? path : json_null());
    json_object_set_new(j, "complete", json_true());
    json_object_set_new(j, "file_bytes", json_integer(x->file_bytes));
    json_object_set_new(j, "data_bytes", json_integer(x->data_bytes));
    json_object_set_new(j, "logits_bytes", json_integer(x->logits_bytes));
    json_object_set_new(j, "frontiers", json_integer(lf_kv_frontiers(x->meta)));
    json_object_set_new(j, "frontier_bytes", json_integer(x->frontier_bytes));
    json_object_set_new(j, "parts", json_integer(x->parts));
    json_object_set_new(j, "kinds", kinds_json(x));
    json_object_set_new(j, "layers", layers_json(x));
    return j;
}

static int print_json(const info *x, lf_err *err)
{
    json_t *j = info_json(x);
    int bad = !j || json_dumpf(j, stdout, JSON_INDENT(2));

    json_decref(j);
    putchar('\n');
    return bad ? lf_fail(err, "%s: cannot be shown as JSON", x->path) : 0;
}

int lf_cmd_info(const lf_options *o, lf_err *err)
{
    lf_kvread *r;
    info x;
    int rc = 0;

    if (lf_kvread_open(&r, o->operands.v[0], err))
        return LF_EXIT_FAILED;
    info_make(&x, o->operands.v[0], r);
    if (o->json)
        rc = print_json(&x, err);
    else
        print_info(&x);
    lf_kvread_close(r);
    return rc ? LF_EXIT_FAILED : LF_EXIT_DONE;
}
