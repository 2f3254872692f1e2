/* SPDX-License-Identifier: Apache-2.0
 *
 * results: OUT/results.jsonl, one line per prompt, appended and made durable when its file is.  Floor 5.
 *
 * Lines are JSON objects with always the same keys in the same order; what is not known is null:
 *   custom_id status error path num_tokens numerics kv_dtype bytes ttft_ms compute_s write_s durable_s rank finished
 * A prompt that was run again has several lines; the last one counts.
 */
#ifndef LF_RESULTS_H
#define LF_RESULTS_H

#include "base.h"

typedef enum lf_status { LF_STATUS_OK, LF_STATUS_FAILED, LF_STATUS_SKIPPED } lf_status;

typedef struct lf_result {
    const char *custom_id;
    lf_status status;                      /* "ok", "failed", "skipped": done by an earlier run and checked again */
    const char *error;                     /* NULL unless failed */
    const char *path;                      /* of the KV file, relative to OUT ("kv/<name>.h5"); NULL when failed */
    int64_t num_tokens;                    /* < 0: unknown */
    const char *numerics, *kv_dtype;       /* may be NULL */
    int64_t bytes;                         /* of the file; < 0: none */
    double ttft_s;                         /* seconds; NaN: none.  Printed as ttft_ms */
    double compute_s, write_s, durable_s;  /* computing; in the writer's thread; from dispatch to durable */
    int rank;                              /* the writing rank */
} lf_result;

typedef struct lf_results lf_results;

/* Opens for appending, creating it.  `repair`: by the one rank (or job) that opens first: a last line that a crash cut
 * short is removed, or gets its newline when it is whole.  Several processes may append at a time. */
int lf_results_open(lf_results **r, const char *out, int repair, lf_err *err);
/* One line, in one write, then fsync. */
int lf_results_append(lf_results *r, const lf_result *line, lf_err *err);
void lf_results_close(lf_results *r);                         /* NULL is fine */

#endif
