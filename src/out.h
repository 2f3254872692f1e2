/* SPDX-License-Identifier: Apache-2.0
 *
 * out: finished rows and logits on their way to the sink.  Floor 4, private to the model's files.   Source: engine.md,
 * "Files".
 *
 * Two halves of pinned host memory take turns, each for what is finished at once: a layer's rows, a tile's logits.  The
 * output queue (dev.h) fills one while the computing thread hands over the other, in the order of the calls.  The
 * computing thread waits only for a half that it needs again, which is two layers old, and inside the sink.
 */
#ifndef LF_OUT_H
#define LF_OUT_H

#include "kvlayout.h"

typedef struct lf_pass lf_pass;
typedef struct lf_out_piece lf_out_piece;

typedef struct lf_out_half {
    char *host;
    size_t used;
    lf_out_piece *piece;                   /* what lies in it, in order */
    int pieces, room;
} lf_out_half;

typedef struct lf_out {
    lf_out_half half[2];
    size_t bytes;                          /* of each */
    int now;                               /* the one that is filled, or was last */
} lf_out;

/* Bytes of both halves together: planned by the same function that takes them. */
size_t lf_out_bytes(const lf_pass *p);
/* The two halves: memory of the engine, that grows and is kept. */
int lf_out_open(lf_pass *p);
void lf_out_close(lf_pass *p);

/* Between begin and end the output queue is in use, after all that the compute queue was given before.  Both calls copy
 * `bytes` of device memory; it must stay as it is until lf_out_settled. */
void lf_out_begin(lf_pass *p);
void lf_out_rows(lf_pass *p, int seq, int layer, lf_kv_part part, int64_t row0, int64_t rows, const void *src,
                 size_t bytes);
void lf_out_logits(lf_pass *p, int seq, int kind /* lf_logits_kind */, int64_t row0, int64_t rows, const void *src,
                   size_t bytes);
void lf_out_end(lf_pass *p);

/* What the compute queue is given from here on may overwrite what was copied. */
void lf_out_settled(lf_pass *p);
/* Hands over what has arrived.  all: waits for what has not. */
void lf_out_drain(lf_pass *p, int all);

#endif
