/* SPDX-License-Identifier: Apache-2.0 */
#include "kvtable.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One dataset while its rows come in. */
typedef struct piece_state {
    char path[128];
    hid_t dataset;
    size_t row_bytes;
    int64_t chunk_rows, chunks;
    uint8_t **data;                        /* [chunks], NULL before the first row and after writing */
    int64_t *filled;                       /* [chunks] */
    uint32_t *crc;                         /* [chunks] */
} piece_state;

struct lf_kvtable {
    hid_t file;
    const char *name;
    lf_kv_table table;
    lf_spans spans;
    piece_state piece[3];
};

/* The largest power of two of rows that fits a chunk. */
static int64_t rows_per_chunk(size_t chunk_bytes, size_t row_bytes)
{
    int64_t rows = 1;

    while ((size_t)rows * 2 * row_bytes <= chunk_bytes && rows < (int64_t)1 << 40)
        rows *= 2;
    return rows;
}

static int set_layout(hid_t layout, const piece_state *s, int rank, const hsize_t *dims)
{
    hsize_t chunk[2] = { (hsize_t)s->chunk_rows, dims[1] };

    if (H5Pset_obj_track_times(layout, 0) < 0 || H5Pset_fill_time(layout, H5D_FILL_TIME_NEVER) < 0)
        return -1;
    return s->chunks > 1 && H5Pset_chunk(layout, rank, chunk) < 0 ? -1 : 0;
}

static int dataset_create(lf_kvtable *t, piece_state *s, const lf_kv_piece *p, lf_err *err)
{
    int rank = p->cols < 0 ? 1 : 2, rc = 0;
    hsize_t dims[2] = { (hsize_t)t->table.rows, (hsize_t)lf_max(p->cols, 0) };
    hid_t type = lf_h5_type(p->elem), space = H5Screate_simple(rank, dims, NULL);
    hid_t layout = H5Pcreate(H5P_DATASET_CREATE);

    if (!set_layout(layout, s, rank, dims))
        s->dataset = H5Dcreate2(t->file, s->path, type, space, H5P_DEFAULT, layout, H5P_DEFAULT);
    if (s->dataset < 0)
        rc = lf_h5_fail(err, "cannot write %s (%s)", t->name, s->path);
    H5Pclose(layout);
    H5Sclose(space);
    H5Tclose(type);
    return rc;
}

int lf_kvtable_attributes(hid_t d, const lf_kv_table *t, const lf_kv_piece *p, lf_err *err)
{
    const char *labels[2] = { t->label, p->label };
    int64_t range[2 * LF_KV_RANGES];

    if (lf_h5_put_labels(d, p->cols < 0 ? 1 : 2, labels, err))
        return -1;
    if (p->dtype && lf_h5_put_text(d, "dtype", p->dtype, err))
        return -1;
    if (p->dtype && !strcmp(p->dtype, "float4_e2m1fn") &&
        lf_h5_put_text(d, "packing", "two codes a byte, low nibble first", err))
        return -1;
    if (t->hadamard && lf_h5_put_text(d, "transform", "hadamard", err))
        return -1;
    for (int i = 0; i < t->ranges; i++) {
        range[2 * i] = t->range[i].from;
        range[2 * i + 1] = t->range[i].to;
    }
    if (t->ranges && lf_h5_put_i64s(d, "rows", t->ranges, 2, range, err))
        return -1;
    return t->first_position < 0 ? 0 : lf_h5_put_i64(d, "first_position", t->first_position, err);
}

static int piece_open(lf_kvtable *t, int i, size_t chunk_bytes, lf_err *err)
{
    const lf_kv_piece *p = &t->table.piece[i];
    piece_state *s = &t->piece[i];

    s->row_bytes = lf_kv_piece_row_bytes(p);
    s->chunk_rows = rows_per_chunk(chunk_bytes, s->row_bytes);
    s->chunks = lf_ceil_div(t->table.rows, s->chunk_rows);
    s->data = lf_alloc((size_t)s->chunks * sizeof *s->data);
    s->filled = lf_alloc((size_t)s->chunks * sizeof *s->filled);
    s->crc = lf_alloc((size_t)s->chunks * sizeof *s->crc);
    snprintf(s->path, sizeof s->path, "%s%s", t->table.path, p->suffix);
    if (lf_h5_parents(t->file, s->path, err))
        return lf_fail_in(err, "cannot write %s", t->name);
    if (dataset_create(t, s, p, err))
        return -1;
    if (lf_kvtable_attributes(s->dataset, &t->table, p, err) ||
        (s->chunks > 1 && lf_h5_put_i64(s->dataset, "rows_per_chunk", s->chunk_rows, err)))
        return lf_fail_in(err, "cannot write %s (%s)", t->name, s->path);
    return 0;
}

lf_kvtable *lf_kvtable_open(hid_t file, const char *name, size_t chunk_bytes, const lf_kv_table *table, lf_err *err)
{
    lf_kvtable *t = lf_alloc(sizeof *t);

    t->file = file;
    t->name = name;
    t->table = *table;
    for (int i = 0; i < table->pieces; i++)
        t->piece[i].dataset = -1;
    for (int i = 0; i < table->pieces; i++) {
        if (piece_open(t, i, chunk_bytes, err)) {
            lf_kvtable_free(t);
            return NULL;
        }
    }
    return t;
}

static int chunk_write(const lf_kvtable *t, const piece_state *s, lf_elem elem, int64_t c, lf_err *err)
{
    hsize_t at[2] = { (hsize_t)(c * s->chunk_rows), 0 };
    hid_t type = lf_h5_type(elem);
    herr_t bad = s->chunks > 1
                     ? H5Dwrite_chunk(s->dataset, H5P_DEFAULT, 0, at, (size_t)s->chunk_rows * s->row_bytes, s->data[c])
                     : H5Dwrite(s->dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, s->data[c]);
    int rc = bad < 0 ? lf_h5_fail(err, "cannot write %s (%s, chunk %lld)", t->name, s->path, (long long)c) : 0;

    H5Tclose(type);
    return rc;
}

static void copy_rows(uint8_t *to, const uint8_t *from, size_t bytes, size_t stride, int64_t rows)
{
    if (stride == bytes) {
        memcpy(to, from, bytes * (size_t)rows);
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + (size_t)r * bytes, from + (size_t)r * stride, bytes);
}

/* Rows of one chunk.  An HDF5 chunk is always whole: what lies behind the last row of the table is zero. */
static int chunk_put(lf_kvtable *t, int i, int64_t c, int64_t at, int64_t n, const uint8_t *packed, lf_err *err)
{
    piece_state *s = &t->piece[i];
    int64_t whole = lf_min(s->chunk_rows, t->table.rows - c * s->chunk_rows);

    if (!s->data[c])
        s->data[c] = lf_alloc(s->row_bytes * (size_t)(s->chunks > 1 ? s->chunk_rows : whole));
    copy_rows(s->data[c] + s->row_bytes * (size_t)at, packed + t->table.piece[i].at, s->row_bytes, t->table.row_bytes,
              n);
    s->filled[c] += n;
    if (s->filled[c] < whole)
        return 0;
    s->crc[c] = lf_crc32c(0, s->data[c], (size_t)whole * s->row_bytes);
    if (chunk_write(t, s, t->table.piece[i].elem, c, err))
        return -1;
    free(s->data[c]);
    s->data[c] = NULL;
    return 0;
}

static int piece_put(lf_kvtable *t, int i, int64_t row0, int64_t rows, const uint8_t *packed, lf_err *err)
{
    const piece_state *s = &t->piece[i];

    for (int64_t r = row0; r < row0 + rows;) {
        int64_t at = r % s->chunk_rows, n = lf_min(s->chunk_rows - at, row0 + rows - r);
        if (chunk_put(t, i, r / s->chunk_rows, at, n, packed + t->table.row_bytes * (size_t)(r - row0), err))
            return -1;
        r += n;
    }
    return 0;
}

int lf_kvtable_put(lf_kvtable *t, int64_t row0, int64_t rows, const void *packed, int *whole, lf_err *err)
{
    if (lf_spans_add(&t->spans, row0, row0 + rows))
        return lf_fail(err, "%s: some of the rows %lld..%lld of %s were put before", t->name, (long long)row0,
                       (long long)(row0 + rows - 1), t->table.path);
    for (int i = 0; i < t->table.pieces; i++) {
        if (piece_put(t, i, row0, rows, packed, err))
            return -1;
    }
    *whole = lf_kvtable_missing(t) == t->table.rows;
    return 0;
}

int64_t lf_kvtable_missing(const lf_kvtable *t)
{
    return lf_spans_first_gap(&t->spans);
}

static int piece_close(lf_kvtable *t, piece_state *s, lf_err *err)
{
    char path[160];
    int rc;

    snprintf(path, sizeof path, "%s_crc32c", s->path);
    if (s->chunks > 1)
        rc = lf_h5_put_array(t->file, path, LF_ELEM_U32, s->chunks, s->crc, "chunk", err);
    else
        rc = lf_h5_put_u32(s->dataset, "crc32c", s->chunks ? s->crc[0] : 0, err);
    if (rc)
        return lf_fail_in(err, "cannot write %s (%s)", t->name, s->path);
    hid_t d = s->dataset;
    s->dataset = -1;
    return H5Dclose(d) < 0 ? lf_h5_fail(err, "cannot write %s (%s)", t->name, s->path) : 0;
}

int lf_kvtable_close(lf_kvtable *t, lf_err *err)
{
    for (int i = 0; i < t->table.pieces; i++) {
        if (piece_close(t, &t->piece[i], err))
            return -1;
    }
    return 0;
}

void lf_kvtable_free(lf_kvtable *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->table.pieces; i++) {
        piece_state *s = &t->piece[i];
        for (int64_t c = 0; s->data && c < s->chunks; c++)
            free(s->data[c]);
        free(s->data);
        free(s->filled);
        free(s->crc);
        if (s->dataset >= 0)
            H5Dclose(s->dataset);
    }
    lf_spans_free(&t->spans);
    free(t);
}
