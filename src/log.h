/* SPDX-License-Identifier: Apache-2.0
 *
 * log: the one place that writes to stderr.  Floor 0.  Messages are one line each: "longfill: <text>", from ranks
 * other than 0 "longfill[rank]: <text>".  stdout belongs to results and is never written here.
 */
#ifndef LF_LOG_H
#define LF_LOG_H

#include "base.h"

enum { LF_QUIET = -1, LF_NORMAL = 0, LF_VERBOSE = 1 };

void lf_log_setup(int rank, int level);                  /* before any rank is known: rank 0, LF_NORMAL */
int lf_log_level(void);
void lf_error(const char *fmt, ...) LF_PRINTF(1, 2);     /* always shown */
void lf_warn(const char *fmt, ...) LF_PRINTF(1, 2);      /* always shown, "warning: " in front */
void lf_verbose(const char *fmt, ...) LF_PRINTF(1, 2);   /* with -v */

/* Progress: on a terminal one line redrawn in place, elsewhere a plain line each.  Rank 0, unless quiet. */
void lf_progress(const char *fmt, ...) LF_PRINTF(1, 2);
void lf_progress_end(void);                              /* ends a redrawn line */

#endif
