/* SPDX-License-Identifier: Apache-2.0 */
#include "coll_mpi.h"
#include "topo.h"

#include <stdlib.h>
#include <string.h>

#include "all_ranks.h"

/* Two devices: "cpu", whose memory is host memory, and "fake", whose pointers fault when the host looks
 * behind them. */
static const uintptr_t far_away = (uintptr_t)1 << 62;

static char *near(const lf_dev *d, const void *p)
{
    return (char *)((uintptr_t)p - (d->ops->name[0] == 'f' ? far_away : 0));
}

static void *device(const lf_dev *d, void *host)
{
    return (void *)((uintptr_t)host + (d->ops->name[0] == 'f' ? far_away : 0));
}

static void dev_put(lf_dev *d, void *dst, const void *host, size_t bytes)
{
    memcpy(near(d, dst), host, bytes);
}

static void dev_get(lf_dev *d, void *host, const void *src, size_t bytes)
{
    memcpy(host, near(d, src), bytes);
}

static void dev_copy(lf_dev *d, void *dst, const void *src, size_t bytes)
{
    memcpy(near(d, dst), near(d, src), bytes);
}

static void dev_add(lf_dev *d, float *x, const float *y, int64_t n)
{
    float *to = (float *)(void *)near(d, x);
    const float *from = (const float *)(void *)near(d, y);

    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

static int dev_sync(lf_dev *d, lf_err *err)
{
    (void)d;
    (void)err;
    return 0;
}

static const lf_dev_ops cpu_ops = { .name = "cpu", .put = dev_put, .get = dev_get, .copy = dev_copy,
                                   .add = dev_add, .sync = dev_sync };
static const lf_dev_ops fake_ops = { .name = "fake", .put = dev_put, .get = dev_get, .copy = dev_copy,
                                     .add = dev_add, .sync = dev_sync };

static uint8_t pattern(int from, int to, size_t i)
{
    return (uint8_t)(from * 101 + to * 17 + (int)(i * 31 % 251) + 1);
}

static int holds(const uint8_t *p, size_t n, int from, int to, size_t first)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != pattern(from, to, first + i))
            return 0;
    return 1;
}

static int is_byte(const uint8_t *p, size_t n, uint8_t byte)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != byte)
            return 0;
    return 1;
}

/* Bytes and calls since `before`. */
static int moved(const lf_comm *c, const lf_comm_stats *before, uint64_t calls, uint64_t sent,
                 uint64_t received)
{
    lf_comm_stats now;

    lf_comm_stats_get(c, &now);
    now.calls -= before->calls;
    now.bytes_sent -= before->bytes_sent;
    now.bytes_received -= before->bytes_received;
    if (now.calls == calls && now.bytes_sent == sent && now.bytes_received == received &&
        now.seconds >= before->seconds)
        return 1;
    printf("# rank %d: %llu calls, %llu sent (expected %llu), %llu received (expected %llu)\n", c->rank,
           (unsigned long long)now.calls, (unsigned long long)now.bytes_sent, (unsigned long long)sent,
           (unsigned long long)now.bytes_received, (unsigned long long)received);
    return 0;
}

/* Up to three pieces from each rank to each, some empty, itself included. */
static int pieces_of(int from, int to)
{
    return (from + 2 * to + 1) % 4;
}

static size_t piece_bytes(int from, int to, int k)
{
    return (size_t)((from * 7 + to * 13 + k * 29) % 60 * (k != 1));
}

enum { SLOT = 64 };

static size_t list_make(const lf_comm *c, lf_dev *d, lf_xfer *x, int *count, uint8_t *at, int receive)
{
    size_t others = 0;

    *count = 0;
    for (int k = 0; k < 3; k++)
        for (int peer = c->size - 1; peer >= 0; peer--, at += SLOT) {
            int from = receive ? peer : c->rank, to = receive ? c->rank : peer;
            if (k >= pieces_of(from, to))
                continue;
            x[*count] = (lf_xfer){ peer, device(d, at), piece_bytes(from, to, k) };
            for (size_t i = 0; !receive && i < x[*count].bytes; i++)
                at[i] = pattern(from, to, i + 1000 * (size_t)k);
            others += peer != c->rank ? x[*count].bytes : 0;
            ++*count;
        }
    return others;
}

static void test_exchange(lf_comm *c, lf_dev *d, const char *what)
{
    size_t room = 3 * (size_t)c->size;
    lf_xfer *send = lf_alloc(room * sizeof *send), *recv = lf_alloc(room * sizeof *recv);
    uint8_t *out = lf_alloc(room * SLOT), *in = lf_alloc(room * SLOT), *at = in;
    int sends, recvs, bad = 0;
    lf_comm_stats before;
    lf_err err;

    memset(in, 0xee, room * SLOT);
    size_t sent = list_make(c, d, send, &sends, out, 0), received = list_make(c, d, recv, &recvs, in, 1);
    lf_comm_stats_get(c, &before);
    bad += lf_coll_exchange(c, d, send, sends, recv, recvs, &err) != 0;
    bad += !moved(c, &before, 1, sent, received);
    for (int k = 0; k < 3; k++)
        for (int peer = c->size - 1; peer >= 0; peer--, at += SLOT) {
            size_t n = k < pieces_of(peer, c->rank) ? piece_bytes(peer, c->rank, k) : 0;
            bad += !holds(at, n, peer, c->rank, 1000 * (size_t)k) || !is_byte(at + n, SLOT - n, 0xee);
        }
    all_ranks(bad, what);
    free(send);
    free(recv);
    free(out);
    free(in);
}

static size_t gather_bytes(int rank)
{
    return rank == 1 ? 0 : (size_t)(rank * 37 + 5);
}

static void test_gather(lf_comm *c, lf_dev *d, int in_place, const char *what)
{
    size_t *count = lf_alloc(2 * (size_t)c->size * sizeof *count), *at = count + c->size, all = 3, others = 0;
    lf_comm_stats before;
    lf_err err;
    int bad = 0;

    for (int r = 0; r < c->size; r++) {
        count[r] = gather_bytes(r);
        at[r] = all;
        all += count[r] + 3;                             /* gaps that nobody may write */
        others += r != c->rank ? count[r] : 0;
    }
    size_t mine = count[c->rank];
    uint8_t *dst = lf_alloc(all), *src = in_place ? dst + at[c->rank] : lf_alloc(mine);
    memset(dst, 0xee, all);
    for (size_t i = 0; i < mine; i++)
        src[i] = pattern(c->rank, 0, i);
    lf_comm_stats_get(c, &before);
    bad += lf_coll_gather(c, d, device(d, dst), count, at, device(d, src), &err) != 0;
    bad += !moved(c, &before, 1, mine * (size_t)(c->size - 1), others);
    for (int r = 0; r < c->size; r++)
        bad += !holds(dst + at[r], count[r], r, 0, 0) || !is_byte(dst + at[r] + count[r], 3, 0xee);
    bad += !is_byte(dst, 3, 0xee);
    all_ranks(bad, what);
    if (!in_place)
        free(src);
    free(dst);
    free(count);
}

static size_t pair_bytes(int from, int to)
{
    return (size_t)((from * 5 + to * 3) % 4 * 11);
}

static void test_all_to_all(lf_comm *c, lf_dev *d, const char *what)
{
    size_t size = (size_t)c->size, *n = lf_alloc(4 * size * sizeof *n), all[2] = { 2, 2 }, others[2] = { 0,
                                                                                                        0 };
    size_t *count[2] = { n, n + size }, *at[2] = { n + 2 * size, n + 3 * size };     /* sent, received */
    lf_comm_stats before;
    lf_err err;
    int bad = 0;

    for (int r = 0; r < c->size; r++)
        for (int in = 0; in < 2; in++) {
            count[in][r] = in ? pair_bytes(r, c->rank) : pair_bytes(c->rank, r);
            at[in][r] = all[in];
            all[in] += count[in][r] + 2;
            others[in] += r != c->rank ? count[in][r] : 0;
        }
    uint8_t *src = lf_alloc(all[0]), *dst = lf_alloc(all[1]);
    memset(dst, 0xee, all[1]);
    for (int r = 0; r < c->size; r++)
        for (size_t i = 0; i < count[0][r]; i++)
            src[at[0][r] + i] = pattern(c->rank, r, i);
    lf_comm_stats_get(c, &before);
    bad += lf_coll_all_to_all(c, d, device(d, dst), count[1], at[1], device(d, src), count[0], at[0],
                              &err) != 0;
    bad += !moved(c, &before, 1, others[0], others[1]);
    for (int r = 0; r < c->size; r++)
        bad += !holds(dst + at[1][r], count[1][r], r, c->rank, 0) || !is_byte(dst + at[1][r] + count[1][r], 2,
                                                                              0xee);
    all_ranks(bad, what);
    free(src);
    free(dst);
    free(n);
}

/* Magnitudes so far apart that the order of addition shows. */
static float term(int rank, int64_t i)
{
    static const float scale[] = { 1e8f, 1.0f, -1e8f, 0.37f };

    return scale[(rank + i) % 4] * (1.0f + 0.013f * (float)((i * 7 + rank) % 89));
}

static float pairwise(int lo, int hi, int64_t i)
{
    return hi - lo == 1 ? term(lo, i) : pairwise(lo, (lo + hi) / 2, i) + pairwise((lo + hi) / 2, hi, i);
}

static void test_sum(lf_comm *c, lf_dev *d, const char *what)
{
    static const int64_t length[] = { 0, 1, 3, 1000, LF_SUM_BLOCK + 17 };
    lf_comm_stats before;
    lf_err err;
    int bad = 0;

    for (int k = 0; k < 5; k++) {
        int64_t n = length[k];
        float *x = lf_alloc((size_t)(n + 1) * sizeof *x);
        float *room = lf_alloc((size_t)(lf_min(n, LF_SUM_BLOCK) + c->size) * sizeof *x);
        for (int64_t i = 0; i < n; i++)
            x[i] = term(c->rank, i);
        x[n] = 42;
        lf_comm_stats_get(c, &before);
        bad += lf_coll_sum(c, d, device(d, x), n, device(d, room), &err) != 0 || x[n] != 42;
        for (int64_t i = 0; i < n; i++) {
            float want = pairwise(0, c->size, i);
            bad += memcmp(&want, &x[i], sizeof want) != 0;
        }
        uint64_t sent, both;
        sent = c->stats.bytes_sent - before.bytes_sent;
        MPI_Allreduce(&sent, &both, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        bad += both != 2 * (uint64_t)n * sizeof *x * (uint64_t)(c->size - 1);
        free(x);
        free(room);
    }
    all_ranks(bad, what);
}

static void test_host(lf_comm *c)
{
    int64_t *send = lf_alloc(6 * (size_t)c->size * sizeof *send), *recv = send + 3 * c->size;
    uint64_t others = (uint64_t)(c->size - 1);
    int bad = 0, any = -1;
    lf_comm_stats before;
    lf_err err;
    char text[100];

    for (int r = 0; r < c->size; r++)
        for (int k = 0; k < 3; k++)
            send[3 * r + k] = ((int64_t)1 << 40) * k + 100 * c->rank + r;
    lf_comm_stats_get(c, &before);
    bad += lf_coll_counts(c, recv, send, 3, &err) != 0 || !moved(c, &before, 1, 24 * others, 24 * others);
    for (int r = 0; r < c->size; r++)
        for (int k = 0; k < 3; k++)
            bad += recv[3 * r + k] != ((int64_t)1 << 40) * k + 100 * r + c->rank;
    all_ranks(bad, "counts from and to every rank");
    free(send);

    for (int root = bad = 0; root < c->size; root++) {
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = (char)(c->rank == root ? pattern(root, 9, i) : 0);
        lf_comm_stats_get(c, &before);
        bad += lf_topo_bcast(c, text, sizeof text, root, &err) != 0 || !holds((uint8_t *)text, 100, root, 9,
                                                                              0);
        bad += !moved(c, &before, 1, c->rank == root ? 100 * others : 0, c->rank == root ? 0 : 100);
    }
    bad += lf_topo_bcast(c, NULL, 0, 0, &err) != 0;
    all_ranks(bad, "broadcasts from every root, and of nothing");

    bad = lf_topo_any(c, 0, &any, &err) != 0 || any != 0;
    for (int r = 0; r < c->size; r++)
        bad += lf_topo_any(c, c->rank == r ? 7 : 0, &any, &err) != 0 || any != 1;
    bad += lf_topo_barrier(c, &err) != 0;
    all_ranks(bad, "any: no when all say no, yes when one says yes");
}

static void test_device(lf_comm *c, const lf_dev_ops *ops, const char *name)
{
    lf_dev d = { .ops = ops };
    size_t whole = c->piece;
    char what[200];

#define NAMED(text) (snprintf(what, sizeof what, "%s: %s", name, text), what)
    test_exchange(c, &d, NAMED("an exchange of several pieces a pair, empty ones among them"));
    test_gather(c, &d, 0, NAMED("a gather of uneven pieces, one empty, with gaps"));
    test_gather(c, &d, 1, NAMED("a gather in place"));
    test_all_to_all(c, &d, NAMED("an uneven all-to-all with gaps"));
    test_sum(c, &d, NAMED("sums are added pairwise, the same bytes everywhere"));
    c->piece = 7;
    test_exchange(c, &d, NAMED("an exchange in messages of 7 bytes"));
    test_gather(c, &d, 0, NAMED("a gather in messages of 7 bytes"));
    c->piece = whole;
    test_host(c);
#undef NAMED
}

static void test_disagreement(lf_comm *c)
{
    lf_dev d = { .ops = &cpu_ops };
    int bad = 0, last = c->rank == c->size - 1;
    uint8_t in[16], out[16] = { 0 };
    lf_xfer recv = { 0, in, 16 }, send = { c->size - 1, out, 12 };
    lf_err err = { "" };

    if (c->size < 2)
        return;
    if (c->rank == 0)
        bad += lf_coll_exchange(c, &d, &send, 1, NULL, 0, &err) != 0;
    else if (last)
        bad += lf_coll_exchange(c, &d, NULL, 0, &recv, 1, &err) != -1 || !strstr(err.text,
                                                                                 "rank 0 sent 12 bytes") ||
            !strstr(err.text, "expects 16");
    else
        bad += lf_coll_exchange(c, &d, NULL, 0, NULL, 0, &err) != 0;
    all_ranks(bad, "a message shorter than its receive is an error");
    recv.peer = c->size;
    bad = lf_coll_exchange(c, &d, NULL, 0, &recv, 1, &err) != -1 || !strstr(err.text, "which has");
    all_ranks(bad, "a peer outside the communicator is refused");
}

/* The same failure on every rank, with these words. */
static void planted(lf_comm *c, int result, const lf_err *err, const char *a, const char *b, const char *what)
{
    lf_err first = *err;
    int bad = result != -1 || !strstr(err->text, a) || !strstr(err->text, b);

    MPI_Bcast(first.text, sizeof first.text, MPI_CHAR, 0, MPI_COMM_WORLD);
    bad += strcmp(first.text, err->text) != 0;
    if (bad)
        printf("# rank %d: %s\n", c->rank, err->text);
    all_ranks(bad, what);
}

static void test_check(lf_comm *c, lf_dev *d)
{
    int odd = c->size - 1, me = c->rank == odd, any;
    uint8_t in[64], out[64] = { 0 };
    lf_xfer recv[2] = { { 0, in, 20 }, { 0, in + 20, 4 } };
    lf_xfer send[2] = { { odd, out, 4 }, { odd, out + 4, 20 } };
    float x[64] = { 0 }, room[64];
    char who[120];
    lf_err err = { "" };

    snprintf(who, sizeof who, "rank %d makes call %llu, sum; rank 0 makes", odd,
             (unsigned long long)c->stats.calls + 1);
    int rc = me ? lf_coll_sum(c, d, x, 4, room, &err) : lf_topo_any(c, 0, &any, &err);
    planted(c, rc, &err, who, ", any", "another call on one rank: named with rank and number");

    snprintf(who, sizeof who, "rank %d gives the size 8, rank 0 gives 4", odd);
    rc = lf_coll_sum(c, d, x, me ? 8 : 4, room, &err);
    planted(c, rc, &err, who, ", sum", "another size on one rank");

    snprintf(who, sizeof who, "rank %d names root 1, rank 0 names 0", odd);
    rc = lf_topo_bcast(c, x, 8, me, &err);
    planted(c, rc, &err, who, ", bcast", "another root on one rank");

    size_t *count = lf_alloc(2 * (size_t)c->size * sizeof *count), *at = count + c->size;
    for (int r = 0; r < c->size; r++)
        at[r] = 8 * (size_t)r;
    for (int r = 0; r < c->size; r++)
        count[r] = r == 0 && me ? 8 : 4;
    snprintf(who, sizeof who, "rank 0 sends 4 bytes in 1 piece to rank %d, which expects 8 bytes", odd);
    rc = lf_coll_gather(c, d, in, count, at, out, &err);
    planted(c, rc, &err, who, ", gather", "another count of a gather on one rank");
    free(count);

    snprintf(who, sizeof who, "rank 0 sends 24 bytes in 2 pieces to rank %d, which expects 24 bytes in 2", odd);
    rc = lf_coll_exchange(c, d, send, c->rank == 0 ? 2 : 0, recv, me ? 2 : 0, &err);
    planted(c, rc, &err, who, "of other sizes", "pieces in another order");

    rc = lf_coll_exchange(c, d, send, c->rank == 0, recv, 0, &err);
    planted(c, rc, &err, "rank 0 sends 4 bytes", "expects 0 bytes in 0 pieces", "a send that nobody receives");
    all_ranks(lf_topo_barrier(c, &err) != 0, "calls that agree still work afterwards");
}

static int topo_with_check(lf_topo *t, int rank, int world, const char *check)
{
    lf_model m = { .heads = 1, .o_groups = 1, .experts = world };
    lf_grid g;
    lf_err err;

    if (rank == 0)
        setenv("LONGFILL_CHECK_COLLECTIVES", check, 1);
    if (lf_grid_make(&g, &m, world, rank, 1, world, 1, &err) || lf_topo_open(t, &g, &err)) {
        printf("# %s\n", err.text);
        return 0;
    }
    return 1;
}

int main(int argc, char **argv)
{
    int rank, world;
    lf_topo t;
    lf_err err;

    if (lf_topo_start(&argc, &argv, &rank, &world, &err)) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    for (int check = 0; check < 2; check++) {
        lf_dev d = { .ops = &cpu_ops };
        all_ranks(!topo_with_check(&t, rank, world, check ? "1" : "0") || lf_comm_size(t.pcp) != world ||
                  lf_comm_rank(t.pcp) != rank || t.pcp->check != check,
                  check ? "from here on calls are compared" : "from here on calls are not compared");
        all_ranks((t.pcp->mpi == MPI_COMM_NULL) != (world == 1), "a communicator of one is none of MPI's");
        test_device(t.pcp, &cpu_ops, "cpu");
        test_device(t.pcp, &fake_ops, "fake");
        if (!check)
            test_disagreement(t.pcp);
        else if (world > 1)
            test_check(t.pcp, &d);
        lf_topo_close(&t);
    }
    if (rank == 0)
        tap_done();
    lf_topo_end();
    return rank == 0 && tap_failed;
}
