/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int log_rank, log_level, line_open;

void lf_log_setup(int rank, int level)
{
    log_rank = rank;
    log_level = level;
}

int lf_log_level(void)
{
    return log_level;
}

/* One write per line: lines of several ranks do not mix in a shared terminal. */
static void emit(const char *kind, const char *fmt, va_list ap)
{
    char line[1400];
    int n = log_rank ? snprintf(line, sizeof line, "longfill[%d]: %s", log_rank, kind)
                     : snprintf(line, sizeof line, "%slongfill: %s", line_open ? "\r\033[K" : "", kind);

    line_open = 0;
    n += vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    n = n > (int)sizeof line - 2 ? (int)sizeof line - 2 : n;
    line[n] = '\n';
    line[n + 1] = 0;
    fputs(line, stderr);
    fflush(stderr);
}

#define EMIT(kind)                 \
    do {                           \
        va_list ap;                \
        va_start(ap, fmt);         \
        emit(kind, fmt, ap);       \
        va_end(ap);                \
    } while (0)

void lf_error(const char *fmt, ...)
{
    EMIT("");
}

void lf_warn(const char *fmt, ...)
{
    EMIT("warning: ");
}

void lf_verbose(const char *fmt, ...)
{
    if (log_level >= LF_VERBOSE)
        EMIT("");
}

void lf_progress(const char *fmt, ...)
{
    if (log_rank || log_level < LF_NORMAL)
        return;
    if (!isatty(2)) {
        EMIT("");
        return;
    }
    va_list ap;
    va_start(ap, fmt);
    fputs("\r\033[Klongfill: ", stderr);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fflush(stderr);
    line_open = 1;
}

void lf_progress_end(void)
{
    if (line_open)
        fputc('\n', stderr);
    line_open = 0;
}
