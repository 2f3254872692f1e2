/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "log.h"

#include <stdlib.h>
#include <string.h>

/* Model and weights on the other ranks; rank 0 has checked them. */
static int others_open(lf_bench *b, lf_err *err)
{
    lf_job *j = &b->job;

    return lf_model_read(&j->model, j->o->model, err) ||
           (j->o->weights == LF_WEIGHTS_REAL && lf_checkpoint_open(&j->checkpoint, j->o->model, err)) ? -1 : 0;
}

static int share(lf_bench *b, void *data, size_t bytes, lf_err *err)
{
    return lf_topo_bcast(b->job.control.world, data, bytes, 0, err);
}

static int open_all(lf_bench *b, int *code, lf_err *err)
{
    lf_job *j = &b->job;
    lf_grid plain = { .dp = j->world, .pcp = 1, .tp = 1, .rank = j->rank, .dp_rank = j->rank, .ep = 1 };

    *code = LF_EXIT_FAILED;
    if (lf_topo_open(&j->control, &plain, err))
        return -1;
    j->control_open = 1;
    int bad = j->rank == 0 && lf_bench_check(b, code, err);
    if (share(b, code, sizeof *code, err) || lf_job_any(j, bad, err))
        return -1;
    *code = LF_EXIT_FAILED;
    if (share(b, &b->grids, sizeof b->grids, err) || share(b, &b->lengths, sizeof b->lengths, err) ||
        share(b, b->grid, sizeof b->grid, err) || share(b, b->length, sizeof b->length, err))
        return -1;
    return lf_job_any(j, j->rank && others_open(b, err), err) || lf_job_threads(j, &j->threads, err) ? -1 : 0;
}

static void describe(lf_bench *b)
{
    const lf_job *j = &b->job;

    b->schema = LF_BENCH_SCHEMA;
    b->seed = j->o->seed;
    b->ranks = j->world;
    b->version = lf_job_version();
    b->model_type = j->model.type;
    b->config_sha256 = j->model.sha256;
    b->weights = j->checkpoint ? "real" : "dummy";
    b->weights_id = j->checkpoint ? lf_checkpoint_id(j->checkpoint) : NULL;
    b->numerics = j->o->numerics == LF_EXACT ? "exact" : "released";
    b->kv_dtype = lf_kv_dtype_name(j->kv_dtype);
    b->pcp_attention = j->o->pcp_attention == LF_PCP_MERGE ? "merge" : "gather";
}

static int bench(lf_bench *b, lf_err *err)
{
    lf_job *j = &b->job;
    int code, bad;

    j->kv_dtype = lf_kv_resolve((lf_kv_dtype)j->o->kv_dtype, (lf_numerics)j->o->numerics);
    b->repeat = j->o->repeat;
    if (open_all(b, &code, err))
        return code;
    if (lf_bench_run(b, err))
        return LF_EXIT_FAILED;
    bad = 0;
    if (j->rank == 0) {
        describe(b);
        lf_bench_compare(b);
        bad = lf_bench_print(stdout, b, j->o->format, err);
    }
    return lf_job_any(j, bad, err) ? LF_EXIT_FAILED : LF_EXIT_DONE;
}

int lf_cmd_bench(const lf_options *o, lf_err *err)
{
    lf_bench *b = lf_alloc(sizeof *b);
    int argc = 0, code = LF_EXIT_FAILED;
    char **argv = NULL;

    b->job.o = o;
    lf_report_clock(b->job.started);
    if (!lf_topo_start(&argc, &argv, &b->job.rank, &b->job.world, err)) {
        lf_log_setup(b->job.rank, lf_log_level());
        code = bench(b, err);
        if (err->text[0])
            lf_error("%s", err->text);     /* now: when another rank exits first, the launcher ends this one */
        err->text[0] = 0;
        lf_job_close(&b->job);
        lf_topo_end();
    }
    free(b->cell);
    free(b);
    return code;
}
