/* SPDX-License-Identifier: Apache-2.0
 *
 * kvread_parts: what kvread.c, kvrows.c and kvverify.c share.  Floor 5, private.
 */
#ifndef LF_KVREAD_PARTS_H
#define LF_KVREAD_PARTS_H

#include "kvfile.h"

#include <jansson.h>

struct lf_kvread {
    char *path;
    hid_t file;
    json_t *identity, *list;               /* what the attribute `identity` holds, and that of /parts or NULL */
    lf_model model;
    int have_model;
    lf_kv_meta meta;                       /* points into the above */
};

/* Listed part i: its path (owned by the caller), size and checksum. */
char *lf_kvread_part(const lf_kvread *r, int i, int64_t *bytes, uint32_t *crc);

/* The dataset of one piece, with its shape and type checked; -1: err names it. */
hid_t lf_kvread_dataset(lf_kvread *r, const lf_kv_table *t, int piece, lf_err *err);
/* Rows as stored, rows * lf_kv_piece_row_bytes.  d as above. */
int lf_kvread_stored(lf_kvread *r, hid_t d, const lf_kv_table *t, int piece, int64_t row0, int64_t rows, void *out,
                     lf_err *err);

#endif
