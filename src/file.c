/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"
#include "hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 20 };

int lf_file_read_at(int fd, void *to, size_t n, uint64_t at)
{
    for (char *p = to; n > 0;) {
        ssize_t k = pread(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k == 0)
            errno = ENODATA;
        if (k <= 0)
            return -1;
        p += k;
        at += (uint64_t)k;
        n -= (size_t)k;
    }
    return 0;
}

/* A count of nothing written, which nobody promises not to happen, must not loop. */
static int went_on(ssize_t k)
{
    if (k == 0)
        errno = EIO;
    return k > 0 || (k < 0 && errno == EINTR);
}

int lf_file_write_at(int fd, const void *from, size_t n, uint64_t at)
{
    for (const char *p = from; n > 0;) {
        ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (!went_on(k))
            return -1;
        k = k < 0 ? 0 : k;
        p += k;
        at += (uint64_t)k;
        n -= (size_t)k;
    }
    return 0;
}

int lf_file_append(int fd, const void *from, size_t n)
{
    for (const char *p = from; n > 0;) {
        ssize_t k = write(fd, p, n);
        if (!went_on(k))
            return -1;
        k = k < 0 ? 0 : k;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

int lf_file_settle(int fd, int bad)
{
    bad = bad || fsync(fd);
    int why = errno;

    if (close(fd) && !bad)
        return -1;
    errno = why;
    return bad ? -1 : 0;
}

int lf_file_claim(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK ? -1 : 0;
}

int lf_file_remove(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int bad = fd >= 0 && lf_file_claim(fd) ? -1 : unlinkat(dir, name, 0), why = errno;

    if (fd >= 0)
        close(fd);
    errno = why;
    return bad;
}

void lf_file_sync_directory(const char *path)
{
    char *dir = lf_strdup(path), *slash = strrchr(dir, '/');

    if (slash)
        slash[slash == dir] = 0;
    int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        (void)lf_file_settle(fd, 0);
    free(dir);
}

int lf_file_publish(int fd, const char *part, const char *path, int bad, lf_err *err)
{
    if (fd >= 0)
        bad = lf_file_settle(fd, bad) || rename(part, path);
    if (fd < 0 || bad) {
        int why = errno;
        if (fd >= 0)
            unlink(part);
        return lf_fail(err, "cannot write %s: %s", path, strerror(why));
    }
    lf_file_sync_directory(path);
    return 0;
}

int lf_file_replace(const char *path, const void *data, size_t bytes, lf_err *err)
{
    char *part = lf_printf("%s.part", path);
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int rc = lf_file_publish(fd, part, path, fd >= 0 && lf_file_append(fd, data, bytes), err);

    free(part);
    return rc;
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
    size_t n = (size_t)st.st_size;
    char *p = lf_alloc(n + 1);
    int bad = lf_file_read_at(fd, p, n, 0), why = errno;
    close(fd);
    if (bad) {
        free(p);
        return lf_fail(err, "cannot read %s: %s", path, strerror(why));
    }
    *out = p;
    if (bytes)
        *bytes = n;
    return 0;
}

int lf_file_crc32c(const char *path, uint32_t *crc, lf_err *err)
{
    return lf_file_crc32c_first(path, INT64_MAX, crc, err);
}

int lf_file_crc32c_first(const char *path, int64_t bytes, uint32_t *crc, lf_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return lf_fail(err, "cannot open %s: %s", path, strerror(errno));
    uint8_t *block = lf_alloc(BLOCK_BYTES);
    ssize_t k = 1;
    for (*crc = 0; k > 0 || (k < 0 && errno == EINTR);) {
        k = read(fd, block, (size_t)lf_min(BLOCK_BYTES, bytes));
        if (k > 0)
            *crc = lf_crc32c(*crc, block, (size_t)k);
        bytes -= k > 0 ? k : 0;
    }
    int why = errno;
    close(fd);
    free(block);
    return k < 0 ? lf_fail(err, "cannot read %s: %s", path, strerror(why)) : 0;
}
