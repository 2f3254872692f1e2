/* SPDX-License-Identifier: Apache-2.0 */
#include "kvread_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

size_t lf_kv_table_bytes(const lf_kv_table *t)
{
    size_t row = 0;

    for (int i = 0; i < t->pieces; i++)
        row += lf_kv_piece_row_bytes(&t->piece[i]);
    return row * (size_t)t->rows;
}

/* ---- metadata ---- */

json_t *lf_kvread_sealed(hid_t obj, const char *name, json_type type, lf_err *err)
{
    char *text = NULL;
    json_error_t why;

    if (lf_h5_get_sealed(obj, name, &text, err))
        return NULL;
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (j && json_typeof(j) == type)
        return j;
    json_decref(j);
    lf_fail(err, "attribute %s is not the JSON it should be", name);
    return NULL;
}

static const char *text_of(lf_kvread *r, const char *key, lf_err *err)
{
    const char *s = json_string_value(json_object_get(r->identity, key));

    if (!s)
        lf_fail(err, "%s: the identity has no text %s", r->path, key);
    return s;
}

static int number_of(lf_kvread *r, const char *key, int64_t *out, lf_err *err)
{
    json_t *j = json_object_get(r->identity, key);

    if (!json_is_integer(j))
        return lf_fail(err, "%s: the identity has no integer %s", r->path, key);
    *out = json_integer_value(j);
    return 0;
}

static int format_check(lf_kvread *r, lf_err *err)
{
    int64_t version = 0, complete = 0;

    if (!lf_h5_has_attribute(r->file, "format") || !lf_h5_has_attribute(r->file, "identity"))
        return lf_fail(err, "%s is not a longfill KV file: it has no attributes format and identity", r->path);
    if (lf_h5_has_attribute(r->file, "writer"))
        return lf_fail(err, "%s is the part of one writer; open the .h5 file beside its directory", r->path);
    r->identity = lf_kvread_sealed(r->file, "identity", JSON_OBJECT, err);
    if (!r->identity)
        return lf_fail_in(err, "%s", r->path);
    const char *format = text_of(r, "format", err);
    if (!format || strcmp(format, "longfill-kv"))
        return lf_fail(err, "%s is not a longfill KV file: its format is not \"longfill-kv\"", r->path);
    if (number_of(r, "format_version", &version, err))
        return -1;
    if (version != LF_KV_VERSION)
        return lf_fail(err, "%s is a KV file of version %lld; this program reads version %d", r->path,
                       (long long)version, LF_KV_VERSION);
    if (!lf_h5_has_attribute(r->file, "complete"))
        return lf_fail(err, "%s is incomplete: it has no attribute `complete`; run the prompt again", r->path);
    if (lf_h5_get_i64(r->file, "complete", &complete, err))
        return lf_fail_in(err, "%s", r->path);
    return complete == 1 ? 0 : lf_fail(err, "%s is incomplete; run the prompt again", r->path);
}

static int parse_choices(lf_kvread *r, lf_err *err)
{
    lf_kv_meta *m = &r->meta;
    const char *numerics = text_of(r, "numerics", err), *dtype = text_of(r, "kv_dtype", err);
    const char *logits = text_of(r, "logits", err);

    if (!numerics || !dtype || !logits)
        return -1;
    if (strcmp(numerics, "exact") && strcmp(numerics, "released"))
        return lf_fail(err, "%s: numerics is \"%.40s\"; exact and released are known", r->path, numerics);
    m->numerics = numerics[0] == 'r' ? LF_RELEASED : LF_EXACT;
    m->kv_dtype = LF_KV_AUTO;
    for (lf_kv_dtype t = LF_KV_FP8; t <= LF_KV_F32; t++) {
        if (!strcmp(dtype, lf_kv_dtype_name(t)))
            m->kv_dtype = t;
    }
    if (m->kv_dtype == LF_KV_AUTO)
        return lf_fail(err, "%s: kv_dtype is \"%.40s\"; fp8, bf16 and f32 are known", r->path, dtype);
    if (lf_kv_logits_parse(logits, &m->logits) || m->logits.topk > r->model.vocab)
        return lf_fail(err, "%s: logits is \"%.60s\", which names no set of logits", r->path, logits);
    return 0;
}

/* How the file was made: one of two words, or NULL, as files of before do not say. */
static int parse_made(const char **word, lf_kvread *r, const char *key, const char *one, const char *other, lf_err *err)
{
    *word = NULL;
    if (json_object_get(r->identity, key) && !(*word = text_of(r, key, err)))
        return -1;
    if (*word && strcmp(*word, one) && strcmp(*word, other))
        return lf_fail(err, "%s: %s is \"%.40s\"; %s and %s are known", r->path, key, *word, one, other);
    return 0;
}

static int parse_numbers(lf_kvread *r, lf_err *err)
{
    lf_kv_meta *m = &r->meta;

    if (number_of(r, "num_tokens", &m->num_tokens, err) || number_of(r, "frontier", &m->frontier, err) ||
        (json_object_get(r->identity, "tp") && number_of(r, "tp", &m->tp, err)))
        return -1;
    if (m->tp < 0)
        return lf_fail(err, "%s: tp is %lld; it is 1 or more", r->path, (long long)m->tp);
    if (m->num_tokens < 1 || m->num_tokens > r->model.max_positions)
        return lf_fail(err, "%s: num_tokens is %lld; the model has 1 to %lld positions", r->path,
                       (long long)m->num_tokens, (long long)r->model.max_positions);
    if (m->frontier < 0 || m->frontier % 128)
        return lf_fail(err, "%s: frontier is %lld, not a multiple of 128", r->path, (long long)m->frontier);
    return 0;
}

static int parse_model(lf_kvread *r, lf_err *err)
{
    const char *config = text_of(r, "config", err), *want = text_of(r, "config_sha256", err);
    const char *type = text_of(r, "model_type", err);
    char sha[65];

    if (!config || !want || !type)
        return -1;
    lf_sha256_hex(config, strlen(config), sha);
    if (strcmp(sha, want))
        return lf_fail(err, "%s: the config text does not have the sha256 that config_sha256 names", r->path);
    char *where = lf_printf("%s: config", r->path);
    int rc = lf_model_parse(&r->model, config, strlen(config), where, err);
    free(where);
    if (rc)
        return -1;
    r->have_model = 1;
    return strcmp(r->model.type, type) ? lf_fail(err, "%s: model_type is not that of the config", r->path) : 0;
}

static int read_meta(lf_kvread *r, lf_err *err)
{
    lf_kv_meta *m = &r->meta;

    if (format_check(r, err) || parse_model(r, err))
        return -1;
    m->model = &r->model;
    m->custom_id = text_of(r, "custom_id", err);
    m->weights_id = text_of(r, "weights_id", err);
    m->producer = text_of(r, "producer", err);
    m->created = text_of(r, "created", err);
    m->tokenizer_sha256 = json_string_value(json_object_get(r->identity, "tokenizer_sha256"));
    if (!m->custom_id || !m->weights_id || !m->producer || !m->created)
        return -1;
    return parse_choices(r, err) || parse_made(&m->device, r, "device", "cpu", "cuda", err) ||
           parse_made(&m->pcp_attention, r, "pcp_attention", "gather", "merge", err) || parse_numbers(r, err) ? -1 : 0;
}

/* ---- open and close ---- */

hid_t lf_kvread_file(const char *path, lf_err *err)
{
    struct stat st;

    lf_h5_setup();
    if (stat(path, &st)) {
        lf_fail(err, "cannot open %s: %s", path, strerror(errno));
        return -1;
    }
    if (!S_ISREG(st.st_mode)) {
        lf_fail(err, "%s is not a regular file%s", path,
                S_ISDIR(st.st_mode) ? "; of a directory give the files, OUT/kv/*.h5" : "");
        return -1;
    }
    hid_t access = lf_h5_access(), file = H5Fopen(path, H5F_ACC_RDONLY, access);
    if (file < 0)
        lf_h5_fail(err, "%s is not a readable HDF5 file", path);
    H5Pclose(access);
    return file;
}

int lf_kvread_open(lf_kvread **out, const char *path, lf_err *err)
{
    lf_kv_tail tail = lf_kvtail_of(path);

    if (tail == LF_TAIL_MASTER && lf_kvtail_check(path, err))
        return -1;
    hid_t file = lf_kvread_file(path, err);
    if (file < 0)
        return -1;
    lf_kvread *r = lf_alloc(sizeof *r);
    r->path = lf_strdup(path);
    r->file = file;
    r->tail = tail;
    if (read_meta(r, err) || lf_kvread_list(r, err)) {
        lf_kvread_close(r);
        return -1;
    }
    *out = r;
    return 0;
}

void lf_kvread_close(lf_kvread *r)
{
    if (!r)
        return;
    if (r->file >= 0)
        H5Fclose(r->file);
    json_decref(r->identity);
    json_decref(r->list);
    if (r->have_model)
        lf_model_free(&r->model);
    free(r->path);
    free(r);
}

int lf_kvread_sealed_whole(const lf_kvread *r)
{
    return r->tail != LF_TAIL_NONE;
}

const lf_kv_meta *lf_kvread_meta(const lf_kvread *r)
{
    return &r->meta;
}
