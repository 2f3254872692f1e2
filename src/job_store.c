/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "job_group.h"
#include "kvindex.h"
#include "kvshare.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0"
#endif

#define NOT_FINITE \
    "the weights hold NaN or infinities, or a value overflowed; compare the checkpoint with its source"

char *lf_job_relative(const char *id)
{
    char *name = lf_kvindex_name(id), *path = lf_printf("kv/%s.h5", name);

    free(name);
    return path;
}

lf_kv_meta lf_job_meta(const lf_job *j, int64_t request)
{
    const lf_request *r = &j->requests.v[request];
    int text = r->source == LF_FROM_TEXT || r->source == LF_FROM_TEXT_FILE;

    return (lf_kv_meta){
        .custom_id = r->id,
        .num_tokens = r->tokens,
        .numerics = (lf_numerics)j->o->numerics,
        .kv_dtype = j->kv_dtype,
        .model = &j->model,
        .weights_id = lf_job_weights_id(j),
        .tokenizer_sha256 = text ? j->tokenizer_sha256 : NULL,
        .device = j->dev ? j->dev->ops->name : NULL,
        .pcp_attention = j->grid.pcp > 1 && j->o->pcp_attention == LF_PCP_MERGE ? "merge" : "gather",
        .tp = j->grid.tp,
        .producer = "longfill " PACKAGE_VERSION,
        .logits = j->want,
    };
}

lf_job_file *lf_job_file_new(lf_job *j, int64_t request, double dispatched)
{
    lf_job_file *f = lf_alloc(sizeof *f);

    f->job = j;
    f->request = request;
    f->dispatched = dispatched;
    f->ttft_s = f->compute_s = NAN;
    f->meta = lf_job_meta(j, request);
    f->path = lf_kvindex_path(j->o->output, f->meta.custom_id);
    f->role = lf_job_shares(j) ? LF_JOB_PART : LF_JOB_ALONE;
    return f;
}

void lf_job_file_free(lf_job_file *f)
{
    free(f->path);
    free(f->part_why);
    free(f->parts);
    free(f);
}

/* ---- on the writer's thread ---- */

static int part_create(lf_job_file *f, lf_err *err)
{
    const lf_grid *g = &f->job->grid;

    return lf_kv_share_any(&f->meta, g->pcp_rank, g->pcp)
               ? lf_kvmaster_create_part(&f->kv, f->path, &f->meta, g->pcp_rank, g->pcp, err) : 0;
}

static int file_create(void *ctx, void *what, void **file, lf_err *err)
{
    lf_job *j = ctx;
    lf_job_file *f = what;

    *file = f;
    if (f->role != LF_JOB_ALONE)
        return f->role == LF_JOB_PART ? part_create(f, err) : 0;
    if (lf_kvfile_create(&f->kv, f->path, &f->meta, err))
        return -1;
    if (lf_kvfile_put_tokens(f->kv, j->requests.v[f->request].ids, err)) {
        lf_kvfile_abandon(f->kv);
        return -1;
    }
    return 0;
}

static int is_mine(const lf_job_file *f, lf_err *err)
{
    return f->kv ? 0 : lf_fail(err, "%s: rows of a rank that has none", f->path);
}

/* Whoever reads the cache later could not tell: the prompt fails here, by the first place that says so. */
static int rows_check(const lf_job_file *f, int layer, lf_kv_part part, int64_t row0, int64_t rows, const void *packed,
                      lf_err *err)
{
    const lf_model *m = f->meta.model;
    int64_t bad = lf_row_not_finite(m, lf_part_fmt(part, f->meta.kv_dtype),
                                    lf_part_width(m, m->kind[layer], part), rows, packed);

    return bad < 0 ? 0 : lf_fail(err, "layer %d: row %lld of %s is not finite: %s", layer, (long long)(row0 + bad),
                                 lf_part_path(part), NOT_FINITE);
}

/* The last of the log-probabilities is NaN: it has no next token.  Ids are no floats. */
static int logits_check(const lf_job_file *f, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data,
                        size_t bytes, lf_err *err)
{
    const lf_model *m = f->meta.model;
    int64_t all = kind == LF_LOGITS_LOGPROB && row0 + rows == f->meta.num_tokens ? rows - 1 : rows;
    int64_t width = rows ? (int64_t)(bytes / sizeof(float)) / rows : 0;
    int64_t bad = kind == LF_LOGITS_TOPK_IDS ? -1 : lf_row_not_finite(m, LF_ROW_F32, width, all, data);
    int64_t token = kind == LF_LOGITS_LAST ? f->meta.num_tokens - 1 : row0 + bad;

    return bad < 0 ? 0 : lf_fail(err, "logits of token %lld are not finite: %s", (long long)token, NOT_FINITE);
}

static int file_rows(void *file, int layer, lf_kv_part part, int64_t row0, int64_t rows, const void *packed,
                     size_t bytes, lf_err *err)
{
    (void)bytes;
    if (is_mine(file, err) || rows_check(file, layer, part, row0, rows, packed, err))
        return -1;
    return lf_kvfile_put(((lf_job_file *)file)->kv, layer, part, row0, rows, packed, err);
}

static int file_logits(void *file, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data,
                       size_t bytes, lf_err *err)
{
    if (is_mine(file, err) || logits_check(file, kind, row0, rows, data, bytes, err))
        return -1;
    return lf_kvfile_put_logits(((lf_job_file *)file)->kv, kind, row0, rows, data, err);
}

static int file_finish(void *file, lf_err *err)
{
    lf_job_file *f = file;
    const lf_job *j = f->job;

    switch (f->role) {
    case LF_JOB_PART:
        return f->kv ? lf_kvmaster_finish_part(f->kv, &f->written, err) : 0;
    case LF_JOB_MASTER:
        return lf_kvmaster_join(f->path, &f->meta, j->requests.v[f->request].ids, f->parts, j->grid.pcp,
                                &f->file_bytes, err);
    default:
        return lf_kvfile_finish(f->kv, &f->file_bytes, err);
    }
}

static void file_drop(void *file)
{
    lf_job_file *f = file;

    if (f->role == LF_JOB_MASTER)
        lf_kvmaster_sweep(f->path, LF_SWEEP_UNFINISHED);
    else
        lf_kvfile_abandon(f->kv);
}

/* What becomes of the prompt is for the ranks to tell each other. */
static void part_done(lf_job *j, lf_job_file *f, const lf_written *w)
{
    pthread_mutex_lock(&j->lock);
    f->part_failed = w->failed;
    f->part_why = w->failed ? lf_strdup(w->why) : NULL;
    f->write_s = w->seconds;
    f->part_done = 1;
    pthread_cond_signal(&j->part_done);
    pthread_mutex_unlock(&j->lock);
}

static void record_add(lf_job *j, const lf_job_file *f, const lf_written *w, double durable, const lf_err *broken)
{
    pthread_mutex_lock(&j->lock);
    j->why[j->records] = w->failed ? lf_strdup(w->why) : NULL;
    j->record[j->records++] = (lf_job_record){
        .request = f->request,
        .rank = j->rank,
        .failed = w->failed,
        .file_bytes = w->failed ? 0 : (int64_t)f->file_bytes,
        .ttft_s = f->ttft_s,
        .compute_s = f->compute_s,
        .durable_s = w->failed ? NAN : durable - f->dispatched,
        .write_s = w->seconds + f->write_s,
        .end_s = lf_now() - j->loop,
    };
    if (broken->text[0] && !j->broken.text[0])
        j->broken = *broken;
    pthread_mutex_unlock(&j->lock);
}

/* Of ranks and threads only the text of an error gets here. */
static int disk_full(const char *why)
{
    return strstr(why, strerror(ENOSPC)) || strstr(why, strerror(EDQUOT));
}

/* No fault of the prompt, and the next one would meet the same: it stays undone, and the run ends. */
static void end_full(lf_job *j, const char *why)
{
    pthread_mutex_lock(&j->lock);
    if (!j->broken.text[0])
        lf_fail(&j->broken, "%s; free space and run the same command again for the prompts that are left", why);
    pthread_mutex_unlock(&j->lock);
}

/* The file is durable: now its line may say so. */
static void line_write(lf_job *j, lf_job_file *f, const lf_written *w)
{
    if (w->failed && disk_full(w->why)) {
        end_full(j, w->why);
        lf_job_file_free(f);
        return;
    }
    lf_result line = lf_job_result(j, f->request);
    char *relative = lf_job_relative(line.custom_id);
    lf_err broken = { "" };
    double durable = lf_now();

    line.write_s = w->seconds + f->write_s;
    line.status = w->failed ? LF_STATUS_FAILED : LF_STATUS_OK;
    if (w->failed) {
        line.error = w->why;
    } else {
        line.path = relative;
        line.bytes = (int64_t)f->file_bytes;
        line.ttft_s = f->ttft_s;
        line.compute_s = f->compute_s;
        line.durable_s = durable - f->dispatched;
    }
    if (lf_results_append(j->results, &line, &broken) == 0)
        broken.text[0] = 0;
    record_add(j, f, w, durable, &broken);
    free(relative);
    lf_job_file_free(f);
}

static void file_done(void *ctx, void *what, const lf_written *w)
{
    lf_job_file *f = what;

    if (f->role == LF_JOB_PART)
        part_done(ctx, f, w);
    else
        line_write(ctx, f, w);
}

lf_writer_store lf_job_store(lf_job *j)
{
    return (lf_writer_store){ j, file_create, file_rows, file_logits, file_finish, file_drop, file_done };
}
