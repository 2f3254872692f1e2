/* SPDX-License-Identifier: Apache-2.0 */
#include "topo.h"

#include <stdlib.h>

#include "tap.h"

/* Rank r brings r * scale bytes (rank 0 none), which root finds in rank order; nobody else gets anything. */
static int gather_holds(lf_comm *c, int root, size_t scale)
{
    int rank = lf_comm_rank(c), size = lf_comm_size(c), bad = 0;
    size_t mine = (size_t)rank * scale, total, at = 0;
    unsigned char *bytes = lf_alloc(mine), *all;
    lf_err err;

    for (size_t i = 0; i < mine; i++)
        bytes[i] = (unsigned char)(31 * rank + (int)(i % 251));
    if (lf_topo_gather(c, bytes, mine, (void **)&all, &total, root, &err)) {
        free(bytes);
        return 0;
    }
    free(bytes);
    if (rank != root)
        return all == NULL && total == 0;
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < (size_t)r * scale; i++)
            bad += all[at++] != (unsigned char)(31 * r + (int)(i % 251));
    bad += at != total;
    free(all);
    return bad == 0;
}

int main(int argc, char **argv)
{
    static const size_t scale[] = { 0, 1, 1000, 300000 };
    int rank, world;
    lf_topo t;
    lf_err err;

    if (lf_topo_start(&argc, &argv, &rank, &world, &err)) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    lf_grid g = { .dp = world, .pcp = 1, .tp = 1, .rank = rank, .dp_rank = rank, .ep = 1 };
    if (lf_topo_open(&t, &g, &err))
        lf_topo_abort(1);
    for (int root = 0; root < world; root += world > 1 ? world - 1 : 1)
        for (int i = 0; i < 4; i++) {
            int any, bad = !gather_holds(t.world, root, scale[i]);
            if (lf_topo_any(t.world, bad, &any, &err))
                lf_topo_abort(1);
            if (rank == 0)
                TAP_CHECK(!any, "root %d gathers %zu bytes a rank", root, scale[i]);
        }
    for (int least = 0; least < world; least++) {
        int64_t value = rank == least ? -5 : (int64_t)1 << 40 | rank;
        int any, bad = lf_topo_least(t.world, &value, &err) || value != -5;
        if (lf_topo_any(t.world, bad, &any, &err))
            lf_topo_abort(1);
        if (rank == 0)
            TAP_CHECK(!any, "rank %d has the least", least);
    }
    lf_topo_close(&t);
    lf_topo_end();
    return rank == 0 ? tap_done() : 0;
}
