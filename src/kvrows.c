/* SPDX-License-Identifier: Apache-2.0 */
#include "kvread_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int shape_check(hid_t d, const lf_kv_table *t, const lf_kv_piece *p, lf_err *err)
{
    hid_t s = H5Dget_space(d);
    int rank = p->cols < 0 ? 1 : 2;
    hsize_t dims[2] = { 0, 0 };

    if (s < 0 || H5Sget_simple_extent_ndims(s) != rank || H5Sget_simple_extent_dims(s, dims, NULL) != rank) {
        H5Sclose(s);
        return lf_fail(err, "does not have %d dimension%s", rank, lf_s(rank));
    }
    H5Sclose(s);
    if (dims[0] != (hsize_t)t->rows)
        return lf_fail(err, "has %llu row%s instead of %lld", (unsigned long long)dims[0], lf_s((int64_t)dims[0]),
                       (long long)t->rows);
    if (rank > 1 && dims[1] != (hsize_t)p->cols)
        return lf_fail(err, "has %llu column%s instead of %lld", (unsigned long long)dims[1], lf_s((int64_t)dims[1]),
                       (long long)p->cols);
    return 0;
}

static int type_check(hid_t d, lf_elem elem, lf_err *err)
{
    hid_t have = H5Dget_type(d), want = lf_h5_type(elem);
    int same = have >= 0 && H5Tequal(have, want) > 0;

    H5Tclose(have);
    H5Tclose(want);
    return same ? 0 : lf_fail(err, "does not have the element type of this format");
}

static int position_check(hid_t d, const lf_kv_table *t, lf_err *err)
{
    int64_t first;

    if (t->first_position < 0)
        return 0;
    if (lf_h5_get_i64(d, "first_position", &first, err))
        return -1;
    return first == t->first_position
               ? 0 : lf_fail(err, "first_position is %lld instead of %lld", (long long)first,
                             (long long)t->first_position);
}

hid_t lf_kvread_dataset(lf_kvread *r, const lf_kv_table *t, int piece, lf_err *err)
{
    const lf_kv_piece *p = &t->piece[piece];
    char path[128];

    snprintf(path, sizeof path, "%s%s", t->path, p->suffix);
    if (!lf_h5_has_path(r->file, path)) {
        lf_fail(err, "%s: %s is missing", r->path, path);
        return -1;
    }
    hid_t d = H5Dopen2(r->file, path, H5P_DEFAULT);
    if (d < 0) {
        lf_h5_fail(err, "%s: %s is not a readable dataset", r->path, path);
        return -1;
    }
    if (!shape_check(d, t, p, err) && !type_check(d, p->elem, err) && !position_check(d, t, err))
        return d;
    H5Dclose(d);
    lf_fail_in(err, "%s: %s", r->path, path);
    return -1;
}

int lf_kvread_stored(lf_kvread *r, hid_t d, const lf_kv_table *t, int piece, int64_t row0, int64_t rows, void *out,
                     lf_err *err)
{
    const lf_kv_piece *p = &t->piece[piece];
    int rank = p->cols < 0 ? 1 : 2, rc = -1;
    hsize_t start[2] = { (hsize_t)row0, 0 }, count[2] = { (hsize_t)rows, (hsize_t)lf_max(p->cols, 0) };

    if (rows == 0 || p->cols == 0)
        return 0;
    hid_t type = lf_h5_type(p->elem), file = H5Dget_space(d), memory = H5Screate_simple(rank, count, NULL);
    if (H5Sselect_hyperslab(file, H5S_SELECT_SET, start, NULL, count, NULL) >= 0 &&
        H5Dread(d, type, memory, file, H5P_DEFAULT, out) >= 0)
        rc = 0;
    else
        lf_h5_fail(err, "%s: rows %lld..%lld of %s%s cannot be read", r->path, (long long)row0,
                   (long long)(row0 + rows - 1), t->path, p->suffix);
    H5Sclose(memory);
    H5Sclose(file);
    H5Tclose(type);
    return rc;
}

static int piece_rows(lf_kvread *r, const lf_kv_table *t, int piece, int64_t row0, int64_t rows, uint8_t *packed,
                      lf_err *err)
{
    const lf_kv_piece *p = &t->piece[piece];
    size_t bytes = lf_kv_piece_row_bytes(p);
    hid_t d = lf_kvread_dataset(r, t, piece, err);

    if (d < 0)
        return -1;
    uint8_t *stored = t->pieces == 1 ? packed : lf_alloc(bytes * (size_t)rows);
    int rc = lf_kvread_stored(r, d, t, piece, row0, rows, stored, err);
    H5Dclose(d);
    if (t->pieces > 1) {
        for (int64_t i = 0; i < rows && !rc; i++)
            memcpy(packed + (size_t)i * t->row_bytes + p->at, stored + (size_t)i * bytes, bytes);
        free(stored);
    }
    return rc;
}

static int table_rows(lf_kvread *r, int64_t number, int64_t row0, int64_t rows, void *packed, lf_err *err)
{
    lf_kv_table t;

    if (!lf_kv_table_at(&r->meta, number, &t))
        return lf_fail(err, "%s has no such rows", r->path);
    if (row0 < 0 || rows < 0 || row0 > t.rows || rows > t.rows - row0)
        return lf_fail(err, "%s: %lld row%s from %lld on: %s has %lld", r->path, (long long)rows, lf_s(rows),
                       (long long)row0, t.path, (long long)t.rows);
    if (t.pieces > 1)
        memset(packed, 0, t.row_bytes * (size_t)rows);
    for (int i = 0; i < t.pieces; i++) {
        if (piece_rows(r, &t, i, row0, rows, packed, err))
            return -1;
    }
    return 0;
}

int lf_kvread_rows(lf_kvread *r, int64_t position, int layer, lf_kv_part part, int64_t row0, int64_t rows,
                   void *packed, lf_err *err)
{
    const lf_kv_meta *m = &r->meta;

    if (layer < 0 || layer >= r->model.layers || (int)part < 0 || part >= LF_PARTS)
        return lf_fail(err, "%s: no layer %d, part %d", r->path, layer, (int)part);
    if (position && (position < 0 || !m->frontier || position % m->frontier || position >= m->num_tokens))
        return lf_fail(err, "%s: %lld is no frontier of this file", r->path, (long long)position);
    return table_rows(r, lf_kv_part_number(m, position, layer, part), row0, rows, packed, err);
}

int lf_kvread_floats(lf_kvread *r, int64_t position, int layer, lf_kv_part part, int64_t row0, int64_t rows,
                     float *out, lf_err *err)
{
    if (layer < 0 || layer >= r->model.layers || (int)part < 0 || part >= LF_PARTS || rows < 0)
        return lf_fail(err, "%s: no layer %d, part %d", r->path, layer, (int)part);
    lf_row_fmt fmt = lf_part_fmt(part, r->meta.kv_dtype);
    int64_t width = lf_part_width(&r->model, r->model.kind[layer], part);
    size_t bytes = lf_row_bytes(&r->model, fmt, width);
    uint8_t *packed = lf_alloc(bytes * (size_t)rows);
    int rc = lf_kvread_rows(r, position, layer, part, row0, rows, packed, err);

    for (int64_t i = 0; i < rows && !rc; i++)
        lf_row_floats(&r->model, fmt, width, packed + (size_t)i * bytes, out + i * width);
    free(packed);
    return rc;
}

int lf_kvread_tokens(lf_kvread *r, int64_t first, int64_t count, uint32_t *ids, lf_err *err)
{
    return table_rows(r, lf_kv_tokens_number(&r->meta), first, count, ids, err);
}

int lf_kvread_page_hash(lf_kvread *r, uint8_t *out, lf_err *err)
{
    return table_rows(r, lf_kv_pages_number(&r->meta), 0, lf_kv_page_count(r->meta.num_tokens), out, err);
}

int lf_kvread_logits(lf_kvread *r, lf_logits_kind kind, int64_t row0, int64_t rows, void *data, lf_err *err)
{
    int64_t scale = kind == LF_LOGITS_LAST ? r->model.vocab : 1;

    if ((int)kind < 0 || kind > LF_LOGITS_LOGPROB)
        return lf_fail(err, "%s: no logits of kind %d", r->path, (int)kind);
    if (kind == LF_LOGITS_LAST && (row0 < 0 || row0 > 1 || rows < 0 || rows > 1))
        return lf_fail(err, "%s: /logits/last is one row", r->path);
    return table_rows(r, lf_kv_logits_number(&r->meta, kind), row0 * scale, rows * scale, data, err);
}
