/* SPDX-License-Identifier: Apache-2.0 */
#include "coll_mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

lf_comm *lf_comm_make(MPI_Comm mpi, const char *name, int check)
{
    lf_comm *c = lf_alloc(sizeof *c);

    c->mpi = mpi;
    c->poke = MPI_COMM_NULL;
    c->size = 1;
    c->check = check;
    c->piece = (size_t)1 << 30;
    if (mpi != MPI_COMM_NULL) {
        MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
        MPI_Comm_size(mpi, &c->size);
        MPI_Comm_rank(mpi, &c->rank);
    }
    c->every = lf_alloc(2 * (size_t)c->size * sizeof *c->every);
    c->stats.name = name;
    c->stats.size = c->size;
    return c;
}

void lf_comm_free(lf_comm *c)
{
    if (!c)
        return;
    lf_nccl_close(c->nccl);
    if (c->mpi != MPI_COMM_NULL)
        MPI_Comm_free(&c->mpi);
    free(c->every);
    free(c->stage.at);
    free(c->sums.at);
    free(c->lists.at);
    free(c->requests.at);
    free(c->card.at);
    free(c);
}

int lf_comm_fail(lf_err *err, const lf_comm *c, int rc, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;

    if (MPI_Error_string(rc, text, &n))
        snprintf(text, sizeof text, "MPI error %d", rc);
    return lf_fail(err, "%s on communicator %s, rank %d of %d: %s", what, c->stats.name, c->rank, c->size,
                   text);
}

void *lf_scratch_room(lf_scratch *s, size_t bytes)
{
    if (bytes > s->room) {
        free(s->at);
        s->at = lf_realloc(NULL, bytes);
        s->room = bytes;
    }
    return s->at;
}

int lf_comm_begin(lf_comm *c, const lf_call *call, double *start, lf_err *err)
{
    int flag;

    *start = lf_now();
    c->stats.calls++;
    if (c->poke != MPI_COMM_NULL)
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, c->poke, &flag, MPI_STATUS_IGNORE);
    return c->check && c->size > 1 ? lf_comm_check(c, call, err) : 0;
}

int lf_comm_end(lf_comm *c, double start, int result)
{
    c->stats.seconds += lf_now() - start;
    return result;
}

/* The messages of a list of transfers to and from other ranks. */
static size_t messages_of(const lf_comm *c, const lf_xfer *x, int n)
{
    size_t sum = 0;

    for (int i = 0; i < n; i++)
        if (x[i].peer != c->rank)
            sum += x[i].bytes / c->piece + (x[i].bytes % c->piece != 0);
    return sum;
}

typedef struct lf_flight {
    MPI_Request *request;
    MPI_Status *status;
    int *want;                             /* bytes a receive must get; -1 for sends */
    int count;
} lf_flight;

static int post(lf_comm *c, lf_flight *f, const lf_xfer *x, int receive, lf_err *err)
{
    for (size_t at = 0; at < x->bytes; at += c->piece) {
        int n = (int)(x->bytes - at < c->piece ? x->bytes - at : c->piece);
        char *p = (char *)x->data + at;
        MPI_Request *r = &f->request[f->count];
        int rc = receive ? MPI_Irecv(p, n, MPI_BYTE, x->peer, 1, c->mpi, r)
                         : MPI_Isend(p, n, MPI_BYTE, x->peer, 1, c->mpi, r);
        if (rc)
            return lf_comm_fail(err, c, rc, receive ? "receiving" : "sending");
        f->want[f->count++] = receive ? n : -1;
        if (receive)
            c->stats.bytes_received += (uint64_t)n;
        else
            c->stats.bytes_sent += (uint64_t)n;
    }
    return 0;
}

/* A message shorter than its receive is no error to MPI; here the two ends disagree. */
static int land(const lf_comm *c, lf_flight *f, lf_err *err)
{
    int rc = MPI_Waitall(f->count, f->request, f->status), got;

    for (int i = 0; rc == MPI_ERR_IN_STATUS && i < f->count; i++)
        if (f->status[i].MPI_ERROR != MPI_SUCCESS && f->status[i].MPI_ERROR != MPI_ERR_PENDING)
            rc = f->status[i].MPI_ERROR;
    if (rc)
        return lf_comm_fail(err, c, rc, "exchanging");
    for (int i = 0; i < f->count; i++) {
        if (f->want[i] < 0)
            continue;
        MPI_Get_count(&f->status[i], MPI_BYTE, &got);
        if (got != f->want[i])
            return lf_fail(err, "communicator %s, call %llu: rank %d sent %d bytes where rank %d expects %d",
                           c->stats.name, (unsigned long long)c->stats.calls, f->status[i].MPI_SOURCE, got,
                           c->rank, f->want[i]);
    }
    return 0;
}

int lf_comm_move(lf_comm *c, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs, lf_err *err)
{
    size_t most = messages_of(c, send, sends) + messages_of(c, recv, recvs);
    lf_flight f = { 0 };

    if (most > INT32_MAX / 2)
        return lf_fail(err, "an exchange of %zu messages on communicator %s", most, c->stats.name);
    f.request = lf_scratch_room(&c->requests, most * (sizeof *f.request + sizeof *f.status + sizeof *f.want));
    f.status = (MPI_Status *)(f.request + most);
    f.want = (int *)(f.status + most);
    for (int i = 0; i < recvs; i++)
        if (recv[i].peer != c->rank && post(c, &f, &recv[i], 1, err))
            return -1;
    for (int i = 0; i < sends; i++)
        if (send[i].peer != c->rank && post(c, &f, &send[i], 0, err))
            return -1;
    return f.count ? land(c, &f, err) : 0;
}
