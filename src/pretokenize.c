/* SPDX-License-Identifier: Apache-2.0 */
#include "pretokenize_parse.h"

#include <stdlib.h>
#include <string.h>

static void push(lf_spans *s, size_t first, size_t end)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 256;
        s->v = lf_realloc(s->v, s->cap * sizeof *s->v);
    }
    s->v[s->n++] = (lf_span){ (uint32_t)first, (uint32_t)end };
}

static void push_piece(lf_spans *s, size_t first, size_t end)
{
    if (end > first)
        push(s, first, end);
}

/* ---- where a component's delimiter matches ---- */

/* The matches in one span, covering it in turns: even entries are what lies between, odd ones
 * matches.  Both may be empty.  An empty match right after a match does not count; the search goes on a
 * character later. */
static int split_matches(const lf_stage *st, lf_pieces *w, lf_span in, lf_err *err)
{
    const uint8_t *at = w->classes + in.first;
    size_t n = in.end - in.first, from = 0, done = 0, first, end;
    int any = 0;

    w->matches.n = 0;
    while (from <= n) {
        int found = lf_pattern_find(st->pattern, w->matcher, at, n, from, &first, &end, err);
        if (found < 0)
            return -1;
        if (!found)
            break;
        if (first == end && any && end == done) {
            from++;
            continue;
        }
        push(&w->matches, in.first + done, in.first + first);
        push(&w->matches, in.first + first, in.first + end);
        from = done = end;
        any = 1;
    }
    push(&w->matches, in.first + done, in.end);
    return 0;
}

static void digit_matches(const lf_stage *st, const lf_alphabet *a, lf_pieces *w, lf_span in)
{
    uint32_t done = in.first;

    w->matches.n = 0;
    for (uint32_t i = in.first; i < in.end; i++) {
        if (lf_alphabet_has(a, st->set, w->classes[i])) {
            push(&w->matches, done, i);
            push(&w->matches, i, i + 1);
            done = i + 1;
        }
    }
    push(&w->matches, done, in.end);
}

/* ---- what becomes of them ---- */

/* A part of the cover: is it a match, after `invert`?  Empty parts between matches do not exist for the
 * library, empty matches do. */
static int is_match(const lf_stage *st, size_t i)
{
    return (int)(i & 1) ^ st->invert;
}

static int exists(const lf_spans *m, size_t i)
{
    return (i & 1) || m->v[i].end > m->v[i].first;
}

static void keep_isolated(const lf_stage *st, const lf_spans *m, lf_spans *out)
{
    for (size_t i = 0; i < m->n; i++) {
        if (st->behavior == LF_ISOLATED || !is_match(st, i))
            push_piece(out, m->v[i].first, m->v[i].end);
    }
}

/* Parts are joined to the one before them: in Contiguous when both are matches or both are not, in
 * MergedWithPrevious when they are a match and the one before is not. */
static void keep_joined(const lf_stage *st, const lf_spans *m, lf_spans *out)
{
    size_t base = out->n;
    int before = 0;

    for (size_t i = 0; i < m->n; i++) {
        if (!exists(m, i))
            continue;
        int match = is_match(st, i);
        int join = st->behavior == LF_CONTIGUOUS ? match == before : match && !before;
        if (join && out->n > base)
            out->v[out->n - 1].end = m->v[i].end;
        else
            push(out, m->v[i].first, m->v[i].end);
        before = match;
    }
}

/* The same from the right: a match is joined to the part after it unless that is a match. */
static void keep_with_next(const lf_stage *st, const lf_spans *m, lf_spans *out)
{
    size_t base = out->n;
    int before = 0;

    for (size_t i = m->n; i-- > 0; ) {
        if (!exists(m, i))
            continue;
        int match = is_match(st, i);
        if (match && !before && out->n > base)
            out->v[out->n - 1].first = m->v[i].first;
        else
            push(out, m->v[i].first, m->v[i].end);
        before = match;
    }
    for (size_t i = base, k = out->n; i + 1 < k; i++) {
        lf_span t = out->v[i];
        out->v[i] = out->v[--k];
        out->v[k] = t;
    }
}

static void drop_empty(lf_spans *out, size_t base)
{
    size_t kept = base;

    for (size_t i = base; i < out->n; i++) {
        if (out->v[i].end > out->v[i].first)
            out->v[kept++] = out->v[i];
    }
    out->n = kept;
}

static void keep(const lf_stage *st, const lf_spans *m, lf_spans *out)
{
    size_t base = out->n;

    if (st->behavior == LF_ISOLATED || st->behavior == LF_REMOVED) {
        keep_isolated(st, m, out);
        return;
    }
    if (st->behavior == LF_MERGED_WITH_NEXT)
        keep_with_next(st, m, out);
    else
        keep_joined(st, m, out);
    drop_empty(out, base);
}

/* ---- stages ---- */

static int run_split(const lf_stage *st, const lf_alphabet *a, lf_pieces *w, lf_err *err)
{
    lf_spans t;

    w->next.n = 0;
    for (size_t i = 0; i < w->chars.n; i++) {
        if (st->kind == LF_STAGE_DIGITS)
            digit_matches(st, a, w, w->chars.v[i]);
        else if (split_matches(st, w, w->chars.v[i], err))
            return -1;
        keep(st, &w->matches, &w->next);
    }
    t = w->chars;
    w->chars = w->next;
    w->next = t;
    return 0;
}

/* The spans of characters as spans of bytes of `text`.  They ascend. */
static void to_bytes(const uint8_t *text, size_t bytes, const lf_spans *chars, lf_spans *out)
{
    size_t at = 0;
    uint32_t count = 0;

    out->n = 0;
    for (size_t i = 0; i < chars->n; i++) {
        lf_span c = chars->v[i];
        while (count < c.first) {
            for (at++; at < bytes && (text[at] & 0xc0) == 0x80; at++)
                ;
            count++;
        }
        size_t first = at;
        while (count < c.end) {
            for (at++; at < bytes && (text[at] & 0xc0) == 0x80; at++)
                ;
            count++;
        }
        push(out, first, at);
    }
}

/* Put a space before every piece that does not begin with one: a new text, new classes, new spans. */
static int add_spaces(lf_pieces *w, const lf_alphabet *a, size_t *bytes, lf_err *err)
{
    size_t n = 0, count = 0, total = w->bytes.n;
    uint8_t *text;

    for (size_t i = 0; i < w->bytes.n; i++)
        total += w->bytes.v[i].end - w->bytes.v[i].first;
    if (total >= (size_t)1 << 31)
        return lf_fail(err, "a text of %zu bytes with its added spaces; below 2 GiB works", total);
    text = lf_alloc(total);
    for (size_t i = 0; i < w->bytes.n; i++) {
        lf_span b = w->bytes.v[i];
        size_t chars = w->chars.v[i].end - w->chars.v[i].first;
        if (w->text[b.first] != ' ') {
            text[n++] = ' ';
            chars++;
        }
        memcpy(text + n, w->text + b.first, b.end - b.first);
        n += b.end - b.first;
        w->chars.v[i] = (lf_span){ (uint32_t)count, (uint32_t)(count + chars) };
        count += chars;
    }
    free(w->spaced);
    w->text = w->spaced = text;
    *bytes = n;
    if (n > w->classes_cap)
        w->classes = lf_realloc(w->classes, w->classes_cap = n);
    lf_alphabet_map(a, text, n, w->classes);
    return 0;
}

int lf_pretokenizer_cut(const lf_pretokenizer *p, const lf_alphabet *a, const uint8_t *text, size_t bytes,
                        lf_pieces *w, lf_err *err)
{
    if (!w->matcher)
        w->matcher = lf_matcher_new();
    if (bytes > w->classes_cap)
        w->classes = lf_realloc(w->classes, w->classes_cap = bytes);
    w->text = text;
    w->chars.n = 0;
    push_piece(&w->chars, 0, lf_alphabet_map(a, text, bytes, w->classes));
    for (int i = 0; i < p->stages; i++) {
        if (p->stage[i].prefix_space) {
            to_bytes(w->text, bytes, &w->chars, &w->bytes);
            if (add_spaces(w, a, &bytes, err))
                return -1;
        }
        if (p->stage[i].kind != LF_STAGE_BYTES && run_split(&p->stage[i], a, w, err))
            return -1;
    }
    to_bytes(w->text, bytes, &w->chars, &w->bytes);
    return 0;
}

void lf_pieces_free(lf_pieces *w)
{
    free(w->bytes.v);
    free(w->chars.v);
    free(w->next.v);
    free(w->matches.v);
    free(w->classes);
    free(w->spaced);
    lf_matcher_free(w->matcher);
    *w = (lf_pieces){ 0 };
}
