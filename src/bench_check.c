/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include "dev_cuda.h"
#include "plan_fit.h"

#include <stdlib.h>
#include <string.h>

static int grid_check(const lf_bench *b, const lf_bench_grid *g, lf_err *err)
{
    int64_t ep = (int64_t)g->pcp * g->tp, ranks = ep > b->job.world ? ep : ep * g->dp;
    lf_grid made;

    if (ranks > b->job.world)
        return lf_fail(err, "the grid %s has %lld ranks or more, but %d %s started", g->name, (long long)ranks,
                       b->job.world, b->job.world == 1 ? "was" : "were");
    if (b->job.world % ep)
        return lf_fail(err, "the grid %s: pcp x tp = %lld does not divide the %d ranks started; start a multiple of it",
                       g->name, (long long)ep, b->job.world);
    if (lf_grid_make(&made, &b->job.model, (int)ranks, 0, g->dp, g->pcp, g->tp, err))
        return lf_fail_in(err, "the grid %s", g->name);
    return 0;
}

static int lists_check(lf_bench *b, lf_err *err)
{
    const lf_options *o = b->job.o;
    const char *all = o->grids;
    char whole[40];

    snprintf(whole, sizeof whole, "1x%dx1", b->job.world);
    if (lf_bench_grids(all ? all : whole, b->grid, &b->grids, err) ||
        lf_bench_lengths(o->lengths, b->length, &b->lengths, err))
        return -1;
    for (int i = 0; i < b->grids; i++)
        if (grid_check(b, &b->grid[i], err))
            return lf_fail_in(err, "--grids");
    for (int i = 0; i < b->lengths; i++)
        if (b->length[i] > b->job.model.max_positions)
            return lf_fail(err, "--lengths: %lld tokens, but the model has %lld positions", (long long)b->length[i],
                           (long long)b->job.model.max_positions);
    return 0;
}

static int fits(const lf_bench *b, lf_plan *p, const lf_bench_grid *grid, lf_err *err)
{
    lf_plan_grid g = { .grid = { .dp = grid->dp, .pcp = grid->pcp, .tp = grid->tp } };
    int64_t here = lf_min((int64_t)grid->dp * grid->pcp * grid->tp, b->job.control.local_size);
    char need[24], have[24];
    double room = (double)lf_host_free();

    lf_plan_grid_size(p, &g);
    double bytes = (double)g.device_bytes * (double)here;
    if (p->made_up && lf_plan_made_up_bytes(g.weights, err))
        return -1;
    if (room >= 0 && bytes > room)
        return lf_fail(err, "the grid %s with %lld token%s needs %s of host memory on this node, where %s are free",
                       grid->name, (long long)p->length, lf_s(p->length), lf_human_bytes(need, bytes),
                       lf_human_bytes(have, room));
    return 0;
}

/* On the CPU the system would hand out memory that it does not have; a GPU is asked when it is open. */
static int memory_check(const lf_bench *b, lf_err *err)
{
    const lf_options *o = b->job.o;
    int gpus, bad = 0;
    lf_err why;
    lf_plan p;

    if (o->device == LF_DEVICE_CUDA || (o->device == LF_DEVICE_AUTO && !lf_cuda_devices(&gpus, &why)))
        return 0;
    if (lf_plan_open(&p, &b->job.model, b->job.checkpoint, err)) {
        lf_plan_free(&p);
        return -1;
    }
    p.numerics = (lf_numerics)o->numerics;
    p.act_bytes = 4;
    p.on_host = 1;
    p.made_up = !b->job.checkpoint;
    p.merge = o->pcp_attention == LF_PCP_MERGE;
    p.kv_dtype = b->job.kv_dtype;
    p.logits.last = 1;
    for (int i = 0; i < b->grids * b->lengths && !bad; i++) {
        p.length = b->length[i / b->grids];
        bad = fits(b, &p, &b->grid[i % b->grids], err);
    }
    lf_plan_free(&p);
    return bad;
}

int lf_bench_check(lf_bench *b, int *code, lf_err *err)
{
    lf_job *j = &b->job;
    const char *dir = j->o->model;

    *code = LF_EXIT_USAGE;
    if (lf_model_read(&j->model, dir, err) || lf_job_device_check(j->o, err))
        return -1;
    if (j->o->weights == LF_WEIGHTS_REAL &&
        (lf_checkpoint_open(&j->checkpoint, dir, err) ||
         lf_inventory_check(&j->model, j->checkpoint, &j->inventory, err)))
        return lf_fail_in(err, "--weights dummy needs only config.json");
    if (lists_check(b, err))
        return -1;
    *code = LF_EXIT_FAILED;
    return memory_check(b, err);
}
