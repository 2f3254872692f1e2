/* SPDX-License-Identifier: Apache-2.0 */
#include "kvschema.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOGITS_KINDS = LF_LOGITS_LOGPROB + 1 };

size_t lf_kv_piece_row_bytes(const lf_kv_piece *p)
{
    return lf_elem_bytes(p->elem) * (size_t)(p->cols < 0 ? 1 : p->cols);
}

int64_t lf_kv_frontiers(const lf_kv_meta *m)
{
    return m->frontier > 0 ? (m->num_tokens - 1) / m->frontier : 0;
}

int64_t lf_kv_part_number(const lf_kv_meta *m, int64_t position, int layer, lf_kv_part part)
{
    int64_t f = position ? position / m->frontier : 0;

    return (f * m->model->layers + layer) * LF_PARTS + part;
}

static int64_t part_tables(const lf_kv_meta *m)
{
    return (1 + lf_kv_frontiers(m)) * m->model->layers * LF_PARTS;
}

int64_t lf_kv_logits_number(const lf_kv_meta *m, lf_logits_kind kind)
{
    return part_tables(m) + kind;
}

int64_t lf_kv_tokens_number(const lf_kv_meta *m)
{
    return part_tables(m) + LOGITS_KINDS;
}

int64_t lf_kv_pages_number(const lf_kv_meta *m)
{
    return part_tables(m) + LOGITS_KINDS + 1;
}

int64_t lf_kv_table_count(const lf_kv_meta *m)
{
    return part_tables(m) + LOGITS_KINDS + 2;
}

static void one_piece(lf_kv_table *t, const char *suffix, lf_elem elem, int64_t cols, size_t at, const char *label)
{
    lf_kv_piece *p = &t->piece[t->pieces++];

    *p = (lf_kv_piece){ .suffix = suffix, .elem = elem, .cols = cols, .at = at, .label = label };
}

static void fp8_pieces(lf_kv_table *t, const lf_model *m)
{
    one_piece(t, "_nope", LF_ELEM_U8, m->head_dim - m->rope_dim, 0, "channel");
    one_piece(t, "_scale", LF_ELEM_U8, lf_fp8_groups(m), lf_fp8_scale_at(m), "group");
    one_piece(t, "_rope", LF_ELEM_BF16, m->rope_dim, lf_fp8_rope_at(m), "channel");
    t->piece[0].dtype = "float8_e4m3fn";
    t->piece[1].dtype = "float8_e8m0fnu";
}

static void fp4_pieces(lf_kv_table *t, int64_t width)
{
    one_piece(t, "_codes", LF_ELEM_U8, width / 2, 0, "byte");
    one_piece(t, "_scale", LF_ELEM_U8, lf_ceil_div(width, 32), (size_t)(width / 2), "group");
    t->piece[0].dtype = "float4_e2m1fn";
    t->piece[1].dtype = "float8_e8m0fnu";
}

static void part_pieces(lf_kv_table *t, const lf_model *m, lf_row_fmt fmt, int64_t width)
{
    t->row_bytes = lf_row_bytes(m, fmt, width);
    if (fmt == LF_ROW_FP8)
        fp8_pieces(t, m);
    else if (fmt == LF_ROW_FP4)
        fp4_pieces(t, width);
    else
        one_piece(t, "", fmt == LF_ROW_BF16 ? LF_ELEM_BF16 : LF_ELEM_F32, width, 0, "channel");
}

static int part_table(const lf_kv_meta *m, int64_t i, lf_kv_table *t)
{
    lf_kv_part part = (lf_kv_part)(i % LF_PARTS);
    int layer = (int)(i / LF_PARTS % m->model->layers);
    int64_t at = i / LF_PARTS / m->model->layers * m->frontier, tokens = at ? at : m->num_tokens;
    lf_kind kind = m->model->kind[layer];

    if (!lf_part_present(kind, part, tokens) || (at && (part == LF_PART_COMPRESSED || part == LF_PART_INDEX)))
        return 0;
    if (at)
        snprintf(t->path, sizeof t->path, "/frontiers/%lld/layers/%03d/%s", (long long)at, layer, lf_part_path(part));
    else
        snprintf(t->path, sizeof t->path, "/layers/%03d/%s", layer, lf_part_path(part));
    t->rows = lf_part_rows(m->model, kind, part, tokens);
    t->label = part == LF_PART_SWA ? "position" : part <= LF_PART_INDEX ? "block" : "token";
    if (part == LF_PART_SWA)
        t->first_position = tokens - t->rows;
    t->hadamard = part == LF_PART_INDEX && (m->numerics == LF_RELEASED || m->kv_dtype == LF_KV_FP8);
    part_pieces(t, m->model, lf_part_fmt(part, m->kv_dtype), lf_part_width(m->model, kind, part));
    return 1;
}

static void logits_table(lf_kv_table *t, const char *name, int64_t rows, lf_elem elem, int64_t cols, const char *label)
{
    snprintf(t->path, sizeof t->path, "/logits/%s", name);
    t->rows = rows;
    t->label = "position";
    one_piece(t, "", elem, cols, 0, label);
    t->row_bytes = lf_kv_piece_row_bytes(&t->piece[0]);
}

static int logits_table_at(const lf_kv_meta *m, int64_t kind, lf_kv_table *t)
{
    const lf_logits_want *w = &m->logits;

    switch (kind) {
    case LF_LOGITS_LAST:
        logits_table(t, "last", m->model->vocab, LF_ELEM_F32, -1, NULL);
        t->label = "token_id";
        return w->last;
    case LF_LOGITS_ALL:
        logits_table(t, "all", m->num_tokens, LF_ELEM_F32, m->model->vocab, "token_id");
        return w->all;
    case LF_LOGITS_TOPK_IDS:
        logits_table(t, "topk_ids", m->num_tokens, LF_ELEM_I32, w->topk, "rank");
        return w->topk > 0;
    case LF_LOGITS_TOPK_VALUES:
        logits_table(t, "topk_values", m->num_tokens, LF_ELEM_F32, w->topk, "rank");
        return w->topk > 0;
    default:
        logits_table(t, "logprob", m->num_tokens, LF_ELEM_F32, -1, NULL);
        return w->logprob;
    }
}

int lf_kv_table_at(const lf_kv_meta *m, int64_t i, lf_kv_table *t)
{
    int64_t parts = part_tables(m);

    memset(t, 0, sizeof *t);
    t->first_position = -1;
    if (i < parts)
        return part_table(m, i, t);
    if (i < parts + LOGITS_KINDS)
        return logits_table_at(m, i - parts, t);
    if (i == parts + LOGITS_KINDS) {
        strcpy(t->path, "/tokens");
        t->rows = m->num_tokens;
        t->label = "position";
        one_piece(t, "", LF_ELEM_U32, -1, 0, NULL);
    } else {
        strcpy(t->path, "/page_hash");
        t->rows = lf_kv_page_count(m->num_tokens);
        t->label = "page";
        one_piece(t, "", LF_ELEM_U8, 32, 0, "byte");
    }
    t->row_bytes = lf_kv_piece_row_bytes(&t->piece[0]);
    return 1;
}

int64_t lf_kv_page_count(int64_t tokens)
{
    return lf_ceil_div(tokens, LF_PAGE);
}

void lf_kv_page_hash(const uint32_t *ids, int64_t tokens, uint8_t *out)
{
    for (int64_t at = 0; at < tokens; at += LF_PAGE, out += 32) {
        lf_sha256 s;
        lf_sha256_init(&s);
        if (at)
            lf_sha256_add(&s, out - 32, 32);
        lf_sha256_add(&s, ids + at, 4 * (size_t)lf_min(LF_PAGE, tokens - at));
        lf_sha256_end(&s, out);
    }
}

void lf_kv_logits_text(const lf_logits_want *w, char text[64])
{
    char topk[32] = "";

    if (w->topk > 0)
        snprintf(topk, sizeof topk, ",topk:%d", w->topk);
    snprintf(text, 64, "%s%s%s%s", w->last ? ",last" : "", w->all ? ",all" : "", topk, w->logprob ? ",logprob" : "");
    if (text[0])
        memmove(text, text + 1, strlen(text));
    else
        strcpy(text, "none");
}

static int logits_word(const char *word, size_t n, lf_logits_want *w)
{
    if (n == 4 && !memcmp(word, "last", n)) {
        w->last = 1;
    } else if (n == 3 && !memcmp(word, "all", n)) {
        w->all = 1;
    } else if (n == 7 && !memcmp(word, "logprob", n)) {
        w->logprob = 1;
    } else if (n > 5 && n < 15 && !memcmp(word, "topk:", 5)) {
        char *end;
        long k = strtol(word + 5, &end, 10);
        if (end != word + n || k < 1 || k > INT32_MAX)
            return -1;
        w->topk = (int)k;
    } else {
        return -1;
    }
    return 0;
}

int lf_kv_logits_parse(const char *text, lf_logits_want *w)
{
    memset(w, 0, sizeof *w);
    if (!strcmp(text, "none"))
        return 0;
    for (;; text++) {
        size_t n = strcspn(text, ",");
        if (logits_word(text, n, w))
            return -1;
        text += n;
        if (!*text)
            return 0;
    }
}

char *lf_kv_identity(const lf_kv_meta *m, int all)
{
    char logits[64];

    lf_kv_logits_text(&m->logits, logits);
    json_t *j = json_pack("{s:s, s:i, s:s, s:I, s:s, s:s, s:s, s:s, s:s, s:s*, s:s, s:I}", "format", "longfill-kv",
                          "format_version", LF_KV_VERSION, "custom_id", m->custom_id, "num_tokens",
                          (json_int_t)m->num_tokens, "numerics", m->numerics == LF_RELEASED ? "released" : "exact",
                          "kv_dtype", lf_kv_dtype_name(m->kv_dtype), "model_type", m->model->type, "config_sha256",
                          m->model->sha256, "weights_id", m->weights_id, "tokenizer_sha256", m->tokenizer_sha256,
                          "logits", logits, "frontier", (json_int_t)m->frontier);
    if (j && all && ((m->device && json_object_set_new(j, "device", json_string(m->device))) ||
                     (m->pcp_attention && json_object_set_new(j, "pcp_attention", json_string(m->pcp_attention))) ||
                     (m->tp && json_object_set_new(j, "tp", json_integer((json_int_t)m->tp))) ||
                     json_object_set_new(j, "producer", json_string(m->producer)) ||
                     json_object_set_new(j, "created", json_string(m->created)) ||
                     json_object_set_new(j, "config", json_string(m->model->text)))) {
        json_decref(j);
        return NULL;
    }
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text;
}
