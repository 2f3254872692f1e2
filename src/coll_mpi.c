/* SPDX-License-Identifier: Apache-2.0 */
#include "coll_mpi.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Seconds of a wait before it takes naps; that count of a stretch without a look: this process itself was stopped. */
static const double look_s = 0.01, stretch_s = 1;

enum { NAP_US = 50, NAP_BYTES = 1 << 16 }; /* naps are not for messages of more, which need MPI called to get on */

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
    c->every = lf_alloc(3 * (size_t)c->size * sizeof *c->every);
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

static int too_long(lf_err *err, const lf_comm *c, const char *what)
{
    return lf_fail(err, "%s on communicator %s, rank %d of %d, call %llu: nothing for %g seconds; is another rank "
                   "gone, or waiting for its disk? LONGFILL_PATIENCE=SECONDS waits longer",
                   what, c->stats.name, c->rank, c->size, (unsigned long long)c->stats.calls, c->patience);
}

static int await(const lf_comm *c, int n, MPI_Request *r, MPI_Status *s, int naps, const char *what, lf_err *err)
{
    double waited = 0, before = lf_now();
    int done = 0, rc = MPI_Testall(n, r, &done, s);

    while (!rc && !done) {
        double now = lf_now();
        waited += fmin(now - before, stretch_s);
        before = now;
        if (c->patience > 0 && waited > c->patience)
            return too_long(err, c, what);
        if (naps && waited > look_s)
            usleep(NAP_US);
        rc = MPI_Testall(n, r, &done, s);
    }
    for (int i = 0; rc == MPI_ERR_IN_STATUS && i < n; i++)
        if (s[i].MPI_ERROR != MPI_SUCCESS && s[i].MPI_ERROR != MPI_ERR_PENDING)
            rc = s[i].MPI_ERROR;
    return rc ? lf_comm_fail(err, c, rc, what) : 0;
}

int lf_comm_wait(lf_comm *c, int rc, MPI_Request *r, size_t bytes, const char *what, lf_err *err)
{
    MPI_Status s;

    return rc ? lf_comm_fail(err, c, rc, what) : await(c, 1, r, &s, bytes <= NAP_BYTES, what, err);
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
    int got;

    if (await(c, f->count, f->request, f->status, 0, "exchanging", err))
        return -1;
    for (int i = 0; i < f->count; i++) {
        if (f->want[i] < 0)
            continue;
        MPI_Get_count(&f->status[i], MPI_BYTE, &got);
        if (got != f->want[i])
            return lf_fail(err, "communicator %s, call %llu: rank %d sent %d byte%s where rank %d expects %d",
                           c->stats.name, (unsigned long long)c->stats.calls, f->status[i].MPI_SOURCE, got, lf_s(got),
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
