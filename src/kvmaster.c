/* SPDX-License-Identifier: Apache-2.0 */
#include "kvmaster.h"
#include "file.h"
#include "kvshare.h"
#include "kvwrite_parts.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char unfinished[] = ".part";

/* ---- places ---- */

static int ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);

    return n > k && !strcmp(text + n - k, end);
}

static size_t stem_length(const char *path)
{
    return strlen(path) - (ends_in(path, ".h5") ? 3 : 0);
}

void lf_kvmaster_name(char name[24], int rank)
{
    snprintf(name, 24, "r%04d.h5", rank);
}

char *lf_kvmaster_directory(const char *path)
{
    return lf_printf("%.*s.parts", (int)stem_length(path), path);
}

/* As the master names it: relative to its own directory. */
static char *relative_name(const char *path, int rank)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char name[24];

    lf_kvmaster_name(name, rank);
    return lf_printf("%.*s.parts/%s", (int)stem_length(base), base, name);
}

static char *part_path(const char *path, int rank, const char *end)
{
    char name[24], *dir = lf_kvmaster_directory(path);

    lf_kvmaster_name(name, rank);
    char *part = lf_printf("%s/%s%s", dir, name, end);
    free(dir);
    return part;
}

/* Calls `remove_it` for every name; returns how many it says yes to, and removes these when `doing`. */
static int sweep(const char *path, int (*remove_it)(const char *name, const void *ctx), const void *ctx, int doing)
{
    char *dir = lf_kvmaster_directory(path);
    DIR *d = opendir(dir);
    int n = 0;

    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] != 'r' || !remove_it(e->d_name, ctx))
            continue;
        n++;
        if (doing)
            (void)lf_file_remove(dirfd(d), e->d_name);     /* not what another job is writing */
    }
    if (d)
        closedir(d);
    if (doing)
        (void)rmdir(dir);
    free(dir);
    return n;
}

static int is_any(const char *name, const void *ctx)
{
    (void)ctx;
    return ends_in(name, ".h5") || ends_in(name, unfinished);
}

static int is_unfinished(const char *name, const void *ctx)
{
    (void)ctx;
    return ends_in(name, unfinished);
}

void lf_kvmaster_sweep(const char *path, lf_kv_sweep what)
{
    (void)sweep(path, what == LF_SWEEP_ALL ? is_any : is_unfinished, NULL, 1);
}

int lf_kvmaster_unfinished(const char *path)
{
    return sweep(path, is_unfinished, NULL, 0) > 0;
}

/* ---- a writer's file ---- */

int lf_kvmaster_create_part(lf_kvfile **out, const char *path, const lf_kv_meta *meta, int rank, int of, lf_err *err)
{
    char *dir = lf_kvmaster_directory(path), *part = part_path(path, rank, "");
    int rc = 0;

    if (of < 1 || rank < 0 || rank >= of)
        rc = lf_fail(err, "%s: there is no writer %d of %d", path, rank, of);
    else if (mkdir(dir, 0777) && errno != EEXIST)
        rc = lf_fail(err, "cannot create the directory %s: %s", dir, strerror(errno));
    else
        rc = lf_kvfile_begin(out, part, meta, rank, of, err);
    free(dir);
    free(part);
    return rc;
}

int lf_kvmaster_finish_part(lf_kvfile *f, lf_kv_written *out, lf_err *err)
{
    int rc = lf_kvfile_seal(f, &out->bytes, err) || lf_file_crc32c(f->part, &out->crc32c, err) ? -1 : 0;

    if (rc)
        unlink(f->part);
    lf_kvfile_free(f);
    return rc;
}

/* ---- virtual datasets ---- */

/* HDF5 takes a percent sign in the name of a file for the beginning of a pattern. */
static char *percent_doubled(const char *text)
{
    char *out = lf_alloc(2 * strlen(text) + 1), *to = out;

    for (; *text; text++) {
        *to++ = *text;
        if (*text == '%')
            *to++ = '%';
    }
    return out;
}

static hid_t rows_space(int64_t all, int64_t cols, int64_t from, int64_t rows)
{
    hsize_t dims[2] = { (hsize_t)all, (hsize_t)cols }, at[2] = { (hsize_t)from, 0 },
            count[2] = { (hsize_t)rows, (hsize_t)cols };
    hid_t s = H5Screate_simple(cols < 0 ? 1 : 2, dims, NULL);

    if (s >= 0 && H5Sselect_hyperslab(s, H5S_SELECT_SET, at, NULL, count, NULL) < 0) {
        H5Sclose(s);
        return -1;
    }
    return s;
}

static int range_map(hid_t layout, const char *file, const char *dataset, const lf_kv_table *whole,
                     const lf_kv_table *own, int64_t cols, int64_t before, lf_span r)
{
    hid_t to = rows_space(whole->rows, cols, r.from, r.to - r.from);
    hid_t from = rows_space(own->rows, cols, before, r.to - r.from);
    int bad = to < 0 || from < 0 || H5Pset_virtual(layout, to, file, dataset, from) < 0;

    if (to >= 0)
        H5Sclose(to);
    if (from >= 0)
        H5Sclose(from);
    return bad ? -1 : 0;
}

/* The rows of every writer; *mapped counts them. */
static int layout_map(hid_t layout, const lf_kvfile *f, int64_t number, int of, const lf_kv_table *whole,
                      const lf_kv_piece *p, int64_t *mapped)
{
    char dataset[128];

    snprintf(dataset, sizeof dataset, "%s%s", whole->path, p->suffix);
    for (int rank = 0; rank < of; rank++) {
        lf_kv_table own;
        int64_t before = 0;
        if (!lf_kv_share_at(&f->meta, number, rank, of, &own))
            continue;
        char *name = relative_name(f->path, rank), *file = percent_doubled(name);
        int bad = 0;
        for (int i = 0; i < own.ranges && !bad; i++) {
            bad = range_map(layout, file, dataset, whole, &own, p->cols, before, own.range[i]);
            before += own.range[i].to - own.range[i].from;
        }
        free(name);
        free(file);
        if (bad)
            return -1;
        *mapped += before;
    }
    return 0;
}

static int virtual_create(lf_kvfile *f, int64_t number, int of, const lf_kv_table *t, const lf_kv_piece *p, lf_err *err)
{
    char path[128];
    int64_t mapped = 0;
    hid_t layout = H5Pcreate(H5P_DATASET_CREATE), type = lf_h5_type(p->elem), d = -1;
    hid_t space = rows_space(t->rows, p->cols, 0, t->rows);
    int rc = 0;

    snprintf(path, sizeof path, "%s%s", t->path, p->suffix);
    if (lf_h5_parents(f->file, path, err))
        rc = lf_fail_in(err, "cannot write %s", f->part);
    else if (H5Pset_obj_track_times(layout, 0) < 0 || layout_map(layout, f, number, of, t, p, &mapped) ||
             (d = H5Dcreate2(f->file, path, type, space, H5P_DEFAULT, layout, H5P_DEFAULT)) < 0)
        rc = lf_h5_fail(err, "cannot write %s (%s)", f->part, path);
    else if (mapped != t->rows)
        rc = lf_fail(err, "%s: the writers have %lld of %lld row%s of %s", f->part, (long long)mapped,
                     (long long)t->rows, lf_s(t->rows), path);
    else if (lf_kvtable_attributes(d, t, p, err))
        rc = lf_fail_in(err, "cannot write %s (%s)", f->part, path);
    if (d >= 0 && H5Dclose(d) < 0 && !rc)
        rc = lf_h5_fail(err, "cannot write %s (%s)", f->part, path);
    H5Sclose(space);
    H5Tclose(type);
    H5Pclose(layout);
    return rc;
}

static int virtuals_create(lf_kvfile *f, int of, lf_err *err)
{
    lf_kv_table t;

    for (int64_t i = 0; i < lf_kv_tokens_number(&f->meta); i++) {
        if (!lf_kv_table_at(&f->meta, i, &t) || t.rows == 0)
            continue;
        for (int k = 0; k < t.pieces; k++) {
            if (virtual_create(f, i, of, &t, &t.piece[k], err))
                return -1;
        }
        f->written[i] = 1;
    }
    return 0;
}

/* ---- joining ---- */

static int parts_list(lf_kvfile *f, const lf_kv_written *part, int of, lf_err *err)
{
    f->listed = json_array();
    for (int r = 0; r < of; r++) {
        if (part[r].bytes == 0 && lf_kv_share_any(&f->meta, r, of))
            return lf_fail(err, "%s: writer %d of %d has rows and wrote no file", f->part, r, of);
        if (part[r].bytes == 0)
            continue;
        char *name = relative_name(f->path, r);
        json_t *one = json_pack("{s:s, s:i, s:I, s:I}", "name", name, "writer", r, "bytes",
                                (json_int_t)part[r].bytes, "crc32c", (json_int_t)part[r].crc32c);
        int bad = json_array_append_new(f->listed, one);
        free(name);
        if (bad)
            return lf_fail(err, "%s: the name is not UTF-8", f->part);
    }
    return 0;
}

/* All of them, as large as they were, before anything older is touched. */
static int parts_present(const char *path, const lf_kv_written *part, int of, lf_err *err)
{
    for (int r = 0; r < of; r++) {
        struct stat st;
        if (part[r].bytes == 0)
            continue;
        char *name = part_path(path, r, unfinished);
        int rc = stat(name, &st) ? lf_fail(err, "%s: %s", name, strerror(errno))
                 : (uint64_t)st.st_size != part[r].bytes
                     ? lf_fail(err, "%s has %lld byte%s instead of %llu", name, (long long)st.st_size, lf_s(st.st_size),
                               (unsigned long long)part[r].bytes)
                     : 0;
        free(name);
        if (rc)
            return -1;
    }
    return 0;
}

typedef struct current {
    const lf_kv_written *part;
    int of;
} current;

static int is_old(const char *name, const void *ctx)
{
    const current *now = ctx;
    char want[24 + sizeof unfinished], *end;
    long r = strtol(name + 1, &end, 10);

    if (r >= 0 && r < now->of && now->part[r].bytes) {
        lf_kvmaster_name(want, (int)r);
        if (!strcmp(strcat(want, unfinished), name))
            return 0;
    }
    return is_any(name, NULL);
}

static int parts_rename(const char *path, const lf_kv_written *part, int of, lf_err *err)
{
    int rc = 0;

    for (int r = 0; r < of && !rc; r++) {
        if (part[r].bytes == 0)
            continue;
        char *from = part_path(path, r, unfinished), *to = part_path(path, r, "");
        if (rename(from, to))
            rc = lf_fail(err, "cannot rename %s to %s: %s", from, to, strerror(errno));
        free(from);
        free(to);
    }
    if (!rc) {
        char *any = part_path(path, 0, "");
        lf_file_sync_directory(any);
        free(any);
    }
    return rc;
}

/* From here on the older file is gone. */
static int replace(lf_kvfile *f, const lf_kv_written *part, int of, lf_err *err)
{
    current now = { part, of };
    int rc = 0;

    if (unlink(f->path) && errno != ENOENT)
        return lf_fail(err, "cannot remove the older %s: %s", f->path, strerror(errno));
    (void)sweep(f->path, is_old, &now, 1);
    rc = parts_rename(f->path, part, of, err) || lf_kvfile_rename(f, err) ? -1 : 0;
    if (rc)
        lf_kvmaster_sweep(f->path, LF_SWEEP_ALL);
    return rc;
}

int lf_kvmaster_join(const char *path, const lf_kv_meta *meta, const uint32_t *ids, const lf_kv_written *part, int of,
                     uint64_t *bytes, lf_err *err)
{
    uint64_t own = 0;
    lf_kvfile *f;

    if (lf_kvfile_create(&f, path, meta, err)) {
        lf_kvmaster_sweep(path, LF_SWEEP_UNFINISHED);
        return -1;
    }
    int rc = parts_list(f, part, of, err) || virtuals_create(f, of, err) || lf_kvfile_put_tokens(f, ids, err) ||
             lf_kvfile_seal(f, &own, err) || parts_present(path, part, of, err) || replace(f, part, of, err) ? -1 : 0;
    if (rc) {
        unlink(f->part);
        lf_kvmaster_sweep(path, LF_SWEEP_UNFINISHED);
    }
    for (int r = 0; bytes && r < of; r++)
        own += part[r].bytes;
    if (bytes)
        *bytes = own;
    lf_kvfile_free(f);
    return rc;
}
