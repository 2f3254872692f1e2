/* SPDX-License-Identifier: Apache-2.0 */
#include "kvtail.h"

#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
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

/* The last line, the bytes before it, and what it says. */
static lf_kv_tail line_read(const char *path, char line[LF_KV_TAIL], int64_t *bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    int have = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size > LF_KV_TAIL &&
               pread(fd, line, LF_KV_TAIL, st.st_size - LF_KV_TAIL) == LF_KV_TAIL;

    *bytes = have ? st.st_size - LF_KV_TAIL : 0;
    if (fd >= 0)
        close(fd);
    for (lf_kv_tail kind = LF_TAIL_FILE; have && kind <= LF_TAIL_MASTER; kind++)
        if (!memcmp(line, begin[kind], strlen(begin[kind])))
            return kind;
    return LF_TAIL_NONE;
}

lf_kv_tail lf_kvtail_of(const char *path)
{
    char line[LF_KV_TAIL];
    int64_t bytes;

    return line_read(path, line, &bytes);
}

int lf_kvtail_check(const char *path, lf_err *err)
{
    char line[LF_KV_TAIL], want[LF_KV_TAIL + 1];
    int64_t bytes;
    uint32_t crc;
    lf_kv_tail kind = line_read(path, line, &bytes);

    if (lf_file_crc32c_first(path, bytes, &crc, err))
        return -1;
    line_of(want, kind, crc, bytes);
    if (kind != LF_TAIL_NONE && !memcmp(line, want, LF_KV_TAIL))
        return 0;
    return lf_fail(err, "%s is damaged, or was changed: its bytes do not have the checksum at its end; run the prompt "
                   "again", path);
}
