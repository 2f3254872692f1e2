/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors: a checkpoint directory as a table of named tensors.  Floor 1.
 *
 * Opens model.safetensors.index.json and its shards, or a single model.safetensors.  Only headers are read at open;
 * a shard is mapped (read-only, shared) when the first of its tensors is asked for, and only touched pages are read.
 * Tensor data need not be aligned in the file: read it with memcpy.
 */
#ifndef LF_SAFETENSORS_H
#define LF_SAFETENSORS_H

#include "num.h"

enum { LF_MAX_DIMS = 4 };

typedef struct lf_tensor {
    const char *name;                      /* owned by the checkpoint */
    lf_dtype dtype;
    int ndim;
    int64_t shape[LF_MAX_DIMS];
    int shard;
    uint64_t offset, bytes;                /* of the data, from the start of the shard's file */
} lf_tensor;

typedef struct lf_checkpoint lf_checkpoint;

int lf_checkpoint_open(lf_checkpoint **out, const char *dir, lf_err *err);
void lf_checkpoint_close(lf_checkpoint *c);            /* NULL is fine */

int64_t lf_checkpoint_count(const lf_checkpoint *c);
const lf_tensor *lf_checkpoint_at(const lf_checkpoint *c, int64_t i);
const lf_tensor *lf_checkpoint_find(const lf_checkpoint *c, const char *name);    /* NULL: no such tensor */
const char *lf_checkpoint_dir(const lf_checkpoint *c);             /* as it was given */
const char *lf_checkpoint_shard_path(const lf_checkpoint *c, int shard);

/* The tensor's bytes, mapped; valid until close.  Thread-safe. */
int lf_checkpoint_data(lf_checkpoint *c, const lf_tensor *t, const void **data, lf_err *err);

/* The descriptor, open until close, and offset by which bytes that lf_checkpoint_data gave can be read; -1: not to be
 * had.  One thread. */
int lf_checkpoint_file(lf_checkpoint *c, const void *data, size_t bytes, int64_t *at);

/* sha256, hexadecimal, over shard names, sizes, headers and four blocks of 4 KiB of each shard's data, in name order:
 * what a KV file names its weights by.  The blocks lie evenly from the first byte of the data to the last. */
const char *lf_checkpoint_id(const lf_checkpoint *c);

#endif
