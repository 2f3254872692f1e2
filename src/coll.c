/* SPDX-License-Identifier: Apache-2.0 */
#include "coll_mpi.h"

#include <string.h>

int lf_comm_size(const lf_comm *c)
{
    return c->size;
}

int lf_comm_rank(const lf_comm *c)
{
    return c->rank;
}

void lf_comm_stats_get(const lf_comm *c, lf_comm_stats *out)
{
    *out = c->stats;
}

/* Is device memory host memory? */
static int on_host(const lf_dev *d)
{
    return strcmp(d->ops->name, "cpu") == 0;
}

/* Then the seconds are the device's, and known later. */
static int by_nccl(const lf_comm *c, const lf_dev *d)
{
    return c->nccl && !on_host(d);
}

static int peers_check(const lf_comm *c, const lf_xfer *x, int n, lf_err *err)
{
    for (int i = 0; i < n; i++)
        if (x[i].peer < 0 || x[i].peer >= c->size)
            return lf_fail(err, "a transfer with rank %d on communicator %s, which has %d rank%s", x[i].peer,
                           c->stats.name, c->size, lf_s(c->size));
    return 0;
}

/* Transfers of this rank with itself, matched in order; empty ones are nothing here, as they are between ranks. */
static int copy_own(lf_comm *c, lf_dev *d, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs,
                    lf_err *err)
{
    int i = 0, j = 0;

    for (;; i++, j++) {
        while (i < sends && (send[i].peer != c->rank || send[i].bytes == 0))
            i++;
        while (j < recvs && (recv[j].peer != c->rank || recv[j].bytes == 0))
            j++;
        if (i == sends || j == recvs)
            break;
        if (send[i].bytes != recv[j].bytes)
            return lf_fail(err, "communicator %s: rank %d sends itself %zu byte%s and expects %zu",
                           c->stats.name, c->rank, send[i].bytes, lf_s((int64_t)send[i].bytes), recv[j].bytes);
        if (send[i].data != recv[j].data)
            d->ops->copy(d, recv[j].data, send[i].data, send[i].bytes);
    }
    if ((i == sends) != (j == recvs))
        return lf_fail(err, "communicator %s: rank %d sends itself more or fewer pieces than it expects",
                       c->stats.name, c->rank);
    return 0;
}

static size_t bytes_of_others(const lf_comm *c, const lf_xfer *x, int n)
{
    size_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += x[i].peer != c->rank ? x[i].bytes : 0;
    return sum;
}

/* The same list with each piece for another rank at its place in host memory. */
static char *list_on_stage(const lf_comm *c, lf_xfer *out, const lf_xfer *x, int n, char *stage)
{
    for (int i = 0; i < n; i++) {
        out[i] = x[i];
        out[i].data = stage;
        stage += x[i].peer != c->rank ? x[i].bytes : 0;
    }
    return stage;
}

static int move_staged(lf_comm *c, lf_dev *d, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs,
                       lf_err *err)
{
    size_t bytes = bytes_of_others(c, send, sends) + bytes_of_others(c, recv, recvs);
    char *stage = lf_scratch_room(&c->stage, bytes);
    lf_xfer *from = lf_scratch_room(&c->lists, ((size_t)sends + (size_t)recvs) * sizeof *from);
    lf_xfer *to = from + sends;

    stage = list_on_stage(c, from, send, sends, stage);
    list_on_stage(c, to, recv, recvs, stage);
    for (int i = 0; i < sends; i++)
        if (send[i].peer != c->rank && send[i].bytes)
            d->ops->get(d, from[i].data, send[i].data, send[i].bytes);
    if (lf_comm_move(c, from, sends, to, recvs, err))
        return -1;
    for (int i = 0; i < recvs; i++)
        if (recv[i].peer != c->rank && recv[i].bytes)
            d->ops->put(d, recv[i].data, to[i].data, recv[i].bytes);
    return d->ops->sync(d, err);           /* the stage is used again */
}

static int move_nccl(lf_comm *c, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs, lf_err *err)
{
    c->stats.bytes_sent += bytes_of_others(c, send, sends);
    c->stats.bytes_received += bytes_of_others(c, recv, recvs);
    return lf_nccl_move(c->nccl, send, sends, recv, recvs, &c->stats.seconds, err);
}

static int move(lf_comm *c, lf_dev *d, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs, lf_err *err)
{
    if (on_host(d))
        return lf_comm_move(c, send, sends, recv, recvs, err);
    return c->nccl ? move_nccl(c, send, sends, recv, recvs, err) : move_staged(c, d, send, sends, recv, recvs, err);
}

static int transfer(lf_comm *c, lf_dev *d, lf_coll_kind kind, const lf_xfer *send, int sends,
                    const lf_xfer *recv, int recvs, lf_err *err)
{
    lf_call call = { .kind = kind, .send = send, .sends = sends, .recv = recv, .recvs = recvs };
    double start;
    int bad;

    if (peers_check(c, send, sends, err) || peers_check(c, recv, recvs, err))
        return -1;
    bad = lf_comm_begin(c, &call, &start, err) || copy_own(c, d, send, sends, recv, recvs, err);
    if (!bad && c->size > 1)
        bad = move(c, d, send, sends, recv, recvs, err);
    return lf_comm_end(c, by_nccl(c, d) ? lf_now() : start, bad ? -1 : 0);
}

int lf_coll_exchange(lf_comm *c, lf_dev *d, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs,
                     lf_err *err)
{
    return transfer(c, d, LF_COLL_EXCHANGE, send, sends, recv, recvs, err);
}

/* lf_xfer's data is both source and destination; a source is only read. */
static lf_xfer piece_of(int peer, const void *base, size_t at, size_t bytes)
{
    return (lf_xfer){ .peer = peer, .data = bytes ? (char *)(uintptr_t)base + at : NULL, .bytes = bytes };
}

/* Each rank begins with the rank after it, so that they do not all send to one. */
static int peer_at(const lf_comm *c, int i, int down)
{
    return (down ? c->rank + c->size - i : c->rank + i) % c->size;
}

int lf_coll_gather(lf_comm *c, lf_dev *d, void *dst, const size_t *count, const size_t *at, const void *src,
                   lf_err *err)
{
    lf_xfer *send = c->every, *recv = c->every + c->size;

    for (int i = 0; i < c->size; i++) {
        int to = peer_at(c, i, 0), from = peer_at(c, i, 1);
        send[i] = piece_of(to, src, 0, count[c->rank]);
        recv[i] = piece_of(from, dst, at[from], count[from]);
    }
    return transfer(c, d, LF_COLL_GATHER, send, c->size, recv, c->size, err);
}

int lf_coll_all_to_all(lf_comm *c, lf_dev *d, void *dst, const size_t *recv_count, const size_t *recv_at,
                       const void *src, const size_t *send_count, const size_t *send_at, lf_err *err)
{
    lf_xfer *send = c->every, *recv = c->every + c->size;

    for (int i = 0; i < c->size; i++) {
        int to = peer_at(c, i, 0), from = peer_at(c, i, 1);
        send[i] = piece_of(to, src, send_at[to], send_count[to]);
        recv[i] = piece_of(from, dst, recv_at[from], recv_count[from]);
    }
    return transfer(c, d, LF_COLL_ALL_TO_ALL, send, c->size, recv, c->size, err);
}

/* part [ranks, len], ranks lo .. hi-1: added pairwise into part lo, in the order that dev.h gives lf_gemm's parts. */
static void sum_ranks(lf_dev *d, float *part, int64_t len, int lo, int hi)
{
    int mid = (lo + hi) / 2;

    if (hi - lo < 2)
        return;
    sum_ranks(d, part, len, lo, mid);
    sum_ranks(d, part, len, mid, hi);
    d->ops->add(d, part + lo * len, part + mid * len, len);
}

/* Rank r sums slice r of x, in room, and everybody gets its bytes: the same everywhere. */
static int sum_block(lf_comm *c, lf_dev *d, float *x, int64_t n, float *room, lf_err *err)
{
    int64_t mine = n * c->rank / c->size, len = n * (c->rank + 1) / c->size - mine;
    size_t bytes = (size_t)len * sizeof *x;
    lf_xfer *slice = c->every, *own = slice + c->size, *parts = own + c->size;

    for (int r = 0; r < c->size; r++) {
        int64_t at = n * r / c->size, l = n * (r + 1) / c->size - at;
        slice[r] = piece_of(r, x + at, 0, (size_t)l * sizeof *x);
        own[r] = piece_of(r, x + mine, 0, bytes);
        parts[r] = piece_of(r, room + r * len, 0, bytes);
    }
    if (move(c, d, slice, c->size, parts, c->size, err))
        return -1;
    if (len) {
        d->ops->copy(d, room + c->rank * len, x + mine, bytes);
        sum_ranks(d, room, len, 0, c->size);
        d->ops->copy(d, x + mine, room, bytes);
    }
    return move(c, d, own, c->size, slice, c->size, err);
}

static int sum_blocks(lf_comm *c, lf_dev *d, float *x, int64_t n, float *room, lf_err *err)
{
    for (int64_t at = 0; at < n; at += LF_SUM_BLOCK)
        if (sum_block(c, d, x + at, lf_min(LF_SUM_BLOCK, n - at), room, err))
            return -1;
    return 0;
}

/* Of two ranks: there is but one order.  NCCL's sum of more depends on where in x a value is, so that a row's would
 * depend on the rows around it.  Bytes counted as sum_blocks moves them. */
static int sum_nccl(lf_comm *c, float *x, int64_t n, lf_err *err)
{
    uint64_t bytes = 2 * (uint64_t)n * sizeof *x * (uint64_t)(c->size - 1) / (uint64_t)c->size;

    c->stats.bytes_sent += bytes;
    c->stats.bytes_received += bytes;
    return lf_nccl_sum(c->nccl, x, n, &c->stats.seconds, err);
}

int lf_coll_sum(lf_comm *c, lf_dev *d, float *x, int64_t n, float *room, lf_err *err)
{
    lf_call call = { .kind = LF_COLL_SUM, .n = n };
    double start;
    int bad = lf_comm_begin(c, &call, &start, err);

    if (!bad && c->size > 1)
        bad = by_nccl(c, d) && c->size == 2 ? sum_nccl(c, x, n, err) : sum_blocks(c, d, x, n, room, err);
    return lf_comm_end(c, by_nccl(c, d) ? lf_now() : start, bad);
}

int lf_coll_counts(lf_comm *c, int64_t *recv, const int64_t *send, int n, lf_err *err)
{
    lf_call call = { .kind = LF_COLL_COUNTS, .n = n };
    uint64_t others = (uint64_t)(c->size - 1) * (uint64_t)n * sizeof *send;
    double start;
    int bad = lf_comm_begin(c, &call, &start, err);

    if (!bad && c->size == 1) {
        memcpy(recv, send, (size_t)n * sizeof *send);
    } else if (!bad) {
        MPI_Request r;
        int rc = MPI_Ialltoall(send, n, MPI_INT64_T, recv, n, MPI_INT64_T, c->mpi, &r);
        c->stats.bytes_sent += others;
        c->stats.bytes_received += others;
        bad = lf_comm_wait(c, rc, &r, (size_t)n * sizeof *send, "exchanging counts", err);
    }
    return lf_comm_end(c, c->nccl ? lf_now() : start, bad);            /* NCCL's seconds are no host's */
}
