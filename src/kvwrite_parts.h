/* SPDX-License-Identifier: Apache-2.0
 *
 * kvwrite_parts: what kvwrite.c, kvmaster.c and kvindex.c share.  Floor 5, private.
 */
#ifndef LF_KVWRITE_PARTS_H
#define LF_KVWRITE_PARTS_H

#include "kvfile.h"
#include "kvtable.h"

#include <jansson.h>

#define LF_KV_CLAIMED \
    "another job is writing it; wait for that one, or give each job an -o/--output or --shard of its own"

struct lf_kvfile {
    lf_kv_meta meta;
    char created[32];
    char *path, *part;                     /* the final name, and the one until then */
    int rank, of;                          /* the rows of one of several writers; of 0: all rows */
    int fd;                                /* our own, so that fsync reports every write error since creation */
    hid_t file;
    int failed;
    int64_t count;
    lf_kvtable **state;                    /* [count], made at the first row, freed when written */
    uint8_t *written;                      /* [count] */
    json_t *listed;                        /* array of {name, writer, bytes, crc32c}, or NULL */
};

/* Begins f->part.  path is the final name of this very file. */
int lf_kvfile_begin(lf_kvfile **out, const char *path, const lf_kv_meta *meta, int rank, int of, lf_err *err);
/* Everything is there, `complete` too, and durable under the name f->part. */
int lf_kvfile_seal(lf_kvfile *f, uint64_t *bytes, lf_err *err);
int lf_kvfile_rename(lf_kvfile *f, lf_err *err);
void lf_kvfile_free(lf_kvfile *f);

#endif
