/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_fixture: small models and rows that any order of writing reproduces, for the tests of the KV file.
 */
#ifndef LF_KV_FIXTURE_H
#define LF_KV_FIXTURE_H

#include "../src/kvfile.h"
#include "file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct fixture {
    lf_model model;
    lf_kv_meta meta;
    char dir[64], path[128];
} fixture;

/* "nano": head_dim 32, window 8.  "mini": the released head geometry. */
static inline int fixture_model(lf_model *m, int mini, lf_err *err)
{
    char *text = lf_printf(
        "{\"architectures\": [\"DeepseekV4ForCausalLM\"], \"model_type\": \"deepseek_v4\", \"bos_token_id\": 0,"
        "\"eos_token_id\": 1, \"max_position_embeddings\": 1048576, \"n_shared_experts\": 1, \"norm_topk_prob\": true,"
        "\"num_key_value_heads\": 1, \"rms_norm_eps\": 1e-06, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16,"
        "\"beta_fast\": 32, \"beta_slow\": 1, \"original_max_position_embeddings\": 65536}, \"rope_theta\": 10000,"
        "\"compress_rope_theta\": 160000, \"routed_scaling_factor\": 1.5, \"scoring_func\": \"sqrtsoftplus\","
        "\"topk_method\": \"noaux_tc\", \"swiglu_limit\": 10.0, \"hc_mult\": 4, \"hc_sinkhorn_iters\": 20,"
        "\"hc_eps\": 1e-06, \"tie_word_embeddings\": false, \"hidden_act\": \"silu\", \"vocab_size\": 96,"
        "\"hidden_size\": 64, \"moe_intermediate_size\": 32, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,"
        "\"head_dim\": %d, \"qk_rope_head_dim\": %d, \"q_lora_rank\": 32, \"o_groups\": 2, \"o_lora_rank\": 16,"
        "\"n_routed_experts\": 6, \"num_experts_per_tok\": 2, \"num_hash_layers\": 1, \"index_n_heads\": 16,"
        "\"index_head_dim\": %d, \"index_topk\": 4, \"sliding_window\": %d, \"compress_ratios\": [0, 4, 128, 4]}",
        mini ? 512 : 32, mini ? 64 : 16, mini ? 128 : 32, mini ? 128 : 8);
    int rc = lf_model_parse(m, text, strlen(text), "fixture", err);

    free(text);
    return rc;
}

static inline int fixture_begin(fixture *x, int mini, int64_t tokens, lf_kv_dtype dtype, lf_err *err)
{
    memset(x, 0, sizeof *x);
    if (fixture_model(&x->model, mini, err))
        return -1;
    strcpy(x->dir, "/tmp/lf-kvfile-XXXXXX");
    if (!mkdtemp(x->dir))
        return lf_fail(err, "mkdtemp");
    snprintf(x->path, sizeof x->path, "%s/a.h5", x->dir);
    x->meta = (lf_kv_meta){ .custom_id = "fixture-1", .num_tokens = tokens, .numerics = LF_RELEASED,
                            .kv_dtype = dtype, .model = &x->model, .weights_id = "0123abcd",
                            .device = "cuda", .pcp_attention = "merge", .tp = 2, .producer = "longfill test",
                            .created = "2026-01-31T12:00:00Z", .logits = { .last = 1 } };
    return 0;
}

/* Files left in the directory; removes them and it. */
static inline int fixture_end(fixture *x)
{
    DIR *d = opendir(x->dir);
    int n = 0;

    for (struct dirent *e; d && (e = readdir(d));) {
        char path[400];
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", x->dir, e->d_name);
        unlink(path);
        n++;
    }
    if (d)
        closedir(d);
    rmdir(x->dir);
    lf_model_free(&x->model);
    return n;
}

static inline uint32_t fixture_mix(uint64_t a)
{
    a ^= a >> 33;
    a *= 0xff51afd7ed558ccdull;
    a ^= a >> 33;
    a *= 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(a >> 32);
}

/* Row `row` of a table: finite values, every e8m0 in 1..254; padding bytes zero. */
static inline void fixture_row(const lf_kv_table *t, int64_t number, int64_t row, uint8_t *out)
{
    memset(out, 0, t->row_bytes);
    for (int i = 0; i < t->pieces; i++) {
        const lf_kv_piece *p = &t->piece[i];
        int64_t n = p->cols < 0 ? 1 : p->cols;
        for (int64_t k = 0; k < n; k++) {
            uint32_t r = fixture_mix(((uint64_t)number << 40) + ((uint64_t)row << 16) + (uint64_t)(i * 5000 + k));
            if (p->elem == LF_ELEM_U8) {
                uint8_t b = p->dtype && !strcmp(p->dtype, "float8_e8m0fnu") ? (uint8_t)(1 + r % 254) : (uint8_t)r;
                out[p->at + (size_t)k] = b;
            } else if (p->elem == LF_ELEM_BF16) {
                uint16_t b = (uint16_t)((r & 0x7f80) == 0x7f80 ? r & 0xbfff : r);
                memcpy(out + p->at + 2 * k, &b, 2);
            } else {
                uint32_t w = (r & 0x7f800000) == 0x7f800000 ? r & 0xbfffffff : r;
                memcpy(out + p->at + 4 * k, &w, 4);
            }
        }
    }
}

/* Rows row0 .. row0+rows-1 of a table, owned by the caller. */
static inline uint8_t *fixture_rows(const lf_kv_table *t, int64_t number, int64_t row0, int64_t rows)
{
    uint8_t *b = lf_alloc(t->row_bytes * (size_t)rows);

    for (int64_t r = 0; r < rows; r++)
        fixture_row(t, number, row0 + r, b + (size_t)r * t->row_bytes);
    return b;
}

static inline uint32_t fixture_token(const lf_kv_meta *m, int64_t i)
{
    return fixture_mix((uint64_t)i + 77) % (uint32_t)m->model->vocab;
}

static inline int fixture_put_tokens(lf_kvfile *f, const lf_kv_meta *m, lf_err *err)
{
    uint32_t *ids = lf_alloc(4 * (size_t)m->num_tokens);

    for (int64_t i = 0; i < m->num_tokens; i++)
        ids[i] = fixture_token(m, i);
    int rc = lf_kvfile_put_tokens(f, ids, err);
    free(ids);
    return rc;
}

/* Puts rows of table `number`, which is one of the parts' or the logits'. */
static inline int fixture_put(lf_kvfile *f, const lf_kv_meta *m, int64_t number, int64_t row0, int64_t rows,
                              lf_err *err)
{
    lf_kv_table t;
    int64_t logits = lf_kv_logits_number(m, LF_LOGITS_LAST), per = (int64_t)m->model->layers * LF_PARTS;
    int rc;

    lf_kv_table_at(m, number, &t);
    uint8_t *b = fixture_rows(&t, number, row0, rows);
    if (number == logits)
        rc = lf_kvfile_put_logits(f, LF_LOGITS_LAST, 0, 1, b, err);
    else if (number > logits)
        rc = lf_kvfile_put_logits(f, (lf_logits_kind)(number - logits), row0, rows, b, err);
    else
        rc = lf_kvfile_put_at(f, number / per * m->frontier, (int)(number % per / LF_PARTS),
                              (lf_kv_part)(number % LF_PARTS), row0, rows, b, err);
    free(b);
    return rc;
}

/* Writes everything but table `skip` (-1: everything) whole, in table order, the tokens last. */
static inline int fixture_write(fixture *x, int64_t skip, lf_err *err)
{
    lf_kvfile *f;
    lf_kv_table t;

    if (lf_kvfile_create(&f, x->path, &x->meta, err))
        return -1;
    for (int64_t i = 0; i < lf_kv_tokens_number(&x->meta); i++) {
        if (i != skip && lf_kv_table_at(&x->meta, i, &t) && t.rows &&
            fixture_put(f, &x->meta, i, 0, t.rows, err)) {
            lf_kvfile_abandon(f);
            return -1;
        }
    }
    if (skip != lf_kv_tokens_number(&x->meta) && fixture_put_tokens(f, &x->meta, err)) {
        lf_kvfile_abandon(f);
        return -1;
    }
    return lf_kvfile_finish(f, NULL, err);
}

static inline int fixture_verify(const char *path, lf_kv_report *report, lf_err *err)
{
    lf_kvread *r;

    if (lf_kvread_open(&r, path, err))
        return -1;
    int rc = lf_kvread_verify(r, LF_CHECK_BYTES, report, err);
    lf_kvread_close(r);
    return rc;
}

static inline int fixture_read(lf_kvread *r, int64_t number, int64_t row0, int64_t rows, void *out, lf_err *err)
{
    const lf_kv_meta *m = lf_kvread_meta(r);
    int64_t logits = lf_kv_logits_number(m, LF_LOGITS_LAST), per = (int64_t)m->model->layers * LF_PARTS;

    if (number == logits)
        return lf_kvread_logits(r, LF_LOGITS_LAST, 0, 1, out, err);
    if (number > logits)
        return lf_kvread_logits(r, (lf_logits_kind)(number - logits), row0, rows, out, err);
    return lf_kvread_rows(r, number / per * m->frontier, (int)(number % per / LF_PARTS),
                          (lf_kv_part)(number % LF_PARTS), row0, rows, out, err);
}

/* Tables of the file that are not as fixture_row makes them. */
static inline int fixture_differs(lf_kvread *r)
{
    const lf_kv_meta *m = lf_kvread_meta(r);
    lf_kv_table t;
    lf_err err;
    int bad = 0;

    for (int64_t i = 0; i < lf_kv_tokens_number(m); i++) {
        if (!lf_kv_table_at(m, i, &t))
            continue;
        uint8_t *want = fixture_rows(&t, i, 0, t.rows), *have = lf_alloc(t.row_bytes * (size_t)t.rows);
        int rc = fixture_read(r, i, 0, t.rows, have, &err);
        bad += rc || memcmp(want, have, t.row_bytes * (size_t)t.rows);
        free(want);
        free(have);
    }
    return bad;
}

static inline int fixture_tokens_differ(lf_kvread *r)
{
    const lf_kv_meta *m = lf_kvread_meta(r);
    uint32_t *ids = lf_alloc(4 * (size_t)m->num_tokens);
    lf_err err;
    int bad = lf_kvread_tokens(r, 0, m->num_tokens, ids, &err) != 0;

    for (int64_t i = 0; i < m->num_tokens; i++)
        bad += ids[i] != fixture_token(m, i);
    free(ids);
    return bad;
}

static inline int fixture_same_meta(const lf_kv_meta *a, const lf_kv_meta *b)
{
    char *x = lf_kv_identity(a, 1), *y = lf_kv_identity(b, 1);
    int same = !strcmp(x, y);

    free(x);
    free(y);
    return same;
}

/* One bit of the byte at `at` is wrong from now on. */
static inline void fixture_flip(const char *path, int64_t at)
{
    FILE *f = fopen(path, "r+b");
    int c;

    fseek(f, (long)at, SEEK_SET);
    c = fgetc(f);
    fseek(f, (long)at, SEEK_SET);
    fputc(c ^ 0x10, f);
    fclose(f);
}

#endif
