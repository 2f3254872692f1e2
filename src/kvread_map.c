/* SPDX-License-Identifier: Apache-2.0
 *
 * The virtual datasets of a master: every row comes from one listed part, which says that it has this row there.
 */
#include "kvread_parts.h"
#include "kvtable.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rows of a selection that takes whole rows; -1: another shape. */
static int selected_rows(hid_t space, const lf_kv_piece *p, lf_span *rows)
{
    int rank = p->cols < 0 ? 1 : 2;
    hsize_t from[2] = { 0, 0 }, to[2] = { 0, 0 };

    if (space < 0 || H5Sget_simple_extent_ndims(space) != rank || H5Sget_select_bounds(space, from, to) < 0)
        return -1;
    int64_t n = (int64_t)(to[0] - from[0]) + 1;
    *rows = (lf_span){ (int64_t)from[0], (int64_t)to[0] + 1 };
    if (rank > 1 && (from[1] != 0 || to[1] + 1 != (hsize_t)p->cols))
        return -1;
    return H5Sget_select_npoints(space) == n * (rank > 1 ? p->cols : 1) ? 0 : -1;
}

/* Where in a part's dataset row `row` of the prompt lies; -1: not there. */
static int64_t place_of(const lf_kv_table *own, int64_t row)
{
    int64_t before = 0;

    for (int i = 0; i < own->ranges; i++) {
        if (row >= own->range[i].from && row < own->range[i].to)
            return before + row - own->range[i].from;
        before += own->range[i].to - own->range[i].from;
    }
    return -1;
}

static int part_named(const lf_kvread *r, const char *name)
{
    for (int i = 0; i < lf_kvread_parts(r); i++) {
        if (!strcmp(lf_kvread_part_name(r, i), name))
            return i;
    }
    return -1;
}

static void percent_single(char *text)
{
    char *to = text;

    for (const char *p = text; *p; p++) {
        *to++ = *p;
        p += p[0] == '%' && p[1] == '%';
    }
    *to = 0;
}

typedef struct mapping {
    char file[512], dataset[160];
    lf_span to, from;
} mapping;

static int mapping_get(hid_t layout, size_t k, const lf_kv_piece *p, mapping *m)
{
    hid_t to = H5Pget_virtual_vspace(layout, k), from = H5Pget_virtual_srcspace(layout, k);
    ssize_t a = H5Pget_virtual_filename(layout, k, m->file, sizeof m->file);
    ssize_t b = H5Pget_virtual_dsetname(layout, k, m->dataset, sizeof m->dataset);
    int bad = selected_rows(to, p, &m->to) || selected_rows(from, p, &m->from) || a < 0 || b < 0 ||
              (size_t)a >= sizeof m->file || (size_t)b >= sizeof m->dataset;

    if (to >= 0)
        H5Sclose(to);
    if (from >= 0)
        H5Sclose(from);
    if (!bad)
        percent_single(m->file);
    return bad ? -1 : 0;
}

static int mapping_check(lf_kvread *r, lf_kvread *const *part, int64_t number, const char *path, const mapping *m,
                         lf_spans *seen, lf_err *err)
{
    int i = part_named(r, m->file);
    lf_kv_table own;

    if (i < 0)
        return lf_fail(err, "is read from %s, which is no listed part", m->file);
    int there = lf_kvread_part_table(part[i], number, &own, err);
    if (there < 0)
        return -1;
    if (!there || strcmp(m->dataset, path) || m->to.to - m->to.from != m->from.to - m->from.from ||
        place_of(&own, m->to.from) != m->from.from || place_of(&own, m->to.to - 1) != m->from.to - 1)
        return lf_fail(err, "rows %lld..%lld are not where %s has them", (long long)m->to.from,
                       (long long)m->to.to - 1, m->file);
    if (lf_spans_add(seen, m->to.from, m->to.to))
        return lf_fail(err, "rows %lld..%lld come from several parts", (long long)m->to.from, (long long)m->to.to - 1);
    return 0;
}

static int layout_check(lf_kvread *r, lf_kvread *const *part, hid_t layout, int64_t number, const lf_kv_table *t,
                        int piece, lf_err *err)
{
    const lf_kv_piece *p = &t->piece[piece];
    size_t count = 0;
    lf_spans seen = { 0 };
    char path[128];
    mapping m;
    int rc = 0;

    snprintf(path, sizeof path, "%s%s", t->path, p->suffix);
    if (H5Pget_virtual_count(layout, &count) < 0)
        rc = lf_h5_fail(err, "is no readable virtual dataset");
    for (size_t k = 0; k < count && !rc; k++)
        rc = mapping_get(layout, k, p, &m) ? lf_fail(err, "mapping %zu is not one of whole rows", k)
                                           : mapping_check(r, part, number, path, &m, &seen, err);
    if (!rc && lf_spans_first_gap(&seen) != t->rows)
        rc = lf_fail(err, "row %lld comes from no part", (long long)lf_spans_first_gap(&seen));
    lf_spans_free(&seen);
    return rc;
}

int lf_kvread_virtual(hid_t d)
{
    hid_t layout = H5Dget_create_plist(d);
    int is = layout >= 0 && H5Pget_layout(layout) == H5D_VIRTUAL;

    if (layout >= 0)
        H5Pclose(layout);
    return is;
}

int lf_kvread_map_check(lf_kvread *r, lf_kvread *const *part, hid_t d, int64_t number, const lf_kv_table *t, int piece,
                        lf_err *err)
{
    hid_t layout = H5Dget_create_plist(d);
    int rc = layout < 0 ? lf_h5_fail(err, "is not readable") : layout_check(r, part, layout, number, t, piece, err);

    if (layout >= 0)
        H5Pclose(layout);
    return rc ? lf_fail_in(err, "%s: %s%s", r->path, t->path, t->piece[piece].suffix) : 0;
}
