/* SPDX-License-Identifier: Apache-2.0 */
#include "kvtail.h"

#include "file.h"
#include "hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const begin[] = { "", "longfill-kv crc32c ", "longfill-kv master crc32c " };

static void line_of(char line[LF_KV_TAIL + 1], lf_kv_tail kind, uint32_t crc, int64_t bytes)
{
    char text[LF_KV_TAIL];

    snprintf(text, sizeof text, "%s%08x of %lld bytes before", begin[kind], (unsigned)crc, (long long)bytes);
    snprintf(line, LF_KV_TAIL + 1, "%-*s\n", LF_KV_TAIL - 1, text);
}

int lf_kvtail_append(const char *path, int fd, lf_kv_tail kind, lf_err *err)
{
    char line[LF_KV_TAIL + 1];
    uint32_t crc;

    if (lf_file_crc32c(path, &crc, err))
        return -1;
    off_t end = lseek(fd, 0, SEEK_END);
    if (end >= 0)
        line_of(line, kind, crc, end);
    return end < 0 || lf_file_append(fd, line, LF_KV_TAIL) ? lf_fail(err, "cannot write %s: %s", path, strerror(errno))
                                                           : 0;
}

/* The first `bytes` of an open file. */
static int crc_of(int fd, int64_t bytes, uint32_t *crc)
{
    size_t most = (size_t)1 << 20;
    uint8_t *block = lf_alloc(most);
    int64_t at = 0;
    ssize_t k = 1;

    for (*crc = 0; at < bytes && (k > 0 || (k < 0 && errno == EINTR)); at += k > 0 ? k : 0) {
        k = pread(fd, block, (size_t)lf_min((int64_t)most, bytes - at), at);
        if (k > 0)
            *crc = lf_crc32c(*crc, block, (size_t)k);
    }
    free(block);
    return at == bytes ? 0 : -1;
}

/* Of an open file: its last line, the bytes before it, and what it says. */
static lf_kv_tail line_read(int fd, char line[LF_KV_TAIL], int64_t *bytes)
{
    struct stat st;

    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size <= LF_KV_TAIL)
        return LF_TAIL_NONE;
    *bytes = st.st_size - LF_KV_TAIL;
    if (pread(fd, line, LF_KV_TAIL, *bytes) != LF_KV_TAIL)
        return LF_TAIL_NONE;
    for (lf_kv_tail kind = LF_TAIL_FILE; kind <= LF_TAIL_MASTER; kind++)
        if (!memcmp(line, begin[kind], strlen(begin[kind])))
            return kind;
    return LF_TAIL_NONE;
}

lf_kv_tail lf_kvtail_of(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char line[LF_KV_TAIL];
    int64_t bytes;
    lf_kv_tail kind = line_read(fd, line, &bytes);

    if (fd >= 0)
        close(fd);
    return kind;
}

int lf_kvtail_check(const char *path, lf_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char line[LF_KV_TAIL], want[LF_KV_TAIL + 1];
    int64_t bytes;
    uint32_t crc;
    lf_kv_tail kind = line_read(fd, line, &bytes);
    int rc = 0;

    if (kind == LF_TAIL_NONE || crc_of(fd, bytes, &crc)) {
        rc = lf_fail(err, "cannot read the end of %s", path);
    } else {
        line_of(want, kind, crc, bytes);
        if (memcmp(line, want, LF_KV_TAIL))
            rc = lf_fail(err, "%s is damaged, or was changed: its bytes do not have the checksum at its end", path);
    }
    if (fd >= 0)
        close(fd);
    return rc;
}
