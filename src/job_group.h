/* SPDX-License-Identifier: Apache-2.0
 *
 * job_group: prompts whose files the ranks of a pcp group write together.  Floor 6, private to job_*.c.
 *
 * Each rank's writer makes its part while the pass computes and, what is left then, while the next one does.  Between
 * layers, and at the end, the ranks ask each other whether all have theirs; then the first one learns the sizes and
 * checksums, and whose failed, and its writer joins the parts and appends the lines.  The collectives are the main
 * threads', on a communicator of their own.
 */
#ifndef LF_JOB_GROUP_H
#define LF_JOB_GROUP_H

#include "job_store.h"

/* Does this rank write, and with others? */
int lf_job_writes(const lf_job *j);
int lf_job_shares(const lf_job *j);

/* Hands over the files of a pass, each ended, in the same order on all ranks of the group.  None may be waiting. */
void lf_job_group_add(lf_job *j, int64_t n, lf_job_file *const *file);
/* Joins them if all are there.  Collective over the writers of the group.  `wait`: waits for that, however long a disk
 * takes, as long as the other ranks are there; collective over the group. */
int lf_job_group_join(lf_job *j, int wait, lf_err *err);

#endif
