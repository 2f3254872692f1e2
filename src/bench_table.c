/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "report_columns.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RUN(field) offsetof(lf_bench, field)
#define CELL(field) offsetof(lf_bench_cell, field)

static const lf_column run_columns[] = {
    { "schema_version", LF_COLUMN_INT, 0, RUN(schema) },
    { "longfill_version", LF_COLUMN_TEXT, 0, RUN(version) },
    { "started", LF_COLUMN_CHARS, 0, RUN(job.started) },
    { "model_type", LF_COLUMN_TEXT, 0, RUN(model_type) },
    { "config_sha256", LF_COLUMN_TEXT, 0, RUN(config_sha256) },
    { "weights", LF_COLUMN_TEXT, 0, RUN(weights) },
    { "weights_id", LF_COLUMN_TEXT, 0, RUN(weights_id) },
    { "numerics", LF_COLUMN_TEXT, 0, RUN(numerics) },
    { "kv_dtype", LF_COLUMN_TEXT, 0, RUN(kv_dtype) },
    { "pcp_attention", LF_COLUMN_TEXT, 0, RUN(pcp_attention) },
    { "device", LF_COLUMN_CHARS, 0, RUN(device) },
    { "device_name", LF_COLUMN_CHARS, 0, RUN(device_name) },
    { "num_ranks", LF_COLUMN_INT, 0, RUN(ranks) },
    { "repeat", LF_COLUMN_INT, 0, RUN(repeat) },
    { "seed", LF_COLUMN_INT, 0, RUN(seed) },
    { .key = NULL }
};

static const lf_column cell_columns[] = {
    { "length", LF_COLUMN_INT, 0, CELL(length) },
    { "grid", LF_COLUMN_CHARS, 0, CELL(grid.name) },
    { "dp", LF_COLUMN_SMALL, 0, CELL(grid.dp) },
    { "pcp", LF_COLUMN_SMALL, 0, CELL(grid.pcp) },
    { "tp", LF_COLUMN_SMALL, 0, CELL(grid.tp) },
    { "ranks", LF_COLUMN_INT, 0, CELL(ranks) },
    { "tile", LF_COLUMN_INT, 0, CELL(tile) },
    { "load_s", LF_COLUMN_REAL, 6, CELL(load_s) },
    { "ttft_s", LF_COLUMN_REAL, 6, CELL(ttft_s) },
    { "ttft_min_s", LF_COLUMN_REAL, 6, CELL(ttft_min_s) },
    { "ttft_max_s", LF_COLUMN_REAL, 6, CELL(ttft_max_s) },
    { "prefill_throughput", LF_COLUMN_REAL, 3, CELL(rate) },
    { "prefill_throughput_min", LF_COLUMN_REAL, 3, CELL(rate_min) },
    { "prefill_throughput_max", LF_COLUMN_REAL, 3, CELL(rate_max) },
    { "prefill_throughput_per_rank", LF_COLUMN_REAL, 3, CELL(rate_rank) },
    { "ttft_reduction_pct", LF_COLUMN_REAL, 3, CELL(ttft_less) },
    { "throughput_gain_pct", LF_COLUMN_REAL, 3, CELL(rate_more) },
    LF_PHASE_COLUMNS(CELL(phase_s)),
    { "exchange_s", LF_COLUMN_REAL, 6, CELL(exchange_s) },
    { "kv_bytes", LF_COLUMN_INT, 0, CELL(kv_bytes) },
    { "pcp_bytes_sent", LF_COLUMN_INT, 0, CELL(pcp_sent) },
    { "pcp_bytes_expected", LF_COLUMN_COUNT, 0, CELL(pcp_expected) },
    { "peak_device_bytes", LF_COLUMN_INT, 0, CELL(peak_device_bytes) },
    { .key = NULL }
};

/* ---- numbers ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts v. */
static void spread(double *v, int n, double *median, double *min, double *max)
{
    qsort(v, (size_t)n, sizeof *v, ascending);
    *median = (v[(n - 1) / 2] + v[n / 2]) / 2;
    *min = v[0];
    *max = v[n - 1];
}

/* Bytes are the same in every pass: those of the last. */
static void pass_add(lf_bench_cell *c, const lf_bench_sample *s, int ranks, double share, double *ttft, double *compute)
{
    c->kv_bytes = c->pcp_sent = c->pcp_expected = 0;
    *ttft = *compute = 0;
    for (int r = 0; r < ranks; r++) {
        *ttft = fmax(*ttft, s[r].ttft_s);
        *compute = fmax(*compute, s[r].compute_s);
        for (int p = 0; p < LF_PHASES; p++)
            c->phase_s[p] += s[r].phase_s[p] * share;
        c->exchange_s += s[r].exchange_s * share;
        c->kv_bytes += s[r].kv_bytes;
        c->pcp_sent += s[r].pcp_sent;
        c->pcp_expected = s[r].pcp_expected < 0 || c->pcp_expected < 0 ? -1 : c->pcp_expected + s[r].pcp_expected;
        c->peak_device_bytes = lf_max(c->peak_device_bytes, s[r].peak_device_bytes);
    }
}

void lf_bench_reduce(lf_bench_cell *c, const lf_bench_sample *s, int passes, int ranks)
{
    double *ttft = lf_alloc(2 * sizeof *ttft * (size_t)passes), *rate = ttft + passes;
    double share = 1 / ((double)passes * (double)c->ranks), compute;

    for (int i = 0; i < passes; i++) {
        pass_add(c, s + (int64_t)i * ranks, ranks, share, &ttft[i], &compute);
        rate[i] = compute > 0 ? (double)c->grid.dp * (double)c->length / compute : NAN;
    }
    spread(ttft, passes, &c->ttft_s, &c->ttft_min_s, &c->ttft_max_s);
    spread(rate, passes, &c->rate, &c->rate_min, &c->rate_max);
    c->rate_rank = c->rate / (double)c->ranks;
    free(ttft);
}

void lf_bench_compare(lf_bench *b)
{
    for (int i = 0; i < b->grids * b->lengths; i++) {
        lf_bench_cell *c = &b->cell[i], *first = &b->cell[i - i % b->grids];
        c->ttft_less = c == first ? NAN : 100 * (1 - c->ttft_s / first->ttft_s);
        c->rate_more = c == first ? NAN : 100 * (c->rate / first->rate - 1);
    }
}

/* ---- JSON, CSV ---- */

static void json_print(FILE *out, const lf_bench *b)
{
    json_t *o = json_object(), *cells = json_array();
    int shared = 0;
    lf_report r;

    for (int i = 0; i < b->grids; i++)
        shared = shared || b->grid[i].pcp * b->grid[i].tp > 1;
    lf_columns_json(o, run_columns, b);
    lf_report_init(&r);
    lf_report_options(&r, b->job.o);
    lf_job_libraries(&r, b->device, shared);
    json_object_set(o, "argv", r.argv);
    json_object_set(o, "config", r.config);
    json_object_set(o, "libraries", r.libraries);
    lf_report_free(&r);
    for (int i = 0; i < b->grids * b->lengths; i++) {
        json_t *c = json_object();
        lf_columns_json(c, cell_columns, &b->cell[i]);
        json_array_append_new(cells, c);
    }
    json_object_set_new(o, "cells", cells);
    json_dumpf(o, out, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    fputc('\n', out);
    json_decref(o);
}

static void csv_print(FILE *out, const lf_bench *b)
{
    for (const lf_column *c = cell_columns; c->key; c++)
        fprintf(out, "%s%s", c == cell_columns ? "" : ",", c->key);
    for (int i = 0; i < b->grids * b->lengths; i++)
        for (const lf_column *c = cell_columns; c->key; c++) {
            char *text = lf_column_text(c, &b->cell[i]);
            fputs(c == cell_columns ? "\n" : ",", out);
            lf_csv_field(out, text ? text : "");
            free(text);
        }
    fputc('\n', out);
}

/* ---- text: a line a length, the grids side by side ---- */

enum { TTFT_WIDTH = 25, RATE_WIDTH = 23, PCT_WIDTH = 10 };

static void spread_text(FILE *out, int width, int decimals, double median, double min, double max)
{
    char *text = lf_printf("%.*f (%.*f..%.*f)", decimals, median, decimals, min, decimals, max);

    fprintf(out, " %*s", width, text);
    free(text);
}

/* Three digits at least, whatever the size. */
static int decimals_of(double v)
{
    return v >= 100 ? 1 : v >= 1 ? 3 : 5;
}

static void cell_text(FILE *out, const lf_bench_cell *c, int compared)
{
    spread_text(out, TTFT_WIDTH, decimals_of(c->ttft_s), c->ttft_s, c->ttft_min_s, c->ttft_max_s);
    spread_text(out, RATE_WIDTH, c->rate >= 100 ? 0 : 2, c->rate, c->rate_min, c->rate_max);
    if (compared)
        fprintf(out, " %+*.1f%% %+*.1f%%", PCT_WIDTH - 1, c->ttft_less, PCT_WIDTH - 1, c->rate_more);
}

static void text_print(FILE *out, const lf_bench *b)
{
    fprintf(out, "%s, %s weights, %s numerics, %lld rank%s of %s; median (least..most) of %lld pass%s\n\n",
            b->model_type, b->weights, b->numerics, (long long)b->ranks, lf_s(b->ranks), b->device_name,
            (long long)b->repeat, b->repeat == 1 ? "" : "es");
    fprintf(out, "%10s", "");
    for (int g = 0; g < b->grids; g++)
        fprintf(out, " %*s", TTFT_WIDTH + 1 + RATE_WIDTH + (g ? 2 * (PCT_WIDTH + 1) : 0), b->grid[g].name);
    fprintf(out, "\n%10s", "length");
    for (int g = 0; g < b->grids; g++) {
        fprintf(out, " %*s %*s", TTFT_WIDTH, "TTFT [s]", RATE_WIDTH, "tok/s");
        if (g)
            fprintf(out, " %*s %*s", PCT_WIDTH, "TTFT less", PCT_WIDTH, "tok/s more");
    }
    for (int i = 0; i < b->grids * b->lengths; i++) {
        if (i % b->grids == 0)
            fprintf(out, "\n%10lld", (long long)b->cell[i].length);
        cell_text(out, &b->cell[i], i % b->grids);
    }
    fputc('\n', out);
}

int lf_bench_print(FILE *out, const lf_bench *b, int format, lf_err *err)
{
    if (format == LF_FORMAT_JSON)
        json_print(out, b);
    else if (format == LF_FORMAT_CSV)
        csv_print(out, b);
    else
        text_print(out, b);
    return fflush(out) || ferror(out) ? lf_fail(err, "the table cannot be printed: %s", strerror(errno)) : 0;
}
