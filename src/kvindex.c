/* SPDX-License-Identifier: Apache-2.0 */
#include "kvindex.h"
#include "file.h"
#include "kvmaster.h"
#include "kvwrite_parts.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLAIN_LIMIT = 100, CUT_LIMIT = 80 };

/* ---- the directory ---- */

static int directory_make(const char *path, lf_err *err)
{
    struct stat st;

    if (mkdir(path, 0777) && errno != EEXIST)
        return lf_fail(err, "cannot create the directory %s: %s", path, strerror(errno));
    if (stat(path, &st))
        return lf_fail(err, "cannot use %s: %s", path, strerror(errno));
    return S_ISDIR(st.st_mode) ? 0 : lf_fail(err, "%s is there and is not a directory; give another -o/--output", path);
}

static int directory_parents(const char *path, lf_err *err)
{
    char *above = lf_strdup(path);
    int rc = 0;

    for (char *p = strchr(above + 1, '/'); p && !rc; p = strchr(p + 1, '/')) {
        *p = 0;
        if (p[1] && p[1] != '/')
            rc = directory_make(above, err);
        *p = '/';
    }
    free(above);
    return rc;
}

/* Rights, quotas and read-only mounts: only writing tells. */
static int directory_try(const char *path, lf_err *err)
{
    char *probe = lf_printf("%s/.probe-%ld.part", path, (long)getpid());
    int fd = open(probe, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int bad = fd < 0 || write(fd, "x", 1) != 1 || fsync(fd), why = errno;

    if (fd >= 0) {
        close(fd);
        unlink(probe);
    }
    free(probe);
    return bad ? lf_fail(err, "cannot write in the directory %s: %s", path, strerror(why)) : 0;
}

int lf_kvindex_prepare(const char *out, lf_err *err)
{
    if (!out[0])
        return lf_fail(err, "the output directory has no name");
    char *kv = lf_printf("%s/kv", out);
    int rc = directory_parents(kv, err) || directory_make(kv, err) || directory_try(out, err) ||
             directory_try(kv, err) ? -1 : 0;

    free(kv);
    return rc;
}

/* ---- names ---- */

static int is_plain(const char *id)
{
    size_t n = strlen(id);

    if (n < 1 || n > PLAIN_LIMIT || id[0] == '.' || id[0] == '-' || id[n - 1] == '.')
        return 0;
    return strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

char *lf_kvindex_name(const char *id)
{
    char cut[CUT_LIMIT + 1], sha[65];
    size_t n = 0;

    if (is_plain(id))
        return lf_strdup(id);
    for (const char *p = id; *p && n < CUT_LIMIT; p++) {
        unsigned char c = (unsigned char)*p;
        if ((c & 0xc0) == 0x80)
            continue;                      /* one _ for a character of several bytes */
        int keep = c < 128 && (isalnum(c) || (n > 0 && (c == '.' || c == '-')));
        cut[n++] = keep ? *p : '_';
    }
    cut[n] = 0;
    lf_sha256_hex(id, strlen(id), sha);
    return lf_printf("%s~%.12s", cut, sha);
}

char *lf_kvindex_path(const char *out, const char *id)
{
    char *name = lf_kvindex_name(id), *path = lf_printf("%s/kv/%s.h5", out, name);

    free(name);
    return path;
}

typedef struct named {
    char *name;
    const char *id;
} named;

static int named_order(const void *a, const void *b)
{
    return strcasecmp(((const named *)a)->name, ((const named *)b)->name);
}

int lf_kvindex_check_names(int64_t n, const char *const *ids, lf_err *err)
{
    named *v = lf_alloc((size_t)n * sizeof *v);
    int rc = 0;

    for (int64_t i = 0; i < n; i++)
        v[i] = (named){ lf_kvindex_name(ids[i]), ids[i] };
    qsort(v, (size_t)n, sizeof *v, named_order);
    for (int64_t i = 1; i < n && !rc; i++) {
        if (named_order(&v[i - 1], &v[i]) == 0)
            rc = lf_fail(err, "the ids \"%.200s\" and \"%.200s\" would share the file name kv/%s.h5; rename one",
                         v[i - 1].id, v[i].id, v[i].name);
    }
    for (int64_t i = 0; i < n; i++)
        free(v[i].name);
    free(v);
    return rc;
}

/* ---- resuming ---- */

/* The first key that differs, and both values as text; owned by the caller. */
static int first_difference(const char *a, const char *b, const char **key, char **in_a, char **in_b, json_t **hold)
{
    json_t *x = json_loads(a, 0, NULL), *y = json_loads(b, 0, NULL);
    const char *k;
    json_t *v;
    int found = 0;

    *hold = json_pack("[o, o]", x, y);
    for (int side = 0; side < 2 && !found; side++) {
        json_object_foreach(side ? y : x, k, v) {
            if (json_equal(json_object_get(x, k), json_object_get(y, k)))
                continue;
            json_t *xv = json_object_get(x, k), *yv = json_object_get(y, k);
            *key = k;
            *in_a = xv ? json_dumps(xv, JSON_ENCODE_ANY) : NULL;
            *in_b = yv ? json_dumps(yv, JSON_ENCODE_ANY) : NULL;
            found = 1;
            break;
        }
    }
    return found;
}

/* Of a key that is a digest: what differs, in words. */
static const char *made_with(const char *key)
{
    return !strcmp(key, "config_sha256") ? "another model" : !strcmp(key, "weights_id") ? "other weights"
         : !strcmp(key, "tokenizer_sha256") ? "another tokenizer" : NULL;
}

static int identity_check(const char *path, const lf_kv_meta *file, const lf_kv_meta *run, lf_err *err)
{
    char *a = lf_kv_identity(file, 0), *b = lf_kv_identity(run, 0), *in_a = NULL, *in_b = NULL;
    const char *key = "";
    json_t *hold = NULL;
    int rc = 0;

    if (!a || !b)
        rc = lf_fail(err, "%s: custom_id or an identity is not UTF-8", path);
    else if (strcmp(a, b) && first_difference(a, b, &key, &in_a, &in_b, &hold)) {
        const char *made = made_with(key);
        rc = lf_fail(err, "%s is there%s%s%s%s %.160s, and this run has %.160s%s; give --overwrite to replace it, "
                     "or another -o/--output", path, made ? ", made with " : " with ", made ? made : "",
                     made ? " (" : "", key, in_a ? in_a : "none", in_b ? in_b : "none", made ? ")" : "");
    }
    json_decref(hold);
    free(in_a);
    free(in_b);
    free(a);
    free(b);
    return rc;
}

/* The pages chain, so the last hash stands for all tokens; the first that differs says where. */
static int tokens_check(lf_kvread *r, const char *path, const uint32_t *ids, int *unreadable, lf_err *err)
{
    int64_t n = lf_kvread_meta(r)->num_tokens, pages = lf_kv_page_count(n);
    uint8_t *want = lf_alloc(32 * (size_t)pages), *have = lf_alloc(32 * (size_t)pages);
    int rc = lf_kvread_page_hash(r, have, err);

    *unreadable = rc != 0;
    lf_kv_page_hash(ids, n, want);
    for (int64_t i = 0; i < pages && !rc; i++) {
        if (memcmp(want + 32 * i, have + 32 * i, 32))
            rc = lf_fail(err, "%s is there with other tokens (from %lld on, within 256); give --overwrite to replace "
                         "it, or another -o/--output", path, (long long)i * LF_PAGE);
    }
    free(want);
    free(have);
    return rc;
}

static int found_check(const char *path, const lf_kv_meta *meta, const uint32_t *ids, lf_kv_check how,
                       lf_kvfound *found, lf_err *err)
{
    lf_kvread *r;
    lf_kv_report report;
    int unreadable = 0;

    if (lf_kvread_open(&r, path, err)) {
        found->why = *err;
        return 0;
    }
    int rc = identity_check(path, lf_kvread_meta(r), meta, err);
    found->bytes += (uint64_t)lf_kvread_part_bytes(r);
    if (!rc) {
        int damaged = lf_kvread_verify(r, how, &report, err);
        if (!damaged)
            rc = tokens_check(r, path, ids, &unreadable, err);
        if (damaged || unreadable) {
            found->why = *err;
            rc = 0;
        } else {
            found->skip = !rc;
        }
    }
    if (found->skip && !lf_kvread_parts(r))
        lf_kvmaster_sweep(path, LF_SWEEP_ALL);
    lf_kvread_close(r);
    return rc;
}

int lf_kvindex_finished(const char *out, const char *id)
{
    char *path = lf_kvindex_path(out, id), *part = lf_printf("%s.part", path);
    int finished = access(path, F_OK) == 0 && access(part, F_OK) != 0 && !lf_kvmaster_unfinished(path);

    free(path);
    free(part);
    return finished;
}

int lf_kvindex_resume(const char *out, const lf_kv_meta *meta, const uint32_t *ids, lf_kv_check how, int overwrite,
                      lf_kvfound *found, lf_err *err)
{
    char *path = lf_kvindex_path(out, meta->custom_id), *part = lf_printf("%s.part", path);
    struct stat st;
    int rc = 0;

    memset(found, 0, sizeof *found);
    if (lf_file_remove(AT_FDCWD, part) && errno != ENOENT)
        rc = errno == EWOULDBLOCK ? lf_fail(err, "%s: " LF_KV_CLAIMED, part)
                                  : lf_fail(err, "cannot remove the unfinished file %s: %s", part, strerror(errno));
    int there = !stat(path, &st);
    if (!rc && there && !S_ISREG(st.st_mode))
        rc = lf_fail(err, "%s is there and is not a regular file: move it away, or give another -o/--output", path);
    if (!rc)
        lf_kvmaster_sweep(path, there ? LF_SWEEP_UNFINISHED : LF_SWEEP_ALL);
    if (!rc && !overwrite && there) {
        found->bytes = (uint64_t)st.st_size;
        rc = found_check(path, meta, ids, how, found, err);
    }
    free(part);
    free(path);
    return rc;
}
