/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer.h"
#include "file.h"
#include "hash.h"
#include "pretokenize.h"
#include "tokenizer_special.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILE = 256 << 20, MAX_TEXT = 0x7fffffff };

struct lf_tokenizer {
    lf_alphabet alphabet;
    lf_pretokenizer *pre;
    lf_added *added;
    lf_bpe *bpe;
    lf_special special;
    int64_t vocab;
    char sha256[65];
};

static int check_absent(const json_t *root, const char *name, lf_err *err)
{
    const json_t *v = json_object_get(root, name);

    return !v || json_is_null(v) ? 0 : lf_fail(err, "\"%s\" is set and not supported; null is", name);
}

/* null, or a Sequence of nothing (as in the released files). */
static int check_normalizer(const json_t *spec, lf_err *err)
{
    const char *type = json_string_value(json_object_get(spec, "type"));
    const json_t *list = json_object_get(spec, "normalizers");

    if (!spec || json_is_null(spec))
        return 0;
    if (type && strcmp(type, "Sequence") == 0 && json_is_array(list)) {
        if (json_array_size(list) == 0)
            return 0;
        type = json_string_value(json_object_get(json_array_get(list, 0), "type"));
    }
    return lf_fail(err, "normalizer %.60s is not supported; null and an empty Sequence are",
                   type ? type : "?");
}

static int check_root(const json_t *root, lf_err *err)
{
    const json_t *version = json_object_get(root, "version");

    if (!json_is_object(root))
        return lf_fail(err, "does not hold an object");
    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0))
        return lf_fail(err, "\"version\" must be \"1.0\"");
    return check_absent(root, "truncation", err) || check_absent(root, "padding", err) ||
           check_normalizer(json_object_get(root, "normalizer"), err) ? -1 : 0;
}

static int build(lf_tokenizer *t, const json_t *root, lf_err *err)
{
    return check_root(root, err) ||
           lf_bpe_parse(&t->bpe, json_object_get(root, "model"), err) ||
           lf_added_parse(&t->added, json_object_get(root, "added_tokens"), t->bpe, &t->alphabet, err) ||
           lf_pretokenizer_parse(&t->pre, json_object_get(root, "pre_tokenizer"), &t->alphabet, err) ||
           lf_alphabet_close(&t->alphabet, err) ||
           lf_pretokenizer_compile(t->pre, &t->alphabet, err) ||
           lf_special_template(&t->special, json_object_get(root, "post_processor"), err) ? -1 : 0;
}

static int configure(lf_tokenizer *t, const char *config, lf_err *err)
{
    json_error_t e;
    json_t *root = json_loads(config, JSON_REJECT_DUPLICATES, &e);
    int bad = root ? lf_special_config(&t->special, root, t->added, t->bpe, err)
                   : lf_fail(err, "line %d column %d: %s", e.line, e.column, e.text);

    json_decref(root);
    return bad ? lf_fail_in(err, "tokenizer_config.json") : 0;
}

static int check_special(lf_tokenizer *t, const lf_ids *ids, lf_err *err)
{
    for (int64_t i = 0; i < ids->n; i++) {
        if (ids->v[i] >= t->vocab)
            return lf_fail(err, "post_processor: no token has the id %u", ids->v[i]);
    }
    return 0;
}

int lf_tokenizer_parse(lf_tokenizer **out, const char *json, size_t bytes, const char *config,
                       const char *where, lf_err *err)
{
    lf_tokenizer *t = lf_alloc(sizeof *t);
    json_error_t e;
    json_t *root = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &e);
    int bad = root ? build(t, root, err) : lf_fail(err, "line %d column %d: %s", e.line, e.column, e.text);

    json_decref(root);
    if (!bad) {
        t->vocab = lf_max((int64_t)lf_bpe_largest(t->bpe) + 1, lf_added_bound(t->added));
        bad = (config && configure(t, config, err)) || check_special(t, &t->special.before, err) ||
              check_special(t, &t->special.after, err);
    }
    if (bad) {
        lf_tokenizer_close(t);
        return lf_fail_in(err, "%s", where);
    }
    lf_sha256_hex(json, bytes, t->sha256);
    *out = t;
    return 0;
}

int lf_tokenizer_open(lf_tokenizer **out, const char *model_dir, lf_err *err)
{
    char *path = lf_printf("%s/tokenizer.json", model_dir);
    char *side = lf_printf("%s/tokenizer_config.json", model_dir);
    char *json = NULL, *config = NULL;
    size_t bytes = 0;
    int bad = lf_file_read(path, MAX_FILE, &json, &bytes, err) ||
              (access(side, F_OK) == 0 && lf_file_read(side, MAX_FILE, &config, NULL, err)) ||
              lf_tokenizer_parse(out, json, bytes, config, path, err);

    free(json);
    free(config);
    free(path);
    free(side);
    return bad ? -1 : 0;
}

void lf_tokenizer_close(lf_tokenizer *t)
{
    if (!t)
        return;
    lf_alphabet_free(&t->alphabet);
    lf_pretokenizer_free(t->pre);
    lf_added_free(t->added);
    lf_bpe_free(t->bpe);
    lf_special_free(&t->special);
    free(t);
}

const char *lf_tokenizer_sha256(const lf_tokenizer *t)
{
    return t->sha256;
}

int64_t lf_tokenizer_vocab(const lf_tokenizer *t)
{
    return t->vocab;
}

static int encode_part(const lf_tokenizer *t, const uint8_t *text, size_t bytes, lf_pieces *pieces,
                       lf_bpe_work *w, lf_ids *ids, lf_err *err)
{
    if (lf_pretokenizer_cut(t->pre, &t->alphabet, text, bytes, pieces, err))
        return -1;
    if (pieces->spaced)
        lf_bpe_work_forget(w);
    for (size_t i = 0; i < pieces->bytes.n; i++) {
        lf_span b = pieces->bytes.v[i];
        lf_bpe_encode(t->bpe, w, pieces->text + b.first, b.end - b.first, ids);
    }
    return 0;
}

static int encode(const lf_tokenizer *t, const uint8_t *text, size_t bytes, lf_ids *ids, lf_err *err)
{
    lf_bpe_work *w = lf_bpe_work_new(bytes);
    lf_pieces pieces = { 0 };
    lf_parts parts = { 0 };
    int bad = lf_added_cut(t->added, &t->alphabet, text, bytes, &parts, err);

    for (size_t i = 0; i < parts.n && !bad; i++) {
        const lf_part *p = &parts.v[i];
        if (p->id >= 0)
            lf_ids_add(ids, (uint32_t)p->id);
        else
            bad = encode_part(t, text + p->first, p->end - p->first, &pieces, w, ids, err);
    }
    free(parts.v);
    lf_pieces_free(&pieces);
    lf_bpe_work_free(w);
    return bad;
}

static void add_all(lf_ids *ids, const lf_ids *more)
{
    for (int64_t i = 0; i < more->n; i++)
        lf_ids_add(ids, more->v[i]);
}

int lf_tokenizer_encode(const lf_tokenizer *t, const char *text, size_t bytes, int add_special,
                        uint32_t **ids, int64_t *n, lf_err *err)
{
    const uint8_t *p = (const uint8_t *)text;
    lf_ids out = { 0 };

    if (bytes > MAX_TEXT)
        return lf_fail(err, "a text of %zu bytes; below 2 GiB works", bytes);
    size_t valid = lf_utf8_valid(p, bytes);
    if (valid < bytes)
        return lf_fail(err, "the text is not UTF-8: byte 0x%02x at offset %zu", p[valid], valid);
    out.cap = (int64_t)bytes / 4 + 16;
    out.v = lf_alloc((size_t)out.cap * sizeof *out.v);
    if (add_special)
        add_all(&out, &t->special.before);
    if (encode(t, p, bytes, &out, err)) {
        free(out.v);
        return -1;
    }
    if (add_special)
        add_all(&out, &t->special.after);
    *ids = out.v;
    *n = out.n;
    return 0;
}
