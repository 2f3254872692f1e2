/* SPDX-License-Identifier: Apache-2.0 */
#include "added.h"

#include <stdlib.h>
#include <string.h>

typedef struct token {
    char *content;
    size_t bytes;
    uint32_t id;
    int single_word, lstrip, rstrip, normalized;
} token;

/* Tokens in the order of their bytes: those with a given beginning are neighbours. */
typedef struct token_list {
    int n;
    token *v;                              /* the contents belong to lf_added */
    uint8_t begins[256];                   /* is there one with this first byte? */
} token_list;

struct lf_added {
    int n;
    token *all;
    token_list pass[2];                    /* normalized false, true */
    int space, word;                       /* sets of the alphabet */
    uint32_t bound;
};

static int parse_token(const json_t *spec, token *t, int64_t *id, lf_err *err)
{
    const json_t *content = json_object_get(spec, "content"), *number = json_object_get(spec, "id");
    int special;
    struct { const char *name; int *value; } flag[] = {
        { "single_word", &t->single_word }, { "lstrip", &t->lstrip }, { "rstrip", &t->rstrip },
        { "normalized", &t->normalized }, { "special", &special },
    };

    if (!json_is_string(content) || !json_is_integer(number))
        return lf_fail(err, "\"content\" must be a text and \"id\" a whole number");
    *id = json_integer_value(number);
    t->bytes = json_string_length(content);
    if (t->bytes > LF_MAX_ADDED_BYTES)
        return lf_fail(err, "%zu bytes; at most %d are read", t->bytes, LF_MAX_ADDED_BYTES);
    for (size_t i = 0; i < sizeof flag / sizeof *flag; i++) {
        const json_t *v = json_object_get(spec, flag[i].name);
        if (!json_is_boolean(v))
            return lf_fail(err, "\"%s\" must be true or false", flag[i].name);
        *flag[i].value = json_is_true(v);
    }
    t->content = lf_strdup(json_string_value(content));
    return 0;
}

static int token_order(const void *a, const void *b)
{
    const token *x = a, *y = b;
    size_t n = x->bytes < y->bytes ? x->bytes : y->bytes;
    int c = memcmp(x->content, y->content, n);

    return c ? c : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* In the order of the file.  New tokens continue the vocabulary's count of entries, not its largest id. */
static int give_ids(lf_added *t, const int64_t *wanted, const lf_bpe *b, lf_err *err)
{
    uint32_t next = (uint32_t)lf_bpe_entries(b);

    for (int i = 0; i < t->n; i++) {
        token *one = &t->all[i];
        int64_t id = lf_bpe_id(b, one->content, one->bytes);
        if (id < 0)
            id = next++;
        if (id != wanted[i])
            return lf_fail(err, "added token \"%.60s\" has the id %lld in the file, but its place gives it "
                           "%lld", one->content, (long long)wanted[i], (long long)id);
        one->id = (uint32_t)id;
        t->bound = (uint32_t)lf_max(t->bound, id + 1);
    }
    return 0;
}

static int make_passes(lf_added *t, lf_err *err)
{
    qsort(t->all, (size_t)t->n, sizeof *t->all, token_order);
    t->pass[0].v = lf_alloc((size_t)t->n * sizeof *t->all);
    t->pass[1].v = lf_alloc((size_t)t->n * sizeof *t->all);
    for (int i = 0; i < t->n; i++) {
        const token *one = &t->all[i];
        token_list *p = &t->pass[one->normalized];
        if (i > 0 && token_order(one - 1, one) == 0)
            return lf_fail(err, "added token \"%.60s\" is there twice", one->content);
        p->begins[(uint8_t)one->content[0]] = 1;
        p->v[p->n++] = *one;
    }
    return 0;
}

static int parse_sets(lf_added *t, lf_alphabet *a, lf_err *err)
{
    lf_charset space = { 0 }, word = { 0 };

    lf_charset_add_space(&space);
    lf_charset_add_word(&word);
    /* Joiners are word characters for the library here, though not in patterns. */
    lf_charset_add(&word, 0x200c, 0x200d);
    t->space = lf_alphabet_add(a, &space, err);
    t->word = lf_alphabet_add(a, &word, err);
    return t->space < 0 || t->word < 0 ? -1 : 0;
}

int lf_added_parse(lf_added **out, const json_t *list, const lf_bpe *b, lf_alphabet *a, lf_err *err)
{
    lf_added *t = lf_alloc(sizeof *t);
    size_t count = json_array_size(list);
    int64_t *wanted = lf_alloc((count + 1) * sizeof *wanted);
    int bad = 0;

    if ((list && !json_is_array(list)) || count > LF_MAX_ADDED)
        bad = lf_fail(err, "\"added_tokens\" must be a list of at most %d", LF_MAX_ADDED);
    t->all = lf_alloc((count + 1) * sizeof *t->all);
    for (size_t i = 0; i < count && !bad; i++) {
        token *one = &t->all[t->n];
        bad = parse_token(json_array_get(list, i), one, &wanted[t->n], err);
        if (bad) {
            lf_fail_in(err, "added token %zu", i);
        } else if (one->bytes == 0) {          /* the library passes over it */
            free(one->content);
        } else {
            t->n++;
        }
    }
    if (bad || parse_sets(t, a, err) || give_ids(t, wanted, b, err) || make_passes(t, err)) {
        free(wanted);
        lf_added_free(t);
        return -1;
    }
    free(wanted);
    *out = t;
    return 0;
}

void lf_added_free(lf_added *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n; i++)
        free(t->all[i].content);
    free(t->all);
    free(t->pass[0].v);
    free(t->pass[1].v);
    free(t);
}

int64_t lf_added_id(const lf_added *t, const char *content, size_t bytes)
{
    for (int i = 0; i < t->n; i++) {
        if (t->all[i].bytes == bytes && memcmp(t->all[i].content, content, bytes) == 0)
            return t->all[i].id;
    }
    return -1;
}

uint32_t lf_added_bound(const lf_added *t)
{
    return t->bound;
}

/* Among p->v[lo, hi), alike in their first `depth` bytes: the part with `byte` next.  Shorter ones come
 * first. */
static void narrow(const token_list *p, size_t depth, uint8_t byte, int *lo, int *hi)
{
    int from = *lo, to = *hi;

    while (from < to) {
        int mid = from + (to - from) / 2;
        if (p->v[mid].bytes <= depth || (uint8_t)p->v[mid].content[depth] < byte)
            from = mid + 1;
        else
            to = mid;
    }
    *lo = from;
    to = *hi;
    while (from < to) {
        int mid = from + (to - from) / 2;
        if ((uint8_t)p->v[mid].content[depth] <= byte)
            from = mid + 1;
        else
            to = mid;
    }
    *hi = from;
}

/* The longest token at text[0..n), or NULL. */
static const token *longest_at(const token_list *p, const uint8_t *text, size_t n)
{
    const token *best = NULL;
    int lo = 0, hi = p->n;

    for (size_t depth = 0; depth < n; depth++) {
        narrow(p, depth, text[depth], &lo, &hi);
        if (lo == hi)
            break;
        if (p->v[lo].bytes == depth + 1)
            best = &p->v[lo];
    }
    return best;
}

static int in_set(const lf_alphabet *a, int set, const uint8_t *at)
{
    int size;

    return lf_alphabet_has(a, set, lf_alphabet_class(a, lf_utf8_at(at, &size)));
}

static size_t before(const uint8_t *text, size_t at)
{
    do
        at--;
    while ((text[at] & 0xc0) == 0x80);
    return at;
}

static int stands_alone(const lf_added *t, const lf_alphabet *a, const uint8_t *text, size_t bytes,
                        size_t first, size_t end)
{
    return (first == 0 || !in_set(a, t->word, text + before(text, first))) &&
           (end == bytes || !in_set(a, t->word, text + end));
}

static void add_part(lf_parts *out, size_t first, size_t end, int64_t id)
{
    if (first >= end)
        return;
    if (out->n == out->cap) {
        out->cap = out->cap ? 2 * out->cap : 64;
        out->v = lf_realloc(out->v, out->cap * sizeof *out->v);
    }
    out->v[out->n++] = (lf_part){ first, end, id };
}

/* The stripped extent of a match at [*first, *end), not reaching back over `done`. */
static void strip(const lf_added *t, const lf_alphabet *a, const token *one, const uint8_t *text,
                  size_t bytes, size_t done, size_t *first, size_t *end)
{
    if (one->lstrip) {
        while (*first > 0 && in_set(a, t->space, text + before(text, *first)))
            *first = before(text, *first);
        *first = *first > done ? *first : done;
    }
    if (one->rstrip) {
        int size;
        while (*end < bytes && in_set(a, t->space, text + *end)) {
            lf_utf8_at(text + *end, &size);
            *end += (size_t)size;
        }
    }
}

/* One pass over text[from, to), which counts as a text of its own. */
static int cut_pass(const lf_added *t, int pass, const lf_alphabet *a, const uint8_t *whole, size_t from,
                    size_t to, lf_parts *out, lf_err *err)
{
    const token_list *p = &t->pass[pass];
    const uint8_t *text = whole + from;
    size_t bytes = to - from, done = 0, at = 0;

    while (p->n && at < bytes) {
        const token *one = p->begins[text[at]] ? longest_at(p, text + at, bytes - at) : NULL;
        if (!one) {
            at++;
            continue;
        }
        size_t first = at, end = at + one->bytes;
        at = end;
        if (one->single_word && !stands_alone(t, a, text, bytes, first, end))
            continue;
        strip(t, a, one, text, bytes, done, &first, &end);
        if (first > end)
            return lf_fail(err, "the added token \"%.60s\" at byte %zu lies inside white space that another "
                           "one took with it; the library fails here too", one->content, from + end);
        add_part(out, from + done, from + first, -1);
        add_part(out, from + first, from + end, one->id);
        done = end;
    }
    add_part(out, from + done, to, -1);
    return 0;
}

int lf_added_cut(const lf_added *t, const lf_alphabet *a, const uint8_t *text, size_t bytes, lf_parts *out,
                 lf_err *err)
{
    lf_parts raw = { 0 };
    int bad = cut_pass(t, 0, a, text, 0, bytes, &raw, err);

    for (size_t i = 0; i < raw.n && !bad; i++) {
        if (raw.v[i].id >= 0)
            add_part(out, raw.v[i].first, raw.v[i].end, raw.v[i].id);
        else
            bad = cut_pass(t, 1, a, text, raw.v[i].first, raw.v[i].end, out, err);
    }
    free(raw.v);
    return bad;
}

