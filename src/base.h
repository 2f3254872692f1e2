/* SPDX-License-Identifier: Apache-2.0
 *
 * base: errors, allocation, small helpers.  Floor 0: includes nothing of ours.
 *
 * Errors.  Every function that can fail returns int (0 = done, -1 = failed) and takes, last, an lf_err that the
 * caller owns and that may not be NULL.  On failure the text says what failed, where (file, line, tensor, option) and
 * what would work, in one line without a trailing newline.  Nobody below main prints or exits.
 */
#ifndef LF_BASE_H
#define LF_BASE_H

#include <stddef.h>
#include <stdint.h>
#include <stdarg.h>
#include <time.h>

#define LF_PRINTF(f, a) __attribute__((format(printf, f, a)))

typedef struct lf_err {
    char text[1024];                       /* always terminated; empty = no error */
} lf_err;

/* Fill err and return -1, so that `return lf_fail(err, ...)` reads well.  Too long a text is cut, ending in "...";
 * control characters become spaces. */
int lf_fail(lf_err *err, const char *fmt, ...) LF_PRINTF(2, 3);

/* Put "<context>: " in front of the text already there and return -1: for callers that know more of the place. */
int lf_fail_in(lf_err *err, const char *fmt, ...) LF_PRINTF(2, 3);

/* Zeroed memory for small host objects, freed with free().  When the host has none left the process aborts with a
 * message: there is nothing useful to unwind to.  Large buffers are planned and taken through dev.h instead. */
void *lf_alloc(size_t bytes);
void *lf_realloc(void *old, size_t bytes);             /* grown bytes are not zeroed */
char *lf_strdup(const char *s);
char *lf_printf(const char *fmt, ...) LF_PRINTF(1, 2); /* a formatted string, owned by the caller */

/* "12.3 GiB", "640 B", "1.5 MiB" into buf (at least 24 bytes); returns buf. */
char *lf_human_bytes(char *buf, double bytes);

double lf_now(void);                                   /* seconds of a monotonic clock */
struct timespec lf_deadline(double seconds);           /* in so many, for pthread_cond_timedwait */
/* LONGFILL_PATIENCE: seconds, above 0, that a rank waits for another; 600 where it is not set, and on failure. */
int lf_patience(double *seconds, lf_err *err);

static inline int64_t lf_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t lf_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t lf_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t lf_round_up(int64_t a, int64_t b) { return lf_ceil_div(a, b) * b; }

/* The ending of a noun that n stands before: "s" unless n is 1, as in "%d rank%s". */
static inline const char *lf_s(int64_t n) { return n == 1 ? "" : "s"; }

#endif
