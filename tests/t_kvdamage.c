/* SPDX-License-Identifier: Apache-2.0
 *
 * KV files that are cut, changed, foreign or cannot be written: found, named, and nothing half-written is left.
 */
#include "tap.h"
#include "kv_fixture.h"
#include "../src/kvtail.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* HDF5 keeps memory of files that it could not close or open; the leak sanitizer, where it is on, asks here. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}

/* A file that may not grow further stands for a full disk: wherever the limit falls, the error is the system's, and
 * nothing is left. */
static void full_disk(void)
{
    lf_err err = { "" };
    fixture x;
    struct stat st;
    struct rlimit before;
    int bad = 0, tried = 0;

    if (fixture_begin(&x, 0, 300, LF_KV_BF16, &err) || fixture_write(&x, -1, &err) || stat(x.path, &st))
        return;
    unlink(x.path);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    for (int64_t limit = 0; limit < st.st_size; limit += st.st_size / 29, tried++) {
        struct rlimit now = { (rlim_t)limit, before.rlim_max };
        setrlimit(RLIMIT_FSIZE, &now);
        int rc = fixture_write(&x, -1, &err);
        setrlimit(RLIMIT_FSIZE, &before);
        TAP_QUIET(bad, rc && strstr(err.text, "File too large") && strstr(err.text, x.path), "limit %d: %s", (int)limit,
                  rc ? err.text : "written");
        snprintf(err.text, sizeof err.text, "%s.part", x.path);
        TAP_QUIET(bad, access(x.path, F_OK) && access(err.text, F_OK), "limit %d leaves a file", (int)limit);
    }
    TAP_CHECK(bad == 0 && tried >= 29, "a full disk is reported with path and reason, and leaves nothing");
    TAP_CHECK(!fixture_write(&x, -1, &err), "with room again the next file is written");
    fixture_end(&x);
}

/* ---- damage ---- */

/* The file offset of a whole dataset's first byte (contiguous), or of its second chunk. */
static int64_t data_offset(const char *path, const char *dataset, int chunk)
{
    hid_t access = lf_h5_access(), f = H5Fopen(path, H5F_ACC_RDONLY, access), d = H5Dopen2(f, dataset, H5P_DEFAULT);
    int64_t at = -1;

    if (chunk < 0) {
        at = (int64_t)H5Dget_offset(d);
    } else {
#if H5_VERSION_GE(1, 10, 5)
        haddr_t where = HADDR_UNDEF;
        hsize_t offset[2], size;
        unsigned mask;
        hid_t space = H5Dget_space(d);
        if (H5Dget_chunk_info(d, space, (hsize_t)chunk, offset, &mask, &where, &size) >= 0)
            at = (int64_t)where;
        H5Sclose(space);
#endif
    }
    H5Dclose(d);
    H5Fclose(f);
    H5Pclose(access);
    return at;
}

static void damaged_bytes(void)
{
    lf_err err = { "" };
    fixture x;
    lf_kv_report report;

    if (fixture_begin(&x, 1, 300, LF_KV_FP8, &err))
        return;
    x.meta.chunk_bytes = 8 << 10;
    if (fixture_write(&x, -1, &err)) {
        TAP_CHECK(0, "written: %s", err.text);
        return;
    }
    int64_t at = data_offset(x.path, "/layers/001/state/index/prev_gate", -1);
    fixture_flip(x.path, at + 5);
    TAP_CHECK(fixture_verify(x.path, &report, &err) &&
                  strstr(err.text, "/layers/001/state/index/prev_gate, chunk 0 (rows 0..3)"),
              "a flipped bit of a small dataset is named: %s", err.text);
    fixture_flip(x.path, at + 5);
    at = data_offset(x.path, "/layers/003/compressed_nope", 2);
    fixture_flip(x.path, at + 16 * 448 - 1);
    TAP_CHECK(fixture_verify(x.path, &report, &err) &&
                  strstr(err.text, "/layers/003/compressed_nope, chunk 2 (rows 32..47)"),
              "a flipped bit of a chunk is named: %s", err.text);
    TAP_CHECK(report.problems == 1, "one problem");
    at = data_offset(x.path, "/tokens", -1);
    fixture_flip(x.path, at);
    TAP_CHECK(fixture_verify(x.path, &report, &err) && report.problems == 2 && strstr(err.text, "1 more problem"),
              "two are counted: %s", err.text);
    fixture_end(&x);
}

/* Whatever byte changes: refused, or nothing that the reader returns is different; and of all bytes only those that say
 * that the last line is a checksum can do the latter. */
static void damaged_anywhere(void)
{
    lf_err err = { "" };
    fixture x;
    struct stat st;
    int bad = 0, found = 0, tried = 0;

    if (fixture_begin(&x, 0, 5, LF_KV_FP8, &err) || fixture_write(&x, -1, &err) || stat(x.path, &st)) {
        TAP_CHECK(0, "written: %s", err.text);
        return;
    }
    for (int64_t at = 0; at < st.st_size; at += 41, tried++) {
        lf_kvread *r = NULL;
        lf_kv_report report;
        fixture_flip(x.path, at);
        if (lf_kvread_open(&r, x.path, &err) || lf_kvread_verify(r, LF_CHECK_BYTES, &report, &err)) {
            found++;
        } else {
            TAP_QUIET(bad, fixture_same_meta(&x.meta, lf_kvread_meta(r)) && !fixture_differs(r) &&
                      !fixture_tokens_differ(r),
                      "byte %d changes what is read, unnoticed", (int)at);
        }
        lf_kvread_close(r);
        fixture_flip(x.path, at);
    }
    TAP_CHECK(bad == 0 && found >= tried - 1, "no changed byte goes unnoticed (%d of %d are found)", found, tried);
    fixture_end(&x);
}

static void wrong_line(void)
{
    lf_err err = { "" };
    lf_kvread *r = NULL;
    fixture x;

    if (fixture_begin(&x, 0, 5, LF_KV_FP8, &err) || fixture_write(&x, -1, &err)) {
        TAP_CHECK(0, "written: %s", err.text);
        return;
    }
    int fd = open(x.path, O_RDWR);
    TAP_CHECK(fd >= 0 && !lf_kvtail_append(x.path, fd, LF_TAIL_MASTER, &err) && lf_kvread_open(&r, x.path, &err) &&
                  strstr(err.text, "of a file of several ranks"), "a master's line, without parts: %s", err.text);
    close(fd);
    fixture_end(&x);
}

static void truncated(void)
{
    lf_err err = { "" };
    fixture x;
    struct stat st;
    lf_kv_report report;
    int bad = 0;

    if (fixture_begin(&x, 0, 133, LF_KV_BF16, &err) || fixture_write(&x, -1, &err) || stat(x.path, &st))
        return;
    for (int i = 1; i < 12; i++) {
        TAP_QUIET(bad, !truncate(x.path, st.st_size * (12 - i) / 12), "truncate");
        TAP_QUIET(bad, fixture_verify(x.path, &report, &err), "cut to %d/12", 12 - i);
    }
    TAP_CHECK(!truncate(x.path, 0) && fixture_verify(x.path, &report, &err), "an empty file is refused: %s",
              err.text);
    TAP_CHECK(bad == 0, "a file cut anywhere is refused");
    fixture_end(&x);
}

/* ---- foreign files ---- */

/* Replaces the one place of `from` in the identity; from NULL: deletes attribute `to`. */
static void edit(const char *path, const char *from, const char *to)
{
    lf_err err;
    char *text = NULL;
    hid_t access = lf_h5_access(), f = H5Fopen(path, H5F_ACC_RDWR, access);

    if (from && !lf_h5_get_sealed(f, "identity", &text, &err)) {
        char *at = strstr(text, from);
        char *new = at ? lf_printf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) : lf_strdup(text);
        H5Adelete(f, "identity");
        lf_h5_put_sealed(f, "identity", new, &err);
        free(new);
    } else {
        H5Adelete(f, to);
    }
    free(text);
    H5Fclose(f);
    H5Pclose(access);
}

static void foreign(void)
{
    static const char *const edits[][3] = {
        { "longfill-kv", "other", "not a longfill KV file" },
        { "\"format_version\":1", "\"format_version\":2", "version 2" },
        { NULL, "complete", "incomplete" },
        { NULL, "format", "not a longfill KV file" },
        { "\"custom_id\"", "\"other_id\"", "no text custom_id" },
        { "released", "fast", "fast" },
        { "\"bf16\"", "\"int4\"", "int4" },
        { "\"last\"", "\"last,best\"", "last,best" },
        { "\"num_tokens\":5", "\"num_tokens\":0", "num_tokens is 0" },
        { "\"num_tokens\":5", "\"num_tokens\":2000000", "num_tokens is 2000000" },
        { "\"num_tokens\":5", "\"num_tokens\":\"5\"", "no integer num_tokens" },
        { "\"pcp_attention\":\"merge\"", "\"pcp_attention\":\"ring\"", "ring" },
        { "\"pcp_attention\":\"merge\"", "\"pcp_attention\":1", "no text pcp_attention" },
        { "\"device\":\"cuda\"", "\"device\":\"tpu\"", "tpu" },
        { "\"tp\":2", "\"tp\":-2", "tp is -2" },
        { "\"frontier\":0", "\"frontier\":5", "frontier is 5" },
        { "sliding_window\\\": 8", "sliding_window\\\": 9", "config_sha256" },
        { "\"model_type\":\"deepseek_v4\"", "\"model_type\":\"x\"", "model_type" },
        { "{", "", "not the JSON" }
    };
    lf_err err = { "" };
    fixture x;
    lf_kvread *r;

    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        if (fixture_begin(&x, 0, 5, LF_KV_BF16, &err) || fixture_write(&x, -1, &err))
            return;
        edit(x.path, edits[i][0], edits[i][1]);
        int rc = lf_kvread_open(&r, x.path, &err);
        TAP_CHECK(rc && strstr(err.text, edits[i][2]), "refused: %s", err.text);
        fixture_end(&x);
    }
    if (fixture_begin(&x, 0, 5, LF_KV_BF16, &err) || fixture_write(&x, -1, &err))
        return;
    edit(x.path, ",\"device\":\"cuda\",\"pcp_attention\":\"merge\",\"tp\":2", "");
    int rc = lf_kvread_open(&r, x.path, &err);
    TAP_CHECK(!rc && !lf_kvread_meta(r)->device && !lf_kvread_meta(r)->pcp_attention && !lf_kvread_meta(r)->tp,
              "a file that does not say how it was made is read");
    if (!rc)
        lf_kvread_close(r);
    fixture_end(&x);
}

static void not_hdf5(void)
{
    lf_err err = { "" };
    fixture x;
    lf_kvread *r;

    if (fixture_begin(&x, 0, 5, LF_KV_BF16, &err) || lf_file_replace(x.path, "hello", 5, &err))
        return;
    TAP_CHECK(lf_kvread_open(&r, x.path, &err) && strstr(err.text, "not a readable HDF5 file"),
              "refused: %s", err.text);
    TAP_CHECK(lf_kvread_open(&r, x.dir, &err) && strstr(err.text, "not a regular file"), "refused: %s", err.text);
    fixture_end(&x);
    TAP_CHECK(lf_kvread_open(&r, x.path, &err) && strstr(err.text, "No such file"), "refused: %s", err.text);
}

static void missing_dataset(void)
{
    lf_err err = { "" };
    fixture x;
    lf_kv_report report;

    if (fixture_begin(&x, 0, 133, LF_KV_FP8, &err) || fixture_write(&x, -1, &err))
        return;
    hid_t access = lf_h5_access(), f = H5Fopen(x.path, H5F_ACC_RDWR, access);
    H5Ldelete(f, "/layers/001/index_scale", H5P_DEFAULT);
    H5Fclose(f);
    H5Pclose(access);
    TAP_CHECK(fixture_verify(x.path, &report, &err) && strstr(err.text, "/layers/001/index_scale is missing"),
              "a deleted dataset is named: %s", err.text);
    fixture_end(&x);
}

int main(void)
{
    full_disk();
    damaged_bytes();
    damaged_anywhere();
    wrong_line();
    truncated();
    foreign();
    not_hdf5();
    missing_dataset();
    return tap_done();
}
