/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"
#include "log.h"
#include "traffic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a rank's part ---- */

static void traffic_add(lf_report_rank *r, lf_report_comm which, const lf_comm *c)
{
    lf_comm_stats s;

    lf_comm_stats_get(c, &s);
    r->sent[which] += (int64_t)s.bytes_sent;
    r->received[which] += (int64_t)s.bytes_received;
}

/* Finished rows go to the others of the pcp group; in merge mode queries and results do. */
static int rows_travel(const lf_job *j)
{
    return j->grid.pcp > 1 && j->o->pcp_attention != LF_PCP_MERGE;
}

static lf_report_rank rank_mine(const lf_job *j)
{
    lf_report_rank r = { .rank = j->rank, .prompts = j->prompts, .tokens = j->tokens };

    r.compute_s = j->compute_s;
    gethostname(r.host, sizeof r.host - 1);
    snprintf(r.device, sizeof r.device, "%s", j->dev ? j->dev->name : "");
    memcpy(r.phase_s, j->phase_s, sizeof r.phase_s);
    traffic_add(&r, LF_COMM_WORLD, j->control.world);
    if (j->topo_open) {
        traffic_add(&r, LF_COMM_WORLD, j->topo.world);
        traffic_add(&r, LF_COMM_PCP, j->topo.pcp);
        traffic_add(&r, LF_COMM_TP, j->topo.tp);
        traffic_add(&r, LF_COMM_EP, j->topo.group);
        r.exchange_s = lf_topo_seconds(&j->topo);
    }
    r.pcp_expected = rows_travel(j) || j->grid.pcp == 1 ? j->pcp_expected : -1;
    r.load_bytes = j->engine ? lf_engine_loaded(j->engine) : 0;
    r.peak_host_bytes = lf_report_peak_host();
    r.peak_device_bytes = j->dev ? (int64_t)j->dev->peak : 0;
    return r;
}

/* ---- the whole ---- */

static lf_report_row row_of(const lf_job *j, int64_t request, const lf_job_record *r)
{
    const lf_request *q = &j->requests.v[request];
    lf_report_row row = { .id = q->id, .tokens = q->tokens, .rank = -1, .status = LF_PROMPT_SKIPPED,
                          .ttft_s = NAN, .compute_s = NAN, .durable_s = NAN };

    if (!r) {
        row.file_bytes = j->skip_bytes[request];
        return row;
    }
    row.rank = (int)r->rank;
    row.status = r->failed ? LF_PROMPT_FAILED : LF_PROMPT_OK;
    row.ttft_s = r->ttft_s;
    row.compute_s = r->compute_s;
    row.durable_s = r->durable_s;
    row.file_bytes = r->file_bytes;
    return row;
}

/* Prompts in the file's order; those that were not started are counted only. */
static void rows_add(const lf_job *j, lf_report *report, const lf_job_record *records, int64_t n)
{
    const lf_job_record **of = lf_alloc((size_t)j->requests.n * sizeof *of);

    for (int64_t i = 0; i < n; i++) {
        of[records[i].request] = &records[i];
        report->total_latency_s = fmax(report->total_latency_s, records[i].end_s);
    }
    for (int64_t i = 0; i < j->requests.n; i++)
        if (of[i] || j->skip[i]) {
            lf_report_row row = row_of(j, i, of[i]);
            lf_report_prompt(report, &row);
        }
    report->remaining = j->plan.n - n;
    free(of);
}

static void identity_add(const lf_job *j, lf_report *report)
{
    report->version = lf_job_version();
    report->model_type = j->model.type;
    report->config_sha256 = j->model.sha256;
    report->weights_id = lf_job_weights_id(j);
    report->numerics = j->o->numerics == LF_EXACT ? "exact" : "released";
    report->kv_dtype = lf_kv_dtype_name(j->kv_dtype);
    report->device = j->dev ? j->dev->ops->name : "cpu";
    report->load_s = j->load_s;
    report->tokenize_s = j->tokenize_s;
    report->grid = j->grid;
    report->tile = j->tile;
    memcpy(report->started, j->started, sizeof report->started);
    lf_report_options(report, j->o);
    lf_job_libraries(report, j->dev ? j->dev->ops->name : NULL, j->grid.ep > 1);
}

static void formula_add(const lf_job *j, lf_report *report)
{
    if (!j->dev || !rows_travel(j))
        return;
    lf_traffic_case c = { .model = &j->model, .numerics = j->dev->numerics, .act_bytes = j->dev->act_bytes,
                          .pcp = j->grid.pcp };
    report->pcp_token_c4 = lf_traffic_token_bytes(&c, LF_C4);
    report->pcp_token_c128 = lf_traffic_token_bytes(&c, LF_C128);
    report->pcp_halo = lf_traffic_halo_bytes(&c, LF_C4);
}

static int exit_code(const lf_report *report)
{
    if (report->remaining)
        return LF_EXIT_AGAIN;
    return report->sum.failed ? LF_EXIT_SOME_FAILED : LF_EXIT_DONE;
}

static int report_out(const lf_job *j, lf_report *report, lf_err *err)
{
    char *path = j->o->report ? lf_strdup(j->o->report) : lf_printf("%s/report.json", j->o->output);
    char *written = NULL;
    int bad = lf_report_print(stdout, report, j->o->format, err);

    if (lf_report_write(report, path, &written, bad ? &(lf_err){ "" } : err))
        bad = -1;
    else
        lf_verbose("report in %s", written);
    free(path);
    free(written);
    return bad;
}

static int report_make(lf_job *j, const lf_job_record *records, int64_t n, const lf_report_rank *ranks,
                       int *code, lf_err *err)
{
    lf_report report;

    lf_report_init(&report);
    identity_add(j, &report);
    formula_add(j, &report);
    rows_add(j, &report, records, n);
    for (int r = 0; r < j->world; r++)
        lf_report_add_rank(&report, &ranks[r]);
    lf_report_finish(&report);
    report.exit_code = *code = exit_code(&report);
    int bad = report_out(j, &report, err);
    if (report.sum.skipped) {
        lf_progress("%lld of %lld prompt%s %s done already; --overwrite redoes %s", (long long)report.sum.skipped,
                    (long long)j->requests.n, lf_s(j->requests.n), report.sum.skipped == 1 ? "was" : "were",
                    report.sum.skipped == 1 ? "it" : "them");
        lf_progress_end();
    }
    if (!bad && *code == LF_EXIT_AGAIN)
        lf_fail(err, "stopped early with %lld of %lld prompt%s left: run the same command again",
                (long long)report.remaining, (long long)j->plan.n, lf_s(j->plan.n));
    lf_report_free(&report);
    return bad;
}

int lf_job_report(lf_job *j, int *code, lf_err *err)
{
    lf_report_rank mine = rank_mine(j);
    void *records, *ranks = NULL;
    size_t bytes, rank_bytes;
    int bad = lf_topo_gather(j->control.world, j->record, (size_t)j->records * sizeof *j->record, &records,
                             &bytes, 0, err);

    if (!bad)
        bad = lf_topo_gather(j->control.world, &mine, sizeof mine, &ranks, &rank_bytes, 0, err);
    if (!bad && j->rank == 0)
        bad = report_make(j, records, (int64_t)(bytes / sizeof *j->record), ranks, code, err);
    free(records);
    free(ranks);
    int verdict[2] = { bad, *code };
    if (lf_topo_bcast(j->control.world, verdict, sizeof verdict, 0, err))
        return -1;
    *code = verdict[1];
    return verdict[0];
}
