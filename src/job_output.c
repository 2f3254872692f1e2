/* SPDX-License-Identifier: Apache-2.0 */
#include "job_store.h"
#include "kvindex.h"
#include "log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

int lf_job_names(const lf_job *j, lf_err *err)
{
    const char **id = lf_alloc((size_t)j->requests.n * sizeof *id);

    for (int64_t i = 0; i < j->requests.n; i++)
        id[i] = j->requests.v[i].id;
    int bad = lf_kvindex_check_names(j->requests.n, id, err);
    free(id);
    return bad;
}

/* ---- what an earlier run left ---- */

static int request_resume(lf_job *j, int64_t i, lf_err *err)
{
    lf_kv_meta meta = lf_job_meta(j, i);
    lf_kvfound found;

    /* Another job may be writing into the same directory: a dry run looks at finished files, touching nothing. */
    if (j->o->dry_run && !lf_kvindex_finished(j->o->output, j->requests.v[i].id))
        return 0;
    if (lf_kvindex_resume(j->o->output, &meta, j->requests.v[i].ids, LF_CHECK_SHAPES, j->o->overwrite, &found,
                          err))
        return -1;
    if (found.why.text[0])
        lf_warn("%s: it will be replaced", found.why.text);
    j->skip[i] = found.skip != 0;
    j->skip_bytes[i] = found.skip ? (int64_t)found.bytes : 0;
    return 0;
}

static int resume(lf_job *j, lf_err *err)
{
    j->skip = lf_alloc((size_t)j->requests.n);
    j->skip_bytes = lf_alloc((size_t)j->requests.n * sizeof *j->skip_bytes);
    for (int64_t i = 0; i < j->requests.n; i++)
        if (request_resume(j, i, err))
            return -1;
    return 0;
}

/* ---- results.jsonl ---- */

/* The ids that have a line of success. */
static json_t *lines_read(const char *out)
{
    char *path = lf_printf("%s/results.jsonl", out), *line = NULL;
    FILE *f = fopen(path, "re");
    json_t *seen = json_object();
    size_t room = 0;
    ssize_t n;

    while (f && (n = getline(&line, &room, f)) > 0) {
        json_t *j = json_loadb(line, (size_t)n, 0, NULL);
        const char *id = json_string_value(json_object_get(j, "custom_id"));
        const char *status = json_string_value(json_object_get(j, "status"));
        if (id && status)
            json_object_set_new(seen, id, json_boolean(strcmp(status, "failed") != 0));
        json_decref(j);
    }
    if (f)
        fclose(f);
    free(line);
    free(path);
    return seen;
}

lf_result lf_job_result(const lf_job *j, int64_t request)
{
    const lf_request *r = &j->requests.v[request];

    return (lf_result){ .custom_id = r->id, .num_tokens = r->tokens, .bytes = -1, .ttft_s = NAN,
                        .compute_s = NAN, .write_s = NAN, .durable_s = NAN, .rank = j->rank,
                        .numerics = j->o->numerics == LF_EXACT ? "exact" : "released",
                        .kv_dtype = lf_kv_dtype_name(j->kv_dtype) };
}

static int line_skipped(lf_job *j, int64_t request, lf_err *err)
{
    lf_result line = lf_job_result(j, request);
    char *path = lf_job_relative(line.custom_id);

    line.status = LF_STATUS_SKIPPED;
    line.path = path;
    line.bytes = j->skip_bytes[request];
    int bad = lf_results_append(j->results, &line, err);
    free(path);
    return bad;
}

/* A run that died between a file's name and its line left a file without one. */
static int results_complete(lf_job *j, lf_err *err)
{
    json_t *seen = lines_read(j->o->output);
    int bad = 0;

    for (int64_t i = 0; i < j->requests.n && !bad; i++)
        if (j->skip[i] && !json_is_true(json_object_get(seen, j->requests.v[i].id)))
            bad = line_skipped(j, i, err);
    json_decref(seen);
    return bad;
}

/* ---- the directory ---- */

/* It, or the nearest directory above that is there; the caller's. */
static char *directory_near(const char *out)
{
    char *path = lf_strdup(out);
    struct stat st;

    while (stat(path, &st) && errno == ENOENT && strchr(path, '/')) {
        char *slash = strrchr(path, '/');
        slash[slash == path] = 0;
        if (slash == path)
            break;
    }
    return path;
}

double lf_job_kv_bytes(const lf_job *j)
{
    double sum = 0;

    for (int64_t i = 0; i < j->plan.n; i++)
        sum += lf_kv_bytes(&j->model, j->kv_dtype, j->requests.v[j->plan.order[i]].tokens);
    return sum;
}

void lf_job_space(const lf_job *j)
{
    char *path = directory_near(j->o->output), need[24], have[24];
    double bytes = lf_job_kv_bytes(j);
    struct statvfs v;
    int known = !statvfs(path, &v) || (!strchr(path, '/') && !statvfs(".", &v));

    if (known && bytes > (double)v.f_bavail * (double)v.f_frsize)
        lf_warn("%s: the files need %s and the file system has %s left: the run ends when it is full", j->o->output,
                lf_human_bytes(need, bytes), lf_human_bytes(have, (double)v.f_bavail * (double)v.f_frsize));
    free(path);
}

/* Without making it: it has to take files. */
static int directory_look(const char *out, lf_err *err)
{
    char *path = directory_near(out);
    struct stat st;
    int there = stat(path, &st) == 0;
    const char *of = there || strchr(path, '/') ? path : ".";
    int bad = there && !S_ISDIR(st.st_mode) ? lf_fail(err, "cannot use %s: %s is not a directory", out, of)
              : access(of, W_OK | X_OK)     ? lf_fail(err, "cannot use %s: %s: %s", out, of, strerror(errno))
                                            : 0;
    free(path);
    return bad;
}

/* Hours later is too late to hear that it cannot be written. */
static int report_look(const char *path, lf_err *err)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    char *dir = slash ? lf_printf("%.*s/", (int)(slash - path), path) : lf_strdup(".");
    int bad = path && access(dir, W_OK | X_OK);

    if (bad)
        lf_fail(err, "--report %s: %s: %s", path, dir, strerror(errno));
    free(dir);
    return bad;
}

int lf_job_output(lf_job *j, lf_err *err)
{
    const char *out = j->o->output;

    if (report_look(j->o->report, err))
        return -1;
    if (j->o->dry_run)
        return directory_look(out, err) || resume(j, err) ? -1 : 0;
    if (lf_kvindex_prepare(out, err) || lf_results_open(&j->results, out, 1, err) || resume(j, err))
        return -1;
    return results_complete(j, err);
}
