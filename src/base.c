/* SPDX-License-Identifier: Apache-2.0 */
#include "base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void err_set(lf_err *err, const char *fmt, va_list ap)
{
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);

    if (n >= (int)sizeof err->text)
        strcpy(err->text + sizeof err->text - 4, "...");
    for (char *p = err->text; *p; p++)         /* what is quoted from a file may hold anything: an error is one line */
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = ' ';
}

int lf_fail(lf_err *err, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    err_set(err, fmt, ap);
    va_end(ap);
    return -1;
}

int lf_fail_in(lf_err *err, const char *fmt, ...)
{
    lf_err inner = *err;
    va_list ap;

    va_start(ap, fmt);
    err_set(err, fmt, ap);
    va_end(ap);
    size_t used = strlen(err->text);
    int n = snprintf(err->text + used, sizeof err->text - used, ": %s", inner.text);
    if (n >= (int)(sizeof err->text - used))
        strcpy(err->text + sizeof err->text - 4, "...");
    return -1;
}

static void out_of_memory(size_t bytes)
{
    fprintf(stderr, "longfill: out of host memory: %zu bytes could not be had\n", bytes);
    abort();
}

void *lf_alloc(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);

    if (!p)
        out_of_memory(bytes);
    return p;
}

void *lf_realloc(void *old, size_t bytes)
{
    void *p = realloc(old, bytes ? bytes : 1);

    if (!p)
        out_of_memory(bytes);
    return p;
}

char *lf_strdup(const char *s)
{
    size_t n = strlen(s) + 1;

    return memcpy(lf_alloc(n), s, n);
}

char *lf_printf(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *s = lf_alloc((size_t)n + 1);
    va_start(ap, fmt);
    vsnprintf(s, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return s;
}

char *lf_human_bytes(char *buf, double bytes)
{
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    int u = 0;

    while (bytes >= 1024 && u < 4) {
        bytes /= 1024;
        u++;
    }
    snprintf(buf, 24, u ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
    return buf;
}

double lf_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct timespec lf_deadline(double seconds)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    int64_t ns = t.tv_nsec + (int64_t)((seconds < 1e9 ? seconds : 1e9) * 1e9);
    t.tv_sec += (time_t)(ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    return t;
}

int lf_patience(double *seconds, lf_err *err)
{
    const char *text = getenv("LONGFILL_PATIENCE");
    char *end;

    *seconds = 600;
    if (!text || !*text)
        return 0;
    double asked = strtod(text, &end);
    if (*end || !(asked > 0))
        return lf_fail(err, "LONGFILL_PATIENCE '%s': it takes seconds, above 0", text);
    *seconds = asked;
    return 0;
}
