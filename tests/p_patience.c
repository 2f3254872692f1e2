/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that wait for another one: every kind of call ends after LONGFILL_PATIENCE seconds with a text that says which
 * it was, and one that the other enters late, but in time, does what it does anyway.
 *
 * SLACK: seconds beyond the patience, for a machine that is busy.
 */
#include "coll_mpi.h"
#include "topo.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "all_ranks.h"

enum { SLACK = 5, N = 1 << 16 };

static const double patience = 2, late = 0.3;

static const lf_dev_ops ops = { .name = "cpu" };

/* What the calls read and write: MPI may keep it after a call has failed. */
static int64_t counts[2][64];
static uint8_t moved[2][N];
static uint64_t word;

typedef int call_fn(lf_comm *c, lf_err *err);

static int call_counts(lf_comm *c, lf_err *err)
{
    return lf_coll_counts(c, counts[0], counts[1], 3, err);
}

static int call_any(lf_comm *c, lf_err *err)
{
    static int any;

    return lf_topo_any(c, c->rank == 1, &any, err) || any != 1;
}

static int call_barrier(lf_comm *c, lf_err *err)
{
    return lf_topo_barrier(c, err);
}

static int call_bcast(lf_comm *c, lf_err *err)
{
    if (c->rank == 1)
        word = 42;
    return lf_topo_bcast(c, &word, sizeof word, 1, err) || word != 42;
}

static int call_exchange(lf_comm *c, lf_err *err)
{
    lf_dev d = { .ops = &ops };
    lf_xfer send = { !c->rank, moved[0], N }, recv = { !c->rank, moved[1], N };

    memset(moved[0], c->rank + 1, N);
    return lf_coll_exchange(c, &d, &send, 1, &recv, 1, err) || moved[1][N - 1] != !c->rank + 1;
}

static const struct {
    call_fn *make;
    const char *what;
} call[] = {
    { call_counts, "exchanging counts" }, { call_any, "asking the other ranks" },
    { call_barrier, "waiting for the other ranks" }, { call_bcast, "broadcasting" }, { call_exchange, "exchanging" },
};

enum { CALLS = sizeof call / sizeof *call };

/* Rank 1 comes late, but in time. */
static void test_late(lf_comm *c)
{
    for (int i = 0; i < CALLS; i++) {
        char text[120];
        lf_err err = { "" };
        MPI_Barrier(MPI_COMM_WORLD);
        if (c->rank == 1)
            usleep((useconds_t)(late * 1e6));
        double t = lf_now();
        int bad = call[i].make(c, &err);
        t = lf_now() - t;
        bad |= c->rank == 0 && t < late / 2;
        if (bad)
            printf("# rank %d: %.3f s: %s\n", c->rank, t, err.text);
        snprintf(text, sizeof text, "%s: a rank that comes late is waited for", call[i].what);
        all_ranks(bad, text);
    }
}

/* Rank 0 alone; rank 1 comes when all have failed, so that what MPI has of them ends. */
static void test_gone(lf_comm *c)
{
    for (int i = 0; i < CALLS && c->rank == 0; i++) {
        lf_err err = { "" };
        char want[160];
        double t = lf_now();
        int bad = call[i].make(c, &err);
        t = lf_now() - t;
        snprintf(want, sizeof want, "%s on communicator pcp, rank 0 of 2, call %llu: nothing for 2 seconds",
                 call[i].what, (unsigned long long)c->stats.calls);
        printf("# %.2f s: %s\n", t, err.text);
        TAP_CHECK(bad && strstr(err.text, want) == err.text, "%s: said with rank and call", call[i].what);
        TAP_CHECK(strstr(err.text, "gone") && strstr(err.text, "disk") && strstr(err.text, "LONGFILL_PATIENCE"),
                  "%s: and what may be the reason, and what would help", call[i].what);
        TAP_CHECK(t >= patience && t < patience + SLACK, "%s: after %g seconds", call[i].what, patience);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < CALLS && c->rank == 1; i++) {
        lf_err err;
        call[i].make(c, &err);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static int opened(lf_topo *t, int rank, const char *value, lf_err *err)
{
    lf_model m = { .heads = 1, .o_groups = 1, .experts = 2 };
    lf_grid g;

    setenv("LONGFILL_PATIENCE", rank ? "7777" : value, 1);
    return lf_grid_make(&g, &m, 2, rank, 1, 2, 1, err) || lf_topo_open(t, &g, err) ? -1 : 0;
}

int main(int argc, char **argv)
{
    int rank, world;
    lf_topo t;
    lf_err err = { "" };

    if (lf_topo_start(&argc, &argv, &rank, &world, &err) || world != 2) {
        printf("Bail out! two ranks, please %s\n", err.text);
        return 1;
    }
    int bad = opened(&t, rank, "soon", &err) != -1 || (strstr(err.text, "'soon'") != NULL) != (rank == 0);
    all_ranks(bad, "a patience that is no number is refused on all ranks, and said by rank 0");
    err.text[0] = 0;
    all_ranks(opened(&t, rank, "2", &err), "rank 0's holds for all");
    all_ranks(t.pcp->patience != patience || t.group->patience != patience || t.files->patience != patience ||
              t.world->patience != 0, "on every communicator but the world's, where it may take any time");
    test_late(t.pcp);
    test_gone(t.pcp);
    lf_topo_close(&t);
    lf_topo_end();
    return rank == 0 ? tap_done() : 0;
}
