/* SPDX-License-Identifier: Apache-2.0 */
#include "charset.h"

#include <stdlib.h>
#include <string.h>

void lf_charset_add(lf_charset *s, uint32_t first, uint32_t last)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 8;
        s->range = lf_realloc(s->range, (size_t)s->cap * sizeof *s->range);
    }
    s->range[s->n][0] = first;
    s->range[s->n++][1] = last;
}

void lf_charset_add_all(lf_charset *s, const lf_charset *more)
{
    for (int i = 0; i < more->n; i++)
        lf_charset_add(s, more->range[i][0], more->range[i][1]);
}

static int range_order(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

void lf_charset_tidy(lf_charset *s)
{
    int kept = 0;

    if (s->n == 0)
        return;
    qsort(s->range, (size_t)s->n, sizeof *s->range, range_order);
    for (int i = 1; i < s->n; i++) {
        uint32_t *last = &s->range[kept][1];
        if (s->range[i][0] <= *last + 1) {
            if (s->range[i][1] > *last)
                *last = s->range[i][1];
        } else {
            kept++;
            memmove(s->range[kept], s->range[i], sizeof *s->range);
        }
    }
    s->n = kept + 1;
}

void lf_charset_invert(lf_charset *s)
{
    lf_charset out = { 0 };
    uint32_t next = 0;

    for (int i = 0; i < s->n; i++) {
        if (s->range[i][0] > next)
            lf_charset_add(&out, next, s->range[i][0] - 1);
        next = s->range[i][1] + 1;
    }
    if (next < LF_CODE_POINTS)
        lf_charset_add(&out, next, LF_CODE_POINTS - 1);
    free(s->range);
    *s = out;
}

int lf_charset_same(const lf_charset *a, const lf_charset *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->range, b->range, (size_t)a->n * sizeof *a->range) == 0);
}

void lf_charset_free(lf_charset *s)
{
    free(s->range);
    *s = (lf_charset){ 0 };
}

int lf_charset_add_category(lf_charset *s, const char *name, size_t length)
{
    int found = -1;

    if (length < 1 || length > 2)
        return -1;
    for (int i = 0; i < lf_category_runs; i++) {
        uint32_t first = lf_category_run[i] >> 8;
        uint32_t end = i + 1 < lf_category_runs ? lf_category_run[i + 1] >> 8 : LF_CODE_POINTS;
        if (memcmp(lf_category_name[lf_category_run[i] & 255], name, length) == 0) {
            lf_charset_add(s, first, end - 1);
            found = 0;
        }
    }
    return found;
}

void lf_charset_add_space(lf_charset *s)
{
    for (int i = 0; i < lf_space_ranges; i++)
        lf_charset_add(s, lf_space_range[i][0], lf_space_range[i][1]);
}

void lf_charset_add_word(lf_charset *s)
{
    static const char *const part[] = { "L", "M", "Nd", "Pc" };

    for (int i = 0; i < 4; i++)
        lf_charset_add_category(s, part[i], strlen(part[i]));
    for (int i = 0; i < lf_word_extra_ranges; i++)
        lf_charset_add(s, lf_word_extra_range[i][0], lf_word_extra_range[i][1]);
}
