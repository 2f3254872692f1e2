/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include "cmd_verify_deep.h"

#include <stdio.h>
#include <string.h>

/* Messages of the reader begin with the path; here the line does. */
static const char *without_path(const char *text, const char *path)
{
    size_t n = strlen(path);

    return !strncmp(text, path, n) && !strncmp(text + n, ": ", 2) ? text + n + 2 : text;
}

static int open_and_check(lf_kvread **r, const char *path, lf_kv_report *report, lf_err *err)
{
    if (lf_kvread_open(r, path, err))
        return -1;
    if (!lf_kvread_verify(*r, LF_CHECK_BYTES, report, err))
        return 0;
    lf_kvread_close(*r);
    return -1;
}

static void say(const char *path, int whole, const lf_kv_report *report, const lf_deep_report *deep)
{
    char size[24];

    printf("%s: ok, %lld datasets, %lld checksums, %s", path, (long long)report->datasets, (long long)report->chunks,
           lf_human_bytes(size, (double)report->bytes));
    if (deep->tokens)
        printf("; %lld token%s run again: %lld of %lld rows differ, by %.1e at most", (long long)deep->tokens,
               lf_s(deep->tokens), (long long)deep->differ, (long long)deep->rows, deep->worst);
    if (!whole)
        printf("; its attributes are not checked, as the file does not end with a checksum: an earlier program wrote "
               "it, or it was opened for writing since");
    printf("\n");
}

/* An exit status. */
static int verify_one(const char *path, lf_deep *d, int64_t tokens)
{
    lf_kvread *r;
    lf_kv_report report;
    lf_deep_report deep = { 0 };
    lf_err err = { "" };
    int rc = open_and_check(&r, path, &report, &err), whole = 0;

    if (!rc) {
        whole = lf_kvread_sealed_whole(r);
        rc = d ? lf_deep_run(d, r, tokens, &deep, &err) : 0;
        lf_kvread_close(r);
    }
    if (!rc && d && !deep.unsure.text[0] && deep.rows == 0)
        lf_fail(&deep.unsure, "nothing was compared, as %lld token%s complete no row: run more of them, by -l",
                (long long)deep.tokens, lf_s(deep.tokens));
    if (rc)
        printf("%s: FAILED: %s\n", path, without_path(err.text, path));
    else if (deep.unsure.text[0])
        printf("%s: CANNOT TELL: checksums are right; %s\n", path, deep.unsure.text);
    else
        say(path, whole, &report, &deep);
    fflush(stdout);
    return rc ? LF_EXIT_FAILED : deep.unsure.text[0] ? LF_EXIT_UNDECIDED : LF_EXIT_DONE;
}

int lf_cmd_verify(const lf_options *o, lf_err *err)
{
    lf_deep *deep = NULL;
    int failed = 0, unsure = 0;

    err->text[0] = 0;
    if (!o->deep != !o->model) {
        lf_fail(err, "--deep and --model go together: `longfill verify --deep -m DIR FILE`");
        return LF_EXIT_USAGE;
    }
    if (!o->deep && lf_options_given(o, "length")) {
        lf_fail(err, "--length is how many tokens --deep runs: `longfill verify --deep -m DIR -l TOKENS FILE`");
        return LF_EXIT_USAGE;
    }
    if (o->deep && lf_deep_open(&deep, o->model, err))
        return LF_EXIT_USAGE;
    for (int i = 0; i < o->operands.n; i++) {
        int code = verify_one(o->operands.v[i], deep, o->length);
        failed = failed || code == LF_EXIT_FAILED;
        unsure = unsure || code == LF_EXIT_UNDECIDED;
    }
    lf_deep_close(deep);
    return failed ? LF_EXIT_FAILED : unsure ? LF_EXIT_UNDECIDED : LF_EXIT_DONE;
}
