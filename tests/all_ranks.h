/* SPDX-License-Identifier: Apache-2.0
 *
 * all_ranks: one result for a check that every rank makes.  Included after a header of MPI.
 */
#ifndef LF_ALL_RANKS_H
#define LF_ALL_RANKS_H

#include "tap.h"

/* Collective over the world; rank 0 prints: good when it is so on every rank. */
static inline void all_ranks(int bad, const char *what)
{
    int rank, sum = 0;

    MPI_Allreduce(&bad, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        TAP_CHECK(sum == 0, "%s", what);
}

#endif
