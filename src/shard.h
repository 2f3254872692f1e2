/* SPDX-License-Identifier: Apache-2.0
 *
 * shard: who owns which tokens and rows.  Floor 1, pure arithmetic; everything else asks it.   Source: engine.md.
 *
 * A pass runs one or more sequences over the pcp ranks of a group.  Each sequence of L tokens is cut on 128-token
 * boundaries into 2*pcp segments as equal as that allows (in blocks of 128; only the last block is ragged, and the last
 * segment takes it on top when it has fewer than 64 tokens); rank r owns segments r and 2*pcp-1-r (zigzag).  Which
 * segments have a block more is chosen so that tokens and causal work stay within 3 % of the mean of the ranks above
 * 32K tokens (pcp <= 8).  Segments may be empty.  Segments of one rank that touch are one run.  Both ratios divide 128,
 * so a block of either compressor lies in one segment, except the open block at the end of the sequence.
 *
 * Local rows: a rank's tokens, run after run, sequence after sequence.  The local window buffer holds, per run, `halo`
 * rows of the positions before it and then its own rows.
 */
#ifndef LF_SHARD_H
#define LF_SHARD_H

#include "model.h"

enum { LF_BLOCK = 128 };                   /* segment granularity; a multiple of every compression ratio */

typedef struct lf_run {
    int seq;
    int64_t pos0, len;                     /* positions pos0 .. pos0+len-1 of the sequence */
    int64_t row0;                          /* local row of pos0 */
    int halo;                              /* min(window - 1, pos0) */
    int64_t kv_row0;                       /* window-buffer row of position pos0 - halo */
} lf_run;

typedef struct lf_shard {
    int pcp, rank, window, sequences;
    int64_t *length;                       /* [sequences] */
    int runs;
    lf_run *run;                           /* [runs], by sequence, then by position; empty runs are left out */
    int64_t rows, kv_rows;                 /* local tokens; rows of the window buffer */
} lf_shard;

/* Lengths >= 1.  Copies what it is given. */
void lf_shard_make(lf_shard *s, int pcp, int rank, int window, int sequences, const int64_t *lengths);
void lf_shard_free(lf_shard *s);

/* Segment i (0 .. 2*pcp-1) of a sequence of `length` tokens. */
void lf_segment(int64_t length, int pcp, int i, int64_t *pos0, int64_t *len);
int lf_segment_owner(int pcp, int i);
int lf_token_owner(int64_t length, int pcp, int64_t pos);                /* the pcp rank of a position */

/* Finished rows of ratio m (4 or 128) produced by one run: global rows first .. first+count-1 of its sequence. */
void lf_run_blocks(const lf_run *r, int ratio, int64_t *first, int64_t *count);

/* One stretch of rows that `from` owns and `to` needs in front of one of its runs: the window halo (width = window - 1)
 * or the compressor halo (width = 4: the tokens of the block before).  Every rank enumerates all transfers of the pass
 * in the same order and picks its own. */
typedef struct lf_halo {
    int seq, from, to;
    int64_t pos0, len;                     /* positions */
    int64_t need;                          /* pos0 of the run that needs them */
} lf_halo;

int lf_shard_halos(const lf_shard *s, int width, lf_halo **out);         /* count; *out is the caller's */

/* The run of this rank that holds position pos of sequence seq, or NULL. */
const lf_run *lf_shard_find(const lf_shard *s, int seq, int64_t pos);

#endif
