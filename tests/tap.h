/* SPDX-License-Identifier: Apache-2.0
 *
 * tap: the test programs' output, in the Test Anything Protocol.  A test program calls TAP_CHECK (or TAP_NEAR) per
 * assertion worth a name, and ends with `return tap_done();`.  A check in a long loop goes through TAP_QUIET: it is
 * counted as one named result at the end of the loop and prints its first three failures.
 */
#ifndef LF_TAP_H
#define LF_TAP_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

static int tap_count, tap_failed;

static inline int tap_result(int ok, const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    printf("%sok %d - ", ok ? "" : "not ", ++tap_count);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    if (!ok) {
        tap_failed++;
        printf("# at %s:%d\n", file, line);
    }
    fflush(stdout);
    return ok;
}

static inline void tap_skip(const char *what, const char *why)
{
    printf("ok %d - %s # SKIP %s\n", ++tap_count, what, why);
}

static inline int tap_done(void)
{
    printf("1..%d\n", tap_count);
    fflush(stdout);
    return tap_failed != 0;
}

/* TAP_CHECK(condition, "what holds when it passes", ...) */
#define TAP_CHECK(cond, ...) tap_result(!!(cond), __FILE__, __LINE__, __VA_ARGS__)

/* |a - b| <= tol, NaN fails */
#define TAP_NEAR(a, b, tol, ...)                                                                          \
    do {                                                                                                  \
        double tap_a = (a), tap_b = (b);                                                                  \
        if (!tap_result(fabs(tap_a - tap_b) <= (tol), __FILE__, __LINE__, __VA_ARGS__))                   \
            printf("# got %.9g, expected %.9g, tolerance %.3g\n", tap_a, tap_b, (double)(tol));           \
    } while (0)

/* Inside loops: int bad = 0; ... TAP_QUIET(bad, cond, "detail %d", i); ... TAP_CHECK(bad == 0, "all ..."); */
#define TAP_QUIET(bad, cond, ...)                                                                         \
    do {                                                                                                  \
        if (!(cond) && (bad)++ < 3) {                                                                     \
            printf("# %s:%d: ", __FILE__, __LINE__);                                                      \
            printf(__VA_ARGS__);                                                                          \
            printf("\n");                                                                                 \
        }                                                                                                 \
    } while (0)

#endif
