/* SPDX-License-Identifier: Apache-2.0 */
#include "base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

static int write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return -1;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

/* A rename is durable only when the directory that holds it is. */
static void sync_directory_of(const char *path)
{
    char *dir = lf_strdup(path);
    char *slash = strrchr(dir, '/');

    if (slash)
        slash[slash == dir] = 0;
    int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    free(dir);
}

int lf_file_replace(const char *path, const void *data, size_t bytes, lf_err *err)
{
    char *part = lf_printf("%s.part", path);
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    int bad = fd < 0 || write_all(fd, data, bytes) || fsync(fd);
    int why = errno;

    if (fd >= 0 && close(fd) && !bad) {
        bad = 1;
        why = errno;
    }
    if (!bad && rename(part, path)) {
        bad = 1;
        why = errno;
    }
    if (bad) {
        unlink(part);
        free(part);
        return lf_fail(err, "cannot write %s: %s", path, strerror(why));
    }
    free(part);
    sync_directory_of(path);
    return 0;
}

int lf_file_read(const char *path, size_t limit, char **out, size_t *bytes, lf_err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return lf_fail(err, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return lf_fail(err, "%s is not a regular file", path);
    }
    if ((uint64_t)st.st_size > limit) {
        close(fd);
        return lf_fail(err, "%s has %lld bytes; at most %zu are read", path, (long long)st.st_size, limit);
    }
    size_t n = (size_t)st.st_size, got = 0;
    char *p = lf_alloc(n + 1);
    while (got < n) {
        ssize_t k = read(fd, p + got, n - got);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            break;
        got += (size_t)k;
    }
    close(fd);
    if (got < n) {
        free(p);
        return lf_fail(err, "%s: only %zu of %zu bytes could be read", path, got, n);
    }
    *out = p;
    if (bytes)
        *bytes = n;
    return 0;
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
