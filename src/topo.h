/* SPDX-License-Identifier: Apache-2.0
 *
 * topo: MPI, the communicators of the grid.  Floor 3.
 */
#ifndef LF_TOPO_H
#define LF_TOPO_H

#include "coll.h"
#include "grid.h"

typedef struct lf_topo {
    lf_grid grid;
    lf_comm *world, *group, *pcp, *tp;     /* group: the ep = pcp*tp ranks of this dp group */
    lf_comm *files;                        /* the ranks of pcp once more, for what they tell each other of files */
    int local_rank, local_size;            /* within the node */
    double patience;                       /* seconds that calls on these, but not on world, wait for another rank */
    struct lf_counter *counter;
} lf_topo;

/* Start and end MPI (once a process).  A program started without mpirun is a world of one. */
int lf_topo_start(int *argc, char ***argv, int *rank, int *world, lf_err *err);
void lf_topo_end(void);
void lf_topo_abort(int code) __attribute__((noreturn));        /* ends every rank of the job */

/* Both collective over the world.  Of rank 0's environment: LONGFILL_CHECK_COLLECTIVES=1: before every collective the
 * ranks compare what they are about to do, and where they differ all of them fail, naming the first rank and call.
 * LONGFILL_PATIENCE: a call on a communicator but the world's, where a rank may have hours of work of its own, fails
 * after so many seconds without the others; a rank that it failed on can only abort. */
int lf_topo_open(lf_topo *t, const lf_grid *g, lf_err *err);
/* Device memory goes through NCCL from now on, where the device is a GPU and the program has NCCL; without it through
 * host memory.  d outlives t.  Collective over the world, as lf_topo_agree; where NCCL fails on one rank and holds
 * others, that rank says why and aborts the job. */
int lf_topo_attach(lf_topo *t, lf_dev *d, lf_err *err);
void lf_topo_close(lf_topo *t);

/* Seconds in exchanges of device data so far, on this rank (lf_comm_stats); right after a sync of the device. */
double lf_topo_seconds(const lf_topo *t);

/* A counter on rank 0 that all ranks draw from: dp groups pull prompts with it.  Next value, from 0.
 * Called by one rank of a group (ep_rank 0), which tells the others through lf_coll_* or lf_topo_bcast. */
int lf_topo_next(lf_topo *t, int64_t *value, lf_err *err);
int lf_topo_bcast(lf_comm *c, void *host, size_t bytes, int root, lf_err *err);
int lf_topo_barrier(lf_comm *c, lf_err *err);
/* Does any rank of c say yes?  The same answer everywhere. */
int lf_topo_any(lf_comm *c, int yes, int *any, lf_err *err);
/* *value becomes the least of all ranks'. */
int lf_topo_least(lf_comm *c, int64_t *value, lf_err *err);
/* After a step in which ranks may have failed one by one: 0, or -1 on all of c when any did.  All have the text of the
 * first that failed, the others as "rank R: ...". */
int lf_topo_agree(lf_comm *c, int bad, lf_err *err);
/* HOST memory: each rank's bytes, any number of them, one after the other in rank order on root.  There *all is owned
 * by the caller and has *total bytes; elsewhere it is NULL. */
int lf_topo_gather(lf_comm *c, const void *mine, size_t bytes, void **all, size_t *total, int root, lf_err *err);

#endif
