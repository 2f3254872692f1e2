/* SPDX-License-Identifier: Apache-2.0
 *
 * job: one run of `longfill prefill`, from options to report.  Floor 6, used by cmd_prefill.c only.
 *
 * Rank 0 reads and checks everything that the user gave (job_check) and tells the others; then every rank holds
 * the same prompts in the same order (job_plan), dp groups draw batches of them from one counter (job_run), and
 * what each did is gathered on rank 0 (job_report).
 *
 * Unless a function says otherwise it is collective over all ranks and returns the same everywhere; then err has a
 * text on one rank only, the one that says it.
 */
#ifndef LF_JOB_H
#define LF_JOB_H

#include "command.h"
#include "inventory.h"
#include "plan.h"
#include "prefill.h"
#include "report.h"
#include "request.h"
#include "results.h"
#include "writer.h"

#include <pthread.h>
#include <signal.h>

/* Short prompts go through the model together, up to so many tokens. */
enum { LF_BATCH_TOKENS = 4096 };

typedef struct lf_batch {
    int64_t first, n;                      /* order[first .. first+n-1] */
    int64_t tokens;
} lf_batch;

typedef struct lf_job_plan {
    int64_t n;
    int64_t *order;                        /* [n] numbers of requests: longest first, then by place */
    int64_t batches;
    lf_batch *batch;
    int64_t tokens;                        /* of all n */
} lf_job_plan;

/* What became of one prompt on this rank.  No pointers into it: gathered as bytes. */
typedef struct lf_job_record {
    int64_t request;
    int64_t rank;
    int64_t failed;
    int64_t file_bytes;
    double ttft_s, compute_s, durable_s;   /* from its dispatch; NaN where there is none */
    double write_s;                        /* the writer's thread spent on it */
    double end_s;                          /* durable or failed, from the start of the loop */
} lf_job_record;

typedef struct lf_job {
    const lf_options *o;
    int rank, world;
    double born;                           /* lf_now() when the command began: --max-seconds counts from here */
    char started[32];                      /* the same by the calendar */
    sigset_t stops;                        /* SIGTERM and SIGUSR1, blocked: they wait to be asked for */

    lf_topo control;                       /* all ranks, before the grid is known */
    lf_topo topo;
    int control_open, topo_open;
    lf_grid grid;

    lf_model model;
    lf_checkpoint *checkpoint;             /* NULL: made-up weights */
    char made_up[96];                      /* their weights_id: "dummy:SEED:CONFIG-SHA256" */
    lf_inventory_report inventory;         /* rank 0 */
    char tokenizer_sha256[65];             /* empty: no tokenizer was used */
    lf_kv_dtype kv_dtype;
    lf_logits_want want;
    lf_requests requests;                  /* the prompts of --shard, on every rank */
    unsigned char *skip;                   /* [requests.n] 1: done by an earlier run */
    int64_t *skip_bytes;                   /* [requests.n] size of the file that is there */
    lf_job_plan plan;

    int threads;
    int64_t tile;                          /* tokens of one, on every rank */
    lf_dev *dev;
    lf_engine *engine;
    double tokenize_s, load_s;

    /* the loop */
    lf_results *results;
    lf_writer *writer;
    double loop;                           /* lf_now() when it began */
    double progressed;                     /* lf_now() of the last line of progress */
    double phase_s[LF_PHASES];
    double compute_s;                      /* of all passes */
    int64_t pcp_expected;                  /* bytes sent on pcp by traffic.h; negative: not computed (merge mode) */
    int64_t prompts, tokens;               /* computed by this rank */
    int stopped;                           /* told to end early */
    struct lf_job_file **waiting;          /* [waiting_n] of the pass before: not all ranks have their parts */
    int64_t waiting_n;
    pthread_cond_t part_done;              /* with lock: this rank has another part */
    pthread_mutex_t lock;                  /* of what follows: the writer's thread adds to it */
    lf_job_record *record;                 /* [plan.n] */
    char **why;                            /* [plan.n] of a failed one, else NULL */
    int64_t records, said;                 /* there are; of these were looked at for the log */
    int64_t failures;                      /* of those looked at */
    lf_err broken;                         /* what makes going on senseless (results.jsonl cannot be written) */
} lf_job;

/* ---- job_plan.c: pure, not collective ---- */

/* skip may be NULL.  Batches are small enough to keep `groups` dp groups busy to the end. */
void lf_job_plan_make(lf_job_plan *p, const lf_requests *r, const unsigned char *skip, int64_t groups);
void lf_job_plan_free(lf_job_plan *p);

/* ---- job_check.c ---- */

/* Model, checkpoint, prompts, output directory: read and checked by rank 0, then known to all.  *code is the exit
 * code when it fails. */
int lf_job_check(lf_job *j, int *code, lf_err *err);
/* Of the checkpoint, or of made-up weights.  Not collective. */
const char *lf_job_weights_id(const lf_job *j);
/* After a step in which ranks may have failed one by one: 0, or -1 when any did.  The lowest such rank keeps its
 * err, the others' is emptied. */
int lf_job_any(lf_job *j, int bad, lf_err *err);

/* ---- job_output.c ---- */

/* On rank 0 only: no two prompts may have one file name. */
int lf_job_names(const lf_job *j, lf_err *err);
/* On rank 0 only: the output directory is there and takes files, what an earlier run finished is marked in j->skip
 * and has its line in results.jsonl.  A dry run changes nothing. */
int lf_job_output(lf_job *j, lf_err *err);
/* Of the files of all prompts to do, without what HDF5 adds.  Not collective. */
double lf_job_kv_bytes(const lf_job *j);
/* Warns when the output's file system has less left than that.  Not collective. */
void lf_job_space(const lf_job *j);

/* ---- job_device.c ---- */

/* Threads for this rank: OMP_NUM_THREADS, else its share of the cores that it and the others of its node may use. */
int lf_job_threads(lf_job *j, int *threads, lf_err *err);
/* A device that was asked for and is not there: the command line is wrong, and nothing need be read to say so.  Not
 * collective. */
int lf_job_device_check(const lf_options *o, lf_err *err);
/* Communicators of the grid, device, and whether the plan fits into it; then the engine, which a dry run goes without:
 * it loads nothing. */
int lf_job_open(lf_job *j, lf_err *err);
/* j->tile becomes the least of all ranks', with a line about it where that is not the default.  Collective over the
 * world. */
int lf_job_tile_agree(lf_job *j, lf_err *err);
/* What this rank takes in its fullest pass, and what its device has for it (-1: it does not say).  Not collective. */
int lf_job_fullest(const lf_job *j, lf_plan_grid *most, int64_t *left, lf_err *err);
void lf_job_close(lf_job *j);

/* ---- job_run.c ---- */

int lf_job_run(lf_job *j, lf_err *err);

/* ---- job_dry.c ---- */

/* What would be done and with what, on stdout (rank 0).  The job is open; there is no engine. */
int lf_job_dry(lf_job *j, lf_err *err);

/* ---- job_report.c ---- */

/* Gathers, prints and writes the report; *code is the exit code of a run that did not fail. */
int lf_job_report(lf_job *j, int *code, lf_err *err);

/* ---- cmd_prefill.c ---- */

const char *lf_job_version(void);
/* Versions of the libraries in use, as they say themselves.  device: lf_dev_ops.name, NULL: none was opened; shared:
 * ranks share prompts (pcp x tp > 1).  Not collective. */
void lf_job_libraries(lf_report *r, const char *device, int shared);

#endif
