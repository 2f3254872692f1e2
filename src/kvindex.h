/* SPDX-License-Identifier: Apache-2.0
 *
 * kvindex: the output directory: its places, the file names of ids, and what an earlier run left.  Floor 5.
 * Source: product.md, "Output directory".
 *
 *   OUT/results.jsonl   OUT/report.json   OUT/kv/<name>.h5   OUT/kv/<name>.parts/rNNNN.h5
 */
#ifndef LF_KVINDEX_H
#define LF_KVINDEX_H

#include "kvfile.h"

/* Creates OUT and OUT/kv where missing and tries to write in both.  By one rank before the others use them.  Several
 * jobs (--shard) may share one OUT. */
int lf_kvindex_prepare(const char *out, lf_err *err);

/* The file name, without ".h5", that an id always gets: the id itself when it is 1 to 100 characters of a-z 0-9 . _ -
 * beginning with none of . - and not ending in a point; otherwise its characters with the others as _, cut, and "~"
 * with 12 hexadecimal digits of the id's sha256.  Names of different ids differ, where case does not count too.
 * Owned by the caller. */
char *lf_kvindex_name(const char *id);
char *lf_kvindex_path(const char *out, const char *id);               /* OUT/kv/<name>.h5 */

/* No two of the ids may have one file name. */
int lf_kvindex_check_names(int64_t n, const char *const *ids, lf_err *err);

/* A file is there, and nobody seems to be writing another. */
int lf_kvindex_finished(const char *out, const char *id);

typedef struct lf_kvfound {
    int skip;                              /* 1: the file is there, whole and the same; 0: the prompt is to be run */
    uint64_t bytes;                        /* its size, its parts with it, when skip */
    lf_err why;                            /* not empty: what is there is unusable and will be replaced, and why */
} lf_kvfound;

/* What to do about the prompt of `meta` with these tokens.  What an unfinished run left of it is removed; what another
 * job is writing now is an error.  The file is checked as `how` says.  A usable file of another prompt, model, weights,
 * numerics, storage or logits is an error that names the difference; with overwrite nothing is looked at and the answer
 * is to run. */
int lf_kvindex_resume(const char *out, const lf_kv_meta *meta, const uint32_t *ids, lf_kv_check how, int overwrite,
                      lf_kvfound *found, lf_err *err);

#endif
