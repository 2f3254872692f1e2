/* SPDX-License-Identifier: Apache-2.0
 *
 * kvfile: a KV file of version 1, written and read.  Floor 5.   Source: product.md, "The KV file, version 1".
 * Files of several writers: kvmaster.h; they are read as any other.
 *
 * One thread of a process calls this module (HDF5 is not called from two).
 *
 * Checksums.  A dataset of one chunk or less carries an attribute `crc32c`; a larger one is chunked by rows, names
 * their number in an attribute `rows_per_chunk` and has a dataset <name>_crc32c u32 [chunks] beside it.  A checksum
 * is CRC-32C over the rows of the chunk that exist (no padding), as they are stored: little-endian, row after row,
 * bf16 as its two bytes.  In Python:
 *     x = ds[i * rows : (i + 1) * rows]
 *     if x.dtype == "f4" and ds.id.get_type().get_size() == 2: x = (x.view("<u4") >> 16).astype("<u2")     # bf16
 *     crc32c(x.tobytes())
 * HDF5 keeps checksums of its own metadata, the attribute `identity` (JSON, lf_kv_identity) among it; the other root
 * attributes say the same for people.
 */
#ifndef LF_KVFILE_H
#define LF_KVFILE_H

#include "kvschema.h"

/* ---- writing ---- */

typedef struct lf_kvfile lf_kvfile;

/* Begins PATH.part.  The metadata is checked; what it points to must stay until finish or abandon. */
int lf_kvfile_create(lf_kvfile **out, const char *path, const lf_kv_meta *meta, lf_err *err);

/* Rows row0 .. row0+rows-1 of a part, packed as kvlayout.h says, lf_row_bytes apart; in any order, each row once.  The
 * row counts are lf_part_rows.  Rows wait in memory until their chunk is whole.  After an error only abandon is
 * left. */
int lf_kvfile_put(lf_kvfile *f, int layer, lf_kv_part part, int64_t row0, int64_t rows, const void *packed,
                  lf_err *err);

/* The same of the tail (window and state) at a frontier: position = n * meta.frontier < num_tokens. */
int lf_kvfile_put_at(lf_kvfile *f, int64_t position, int layer, lf_kv_part part, int64_t row0, int64_t rows,
                     const void *packed, lf_err *err);

/* All num_tokens ids at once; writes the page hashes too. */
int lf_kvfile_put_tokens(lf_kvfile *f, const uint32_t *ids, lf_err *err);

/* Rows as lf_logits_kind says: the last token's logits are one row. */
int lf_kvfile_put_logits(lf_kvfile *f, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data, lf_err *err);

/* Checks that every row of every part was put, writes `complete`, makes the file durable and renames it.  Frees f in
 * any case; on failure nothing is left, neither PATH.part nor a new PATH.  *bytes (may be NULL): the file's size. */
int lf_kvfile_finish(lf_kvfile *f, uint64_t *bytes, lf_err *err);

/* Frees f and removes PATH.part.  NULL is fine. */
void lf_kvfile_abandon(lf_kvfile *f);

/* ---- reading ---- */

typedef struct lf_kvread lf_kvread;

/* Refuses what is no KV file, another version, an incomplete file, metadata whose checksum is wrong, and a file with a
 * listed part that is absent, of another size or of another prompt, or a file with
 * parts whose own bytes do not have the checksum at its end (kvtail.h). */
int lf_kvread_open(lf_kvread **out, const char *path, lf_err *err);
void lf_kvread_close(lf_kvread *r);                           /* NULL is fine */
const lf_kv_meta *lf_kvread_meta(const lf_kvread *r);         /* valid until close */
int lf_kvread_sealed_whole(const lf_kvread *r);               /* the file ends with a checksum of itself (kvtail.h) */
int lf_kvread_parts(const lf_kvread *r);                      /* listed part files; 0: self-contained */
int64_t lf_kvread_part_bytes(const lf_kvread *r);             /* of all of them */

/* Rows as they were put.  position 0 is the end of the prompt.  packed: rows * lf_row_bytes. */
int lf_kvread_rows(lf_kvread *r, int64_t position, int layer, lf_kv_part part, int64_t row0, int64_t rows,
                   void *packed, lf_err *err);
/* The same as float32 [rows, lf_part_width]; codes are multiplied by their scales.  Index rows of a file with released
 * numerics or fp8 storage stay Hadamard-transformed. */
int lf_kvread_floats(lf_kvread *r, int64_t position, int layer, lf_kv_part part, int64_t row0, int64_t rows,
                     float *out, lf_err *err);
int lf_kvread_tokens(lf_kvread *r, int64_t first, int64_t count, uint32_t *ids, lf_err *err);
int lf_kvread_page_hash(lf_kvread *r, uint8_t *out, lf_err *err);      /* all of them: [pages, 32] */
int lf_kvread_logits(lf_kvread *r, lf_logits_kind kind, int64_t row0, int64_t rows, void *data, lf_err *err);

/* Stored bytes of one part, without HDF5's own. */
size_t lf_kv_table_bytes(const lf_kv_table *t);

/* ---- checking ---- */

typedef enum lf_kv_check {
    LF_CHECK_SHAPES,                       /* identity; every dataset's shape, type, parts; tokens against page_hash */
    LF_CHECK_BYTES                         /* and every chunk's checksum, and the listed parts' */
} lf_kv_check;

typedef struct lf_kv_report {
    int64_t datasets, chunks, bytes;       /* checked */
    int64_t problems;                      /* found; counting stops at 1000 */
} lf_kv_report;

/* 0: everything as it should be.  -1: err names the first problem (dataset, chunk, rows) and the number of others. */
int lf_kvread_verify(lf_kvread *r, lf_kv_check how, lf_kv_report *report, lf_err *err);

#endif
