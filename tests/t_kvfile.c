/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV file: what goes in comes out, in any order of writing; what is missing, put twice, cut or changed is found.
 */
#include "tap.h"
#include "kv_fixture.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* ---- round trips ---- */

typedef struct range {
    int64_t number, row0, rows;
} range;

/* Every table but the tokens' cut in ranges of 1..most rows, shuffled. */
static range *ranges_make(const lf_kv_meta *m, int64_t most, int *count)
{
    range *v = NULL;
    lf_kv_table t;
    int n = 0;

    for (int64_t i = 0; i < lf_kv_tokens_number(m); i++) {
        if (!lf_kv_table_at(m, i, &t))
            continue;
        int64_t step = i == lf_kv_logits_number(m, LF_LOGITS_LAST) ? t.rows : 0;
        for (int64_t at = 0; at < t.rows;) {
            int64_t k = step ? step : 1 + fixture_mix((uint64_t)(i * 1000 + at)) % most;
            k = lf_min(k, t.rows - at);
            v = lf_realloc(v, (size_t)(n + 1) * sizeof *v);
            v[n++] = (range){ i, at, k };
            at += k;
        }
    }
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(fixture_mix((uint64_t)i * 31) % (uint32_t)(i + 1));
        range swap = v[i];
        v[i] = v[j];
        v[j] = swap;
    }
    *count = n;
    return v;
}

static int write_shuffled(fixture *x, int64_t most, lf_err *err)
{
    lf_kvfile *f;
    int n, rc = 0;
    range *v = ranges_make(&x->meta, most, &n);

    if (lf_kvfile_create(&f, x->path, &x->meta, err)) {
        free(v);
        return -1;
    }
    for (int i = 0; i < n && !rc; i++)
        rc = fixture_put(f, &x->meta, v[i].number, v[i].row0, v[i].rows, err);
    free(v);
    if (!rc)
        rc = fixture_put_tokens(f, &x->meta, err);
    if (!rc)
        return lf_kvfile_finish(f, NULL, err);
    lf_kvfile_abandon(f);
    return -1;
}

static int read_table(lf_kvread *r, int64_t number, int64_t row0, int64_t rows, void *out, lf_err *err)
{
    const lf_kv_meta *m = lf_kvread_meta(r);
    int64_t logits = lf_kv_logits_number(m, LF_LOGITS_LAST), per = (int64_t)m->model->layers * LF_PARTS;

    if (number == logits)
        return lf_kvread_logits(r, LF_LOGITS_LAST, 0, 1, out, err);
    if (number > logits)
        return lf_kvread_logits(r, (lf_logits_kind)(number - logits), row0, rows, out, err);
    return lf_kvread_rows(r, number / per * m->frontier, (int)(number % per / LF_PARTS),
                          (lf_kv_part)(number % LF_PARTS), row0, rows, out, err);
}

static int tables_equal(lf_kvread *r)
{
    const lf_kv_meta *m = lf_kvread_meta(r);
    lf_kv_table t;
    lf_err err;
    int bad = 0;

    for (int64_t i = 0; i < lf_kv_tokens_number(m); i++) {
        if (!lf_kv_table_at(m, i, &t))
            continue;
        uint8_t *want = fixture_rows(&t, i, 0, t.rows), *have = lf_alloc(t.row_bytes * (size_t)t.rows);
        int rc = read_table(r, i, 0, t.rows, have, &err);
        TAP_QUIET(bad, !rc && !memcmp(want, have, t.row_bytes * (size_t)t.rows), "%s: %s", t.path, rc ? err.text : "");
        free(want);
        free(have);
    }
    return bad;
}

static int tokens_equal(lf_kvread *r)
{
    const lf_kv_meta *m = lf_kvread_meta(r);
    uint32_t *ids = lf_alloc(4 * (size_t)m->num_tokens);
    lf_err err;
    int bad = lf_kvread_tokens(r, 0, m->num_tokens, ids, &err) != 0;

    for (int64_t i = 0; i < m->num_tokens; i++)
        bad += ids[i] != fixture_token(m, i);
    free(ids);
    return bad;
}

static int meta_equal(const lf_kv_meta *a, const lf_kv_meta *b)
{
    char *x = lf_kv_identity(a, 1), *y = lf_kv_identity(b, 1);
    int same = !strcmp(x, y);

    free(x);
    free(y);
    return same;
}

static void round_trip(int mini, int64_t tokens, lf_kv_dtype dtype, size_t chunk, int64_t frontier)
{
    lf_err err = { "" };
    fixture x;
    lf_kvread *r = NULL;
    lf_kv_report report;
    const char *name = mini ? "mini" : "nano";
    int n = (int)tokens;

    if (fixture_begin(&x, mini, tokens, dtype, &err)) {
        TAP_CHECK(0, "fixture: %s", err.text);
        return;
    }
    x.meta.chunk_bytes = chunk;
    x.meta.frontier = frontier;
    x.meta.logits = (lf_logits_want){ .last = 1, .all = n % 2, .topk = n % 3 ? 5 : 0, .logprob = 1 };
    int rc = write_shuffled(&x, 7, &err);
    TAP_CHECK(!rc, "%s, %d tokens, %s: written %s", name, n, lf_kv_dtype_name(dtype), err.text);
    if (!rc && !lf_kvread_open(&r, x.path, &err)) {
        TAP_CHECK(meta_equal(&x.meta, lf_kvread_meta(r)), "the metadata come back");
        TAP_CHECK(tables_equal(r) == 0 && tokens_equal(r) == 0, "every row and token comes back");
        rc = lf_kvread_verify(r, LF_CHECK_BYTES, &report, &err);
        TAP_CHECK(!rc && report.problems == 0, "verified: %s", rc ? err.text : "");
        lf_kvread_close(r);
    } else {
        TAP_CHECK(0, "opened: %s", err.text);
    }
    TAP_CHECK(fixture_end(&x) == 1, "one file is left");
}

static void round_trips(void)
{
    static const int64_t length[] = { 1, 3, 4, 5, 127, 128, 129, 300 };
    static const lf_kv_dtype dtype[] = { LF_KV_BF16, LF_KV_F32, LF_KV_FP8 };

    for (int d = 0; d < 3; d++) {
        for (int i = 0; i < 8; i++)
            round_trip(0, length[i], dtype[d], i % 2 ? 512 : 0, i > 4 ? 128 : 0);
        round_trip(1, 1, dtype[d], 0, 0);
        round_trip(1, 300, dtype[d], 16 << 10, 128);
    }
}

/* Nothing of the clock is in the file, but `created`. */
static void same_bytes(void)
{
    lf_err err = { "" };
    fixture x;
    char *a = NULL, *b = NULL;
    size_t na = 0, nb = 0;

    if (fixture_begin(&x, 0, 300, LF_KV_FP8, &err))
        return;
    int rc = fixture_write(&x, -1, &err) || lf_file_read(x.path, 1 << 24, &a, &na, &err) || usleep(1100000) ||
             fixture_write(&x, -1, &err) || lf_file_read(x.path, 1 << 24, &b, &nb, &err);
    TAP_CHECK(!rc && na == nb && !memcmp(a, b, na), "writing again gives the same file %s", err.text);
    free(a);
    free(b);
    fixture_end(&x);
}

/* ---- decoding ---- */

static void decoded(lf_kv_dtype dtype, int mini)
{
    lf_err err = { "" };
    fixture x;
    lf_kvread *r;
    lf_kv_table t;
    float have[512], want[512];
    int bad = 0;

    if (fixture_begin(&x, mini, 13, dtype, &err) || fixture_write(&x, -1, &err) ||
        lf_kvread_open(&r, x.path, &err)) {
        TAP_CHECK(0, "written: %s", err.text);
        return;
    }
    lf_kv_part part[] = { LF_PART_SWA, LF_PART_INDEX, LF_PART_MAIN_OPEN_GATE };
    for (int k = 0; k < 3; k++) {
        int64_t number = lf_kv_part_number(&x.meta, 0, 1, part[k]), row = k == 1 ? 2 : 0;
        int64_t width = k == 0 ? x.model.head_dim : k == 1 ? x.model.index_dim : 2 * x.model.head_dim;
        float *out = lf_alloc(4 * (size_t)width);
        uint8_t packed[4096];
        lf_kv_table_at(&x.meta, number, &t);
        fixture_row(&t, number, row, packed);
        TAP_QUIET(bad, !lf_kvread_floats(r, 0, 1, part[k], row, 1, out, &err), "%s", err.text);
        for (int64_t c = 0; c < lf_min(width, 512); c++) {
            uint16_t h;
            have[c] = out[c];
            if (t.piece[0].elem == LF_ELEM_F32) {
                memcpy(&want[c], packed + 4 * c, 4);
            } else if (t.piece[0].elem == LF_ELEM_BF16) {
                memcpy(&h, packed + 2 * c, 2);
                want[c] = lf_bf16_f32(h);
            } else if (k == 1) {
                want[c] = lf_e2m1_table[c % 2 ? packed[c / 2] >> 4 : packed[c / 2] & 15] *
                          ldexpf(1, packed[width / 2 + c / 32] - 127);
            } else if (c < width - x.model.rope_dim) {
                int64_t group = mini ? c / 64 : 0;
                want[c] = lf_e4m3_table[packed[c]] *
                          ldexpf(1, packed[width + x.model.rope_dim + group] - 127);
            } else {
                memcpy(&h, packed + (width - x.model.rope_dim) + 2 * (c - (width - x.model.rope_dim)), 2);
                want[c] = lf_bf16_f32(h);
            }
            TAP_QUIET(bad, have[c] == want[c] || (isnan(have[c]) && isnan(want[c])), "%s[%d]: %g, not %g", t.path,
                      (int)c, (double)have[c], (double)want[c]);
        }
        free(out);
    }
    TAP_CHECK(bad == 0, "%s rows of %s decode to float32", lf_kv_dtype_name(dtype), mini ? "mini" : "nano");
    lf_kvread_close(r);
    fixture_end(&x);
}

/* ---- what must fail ---- */

static void missing_rows(void)
{
    lf_err err;
    fixture x;
    lf_kv_table t;
    int bad = 0;

    if (fixture_begin(&x, 0, 133, LF_KV_FP8, &err))
        return;
    for (int64_t i = 0; i <= lf_kv_tokens_number(&x.meta); i++) {
        if (!lf_kv_table_at(&x.meta, i, &t) || !t.rows)
            continue;
        TAP_QUIET(bad, fixture_write(&x, i, &err) && strstr(err.text, t.path) && strstr(err.text, "never put"),
                  "%s: %s", t.path, err.text);
        TAP_QUIET(bad, access(x.path, F_OK), "%s: a file is there", t.path);
    }
    TAP_CHECK(bad == 0, "a part that was never put is named");
    TAP_CHECK(fixture_end(&x) == 0, "and nothing is left behind");
}

static void one_row_short(void)
{
    lf_err err = { "" };
    fixture x;
    lf_kvfile *f;
    lf_kv_table t;

    if (fixture_begin(&x, 0, 133, LF_KV_BF16, &err) || lf_kvfile_create(&f, x.path, &x.meta, &err))
        return;
    int64_t number = lf_kv_part_number(&x.meta, 0, 1, LF_PART_COMPRESSED);
    for (int64_t i = 0; i < lf_kv_tokens_number(&x.meta); i++) {
        if (i != number && lf_kv_table_at(&x.meta, i, &t) && t.rows)
            fixture_put(f, &x.meta, i, 0, t.rows, &err);
    }
    fixture_put_tokens(f, &x.meta, &err);
    fixture_put(f, &x.meta, number, 0, 17, &err);
    fixture_put(f, &x.meta, number, 18, 15, &err);
    int rc = lf_kvfile_finish(f, NULL, &err);
    TAP_CHECK(rc && strstr(err.text, "row 17 of 33 of /layers/001/compressed"), "a missing row is named: %s", err.text);
    TAP_CHECK(fixture_end(&x) == 0, "nothing is left behind");
}

static void bad_puts(void)
{
    lf_err err = { "" };
    fixture x;
    uint8_t b[4096] = { 0 };

    for (int what = 0; what < 9; what++) {
        lf_kvfile *f;
        static const char *const name[] = {
            "a row put twice", "a row put twice, in an overlapping range", "a row past the end", "a negative row",
            "a range whose end overflows", "a part that the layer lacks", "a layer that the model lacks",
            "logits that were not announced", "a frontier that was not announced"
        };
        if (fixture_begin(&x, 0, 133, LF_KV_BF16, &err) || lf_kvfile_create(&f, x.path, &x.meta, &err))
            return;
        int rc = lf_kvfile_put(f, 0, LF_PART_SWA, 2, 3, b, &err);
        switch (what) {
        case 0: rc = rc ? 0 : lf_kvfile_put(f, 0, LF_PART_SWA, 3, 1, b, &err); break;
        case 1: rc = rc ? 0 : lf_kvfile_put(f, 0, LF_PART_SWA, 0, 3, b, &err); break;
        case 2: rc = rc ? 0 : lf_kvfile_put(f, 0, LF_PART_SWA, 7, 2, b, &err); break;
        case 3: rc = rc ? 0 : lf_kvfile_put(f, 0, LF_PART_SWA, -1, 2, b, &err); break;
        case 4: rc = rc ? 0 : lf_kvfile_put(f, 0, LF_PART_SWA, 5, INT64_MAX, b, &err); break;
        case 5: rc = rc ? 0 : lf_kvfile_put(f, 0, LF_PART_COMPRESSED, 0, 1, b, &err); break;
        case 6: rc = rc ? 0 : lf_kvfile_put(f, 4, LF_PART_SWA, 0, 1, b, &err); break;
        case 7: rc = rc ? 0 : lf_kvfile_put_logits(f, LF_LOGITS_LOGPROB, 0, 1, b, &err); break;
        case 8: rc = rc ? 0 : lf_kvfile_put_at(f, 128, 0, LF_PART_SWA, 0, 1, b, &err); break;
        }
        TAP_CHECK(rc, "refused: %s: %s", name[what], err.text);
        lf_kvfile_abandon(f);
        TAP_CHECK(fixture_end(&x) == 0, "abandoning leaves nothing");
    }
}

static void bad_meta(void)
{
    lf_err err = { "" };
    fixture x;
    lf_kvfile *f;

    if (fixture_begin(&x, 0, 0, LF_KV_BF16, &err))
        return;
    TAP_CHECK(lf_kvfile_create(&f, x.path, &x.meta, &err), "refused: 0 tokens: %s", err.text);
    x.meta.num_tokens = 10;
    x.meta.kv_dtype = LF_KV_AUTO;
    TAP_CHECK(lf_kvfile_create(&f, x.path, &x.meta, &err), "refused: storage auto: %s", err.text);
    x.meta.kv_dtype = LF_KV_BF16;
    x.meta.frontier = 100;
    TAP_CHECK(lf_kvfile_create(&f, x.path, &x.meta, &err), "refused: frontier 100: %s", err.text);
    x.meta.frontier = 0;
    snprintf(x.path, sizeof x.path, "%s/none/a.h5", x.dir);
    TAP_CHECK(lf_kvfile_create(&f, x.path, &x.meta, &err) && strstr(err.text, "No such file or directory"),
              "refused: a directory that is not there: %s", err.text);
    TAP_CHECK(fixture_end(&x) == 0, "nothing is left behind");
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

static void flip(const char *path, int64_t at)
{
    FILE *f = fopen(path, "r+b");
    int c;

    fseek(f, (long)at, SEEK_SET);
    c = fgetc(f);
    fseek(f, (long)at, SEEK_SET);
    fputc(c ^ 0x10, f);
    fclose(f);
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
    flip(x.path, at + 5);
    TAP_CHECK(fixture_verify(x.path, &report, &err) &&
                  strstr(err.text, "/layers/001/state/index/prev_gate, chunk 0 (rows 0..3)"),
              "a flipped bit of a small dataset is named: %s", err.text);
    flip(x.path, at + 5);
    at = data_offset(x.path, "/layers/003/compressed_nope", 2);
    flip(x.path, at + 16 * 448 - 1);
    TAP_CHECK(fixture_verify(x.path, &report, &err) &&
                  strstr(err.text, "/layers/003/compressed_nope, chunk 2 (rows 32..47)"),
              "a flipped bit of a chunk is named: %s", err.text);
    TAP_CHECK(report.problems == 1, "one problem");
    at = data_offset(x.path, "/tokens", -1);
    flip(x.path, at);
    TAP_CHECK(fixture_verify(x.path, &report, &err) && report.problems == 2 && strstr(err.text, "1 more problem"),
              "two are counted: %s", err.text);
    fixture_end(&x);
}

/* Whatever byte changes: refused, or nothing that the reader returns is different. */
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
        flip(x.path, at);
        if (lf_kvread_open(&r, x.path, &err) || lf_kvread_verify(r, LF_CHECK_BYTES, &report, &err)) {
            found++;
        } else {
            TAP_QUIET(bad, meta_equal(&x.meta, lf_kvread_meta(r)) && !tables_equal(r) && !tokens_equal(r),
                      "byte %d changes what is read, unnoticed", (int)at);
        }
        lf_kvread_close(r);
        flip(x.path, at);
    }
    TAP_CHECK(bad == 0 && found > tried / 10, "no changed byte goes unnoticed (%d of %d mattered)", found, tried);
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
    TAP_CHECK(!truncate(x.path, 0) && fixture_verify(x.path, &report, &err), "an empty file is refused: %s", err.text);
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

/* ---- listed parts ---- */

static void listed_parts(void)
{
    lf_err err = { "" };
    fixture x;
    lf_kvfile *f;
    lf_kv_table t;
    lf_kv_report report;
    char part[200];

    if (fixture_begin(&x, 0, 5, LF_KV_BF16, &err) || lf_kvfile_create(&f, x.path, &x.meta, &err))
        return;
    for (int64_t i = 0; i < lf_kv_tokens_number(&x.meta); i++) {
        if (lf_kv_table_at(&x.meta, i, &t) && t.rows)
            fixture_put(f, &x.meta, i, 0, t.rows, &err);
    }
    fixture_put_tokens(f, &x.meta, &err);
    TAP_CHECK(lf_kvfile_list_part(f, "../r0000.h5", 3, 0, &err), "refused: %s", err.text);
    lf_kvfile_list_part(f, "r0000.h5", 9, 0xe3069283, &err);
    if (lf_kvfile_finish(f, NULL, &err)) {
        TAP_CHECK(0, "written: %s", err.text);
        return;
    }
    snprintf(part, sizeof part, "%s/r0000.h5", x.dir);
    TAP_CHECK(fixture_verify(x.path, &report, &err) && strstr(err.text, "No such file"), "absent part: %s", err.text);
    lf_file_replace(part, "12345678", 8, &err);
    TAP_CHECK(fixture_verify(x.path, &report, &err) && strstr(err.text, "8 bytes instead of 9"), "%s", err.text);
    lf_file_replace(part, "123456780", 9, &err);
    TAP_CHECK(fixture_verify(x.path, &report, &err) && strstr(err.text, "crc32c"), "changed part: %s", err.text);
    lf_file_replace(part, "123456789", 9, &err);
    TAP_CHECK(!fixture_verify(x.path, &report, &err), "a part as listed passes");
    fixture_end(&x);
}

int main(void)
{
    round_trips();
    same_bytes();
    decoded(LF_KV_F32, 0);
    decoded(LF_KV_BF16, 0);
    decoded(LF_KV_FP8, 0);
    decoded(LF_KV_FP8, 1);
    missing_rows();
    one_row_short();
    bad_puts();
    bad_meta();
    full_disk();
    damaged_bytes();
    damaged_anywhere();
    truncated();
    foreign();
    not_hdf5();
    missing_dataset();
    listed_parts();
    return tap_done();
}
