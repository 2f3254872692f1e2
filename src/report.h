/* SPDX-License-Identifier: Apache-2.0
 *
 * report: what a run did and how fast, as text, CSV and JSON from one table of columns.  Floor 5.
 * Every printed key is defined in longfill(1), section REPORT; the names of serving benchmarks are kept where there are
 * any.
 * Rank 0 fills a report and prints it.  Texts that are `const char *` are borrowed and must outlive the report.
 */
#ifndef LF_REPORT_H
#define LF_REPORT_H

#include "grid.h"
#include "options.h"
#include "prefill.h"

enum { LF_REPORT_SCHEMA = 1 };

typedef enum lf_report_status { LF_PROMPT_OK, LF_PROMPT_FAILED, LF_PROMPT_SKIPPED } lf_report_status;

/* One prompt.  Times that do not exist (failed, skipped) are NaN or simply 0: they are not shown. */
typedef struct lf_report_row {
    const char *id;                        /* copied */
    int64_t tokens;
    int rank;                              /* of the dp group's first rank; -1: none took it */
    lf_report_status status;
    double ttft_s;                         /* dispatch to last-token logits in host memory, max over the ranks */
    double compute_s;                      /* the pass, first operation to last; of a shared pass, by tokens */
    double durable_s;                      /* dispatch to the file's final name */
    int64_t file_bytes;
} lf_report_row;

typedef enum lf_report_comm { LF_COMM_WORLD, LF_COMM_DP, LF_COMM_PCP, LF_COMM_TP, LF_COMM_EP, LF_COMMS } lf_report_comm;

/* One rank; no pointers, so that it can be gathered as bytes. */
typedef struct lf_report_rank {
    int64_t rank;
    char host[64], device[96];
    int64_t prompts, tokens;               /* that it had a part in */
    double compute_s;                      /* sum over its passes */
    double phase_s[LF_PHASES];
    double exchange_s;                     /* in exchanges, whatever ran beside them: lf_topo_seconds */
    int64_t sent[LF_COMMS], received[LF_COMMS];       /* payload bytes to and from other ranks */
    int64_t pcp_expected;                  /* sent[LF_COMM_PCP] by traffic.h; negative: not computed (merge mode) */
    int64_t load_bytes;                    /* of weights, read from files to the device; 0: mapped or made up */
    int64_t peak_host_bytes, peak_device_bytes;
} lf_report_rank;

typedef struct lf_report_totals {          /* computed by lf_report_finish */
    int64_t successful, failed, skipped, tokens, file_bytes, ranks;
    int64_t load_bytes;                    /* of all ranks */
    double load_rate;                      /* bytes a second over load_s; NaN: nothing was read */
    int64_t pcp_sent, pcp_expected;        /* of all ranks; pcp_expected negative: of some it is not known */
    double compute_s, request_rate, input_rate, input_rate_rank, prefill_rate, prefill_rate_rank;
    double mean_ttft_ms, median_ttft_ms, p99_ttft_ms;
} lf_report_totals;

typedef struct lf_report {
    /* filled by the run */
    const char *version, *model_type, *config_sha256, *weights_id, *numerics, *kv_dtype, *device;
    char started[32];                      /* ISO 8601, UTC: lf_report_clock */
    char ended[32];
    int64_t remaining;                     /* prompts that were not started */
    int64_t exit_code;
    double load_s, tokenize_s;
    double total_latency_s;                /* first dispatch to last durable file */
    lf_grid grid;
    int64_t tile;                          /* tokens */
    double pcp_token_c4, pcp_token_c128;   /* by traffic.h; NaN: no rows travel */
    int64_t pcp_halo;                      /* of one segment in a c4 layer; negative: none */
    /* filled through the functions below */
    int64_t schema;
    json_t *config, *argv, *libraries;
    lf_report_row *row;
    int64_t rows;
    lf_report_rank *rank;
    int64_t ranks;
    lf_report_totals sum;
} lf_report;

void lf_report_init(lf_report *r);
void lf_report_free(lf_report *r);
void lf_report_options(lf_report *r, const lf_options *o);             /* argv and the config block */
void lf_report_library(lf_report *r, const char *name, const char *version);
void lf_report_prompt(lf_report *r, const lf_report_row *row);
void lf_report_add_rank(lf_report *r, const lf_report_rank *rank);
void lf_report_clock(char text[32]);                                   /* now */
int64_t lf_report_peak_host(void);                                     /* bytes, of this process */

/* Totals from rows and ranks; call once, after the last of them.  The 99th percentile is the nearest rank: the smallest
 * value that at least 99 of 100 values do not exceed (below 100 values: the largest); the median of an even number of
 * values is the mean of the middle two. */
void lf_report_finish(lf_report *r);

/* After lf_report_finish. */
json_t *lf_report_json(const lf_report *r);                            /* a new reference */
int lf_report_print(FILE *out, const lf_report *r, int format /* lf_format */, lf_err *err);

/* Writes the JSON report as PATH, or where that exists as PATH with -2, -3, ... before its ending; an older report is
 * never overwritten.  *written (may be NULL) is the name used, owned by the caller. */
int lf_report_write(const lf_report *r, const char *path, char **written, lf_err *err);

/* Every key that the formats print, for the check of the man page: i counts from 0, NULL past the last. */
const char *lf_report_key(int i);

#endif
