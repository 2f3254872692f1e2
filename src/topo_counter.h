/* SPDX-License-Identifier: Apache-2.0
 *
 * topo_counter: the number that all ranks draw from.  Floor 3, topo only.
 *
 * On one node it is a word of shared memory.  Over several nodes it is an MPI window on rank 0; where the network
 * cannot add by itself, rank 0 must enter MPI now and then for the others to be served, so its communicators poke MPI
 * in every call, those of one rank too.
 */
#ifndef LF_TOPO_COUNTER_H
#define LF_TOPO_COUNTER_H

#include "coll_mpi.h"

typedef struct lf_counter {
    MPI_Win window;                        /* MPI_WIN_NULL: only one rank draws */
    int64_t *word;                         /* in shared memory; NULL: through the window */
    int64_t own;                           /* the number itself, then */
} lf_counter;

/* Collective over world; one_node is the same everywhere. */
int lf_counter_open(lf_counter *n, lf_comm *world, int one_node, lf_err *err);
int lf_counter_next(lf_counter *n, lf_comm *world, int64_t *value, lf_err *err);
/* Is this the rank that must enter MPI for the others to be served? */
int lf_counter_needs_poke(const lf_counter *n, const lf_comm *world);
void lf_counter_close(lf_counter *n);

#endif
