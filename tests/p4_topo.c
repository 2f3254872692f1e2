/* SPDX-License-Identifier: Apache-2.0 */
#include "topo.h"
#include "topo_counter.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "all_ranks.h"

/* Everybody's world rank, gathered over c, is `first`, `first + step`, ... */
static int members_are(lf_comm *c, int size, int rank, int first, int step, int mine)
{
    int64_t *send = lf_alloc(2 * (size_t)size * sizeof *send), *recv = send + size;
    int bad = lf_comm_size(c) != size || lf_comm_rank(c) != rank;
    lf_err err;

    for (int r = 0; r < size; r++)
        send[r] = mine;
    bad = bad || lf_coll_counts(c, recv, send, 1, &err);
    for (int r = 0; r < size; r++)
        bad = bad || recv[r] != first + r * step;
    free(send);
    return !bad;
}

static void test_grid(int rank, int world, int dp, int pcp, int tp)
{
    lf_model m = { .heads = 8, .o_groups = 8, .experts = 8 };
    lf_grid g;
    lf_topo t;
    lf_err err = { "" };
    char what[80];
    int bad = lf_grid_make(&g, &m, world, rank, dp, pcp, tp, &err) || lf_topo_open(&t, &g, &err);

    if (bad)
        printf("# %s\n", err.text);
    if (!bad) {
        bad += !members_are(t.world, world, rank, 0, 1, rank);
        bad += !members_are(t.group, pcp * tp, g.ep_rank, g.dp_rank * pcp * tp, 1, rank);
        bad += !members_are(t.pcp, pcp, g.pcp_rank, g.dp_rank * pcp * tp + g.tp_rank, tp, rank);
        bad += !members_are(t.tp, tp, g.tp_rank, rank - g.tp_rank, 1, rank);
        bad += t.local_size != world || t.local_rank != rank;      /* the tests run on one node */
        lf_topo_close(&t);
    }
    snprintf(what, sizeof what, "%d x %d x %d: communicators hold the ranks of the grid", dp, pcp, tp);
    all_ranks(bad, what);
}

/* Rank 0 is busy until every other rank has said, through a file, that it drew all its numbers. */
static int wait_for_others(const char *path, int others, lf_comm *poking)
{
    double limit = lf_now() + 20;
    struct stat st = { 0 };
    lf_err err;
    int any;

    while (lf_now() < limit && st.st_size < others) {
        if (stat(path, &st) || (poking && lf_topo_any(poking, 0, &any, &err)))
            return 0;
        usleep(1000);
    }
    return st.st_size == others;
}

/* An empty file in a directory of its own. */
static int fresh_file(char *path, size_t room)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(path, room - 8, "%s/lf_topo_XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(path))
        return 0;
    strcat(path, "/done");
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    return fd >= 0 && close(fd) == 0;
}

static int say_done(const char *path)
{
    int fd = open(path, O_WRONLY | O_APPEND);
    int ok = fd >= 0 && write(fd, "x", 1) == 1;

    if (fd >= 0)
        close(fd);
    return ok;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static void test_counter(lf_topo *t, int one_node, const char *what)
{
    lf_comm *w = t->world, *one = lf_comm_make(MPI_COMM_NULL, "tp", 0);
    char path[256] = "";
    lf_counter n;
    lf_err err = { "" };
    int draws = 300000, bad = lf_counter_open(&n, w, one_node, &err);

    bad += w->rank == 0 && !fresh_file(path, sizeof path);
    bad += lf_topo_bcast(w, path, sizeof path, 0, &err) != 0;
    if (!n.word)
        draws = 50;                                      /* each waits for rank 0 to come by */
    int64_t *all = lf_alloc(((size_t)w->size + 1) * (size_t)draws * sizeof *all);
    int64_t *mine = all + w->size * draws;
    int window = !bad && lf_counter_needs_poke(&n, w);
    one->poke = window ? w->mpi : MPI_COMM_NULL;
    if (w->rank == 0 && !bad)
        bad += !wait_for_others(path, w->size - 1, window ? one : NULL);
    for (int i = 0; i < draws; i++)
        bad += lf_counter_next(&n, w, &mine[i], &err) != 0 || (i && mine[i] <= mine[i - 1]);
    if (w->rank)
        bad += !say_done(path);
    MPI_Gather(mine, draws, MPI_INT64_T, all, draws, MPI_INT64_T, 0, w->mpi);
    if (w->rank == 0) {
        unlink(path);
        *strrchr(path, '/') = 0;
        rmdir(path);
        qsort(all, (size_t)w->size * draws, sizeof *all, by_value);
        for (int i = 0; i < w->size * draws; i++)
            bad += all[i] != i;
    }
    if (bad)
        printf("# rank %d: %s\n", w->rank, err.text);
    lf_counter_close(&n);
    lf_comm_free(one);
    free(all);
    all_ranks(bad, what);
}

static void test_errors(int rank, int world)
{
    lf_grid g = { .dp = 1, .pcp = world + 1, .tp = 1, .rank = rank, .ep = world + 1 };
    lf_topo t;
    lf_err err = { "" };
    int r, w, bad;

    bad = lf_topo_open(&t, &g, &err) != -1 || !strstr(err.text, "is not that of");
    lf_topo_close(&t);
    all_ranks(bad, "a grid of another world is refused");
    bad = lf_topo_start(NULL, NULL, &r, &w, &err) != -1 || !strstr(err.text, "once a process");
    all_ranks(bad, "a second start is refused");
}

static void test_counters(int rank, int world)
{
    lf_model m = { .heads = 1, .o_groups = 1, .experts = 1 };
    lf_grid g;
    lf_topo t;
    lf_err err = { "" };
    int64_t first = -1, second = -1;
    int bad = lf_grid_make(&g, &m, world, rank, 0, 0, 0, &err) || lf_topo_open(&t, &g, &err);

    all_ranks(bad, "each rank a group of its own");
    if (bad)
        return;
    bad = lf_topo_next(&t, &first, &err) || lf_topo_next(&t, &second, &err) || first < 0 || second <= first ||
        second >= 2 * world;
    all_ranks(bad, "the counter of the topology counts");
    if (world > 1) {
        test_counter(&t, 1, "shared memory: every number once, while rank 0 computes without MPI");
        test_counter(&t, 0, "window: every number once, while rank 0 makes calls of one rank");
    }
    lf_topo_close(&t);
}

int main(int argc, char **argv)
{
    int rank, world;
    lf_err err;

    if (lf_topo_start(&argc, &argv, &rank, &world, &err)) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    for (int tp = 1; tp <= world; tp++)
        for (int pcp = 1; pcp <= world / tp; pcp++)
            if (world % (pcp * tp) == 0 && 8 % (pcp * tp) == 0)
                test_grid(rank, world, world / tp / pcp, pcp, tp);
    test_counters(rank, world);
    test_errors(rank, world);
    if (rank == 0)
        tap_done();
    lf_topo_end();
    return rank == 0 && tap_failed;
}
