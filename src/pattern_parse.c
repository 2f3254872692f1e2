/* SPDX-License-Identifier: Apache-2.0 */
#include "pattern_parse.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 50, MAX_REPEAT = 65535 };

typedef struct parser {
    const uint8_t *begin, *p, *end;
    lf_units *out;
    lf_alphabet *alphabet;
    int depth;
    lf_err *err;
} parser;

static int alternatives(parser *s, int *nullable);

static void put(lf_units *u, uint32_t unit)
{
    if (u->n == u->cap) {
        u->cap = u->cap ? 2 * u->cap : 64;
        u->v = lf_realloc(u->v, u->cap * sizeof *u->v);
    }
    u->v[u->n++] = unit;
}

static void put_text(parser *s, const char *text)
{
    while (*text)
        put(s->out, (uint8_t)*text++);
}

static int refuse(const parser *s, const char *what)
{
    return lf_fail(s->err, "%s, at byte %zu, is not supported", what, (size_t)(s->p - s->begin));
}

static int looking_at(const parser *s, const char *text)
{
    size_t n = strlen(text);

    return (size_t)(s->end - s->p) >= n && memcmp(s->p, text, n) == 0;
}

static int skip(parser *s, const char *text)
{
    if (!looking_at(s, text))
        return 0;
    s->p += strlen(text);
    return 1;
}

static int put_set(parser *s, lf_charset *set)
{
    int i = lf_alphabet_add(s->alphabet, set, s->err);

    if (i < 0)
        return -1;
    put(s->out, LF_UNIT_SET + (uint32_t)i);
    return 0;
}

static uint32_t next_char(parser *s)
{
    int size;
    uint32_t c = lf_utf8_at(s->p, &size);

    s->p += size;
    return c;
}

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* At the digits of a \x or \u escape: exactly `digits` of them, or with `digits` 0 any number in braces. */
static int hex_escape(parser *s, int digits, uint32_t *code)
{
    int braces = digits == 0, n = 0;

    *code = 0;
    s->p += braces;
    while (s->p < s->end && n < (braces ? 8 : digits) && hex_digit(*s->p) >= 0) {
        *code = *code << 4 | (uint32_t)hex_digit(*s->p++);
        n++;
    }
    if (n == 0 || (!braces && n < digits) || (braces && !skip(s, "}")))
        return refuse(s, "an incomplete hexadecimal escape");
    if (*code >= LF_CODE_POINTS || (*code >= 0xd800 && *code < 0xe000) || (digits == 2 && *code > 0x7f))
        return refuse(s, "a hexadecimal escape that is not a character");
    return 0;
}

/* After "\p" or "\P": the set in braces. */
static int property(parser *s, int negated, lf_charset *set)
{
    const uint8_t *name = s->p + 1;
    const uint8_t *close = s->p < s->end ? memchr(s->p, '}', (size_t)(s->end - s->p)) : NULL;
    char what[64];

    if (!looking_at(s, "{") || !close)
        return refuse(s, "a property without {}");
    if (lf_charset_add_category(set, (const char *)name, (size_t)(close - name))) {
        size_t n = (size_t)lf_min(close - name, 30);
        memcpy(what, "the property ", 13);
        memcpy(what + 13, name, n);
        what[13 + n] = 0;
        return refuse(s, what);
    }
    s->p = close + 1;
    lf_charset_tidy(set);
    if (negated)
        lf_charset_invert(set);
    return 0;
}

static void add_latin1_numbers(lf_charset *set)
{
    lf_charset_add(set, 0xb2, 0xb3);
    lf_charset_add(set, 0xb9, 0xb9);
    lf_charset_add(set, 0xbc, 0xbe);
}

/* After a backslash: a set of characters that is not just one of them (1, `set` filled), or no such escape
 * (0). Outside of [], the library's \w has the superscripts and fractions of Latin-1 as well. */
static int set_escape(parser *s, int in_class, lf_charset *set)
{
    uint8_t c = *s->p;

    if (!strchr("sSdDwWpP", c) || c == 0)
        return 0;
    s->p++;
    if (c == 'p' || c == 'P')
        return property(s, c == 'P', set) ? -1 : 1;
    if (c == 's' || c == 'S')
        lf_charset_add_space(set);
    else if (c == 'd' || c == 'D')
        lf_charset_add_category(set, "Nd", 2);
    else
        lf_charset_add_word(set);
    if ((c | 32) == 'w' && !in_class)
        add_latin1_numbers(set);
    lf_charset_tidy(set);
    if (c < 'a')
        lf_charset_invert(set);
    return 1;
}

/* After a backslash: an escape that stands for one character. */
static int char_escape(parser *s, uint32_t *code)
{
    static const char names[] = "rntfvae", values[] = "\r\n\t\f\v\a\033";
    uint8_t c = *s->p;
    const char *k = c ? strchr(names, c) : NULL;
    char what[32] = "the escape \\?";

    if (k) {
        s->p++;
        *code = (uint8_t)values[k - names];
        return 0;
    }
    if (c == 'x' || c == 'u') {
        s->p++;
        return hex_escape(s, c == 'u' ? 4 : looking_at(s, "{") ? 0 : 2, code);
    }
    if (c >= 0x20 && c < 0x7f && !(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z')) {
        s->p++;
        *code = c;
        return 0;
    }
    what[12] = c >= 0x20 && c < 0x7f ? (char)c : '?';
    return refuse(s, what);
}

/* One member of a class: a character (0) or a set that was added (1). */
static int class_member(parser *s, lf_charset *set, uint32_t *code)
{
    lf_charset part = { 0 };
    int is_set;

    if (s->p == s->end)
        return refuse(s, "a [ without its ]");
    if (*s->p == '[')
        return refuse(s, "a class inside a class");
    if (looking_at(s, "&&"))
        return refuse(s, "&& in a class");
    if (*s->p != '\\') {
        *code = next_char(s);
        return 0;
    }
    if (++s->p == s->end)
        return refuse(s, "a backslash at the end");
    is_set = set_escape(s, 1, &part);
    if (is_set > 0)
        lf_charset_add_all(set, &part);
    lf_charset_free(&part);
    return is_set ? is_set : char_escape(s, code);
}

/* The rest of a range after its first character and "-". */
static int class_range(parser *s, lf_charset *set, uint32_t first)
{
    uint32_t last;
    int kind = class_member(s, set, &last);

    if (kind)
        return kind < 0 ? -1 : refuse(s, "a range up to a set");
    if (last < first)
        return refuse(s, "a range that ends before it begins");
    lf_charset_add(set, first, last);
    return 0;
}

static int class_members(parser *s, lf_charset *set)
{
    if (looking_at(s, "]"))
        return refuse(s, "a ] as the first member of a class");
    while (!looking_at(s, "]")) {
        uint32_t code;
        int kind = class_member(s, set, &code);
        if (kind < 0)
            return -1;
        int range = looking_at(s, "-") && !looking_at(s, "-]");
        if (kind == 1 && range)
            return refuse(s, "a range that begins with a set");
        if (kind == 1)
            continue;
        if (!range) {
            lf_charset_add(set, code, code);
            continue;
        }
        s->p++;
        if (class_range(s, set, code))
            return -1;
        if (looking_at(s, "-") && !looking_at(s, "-]"))
            return refuse(s, "a - after a range");
    }
    s->p++;
    return 0;
}

/* After "[". */
static int char_class(parser *s)
{
    lf_charset set = { 0 };
    int negated = skip(s, "^");

    if (class_members(s, &set)) {
        lf_charset_free(&set);
        return -1;
    }
    lf_charset_tidy(&set);
    if (negated)
        lf_charset_invert(&set);
    return put_set(s, &set);
}

static int single(parser *s, uint32_t code)
{
    lf_charset set = { 0 };

    lf_charset_add(&set, code, code);
    return put_set(s, &set);
}

/* After a backslash, outside a class. */
static int escape(parser *s)
{
    lf_charset set = { 0 };
    uint32_t code;

    if (s->p == s->end)
        return refuse(s, "a backslash at the end");
    int kind = set_escape(s, 0, &set);
    if (kind > 0)
        return put_set(s, &set);
    lf_charset_free(&set);
    return kind < 0 || char_escape(s, &code) ? -1 : single(s, code);
}

static int any_but_newline(parser *s)
{
    lf_charset set = { 0 };

    lf_charset_add(&set, '\n', '\n');
    lf_charset_invert(&set);
    return put_set(s, &set);
}

/* After "(". */
static int group(parser *s, int *nullable, int *look)
{
    static const char *const kind[] = { "?:", "?>", "?=", "?!", "?<=", "?<!" };
    int k = 0;

    if (looking_at(s, "?")) {
        while (k < 6 && !skip(s, kind[k]))
            k++;
        if (k == 6)
            return refuse(s, "this kind of (?");
    }
    if (++s->depth > MAX_DEPTH)
        return refuse(s, "nesting this deep");
    put_text(s, "(");
    put_text(s, kind[k]);
    if (alternatives(s, nullable))
        return -1;
    if (!skip(s, ")"))
        return refuse(s, "a ( without its )");
    put_text(s, ")");
    s->depth--;
    *look = k >= 2;
    *nullable |= *look;
    return 0;
}

static int atom(parser *s, int *nullable, int *look)
{
    *nullable = *look = 0;
    if (strchr("^$", *s->p) && *s->p)
        return refuse(s, "an anchor");
    if (strchr("*+?{", *s->p) && *s->p)
        return refuse(s, "a quantifier of nothing");
    if (skip(s, "["))
        return char_class(s);
    if (skip(s, "("))
        return group(s, nullable, look);
    if (skip(s, "\\"))
        return escape(s);
    if (skip(s, "."))
        return any_but_newline(s);
    return single(s, next_char(s));
}

static int number(parser *s, int *value)
{
    const uint8_t *from = s->p;

    *value = 0;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9' && *value <= MAX_REPEAT)
        *value = 10 * *value + (*s->p++ - '0');
    return s->p > from && *value <= MAX_REPEAT ? 0 : refuse(s, "this number of repetitions");
}

/* After "{". */
static int interval(parser *s, int *least, int *unbounded)
{
    int most, open = 0, fixed = 0;
    char text[40];

    if (number(s, least))
        return -1;
    most = *least;
    if (!skip(s, ","))
        fixed = 1;
    else if (looking_at(s, "}"))
        open = 1;
    else if (number(s, &most))
        return -1;
    if (!skip(s, "}") || most < *least)
        return refuse(s, "this kind of {}");
    if (looking_at(s, "+") || (fixed && looking_at(s, "?")))
        return refuse(s, "a + after {}, or a ? after {n}");
    snprintf(text, sizeof text, open ? "{%d,}" : "{%d,%d}", *least, most);
    put_text(s, text);
    *unbounded = open;
    return 0;
}

/* What may follow an atom. */
static int quantifier(parser *s, int *nullable, int look)
{
    int least = 1, unbounded = 0, any = 1, braces = 0;

    if (skip(s, "*")) {
        put_text(s, "*");
        least = 0;
        unbounded = 1;
    } else if (skip(s, "+")) {
        put_text(s, "+");
        unbounded = 1;
    } else if (skip(s, "?")) {
        put_text(s, "?");
        least = 0;
    } else if (skip(s, "{")) {
        braces = 1;
        if (interval(s, &least, &unbounded))
            return -1;
    } else {
        any = 0;
    }
    if (!any)
        return 0;
    if (look)
        return refuse(s, "a quantifier on a look-around");
    if (unbounded && *nullable)
        return refuse(s, "repeating without bound what can match nothing");
    if (skip(s, "?"))
        put_text(s, "?");
    else if (!braces && skip(s, "+"))
        put_text(s, "+");
    if (s->p < s->end && *s->p && strchr("*+?{", *s->p))
        return refuse(s, "a quantifier of a quantifier");
    *nullable |= least == 0;
    return 0;
}

static int sequence(parser *s, int *nullable)
{
    *nullable = 1;
    while (s->p < s->end && *s->p != '|' && *s->p != ')') {
        int empty, look;
        if (atom(s, &empty, &look) || quantifier(s, &empty, look))
            return -1;
        *nullable &= empty;
    }
    return 0;
}

static int alternatives(parser *s, int *nullable)
{
    int one;

    if (sequence(s, nullable))
        return -1;
    while (skip(s, "|")) {
        put_text(s, "|");
        if (sequence(s, &one))
            return -1;
        *nullable |= one;
    }
    return 0;
}

int lf_units_parse(lf_units *u, const char *text, size_t bytes, lf_alphabet *a, lf_err *err)
{
    const uint8_t *p = (const uint8_t *)text;
    parser s = { p, p, p + bytes, u, a, 0, err };
    int nullable;

    if (alternatives(&s, &nullable))
        return -1;
    return s.p < s.end ? refuse(&s, "a ) without its (") : 0;
}

int lf_units_literal(lf_units *u, const char *text, size_t bytes, lf_alphabet *a, lf_err *err)
{
    const uint8_t *p = (const uint8_t *)text;
    parser s = { p, p, p + bytes, u, a, 0, err };

    while (s.p < s.end) {
        if (single(&s, next_char(&s)))
            return -1;
    }
    return 0;
}
