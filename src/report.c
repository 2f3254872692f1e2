/* SPDX-License-Identifier: Apache-2.0 */
#include "report_columns.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

void lf_report_init(lf_report *r)
{
    memset(r, 0, sizeof *r);
    r->schema = LF_REPORT_SCHEMA;
    r->config = json_object();
    r->argv = json_array();
    r->libraries = json_object();
    r->pcp_token_c4 = r->pcp_token_c128 = NAN;
    r->pcp_halo = -1;
    lf_report_clock(r->started);
}

void lf_report_free(lf_report *r)
{
    for (int64_t i = 0; i < r->rows; i++)
        free((char *)(uintptr_t)r->row[i].id);
    free(r->row);
    free(r->rank);
    json_decref(r->config);
    json_decref(r->argv);
    json_decref(r->libraries);
    memset(r, 0, sizeof *r);
}

/* What is not UTF-8 (a path, say) still has to go into a JSON file. */
static json_t *text_json(const char *text)
{
    json_t *j = json_string(text);

    return j ? j : json_string("(not UTF-8)");
}

void lf_report_options(lf_report *r, const lf_options *o)
{
    json_array_append_new(r->argv, json_string("longfill"));
    json_array_append_new(r->argv, json_string(o->command));
    for (int i = 0; i < o->argc; i++)
        json_array_append_new(r->argv, text_json(o->argv[i]));
    json_decref(r->config);
    r->config = lf_options_json(o);
}

void lf_report_library(lf_report *r, const char *name, const char *version)
{
    json_object_set_new(r->libraries, name, text_json(version));
}

/* Room for one more, doubling: the count alone says when it is full. */
static void *grown(void *v, int64_t n, size_t size)
{
    if (n & (n - 1))
        return v;
    return lf_realloc(v, (size_t)(n ? 2 * n : 1) * size);
}

void lf_report_prompt(lf_report *r, const lf_report_row *row)
{
    r->row = grown(r->row, r->rows, sizeof *r->row);
    r->row[r->rows] = *row;
    r->row[r->rows++].id = lf_strdup(row->id);
}

void lf_report_add_rank(lf_report *r, const lf_report_rank *rank)
{
    r->rank = grown(r->rank, r->ranks, sizeof *r->rank);
    r->rank[r->ranks++] = *rank;
}

void lf_report_clock(char text[32])
{
    time_t now = time(NULL);
    struct tm t;

    gmtime_r(&now, &t);
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &t);
}

int64_t lf_report_peak_host(void)
{
    struct rusage u;

    return getrusage(RUSAGE_SELF, &u) ? 0 : (int64_t)u.ru_maxrss * 1024;
}

/* ---- totals ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void ttft_sum(lf_report *r)
{
    lf_report_totals *s = &r->sum;
    double *ms = lf_alloc((size_t)r->rows * sizeof *ms), total = 0;
    int64_t n = 0;

    for (int64_t i = 0; i < r->rows; i++)
        if (r->row[i].status == LF_PROMPT_OK && isfinite(r->row[i].ttft_s))
            total += ms[n++] = 1e3 * r->row[i].ttft_s;
    s->mean_ttft_ms = s->median_ttft_ms = s->p99_ttft_ms = NAN;
    if (n) {
        qsort(ms, (size_t)n, sizeof *ms, ascending);
        s->mean_ttft_ms = total / (double)n;
        s->median_ttft_ms = (ms[(n - 1) / 2] + ms[n / 2]) / 2;
        s->p99_ttft_ms = ms[lf_ceil_div(99 * n, 100) - 1];
    }
    free(ms);
}

static void rows_sum(lf_report *r)
{
    lf_report_totals *s = &r->sum;

    for (int64_t i = 0; i < r->rows; i++) {
        const lf_report_row *row = &r->row[i];
        s->successful += row->status == LF_PROMPT_OK;
        s->failed += row->status == LF_PROMPT_FAILED;
        s->skipped += row->status == LF_PROMPT_SKIPPED;
        s->tokens += row->status == LF_PROMPT_OK ? row->tokens : 0;
        s->file_bytes += row->status == LF_PROMPT_OK ? row->file_bytes : 0;
    }
}

static void ranks_sum(lf_report *r)
{
    lf_report_totals *s = &r->sum;
    int known = 1;

    for (int64_t i = 0; i < r->ranks; i++) {
        const lf_report_rank *rank = &r->rank[i];
        s->compute_s = fmax(s->compute_s, rank->compute_s);
        s->load_bytes += rank->load_bytes;
        s->pcp_sent += rank->sent[LF_COMM_PCP];
        s->pcp_expected += rank->pcp_expected;
        known = known && rank->pcp_expected >= 0;
    }
    s->pcp_expected = known ? s->pcp_expected : -1;
}

static double rate(double what, double seconds)
{
    return seconds > 0 ? what / seconds : NAN;
}

void lf_report_finish(lf_report *r)
{
    lf_report_totals *s = &r->sum;

    *s = (lf_report_totals){ .ranks = r->ranks };
    rows_sum(r);
    ttft_sum(r);
    ranks_sum(r);
    s->load_rate = s->load_bytes ? rate((double)s->load_bytes, r->load_s) : NAN;
    s->request_rate = rate((double)s->successful, r->total_latency_s);
    s->input_rate = rate((double)s->tokens, r->total_latency_s);
    s->prefill_rate = rate((double)s->tokens, s->compute_s);
    s->input_rate_rank = r->ranks ? s->input_rate / (double)r->ranks : NAN;
    s->prefill_rate_rank = r->ranks ? s->prefill_rate / (double)r->ranks : NAN;
    lf_report_clock(r->ended);
}

const char *lf_report_key(int i)
{
    static const char *const blocks[] = { "argv", "config", "libraries", "ranks", "prompts", NULL };
    static const lf_column *const tables[] = { lf_report_columns, lf_rank_columns, lf_row_columns };

    for (int t = 0; t < 3; t++)
        for (const lf_column *c = tables[t]; c->key; c++)
            if (i-- == 0)
                return c->key;
    return i < 5 ? blocks[i] : NULL;
}
