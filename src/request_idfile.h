/* SPDX-License-Identifier: Apache-2.0
 *
 * request_idfile: files of token ids.  Floor 1, pure.
 *   .npy  NumPy format 1.0, 2.0 or 3.0: one dimension, C order, '<u2', '<i4', '<u4' or '<i8'
 *   .bin  little-endian u32, nothing else
 */
#ifndef LF_REQUEST_IDFILE_H
#define LF_REQUEST_IDFILE_H

#include "base.h"

typedef enum lf_idfile_kind { LF_IDFILE_NONE, LF_IDFILE_NPY, LF_IDFILE_BIN } lf_idfile_kind;

lf_idfile_kind lf_idfile_kind_of(const char *path);    /* by the name's ending, in either case */

/* *ids [n] is owned by the caller; n may be 0.  An id of vocab or more, or below 0, is refused with its place. */
int lf_idfile_parse(const void *data, size_t bytes, lf_idfile_kind kind, int64_t vocab, uint32_t **ids, int64_t *n,
                    lf_err *err);

#endif
