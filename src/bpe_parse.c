/* SPDX-License-Identifier: Apache-2.0 */
#include "bpe_table.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ENTRIES = 1 << 24, MAX_SPELLING = 1 << 16 };

/* GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 and on, in order. */
static void make_spellings(lf_bpe *b)
{
    uint32_t next = 0x100;

    for (uint32_t i = 0; i < 256; i++) {
        int printable = (i >= '!' && i <= '~') || (i >= 0xa1 && i != 0xad);
        uint32_t c = printable ? i : next++;
        if (c < 0x80) {
            b->spelling[i][0] = (uint8_t)c;
            b->spelling_bytes[i] = 1;
        } else {
            b->spelling[i][0] = (uint8_t)(0xc0 | c >> 6);
            b->spelling[i][1] = (uint8_t)(0x80 | (c & 63));
            b->spelling_bytes[i] = 2;
        }
    }
}

static int u32_order(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* Two spellings of one id would leave open which of them a merge means. */
static int check_ids(uint32_t *id, size_t n, lf_err *err)
{
    qsort(id, n, sizeof *id, u32_order);
    for (size_t i = 1; i < n; i++) {
        if (id[i] == id[i - 1])
            return lf_fail(err, "two entries of \"vocab\" have the id %u", id[i]);
    }
    return 0;
}

static int fill_entries(lf_bpe *b, json_t *vocab, uint32_t *id, lf_err *err)
{
    const char *key;
    json_t *value;
    size_t i = 0;

    json_object_foreach(vocab, key, value) {
        size_t bytes = strlen(key);
        json_int_t v = json_is_integer(value) ? json_integer_value(value) : -1;
        if (v < 0 || v > INT32_MAX)
            return lf_fail(err, "\"vocab\": the id of \"%.60s\" is not a whole number from 0 to 2^31-1", key);
        if (bytes > MAX_SPELLING)
            return lf_fail(err, "\"vocab\": an entry of %zu bytes; at most %d are read", bytes, MAX_SPELLING);
        if (bytes == 0)
            return lf_fail(err, "\"vocab\": an empty entry");
        lf_entries_add(&b->entries, key, bytes, (uint32_t)v);
        b->longest = (uint32_t)lf_max(b->longest, (int64_t)bytes);
        b->largest = (uint32_t)lf_max(b->largest, v);
        id[i++] = (uint32_t)v;
    }
    return check_ids(id, i, err);
}

static int parse_vocab(lf_bpe *b, json_t *vocab, lf_err *err)
{
    size_t count = json_object_size(vocab), text = 0;
    const char *key;
    json_t *value;

    if (!json_is_object(vocab) || count > MAX_ENTRIES)
        return lf_fail(err, "\"vocab\" must be an object of at most %d entries", MAX_ENTRIES);
    json_object_foreach(vocab, key, value)
        text += strlen(key);
    if (text > INT32_MAX)
        return lf_fail(err, "\"vocab\": %zu bytes of text", text);
    lf_entries_make(&b->entries, count, text);
    uint32_t *id = lf_alloc((count + 1) * sizeof *id);
    int bad = fill_entries(b, vocab, id, err);
    free(id);
    return bad;
}

/* C0, C1 and F5..FF occur in no UTF-8 text. */
static int find_bytes(lf_bpe *b, lf_err *err)
{
    for (int i = 0; i < 256; i++) {
        const lf_entry *e = lf_entries_find(&b->entries, b->spelling[i], b->spelling_bytes[i]);
        if (!e && i != 0xc0 && i != 0xc1 && i < 0xf5)
            return lf_fail(err, "\"vocab\" has no entry for the byte 0x%02x; only byte-level models with "
                           "all bytes are supported", i);
        b->byte_id[i] = e ? e->id : LF_NO_RANK;
    }
    return 0;
}

/* "a b" or ["a", "b"] as two texts. */
static int merge_parts(const json_t *merge, const char *part[2], size_t bytes[2])
{
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');
        if (!space || strchr(space + 1, ' '))
            return -1;
        part[0] = text;
        bytes[0] = (size_t)(space - text);
        part[1] = space + 1;
        bytes[1] = strlen(space + 1);
        return 0;
    }
    if (json_array_size(merge) != 2)
        return -1;
    for (int k = 0; k < 2; k++) {
        const json_t *text = json_array_get(merge, (size_t)k);
        if (!json_is_string(text))
            return -1;
        part[k] = json_string_value(text);
        bytes[k] = json_string_length(text);
    }
    return 0;
}

static int add_merge(lf_bpe *b, const json_t *merge, uint32_t rank, char *joined, lf_err *err)
{
    const char *part[2];
    const lf_entry *e[3];
    size_t bytes[2];

    if (merge_parts(merge, part, bytes))
        return lf_fail(err, "merge %u is neither \"a b\" nor [\"a\", \"b\"]", rank);
    for (int k = 0; k < 2; k++) {
        e[k] = lf_entries_find(&b->entries, part[k], bytes[k]);
        if (!e[k])
            return lf_fail(err, "merge %u: \"%.*s\" is not in \"vocab\"", rank,
                           (int)lf_min((int64_t)bytes[k], 60), part[k]);
        memcpy(joined + (k ? bytes[0] : 0), part[k], bytes[k]);
    }
    e[2] = lf_entries_find(&b->entries, joined, bytes[0] + bytes[1]);
    if (!e[2])
        return lf_fail(err, "merge %u: \"%.*s\" is not in \"vocab\"", rank,
                       (int)lf_min((int64_t)(bytes[0] + bytes[1]), 60), joined);
    lf_merges_set(&b->merges, e[0]->id, e[1]->id, rank, e[2]->id);
    return 0;
}

/* In the old form, a line "#version..." is not a merge and takes no rank. */
static int parse_merges(lf_bpe *b, const json_t *merges, lf_err *err)
{
    size_t i, count = json_array_size(merges);
    char *joined = lf_alloc(2 * (size_t)b->longest + 1);
    const json_t *merge;
    uint32_t rank = 0;
    int bad = 0, strings = json_is_string(json_array_get(merges, 0));

    if (!json_is_array(merges) || count > MAX_ENTRIES)
        bad = lf_fail(err, "\"merges\" must be a list of at most %d", MAX_ENTRIES);
    else
        lf_merges_make(&b->merges, count);
    for (i = 0; !bad && i < count; i++) {
        merge = json_array_get(merges, i);
        if (json_is_string(merge) != strings)
            bad = lf_fail(err, "\"merges\" has both forms, \"a b\" and [\"a\", \"b\"]");
        else if (!strings || strncmp(json_string_value(merge), "#version", 8) != 0)
            bad = add_merge(b, merge, rank++, joined, err);
    }
    free(joined);
    return bad;
}

static int absent(const json_t *model, const char *name, lf_err *err)
{
    const json_t *v = json_object_get(model, name);

    if (!v || json_is_null(v) || (json_is_number(v) && json_number_value(v) == 0.0) ||
        (json_is_string(v) && json_string_length(v) == 0))
        return 0;
    return lf_fail(err, "\"%s\" is set and not supported", name);
}

static int parse_options(lf_bpe *b, const json_t *model, lf_err *err)
{
    const char *type = json_string_value(json_object_get(model, "type"));
    const json_t *ignore = json_object_get(model, "ignore_merges");

    if (!json_is_object(model))
        return lf_fail(err, "is missing");
    if (json_object_get(model, "type") && (!type || strcmp(type, "BPE") != 0))
        return lf_fail(err, "type \"%.40s\" is not supported; BPE is", type ? type : "?");
    if (absent(model, "dropout", err) || absent(model, "continuing_subword_prefix", err) ||
        absent(model, "end_of_word_suffix", err))
        return -1;
    if (ignore && !json_is_boolean(ignore) && !json_is_null(ignore))
        return lf_fail(err, "\"ignore_merges\" must be true or false");
    b->ignore_merges = json_is_true(ignore);
    return 0;
}

int lf_bpe_parse(lf_bpe **out, const json_t *model, lf_err *err)
{
    lf_bpe *b = lf_alloc(sizeof *b);

    make_spellings(b);
    if (parse_options(b, model, err) || parse_vocab(b, json_object_get(model, "vocab"), err) ||
        find_bytes(b, err) || parse_merges(b, json_object_get(model, "merges"), err)) {
        lf_bpe_free(b);
        return lf_fail_in(err, "model");
    }
    *out = b;
    return 0;
}

void lf_bpe_free(lf_bpe *b)
{
    if (!b)
        return;
    free(b->entries.slot);
    free(b->entries.text);
    free(b->merges.slot);
    free(b);
}
