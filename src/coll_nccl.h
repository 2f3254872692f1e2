/* SPDX-License-Identifier: Apache-2.0
 *
 * coll_nccl: NCCL as coll uses it, without a type of its.  Floor 3.  Implemented by cuda/nccl.cu, or by
 * coll_nccl_none.c in a program built without NCCL, where communicators of GPUs go through MPI and host memory.
 */
#ifndef LF_COLL_NCCL_H
#define LF_COLL_NCCL_H

#ifdef __cplusplus
extern "C" {
#endif

#include "dev.h"

typedef struct lf_nccl lf_nccl;

enum { LF_NCCL_ID = 128 };                 /* bytes of an id: made by one rank, given to the others */

int lf_nccl_here(void);                    /* was the program built with it? */
int lf_nccl_id(void *id, lf_err *err);
/* Collective over the `size` ranks that hold the id.  d is a CUDA device and outlives the communicator. */
int lf_nccl_open(lf_nccl **out, lf_dev *d, const void *id, int size, int rank, const char *name, lf_err *err);
void lf_nccl_close(lf_nccl *n);            /* NULL is fine */

/* Both run on LF_QUEUE_EXCHANGE, after what the queue in use was given; what it is given next comes after them.  The
 * device's seconds in them are added to *seconds, by the next sync. */

/* One group of sends and receives; pieces for this rank itself are passed over. */
int lf_nccl_move(lf_nccl *n, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs, double *seconds,
                 lf_err *err);
/* x [count] float, device memory, summed over the ranks, the same bytes on all of them. */
int lf_nccl_sum(lf_nccl *n, float *x, int64_t count, double *seconds, lf_err *err);

#ifdef __cplusplus
}
#endif

#endif
