/* SPDX-License-Identifier: Apache-2.0
 *
 * traffic: the bytes that ranks of a pcp group send each other in gather mode, as arithmetic.  Floor 1, pure.
 * Source: engine.md, "One layer on one rank", steps 2 and 3.
 *
 * Every layer: the window halo, window - 1 rows of activations before each run that another rank has.  c4: the
 * compressors' halo (u and g of 4 tokens, first-half channels, float32, of both compressors); then each rank's own
 * finished rows, packed, to the pcp - 1 others.
 */
#ifndef LF_TRAFFIC_H
#define LF_TRAFFIC_H

#include "kvlayout.h"

/* How finished rows (index: those of the indexer) travel: as they are computed with.  Released numerics rounds them to
 * fp8 and fp4 anyway; exact sends activations. */
lf_row_fmt lf_travel_fmt(lf_numerics numerics, size_t act_bytes, int index);

typedef struct lf_traffic_case {
    const lf_model *model;
    lf_numerics numerics;
    size_t act_bytes;                      /* of an activation on the device */
    int pcp;
} lf_traffic_case;

/* Payload that one rank sends on the pcp communicator in one pass over sequences of these lengths, all layers. */
typedef struct lf_traffic {
    int64_t halo;
    int64_t rows[LF_C128 + 1];             /* finished rows, by lf_kind of the layer */
    int64_t all;                           /* the sum */
} lf_traffic;

void lf_traffic_sent(lf_traffic *t, const lf_traffic_case *c, int rank, int n, const int64_t *lengths);

/* Bytes of finished rows per token and layer of a kind that each other rank is sent: 163 for c4 and 4.5625 for c128 at
 * the released sizes and numerics; 0 for swa. */
double lf_traffic_token_bytes(const lf_traffic_case *c, lf_kind kind);

/* The halo in front of one run of one layer of a kind, when one rank has all of it. */
int64_t lf_traffic_halo_bytes(const lf_traffic_case *c, lf_kind kind);

#endif
