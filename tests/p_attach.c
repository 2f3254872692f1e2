/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL that does not start on one rank, with a stub in its place: all ranks hear of it, and why.  With the argument
 * "held" the other rank stays in NCCL for ever, and the job has to end (attach.sh).
 */
#include "coll_nccl.h"
#include "topo.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "all_ranks.h"

/* ---- NCCL as it is planted ---- */

struct lf_nccl {
    int unused;
};

static struct {
    int fails;                             /* this rank; at: in which call, from 1; 0: where the id is made */
    int at, calls, opened, held;
} nccl;

int lf_nccl_here(void)
{
    return 1;
}

int lf_nccl_id(void *id, lf_err *err)
{
    memset(id, 7, LF_NCCL_ID);
    return nccl.fails && nccl.at == 0 ? lf_fail(err, "no id today") : 0;
}

int lf_nccl_open(lf_nccl **out, lf_dev *d, const void *id, int size, int rank, const char *name, lf_err *err)
{
    (void)d;
    (void)size;
    (void)rank;
    if (((const uint8_t *)id)[LF_NCCL_ID - 1] != 7)
        return lf_fail(err, "not the id of rank 0");
    if (++nccl.calls == nccl.at && nccl.fails)
        return lf_fail(err, "no communicator %s today", name);
    while (nccl.held)
        pause();
    *out = lf_alloc(sizeof **out);
    nccl.opened++;
    return 0;
}

void lf_nccl_close(lf_nccl *n)
{
    nccl.opened -= n != NULL;
    free(n);
}

int lf_nccl_move(lf_nccl *n, const lf_xfer *send, int sends, const lf_xfer *recv, int recvs, double *seconds,
                 lf_err *err)
{
    (void)n;
    (void)send;
    (void)sends;
    (void)recv;
    (void)recvs;
    (void)seconds;
    return lf_fail(err, "nothing is moved here");
}

int lf_nccl_sum(lf_nccl *n, float *x, int64_t count, double *seconds, lf_err *err)
{
    (void)n;
    (void)x;
    (void)count;
    (void)seconds;
    return lf_fail(err, "nothing is summed here");
}

/* ---- the tests ---- */

static int attach(int rank, lf_err *err)
{
    static const lf_dev_ops ops = { .name = "cuda" };
    lf_model m = { .heads = 1, .o_groups = 1, .experts = 2 };
    lf_dev d = { .ops = &ops };
    lf_topo t;
    lf_grid g;

    if (lf_grid_make(&g, &m, 2, rank, 1, 2, 1, err) || lf_topo_open(&t, &g, err)) {
        printf("Bail out! %s\n", err->text);
        lf_topo_abort(1);
    }
    nccl.calls = nccl.opened = 0;
    int bad = lf_topo_attach(&t, &d, err);
    lf_topo_close(&t);
    return bad;
}

/* The group and pcp have two ranks: calls 1 and 2 of lf_nccl_open. */
static void test_fails(int rank, int bad_rank, int at, const char *why)
{
    lf_err err = { "" };
    char want[100], text[100];

    nccl.fails = rank == bad_rank;
    nccl.at = at;
    int bad = attach(rank, &err) != -1;
    int n = rank == bad_rank ? 0 : snprintf(want, sizeof want, "rank %d: ", bad_rank);
    snprintf(want + n, sizeof want - (size_t)n, "%s", why);
    bad |= strcmp(err.text, want) != 0;
    if (bad)
        printf("# rank %d: '%s', not '%s'\n", rank, err.text, want);
    bad |= nccl.opened != 0;
    snprintf(text, sizeof text, "rank %d, %s: all ranks fail, with its reason", bad_rank, why);
    all_ranks(bad, text);
}

int main(int argc, char **argv)
{
    int rank, world, held = argc > 1 && strcmp(argv[1], "held") == 0;
    lf_err err = { "" };

    if (lf_topo_start(&argc, &argv, &rank, &world, &err) || world != 2) {
        printf("Bail out! two ranks, please %s\n", err.text);
        return 1;
    }
    if (held) {
        nccl.fails = rank == 0;
        nccl.held = rank == 1;
        nccl.at = 1;
        return attach(rank, &err) ? 2 : 3;
    }
    all_ranks(attach(rank, &err) != 0 || nccl.calls != 2, "NCCL starts");
    test_fails(rank, 0, 0, "no id today");
    for (int bad = 0; bad < 2; bad++) {
        test_fails(rank, bad, 1, "no communicator ep today");
        test_fails(rank, bad, 2, "no communicator pcp today");
    }
    lf_topo_end();
    return rank == 0 ? tap_done() : 0;
}
