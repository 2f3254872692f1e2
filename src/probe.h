/* SPDX-License-Identifier: Apache-2.0
 *
 * probe: a pass looked at while it runs: for some positions, what the indexer and the attention were given and gave,
 * as copies in host memory that selfcheck.h takes.  Floor 4.
 *
 * Gather mode, any grid, any device.  A rank tells of the positions it owns, with the heads of its tp rank.  Waits
 * for the device at each of them: a probed pass is not one to time.
 */
#ifndef LF_PROBE_H
#define LF_PROBE_H

#include "prefill.h"
#include "selfcheck.h"

typedef struct lf_probe_at {
    int seq;
    int64_t pos;
} lf_probe_at;

/* Both calls come on the computing thread, a layer's rows before its queries, and only on ranks that own one of the
 * positions in that sequence.  What the structures point at is then the callee's (lf_selfcheck_*_free). */
struct lf_probe {
    void *ctx;
    const lf_probe_at *at;
    int positions;
    const uint8_t *layers;                 /* [model layers]: not 0: wanted */
    void (*rows)(void *ctx, const lf_selfcheck_layer *y);
    void (*query)(void *ctx, const lf_selfcheck_query *q);
};

#endif
