/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts that a master lists: a virtual dataset silently reads fill values where they are not.
 */
#include "kvread_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const json_t *listed(const lf_kvread *r, int i)
{
    return json_array_get(r->list, (size_t)i);
}

const char *lf_kvread_part_name(const lf_kvread *r, int i)
{
    return json_string_value(json_object_get(listed(r, i), "name"));
}

/* Where HDF5 looks too: beside the file itself, whatever leads to it. */
static char *part_path(const lf_kvread *r, int i)
{
    char *real = realpath(r->path, NULL);
    const char *from = real ? real : r->path, *slash = strrchr(from, '/');
    char *path = lf_printf("%.*s%s", slash ? (int)(slash - from) + 1 : 0, from, lf_kvread_part_name(r, i));

    free(real);
    return path;
}

static int64_t part_size(const lf_kvread *r, int i)
{
    return json_integer_value(json_object_get(listed(r, i), "bytes"));
}

uint32_t lf_kvread_part_crc(const lf_kvread *r, int i)
{
    return (uint32_t)json_integer_value(json_object_get(listed(r, i), "crc32c"));
}

int lf_kvread_parts(const lf_kvread *r)
{
    return (int)json_array_size(r->list);
}

int64_t lf_kvread_part_bytes(const lf_kvread *r)
{
    int64_t sum = 0;

    for (int i = 0; i < lf_kvread_parts(r); i++)
        sum += part_size(r, i);
    return sum;
}

/* ---- one part ---- */

static int size_check(const lf_kvread *r, int i, const char *path, lf_err *err)
{
    struct stat st;

    if (stat(path, &st))
        return lf_fail(err, "%s: its part %s: %s; a file of several ranks goes together with its .parts directory",
                       r->path, path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size != part_size(r, i))
        return lf_fail(err, "%s: its part %s has %lld byte%s instead of %lld", r->path, path, (long long)st.st_size,
                       lf_s(st.st_size), (long long)part_size(r, i));
    return 0;
}

/* Writers begin their files at times of their own. */
static int same_identity(json_t *a, json_t *b)
{
    json_t *x = json_copy(a), *y = json_copy(b);

    json_object_del(x, "created");
    json_object_del(y, "created");
    int same = json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

static int identity_check(lf_kvread *part, const lf_kvread *r, int i, lf_err *err)
{
    int64_t writer = -1, want = json_integer_value(json_object_get(listed(r, i), "writer")), complete = 0;

    part->identity = lf_kvread_sealed(part->file, "identity", JSON_OBJECT, err);
    if (!part->identity || lf_h5_get_i64(part->file, "writer", &writer, err) ||
        lf_h5_get_i64(part->file, "complete", &complete, err))
        return -1;
    if (!same_identity(part->identity, r->identity))
        return lf_fail(err, "it is of another prompt or run");
    return writer == want && complete == 1 ? 0 : lf_fail(err, "it is not that of writer %lld", (long long)want);
}

int lf_kvread_part_open(lf_kvread **out, const lf_kvread *r, int i, lf_err *err)
{
    lf_kvread *part = lf_alloc(sizeof *part);

    part->path = part_path(r, i);
    part->meta = r->meta;
    part->file = -1;
    int rc = size_check(r, i, part->path, err);
    if (!rc) {
        part->file = lf_kvread_file(part->path, err);
        rc = part->file < 0 || identity_check(part, r, i, err)
                 ? lf_fail_in(err, "%s: its part %s", r->path, part->path) : 0;
    }
    if (rc) {
        lf_kvread_close(part);
        return -1;
    }
    *out = part;
    return 0;
}

/* ---- all ---- */

static int entry_check(const lf_kvread *r, int i, lf_err *err)
{
    const char *name = lf_kvread_part_name(r, i);

    if (!name || !name[0] || name[0] == '/' || strstr(name, ".."))
        return lf_fail(err, "%s: listed part %d does not lie below the file's directory", r->path, i);
    return 0;
}

int lf_kvread_list(lf_kvread *r, lf_err *err)
{
    lf_kvread *part;

    int parts = lf_h5_has_path(r->file, "/parts");
    if (!parts && r->tail == LF_TAIL_MASTER)
        return lf_fail(err, "%s is damaged, or was changed: its last line is that of a file of several ranks; "
                       "run the prompt again", r->path);
    if (!parts)
        return 0;
    hid_t g = H5Gopen2(r->file, "/parts", H5P_DEFAULT);
    if (g < 0)
        return lf_h5_fail(err, "%s: group /parts", r->path);
    r->list = lf_kvread_sealed(g, "list", JSON_ARRAY, err);
    H5Gclose(g);
    if (!r->list)
        return lf_fail_in(err, "%s: group /parts", r->path);
    if (r->tail != LF_TAIL_MASTER)
        return lf_fail(err, "%s is damaged, or was changed: it does not end with a checksum, as files of several ranks "
                       "do; run the prompt again", r->path);
    for (int i = 0; i < lf_kvread_parts(r); i++) {
        if (entry_check(r, i, err) || lf_kvread_part_open(&part, r, i, err))
            return -1;
        lf_kvread_close(part);
    }
    return 0;
}

int lf_kvread_part_table(lf_kvread *part, int64_t number, lf_kv_table *t, lf_err *err)
{
    char path[128];
    int64_t range[2 * LF_KV_RANGES], before = 0, all = 0;
    int rc = 0;

    if (!lf_kv_table_at(&part->meta, number, t) || number >= lf_kv_tokens_number(&part->meta))
        return 0;
    snprintf(path, sizeof path, "%s%s", t->path, t->piece[0].suffix);
    if (!lf_h5_has_path(part->file, path))
        return 0;
    hid_t d = H5Dopen2(part->file, path, H5P_DEFAULT);
    if (d < 0)
        return lf_h5_fail(err, "%s: %s", part->path, path);
    rc = lf_h5_get_i64s(d, "rows", LF_KV_RANGES, 2, &t->ranges, range, err);
    H5Dclose(d);
    for (int i = 0; i < t->ranges && !rc; i++) {
        lf_span s = { range[2 * i], range[2 * i + 1] };
        if (s.from < before || s.to <= s.from || s.to > t->rows)
            rc = lf_fail(err, "rows %lld..%lld are out of order or not there", (long long)s.from, (long long)s.to - 1);
        t->range[i] = s;
        before = s.to;
        all += s.to - s.from;
    }
    t->rows = all;
    t->first_position = -1;
    return rc ? lf_fail_in(err, "%s: %s", part->path, path) : 1;
}
