/* SPDX-License-Identifier: Apache-2.0 */
#include "report_columns.h"

#include <math.h>
#include <stdlib.h>

#define RUN(field) offsetof(lf_report, field)
#define SUM(field) offsetof(lf_report, sum.field)
#define RANK(field) offsetof(lf_report_rank, field)
#define SENT(c) offsetof(lf_report_rank, sent) + (c) * sizeof(int64_t)
#define RECEIVED(c) offsetof(lf_report_rank, received) + (c) * sizeof(int64_t)
#define ROW(field) offsetof(lf_row_shown, field)

const lf_column lf_report_columns[] = {
    { "schema_version", LF_COLUMN_INT, 0, RUN(schema) },
    { "longfill_version", LF_COLUMN_TEXT, 0, RUN(version) },
    { "started", LF_COLUMN_CHARS, 0, RUN(started) },
    { "ended", LF_COLUMN_CHARS, 0, RUN(ended) },
    { "exit_code", LF_COLUMN_INT, 0, RUN(exit_code) },
    { "model_type", LF_COLUMN_TEXT, 0, RUN(model_type) },
    { "config_sha256", LF_COLUMN_TEXT, 0, RUN(config_sha256) },
    { "weights_id", LF_COLUMN_TEXT, 0, RUN(weights_id) },
    { "numerics", LF_COLUMN_TEXT, 0, RUN(numerics) },
    { "kv_dtype", LF_COLUMN_TEXT, 0, RUN(kv_dtype) },
    { "device", LF_COLUMN_TEXT, 0, RUN(device) },
    { "num_ranks", LF_COLUMN_INT, 0, SUM(ranks) },
    { "dp", LF_COLUMN_SMALL, 0, RUN(grid.dp) },
    { "pcp", LF_COLUMN_SMALL, 0, RUN(grid.pcp) },
    { "tp", LF_COLUMN_SMALL, 0, RUN(grid.tp) },
    { "tile", LF_COLUMN_INT, 0, RUN(tile) },
    { "successful_requests", LF_COLUMN_INT, 0, SUM(successful) },
    { "failed_requests", LF_COLUMN_INT, 0, SUM(failed) },
    { "skipped_requests", LF_COLUMN_INT, 0, SUM(skipped) },
    { "remaining_requests", LF_COLUMN_INT, 0, RUN(remaining) },
    { "total_input_tokens", LF_COLUMN_INT, 0, SUM(tokens) },
    { "total_file_bytes", LF_COLUMN_INT, 0, SUM(file_bytes) },
    { "load_s", LF_COLUMN_REAL, 6, RUN(load_s) },
    { "load_bytes", LF_COLUMN_INT, 0, SUM(load_bytes) },
    { "load_throughput", LF_COLUMN_REAL, 0, SUM(load_rate) },
    { "tokenize_s", LF_COLUMN_REAL, 6, RUN(tokenize_s) },
    { "total_compute_s", LF_COLUMN_REAL, 6, SUM(compute_s) },
    { "total_latency", LF_COLUMN_REAL, 6, RUN(total_latency_s) },
    { "request_throughput", LF_COLUMN_REAL, 6, SUM(request_rate) },
    { "input_throughput", LF_COLUMN_REAL, 3, SUM(input_rate) },
    { "input_throughput_per_rank", LF_COLUMN_REAL, 3, SUM(input_rate_rank) },
    { "total_prefill_throughput", LF_COLUMN_REAL, 3, SUM(prefill_rate) },
    { "total_prefill_throughput_per_rank", LF_COLUMN_REAL, 3, SUM(prefill_rate_rank) },
    { "mean_ttft_ms", LF_COLUMN_REAL, 3, SUM(mean_ttft_ms) },
    { "median_ttft_ms", LF_COLUMN_REAL, 3, SUM(median_ttft_ms) },
    { "p99_ttft_ms", LF_COLUMN_REAL, 3, SUM(p99_ttft_ms) },
    { "total_pcp_bytes_sent", LF_COLUMN_INT, 0, SUM(pcp_sent) },
    { "total_pcp_bytes_expected", LF_COLUMN_COUNT, 0, SUM(pcp_expected) },
    { "pcp_bytes_per_token_c4", LF_COLUMN_REAL, 4, RUN(pcp_token_c4) },
    { "pcp_bytes_per_token_c128", LF_COLUMN_REAL, 4, RUN(pcp_token_c128) },
    { "pcp_halo_bytes", LF_COLUMN_COUNT, 0, RUN(pcp_halo) },
    { .key = NULL }
};

const lf_column lf_rank_columns[] = {
    { "rank", LF_COLUMN_INT, 0, RANK(rank) },
    { "host", LF_COLUMN_CHARS, 0, RANK(host) },
    { "device_name", LF_COLUMN_CHARS, 0, RANK(device) },
    { "prompts_taken", LF_COLUMN_INT, 0, RANK(prompts) },
    { "tokens_taken", LF_COLUMN_INT, 0, RANK(tokens) },
    { "busy_s", LF_COLUMN_REAL, 6, RANK(compute_s) },
    LF_PHASE_COLUMNS(RANK(phase_s)),
    { "exchange_s", LF_COLUMN_REAL, 6, RANK(exchange_s) },
    { "world_bytes_sent", LF_COLUMN_INT, 0, SENT(LF_COMM_WORLD) },
    { "world_bytes_received", LF_COLUMN_INT, 0, RECEIVED(LF_COMM_WORLD) },
    { "dp_bytes_sent", LF_COLUMN_INT, 0, SENT(LF_COMM_DP) },
    { "dp_bytes_received", LF_COLUMN_INT, 0, RECEIVED(LF_COMM_DP) },
    { "pcp_bytes_sent", LF_COLUMN_INT, 0, SENT(LF_COMM_PCP) },
    { "pcp_bytes_expected", LF_COLUMN_COUNT, 0, RANK(pcp_expected) },
    { "pcp_bytes_received", LF_COLUMN_INT, 0, RECEIVED(LF_COMM_PCP) },
    { "tp_bytes_sent", LF_COLUMN_INT, 0, SENT(LF_COMM_TP) },
    { "tp_bytes_received", LF_COLUMN_INT, 0, RECEIVED(LF_COMM_TP) },
    { "ep_bytes_sent", LF_COLUMN_INT, 0, SENT(LF_COMM_EP) },
    { "ep_bytes_received", LF_COLUMN_INT, 0, RECEIVED(LF_COMM_EP) },
    { "rank_load_bytes", LF_COLUMN_INT, 0, RANK(load_bytes) },
    { "peak_host_bytes", LF_COLUMN_INT, 0, RANK(peak_host_bytes) },
    { "peak_device_bytes", LF_COLUMN_INT, 0, RANK(peak_device_bytes) },
    { .key = NULL }
};

const lf_column lf_row_columns[] = {
    { "custom_id", LF_COLUMN_TEXT, 0, ROW(row.id) },
    { "status", LF_COLUMN_STATUS, 0, ROW(row.status) },
    { "input_tokens", LF_COLUMN_INT, 0, ROW(row.tokens) },
    { "by_rank", LF_COLUMN_SMALL, 0, ROW(row.rank) },
    { "ttft_ms", LF_COLUMN_REAL, 3, ROW(ttft_ms) },
    { "compute_s", LF_COLUMN_REAL, 6, ROW(compute_s) },
    { "durable_s", LF_COLUMN_REAL, 6, ROW(durable_s) },
    { "prefill_throughput", LF_COLUMN_REAL, 3, ROW(rate) },
    { "file_bytes", LF_COLUMN_INT, 0, ROW(row.file_bytes) },
    { .key = NULL }
};

static double shown_only(const lf_report_row *row, double v)
{
    return row->status == LF_PROMPT_OK ? v : NAN;
}

void lf_row_show(lf_row_shown *s, const lf_report_row *row)
{
    s->row = *row;
    s->ttft_ms = shown_only(row, 1e3 * row->ttft_s);
    s->compute_s = shown_only(row, row->compute_s);
    s->durable_s = shown_only(row, row->durable_s);
    s->rate = shown_only(row, row->compute_s > 0 ? (double)row->tokens / row->compute_s : NAN);
}

static const char *status_name(lf_report_status s)
{
    return s == LF_PROMPT_OK ? "ok" : s == LF_PROMPT_FAILED ? "failed" : "skipped";
}

char *lf_column_text(const lf_column *c, const void *base)
{
    const char *at = (const char *)base + c->at;
    const char *text;

    switch (c->type) {
    case LF_COLUMN_TEXT:
        text = *(const char *const *)at;
        return text ? lf_strdup(text) : NULL;
    case LF_COLUMN_CHARS:
        return *at ? lf_strdup(at) : NULL;
    case LF_COLUMN_INT:
        return lf_printf("%lld", (long long)*(const int64_t *)at);
    case LF_COLUMN_COUNT:
        return *(const int64_t *)at < 0 ? NULL : lf_printf("%lld", (long long)*(const int64_t *)at);
    case LF_COLUMN_SMALL:
        return lf_printf("%d", *(const int *)at);
    case LF_COLUMN_STATUS:
        return lf_strdup(status_name(*(const lf_report_status *)at));
    case LF_COLUMN_REAL:
        return isfinite(*(const double *)at) ? lf_printf("%.*f", c->decimals, *(const double *)at) : NULL;
    }
    return NULL;
}

json_t *lf_column_json(const lf_column *c, const void *base)
{
    char *text = lf_column_text(c, base);
    json_t *j;

    if (!text)
        return json_null();
    if (c->type == LF_COLUMN_INT || c->type == LF_COLUMN_COUNT || c->type == LF_COLUMN_SMALL)
        j = json_integer(strtoll(text, NULL, 10));
    else if (c->type == LF_COLUMN_REAL)
        j = json_real(strtod(text, NULL));
    else
        j = json_string(text);
    free(text);
    return j ? j : json_null();
}
