/* SPDX-License-Identifier: Apache-2.0
 *
 * kvread_parts: what kvread*.c, kvrows.c and kvverify.c share.  Floor 5, private.
 */
#ifndef LF_KVREAD_PARTS_H
#define LF_KVREAD_PARTS_H

#include "kvfile.h"
#include "kvtail.h"

#include <jansson.h>

struct lf_kvread {
    char *path;
    hid_t file;
    lf_kv_tail tail;                       /* a master's is right */
    json_t *identity, *list;               /* what the attribute `identity` holds, and that of /parts or NULL */
    lf_model model;
    int have_model;
    lf_kv_meta meta;                       /* points into the above */
};

/* An attribute of JSON of this type, or NULL; a file opened for reading, or -1. */
json_t *lf_kvread_sealed(hid_t obj, const char *name, json_type type, lf_err *err);
hid_t lf_kvread_file(const char *path, lf_err *err);

/* Listed part i: its name as the master has it, and its checksum. */
const char *lf_kvread_part_name(const lf_kvread *r, int i);
uint32_t lf_kvread_part_crc(const lf_kvread *r, int i);

/* Reads the list, if there is one, and looks at every part on it. */
int lf_kvread_list(lf_kvread *r, lf_err *err);
/* A part as a reader of its own, for the functions below and lf_kvread_close.  Refused: another size, prompt or
 * writer. */
int lf_kvread_part_open(lf_kvread **out, const lf_kvread *r, int i, lf_err *err);
/* 1: the part has these rows of the table; 0: none; -1. */
int lf_kvread_part_table(lf_kvread *part, int64_t number, lf_kv_table *t, lf_err *err);
/* part: all of them, opened. */
int lf_kvread_map_check(lf_kvread *r, lf_kvread *const *part, hid_t d, int64_t number, const lf_kv_table *t, int piece,
                        lf_err *err);
int lf_kvread_virtual(hid_t d);

/* The dataset of one piece, with its shape and type checked; -1: err names it. */
hid_t lf_kvread_dataset(lf_kvread *r, const lf_kv_table *t, int piece, lf_err *err);
/* Rows as stored, rows * lf_kv_piece_row_bytes.  d as above. */
int lf_kvread_stored(lf_kvread *r, hid_t d, const lf_kv_table *t, int piece, int64_t row0, int64_t rows, void *out,
                     lf_err *err);

#endif
