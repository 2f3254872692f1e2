/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include "device.h"
#include "plan_fit.h"
#include "log.h"
#include "traffic.h"

#include <stdlib.h>
#include <string.h>

/* What a sink is called with: where a writer would be, bytes are counted. */
typedef struct meter {
    int64_t bytes;
    double first_token;                    /* lf_now() */
} meter;

static void meter_rows(void *ctx, int seq, int layer, lf_kv_part part, int64_t row0, int64_t rows, const void *packed,
                       size_t bytes)
{
    (void)seq, (void)layer, (void)part, (void)row0, (void)rows, (void)packed;
    ((meter *)ctx)->bytes += (int64_t)bytes;
}

static void meter_logits(void *ctx, int seq, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data,
                         size_t bytes)
{
    (void)ctx, (void)seq, (void)kind, (void)row0, (void)rows, (void)data, (void)bytes;
}

static void meter_first_token(void *ctx)
{
    ((meter *)ctx)->first_token = lf_now();
}

static void meter_layer(void *ctx, int layer)
{
    (void)ctx, (void)layer;
}

/* ---- a grid ---- */

/* This grid's place for every rank: those beyond it form more dp groups, which wait. */
static int grid_place(lf_bench *b, const lf_bench_grid *g, lf_err *err)
{
    lf_job *j = &b->job;

    return lf_grid_make(&j->grid, &j->model, j->world, j->rank, j->world / (g->pcp * g->tp), g->pcp, g->tp, err);
}

static int waits(const lf_bench *b, const lf_bench_grid *g)
{
    return b->job.grid.dp_rank >= g->dp;
}

/* All lengths, each a pass of its own, before anything is loaded. */
static int fits(lf_bench *b, lf_err *err)
{
    lf_job *j = &b->job;
    lf_fit f = { .model = &j->model, .checkpoint = j->checkpoint, .dev = j->dev, .grid = j->grid,
                 .merge = j->o->pcp_attention == LF_PCP_MERGE, .kv_dtype = j->kv_dtype, .logits = { .last = 1 } };
    int n[LF_BENCH_MOST];

    for (int i = 0; i < b->lengths; i++)
        n[i] = 1;
    return lf_plan_fits(&f, b->lengths, n, b->length, &j->tile, err);
}

static int engine_open(lf_bench *b, lf_err *err)
{
    lf_job *j = &b->job;
    lf_engine_setup s = { .model = &j->model, .checkpoint = j->checkpoint, .seed = (uint64_t)j->o->seed, .dev = j->dev,
                          .topo = &j->topo, .kv_dtype = j->kv_dtype, .logits = { .last = 1 },
                          .tile = j->tile, .merge = j->o->pcp_attention == LF_PCP_MERGE };

    return lf_engine_open(&j->engine, &s, err);
}

static int grid_open(lf_bench *b, const lf_bench_grid *g, lf_err *err)
{
    lf_job *j = &b->job;
    double t = lf_now();

    if (lf_job_any(j, grid_place(b, g, err) || lf_topo_open(&j->topo, &j->grid, err), err))
        return -1;
    j->topo_open = 1;
    int bad = lf_device_open(&j->dev, &j->topo, &j->model, (lf_numerics)j->o->numerics, j->kv_dtype, j->o->device,
                             j->threads, err);
    j->tile = INT64_MAX;                   /* who waits takes any */
    if (lf_job_any(j, bad, err) || lf_job_any(j, !waits(b, g) && fits(b, err), err) ||
        lf_job_any(j, lf_job_tile_agree(j, err), err) ||
        lf_job_any(j, !waits(b, g) && engine_open(b, err), err))
        return -1;
    snprintf(b->device, sizeof b->device, "%s", j->dev->ops->name);
    snprintf(b->device_name, sizeof b->device_name, "%s", j->dev->name);
    j->load_s = lf_now() - t;
    return 0;
}

static void grid_close(lf_bench *b)
{
    lf_job *j = &b->job;

    lf_engine_close(j->engine);
    if (j->topo_open)
        lf_topo_close(&j->topo);
    lf_dev_close(j->dev);                  /* after the communicators that are attached to it */
    j->engine = NULL;
    j->dev = NULL;
    j->topo_open = 0;
}

/* ---- a pass ---- */

static void expect(lf_bench *b, int64_t length, lf_bench_sample *s)
{
    lf_traffic_case c = { .model = &b->job.model, .numerics = b->job.dev->numerics, .act_bytes = b->job.dev->act_bytes,
                          .pcp = b->job.grid.pcp };
    lf_traffic t;

    lf_traffic_sent(&t, &c, b->job.grid.pcp_rank, 1, &length);
    s->pcp_expected = b->job.o->pcp_attention == LF_PCP_MERGE && c.pcp > 1 ? -1 : t.all;
}

static int pass_run(lf_bench *b, int64_t length, lf_bench_sample *s, lf_err *err)
{
    lf_job *j = &b->job;
    lf_prompt prompt = { b->ids, length };
    meter m = { 0, 0 };
    lf_sink sink = { &m, meter_rows, meter_logits, meter_first_token, meter_layer };
    lf_comm_stats before, after;

    lf_comm_stats_get(j->topo.pcp, &before);
    s->exchange_s = -lf_topo_seconds(&j->topo);
    j->dev->peak = j->dev->taken;
    double t = lf_now();
    int bad = lf_engine_run(j->engine, 1, &prompt, &sink, s->phase_s, err);
    if (bad == -2) {
        lf_error("%s", err->text);         /* the others wait in a collective: nobody gets out by itself */
        lf_topo_abort(LF_EXIT_FAILED);
    }
    s->compute_s = lf_now() - t;
    s->ttft_s = m.first_token - t;
    lf_comm_stats_get(j->topo.pcp, &after);
    s->exchange_s += lf_topo_seconds(&j->topo);
    s->took_part = 1;
    s->kv_bytes = m.bytes;
    s->peak_device_bytes = (int64_t)j->dev->peak;
    s->pcp_sent = (int64_t)(after.bytes_sent - before.bytes_sent);
    expect(b, length, s);
    return bad;
}

/* All ranks of the world begin together; the samples end up on rank 0 at `all`. */
static int pass(lf_bench *b, const lf_bench_grid *g, int64_t length, lf_bench_sample *all, lf_err *err)
{
    lf_job *j = &b->job;
    lf_bench_sample mine = { 0 };
    void *got = NULL;
    size_t bytes;

    if (lf_topo_barrier(j->topo.world, err))
        return -1;
    int bad = !waits(b, g) && pass_run(b, length, &mine, err);
    if (lf_job_any(j, bad, err) || lf_topo_gather(j->control.world, &mine, sizeof mine, &got, &bytes, 0, err))
        return -1;
    if (got)
        memcpy(all, got, (size_t)j->world * sizeof *all);
    free(got);
    return 0;
}

/* One pass to warm up, then those that count. */
static int cell_run(lf_bench *b, int grid, int length, lf_err *err)
{
    const lf_job *j = &b->job;
    const lf_bench_grid *g = &b->grid[grid];
    int64_t tokens = b->length[length];
    lf_bench_sample *all = lf_alloc((size_t)(b->repeat * j->world) * sizeof *all);
    int bad = 0;

    lf_progress("grid %s, %lld token%s: %lld passes", g->name, (long long)tokens, lf_s(tokens),
                (long long)b->repeat + 1);
    for (int64_t i = -1; i < b->repeat && !bad; i++)
        bad = pass(b, g, tokens, all + lf_max(0, i) * j->world, err);
    if (!bad && j->rank == 0) {
        lf_bench_cell *c = &b->cell[length * b->grids + grid];
        *c = (lf_bench_cell){ .length = tokens, .grid = *g, .ranks = (int64_t)g->dp * g->pcp * g->tp,
                              .tile = j->tile, .load_s = j->load_s };
        lf_bench_reduce(c, all, (int)b->repeat, j->world);
    }
    free(all);
    return bad ? lf_fail_in(err, "the grid %s with %lld token%s", g->name, (long long)tokens, lf_s(tokens)) : 0;
}

/* ---- all of it ---- */

/* The same ids on every rank, from the seed; each in the vocabulary. */
static uint32_t *random_ids(int64_t n, uint64_t seed, int64_t vocab)
{
    uint32_t *ids = lf_alloc((size_t)n * sizeof *ids);

    for (int64_t i = 0; i < n; i++) {
        uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xd1342543de82ef95u;
        z = (z ^ z >> 32) * 0xbf58476d1ce4e5b9u;
        ids[i] = (uint32_t)((z ^ z >> 29) % (uint64_t)vocab);
    }
    return ids;
}

int lf_bench_run(lf_bench *b, lf_err *err)
{
    int64_t longest = 1;
    int bad = 0;

    for (int i = 0; i < b->lengths; i++)
        longest = lf_max(longest, b->length[i]);
    uint32_t *ids = random_ids(longest, (uint64_t)b->job.o->seed, b->job.model.vocab);
    b->ids = ids;
    b->cell = lf_alloc((size_t)(b->grids * b->lengths) * sizeof *b->cell);
    for (int g = 0; g < b->grids && !bad; g++) {
        bad = grid_open(b, &b->grid[g], err);
        for (int l = 0; l < b->lengths && !bad; l++)
            bad = cell_run(b, g, l, err);
        grid_close(b);
    }
    lf_progress_end();
    b->ids = NULL;
    free(ids);
    return bad;
}
