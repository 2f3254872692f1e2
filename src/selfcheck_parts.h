/* SPDX-License-Identifier: Apache-2.0
 *
 * selfcheck_parts: private to selfcheck*.c.  Floor 1.
 */
#ifndef LF_SELFCHECK_PARTS_H
#define LF_SELFCHECK_PARTS_H

#include "num.h"
#include "selfcheck.h"

/* n activations from number `first` on. */
static inline void lf_selfcheck_load(float *to, const void *from, int64_t first, int64_t n, int act_bytes)
{
    const uint16_t *half = (const uint16_t *)from + first;

    if (act_bytes == 4)
        memcpy(to, (const float *)from + first, sizeof *to * (size_t)n);
    for (int64_t i = 0; act_bytes == 2 && i < n; i++)
        to[i] = lf_bf16_f32(half[i]);
}

/* Scores and the chosen set; ratio 4 and queries that have index_q. */
int lf_selfcheck_scores(lf_selfcheck_result *r, const lf_selfcheck_layer *y, const lf_selfcheck_query *q,
                        lf_err *err);

#endif
