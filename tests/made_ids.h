/* SPDX-License-Identifier: Apache-2.0
 *
 * made_ids: prompts for tests.
 */
#ifndef LF_MADE_IDS_H
#define LF_MADE_IDS_H

#include "base.h"

/* n token ids below vocab, the same for one seed; owned by the caller. */
static inline uint32_t *made_ids(int64_t n, int64_t vocab, uint32_t seed)
{
    uint32_t *ids = lf_alloc(4 * (size_t)n);

    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (seed >> 8) % (uint32_t)vocab;
    }
    return ids;
}

#endif
