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

static void line_of(char line[LF_KV_TAIL + 1], uint32_t crc, int64_t bytes)
{
    char text[LF_KV_TAIL];

    snprintf(text, sizeof text, "longfill-kv crc32c %08x of %lld bytes before", (unsigned)crc, (long long)bytes);
    snprintf(line, LF_KV_TAIL + 1, "%-*s\n", LF_KV_TAIL - 1, text);
}

int lf_kvtail_append(const char *path, int fd, lf_err *err)
{
    char line[LF_KV_TAIL + 1];
    uint32_t crc;

    if (lf_file_crc32c(path, &crc, err))
        return -1;
    off_t end = lseek(fd, 0, SEEK_END);
    if (end >= 0)
        line_of(line, crc, end);
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

/* Of an open file that ends with `line`. */
static int line_check(int fd, const char *line, const char *path, int64_t bytes, lf_err *err)
{
    char want[LF_KV_TAIL + 1];
    uint32_t crc;

    if (crc_of(fd, bytes, &crc))
        return lf_fail(err, "cannot read %s: %s", path, strerror(errno));
    line_of(want, crc, bytes);
    return memcmp(line, want, LF_KV_TAIL) ? lf_fail(err, "%s is damaged, or was changed: its bytes do not have the "
                                                    "checksum at its end", path) : 0;
}

int lf_kvtail_check(const char *path, int *sealed, lf_err *err)
{
    static const char begin[] = "longfill-kv crc32c ";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char line[LF_KV_TAIL];
    struct stat st;

    *sealed = 0;
    if (fd < 0)
        return lf_fail(err, "cannot open %s: %s", path, strerror(errno));
    *sealed = !fstat(fd, &st) && st.st_size > LF_KV_TAIL &&
              pread(fd, line, LF_KV_TAIL, st.st_size - LF_KV_TAIL) == LF_KV_TAIL &&
              !memcmp(line, begin, sizeof begin - 1);
    int rc = *sealed ? line_check(fd, line, path, st.st_size - LF_KV_TAIL, err) : 0;
    close(fd);
    return rc;
}
