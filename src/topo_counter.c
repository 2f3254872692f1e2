/* SPDX-License-Identifier: Apache-2.0 */
#include "topo_counter.h"

/* An MPI that is told to do without shared memory has none; then the window serves on one node too. */
static int shared_open(lf_counter *n, lf_comm *world, lf_err *err)
{
    MPI_Aint bytes = world->rank ? 0 : sizeof(int64_t);
    int unit, lost = 0, any = 0, rc;

    lost = MPI_Win_allocate_shared(bytes, sizeof(int64_t), MPI_INFO_NULL, world->mpi, &n->word, &n->window) ||
           MPI_Win_shared_query(n->window, 0, &bytes, &unit, &n->word);
    rc = MPI_Allreduce(&lost, &any, 1, MPI_INT, MPI_LOR, world->mpi);
    if (rc)
        return lf_comm_fail(err, world, rc, "sharing the prompt counter");
    if (any)
        *n = (lf_counter){ .window = MPI_WIN_NULL };
    else if (world->rank == 0)
        __atomic_store_n(n->word, 0, __ATOMIC_SEQ_CST);
    return 0;
}

static int window_open(lf_counter *n, lf_comm *world, lf_err *err)
{
    int64_t *word;
    MPI_Aint bytes = world->rank ? 0 : sizeof *word;
    int rc = MPI_Win_allocate(bytes, sizeof *word, MPI_INFO_NULL, world->mpi, &word, &n->window);

    if (rc)
        return lf_comm_fail(err, world, rc, "opening the prompt counter");
    if (world->rank == 0) {
        rc = MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, n->window);
        *word = 0;
        if (!rc)
            rc = MPI_Win_unlock(0, n->window);
    }
    return rc ? lf_comm_fail(err, world, rc, "clearing the prompt counter") : 0;
}

int lf_counter_open(lf_counter *n, lf_comm *world, int one_node, lf_err *err)
{
    *n = (lf_counter){ .window = MPI_WIN_NULL };
    if (world->size == 1)
        return 0;
    if (one_node && shared_open(n, world, err))
        return -1;
    if (!n->word && window_open(n, world, err))
        return -1;
    MPI_Win_set_errhandler(n->window, MPI_ERRORS_RETURN);
    int rc = MPI_Barrier(world->mpi);
    return rc ? lf_comm_fail(err, world, rc, "opening the prompt counter") : 0;
}

int lf_counter_needs_poke(const lf_counter *n, const lf_comm *world)
{
    return world->size > 1 && world->rank == 0 && !n->word;
}

int lf_counter_next(lf_counter *n, lf_comm *world, int64_t *value, lf_err *err)
{
    const int64_t one = 1;

    if (n->window == MPI_WIN_NULL) {
        *value = n->own++;
        return 0;
    }
    if (n->word) {
        *value = __atomic_fetch_add(n->word, 1, __ATOMIC_SEQ_CST);
        return 0;
    }
    int rc = MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, n->window);
    if (!rc)
        rc = MPI_Fetch_and_op(&one, value, MPI_INT64_T, 0, 0, MPI_SUM, n->window);
    if (!rc)
        rc = MPI_Win_unlock(0, n->window);
    return rc ? lf_comm_fail(err, world, rc, "drawing from the prompt counter") : 0;
}

void lf_counter_close(lf_counter *n)
{
    if (n->window != MPI_WIN_NULL)
        MPI_Win_free(&n->window);
}
