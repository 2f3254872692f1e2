/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtable: the rows of one table on their way into a KV file, and the set of rows seen so far.  Floor 5, private to
 * kvwrite.  Rows wait in chunk buffers; a chunk that is whole gets its checksum, is written and freed.
 */
#ifndef LF_KVTABLE_H
#define LF_KVTABLE_H

#include "kvschema.h"

/* Disjoint row ranges, sorted and merged. */
typedef struct lf_spans {
    int n, capacity;
    lf_span *v;
} lf_spans;

int lf_spans_add(lf_spans *s, int64_t from, int64_t to);      /* -1: a part of it is there already */
int64_t lf_spans_first_gap(const lf_spans *s);                /* the first row >= 0 that is not there */
void lf_spans_free(lf_spans *s);

typedef struct lf_kvtable lf_kvtable;

/* Creates the datasets.  file and name (for messages) are borrowed; chunk_bytes > 0.  NULL on failure. */
lf_kvtable *lf_kvtable_open(hid_t file, const char *name, size_t chunk_bytes, const lf_kv_table *table, lf_err *err);
/* Rows within the table, packed.  *whole: every row is there now. */
int lf_kvtable_put(lf_kvtable *t, int64_t row0, int64_t rows, const void *packed, int *whole, lf_err *err);
int64_t lf_kvtable_missing(const lf_kvtable *t);              /* the first row not put yet */
/* Writes the checksums, once every row is there. */
int lf_kvtable_close(lf_kvtable *t, lf_err *err);
void lf_kvtable_free(lf_kvtable *t);                          /* NULL is fine */

/* Everything that a dataset says of itself, its chunks apart. */
int lf_kvtable_attributes(hid_t d, const lf_kv_table *t, const lf_kv_piece *p, lf_err *err);

#endif
