/* SPDX-License-Identifier: Apache-2.0
 *
 * grid: world = dp x pcp x tp; rank = (dp_rank * pcp + pcp_rank) * tp + tp_rank.  Floor 1, pure.   Source: engine.md.
 */
#ifndef LF_GRID_H
#define LF_GRID_H

#include "model.h"

typedef struct lf_grid {
    int dp, pcp, tp;
    int rank, dp_rank, pcp_rank, tp_rank;
    int ep, ep_rank;                       /* the pcp x tp ranks of one dp group: ep_rank = pcp_rank * tp + tp_rank */
} lf_grid;

/* Sizes of 0 are chosen: what is left goes to dp.  Refuses, with the sizes that would work, a grid whose product is not
 * `world` or that does not divide the model (tp: heads, o_groups; pcp*tp: experts). */
int lf_grid_make(lf_grid *g, const lf_model *m, int world, int rank, int dp, int pcp, int tp, lf_err *err);

/* "2x4x1" as dp, pcp, tp, each from 1 on; nothing is compared with a model. */
int lf_grid_parse(const char *text, int size[3], lf_err *err);

#endif
