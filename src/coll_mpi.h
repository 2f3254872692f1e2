/* SPDX-License-Identifier: Apache-2.0
 *
 * coll_mpi: what coll and topo share and nobody else sees: a communicator, and moving host memory over it.  Floor 3.
 */
#ifndef LF_COLL_MPI_H
#define LF_COLL_MPI_H

#include "coll.h"
#include "coll_nccl.h"

#include <mpi.h>

typedef struct lf_scratch {                /* host memory that only grows */
    void *at;
    size_t room;
} lf_scratch;

struct lf_comm {
    MPI_Comm mpi;                          /* MPI_COMM_NULL when this is the only rank: then nothing calls MPI */
    int size, rank;
    int check;                             /* compare every call over the ranks; the same on all of them */
    MPI_Comm poke;                         /* unless MPI_COMM_NULL: every call lets MPI serve others (topo_counter.h) */
    lf_nccl *nccl;                         /* for device memory, when the device is a GPU; else NULL */
    size_t piece;                          /* bytes of a message at most */
    double patience;                       /* seconds that a call waits for other ranks; 0: without end */
    int word[2];                           /* of lf_topo_any: sent, received */
    lf_comm_stats stats;
    lf_xfer *every;                        /* [3 * size], for calls with a piece to and from every rank */
    lf_scratch stage, lists, requests, card;
};

typedef enum lf_coll_kind {
    LF_COLL_EXCHANGE, LF_COLL_GATHER, LF_COLL_ALL_TO_ALL, LF_COLL_SUM, LF_COLL_COUNTS, LF_COLL_BCAST, LF_COLL_BARRIER,
    LF_COLL_ANY
} lf_coll_kind;

/* What a rank is about to do.  Sends and receives are compared between the two ends, n and root over all ranks. */
typedef struct lf_call {
    lf_coll_kind kind;
    int64_t n;
    int root;
    const lf_xfer *send, *recv;
    int sends, recvs;
} lf_call;

/* Takes over mpi (MPI_COMM_NULL: a communicator of one).  `name` lives as long as the communicator. */
lf_comm *lf_comm_make(MPI_Comm mpi, const char *name, int check);
void lf_comm_free(lf_comm *c);             /* collective; NULL is fine */

/* "<what> on <communicator>: <MPI's text>" */
int lf_comm_fail(lf_err *err, const lf_comm *c, int rc, const char *what);
void *lf_scratch_room(lf_scratch *s, size_t bytes);     /* keeps no contents */

/* Waits for what a call of MPI, which returned rc, has begun; bytes: of its largest message; what: for the text of an
 * error.  Where the patience ends before, MPI keeps the buffers: this rank cannot go on, as after its other errors. */
int lf_comm_wait(lf_comm *c, int rc, MPI_Request *r, size_t bytes, const char *what, lf_err *err);

/* Every collective begins and ends with these.  Begin counts the call and, in check mode, compares it. */
int lf_comm_begin(lf_comm *c, const lf_call *call, double *start, lf_err *err);
int lf_comm_end(lf_comm *c, double start, int result);
int lf_comm_check(lf_comm *c, const lf_call *call, lf_err *err);

/* Host memory to and from other ranks; pieces for this rank itself are passed over.  Counts the bytes. */
int lf_comm_move(lf_comm *c, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs, lf_err *err);

#endif
