/* SPDX-License-Identifier: Apache-2.0
 *
 * job_store: what becomes of a prompt: its KV file, then its line in results.jsonl.  Floor 6, private to job_*.c.
 * The store runs on the writer's thread; a file is made by the computing thread and freed when its line is written,
 * which for a prompt of several writers the first of them does.
 */
#ifndef LF_JOB_STORE_H
#define LF_JOB_STORE_H

#include "job.h"
#include "kvmaster.h"

/* Alone: a whole file; of several writers first a part, and on the first of them then the master. */
typedef enum lf_job_role { LF_JOB_ALONE, LF_JOB_PART, LF_JOB_MASTER } lf_job_role;

typedef struct lf_job_file {
    lf_job *job;
    lf_job_role role;
    int64_t request;
    char *path;                            /* OUT/kv/<name>.h5 */
    double dispatched;                     /* lf_now() */
    double ttft_s, compute_s;              /* set before the file's end */
    lf_kv_meta meta;
    lf_kvfile *kv;                         /* NULL: this rank has no rows of it */
    uint64_t file_bytes;

    /* of a part, once part_done says so (under the job's lock) */
    int part_done, part_failed;
    char *part_why;
    double write_s;
    lf_kv_written written;
    lf_kv_written *parts;                  /* [pcp] of a master */
} lf_job_file;

/* Not collective. */
lf_job_file *lf_job_file_new(lf_job *j, int64_t request, double dispatched);
void lf_job_file_free(lf_job_file *f);
lf_writer_store lf_job_store(lf_job *j);

/* Who and what the request's KV file is: what resuming compares. */
lf_kv_meta lf_job_meta(const lf_job *j, int64_t request);
/* A line of results.jsonl with what is known beforehand. */
lf_result lf_job_result(const lf_job *j, int64_t request);
/* "kv/<name>.h5", owned by the caller. */
char *lf_job_relative(const char *id);

#endif
