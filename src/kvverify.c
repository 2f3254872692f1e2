/* SPDX-License-Identifier: Apache-2.0 */
#include "kvread_parts.h"
#include "file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 4 << 20, MOST_PROBLEMS = 1000 };

typedef struct check {
    lf_kvread *r;
    lf_kv_report *report;
    lf_err first;
    lf_kvread **part;                      /* [lf_kvread_parts] */
    uint8_t *buffer;                       /* [READ_BYTES or one row] */
    size_t buffer_bytes;
} check;

static void problem(check *c, const lf_err *e)
{
    if (c->report->problems++ == 0)
        c->first = *e;
}

static uint8_t *buffer_of(check *c, size_t bytes)
{
    if (bytes > c->buffer_bytes) {
        c->buffer = lf_realloc(c->buffer, bytes);
        c->buffer_bytes = bytes;
    }
    return c->buffer;
}

/* CRC of rows from..to-1 as stored, read a few MiB at a time whatever the chunk's size. */
static int rows_crc(check *c, hid_t d, const lf_kv_table *t, int piece, int64_t from, int64_t to, uint32_t *crc,
                    lf_err *err)
{
    size_t row = lf_kv_piece_row_bytes(&t->piece[piece]);
    int64_t step = lf_max(1, READ_BYTES / (int64_t)lf_max(1, (int64_t)row));

    *crc = 0;
    for (int64_t at = from; at < to; at += step) {
        int64_t n = lf_min(step, to - at);
        uint8_t *b = buffer_of(c, row * (size_t)n);
        if (lf_kvread_stored(c->r, d, t, piece, at, n, b, err))
            return -1;
        *crc = lf_crc32c(*crc, b, row * (size_t)n);
        c->report->bytes += (int64_t)row * n;
    }
    return 0;
}

static void chunk_check(check *c, hid_t d, const lf_kv_table *t, int piece, int64_t chunk, int64_t rows, uint32_t want)
{
    lf_err e;
    uint32_t crc;
    int64_t from = chunk * rows, to = lf_min(from + rows, t->rows);

    if (rows_crc(c, d, t, piece, from, to, &crc, &e)) {
        problem(c, &e);
        return;
    }
    c->report->chunks++;
    if (crc == want)
        return;
    lf_fail(&e, "%s: %s%s, chunk %lld (rows %lld..%lld): crc32c is %08x instead of %08x", c->r->path, t->path,
            t->piece[piece].suffix, (long long)chunk, (long long)from, (long long)to - 1, crc, want);
    problem(c, &e);
}

/* The checksums of a chunked dataset; *rows 0 when it is not chunked and has a single one. */
static int checksums_read(check *c, hid_t d, const lf_kv_table *t, int piece, int64_t *rows, uint32_t **crc,
                          lf_err *err)
{
    char path[160];
    int64_t one;

    *rows = 0;
    *crc = NULL;
    if (!lf_h5_has_attribute(d, "rows_per_chunk")) {
        if (lf_h5_get_i64(d, "crc32c", &one, err))
            return lf_fail_in(err, "%s: %s%s", c->r->path, t->path, t->piece[piece].suffix);
        *crc = lf_alloc(sizeof **crc);
        **crc = (uint32_t)one;
        return 0;
    }
    snprintf(path, sizeof path, "%s%s_crc32c", t->path, t->piece[piece].suffix);
    if (lf_h5_get_i64(d, "rows_per_chunk", rows, err) || *rows < 1)
        return lf_fail(err, "%s: %s%s: rows_per_chunk is no positive number", c->r->path, t->path,
                       t->piece[piece].suffix);
    int64_t n = lf_ceil_div(t->rows, *rows);
    *crc = lf_alloc((size_t)n * sizeof **crc);
    if (lf_h5_has_path(c->r->file, path) && !lf_h5_get_array(c->r->file, path, LF_ELEM_U32, n, *crc, err))
        return 0;
    free(*crc);
    return lf_fail(err, "%s: %s is missing or does not hold %lld checksums", c->r->path, path, (long long)n);
}

static void bytes_check(check *c, hid_t d, const lf_kv_table *t, int piece)
{
    lf_err e;
    int64_t rows;
    uint32_t *crc;

    if (checksums_read(c, d, t, piece, &rows, &crc, &e)) {
        problem(c, &e);
        return;
    }
    int64_t step = rows ? rows : lf_max(1, t->rows), chunks = lf_max(1, lf_ceil_div(t->rows, step));
    for (int64_t k = 0; k < chunks && c->report->problems < MOST_PROBLEMS; k++)
        chunk_check(c, d, t, piece, k, step, crc[k]);
    free(crc);
}

static void table_check(check *c, int64_t number, const lf_kv_table *t, lf_kv_check how)
{
    lf_err e;

    for (int i = 0; i < t->pieces; i++) {
        hid_t d = lf_kvread_dataset(c->r, t, i, &e);
        if (d < 0) {
            problem(c, &e);
            continue;
        }
        c->report->datasets++;
        if (lf_kvread_virtual(d)) {
            if (lf_kvread_map_check(c->r, c->part, d, number, t, i, &e))
                problem(c, &e);
        } else if (how == LF_CHECK_BYTES) {
            bytes_check(c, d, t, i);
        }
        H5Dclose(d);
    }
}

static int pages_check(lf_kvread *r, lf_err *err)
{
    int64_t n = r->meta.num_tokens, pages = lf_kv_page_count(n);
    uint32_t *ids = lf_alloc(4 * (size_t)n);
    uint8_t *want = lf_alloc(32 * (size_t)pages), *have = lf_alloc(32 * (size_t)pages);
    int rc = lf_kvread_tokens(r, 0, n, ids, err) || lf_kvread_page_hash(r, have, err) ? -1 : 0;

    if (!rc) {
        lf_kv_page_hash(ids, n, want);
        for (int64_t i = 0; i < pages && !rc; i++) {
            if (memcmp(want + 32 * i, have + 32 * i, 32))
                rc = lf_fail(err, "%s: /page_hash row %lld is not that of the tokens %lld..%lld", r->path,
                             (long long)i, (long long)i * LF_PAGE, (long long)lf_min(n, (i + 1) * LF_PAGE) - 1);
        }
    }
    for (int64_t i = 0; i < n && !rc; i++) {
        if (ids[i] >= (uint64_t)r->model.vocab)
            rc = lf_fail(err, "%s: token %lld is %u; the vocabulary has %lld", r->path, (long long)i, ids[i],
                         (long long)r->model.vocab);
    }
    free(ids);
    free(want);
    free(have);
    return rc;
}

static void part_bytes_check(check *c, int i)
{
    const char *path = c->part[i]->path;
    uint32_t crc = 0, want = lf_kvread_part_crc(c->r, i);
    lf_err e;
    int rc = lf_file_crc32c(path, &crc, &e);

    if (!rc && crc != want)
        rc = lf_fail(&e, "%s: its part %s: crc32c is %08x instead of %08x", c->r->path, path, crc, want);
    if (rc)
        problem(c, &e);
}

/* A part is checked as a file of its own, with the rows that it has. */
static void part_check(check *c, int i, lf_kv_check how)
{
    lf_kvread *whole = c->r;
    int64_t count = lf_kv_tokens_number(&whole->meta);
    lf_kv_table t;
    lf_err e;

    for (int64_t k = 0; k < count && c->report->problems < MOST_PROBLEMS; k++) {
        int there = lf_kvread_part_table(c->part[i], k, &t, &e);
        c->r = c->part[i];
        if (there < 0)
            problem(c, &e);
        else if (there)
            table_check(c, k, &t, how);
        c->r = whole;
    }
    if (how == LF_CHECK_BYTES)
        part_bytes_check(c, i);
}

static int parts_open(check *c, lf_err *err)
{
    int n = lf_kvread_parts(c->r);

    c->part = lf_alloc((size_t)n * sizeof *c->part);
    for (int i = 0; i < n; i++) {
        if (lf_kvread_part_open(&c->part[i], c->r, i, err))
            return -1;
    }
    return 0;
}

static void parts_close(check *c)
{
    for (int i = 0; i < lf_kvread_parts(c->r); i++)
        lf_kvread_close(c->part[i]);
    free(c->part);
}

static void tables_check(check *c, lf_kv_check how)
{
    int64_t count = lf_kv_table_count(&c->r->meta);
    lf_kv_table t;

    for (int64_t i = 0; i < count && c->report->problems < MOST_PROBLEMS; i++) {
        if (lf_kv_table_at(&c->r->meta, i, &t))
            table_check(c, i, &t, how);
    }
    for (int i = 0; i < lf_kvread_parts(c->r) && c->report->problems < MOST_PROBLEMS; i++)
        part_check(c, i, how);
}

int lf_kvread_verify(lf_kvread *r, lf_kv_check how, lf_kv_report *report, lf_err *err)
{
    check c = { .r = r, .report = report };
    lf_err e;

    memset(report, 0, sizeof *report);
    if (parts_open(&c, &e))
        problem(&c, &e);
    else
        tables_check(&c, how);
    if (!report->problems && pages_check(r, &e))
        problem(&c, &e);
    parts_close(&c);
    free(c.buffer);
    if (!report->problems && how == LF_CHECK_BYTES && r->tail == LF_TAIL_FILE && lf_kvtail_check(r->path, &e))
        problem(&c, &e);                   /* in no dataset: attributes, or what HDF5 itself keeps */
    if (!report->problems)
        return 0;
    if (report->problems == 1)
        return lf_fail(err, "%s", c.first.text);
    return lf_fail(err, "%s (and %s%lld more problem%s)", c.first.text, report->problems > MOST_PROBLEMS ? "over " : "",
                   (long long)report->problems - 1, lf_s(report->problems - 1));
}
