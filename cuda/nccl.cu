/* SPDX-License-Identifier: Apache-2.0
 *
 * What coll needs of NCCL: one grouped exchange, one sum.  Everything else is made of these.
 */
#include "cuda.cuh"
#include "coll_nccl.h"

#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lf_nccl {
    ncclComm_t comm;
    lf_cuda *cuda;
    int rank;
    char name[16];
    unsigned long long calls;
};

/* Everything of NCCL runs on one queue, in the order of the calls, so that communicators cannot wait for each other.
 * For callers on the compute queue that goes on when it is done.  The text is for a time-out. */
static lf_queue begin(lf_nccl *n, const char *what)
{
    lf_cuda *c = n->cuda;
    lf_queue from = c->queue;

    snprintf(c->call, sizeof c->call, "%s %llu on %s, rank %d", what, ++n->calls, n->name, n->rank);
    lf_cuda_turn(c, from, LF_QUEUE_EXCHANGE);
    lf_cuda_use(&c->dev, LF_QUEUE_EXCHANGE);
    lf_cuda_stamp(&c->dev, NULL, NULL);
    return from;
}

static void end(lf_nccl *n, lf_queue from, double *seconds)
{
    lf_cuda *c = n->cuda;

    lf_cuda_stamp(&c->dev, seconds, NULL);
    lf_cuda_turn(c, LF_QUEUE_EXCHANGE, from);
    lf_cuda_use(&c->dev, from);
}

static int nccl_fail(lf_err *err, const lf_nccl *n, ncclResult_t rc, const char *what)
{
    return lf_fail(err, "NCCL, communicator %s, rank %d, %s%s%s: %s", n->name, n->rank, n->cuda->where,
                   n->cuda->where[0] ? ", " : "", what, ncclGetErrorString(rc));
}

int lf_nccl_here(void)
{
    return 1;
}

int lf_nccl_id(void *id, lf_err *err)
{
    static_assert(sizeof(ncclUniqueId) == LF_NCCL_ID, "what is broadcast is an ncclUniqueId");
    ncclResult_t rc = ncclGetUniqueId((ncclUniqueId *)id);

    return rc == ncclSuccess ? 0 : lf_fail(err, "NCCL cannot begin: %s", ncclGetErrorString(rc));
}

int lf_nccl_open(lf_nccl **out, lf_dev *d, const void *id, int size, int rank, const char *name, lf_err *err)
{
    lf_nccl *n = (lf_nccl *)lf_alloc(sizeof *n);
    ncclUniqueId unique;

    memcpy(&unique, id, sizeof unique);
    n->cuda = lf_cuda_of(d);
    n->rank = rank;
    strncpy(n->name, name, sizeof n->name - 1);
    cudaSetDevice(n->cuda->device);
    ncclResult_t rc = ncclCommInitRank(&n->comm, size, unique, rank);
    if (rc != ncclSuccess) {
        int bad = nccl_fail(err, n, rc, "starting (NCCL_DEBUG=WARN tells more)");
        free(n);
        return bad;
    }
    *out = n;
    return 0;
}

void lf_nccl_close(lf_nccl *n)
{
    if (!n)
        return;
    ncclCommDestroy(n->comm);
    free(n);
}

int lf_nccl_move(lf_nccl *n, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs, double *seconds,
                 lf_err *err)
{
    lf_queue from = begin(n, "exchange");
    ncclResult_t rc = ncclGroupStart();

    for (int i = 0; i < sends && rc == ncclSuccess; i++)
        if (send[i].peer != n->rank && send[i].bytes)
            rc = ncclSend(send[i].data, send[i].bytes, ncclUint8, send[i].peer, n->comm, n->cuda->stream);
    for (int i = 0; i < recvs && rc == ncclSuccess; i++)
        if (recv[i].peer != n->rank && recv[i].bytes)
            rc = ncclRecv(recv[i].data, recv[i].bytes, ncclUint8, recv[i].peer, n->comm, n->cuda->stream);
    ncclResult_t all = ncclGroupEnd();
    end(n, from, seconds);
    rc = rc == ncclSuccess ? all : rc;
    return rc == ncclSuccess ? 0 : nccl_fail(err, n, rc, "exchange");
}

int lf_nccl_sum(lf_nccl *n, float *x, int64_t count, double *seconds, lf_err *err)
{
    lf_queue from = begin(n, "sum");
    ncclResult_t rc = count ? ncclAllReduce(x, x, (size_t)count, ncclFloat32, ncclSum, n->comm, n->cuda->stream)
                            : ncclSuccess;

    end(n, from, seconds);
    return rc == ncclSuccess ? 0 : nccl_fail(err, n, rc, "sum");
}
