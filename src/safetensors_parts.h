/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors_parts: the reader's pieces.  Included by safetensors*.c only.
 */
#ifndef LF_SAFETENSORS_PARTS_H
#define LF_SAFETENSORS_PARTS_H

#include "safetensors.h"

#include <stdatomic.h>
#include <sys/stat.h>

typedef struct lf_shard_file {
    char *name, *path;
    uint64_t bytes, header; /* of the file; of its JSON header, without the 8 length bytes */
    struct stat st; /* at open: what is mapped later must be the same file */
    _Atomic(const uint8_t *) map;
    int fd;                                /* of lf_checkpoint_file, plus 1; 0: not open */
} lf_shard_file;

typedef struct lf_tensor_list {
    lf_tensor *v;
    int64_t n, capacity;
} lf_tensor_list;

/* Opens the file, checks its size, and gives the 8 length bytes with the header behind them; *text is owned by
 * the caller. */
int lf_shard_read_header(lf_shard_file *s, char **text, lf_err *err);

/* Appends the tensors that a header describes, by offset, each checked: type, shape, bytes for the shape, and
 * together that they cover the data without overlap or hole up to the end of the file. */
int lf_shard_parse_header(const lf_shard_file *s, int shard, const char *json, lf_tensor_list *list,
                          lf_err *err);

#endif
