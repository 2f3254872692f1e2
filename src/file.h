/* SPDX-License-Identifier: Apache-2.0
 *
 * file: whole reads and writes of files, and files that are durable under their name or not there.  Floor 0.
 *
 * The first group works on open files, goes on after interruptions and short counts, and leaves the reason in errno.
 */
#ifndef LF_FILE_H
#define LF_FILE_H

#include "base.h"

/* All n bytes, or -1; the end of the file before that is ENODATA. */
int lf_file_read_at(int fd, void *to, size_t n, uint64_t at);
int lf_file_write_at(int fd, const void *from, size_t n, uint64_t at);
int lf_file_append(int fd, const void *from, size_t n);        /* where the file stands */
/* The end of writing: fsync and close, the latter in any case.  bad: something failed before, errno says why.  -1:
 * errno is that of the first that failed. */
int lf_file_settle(int fd, int bad);

/* Makes an open file this job's own until its last descriptor is closed: -1 when another has it.  Where a file system
 * knows no locks, nobody has. */
int lf_file_claim(int fd);
/* Removes NAME below the directory `dir` (AT_FDCWD: of the path) unless another job has claimed it.  -1: errno says
 * why, EWOULDBLOCK that it is claimed. */
int lf_file_remove(int dir, const char *name);

/* fsync of the directory that PATH is in: a rename is durable only when it is.  Not every file system can. */
void lf_file_sync_directory(const char *path);

/* Read a whole regular file; *out is owned by the caller and has one extra terminating 0.  Refuses more than `limit`
 * bytes. */
int lf_file_read(const char *path, size_t limit, char **out, size_t *bytes, lf_err *err);
/* Write a file of our own whole: PATH.part, fsync, rename, fsync of the directory.  Errors carry path and errno. */
int lf_file_replace(const char *path, const void *data, size_t bytes, lf_err *err);
/* The end of that for a file that the caller wrote as `part`, opened as fd (< 0: opening failed), with success or not
 * (`bad`: errno says why).  Closes fd; on failure `part` is removed. */
int lf_file_publish(int fd, const char *part, const char *path, int bad, lf_err *err);

/* CRC-32C of a whole file's bytes; and of its first `bytes`, or as many as it has. */
int lf_file_crc32c(const char *path, uint32_t *crc, lf_err *err);
int lf_file_crc32c_first(const char *path, int64_t bytes, uint32_t *crc, lf_err *err);

#endif
