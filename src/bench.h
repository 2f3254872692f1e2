/* SPDX-License-Identifier: Apache-2.0
 *
 * bench: `longfill bench`: grids over lengths, timed, as one table.  Floor 6, used by cmd_bench.c and bench_*.c only.
 *
 * A grid takes the first dp x pcp x tp ranks; the others open the same communicators (as more dp groups, so pcp x tp
 * must divide the ranks started) and wait.  Every dp group computes one prompt of the length at the same time; no
 * files are written.  All printed values are defined in longfill(1), section BENCH.
 */
#ifndef LF_BENCH_H
#define LF_BENCH_H

#include "job.h"

enum { LF_BENCH_MOST = 64, LF_BENCH_SCHEMA = 1 };

typedef struct lf_bench_grid {
    char name[40];                         /* "1x4x1" */
    int dp, pcp, tp;
} lf_bench_grid;

/* What --grids and --lengths say; pure.  Lists of 1 to LF_BENCH_MOST; a length is from 1 on. */
int lf_bench_grids(const char *text, lf_bench_grid *grid, int *n, lf_err *err);
int lf_bench_lengths(const char *text, int64_t *length, int *n, lf_err *err);

/* One pass, as one rank saw it.  No pointers: gathered as bytes. */
typedef struct lf_bench_sample {
    int64_t took_part;                     /* 0: this rank waited; the rest is 0 */
    double ttft_s, compute_s, phase_s[LF_PHASES], exchange_s;
    int64_t kv_bytes;                      /* handed to where a writer would be */
    int64_t peak_device_bytes, pcp_sent, pcp_expected;
} lf_bench_sample;

typedef struct lf_bench_cell {
    int64_t length;
    lf_bench_grid grid;
    int64_t ranks, tile;
    double load_s;
    double ttft_s, ttft_min_s, ttft_max_s; /* over the passes, each the largest of its ranks: median, least, most */
    double rate, rate_min, rate_max;       /* dp x length / compute time of the slowest rank */
    double rate_rank;                      /* rate / ranks */
    double ttft_less, rate_more;           /* percent, against the first grid; NaN for that one */
    double phase_s[LF_PHASES], exchange_s; /* of one pass: mean over ranks and passes */
    int64_t kv_bytes, pcp_sent, pcp_expected;          /* of one pass, all ranks; pcp_expected negative: not known */
    int64_t peak_device_bytes;             /* of the fullest rank */
} lf_bench_cell;

typedef struct lf_bench {
    lf_job job;                            /* options, control communicator, model, checkpoint; nothing of its loop */
    lf_bench_grid grid[LF_BENCH_MOST];
    int64_t length[LF_BENCH_MOST];
    int grids, lengths;
    const uint32_t *ids;                   /* random; prompts are its beginnings */
    lf_bench_cell *cell;                   /* [lengths, grids], on rank 0 */
    /* for the table */
    int64_t schema, seed, repeat, ranks;
    const char *version, *model_type, *config_sha256, *weights, *weights_id, *numerics, *kv_dtype, *pcp_attention;
    char device[16], device_name[96];
} lf_bench;

/* ---- bench_check.c: rank 0 only: everything that the user gave; *code is the exit code when it fails ---- */
int lf_bench_check(lf_bench *b, int *code, lf_err *err);

/* ---- bench_run.c: collective: fills b->cell ---- */
int lf_bench_run(lf_bench *b, lf_err *err);

/* ---- bench_table.c: pure but for the stream ---- */

/* `passes` x `ranks` samples of one cell, pass by pass, into its numbers. */
void lf_bench_reduce(lf_bench_cell *c, const lf_bench_sample *s, int passes, int ranks);
/* ttft_less and rate_more of all cells. */
void lf_bench_compare(lf_bench *b);
int lf_bench_print(FILE *out, const lf_bench *b, int format, lf_err *err);

#endif
