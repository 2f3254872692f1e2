/* SPDX-License-Identifier: Apache-2.0 */
#include "pretokenize_parse.h"

#include <stdlib.h>
#include <string.h>

static const char *const behavior_name[LF_BEHAVIORS] = {
    "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous",
};

/* What ByteLevel cuts by: contractions, then letters, digits and the rest with one space before, then
 * spaces. */
static const char gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static int flag(const json_t *spec, const char *name, int *value, lf_err *err)
{
    const json_t *v = json_object_get(spec, name);

    if (!json_is_boolean(v))
        return lf_fail(err, "\"%s\" must be true or false", name);
    *value = json_is_true(v);
    return 0;
}

static int parse_behavior(const json_t *spec, lf_stage *st, lf_err *err)
{
    const char *name = json_string_value(json_object_get(spec, "behavior"));

    for (int i = 0; name && i < LF_BEHAVIORS; i++) {
        if (strcmp(name, behavior_name[i]) == 0) {
            st->behavior = (lf_behavior)i;
            return 0;
        }
    }
    return lf_fail(err, "\"behavior\" is \"%.40s\"; known are Removed, Isolated, MergedWithPrevious, "
                   "MergedWithNext and Contiguous", name ? name : "");
}

static int parse_split(const json_t *spec, lf_stage *st, lf_alphabet *a, lf_err *err)
{
    const json_t *pattern = json_object_get(spec, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    const json_t *text = regex ? regex : string;

    if (json_object_size(pattern) != 1 || !json_is_string(text))
        return lf_fail(err, "\"pattern\" must be {\"Regex\": \"...\"} or {\"String\": \"...\"}");
    if (flag(spec, "invert", &st->invert, err) || parse_behavior(spec, st, err))
        return -1;
    st->kind = LF_STAGE_SPLIT;
    if (lf_pattern_parse(&st->pattern, json_string_value(text), json_string_length(text), text == string, a,
                         err))
        return lf_fail_in(err, "pattern \"%.60s\"", json_string_value(text));
    return 0;
}

/* Numeric in the library's sense: N of Unicode 17, one version ahead of its regular expressions. */
static int parse_digits(const json_t *spec, lf_stage *st, lf_alphabet *a, lf_err *err)
{
    lf_charset set = { 0 };
    int each = 0;

    if (flag(spec, "individual_digits", &each, err))
        return -1;
    lf_charset_add_category(&set, "N", 1);
    lf_charset_add(&set, 0x11de0, 0x11de9);
    lf_charset_add(&set, 0x16ff4, 0x16ff6);
    st->kind = LF_STAGE_DIGITS;
    st->behavior = each ? LF_ISOLATED : LF_CONTIGUOUS;
    st->set = lf_alphabet_add(a, &set, err);
    return st->set < 0 ? -1 : 0;
}

static int parse_byte_level(const json_t *spec, lf_stage *st, lf_alphabet *a, lf_err *err)
{
    int use_regex = 1, trim = 0;

    if (flag(spec, "add_prefix_space", &st->prefix_space, err) || flag(spec, "trim_offsets", &trim, err))
        return -1;
    if (json_object_get(spec, "use_regex") && flag(spec, "use_regex", &use_regex, err))
        return -1;
    st->byte_level = 1;
    st->kind = use_regex ? LF_STAGE_SPLIT : LF_STAGE_BYTES;
    st->behavior = LF_ISOLATED;
    return use_regex ? lf_pattern_parse(&st->pattern, gpt2, sizeof gpt2 - 1, 0, a, err) : 0;
}

static int parse_component(lf_pretokenizer *p, const json_t *spec, int depth, lf_alphabet *a, lf_err *err);

static int parse_sequence(lf_pretokenizer *p, const json_t *spec, int depth, lf_alphabet *a, lf_err *err)
{
    const json_t *list = json_object_get(spec, "pretokenizers"), *item;
    size_t i;

    if (!json_is_array(list) || depth > 8)
        return lf_fail(err, "Sequence: \"pretokenizers\" must be a list, nested at most 8 deep");
    json_array_foreach(list, i, item) {
        if (parse_component(p, item, depth + 1, a, err))
            return -1;
    }
    return 0;
}

static int parse_component(lf_pretokenizer *p, const json_t *spec, int depth, lf_alphabet *a, lf_err *err)
{
    static const struct {
        const char *name;
        int (*parse)(const json_t *, lf_stage *, lf_alphabet *, lf_err *);
    } known[] = { { "Split", parse_split }, { "Digits", parse_digits }, { "ByteLevel", parse_byte_level } };
    const char *type = json_string_value(json_object_get(spec, "type"));

    if (!type)
        return lf_fail(err, "a component without \"type\"");
    if (strcmp(type, "Sequence") == 0)
        return parse_sequence(p, spec, depth, a, err);
    if (p->stages && p->stage[p->stages - 1].byte_level)
        return lf_fail(err, "%.60s after ByteLevel is not supported; ByteLevel must be the last", type);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(type, known[i].name))
            continue;
        if (p->stages == LF_MAX_STAGES)
            return lf_fail(err, "more than %d components", LF_MAX_STAGES);
        if (known[i].parse(spec, &p->stage[p->stages++], a, err))
            return lf_fail_in(err, "component %d, %s", p->stages, type);
        return 0;
    }
    return lf_fail(err, "component %.60s is not supported; Sequence, Split, Digits and ByteLevel are", type);
}

int lf_pretokenizer_parse(lf_pretokenizer **out, const json_t *spec, lf_alphabet *a, lf_err *err)
{
    lf_pretokenizer *p = lf_alloc(sizeof *p);
    int bad = !json_is_object(spec) ? lf_fail(err, "is missing; only byte-level tokenizers are supported")
                                    : parse_component(p, spec, 0, a, err);

    if (!bad && (p->stages == 0 || !p->stage[p->stages - 1].byte_level))
        bad = lf_fail(err, "has no ByteLevel; only byte-level tokenizers are supported");
    if (bad) {
        lf_pretokenizer_free(p);
        return lf_fail_in(err, "pre_tokenizer");
    }
    *out = p;
    return 0;
}

int lf_pretokenizer_compile(lf_pretokenizer *p, const lf_alphabet *a, lf_err *err)
{
    for (int i = 0; i < p->stages; i++) {
        if (p->stage[i].pattern && lf_pattern_compile(p->stage[i].pattern, a, err))
            return lf_fail_in(err, "pre_tokenizer: the pattern of component %d", i + 1);
    }
    return 0;
}

void lf_pretokenizer_free(lf_pretokenizer *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->stages; i++)
        lf_pattern_free(p->stage[i].pattern);
    free(p);
}
