/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtail: the checksum at the end of a master.  Floor 5, private.   Source: product.md, "Output directory".
 *
 * HDF5 keeps the sources of virtual datasets in a heap that has no checksum, and where that is damaged it may loop for
 * ever or end the process as soon as such a dataset is opened.  So a master ends with one line of LF_KV_TAIL bytes, the
 * CRC-32C of all before, which is looked at before HDF5 is.  Behind the end that HDF5 knows it reads nothing.
 */
#ifndef LF_KVTAIL_H
#define LF_KVTAIL_H

#include "base.h"

enum { LF_KV_TAIL = 64 };

/* Appends the line to the whole file at `path`, open for writing as fd; not durable yet. */
int lf_kvtail_append(const char *path, int fd, lf_err *err);

/* *sealed: the file ends with such a line.  Fails where that is not the checksum of what is before. */
int lf_kvtail_check(const char *path, int *sealed, lf_err *err);

#endif
