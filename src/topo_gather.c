/* SPDX-License-Identifier: Apache-2.0 */
#include "topo.h"

#include <stdlib.h>
#include <string.h>

#include "coll_mpi.h"

/* Where each rank's piece goes in `all`; how much there is. */
static size_t gather_list(lf_xfer *from, char *all, const int64_t *count, int ranks)
{
    size_t at = 0;

    for (int r = 0; r < ranks; r++) {
        from[r] = (lf_xfer){ .peer = r, .data = all ? all + at : NULL, .bytes = (size_t)count[r] };
        at += (size_t)count[r];
    }
    return at;
}

static int gather(lf_comm *c, const void *mine, size_t bytes, const int64_t *count, char *all, int root,
                  lf_err *err)
{
    int here = c->rank == root;
    lf_xfer *from = lf_alloc((size_t)c->size * sizeof *from);
    lf_xfer to = { .peer = root, .data = (char *)(uintptr_t)mine, .bytes = bytes };
    lf_call call = { .kind = LF_COLL_EXCHANGE, .send = &to, .sends = 1, .recv = from,
                    .recvs = here ? c->size : 0 };
    double start;

    if (here)
        gather_list(from, all, count, c->size);
    int bad = lf_comm_begin(c, &call, &start, err);
    if (!bad && c->size > 1)
        bad = lf_comm_move(c, &to, 1, from, call.recvs, err);
    if (!bad && here && bytes)
        memcpy(from[root].data, mine, bytes);
    free(from);
    return lf_comm_end(c, start, bad);
}

int lf_topo_gather(lf_comm *c, const void *mine, size_t bytes, void **all, size_t *total, int root,
                   lf_err *err)
{
    int64_t *send = lf_alloc((size_t)c->size * sizeof *send), *count = lf_alloc((size_t)c->size * sizeof *count);
    lf_xfer *sizes = lf_alloc((size_t)c->size * sizeof *sizes);

    *all = NULL;
    *total = 0;
    for (int r = 0; r < c->size; r++)
        send[r] = (int64_t)bytes;
    int bad = lf_coll_counts(c, count, send, 1, err);
    if (!bad && c->rank == root) {
        *total = gather_list(sizes, NULL, count, c->size);
        *all = lf_alloc(*total);
    }
    if (!bad)
        bad = gather(c, mine, bytes, count, *all, root, err);
    if (bad) {
        free(*all);
        *all = NULL;
    }
    free(send);
    free(count);
    free(sizes);
    return bad;
}
