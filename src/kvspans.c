/* SPDX-License-Identifier: Apache-2.0 */
#include "kvtable.h"

#include <stdlib.h>
#include <string.h>

/* The first span that ends at or behind `row`. */
static int spans_find(const lf_spans *s, int64_t row)
{
    int lo = 0, hi = s->n;

    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (s->v[mid].to < row)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void spans_insert(lf_spans *s, int i, lf_span span)
{
    if (s->n == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 8;
        s->v = lf_realloc(s->v, (size_t)s->capacity * sizeof *s->v);
    }
    memmove(s->v + i + 1, s->v + i, (size_t)(s->n - i) * sizeof *s->v);
    s->v[i] = span;
    s->n++;
}

int lf_spans_add(lf_spans *s, int64_t from, int64_t to)
{
    int i = spans_find(s, from);
    int left = i < s->n && s->v[i].to == from;                /* touches the span before */
    int next = i + left;

    if (next < s->n && s->v[next].from < to)
        return -1;
    int right = next < s->n && s->v[next].from == to;
    if (left && right) {
        s->v[i].to = s->v[next].to;
        memmove(s->v + next, s->v + next + 1, (size_t)(s->n - next - 1) * sizeof *s->v);
        s->n--;
    } else if (left) {
        s->v[i].to = to;
    } else if (right) {
        s->v[i].from = from;
    } else {
        spans_insert(s, i, (lf_span){ from, to });
    }
    return 0;
}

int64_t lf_spans_first_gap(const lf_spans *s)
{
    return s->n && s->v[0].from == 0 ? s->v[0].to : 0;
}

void lf_spans_free(lf_spans *s)
{
    free(s->v);
    memset(s, 0, sizeof *s);
}
