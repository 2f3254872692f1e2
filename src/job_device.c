/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "job.h"
#include "dev_cuda.h"
#include "device.h"
#include "log.h"
#include "plan_fit.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- threads ---- */

enum { CORE_WORDS = CPU_SETSIZE / 64 };

/* Where a rank runs and on which cores it may: what ranks exchange to share the cores of a node. */
typedef struct seat {
    int64_t node;                          /* hash of the host's name */
    int64_t core[CORE_WORDS];              /* bits */
} seat;

static seat seat_mine(void)
{
    char host[256] = "";
    cpu_set_t set;
    seat s = { 0 };

    gethostname(host, sizeof host - 1);
    for (const char *c = host; *c; c++)
        s.node = (int64_t)((uint64_t)s.node * 1099511628211u ^ (unsigned char)*c);
    if (sched_getaffinity(0, sizeof set, &set))
        return s;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set))
            s.core[i / 64] |= (int64_t)(1ull << (i % 64));
    return s;
}

/* A core that k ranks may use counts 1/k: ranks bound to cores of their own get these, unbound ones share. */
static int share_of(const seat *all, int ranks, const seat *mine)
{
    double share = 0;

    for (int i = 0; i < CPU_SETSIZE; i++) {
        int sharing = 0;
        if (!(mine->core[i / 64] >> (i % 64) & 1))
            continue;
        for (int r = 0; r < ranks; r++)
            sharing += all[r].node == mine->node && (all[r].core[i / 64] >> (i % 64) & 1);
        share += 1.0 / (sharing ? sharing : 1);
    }
    return share < 1 ? 1 : (int)(share + 1e-6);
}

int lf_job_threads(lf_job *j, int *threads, lf_err *err)
{
    const char *asked = getenv("OMP_NUM_THREADS");
    int words = (int)(sizeof(seat) / sizeof(int64_t));
    seat *send = lf_alloc((size_t)j->world * sizeof *send), *all = lf_alloc((size_t)j->world * sizeof *all);

    for (int r = 0; r < j->world; r++)
        send[r] = seat_mine();
    int bad = lf_coll_counts(j->control.world, (int64_t *)all, (const int64_t *)send, words, err);
    *threads = asked && atoi(asked) > 0 ? atoi(asked) : share_of(all, j->world, &send[0]);
    free(send);
    free(all);
    return bad;
}

/* ---- device, engine ---- */

static lf_fit fit_of(const lf_job *j)
{
    return (lf_fit){ .model = &j->model, .checkpoint = j->checkpoint, .dev = j->dev, .grid = j->grid,
                     .merge = j->o->pcp_attention == LF_PCP_MERGE, .tile = j->tile,
                     .sharing = lf_min(j->topo.local_size, j->grid.ep),
                     .kv_dtype = j->kv_dtype, .logits = j->want };
}

/* Prompts of every pass, and all their lengths one after the other; both are the caller's. */
static void passes_of(const lf_job *j, int **n, int64_t **lengths)
{
    *n = lf_alloc((size_t)j->plan.batches * sizeof **n);
    *lengths = lf_alloc((size_t)j->plan.n * sizeof **lengths);
    for (int64_t b = 0; b < j->plan.batches; b++)
        (*n)[b] = (int)j->plan.batch[b].n;
    for (int64_t i = 0; i < j->plan.n; i++)
        (*lengths)[i] = j->requests.v[j->plan.order[i]].tokens;
}

static int64_t tile_own(const lf_job *j)
{
    return lf_engine_tile(j->dev->tile, &j->grid, j->o->pcp_attention == LF_PCP_MERGE);
}

/* Every pass of the plan, before anything is loaded.  A dry run without a GPU may be made where the run itself will not
 * be. */
static int fits(lf_job *j, lf_err *err)
{
    lf_fit f = fit_of(j);
    int64_t *lengths;
    int *n;

    j->tile = tile_own(j);
    passes_of(j, &n, &lengths);
    int bad = lf_plan_made_up(&f, err) || lf_plan_fits(&f, j->plan.batches, n, lengths, &j->tile, err);
    free(lengths);
    free(n);
    if (bad && j->o->dry_run && j->o->device == LF_DEVICE_AUTO && !j->dev->ops->left) {
        if (j->topo.local_rank == 0)
            lf_warn("no run on this CPU: %s", err->text);
        return 0;
    }
    return bad;
}

int lf_job_tile_agree(lf_job *j, lf_err *err)
{
    int64_t own = tile_own(j);
    int bad = lf_topo_least(j->control.world, &j->tile, err);

    if (!bad && j->tile < own && j->rank == 0)
        lf_warn("tiles of %lld tokens, as the memory would not do for %lld: rows are the same, but come more slowly",
                (long long)j->tile, (long long)own);
    return bad;
}

int lf_job_fullest(const lf_job *j, lf_plan_grid *most, int64_t *left, lf_err *err)
{
    lf_fit f = fit_of(j);
    int64_t *lengths;
    int *n;

    passes_of(j, &n, &lengths);
    int bad = lf_plan_fullest(&f, j->plan.batches, n, lengths, most, err);
    *left = lf_plan_left(&f);
    free(lengths);
    free(n);
    return bad;
}

int lf_job_device_check(const lf_options *o, lf_err *err)
{
    lf_err why;
    int gpus;

    if (o->device == LF_DEVICE_CUDA && lf_cuda_devices(&gpus, &why))
        return lf_fail(err, "--device cuda: %s", why.text);
    return 0;
}

static int device_open(lf_job *j, lf_err *err)
{
    return lf_device_open(&j->dev, &j->topo, &j->model, (lf_numerics)j->o->numerics, j->kv_dtype, j->o->device,
                          j->threads, err);
}

static int engine_open(lf_job *j, lf_err *err)
{
    lf_engine_setup s = { .model = &j->model, .checkpoint = j->checkpoint,
                          .seed = (uint64_t)j->o->seed, .topo = &j->topo,
                          .kv_dtype = j->kv_dtype, .logits = j->want, .tile = j->tile,
                          .merge = j->o->pcp_attention == LF_PCP_MERGE };

    s.dev = j->dev;
    return lf_engine_open(&j->engine, &s, err);
}

int lf_job_open(lf_job *j, lf_err *err)
{
    if (lf_job_threads(j, &j->threads, err) || lf_topo_open(&j->topo, &j->grid, err))
        return -1;
    j->topo_open = 1;
    if (lf_job_any(j, device_open(j, err), err) || lf_job_any(j, fits(j, err), err) ||
        lf_job_any(j, lf_job_tile_agree(j, err), err))
        return -1;
    if (j->o->dry_run)
        return 0;
    double t = lf_now();
    if (lf_job_any(j, engine_open(j, err), err))
        return -1;
    j->load_s = lf_now() - t;
    return 0;
}

static void job_free(lf_job *j)
{
    lf_job_plan_free(&j->plan);
    lf_results_close(j->results);
    lf_requests_free(&j->requests);
    lf_checkpoint_close(j->checkpoint);
    lf_model_free(&j->model);
    free(j->skip);
    free(j->skip_bytes);
    for (int64_t i = 0; i < j->records; i++)
        free(j->why[i]);
    free(j->record);
    free(j->why);
}

void lf_job_close(lf_job *j)
{
    lf_engine_close(j->engine);
    if (j->topo_open)
        lf_topo_close(&j->topo);
    lf_dev_close(j->dev);
    if (j->control_open)
        lf_topo_close(&j->control);
    job_free(j);
}
