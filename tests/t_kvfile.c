/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV file: what goes in comes out, in any order of writing; what is missing or put twice is found.
 */
#include "tap.h"
#include "kv_fixture.h"


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
        TAP_CHECK(fixture_same_meta(&x.meta, lf_kvread_meta(r)), "the metadata come back");
        TAP_CHECK(fixture_differs(r) == 0 && fixture_tokens_differ(r) == 0, "every row and token comes back");
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
    return tap_done();
}
