/* SPDX-License-Identifier: Apache-2.0
 *
 * coll: collectives on device buffers.  Floor 3.  Here: MPI through host memory; over NCCL the calls are the same.
 *
 * Every rank of a communicator enters every collective the same number of times in the same order, with empty pieces
 * where it has nothing.  A collective belongs to the queue in use (dev.h).  A communicator counts the bytes it moved
 * (sent to other ranks) and the seconds spent in it.  Counts and offsets are bytes and may exceed 2^31.
 */
#ifndef LF_COLL_H
#define LF_COLL_H

#include "dev.h"

enum { LF_SUM_BLOCK = 1 << 22 };           /* floats that are summed at a time: bounds the room for it */

typedef struct lf_comm lf_comm;

typedef struct lf_comm_stats {
    const char *name;                      /* "world", "dp", "pcp", "tp", "ep" */
    int size;
    uint64_t calls, bytes_sent, bytes_received;   /* payload to and from other ranks */
    double seconds;                        /* in it: the host's through MPI; the device's through NCCL, after a sync */
} lf_comm_stats;

int lf_comm_size(const lf_comm *c);
int lf_comm_rank(const lf_comm *c);
void lf_comm_stats_get(const lf_comm *c, lf_comm_stats *out);

/* One grouped exchange; sends and receives between a pair match in order. */
int lf_coll_exchange(lf_comm *c, lf_dev *d, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs,
                     lf_err *err);
/* dst holds everybody's piece: rank r's count[r] bytes at at[r]. */
int lf_coll_gather(lf_comm *c, lf_dev *d, void *dst, const size_t *count, const size_t *at, const void *src,
                   lf_err *err);
/* send_count[r] bytes at send_at[r] go to rank r; the same the other way. */
int lf_coll_all_to_all(lf_comm *c, lf_dev *d, void *dst, const size_t *recv_count, const size_t *recv_at,
                       const void *src, const size_t *send_count, const size_t *send_at, lf_err *err);
/* x[n] float, summed pairwise (ranks lo..hi-1: the two halves, then their sum), the same bytes on every rank.
 * room: device memory, min(n, LF_SUM_BLOCK) + the size of c floats. */
int lf_coll_sum(lf_comm *c, lf_dev *d, float *x, int64_t n, float *room, lf_err *err);
/* HOST memory: n int64 to and from each rank. */
int lf_coll_counts(lf_comm *c, int64_t *recv, const int64_t *send, int n, lf_err *err);

#endif
