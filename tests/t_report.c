/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"
#include "report.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void fill(lf_report *r, int prompts)
{
    lf_report_rank rank = { .rank = 0, .host = "node1", .device = "CPU", .prompts = 3, .tokens = 700,
                            .compute_s = 4, .load_bytes = 1000, .peak_host_bytes = 123456789 };

    lf_report_init(r);
    r->version = "9.9";
    r->model_type = "deepseek_v4";
    r->total_latency_s = 8;
    r->load_s = 0.25;
    r->grid = (lf_grid){ .dp = 2, .pcp = 1, .tp = 1 };
    for (int p = 0; p < LF_PHASES; p++)
        rank.phase_s[p] = 0.5 + p;
    for (int c = 0; c < LF_COMMS; c++) {
        rank.sent[c] = 10000000000 + c;
        rank.received[c] = 500 + c;
    }
    rank.pcp_expected = rank.sent[LF_COMM_PCP];
    r->pcp_token_c4 = 163;
    r->pcp_token_c128 = 4.5625;
    r->pcp_halo = 150528;
    lf_report_add_rank(r, &rank);
    rank.rank = 1;
    rank.compute_s = 5;
    lf_report_add_rank(r, &rank);
    for (int i = 0; i < prompts; i++) {
        char id[16];
        snprintf(id, sizeof id, "p%d", i);
        lf_report_prompt(r, &(lf_report_row){ .id = id,
                                              .tokens = 100,
                                              .rank = i % 2,
                                              .ttft_s = 0.001 * (i + 1),
                                              .compute_s = 0.5,
                                              .durable_s = 1,
                                              .file_bytes = 1000 });
    }
    lf_report_prompt(r, &(lf_report_row){ .id = "bad, \"one\"", .tokens = 77, .status = LF_PROMPT_FAILED });
    lf_report_prompt(r,
                     &(lf_report_row){ .id = "old", .tokens = 78, .rank = -1, .status = LF_PROMPT_SKIPPED });
    lf_report_library(r, "jansson", JANSSON_VERSION);
    lf_report_finish(r);
}

static char *printed(const lf_report *r, int format)
{
    char *text;
    size_t n;
    lf_err err = { "" };
    FILE *f = open_memstream(&text, &n);

    TAP_CHECK(lf_report_print(f, r, format, &err) == 0, "printed %s", err.text);
    fclose(f);
    return text;
}

static void test_totals(void)
{
    lf_report r;

    fill(&r, 4);
    TAP_CHECK(r.sum.successful == 4 && r.sum.failed == 1 && r.sum.skipped == 1, "counted by status");
    TAP_CHECK(r.sum.tokens == 400 && r.sum.file_bytes == 4000, "only finished prompts count");
    TAP_NEAR(r.sum.request_rate, 0.5, 1e-12, "requests over latency");
    TAP_NEAR(r.sum.input_rate, 50, 1e-12, "tokens over latency");
    TAP_NEAR(r.sum.input_rate_rank, 25, 1e-12, "per rank");
    TAP_NEAR(r.sum.prefill_rate, 80, 1e-12, "tokens over the busiest rank's compute time");
    TAP_CHECK(r.sum.load_bytes == 2000, "bytes of weights of both ranks");
    TAP_NEAR(r.sum.load_rate, 8000, 1e-9, "over the seconds of loading");
    TAP_NEAR(r.sum.mean_ttft_ms, 2.5, 1e-12, "mean");
    TAP_NEAR(r.sum.median_ttft_ms, 2.5, 1e-12, "median of an even number");
    TAP_NEAR(r.sum.p99_ttft_ms, 4, 1e-12, "p99 of four is the largest");
    lf_report_free(&r);
    fill(&r, 200);
    TAP_NEAR(r.sum.p99_ttft_ms, 198, 1e-9, "p99 of 1..200 is 198");
    TAP_NEAR(r.sum.median_ttft_ms, 100.5, 1e-9, "median of 1..200");
    lf_report_free(&r);
    fill(&r, 1);
    TAP_NEAR(r.sum.median_ttft_ms, 1, 1e-12, "median of one");
    lf_report_free(&r);
}

/* A number's text in CSV: what stands after "scope,of,key,". */
static const char *csv_value(const char *csv, const char *scope, const char *of, const char *key,
                             char buf[128])
{
    char *lead = lf_printf("\n%s,%s,%s,", scope, of, key);
    const char *at = strstr(csv, lead);

    snprintf(buf, 128, "%.*s", at ? (int)strcspn(at + strlen(lead), "\n") : 1, at ? at + strlen(lead) : "?");
    free(lead);
    return buf;
}

/* The JSON value as CSV would have it, compared as numbers where it is one. */
static int same(const json_t *j, const char *text)
{
    if (json_is_null(j))
        return !*text;
    if (json_is_string(j))
        return !strcmp(json_string_value(j), text);
    return json_is_number(j) && *text && json_number_value(j) == strtod(text, NULL);
}

static int objects_agree(json_t *o, const char *csv, const char *scope, const char *of)
{
    const char *key;
    char buf[128];
    json_t *v;
    int n = 0, bad = 0;

    json_object_foreach(o, key, v) {
        if (json_is_object(v) || json_is_array(v))
            continue;
        TAP_QUIET(bad, same(v, csv_value(csv, scope, of, key, buf)), "%s %s %s: CSV has %s", scope, of, key,
                  buf);
        n++;
    }
    TAP_CHECK(bad == 0 && n > 5, "%s %s: %d values agree between JSON and CSV", scope, of, n);
    return n;
}

/* The text form: every run key on a line of its own with the CSV's value, or "-". */
static void text_agrees(json_t *o, const char *csv, const char *text)
{
    const char *key;
    char buf[128], shown[128];
    json_t *v;
    int bad = 0;

    json_object_foreach(o, key, v) {
        if (json_is_object(v) || json_is_array(v))
            continue;
        csv_value(csv, "run", "", key, buf);
        char *lead = lf_printf("%-34s  ", key);
        const char *at = strstr(text, lead);
        snprintf(shown, sizeof shown, "%.*s", at ? (int)strcspn(at + strlen(lead), "\n") : 1,
                 at ? at + strlen(lead) : "?");
        TAP_QUIET(bad, !strcmp(shown, *buf ? buf : "-"), "%s: text has %s, CSV %s", key, shown, buf);
        free(lead);
    }
    TAP_CHECK(bad == 0, "the text form has the same values");
}

/* Every phase and both directions of every communicator, of every rank, in the text form too. */
static void every_rank_key(json_t *o, const char *text)
{
    static const char *const comm[LF_COMMS] = { "world", "dp", "pcp", "tp", "ep" };
    json_t *rank = json_array_get(json_object_get(o, "ranks"), 1);
    int bad = 0;

    for (int i = 0; i < LF_PHASES + 2 * LF_COMMS; i++) {
        int c = (i - LF_PHASES) / 2;
        char *key = i < LF_PHASES ? lf_printf("%s_s", lf_phase_name((lf_phase)i))
                                  : lf_printf("%s_bytes_%s", comm[c], (i - LF_PHASES) % 2 ? "received" : "sent");
        double want = i < LF_PHASES ? 0.5 + i : (i - LF_PHASES) % 2 ? 500 + c : 10000000000. + c;
        const char *form = i < LF_PHASES ? "\n%-22s  %14.6f  %14.6f\n" : "\n%-22s  %14.0f  %14.0f\n";
        char *line = lf_printf(form, key, want, want);
        TAP_QUIET(bad, json_number_value(json_object_get(rank, key)) == want, "JSON: %s", key);
        TAP_QUIET(bad, strstr(text, line), "text: %s", key);
        free(line);
        free(key);
    }
    TAP_CHECK(bad == 0, "time per phase and bytes per communicator");
}

static void test_formats(void)
{
    json_error_t where;
    lf_report r;

    fill(&r, 3);
    char *csv = printed(&r, LF_FORMAT_CSV), *json = printed(&r, LF_FORMAT_JSON),
         *text = printed(&r, LF_FORMAT_TEXT);
    json_t *o = json_loads(json, JSON_REJECT_DUPLICATES, &where);
    TAP_CHECK(o != NULL, "the JSON form parses");
    objects_agree(o, csv, "run", "");
    objects_agree(json_array_get(json_object_get(o, "ranks"), 1), csv, "rank", "1");
    objects_agree(json_array_get(json_object_get(o, "prompts"), 2), csv, "prompt", "p2");
    objects_agree(json_array_get(json_object_get(o, "prompts"), 4), csv, "prompt", "old");
    text_agrees(o, csv, text);
    json_t *bad = json_array_get(json_object_get(o, "prompts"), 3);
    TAP_CHECK(json_is_null(json_object_get(bad, "ttft_ms")) &&
                  strstr(csv, "\nprompt,\"bad, \"\"one\"\"\",status,failed\n"),
              "a failed prompt has no TTFT; CSV quotes its id");
    TAP_CHECK(json_integer_value(json_object_get(json_array_get(json_object_get(o, "ranks"), 0),
                                                 "dp_bytes_sent")) == 10000000001,
              "bytes are exact");
    TAP_CHECK(strstr(text, "\nmoe_s") && strstr(text, "        3.500000        3.500000\n"),
              "phases in the text form");
    every_rank_key(o, text);
    TAP_CHECK(json_integer_value(json_object_get(o, "total_pcp_bytes_sent")) == 20000000004 &&
                  json_integer_value(json_object_get(o, "total_pcp_bytes_expected")) == 20000000004 &&
                  json_number_value(json_object_get(o, "pcp_bytes_per_token_c128")) == 4.5625,
              "pcp bytes stand beside what they should be");
    TAP_CHECK(json_object_size(json_object_get(o, "libraries")) == 1, "libraries");
    json_decref(o);
    free(csv);
    free(json);
    free(text);
    lf_report_free(&r);
}

static void test_many(void)
{
    lf_report r;

    fill(&r, 60);
    char *text = printed(&r, LF_FORMAT_TEXT), *csv = printed(&r, LF_FORMAT_CSV);
    TAP_CHECK(strstr(text, "\np49 ") && !strstr(text, "\np50 ") && strstr(text, "(12 more prompts"),
              "the text form stops at 50 prompts and says so");
    TAP_CHECK(strstr(csv, "\nprompt,p59,ttft_ms,60.000\n") != NULL, "the CSV form does not");
    free(text);
    free(csv);
    lf_report_free(&r);
}

/* No prompt at all: nothing is divided by nothing. */
static void test_empty(void)
{
    char buf[128];
    lf_report r;

    lf_report_init(&r);
    lf_report_finish(&r);
    char *csv = printed(&r, LF_FORMAT_CSV), *text = printed(&r, LF_FORMAT_TEXT);
    TAP_CHECK(!strcmp(csv_value(csv, "run", "", "mean_ttft_ms", buf), "") && !strstr(csv, "nan"),
              "no TTFT, no nan");
    TAP_CHECK(!strcmp(csv_value(csv, "run", "", "pcp_halo_bytes", buf), "") &&
                  !strcmp(csv_value(csv, "run", "", "pcp_bytes_per_token_c4", buf), ""),
              "where no rows travel there is no size of them");
    TAP_CHECK(!strcmp(csv_value(csv, "run", "", "successful_requests", buf), "0") && !strstr(text, "nan"),
              "zero is 0");
    free(csv);
    free(text);
    lf_report_free(&r);
}

static void test_options(void)
{
    char *argv[] = { "-m", "M", "-i", "\xff", "-o", "O", "--numerics=exact" };
    lf_options o;
    lf_report r;
    lf_err err;

    lf_options_parse(&o, "prefill", 7, argv, &err);
    lf_report_init(&r);
    lf_report_options(&r, &o);
    TAP_CHECK(json_array_size(r.argv) == 9 &&
                  !strcmp(json_string_value(json_array_get(r.argv, 1)), "prefill"),
              "argv");
    TAP_CHECK(!strcmp(json_string_value(json_object_get(r.config, "numerics")), "exact"), "the config block");
    TAP_CHECK(!strcmp(json_string_value(json_array_get(r.argv, 5)), "(not UTF-8)"), "what JSON cannot say");
    lf_report_free(&r);
    lf_options_free(&o);
}

static void test_write(void)
{
    char dir[] = "/tmp/lf_report_XXXXXX", *name[3];
    json_error_t where;
    lf_report r;
    lf_err err;

    if (!TAP_CHECK(mkdtemp(dir) != NULL, "a directory"))
        return;
    char *path = lf_printf("%s/report.json", dir), *second = lf_printf("%s/report-2.json", dir);
    char *bare = lf_printf("%s/run.d", dir), *nowhere = lf_printf("%s/none/report.json", dir);
    fill(&r, 2);
    TAP_CHECK(!lf_report_write(&r, path, &name[0], &err) && !strcmp(name[0], path),
              "the first is report.json");
    TAP_CHECK(!lf_report_write(&r, path, &name[1], &err) && !strcmp(name[1], second),
              "the second is report-2.json");
    TAP_CHECK(!lf_report_write(&r, path, &name[2], &err) && strstr(name[2], "/report-3.json"),
              "then report-3.json");
    for (int i = 0; i < 3; i++) {
        json_t *o = json_load_file(name[i], 0, &where);
        TAP_CHECK(json_integer_value(json_object_get(o, "successful_requests")) == 2, "it parses");
        json_decref(o);
        unlink(name[i]);
        free(name[i]);
    }
    mkdir(bare, 0700);
    TAP_CHECK(!lf_report_write(&r, bare, &name[0], &err) && strstr(name[0], "/run-2.d"),
              "a directory counts as taken");
    unlink(name[0]);
    free(name[0]);
    rmdir(bare);
    TAP_CHECK(lf_report_write(&r, nowhere, NULL, &err) == -1 && strstr(err.text, "No such file"),
              "no directory: %s", err.text);
    TAP_CHECK(rmdir(dir) == 0, "nothing else was left behind");
    lf_report_free(&r);
    free(path);
    free(second);
    free(bare);
    free(nowhere);
}

/* man/longfill.1, section REPORT: a .TP and a .B line for every key, and for nothing else. */
static void test_manual(void)
{
    const char *src = getenv("srcdir");
    char *path = lf_printf("%s/../man/longfill.1", src ? src : "."), *page;
    int keys = 0, tags = 0, bad = 0;
    lf_err err = { "" };

    if (!TAP_CHECK(!lf_file_read(path, 1 << 20, &page, NULL, &err), "the manual page %s", err.text)) {
        free(path);
        return;
    }
    char *section = strstr(page, "\n.SH REPORT\n"), *end = section ? strstr(section + 1, "\n.SH ") : NULL;
    if (TAP_CHECK(section && end, "it has a section REPORT and goes on")) {
        *end = 0;
        for (; lf_report_key(keys); keys++) {
            char *tag = lf_printf("\n.TP\n.B %s\n", lf_report_key(keys)), *at = strstr(section, tag);
            TAP_QUIET(bad, at && at[strlen(tag)] && at[strlen(tag)] != '.', "%s is not defined",
                      lf_report_key(keys));
            free(tag);
        }
        for (char *at = section; (at = strstr(at, "\n.TP\n")); at++)
            tags++;
        TAP_CHECK(bad == 0 && tags == keys, "it defines %d keys of %d", tags, keys);
    }
    free(page);
    free(path);
}

int main(void)
{
    int keys = 0, bad = 0;

    test_totals();
    test_formats();
    test_many();
    test_empty();
    test_options();
    test_write();
    test_manual();
    for (; lf_report_key(keys); keys++)
        for (int i = 0; i < keys; i++)
            TAP_QUIET(bad, strcmp(lf_report_key(i), lf_report_key(keys)), "%s stands twice",
                      lf_report_key(i));
    TAP_CHECK(bad == 0 && keys > 60, "%d keys, each with one meaning", keys);
    return tap_done();
}
