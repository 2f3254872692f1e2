/* SPDX-License-Identifier: Apache-2.0
 *
 * kvmaster: one prompt written by several: the files of the writers and the master over them.  Floor 5.
 * Source: product.md, "Output directory".
 *
 * PATH is the master's, DIR/<stem>.h5.  Writer r of n has the rows that kvshare.h says; it writes them with
 * lf_kvfile_put* to DIR/<stem>.parts/rNNNN.h5.part, and none when it has no rows.  When all writers are done, one of
 * them (any; the directory is shared) joins them: the master is written with virtual datasets over the parts, then an
 * older file of that name is removed, the parts get their names, and at last the master its own.  So at any moment a
 * file named PATH is whole, and its parts are.
 *
 * A part has datasets like those of a whole file, of its own rows only, one range after the other, with chunks and
 * checksums as there; an attribute `rows` i64 [ranges, 2] says which rows (from, to - 1 is the last) of the prompt they
 * are; root attributes `writer` and `writers`.  The master has tokens and page hashes itself; /parts lists the parts
 * with size and checksum, in its attribute `list` (JSON), and behind all that is the master's own checksum (kvtail.h).
 * Virtual datasets name their parts relative to the master.
 */
#ifndef LF_KVMASTER_H
#define LF_KVMASTER_H

#include "kvfile.h"

typedef struct lf_kv_written {
    uint64_t bytes;                        /* 0: this writer has no rows and no file */
    uint32_t crc32c;                       /* of the file's bytes */
} lf_kv_written;

/* As lf_kvfile_create, for writer `rank` of `of`, which has rows. */
int lf_kvmaster_create_part(lf_kvfile **out, const char *path, const lf_kv_meta *meta, int rank, int of, lf_err *err);
/* As lf_kvfile_finish, but the file keeps the name that ends in .part. */
int lf_kvmaster_finish_part(lf_kvfile *f, lf_kv_written *out, lf_err *err);

/* Joins what `of` writers wrote.  *bytes (may be NULL): of all files.  On failure nothing of the new file is left, and
 * the older one still is unless it had to be removed already. */
int lf_kvmaster_join(const char *path, const lf_kv_meta *meta, const uint32_t *ids, const lf_kv_written *part, int of,
                     uint64_t *bytes, lf_err *err);

typedef enum lf_kv_sweep { LF_SWEEP_UNFINISHED, LF_SWEEP_ALL } lf_kv_sweep;

/* Removes the parts of PATH, or those that end in .part, and their directory when it is empty then.  What another job
 * is writing stays. */
void lf_kvmaster_sweep(const char *path, lf_kv_sweep what);
/* Is there a part that ends in .part? */
int lf_kvmaster_unfinished(const char *path);

/* "r0007.h5"; and the directory of the parts, "DIR/<stem>.parts", owned by the caller. */
void lf_kvmaster_name(char name[24], int rank);
char *lf_kvmaster_directory(const char *path);

#endif
