/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtail: the checksum at the end of a file.  Floor 5, private.   Source: product.md, "Output directory".
 *
 * A file, but for a part, whose checksum its master has, ends with one line of LF_KV_TAIL bytes, behind what HDF5
 * knows: the CRC-32C of all before.  HDF5 keeps texts of attributes and the sources of virtual datasets in a heap that
 * has no checksum, and where a master's is damaged it may loop for ever or end the process as soon as such a dataset is
 * opened: so the line of a master is looked at before HDF5 is, that of another file where all bytes are verified.
 */
#ifndef LF_KVTAIL_H
#define LF_KVTAIL_H

#include "base.h"

enum { LF_KV_TAIL = 64 };

typedef enum lf_kv_tail { LF_TAIL_NONE, LF_TAIL_FILE, LF_TAIL_MASTER } lf_kv_tail;

/* Appends the line to the whole file at `path`, open for writing as fd; not durable yet. */
int lf_kvtail_append(const char *path, int fd, lf_kv_tail kind, lf_err *err);

/* What such a line says that the file is: none also where it cannot be read, or the line is not there, as in a file
 * that others changed. */
lf_kv_tail lf_kvtail_of(const char *path);

/* Fails where the bytes before the line have not its checksum. */
int lf_kvtail_check(const char *path, lf_err *err);

#endif
