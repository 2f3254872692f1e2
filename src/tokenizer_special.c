/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer_special.h"

#include <stdlib.h>
#include <string.h>

/* The ids of template token `name`, appended to `ids`. */
static int template_token(const json_t *tokens, const char *name, lf_ids *ids, lf_err *err)
{
    const json_t *list = json_object_get(name ? json_object_get(tokens, name) : NULL, "ids"), *item;
    size_t i;

    if (!json_is_array(list))
        return lf_fail(err, "\"special_tokens\" has no ids for \"%.60s\"", name ? name : "?");
    json_array_foreach(list, i, item) {
        json_int_t v = json_is_integer(item) ? json_integer_value(item) : -1;
        if (v < 0 || v > INT32_MAX)
            return lf_fail(err, "an id of \"%.60s\" is not a whole number from 0 to 2^31-1", name);
        lf_ids_add(ids, (uint32_t)v);
    }
    return 0;
}

/* "single": [before..., {"Sequence": {"id": "A"}}, after...] */
static int parse_single(const json_t *spec, lf_ids *before, lf_ids *after, lf_err *err)
{
    const json_t *single = json_object_get(spec, "single"), *item;
    int seen = 0;
    size_t i;

    if (!json_is_array(single))
        return lf_fail(err, "\"single\" must be a list");
    json_array_foreach(single, i, item) {
        const json_t *token = json_object_get(item, "SpecialToken");
        const json_t *text = json_object_get(item, "Sequence");
        const char *id = json_string_value(json_object_get(token ? token : text, "id"));
        if (token) {
            if (template_token(json_object_get(spec, "special_tokens"), id, seen ? after : before, err))
                return -1;
        } else if (!text || seen || !id || strcmp(id, "A") != 0) {
            return lf_fail(err, "\"single\" must hold the sequence A once, and special tokens");
        } else {
            seen = 1;
        }
    }
    return seen ? 0 : lf_fail(err, "\"single\" does not hold the sequence A");
}

/* A later component goes around the earlier ones. */
static int parse_template(lf_special *s, const json_t *spec, lf_err *err)
{
    lf_special outer = { { 0 }, { 0 } };

    if (parse_single(spec, &outer.before, &outer.after, err)) {
        lf_special_free(&outer);
        return -1;
    }
    for (int64_t i = 0; i < s->before.n; i++)
        lf_ids_add(&outer.before, s->before.v[i]);
    for (int64_t i = 0; i < outer.after.n; i++)
        lf_ids_add(&s->after, outer.after.v[i]);
    free(s->before.v);
    free(outer.after.v);
    s->before = outer.before;
    return 0;
}

static int parse_component(lf_special *s, const json_t *spec, int depth, lf_err *err)
{
    const char *type = json_string_value(json_object_get(spec, "type"));
    const json_t *list = json_object_get(spec, "processors"), *item;
    size_t i;

    if (!type)
        return lf_fail(err, "a component without \"type\"");
    if (strcmp(type, "ByteLevel") == 0)
        return 0;
    if (strcmp(type, "TemplateProcessing") == 0)
        return parse_template(s, spec, err) ? lf_fail_in(err, "TemplateProcessing") : 0;
    if (strcmp(type, "Sequence") != 0)
        return lf_fail(err, "component %.60s is not supported; Sequence, TemplateProcessing and ByteLevel "
                       "are", type);
    if (!json_is_array(list) || depth > 8)
        return lf_fail(err, "Sequence: \"processors\" must be a list, nested at most 8 deep");
    json_array_foreach(list, i, item) {
        if (parse_component(s, item, depth + 1, err))
            return -1;
    }
    return 0;
}

int lf_special_template(lf_special *s, const json_t *post, lf_err *err)
{
    if (!post || json_is_null(post))
        return 0;
    return parse_component(s, post, 0, err) ? lf_fail_in(err, "post_processor") : 0;
}

/* One of bos and eos. */
static int override(lf_ids *ids, const json_t *config, const char *which, const lf_added *added,
                    const lf_bpe *b, lf_err *err)
{
    char flag[32], name[32];
    memcpy(flag, "add_", 4);
    memcpy(flag + 4, which, 3);
    memcpy(flag + 7, "_token", 7);
    memcpy(name, flag + 4, 10);
    const json_t *add = json_object_get(config, flag), *token = json_object_get(config, name);
    const json_t *text = json_is_object(token) ? json_object_get(token, "content") : token;

    if (!add || json_is_null(add))
        return 0;
    if (!json_is_boolean(add))
        return lf_fail(err, "\"%s\" must be true or false", flag);
    ids->n = 0;
    if (!json_is_true(add))
        return 0;
    if (!json_is_string(text))
        return lf_fail(err, "\"%s\" is true, but \"%s\" is neither a text nor an object with \"content\"",
                       flag, name);
    int64_t id = lf_added_id(added, json_string_value(text), json_string_length(text));
    if (id < 0)
        id = lf_bpe_id(b, json_string_value(text), json_string_length(text));
    if (id < 0)
        return lf_fail(err, "\"%s\" is \"%.60s\", which tokenizer.json does not have", name,
                       json_string_value(text));
    lf_ids_add(ids, (uint32_t)id);
    return 0;
}

int lf_special_config(lf_special *s, const json_t *config, const lf_added *added, const lf_bpe *b,
                      lf_err *err)
{
    if (!json_is_object(config))
        return lf_fail(err, "must hold an object");
    return override(&s->before, config, "bos", added, b, err) ||
           override(&s->after, config, "eos", added, b, err) ? -1 : 0;
}

void lf_special_free(lf_special *s)
{
    free(s->before.v);
    free(s->after.v);
    *s = (lf_special){ { 0 }, { 0 } };
}
