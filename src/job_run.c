/* SPDX-License-Identifier: Apache-2.0 */
#include "job_group.h"
#include "log.h"
#include "traffic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SAID_AT_MOST = 10 };                /* failed prompts that a rank names on stderr */

/* One pass on the computing thread: what the engine's sink is called with. */
typedef struct job_pass {
    lf_job *job;
    const lf_batch *batch;
    int64_t done_before;                   /* tokens of the batches that were handed out before this one */
    lf_writer_file **file;                 /* [n] */
    lf_job_file **prompt;                  /* [n] */
    double first_token;                    /* lf_now() */
} job_pass;

/* The others wait in a collective: nobody gets out by itself. */
static _Noreturn void give_up(const lf_err *err)
{
    lf_error("%s", err->text);
    lf_topo_abort(LF_EXIT_FAILED);
}

/* ---- the sink ---- */

static void sink_rows(void *ctx, int seq, int layer, lf_kv_part part, int64_t row0, int64_t rows,
                      const void *packed, size_t bytes)
{
    job_pass *p = ctx;

    lf_writer_rows(p->job->writer, p->file[seq], layer, part, row0, rows, packed, bytes);
}

static void sink_logits(void *ctx, int seq, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data,
                        size_t bytes)
{
    job_pass *p = ctx;

    lf_writer_logits(p->job->writer, p->file[seq], kind, row0, rows, data, bytes);
}

static void sink_first_token(void *ctx)
{
    ((job_pass *)ctx)->first_token = lf_now();
}

static const char *clock_text(char buf[32], double seconds)
{
    int64_t s = (int64_t)(seconds + 0.5);

    if (s < 60)
        snprintf(buf, 32, "%llds", (long long)s);
    else if (s < 3600)
        snprintf(buf, 32, "%lldm%02llds", (long long)s / 60, (long long)s % 60);
    else
        snprintf(buf, 32, "%lldh%02lldm", (long long)s / 3600, (long long)s / 60 % 60);
    return buf;
}

/* Rank 0 knows its own layer and, from the number of its batch, what was handed out before: near enough. */
static void progress(job_pass *p, int layer)
{
    lf_job *j = p->job;
    int layers = j->model.layers;
    double now = lf_now();
    char left[32];

    if (j->rank || j->o->progress <= 0 || now - j->progressed < j->o->progress)
        return;
    j->progressed = now;
    double done = (double)p->done_before + (double)p->batch->tokens * (layer + 1) / layers;
    double rate = done / (now - j->loop);
    lf_progress("layer %d/%d, %.0f of %lld token%s, %.0f tok/s, %s left", layer + 1, layers, done,
                (long long)j->plan.tokens, lf_s(j->plan.tokens), rate,
                clock_text(left, ((double)j->plan.tokens - done) / rate));
}

/* The files of the pass before are written during this one. */
static void sink_layer_done(void *ctx, int layer)
{
    job_pass *p = ctx;
    lf_err err;

    if (lf_job_group_join(p->job, 0, &err))
        give_up(&err);
    progress(p, layer);
}

/* ---- when to end ---- */

static int is_broken(lf_job *j)
{
    pthread_mutex_lock(&j->lock);
    int broken = j->broken.text[0] != 0;
    pthread_mutex_unlock(&j->lock);
    return broken;
}

static int told_to_stop(lf_job *j)
{
    static const struct timespec now = { 0, 0 };

    if (j->o->max_seconds > 0 && lf_now() - j->born >= j->o->max_seconds)
        j->stopped = 1;
    if (sigtimedwait(&j->stops, NULL, &now) > 0)
        j->stopped = 1;
    return j->stopped || is_broken(j);
}

/* The next batch of this dp group.  One that is to stop uses the counter up, so that the others stop too. */
static int batch_next(lf_job *j, int64_t *batch, lf_err *err)
{
    *batch = 0;
    if (j->topo.grid.ep_rank == 0) {
        int stop = told_to_stop(j);
        do {
            if (lf_topo_next(&j->topo, batch, err))
                return -1;
        } while (stop && *batch < j->plan.batches);
    }
    return lf_topo_bcast(j->topo.group, batch, sizeof *batch, 0, err);
}

/* ---- a pass ---- */

static void pass_begin(job_pass *p, lf_prompt *prompts, double dispatched)
{
    lf_job *j = p->job;

    for (int64_t i = 0; i < p->batch->n; i++) {
        int64_t request = j->plan.order[p->batch->first + i];
        prompts[i] = (lf_prompt){ j->requests.v[request].ids, j->requests.v[request].tokens };
        if (!lf_job_writes(j))
            continue;
        p->prompt[i] = lf_job_file_new(j, request, dispatched);
        p->file[i] = lf_writer_begin(j->writer, p->prompt[i]);
    }
}

/* What prompts that went through together cost each is told by their tokens. */
static void pass_end(job_pass *p, double dispatched, double compute, const char *failed)
{
    for (int64_t i = 0; i < p->batch->n && lf_job_writes(p->job); i++) {
        int64_t tokens = p->job->requests.v[p->prompt[i]->request].tokens;
        p->prompt[i]->ttft_s = p->first_token > 0 ? p->first_token - dispatched : NAN;
        p->prompt[i]->compute_s = compute * (double)tokens / (double)p->batch->tokens;
        lf_writer_end(p->job->writer, p->file[i], failed);
    }
}

/* What this pass sends on the pcp communicator, by arithmetic. */
static void expect(lf_job *j, const lf_batch *b, const lf_prompt *prompts)
{
    lf_traffic_case c = { .model = &j->model, .numerics = j->dev->numerics, .act_bytes = j->dev->act_bytes,
                          .pcp = j->grid.pcp };
    int64_t *length = lf_alloc((size_t)b->n * sizeof *length);
    lf_traffic t;

    for (int64_t i = 0; i < b->n; i++)
        length[i] = prompts[i].tokens;
    lf_traffic_sent(&t, &c, j->grid.pcp_rank, (int)b->n, length);
    j->pcp_expected += t.all;
    free(length);
}

/* After a pass that failed.  A device that is asked again, once sync has told and forgotten an error, fails again only
 * where it is lost: it would fail every prompt that it drew, all that are left, within moments. */
static void device_check(lf_job *j, lf_err *err)
{
    lf_err again, all;

    if (!j->dev->ops->sync(j->dev, &again))
        return;
    int same = strcmp(again.text, err->text) == 0;
    lf_fail(&all, "%s; the device still fails: run the same command again for the prompts that are left%s%s%s",
            err->text, same ? "" : " (", same ? "" : again.text, same ? "" : ")");
    if (j->grid.ep == 1)
        lf_writer_flush(j->writer);        /* prompts that are through: nobody else waits */
    give_up(&all);
}

/* Prompts that cannot be computed fail, and the job goes on, where the device does. */
static int pass_run(lf_job *j, int64_t number, int64_t done_before, lf_err *failed)
{
    const lf_batch *b = &j->plan.batch[number];
    job_pass p = { .job = j, .batch = b, .done_before = done_before };
    lf_sink sink = { &p, sink_rows, sink_logits, sink_first_token, sink_layer_done };
    lf_prompt *prompts = lf_alloc((size_t)b->n * sizeof *prompts);
    lf_writer_stats before, after;
    lf_err err = { "" };

    p.file = lf_alloc((size_t)b->n * sizeof *p.file);
    p.prompt = lf_alloc((size_t)b->n * sizeof *p.prompt);
    double dispatched = lf_now();
    pass_begin(&p, prompts, dispatched);
    lf_writer_stats_get(j->writer, &before);
    double t = lf_now(), held = j->phase_s[LF_PHASE_WRITE_WAIT];
    int bad = lf_engine_run(j->engine, (int)b->n, prompts, &sink, j->phase_s, &err);
    if (bad == -2 && j->grid.ep > 1)
        give_up(&err);
    if (bad)
        device_check(j, &err);
    lf_writer_stats_get(j->writer, &after);
    held = j->phase_s[LF_PHASE_WRITE_WAIT] - held;     /* a GPU goes on while the writer is waited for */
    double compute = lf_now() - t - fmin(held, after.waited - before.waited);
    j->compute_s += compute;
    if (!bad)
        expect(j, b, prompts);
    j->prompts += b->n;
    j->tokens += b->tokens;
    pass_end(&p, dispatched, compute, bad ? err.text : NULL);
    bad = lf_job_group_join(j, 1, failed);
    if (!bad && lf_job_shares(j))
        lf_job_group_add(j, b->n, p.prompt);
    free(prompts);
    free(p.file);
    free(p.prompt);
    return bad;
}

/* ---- the loop ---- */

/* Each rank names the first prompts that failed on it; results.jsonl has them all. */
static void say_failures(lf_job *j)
{
    pthread_mutex_lock(&j->lock);
    for (; j->said < j->records; j->said++) {
        const lf_job_record *r = &j->record[j->said];
        if (!r->failed)
            continue;
        if (j->failures < SAID_AT_MOST)
            lf_error("prompt %s (line %lld): %s", j->requests.v[r->request].id,
                     (long long)j->requests.v[r->request].line, j->why[j->said]);
        else if (j->failures == SAID_AT_MOST)
            lf_error("more prompts failed: results.jsonl has them all");
        j->failures++;
    }
    pthread_mutex_unlock(&j->lock);
}

static int loop(lf_job *j, lf_err *err)
{
    int64_t b, next = 0, done = 0;

    j->loop = j->progressed = lf_now();
    for (;;) {
        if (batch_next(j, &b, err))
            return -1;
        if (b >= j->plan.batches)
            break;
        for (; next < b; next++)
            done += j->plan.batch[next].tokens;
        if (pass_run(j, b, done, err))
            return -1;
        say_failures(j);
    }
    lf_progress_end();
    return lf_job_group_join(j, 1, err);
}

int lf_job_run(lf_job *j, lf_err *err)
{
    lf_writer_store store = lf_job_store(j);

    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->part_done, NULL);
    j->record = lf_alloc((size_t)j->plan.n * sizeof *j->record);
    j->why = lf_alloc((size_t)j->plan.n * sizeof *j->why);
    int bad = j->results ? 0 : lf_results_open(&j->results, j->o->output, 0, err);
    if (!bad)
        bad = lf_writer_open(&j->writer, &store, lf_writer_budget(&j->model), err);
    if (lf_job_any(j, bad, err))
        return -1;
    if (lf_topo_barrier(j->topo.world, err) || loop(j, err))
        give_up(err);
    lf_writer_close(j->writer);
    j->writer = NULL;
    say_failures(j);
    if (j->broken.text[0])
        *err = j->broken;
    return lf_job_any(j, j->broken.text[0] != 0, err);
}
