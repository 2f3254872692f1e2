/* SPDX-License-Identifier: Apache-2.0 */
#include "request_line.h"
#include "file.h"

#include "request_idfile.h"
#include "options.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SHOWN = 64, KNOWN = 64 };

static const size_t file_limit = (size_t)1 << 32;

/* A text from outside on one line of ours: cut, and without control characters. */
static const char *show(char buf[SHOWN + 4], const char *text)
{
    size_t n = 0;

    for (; text[n] && n < SHOWN; n++)
        buf[n] = (unsigned char)text[n] < 32 || text[n] == 127 ? '?' : text[n];
    while (text[n] && n && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    strcpy(buf + n, text[n] ? "..." : "");
    return buf;
}

/* ---- keys ---- */

static const char *const top_keys[] = {
    "custom_id", "prompt", "token_ids", "file", "add_special_tokens", "body", "method", "url", NULL
};

/* Of a completion request: these two matter, the others steer generation only. */
static const char *const body_keys[] = {
    "prompt", "add_special_tokens",
    "best_of", "echo", "frequency_penalty", "ignore_eos", "length_penalty", "logit_bias", "logprobs",
    "max_tokens", "metadata", "min_p", "min_tokens", "model", "n", "presence_penalty", "prompt_logprobs",
    "repetition_penalty", "seed", "service_tier", "skip_special_tokens", "spaces_between_special_tokens",
    "stop", "stop_token_ids", "store", "stream", "stream_options", "temperature", "top_k", "top_p", "user",
    NULL
};

#define NO_CHAT "no chat template is applied; give the text itself as \"prompt\""

static const struct { const char *key, *why; } refused_keys[] = {
    { "prefix", "prompts start from their first token in this version" },
    { "messages", NO_CHAT },
    { "suffix", "only what stands before is computed" },
};

/* As other programs call them. */
static const struct { const char *key, *here; } other_keys[] = {
    { "prompt_token_ids", "token_ids" },
    { "input_ids", "token_ids" },
    { "tokens", "token_ids" },
    { "text", "prompt" },
    { "input", "prompt" },
};

static int key_known(const char *key, const char *const *known)
{
    while (*known && strcmp(key, *known))
        known++;
    return *known != NULL;
}

/* What it is here, or NULL; a body has its ids as "prompt" too. */
static const char *key_other(const char *key, const char *const *known)
{
    for (size_t i = 0; i < sizeof other_keys / sizeof *other_keys; i++)
        if (!strcmp(key, other_keys[i].key))
            return key_known(other_keys[i].here, known) ? other_keys[i].here : "prompt";
    return NULL;
}

static int key_refuse(const char *key, const char *const *known, const char *in, lf_err *err)
{
    char buf[SHOWN + 4];
    int n = 0;

    for (size_t i = 0; i < sizeof refused_keys / sizeof *refused_keys; i++)
        if (!strcmp(key, refused_keys[i].key))
            return lf_fail(err, "%s\"%s\" cannot be used: %s", in, key, refused_keys[i].why);
    while (known[n])
        n++;
    const char *near = key_other(key, known);
    if (!near)
        near = lf_options_nearest(key, known, n);
    if (near)
        return lf_fail(err, "%sunknown key \"%s\"; did you mean \"%s\"?", in, show(buf, key), near);
    return lf_fail(err, "%sunknown key \"%s\"%s", in, show(buf, key),
                   *in ? "" : "; a line has \"custom_id\" and one of \"prompt\", \"token_ids\", \"file\", \"body\"");
}

static int keys_check(json_t *object, const char *const *known, const char *in, lf_err *err)
{
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
        if (!key_known(key, known) && !(json_is_null(value) && !strcmp(key, "suffix")))
            return key_refuse(key, known, in, err);
    return 0;
}

/* ---- the prompt in its several forms ---- */

static int ids_of_array(lf_request *q, const json_t *a, const char *name, int64_t vocab, lf_err *err)
{
    size_t n = json_array_size(a);

    q->ids = lf_alloc(n * sizeof *q->ids);
    q->tokens = (int64_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(a, i);
        if (!json_is_integer(v))
            return lf_fail(err, "%s[%zu] is not a whole number%s", name, i,
                           json_is_string(v) || json_is_array(v) ? "; a line holds one prompt" : "");
        json_int_t id = json_integer_value(v);
        if (id < 0 || id >= vocab)
            return lf_fail(err, "%s[%zu] is %lld; the model's ids are 0 to %lld", name, i, (long long)id,
                           (long long)vocab - 1);
        q->ids[i] = (uint32_t)id;
    }
    return 0;
}

static int ids_of_text(lf_request *q, const lf_request_context *c, const char *text, size_t bytes,
                       int special, lf_err *err)
{
    const lf_request_rules *rules = c->rules;

    if (!bytes)
        return lf_fail(err, "the prompt is empty");
    if (!rules->encode)
        return lf_fail(err, "text needs a tokenizer, which is not at hand; give token ids");
    if (rules->encode(rules->ctx, text, bytes, special, &q->ids, &q->tokens, err))
        return -1;
    for (int64_t i = 0; i < q->tokens; i++)
        if (q->ids[i] >= rules->vocab)
            return lf_fail(err, "the tokenizer gives id %u, but the model's ids are 0 to %lld: they do not belong "
                           "together", q->ids[i], (long long)rules->vocab - 1);
    return 0;
}

/* A name that cannot be a plain file is caught before it is opened: opening a FIFO would wait for ever. */
static int file_load(const char *path, char **data, size_t *bytes, lf_err *err)
{
    struct stat st;

    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return lf_fail(err, "%s is not a regular file", path);
    return lf_file_read(path, file_limit, data, bytes, err);
}

static int ids_of_file(lf_request *q, const lf_request_context *c, const json_t *name, int special,
                       lf_err *err)
{
    const char *given = json_string_value(name);
    char buf[SHOWN + 4], *data;
    size_t bytes;

    if (!json_is_string(name) || !*given || strlen(given) != json_string_length(name))
        return lf_fail(err, "\"file\" must be the path of a file");
    char *path = lf_printf("%s%s", *given == '/' ? "" : c->dir, given);
    lf_idfile_kind kind = lf_idfile_kind_of(given);
    int bad = file_load(path, &data, &bytes, err);
    free(path);
    if (bad)
        return lf_fail_in(err, "\"file\"");
    q->source = kind == LF_IDFILE_NONE ? LF_FROM_TEXT_FILE : LF_FROM_ID_FILE;
    bad = kind == LF_IDFILE_NONE
              ? ids_of_text(q, c, data, bytes, special, err)
              : lf_idfile_parse(data, bytes, kind, c->rules->vocab, &q->ids, &q->tokens, err);
    free(data);
    return bad ? lf_fail_in(err, "\"file\" %s", show(buf, given)) : 0;
}

static int prompt_take(lf_request *q, const lf_request_context *c, const json_t *p, const char *name,
                       int special, lf_err *err)
{
    if (json_is_array(p))
        return ids_of_array(q, p, name, c->rules->vocab, err);
    if (!json_is_string(p))
        return lf_fail(err, "\"%s\" must be a text or an array of token ids", name);
    q->source = LF_FROM_TEXT;
    return ids_of_text(q, c, json_string_value(p), json_string_length(p), special, err);
}

static int special_take(const json_t *object, int *special, lf_err *err)
{
    const json_t *v = json_object_get(object, "add_special_tokens");

    *special = !json_is_false(v);
    return v && !json_is_boolean(v) ? lf_fail(err, "\"add_special_tokens\" must be true or false") : 0;
}

static int short_take(lf_request *q, const lf_request_context *c, json_t *o, lf_err *err)
{
    const json_t *prompt = json_object_get(o, "prompt"), *ids = json_object_get(o, "token_ids");
    const json_t *file = json_object_get(o, "file");
    int special;

    if (!!prompt + !!ids + !!file != 1)
        return lf_fail(err, "exactly one of \"prompt\", \"token_ids\", \"file\" and \"body\" is needed");
    if (json_object_get(o, "method") || json_object_get(o, "url"))
        return lf_fail(err, "\"method\" and \"url\" belong to a line with a \"body\"");
    if (special_take(o, &special, err))
        return -1;
    if (prompt)
        return prompt_take(q, c, prompt, "prompt", special, err);
    if (file)
        return ids_of_file(q, c, file, special, err);
    if (!json_is_array(ids))
        return lf_fail(err, "\"token_ids\" must be an array of token ids");
    return ids_of_array(q, ids, "token_ids", c->rules->vocab, err);
}

static int word_check(const json_t *o, const char *key, const char *only, lf_err *err)
{
    const json_t *v = json_object_get(o, key);
    char buf[SHOWN + 4];

    if (!v || (json_is_string(v) && !strcmp(json_string_value(v), only)))
        return 0;
    const char *said = json_is_string(v) ? json_string_value(v) : NULL;
    return lf_fail(err, "\"%s\" is %s; it must be \"%s\"%s", key, said ? show(buf, said) : "no text", only,
                   said && strstr(said, "/chat/") ? ", as " NO_CHAT : "");
}

static int batch_take(lf_request *q, const lf_request_context *c, json_t *o, json_t *body, lf_err *err)
{
    static const char *const others[] = { "prompt", "token_ids", "file", "add_special_tokens" };
    int special;

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (json_object_get(o, others[i]))
            return lf_fail(err, "\"%s\" beside \"body\": one of them is too much", others[i]);
    if (word_check(o, "method", "POST", err) || word_check(o, "url", "/v1/completions", err))
        return -1;
    if (!json_is_object(body))
        return lf_fail(err, "\"body\" must be an object with a \"prompt\"");
    if (keys_check(body, body_keys, "in \"body\": ", err) || special_take(body, &special, err))
        return -1;
    const json_t *prompt = json_object_get(body, "prompt");
    if (!prompt)
        return lf_fail(err, "\"body\" has no \"prompt\"");
    return prompt_take(q, c, prompt, "body.prompt", special, err);
}

/* ---- the line ---- */

static int id_take(lf_request *q, const json_t *id, lf_err *err)
{
    const char *s = json_string_value(id);
    size_t n = json_string_length(id);

    if (!id)
        return lf_fail(err, "\"custom_id\" is missing");
    if (!json_is_string(id) || n == 0)
        return lf_fail(err, "\"custom_id\" must be a text that is not empty");
    if (n > LF_ID_BYTES)
        return lf_fail(err, "\"custom_id\" has %zu bytes; at most %d are possible", n, LF_ID_BYTES);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 32 || s[i] == 127)
            return lf_fail(err, "\"custom_id\" has a control character at byte %zu", i);
    q->id = lf_strdup(s);
    return 0;
}

static int length_check(const lf_request *q, const lf_request_context *c, lf_err *err)
{
    if (q->tokens == 0)
        return lf_fail(err, "the prompt is empty");
    if (q->tokens > c->rules->max_positions)
        return lf_fail(err, "the prompt has %lld tokens; the model takes at most %lld", (long long)q->tokens,
                       (long long)c->rules->max_positions);
    return 0;
}

static int object_take(lf_request *q, const lf_request_context *c, json_t *o, lf_err *err)
{
    json_t *body = json_object_get(o, "body");

    if (!json_is_object(o))
        return lf_fail(err, "a line must be a JSON object");
    if (keys_check(o, top_keys, "", err) || id_take(q, json_object_get(o, "custom_id"), err))
        return -1;
    if (body ? batch_take(q, c, o, body, err) : short_take(q, c, o, err))
        return -1;
    return length_check(q, c, err);
}

int lf_request_line(lf_request *q, const lf_request_context *c, const char *text, size_t bytes, lf_err *err)
{
    json_error_t where;
    json_t *o = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    char buf[SHOWN + 4];

    if (!o)
        return lf_fail(err, "not valid JSON at byte %d: %s; a line is one object, such as "
                       "{\"custom_id\": \"a\", \"prompt\": \"...\"}", where.position, show(buf, where.text));
    int bad = object_take(q, c, o, err);
    json_decref(o);
    return bad;
}
