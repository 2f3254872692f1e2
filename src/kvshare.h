/* SPDX-License-Identifier: Apache-2.0
 *
 * kvshare: the rows that each of several writers of one prompt has.  Floor 5, pure.
 * Source: shard.h; prefill.h, lf_sink.
 *
 * The writers are the ranks of a pcp group.  Each has what it computes: of the tokens in its runs the window rows, the
 * finished compressed and index rows and the logits; state and last logits where the prompt (or the frontier) ends.
 * Nobody has tokens and page hashes: they are in the master.
 */
#ifndef LF_KVSHARE_H
#define LF_KVSHARE_H

#include "kvschema.h"

/* As lf_kv_table_at, with the rows of writer `rank` of `of`, which t->range names; 0: it has none of this table. */
int lf_kv_share_at(const lf_kv_meta *m, int64_t number, int rank, int of, lf_kv_table *t);
/* Does it have rows at all? */
int lf_kv_share_any(const lf_kv_meta *m, int rank, int of);

#endif
