/* SPDX-License-Identifier: Apache-2.0 */
#include "report_columns.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What fits a terminal; the CSV and JSON forms have everything. */
enum { TEXT_RANKS = 6, TEXT_PROMPTS = 50, TEXT_ID = 32 };

/* ---- JSON ---- */

void lf_columns_json(json_t *object, const lf_column *c, const void *base)
{
    for (; c->key; c++)
        json_object_set_new(object, c->key, lf_column_json(c, base));
}

static json_t *ranks_json(const lf_report *r)
{
    json_t *a = json_array();

    for (int64_t i = 0; i < r->ranks; i++) {
        json_t *o = json_object();
        lf_columns_json(o, lf_rank_columns, &r->rank[i]);
        json_array_append_new(a, o);
    }
    return a;
}

static json_t *prompts_json(const lf_report *r)
{
    json_t *a = json_array();
    lf_row_shown s;

    for (int64_t i = 0; i < r->rows; i++) {
        json_t *o = json_object();
        lf_row_show(&s, &r->row[i]);
        lf_columns_json(o, lf_row_columns, &s);
        json_array_append_new(a, o);
    }
    return a;
}

json_t *lf_report_json(const lf_report *r)
{
    json_t *o = json_object();

    lf_columns_json(o, lf_report_columns, r);
    json_object_set(o, "argv", r->argv);
    json_object_set(o, "config", r->config);
    json_object_set(o, "libraries", r->libraries);
    json_object_set_new(o, "ranks", ranks_json(r));
    json_object_set_new(o, "prompts", prompts_json(r));
    return o;
}

static void json_print(FILE *out, const lf_report *r)
{
    json_t *o = lf_report_json(r);

    json_dumpf(o, out, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    fputc('\n', out);
    json_decref(o);
}

/* ---- CSV: scope,of,key,value; `of` is the rank or the custom_id ---- */

void lf_csv_field(FILE *out, const char *text)
{
    if (!strpbrk(text, ",\"\n\r")) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text; text++)
        fprintf(out, *text == '"' ? "\"\"" : "%c", *text);
    fputc('"', out);
}

static void columns_csv(FILE *out, const char *scope, const char *of, const lf_column *c, const void *base)
{
    for (; c->key; c++) {
        char *text = lf_column_text(c, base);
        fprintf(out, "%s,", scope);
        lf_csv_field(out, of);
        fprintf(out, ",%s,", c->key);
        lf_csv_field(out, text ? text : "");
        fputc('\n', out);
        free(text);
    }
}

static void csv_print(FILE *out, const lf_report *r)
{
    lf_row_shown s;
    char name[24];

    fputs("scope,of,key,value\n", out);
    columns_csv(out, "run", "", lf_report_columns, r);
    for (int64_t i = 0; i < r->ranks; i++) {
        snprintf(name, sizeof name, "%lld", (long long)r->rank[i].rank);
        columns_csv(out, "rank", name, lf_rank_columns, &r->rank[i]);
    }
    for (int64_t i = 0; i < r->rows; i++) {
        lf_row_show(&s, &r->row[i]);
        columns_csv(out, "prompt", s.row.id, lf_row_columns, &s);
    }
}

/* ---- text: the run and the ranks with a line per key, the prompts with a line each ---- */

static void cell(FILE *out, const lf_column *c, const void *base, int width)
{
    char *text = lf_column_text(c, base);

    fprintf(out, "  %*s", width, text ? text : "-");
    free(text);
}

static void run_text(FILE *out, const lf_report *r)
{
    for (const lf_column *c = lf_report_columns; c->key; c++) {
        fprintf(out, "%-34s", c->key);
        cell(out, c, r, 1);
        fputc('\n', out);
    }
}

static void ranks_text(FILE *out, const lf_report *r)
{
    int64_t n = lf_min(r->ranks, TEXT_RANKS);

    for (const lf_column *c = lf_rank_columns; n && c->key; c++) {
        fprintf(out, "%s%-22s", c == lf_rank_columns ? "\n" : "", c->key);
        for (int64_t i = 0; i < n; i++)
            cell(out, c, &r->rank[i], 14);
        fputc('\n', out);
    }
    if (n < r->ranks)
        fprintf(out, "(%lld more rank%s: see the JSON report)\n", (long long)(r->ranks - n), lf_s(r->ranks - n));
}

static int column_width(const lf_column *c)
{
    int n = (int)strlen(c->key);

    return n > 12 ? n : 12;
}

static void prompts_text(FILE *out, const lf_report *r)
{
    int64_t n = lf_min(r->rows, TEXT_PROMPTS);
    lf_row_shown s;

    for (const lf_column *c = lf_row_columns; n && c->key; c++)
        fprintf(out, c == lf_row_columns ? "\n%-*s" : "  %*s",
                c == lf_row_columns ? TEXT_ID : column_width(c), c->key);
    fputs(n ? "\n" : "", out);
    for (int64_t i = 0; i < n; i++) {
        lf_row_show(&s, &r->row[i]);
        fprintf(out, "%-*s", TEXT_ID, s.row.id);
        for (const lf_column *c = lf_row_columns + 1; c->key; c++)
            cell(out, c, &s, column_width(c));
        fputc('\n', out);
    }
    if (n < r->rows)
        fprintf(out, "(%lld more prompt%s: see the JSON report)\n", (long long)(r->rows - n), lf_s(r->rows - n));
}

int lf_report_print(FILE *out, const lf_report *r, int format, lf_err *err)
{
    if (format == LF_FORMAT_JSON) {
        json_print(out, r);
    } else if (format == LF_FORMAT_CSV) {
        csv_print(out, r);
    } else {
        run_text(out, r);
        ranks_text(out, r);
        prompts_text(out, r);
    }
    return fflush(out) || ferror(out) ? lf_fail(err, "the report cannot be printed: %s", strerror(errno)) : 0;
}
