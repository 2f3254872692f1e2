/* SPDX-License-Identifier: Apache-2.0 */
#include "job_group.h"
#include "log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUND_S = 60 };                     /* of those who wait for files: at most */

int lf_job_writes(const lf_job *j)
{
    return j->grid.tp_rank == 0;
}

int lf_job_shares(const lf_job *j)
{
    return lf_job_writes(j) && j->grid.pcp > 1;
}

void lf_job_group_add(lf_job *j, int64_t n, lf_job_file *const *file)
{
    j->waiting = lf_alloc((size_t)n * sizeof *j->waiting);
    memcpy(j->waiting, file, (size_t)n * sizeof *file);
    j->waiting_n = n;
}

/* What a rank tells of its part of one prompt.  No pointers. */
typedef struct part_told {
    int64_t failed;
    lf_kv_written written;
    double ttft_s, compute_s, write_s;
    char why[400];
} part_told;

/* Are this rank's parts of all of them written, so many seconds from now at the latest? */
static int mine_written(lf_job *j, double seconds)
{
    struct timespec until = lf_deadline(seconds);
    int all = 1, late = seconds == 0;

    pthread_mutex_lock(&j->lock);
    for (int64_t i = 0; i < j->waiting_n; i++) {
        while (!late && !j->waiting[i]->part_done)
            late = pthread_cond_timedwait(&j->part_done, &j->lock, &until) != 0;
        all = all && j->waiting[i]->part_done;
    }
    pthread_mutex_unlock(&j->lock);
    return all;
}

static void tell(part_told *t, const lf_job_file *f)
{
    *t = (part_told){ .failed = f->part_failed, .written = f->written, .ttft_s = f->ttft_s,
                      .compute_s = f->compute_s, .write_s = f->write_s };
    snprintf(t->why, sizeof t->why, "%s", f->part_why ? f->part_why : "");
}

/* On the first rank: one prompt, from what all ranks tell (t[0], t[n], ...).  The slowest makes the time. */
static void prompt_join(lf_job *j, lf_job_file *f, const part_told *t, int64_t n)
{
    char *why = NULL;

    f->parts = lf_alloc((size_t)j->grid.pcp * sizeof *f->parts);
    for (int r = 0; r < j->grid.pcp; r++, t += n) {
        f->parts[r] = t->written;
        f->ttft_s = fmax(f->ttft_s, t->ttft_s);
        f->compute_s = fmax(f->compute_s, t->compute_s);
        f->write_s = fmax(f->write_s, t->write_s);
        if (t->failed && !why)
            why = lf_printf("rank %d: %s", j->rank + r * j->grid.tp, t->why);
    }
    f->role = LF_JOB_MASTER;
    lf_writer_end(j->writer, lf_writer_begin(j->writer, f), why);
    free(why);
}

static int tell_all(lf_job *j, lf_err *err)
{
    int64_t n = j->waiting_n;
    part_told *mine = lf_alloc((size_t)n * sizeof *mine);
    void *all;
    size_t bytes;

    for (int64_t i = 0; i < n; i++)
        tell(&mine[i], j->waiting[i]);
    int bad = lf_topo_gather(j->topo.files, mine, (size_t)n * sizeof *mine, &all, &bytes, 0, err);
    for (int64_t i = 0; i < n && !bad; i++) {
        if (j->grid.pcp_rank == 0)
            prompt_join(j, j->waiting[i], (part_told *)all + i, n);
        else
            lf_job_file_free(j->waiting[i]);
    }
    free(all);
    free(mine);
    free(j->waiting);
    j->waiting = NULL;
    j->waiting_n = 0;
    return bad;
}

/* One time that the writers ask each other; *others: not all of them have their parts. */
static int ask(lf_job *j, double seconds, int *said, int *others, lf_err *err)
{
    int written = mine_written(j, seconds);

    if (seconds > 0 && !written && !*said) {
        *said = 1;
        lf_warn("the disk is slow: files are not written %g seconds after all was computed", seconds);
    }
    return lf_topo_any(j->topo.files, !written, others, err);
}

/* A disk may take its time, a rank that is gone may not: those that wait ask each other again and again.  Ranks that do
 * not write ask one that does. */
int lf_job_group_join(lf_job *j, int wait, lf_err *err)
{
    double seconds = wait ? fmin(j->topo.patience / 10, ROUND_S) : 0;
    int others, said = 0;

    do {
        others = 0;
        if (j->waiting_n && ask(j, seconds, &said, &others, err))
            return -1;
        if (wait && j->grid.pcp > 1 && j->grid.tp > 1 && lf_topo_any(j->topo.tp, others, &others, err))
            return -1;
    } while (wait && others);
    return j->waiting_n && !others ? tell_all(j, err) : 0;
}
