/* SPDX-License-Identifier: Apache-2.0 */
#include "results.h"
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct lf_results {
    char *path;
    int fd;
};

enum { TAIL_LIMIT = 64 << 20 };

/* Where a file system knows no locks, appending in one write has to do. */
static void lock(const lf_results *r, int how)
{
    while (flock(r->fd, how) && errno == EINTR)
        ;
}

/* Length of what stands behind the last newline; -1: unreadable or longer than any line. */
static int64_t tail_length(int fd, int64_t size)
{
    char block[4096];

    for (int64_t end = size; end > 0;) {
        int64_t n = end < (int64_t)sizeof block ? end : (int64_t)sizeof block;
        if (size - end > TAIL_LIMIT || lf_file_read_at(fd, block, (size_t)n, (uint64_t)(end - n)))
            return -1;
        for (int64_t i = n; i > 0; i--) {
            if (block[i - 1] == '\n')
                return size - (end - n + i);
        }
        end -= n;
    }
    return size;
}

static int is_whole_line(int fd, int64_t at, int64_t n)
{
    char *text = lf_alloc((size_t)n);
    json_error_t why;
    json_t *j = NULL;

    if (!lf_file_read_at(fd, text, (size_t)n, (uint64_t)at))
        j = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &why);
    int whole = json_is_object(j);

    json_decref(j);
    free(text);
    return whole;
}

static int repair_tail(const lf_results *r, lf_err *err)
{
    struct stat st;

    if (fstat(r->fd, &st))
        return lf_fail(err, "cannot read %s: %s", r->path, strerror(errno));
    int64_t n = tail_length(r->fd, st.st_size);
    if (n == 0)
        return 0;
    if (n < 0)
        return lf_fail(err, "%s does not end in a line of JSON; move it away", r->path);
    int bad = is_whole_line(r->fd, st.st_size - n, n) ? lf_file_append(r->fd, "\n", 1)
                                                      : ftruncate(r->fd, st.st_size - n);
    if (bad || fsync(r->fd))
        return lf_fail(err, "cannot repair the last line of %s: %s", r->path, strerror(errno));
    return 0;
}

int lf_results_open(lf_results **out, const char *dir, int repair, lf_err *err)
{
    lf_results *r = lf_alloc(sizeof *r);

    r->path = lf_printf("%s/results.jsonl", dir);
    r->fd = open(r->path, O_RDWR | O_NONBLOCK | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    int rc = r->fd < 0 ? lf_fail(err, "cannot open %s: %s", r->path, strerror(errno)) : 0;
    struct stat st;

    if (!rc && (fstat(r->fd, &st) || !S_ISREG(st.st_mode)))
        rc = lf_fail(err, "%s is not a regular file; move it away", r->path);
    if (!rc && repair) {
        lock(r, LOCK_EX);
        rc = repair_tail(r, err);
        lock(r, LOCK_UN);
    }
    if (rc) {
        lf_results_close(r);
        return -1;
    }
    *out = r;
    return 0;
}

void lf_results_close(lf_results *r)
{
    if (!r)
        return;
    if (r->fd >= 0)
        close(r->fd);
    free(r->path);
    free(r);
}

static json_t *text_or_null(const char *s)
{
    json_t *j = s ? json_string(s) : NULL;

    return j ? j : json_null();
}

static json_t *number_or_null(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *count_or_null(int64_t n)
{
    return n < 0 ? json_null() : json_integer(n);
}

static char *line_text(const lf_result *l)
{
    static const char *const status[] = { "ok", "failed", "skipped" };
    char finished[32];
    time_t now = time(NULL);
    struct tm utc;

    strftime(finished, sizeof finished, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *j = json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:s}", "custom_id",
                          text_or_null(l->custom_id), "status", status[l->status], "error", text_or_null(l->error),
                          "path", text_or_null(l->path), "num_tokens", count_or_null(l->num_tokens), "numerics",
                          text_or_null(l->numerics), "kv_dtype", text_or_null(l->kv_dtype), "bytes",
                          count_or_null(l->bytes), "ttft_ms", number_or_null(1e3 * l->ttft_s), "compute_s",
                          number_or_null(l->compute_s), "write_s", number_or_null(l->write_s), "durable_s",
                          number_or_null(l->durable_s), "rank", l->rank, "finished", finished);
    char *text = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(j);
    return text;
}

/* A line cut short by a full disk is taken back, so that what follows is not glued to it. */
static int append_line(const lf_results *r, const char *line, lf_err *err)
{
    struct stat st;
    int known = !fstat(r->fd, &st);

    if (!lf_file_append(r->fd, line, strlen(line)) && !fsync(r->fd))
        return 0;
    int why = errno;
    if (known && S_ISREG(st.st_mode) && ftruncate(r->fd, st.st_size))
        why = errno;
    return lf_fail(err, "cannot write %s: %s", r->path, strerror(why));
}

int lf_results_append(lf_results *r, const lf_result *l, lf_err *err)
{
    char *text = line_text(l), *line = text ? lf_printf("%s\n", text) : NULL;
    int rc;

    if (line) {
        lock(r, LOCK_EX);
        rc = append_line(r, line, err);
        lock(r, LOCK_UN);
    } else {
        rc = lf_fail(err, "%s: the line of %s cannot be written as JSON", r->path, l->custom_id);
    }
    free(text);
    free(line);
    return rc;
}
