/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of several writers that cannot be written, are replaced or damaged: parts that are absent, cut, changed or
 * another prompt's are refused by name, nothing half-written is left, and what was there before stays whole.
 */
#include "tap.h"
#include "kv_several.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* HDF5 keeps memory of files that it could not close or open; the leak sanitizer, where it is on, asks here. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}

/* ---- damage ---- */

static char *part_at(int rank)
{
    char name[24], *dir = lf_kvmaster_directory(master);

    lf_kvmaster_name(name, rank);
    char *path = lf_printf("%s/%s", dir, name);
    free(dir);
    return path;
}

static int copy_start(const char *from, const char *to, int64_t bytes)
{
    lf_err err;
    char *data;
    size_t n;

    if (lf_file_read(from, (size_t)1 << 30, &data, &n, &err))
        return -1;
    int rc = lf_file_replace(to, data, (size_t)bytes, &err);
    free(data);
    return rc;
}

static void damaged(void)
{
    lf_err err = { "" };
    fixture x;
    lf_kvread *r;
    lf_kv_report report;
    struct stat st;

    if (begin(&x, 700, LF_KV_FP8, &err) || write_all(&x, 3, NULL, &err)) {
        TAP_CHECK(0, "written: %s", err.text);
        return;
    }
    char *part = part_at(1), *other = part_at(2), *aside = lf_printf("%s/aside", x.dir);
    stat(part, &st);
    rename(part, aside);
    TAP_CHECK(lf_kvread_open(&r, master, &err) && strstr(err.text, part) && strstr(err.text, "No such file"),
              "absent: %s", err.text);
    rename(aside, part);
    rename(part, aside);
    TAP_CHECK(!copy_start(aside, part, st.st_size - 1) && lf_kvread_open(&r, master, &err) && strstr(err.text, part) &&
                  strstr(err.text, "bytes instead of"),
              "cut: %s", err.text);
    rename(aside, part);
    TAP_CHECK(lf_kvread_open(&r, part, &err) && strstr(err.text, "part of one writer"),
              "a part is no file of its own: %s", err.text);
    int bad = 0, found = 0, tried = 0;
    for (int64_t at = 0; at < st.st_size; at += st.st_size / 97, tried++) {
        fixture_flip(part, at);
        int rc = fixture_verify(master, &report, &err);
        found += rc != 0;
        TAP_QUIET(bad, !rc || strstr(err.text, "r0001.h5"), "byte %d: %s", (int)at, err.text);
        fixture_flip(part, at);
    }
    TAP_CHECK(bad == 0 && found == tried, "%d of %d changed bytes of a part are found, and the part named", found,
              tried);
    TAP_CHECK(!fixture_verify(master, &report, &err), "and nothing is when they are as before: %s", err.text);
    rename(part, aside);
    TAP_CHECK(!link(other, part) && lf_kvread_open(&r, master, &err) && strstr(err.text, part), "another's: %s",
              err.text);
    unlink(part);
    rename(aside, part);
    free(part);
    free(other);
    free(aside);
    end(&x);
}

/* HDF5 itself would loop for ever, or end the process, where the heap of a master's virtual datasets is not whole. */
static void damaged_master(void)
{
    lf_kv_report report;
    lf_err err = { "" };
    size_t bytes = 0;
    char *data = NULL;
    fixture x;

    if (begin(&x, 700, LF_KV_FP8, &err) || write_all(&x, 3, NULL, &err) ||
        lf_file_read(master, (size_t)1 << 30, &data, &bytes, &err)) {
        TAP_CHECK(0, "written: %s", err.text);
        return;
    }
    int bad = 0, tried = 0;
    alarm(120);                            /* a hang fails too */
    for (size_t at = 0; at < bytes; at += 512) {
        size_t n = bytes - at < 512 ? bytes - at : 512, zeros = 0;
        char saved[512];
        for (size_t i = 0; i < n; i++)
            zeros += data[at + i] == 0;
        if (zeros == n)
            continue;
        memcpy(saved, data + at, n);
        memset(data + at, 0, n);
        TAP_QUIET(bad, !lf_file_replace(master, data, bytes, &err) && fixture_verify(master, &report, &err) &&
                  strstr(err.text, master), "512 zeros at %zu: %s", at, err.text);
        memcpy(data + at, saved, n);
        tried++;
    }
    TAP_CHECK(bad == 0 && tried > 20, "%d blocks of zeros in a master are found, and it is named", tried);
    TAP_CHECK(!lf_file_replace(master, data, bytes - 64, &err) && fixture_verify(master, &report, &err) &&
                  strstr(err.text, "does not end with a checksum"), "its checksum has to be there: %s", err.text);
    TAP_CHECK(!lf_file_replace(master, data, bytes, &err) && !fixture_verify(master, &report, &err),
              "as it was it is whole: %s", err.text);
    alarm(0);
    free(data);
    end(&x);
}

/* The part of another prompt of the same size has the same names, shapes and number of bytes. */
static void foreign(void)
{
    lf_err err = { "" };
    fixture x;
    lf_kvread *r;

    if (begin(&x, 700, LF_KV_FP8, &err) || write_all(&x, 2, NULL, &err)) {
        TAP_CHECK(0, "written: %s", err.text);
        return;
    }
    char *part = part_at(0), *aside = lf_printf("%s/aside", x.dir);
    rename(part, aside);
    x.meta.custom_id = "fixture-2";
    TAP_CHECK(!write_all(&x, 2, NULL, &err) && !rename(aside, part) && lf_kvread_open(&r, master, &err) &&
                  strstr(err.text, part) && strstr(err.text, "another prompt"),
              "%s", err.text);
    free(part);
    free(aside);
    end(&x);
}

/* ---- writers that do what they must not, and failures ---- */

static void wrong_rows(void)
{
    lf_err err = { "" };
    fixture x;
    lf_kvfile *f;
    lf_kv_table own;
    lf_kv_written part[3] = { { 0 } };

    if (begin(&x, 700, LF_KV_BF16, &err))
        return;
    int64_t number = lf_kv_part_number(&x.meta, 0, 1, LF_PART_COMPRESSED);
    lf_kv_share_at(&x.meta, number, 1, 3, &own);
    TAP_CHECK(lf_kvmaster_create_part(&f, master, &x.meta, 3, 3, &err), "no writer 3 of 3: %s", err.text);
    TAP_CHECK(!lf_kvmaster_create_part(&f, master, &x.meta, 1, 3, &err) &&
                  fixture_put(f, &x.meta, number, own.range[0].from - 1, 2, &err) &&
                  strstr(err.text, "not all this writer's"),
              "rows of another: %s", err.text);
    lf_kvfile_abandon(f);
    TAP_CHECK(!lf_kvmaster_create_part(&f, master, &x.meta, 1, 3, &err) && fixture_put_tokens(f, &x.meta, &err),
              "tokens are the master's: %s", err.text);
    lf_kvfile_abandon(f);
    TAP_CHECK(!lf_kvmaster_create_part(&f, master, &x.meta, 1, 3, &err) && lf_kvmaster_finish_part(f, &part[1], &err) &&
                  strstr(err.text, "was never put"),
              "rows that are missing: %s", err.text);
    TAP_CHECK(!parts_write(&x, 3, part, &err), "three parts");
    lf_kv_written none = part[2];
    part[2].bytes = 0;
    TAP_CHECK(master_join(&x, 3, part, NULL, &err) && strstr(err.text, "writer 2 of 3 has rows") &&
                  access(master, F_OK) && in_parts("") == 0,
              "a writer without its file: %s", err.text);
    part[2] = none;
    TAP_CHECK(master_join(&x, 3, part, NULL, &err) && strstr(err.text, "r0000.h5.part: No such file") &&
                  access(master, F_OK),
              "files that went away: %s", err.text);
    end(&x);
}

/* A file that may not grow further stands for a full disk. */
static void full_disk(void)
{
    lf_err err = { "" };
    fixture x;
    struct rlimit before;
    struct stat st;
    lf_kv_written part[3];
    lf_kv_report report;
    int bad = 0;

    if (begin(&x, 700, LF_KV_BF16, &err) || write_all(&x, 2, NULL, &err) || stat(master, &st)) {
        TAP_CHECK(0, "written: %s", err.text);
        return;
    }
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    for (int i = 0; i < 9; i++) {
        struct rlimit now = { (rlim_t)(st.st_size * i / 9), before.rlim_max };
        int rc = parts_write(&x, 3, part, &err);
        setrlimit(RLIMIT_FSIZE, &now);
        rc = !rc && master_join(&x, 3, part, NULL, &err) && strstr(err.text, "File too large");
        setrlimit(RLIMIT_FSIZE, &before);
        TAP_QUIET(bad, rc && in_parts(".part") == 0 && in_parts(".h5") == 2, "limit %d: %s", i, err.text);
        TAP_QUIET(bad, !fixture_verify(master, &report, &err), "limit %d, the older file: %s", i, err.text);
    }
    TAP_CHECK(bad == 0, "no room for a master: the older file stays whole and nothing else");
    for (int i = 0; i < 5; i++) {
        struct rlimit now = { (rlim_t)(3000 * i), before.rlim_max };
        setrlimit(RLIMIT_FSIZE, &now);
        int rc = part_write(&x, 1, 3, &part[1], &err);
        setrlimit(RLIMIT_FSIZE, &before);
        TAP_QUIET(bad, rc && in_parts(".part") == 0, "limit %d: %s", i, err.text);
    }
    TAP_CHECK(bad == 0, "no room for a part: none is left");
    end(&x);
}

/* ---- replacing and resuming ---- */

static void replaced(void)
{
    lf_err err = { "" };
    fixture x;
    lf_kv_report report;

    if (begin(&x, 900, LF_KV_FP8, &err) || write_all(&x, 5, NULL, &err)) {
        TAP_CHECK(0, "written: %s", err.text);
        return;
    }
    TAP_CHECK(in_parts("") == 5 && !write_all(&x, 2, NULL, &err) && in_parts("") == 2 &&
                  !fixture_verify(master, &report, &err),
              "two writers' file replaces that of five: %s", err.text);
    char *plain = lf_strdup(x.path);
    snprintf(x.path, sizeof x.path, "%s", master);
    TAP_CHECK(!fixture_write(&x, -1, &err) && in_parts("") == 0 && !fixture_verify(master, &report, &err),
              "one writer's replaces it, and its parts are gone: %s", err.text);
    TAP_CHECK(!write_all(&x, 3, NULL, &err) && in_parts("") == 3 && !fixture_verify(master, &report, &err),
              "three writers' replaces that: %s", err.text);
    snprintf(x.path, sizeof x.path, "%s", plain);
    free(plain);
    end(&x);
}

static void resumed(void)
{
    lf_err err = { "" };
    fixture x;
    lf_kvfound found;
    uint64_t bytes = 0;
    lf_kv_written part[3];

    if (begin(&x, 300, LF_KV_FP8, &err) || lf_kvindex_prepare(x.dir, &err)) {
        TAP_CHECK(0, "prepared: %s", err.text);
        return;
    }
    char *path = lf_kvindex_path(x.dir, x.meta.custom_id);
    char *parts = lf_kvmaster_directory(path), *one = lf_printf("%s/r0001.h5", parts);
    uint32_t *ids = lf_alloc(4 * 300);
    for (int i = 0; i < 300; i++)
        ids[i] = fixture_token(&x.meta, i);
    snprintf(master, sizeof master, "%s", path);
    TAP_CHECK(!parts_write(&x, 2, part, &err) && in_parts(".part") == 2 &&
                  !lf_kvindex_finished(x.dir, x.meta.custom_id),
              "parts of an interrupted run");
    TAP_CHECK(!lf_kvindex_resume(x.dir, &x.meta, ids, LF_CHECK_BYTES, 0, &found, &err) && !found.skip &&
                  in_parts("") == 0,
              "are removed: %s", err.text);
    TAP_CHECK(!write_all(&x, 2, &bytes, &err) && lf_kvindex_finished(x.dir, x.meta.custom_id) &&
                  !lf_kvindex_resume(x.dir, &x.meta, ids, LF_CHECK_BYTES, 0, &found, &err) && found.skip &&
                  found.bytes == bytes,
              "a whole file is skipped with all its bytes: %s", err.text);
    TAP_CHECK(!access(one, F_OK), "the part is where the index says");
    TAP_CHECK(!part_write(&x, 0, 2, &part[0], &err) && !lf_kvindex_finished(x.dir, x.meta.custom_id) &&
                  !lf_kvindex_resume(x.dir, &x.meta, ids, LF_CHECK_SHAPES, 0, &found, &err) && found.skip &&
                  in_parts("") == 2,
              "what a later run left beside it is removed");
    TAP_CHECK(!unlink(one) && !lf_kvindex_resume(x.dir, &x.meta, ids, LF_CHECK_SHAPES, 0, &found, &err) &&
                  !found.skip && strstr(found.why.text, "r0001.h5"),
              "without a part it is to be made again: %s", found.why.text);
    free(ids);
    free(path);
    free(one);
    free(parts);
    unlink(master);
    lf_kvmaster_sweep(master, LF_SWEEP_ALL);
    path = lf_printf("%s/kv", x.dir);
    TAP_CHECK(!rmdir(path), "nothing is left");
    free(path);
    fixture_end(&x);
}

int main(void)
{
    damaged();
    damaged_master();
    foreign();
    wrong_rows();
    full_disk();
    replaced();
    resumed();
    return tap_done();
}
