/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_fit: whether a run fits, before anything is loaded.  Floor 6.
 */
#ifndef LF_PLAN_FIT_H
#define LF_PLAN_FIT_H

#include "plan.h"

typedef struct lf_fit {
    const lf_model *model;
    const lf_checkpoint *checkpoint;       /* NULL: made-up weights */
    lf_dev *dev;                           /* open, nothing loaded */
    lf_grid grid;                          /* this rank's place */
    int merge;
    int64_t tile;                          /* of lf_plan_fullest; 0: the default */
    int64_t sharing;                       /* ranks of this node and group, which are as full, and on CPUs share what is
                                            * free; 0: nobody asks */
    lf_kv_dtype kv_dtype;                  /* resolved */
    lf_logits_want logits;
} lf_fit;

/* Passes of prompts of these lengths, one pass after the other: n[i] of them in pass i.  Not collective: each rank
 * looks at its own device.  *tile: the most tokens, of those that plan.h says, that a tile may have; all ranks want
 * the least of theirs.  Refuses with sizes and what would work; where a device does not say what it has left, all
 * fits. */
int lf_plan_fits(const lf_fit *f, int64_t passes, const int *n, const int64_t *lengths, int64_t *tile, lf_err *err);
/* What this rank takes in the fullest of such passes; without passes, its weights.  Not collective. */
int lf_plan_fullest(const lf_fit *f, int64_t passes, const int *n, const int64_t *lengths, lf_plan_grid *most,
                    lf_err *err);
/* Bytes that a run can have on a device of which nothing counts but what it has taken itself; on a CPU a rank's share
 * of the node's free memory, which the host side of a run comes out of as well; -1 where nobody says. */
int64_t lf_plan_left(const lf_fit *f);
/* Host memory that can be had without swapping; -1: the system does not say. */
int64_t lf_host_free(void);

/* Made-up weights on a CPU: refuses more of them than one core makes in some minutes. */
int lf_plan_made_up(const lf_fit *f, lf_err *err);
int lf_plan_made_up_bytes(int64_t weights, lf_err *err);                /* the same when a rank's bytes are known */

#endif
