/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* PATH for the first, then PATH with -2, -3, ... before the ending of its last component. */
static char *name_of(const char *path, int nth)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const char *dot = strrchr(base, '.');
    int stem = (int)(dot && dot != base ? dot - path : (long)strlen(path));

    return nth == 1 ? lf_strdup(path) : lf_printf("%.*s-%d%s", stem, path, nth, path + stem);
}

/* A name that no other process has, not even on another host; the permissions are the user's umask's. */
static int part_open(const char *path, char **part)
{
    for (int i = 0;; i++) {
        *part = lf_printf("%s.%ld-%d.part", path, (long)getpid(), i);
        int fd = open(*part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST || i == 1000)
            return fd;
        free(*part);
    }
}

static int part_write(const char *part, int fd, const char *text, lf_err *err)
{
    if (lf_file_settle(fd, lf_file_append(fd, text, strlen(text))))
        return lf_fail(err, "cannot write %s: %s", part, strerror(errno));
    return 0;
}

/* A hard link is made or not, even when two jobs end at once; where there are no links, look first. */
static int name_take(const char *part, const char *name)
{
    struct stat st;

    if (!link(part, name))
        return 0;
    if (errno == EEXIST)
        return -1;
    if (errno != EPERM && errno != ENOTSUP && errno != ENOSYS && errno != EMLINK)
        return -1;
    if (!lstat(name, &st)) {
        errno = EEXIST;
        return -1;
    }
    return errno == ENOENT ? rename(part, name) : -1;
}

static int placed(const char *part, const char *path, char **written, lf_err *err)
{
    for (int nth = 1; nth < 100000; nth++) {
        char *name = name_of(path, nth);
        if (!name_take(part, name)) {
            *written = name;
            return 0;
        }
        int why = errno;
        free(name);
        if (why != EEXIST)
            return lf_fail(err, "cannot write %s: %s", path, strerror(why));
    }
    return lf_fail(err, "cannot write %s: there are 99999 older reports beside it", path);
}

int lf_report_write(const lf_report *r, const char *path, char **written, lf_err *err)
{
    json_t *o = lf_report_json(r);
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(15)), *name = NULL;
    char *part;
    int fd = part_open(path, &part), bad;

    json_decref(o);
    if (!text)
        bad = lf_fail(err, "the report cannot be written as JSON");
    else if (fd < 0)
        bad = lf_fail(err, "cannot write %s: %s", path, strerror(errno));
    else
        bad = part_write(part, fd, text, err) || placed(part, path, &name, err);
    if (fd >= 0)
        unlink(part);
    free(part);
    free(text);
    if (written && !bad)
        *written = name;
    else
        free(name);
    return bad ? -1 : 0;
}
