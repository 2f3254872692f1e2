/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that write files together wait for the slowest disk, longer than LONGFILL_PATIENCE and those that do not write
 * too; a rank that is gone they do not wait for.  On a grid of 1 x 2 x 2, whose ranks 0 and 2 write.
 */
#include "job_group.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "all_ranks.h"

enum { PATIENCE = 1, DISK = 3, SLACK = 5, SLOW = 2 };  /* SLOW: the rank */

static lf_topo topo;

/* ---- a store that has nothing to do ---- */

static int store_create(void *ctx, void *what, void **file, lf_err *err)
{
    (void)ctx;
    (void)err;
    *file = what;
    return 0;
}

static int store_finish(void *file, lf_err *err)
{
    (void)file;
    (void)err;
    return 0;
}

static void store_drop(void *file)
{
    (void)file;
}

static void store_done(void *ctx, void *what, const lf_written *w)
{
    *(int *)ctx += !w->failed;
    lf_job_file_free(what);
}

/* ---- a job whose pass is over ---- */

static int joined;                         /* on rank 0: files */

static void *disk(void *arg)
{
    lf_job *j = arg;

    sleep(DISK);
    pthread_mutex_lock(&j->lock);
    j->waiting[0]->part_done = 1;
    pthread_cond_signal(&j->part_done);
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

static lf_job *job_with_file(int rank)
{
    lf_writer_store store = { &joined, store_create, NULL, NULL, store_finish, store_drop, store_done };
    lf_job *j = lf_alloc(sizeof *j);
    lf_err err;

    j->rank = rank;
    j->topo = topo;
    j->grid = topo.grid;
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->part_done, NULL);
    if (!lf_job_shares(j))
        return j;
    lf_job_file *f = lf_alloc(sizeof *f);
    f->job = j;
    f->part_done = rank != SLOW;
    if (lf_writer_open(&j->writer, &store, 0, &err)) {
        printf("Bail out! %s\n", err.text);
        lf_topo_abort(1);
    }
    lf_job_group_add(j, 1, &f);
    return j;
}

static void test_slow(int rank)
{
    lf_job *j = job_with_file(rank);
    lf_err err = { "" };
    pthread_t thread;
    int number = 7;

    if (rank == SLOW)
        pthread_create(&thread, NULL, disk, j);
    double t = lf_now();
    int bad = lf_job_group_join(j, 1, &err) || lf_topo_bcast(topo.group, &number, sizeof number, 0, &err);
    t = lf_now() - t;
    if (bad)
        printf("# rank %d: %.1f s: %s\n", rank, t, err.text);
    all_ranks(bad || t < DISK - 0.5, "a disk that takes longer than the patience is waited for by all ranks");
    if (rank == SLOW)
        pthread_join(thread, NULL);
    lf_writer_close(j->writer);
    if (rank == 0)
        TAP_CHECK(joined == 1, "and the file is joined");
    free(j);
}

/* Everybody else fails, so that the group's calls are no longer in step: the last test. */
static void test_gone(int rank)
{
    lf_job *j = job_with_file(rank);
    lf_err err = { "" };
    double t = lf_now();

    if (rank == SLOW)
        sleep(PATIENCE + SLACK);
    int bad = rank != SLOW && (lf_job_group_join(j, 1, &err) != -1 || !strstr(err.text, "nothing for 1 seconds"));
    t = lf_now() - t;
    if (rank == 0)
        printf("# %.1f s: %s\n", t, err.text);
    /* Rank 3 asks the rank that is gone; rank 1 one that has failed. */
    all_ranks(bad || (rank != SLOW && (t < PATIENCE || t > PATIENCE + SLACK)), "a rank that is gone is not waited for");
}

int main(int argc, char **argv)
{
    lf_model m = { .heads = 2, .o_groups = 2, .experts = 4 };
    int rank, world;
    lf_grid g;
    lf_err err = { "" };

    setenv("LONGFILL_PATIENCE", "1", 1);
    if (lf_topo_start(&argc, &argv, &rank, &world, &err) || world != 4 ||
        lf_grid_make(&g, &m, 4, rank, 1, 2, 2, &err) || lf_topo_open(&topo, &g, &err)) {
        printf("Bail out! four ranks, please %s\n", err.text);
        return 1;
    }
    test_slow(rank);
    test_gone(rank);
    lf_topo_end();                         /* the communicators stay: calls are still under way on them */
    return rank == 0 ? tap_done() : 0;
}
