/* SPDX-License-Identifier: Apache-2.0
 *
 * What coll needs of NCCL: one grouped exchange, one sum.  Everything else is made of these, on the device's stream.
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

/* For the text of a time-out. */
static void begin(lf_nccl *n, const char *what)
{
    snprintf(n->cuda->call, sizeof n->cuda->call, "%s %llu on %s, rank %d", what, ++n->calls, n->name, n->rank);
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

int lf_nccl_move(lf_nccl *n, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs, lf_err *err)
{
    begin(n, "exchange");
    ncclResult_t rc = ncclGroupStart();

    for (int i = 0; i < sends && rc == ncclSuccess; i++)
        if (send[i].peer != n->rank && send[i].bytes)
            rc = ncclSend(send[i].data, send[i].bytes, ncclUint8, send[i].peer, n->comm, n->cuda->stream);
    for (int i = 0; i < recvs && rc == ncclSuccess; i++)
        if (recv[i].peer != n->rank && recv[i].bytes)
            rc = ncclRecv(recv[i].data, recv[i].bytes, ncclUint8, recv[i].peer, n->comm, n->cuda->stream);
    ncclResult_t end = ncclGroupEnd();
    rc = rc == ncclSuccess ? end : rc;
    return rc == ncclSuccess ? 0 : nccl_fail(err, n, rc, "exchange");
}

int lf_nccl_sum(lf_nccl *n, float *x, int64_t count, lf_err *err)
{
    begin(n, "sum");
    ncclResult_t rc = count ? ncclAllReduce(x, x, (size_t)count, ncclFloat32, ncclSum, n->comm, n->cuda->stream)
                            : ncclSuccess;

    return rc == ncclSuccess ? 0 : nccl_fail(err, n, rc, "sum");
}
