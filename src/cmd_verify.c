/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include "kvfile.h"

#include <stdio.h>
#include <string.h>

/* Messages of the reader begin with the path; here the line does. */
static const char *without_path(const char *text, const char *path)
{
    size_t n = strlen(path);

    return !strncmp(text, path, n) && !strncmp(text + n, ": ", 2) ? text + n + 2 : text;
}

static int verify_one(const char *path)
{
    lf_kvread *r;
    lf_kv_report report;
    lf_err err = { "" };
    char size[24];
    int rc = lf_kvread_open(&r, path, &err);

    if (!rc) {
        rc = lf_kvread_verify(r, LF_CHECK_BYTES, &report, &err);
        lf_kvread_close(r);
    }
    if (rc)
        printf("%s: FAILED: %s\n", path, without_path(err.text, path));
    else
        printf("%s: ok, %lld datasets, %lld checksums, %s\n", path, (long long)report.datasets,
               (long long)report.chunks, lf_human_bytes(size, (double)report.bytes));
    fflush(stdout);
    return rc;
}

int lf_cmd_verify(const lf_options *o, lf_err *err)
{
    int failed = 0;

    err->text[0] = 0;
    for (int i = 0; i < o->operands.n; i++)
        failed |= verify_one(o->operands.v[i]) != 0;
    return failed ? LF_EXIT_FAILED : LF_EXIT_DONE;
}
