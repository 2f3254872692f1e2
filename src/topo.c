/* SPDX-License-Identifier: Apache-2.0 */
#include "topo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "topo_counter.h"

enum { HELD_S = 10 };                      /* that a rank on which NCCL failed waits for the others, at most */

static int mpi_fail(lf_err *err, int rc, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;

    if (MPI_Error_string(rc, text, &n))
        snprintf(text, sizeof text, "MPI error %d", rc);
    return lf_fail(err, "%s: %s", what, text);
}

int lf_topo_start(int *argc, char ***argv, int *rank, int *world, lf_err *err)
{
    int started = 0, level, rc;

    MPI_Initialized(&started);
    if (started)
        return lf_fail(err, "MPI is started once a process, and was started before");
    rc = MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level);
    if (rc)
        return mpi_fail(err, rc, "cannot start MPI");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (level < MPI_THREAD_FUNNELED)
        return lf_fail(err, "this MPI library cannot be used from a program with threads: build it with "
                       "MPI_THREAD_FUNNELED or better");
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, world);
    return 0;
}

static int mpi_runs(void)
{
    int started = 0, ended = 0;

    MPI_Initialized(&started);
    MPI_Finalized(&ended);
    return started && !ended;
}

void lf_topo_end(void)
{
    if (mpi_runs())
        MPI_Finalize();
}

/* A world of one has nobody to end, and MPI_Abort would talk of it at length. */
void lf_topo_abort(int code)
{
    int world = 0;

    fflush(NULL);
    if (mpi_runs()) {
        MPI_Comm_size(MPI_COMM_WORLD, &world);
        if (world > 1)
            MPI_Abort(MPI_COMM_WORLD, code);
        MPI_Finalize();
    }
    _exit(code);
}

/* A communicator of `size` ranks, those with this color, in the order of key.  Collective over the world. */
static int comm_split(lf_comm **out, const char *name, int size, int color, int key, int check, lf_err *err)
{
    MPI_Comm mpi = MPI_COMM_NULL;
    int rc = size > 1 ? MPI_Comm_split(MPI_COMM_WORLD, color, key, &mpi) : 0;

    if (rc) {
        mpi_fail(err, rc, "cannot be made");
        return lf_fail_in(err, "communicator %s", name);
    }
    *out = lf_comm_make(mpi, name, check);
    if ((*out)->size != size || ((*out)->size > 1 && (*out)->rank != key))
        return lf_fail(err, "communicator %s has %d rank%s where the grid has %d", name, (*out)->size,
                       lf_s((*out)->size), size);
    return 0;
}

static int node_find(lf_topo *t, lf_err *err)
{
    MPI_Comm node = MPI_COMM_NULL;
    int rc = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, t->grid.rank, MPI_INFO_NULL, &node);

    if (rc)
        return mpi_fail(err, rc, "cannot find the ranks of this node");
    MPI_Comm_rank(node, &t->local_rank);
    MPI_Comm_size(node, &t->local_size);
    MPI_Comm_free(&node);
    return 0;
}

/* Rank 0's environment decides: half of the ranks checking would hang. */
static int wishes(lf_topo *t, int *check, lf_err *err)
{
    const char *value = getenv("LONGFILL_CHECK_COLLECTIVES");
    double said[2] = { value && *value && strcmp(value, "0") != 0, 0 };
    int bad = t->grid.rank == 0 && lf_patience(&said[1], err);

    said[1] = bad ? -1 : said[1];
    int rc = MPI_Bcast(said, 2, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    *check = said[0] != 0;
    t->patience = said[1];
    if (rc)
        return mpi_fail(err, rc, "cannot reach the other ranks");
    return t->patience < 0 ? -1 : 0;       /* rank 0 says why */
}

/* One group draws from its rank 0 alone: there is nothing to share. */
static int counter_open(lf_topo *t, lf_err *err)
{
    lf_comm *comm[] = { t->world, t->group, t->pcp, t->tp };
    int one_node = t->local_size == t->world->size, all = 0;
    int rc = MPI_Allreduce(&one_node, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);

    if (rc)
        return mpi_fail(err, rc, "cannot reach the other ranks");
    t->counter = lf_alloc(sizeof *t->counter);
    t->counter->window = MPI_WIN_NULL;
    if (t->grid.dp == 1)
        return 0;
    if (lf_counter_open(t->counter, t->world, all, err))
        return -1;
    for (int i = 0; i < 4; i++)
        if (lf_counter_needs_poke(t->counter, t->world))
            comm[i]->poke = t->world->mpi;
    return 0;
}

static int comm_attach(lf_comm *c, lf_dev *d, lf_err *err)
{
    unsigned char id[LF_NCCL_ID] = { 0 };
    int any, bad = c->size > 1 && c->rank == 0 ? lf_nccl_id(id, err) : 0;

    if (c->size == 1)
        return 0;
    if (lf_topo_any(c, bad, &any, err))
        return -1;
    if (any)
        return bad ? -1 : lf_fail(err, "NCCL did not begin on rank 0 of communicator %s", c->stats.name);
    if (lf_topo_bcast(c, id, sizeof id, 0, err))
        return -1;
    if (lf_nccl_open(&c->nccl, d, id, c->size, c->rank, c->stats.name, err))
        return -1;
    c->stats.calls = c->stats.bytes_sent = c->stats.bytes_received = 0;       /* the id is not the model's traffic */
    c->stats.seconds = 0;
    return 0;
}

/* NCCL waits without end for a rank that failed: those that it holds cannot agree to anything. */
static int attach_agree(lf_topo *t, int bad, lf_err *err)
{
    lf_err late;
    int any;

    t->world->patience = bad && t->patience > HELD_S ? HELD_S : bad ? t->patience : 0;
    int held = lf_topo_any(t->world, bad, &any, bad ? &late : err);
    t->world->patience = 0;
    if (bad && held) {
        lf_error("%s", err->text);
        lf_topo_abort(EXIT_FAILURE);
    }
    return held ? -1 : any ? lf_topo_agree(t->world, bad, err) : 0;
}

int lf_topo_attach(lf_topo *t, lf_dev *d, lf_err *err)
{
    lf_comm *comm[] = { t->group, t->pcp, t->tp };

    if (strcmp(d->ops->name, "cuda") || !lf_nccl_here())
        return 0;
    setenv("NCCL_NVLS_ENABLE", "0", 0);    /* no NVLink multicast: it can take GPUs of a host down */
    for (int i = 0; i < 3; i++)
        if (attach_agree(t, comm_attach(comm[i], d, err), err))
            return -1;
    return 0;
}

int lf_topo_open(lf_topo *t, const lf_grid *g, lf_err *err)
{
    int rank, world, check;

    memset(t, 0, sizeof *t);
    t->grid = *g;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (rank != g->rank || world != g->dp * g->ep)
        return lf_fail(err, "the grid %d x %d x %d, rank %d, is not that of rank %d of %d", g->dp, g->pcp,
                       g->tp, g->rank, rank, world);
    if (wishes(t, &check, err) || comm_split(&t->world, "world", world, 0, rank, check, err) ||
        comm_split(&t->group, "ep", g->ep, g->dp_rank, g->ep_rank, check, err) ||
        comm_split(&t->pcp, "pcp", g->pcp, g->dp_rank * g->tp + g->tp_rank, g->pcp_rank, check, err) ||
        comm_split(&t->files, "files", g->pcp, g->dp_rank * g->tp + g->tp_rank, g->pcp_rank, check, err) ||
        comm_split(&t->tp, "tp", g->tp, g->dp_rank * g->pcp + g->pcp_rank, g->tp_rank, check, err) ||
        node_find(t, err) || counter_open(t, err))
        return -1;
    t->group->patience = t->pcp->patience = t->files->patience = t->tp->patience = t->patience;
    return 0;
}

void lf_topo_close(lf_topo *t)
{
    if (t->counter)
        lf_counter_close(t->counter);
    free(t->counter);
    lf_comm_free(t->files);
    lf_comm_free(t->tp);
    lf_comm_free(t->pcp);
    lf_comm_free(t->group);
    lf_comm_free(t->world);
    memset(t, 0, sizeof *t);
}

int lf_topo_next(lf_topo *t, int64_t *value, lf_err *err)
{
    return lf_counter_next(t->counter, t->world, value, err);
}

static int bcast(lf_comm *c, char *host, size_t bytes, int root, lf_err *err)
{
    uint64_t others = (uint64_t)(c->size - 1) * bytes;

    for (size_t at = 0; at < bytes; at += c->piece) {
        int n = (int)(bytes - at < c->piece ? bytes - at : c->piece);
        MPI_Request r;
        int rc = MPI_Ibcast(host + at, n, MPI_BYTE, root, c->mpi, &r);
        if (lf_comm_wait(c, rc, &r, (size_t)n, "broadcasting", err))
            return -1;
    }
    c->stats.bytes_sent += c->rank == root ? others : 0;
    c->stats.bytes_received += c->rank == root ? 0 : bytes;
    return 0;
}

int lf_topo_bcast(lf_comm *c, void *host, size_t bytes, int root, lf_err *err)
{
    lf_call call = { .kind = LF_COLL_BCAST, .n = (int64_t)bytes, .root = root };
    double start;
    int bad = lf_comm_begin(c, &call, &start, err);

    if (!bad && c->size > 1)
        bad = bcast(c, host, bytes, root, err);
    return lf_comm_end(c, start, bad);
}

int lf_topo_barrier(lf_comm *c, lf_err *err)
{
    lf_call call = { .kind = LF_COLL_BARRIER };
    double start;
    int bad = lf_comm_begin(c, &call, &start, err);

    if (!bad && c->size > 1) {
        MPI_Request r;
        int rc = MPI_Ibarrier(c->mpi, &r);
        bad = lf_comm_wait(c, rc, &r, 0, "waiting for the other ranks", err);
    }
    return lf_comm_end(c, start, bad);
}

int lf_topo_any(lf_comm *c, int yes, int *any, lf_err *err)
{
    lf_call call = { .kind = LF_COLL_ANY };
    double start;
    int bad = lf_comm_begin(c, &call, &start, err);

    c->word[0] = c->word[1] = yes != 0;
    if (!bad && c->size > 1) {
        MPI_Request r;
        int rc = MPI_Iallreduce(&c->word[0], &c->word[1], 1, MPI_INT, MPI_MAX, c->mpi, &r);
        bad = lf_comm_wait(c, rc, &r, sizeof(int), "asking the other ranks", err);
    }
    *any = c->word[1];
    return lf_comm_end(c, start, bad);
}

/* Every rank's value, in rank order: the caller's; NULL: they could not be had. */
static int64_t *values_of_all(lf_comm *c, int64_t mine, lf_err *err)
{
    int64_t *all = lf_alloc(2 * (size_t)c->size * sizeof *all), *send = all + c->size;

    for (int r = 0; r < c->size; r++)
        send[r] = mine;
    if (lf_coll_counts(c, all, send, 1, err) == 0)
        return all;
    free(all);
    return NULL;
}

int lf_topo_least(lf_comm *c, int64_t *value, lf_err *err)
{
    int64_t *all = values_of_all(c, *value, err);
    int bad = all ? 0 : -1;

    for (int r = 0; r < c->size && !bad; r++)
        *value = lf_min(*value, all[r]);
    free(all);
    return bad;
}

int lf_topo_agree(lf_comm *c, int bad, lf_err *err)
{
    lf_err text = bad ? *err : (lf_err){ "" }, late = { "" };
    int64_t *all = values_of_all(c, bad != 0, &late);
    int first = c->size, lost = !all;

    for (int r = c->size - 1; all && r >= 0; r--)
        first = all[r] ? r : first;
    free(all);
    if (!lost && first < c->size)
        lost = lf_topo_bcast(c, text.text, sizeof text.text, first, &late);
    if (!lost && first == c->size)
        return 0;
    if (lost ? !bad : c->rank != first)
        *err = lost ? late : text;
    return lost || c->rank == first ? -1 : lf_fail_in(err, "rank %d", first);
}

double lf_topo_seconds(const lf_topo *t)
{
    const lf_comm *all[] = { t->pcp, t->tp, t->group };
    double sum = 0;

    for (int i = 0; i < 3; i++) {
        lf_comm_stats s;
        lf_comm_stats_get(all[i], &s);
        sum += s.seconds;
    }
    return sum;
}
