/* SPDX-License-Identifier: Apache-2.0
 *
 * What coll needs of NCCL: one grouped exchange, one sum.  Everything else is made of these.
 */
#include "cuda.cuh"
#include "coll_nccl.h"

#include <nccl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ABORT_SECONDS = 10 };

struct lf_nccl {
    lf_nccl *next;                         /* of the device's */
    ncclComm_t comm;                       /* NULL: aborted */
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

    lf_cuda_call_begin(c, "%s %llu on %s, rank %d", what, ++n->calls, n->name, n->rank);
    lf_cuda_turn(c, from, LF_QUEUE_EXCHANGE);
    lf_cuda_use(&c->dev, LF_QUEUE_EXCHANGE);
    lf_cuda_stamp(&c->dev, NULL, NULL);
    return from;
}

static void end(lf_nccl *n, lf_queue from, double *seconds)
{
    lf_cuda *c = n->cuda;

    lf_cuda_call_end(c);
    lf_cuda_stamp(&c->dev, seconds, NULL);
    lf_cuda_turn(c, LF_QUEUE_EXCHANGE, from);
    lf_cuda_use(&c->dev, from);
}

static int nccl_fail(lf_err *err, const lf_nccl *n, ncclResult_t rc, const char *what)
{
    if (n->cuda->given_up)                 /* and the communicator with it */
        return lf_fail(err, "%s", n->cuda->error.text);
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

/* ---- what waits do with the device's communicators ---- */

/* Errors beside the calls: another rank has ended, a link is down. */
static int look(lf_cuda *c, lf_err *why)
{
    for (const lf_nccl *n = c->comms; n; n = n->next) {
        ncclResult_t state = ncclSuccess, rc = ncclCommGetAsyncError(n->comm, &state);
        rc = rc == ncclSuccess ? state : rc;
        if (rc != ncclSuccess && rc != ncclInProgress)
            return lf_fail(why, "NCCL, communicator %s, rank %d: %s (%s)", n->name, n->rank, ncclGetErrorString(rc),
                           ncclGetLastError(n->comm));
    }
    return 0;
}

/* In one group: each alone would wait for the kernels of the others, which hang behind its own. */
static void *abort_all(void *arg)
{
    lf_cuda *c = (lf_cuda *)arg;

    cudaSetDevice(c->device);
    ncclGroupStart();
    for (lf_nccl *n = c->comms; n; n = n->next)
        ncclCommAbort(n->comm);
    ncclGroupEnd();
    return NULL;
}

/* In a thread of its own, as NCCL waits for the GPU there, where something else than a collective may hang. */
static void abort_comms(lf_cuda *c)
{
    pthread_t thread;
    struct timespec until;

    if (!c->comms || pthread_create(&thread, NULL, abort_all, c))
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ABORT_SECONDS;
    if (pthread_timedjoin_np(thread, NULL, &until)) {
        pthread_detach(thread);
        return;
    }
    for (lf_nccl *n = c->comms; n; n = n->next)
        n->comm = NULL;
    c->comms_look = NULL;
}

/* ---- opening and closing ---- */

/* A byte to and from everybody.  NCCL connects two ranks when they first exchange, and the host is held up until both
 * do: here, where all ranks are, and not in a pass, where one may be gone. */
static ncclResult_t exchange_bytes(lf_nccl *n, int size, char *spot)
{
    ncclResult_t rc = ncclGroupStart();

    for (int peer = 0; peer < size && rc == ncclSuccess; peer++) {
        if (peer == n->rank)
            continue;
        rc = ncclSend(spot, 1, ncclUint8, peer, n->comm, n->cuda->streams[LF_QUEUE_EXCHANGE]);
        if (rc == ncclSuccess)
            rc = ncclRecv(spot + 1 + peer, 1, ncclUint8, peer, n->comm, n->cuda->streams[LF_QUEUE_EXCHANGE]);
    }
    ncclResult_t all = ncclGroupEnd();
    return rc == ncclSuccess ? all : rc;
}

static int connect_all(lf_nccl *n, int size, lf_err *err)
{
    lf_cuda *c = n->cuda;
    char *spot = NULL;                     /* [1 + size]: sent, received from each */

    if (LF_CUDA(c, cudaMalloc(&spot, (size_t)size + 1), "connecting"))
        return lf_fail(err, "%s", c->error.text);
    ncclResult_t rc = exchange_bytes(n, size, spot);
    int bad = rc != ncclSuccess ? nccl_fail(err, n, rc, "connecting") : 0;
    if (!bad && (LF_CUDA(c, cudaEventRecord(c->end, c->streams[LF_QUEUE_EXCHANGE]), "connecting") ||
                 lf_cuda_wait(c, c->end, "connecting")))
        bad = lf_fail(err, "%s", c->error.text);
    if (!c->given_up && LF_CUDA(c, cudaFree(spot), "connecting") && !bad)
        bad = lf_fail(err, "%s", c->error.text);
    return bad;
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
    n->next = n->cuda->comms;
    n->cuda->comms = n;
    n->cuda->comms_look = look;
    n->cuda->comms_abort = abort_comms;
    *out = n;
    return connect_all(n, size, err);
}

/* NCCL waits without end for what is under way, so it must be over, or has been given up. */
void lf_nccl_close(lf_nccl *n)
{
    if (!n)
        return;
    lf_cuda *c = n->cuda;
    lf_cuda_calls_wait(c);
    if (c->given_up && n->comm)            /* aborting it has not ended */
        return;
    for (lf_nccl **at = &c->comms; *at; at = &(*at)->next)
        if (*at == n) {
            *at = n->next;
            break;
        }
    if (n->comm)
        ncclCommDestroy(n->comm);
    free(n);
}

static ncclResult_t exchange(lf_nccl *n, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs)
{
    ncclResult_t rc = ncclGroupStart();

    for (int i = 0; i < sends && rc == ncclSuccess; i++)
        if (send[i].peer != n->rank && send[i].bytes)
            rc = ncclSend(send[i].data, send[i].bytes, ncclUint8, send[i].peer, n->comm, n->cuda->stream);
    for (int i = 0; i < recvs && rc == ncclSuccess; i++)
        if (recv[i].peer != n->rank && recv[i].bytes)
            rc = ncclRecv(recv[i].data, recv[i].bytes, ncclUint8, recv[i].peer, n->comm, n->cuda->stream);
    ncclResult_t all = ncclGroupEnd();
    return rc == ncclSuccess ? all : rc;
}

int lf_nccl_move(lf_nccl *n, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs, double *seconds,
                 lf_err *err)
{
    lf_queue from = begin(n, "exchange");
    ncclResult_t rc = n->cuda->given_up ? ncclInvalidUsage : exchange(n, send, sends, recv, recvs);

    end(n, from, seconds);
    return rc == ncclSuccess ? 0 : nccl_fail(err, n, rc, "exchange");
}

int lf_nccl_sum(lf_nccl *n, float *x, int64_t count, double *seconds, lf_err *err)
{
    lf_queue from = begin(n, "sum");
    ncclResult_t rc = n->cuda->given_up ? ncclInvalidUsage : ncclSuccess;

    if (rc == ncclSuccess && count)
        rc = ncclAllReduce(x, x, (size_t)count, ncclFloat32, ncclSum, n->comm, n->cuda->stream);
    end(n, from, seconds);
    return rc == ncclSuccess ? 0 : nccl_fail(err, n, rc, "sum");
}
