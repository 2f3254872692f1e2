/* SPDX-License-Identifier: Apache-2.0
 *
 * One prompt from several writers: every row is one writer's, and the master reads as the file of one writer does.
 */
#include "tap.h"
#include "kv_several.h"

#include <fcntl.h>
#include <sys/stat.h>

/* HDF5 keeps memory of files that it could not close or open; the leak sanitizer, where it is on, asks here. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}

/* ---- whose rows ---- */

/* Every row of one table to exactly one of the writers, in ranges that follow each other. */
static int table_shared_out(const lf_kv_meta *m, int64_t number, int64_t rows, int of)
{
    uint8_t *seen = lf_alloc((size_t)rows + 1);
    lf_kv_table own;
    int bad = 0;

    for (int r = 0; r < of; r++) {
        int there = lf_kv_share_at(m, number, r, of, &own);
        int64_t sum = 0, end = 0;
        bad += there != (own.rows > 0) && number < lf_kv_tokens_number(m);
        for (int i = 0; there && i < own.ranges; i++) {
            lf_span s = own.range[i];
            bad += s.from < end || s.to <= s.from || s.to > rows;
            for (int64_t k = s.from; k < s.to && k < rows; k++)
                bad += seen[k]++ != 0;
            sum += s.to - s.from;
            end = s.to;
        }
        bad += there && sum != own.rows;
    }
    for (int64_t k = 0; k < rows; k++)
        bad += seen[k] != (number < lf_kv_tokens_number(m));
    free(seen);
    return bad;
}

static void shared_out(void)
{
    lf_err err = { "" };
    fixture x;
    int bad = 0, tables = 0;

    if (fixture_begin(&x, 0, 1, LF_KV_FP8, &err))
        return;
    x.meta.logits = (lf_logits_want){ .last = 1, .topk = 3, .logprob = 1 };
    for (int i = 0; i < 300; i++) {
        int of = (int)pick(1, MOST);
        lf_kv_table t;
        x.meta.num_tokens = i < 40 ? i + 1 : pick(1, i % 2 ? 600 : 9000);
        x.meta.frontier = i % 3 ? 0 : 128 * pick(1, 5);
        for (int64_t k = 0; k < lf_kv_table_count(&x.meta); k++) {
            if (!lf_kv_table_at(&x.meta, k, &t))
                continue;
            TAP_QUIET(bad, !table_shared_out(&x.meta, k, t.rows, of), "%lld tokens, %d writers, %s",
                      (long long)x.meta.num_tokens, of, t.path);
            tables++;
        }
    }
    TAP_CHECK(bad == 0 && tables > 5000, "every row of %d tables is one writer's; tokens and page hashes nobody's",
              tables);
    x.meta.num_tokens = 1;
    TAP_CHECK(lf_kv_share_any(&x.meta, 0, 4) + lf_kv_share_any(&x.meta, 1, 4) + lf_kv_share_any(&x.meta, 2, 4) +
                      lf_kv_share_any(&x.meta, 3, 4) == 1,
              "of one token one writer of four has rows");
    fixture_end(&x);
}

/* ---- the same as one writer's ---- */

/* Differences of any kind between the two files as the reader gives them. */
static int files_differ(const char *one, const char *several)
{
    lf_kvread *a, *b;
    lf_kv_report report;
    lf_kv_table t;
    lf_err err;
    int bad = 0;

    if (lf_kvread_open(&a, one, &err))
        return 1;
    if (lf_kvread_open(&b, several, &err)) {
        printf("# %s\n", err.text);
        lf_kvread_close(a);
        return 1;
    }
    const lf_kv_meta *m = lf_kvread_meta(a);
    bad += !fixture_same_meta(m, lf_kvread_meta(b)) + (lf_kvread_parts(a) != 0) + (lf_kvread_parts(b) == 0);
    for (int64_t i = 0; i < lf_kv_tokens_number(m); i++) {
        if (!lf_kv_table_at(m, i, &t))
            continue;
        size_t bytes = t.row_bytes * (size_t)t.rows;
        uint8_t *x = lf_alloc(bytes), *y = lf_alloc(bytes);
        bad += fixture_read(a, i, 0, t.rows, x, &err) || fixture_read(b, i, 0, t.rows, y, &err) || memcmp(x, y, bytes);
        free(x);
        free(y);
    }
    bad += fixture_tokens_differ(b) + fixture_differs(b);
    size_t bytes = 32 * (size_t)lf_kv_page_count(m->num_tokens);
    uint8_t *x = lf_alloc(bytes), *y = lf_alloc(bytes);
    bad += lf_kvread_page_hash(a, x, &err) || lf_kvread_page_hash(b, y, &err) || memcmp(x, y, bytes);
    free(x);
    free(y);
    if (lf_kvread_verify(b, LF_CHECK_BYTES, &report, &err)) {
        printf("# %s\n", err.text);
        bad++;
    }
    lf_kvread_close(a);
    lf_kvread_close(b);
    return bad;
}

static void same_as_one(void)
{
    static const int64_t lengths[] = { 1, 2, 5, 127, 128, 129, 300, 517, 1000, 2311 };
    static const lf_kv_dtype dtypes[] = { LF_KV_BF16, LF_KV_FP8, LF_KV_F32 };
    lf_err err = { "" };
    fixture x;
    int bad = 0, tried = 0;

    for (size_t i = 0; i < 30; i++, tried++) {
        int64_t tokens = i < 10 ? lengths[i] : pick(1, 1200);
        int of = i % 10 == 9 ? 8 : (int)pick(2, 5);
        if (begin(&x, tokens, dtypes[i % 3], &err))
            return;
        x.meta.chunk_bytes = (size_t)pick(1, 8) << 9;
        x.meta.frontier = i % 4 == 1 ? 128 : 0;
        x.meta.logits = (lf_logits_want){ .last = i % 2, .all = i % 7 == 3, .topk = i % 5 ? 0 : 3,
                                          .logprob = i % 3 == 0 };
        int rc = fixture_write(&x, -1, &err) || write_all(&x, of, NULL, &err);
        TAP_QUIET(bad, !rc, "%lld tokens, %d writers: %s", (long long)tokens, of, err.text);
        TAP_QUIET(bad, rc || !files_differ(x.path, master), "%lld tokens, %d writers differ", (long long)tokens, of);
        end(&x);
    }
    TAP_CHECK(bad == 0 && tried == 30, "%d prompts of several writers read as those of one", tried);
}

/* Parts are found from the master's place: by a relative name, from elsewhere, through a link. */
static void from_anywhere(void)
{
    lf_err err = { "" };
    fixture x;
    char cwd[512], link[224], moved[160];

    if (begin(&x, 300, LF_KV_FP8, &err) || fixture_write(&x, -1, &err) || write_all(&x, 3, NULL, &err)) {
        TAP_CHECK(0, "written: %s", err.text);
        return;
    }
    int back = open(".", O_RDONLY | O_DIRECTORY);
    TAP_CHECK(getcwd(cwd, sizeof cwd) && !chdir("/") && !files_differ(x.path, master + 1), "from the root, relative");
    TAP_CHECK(!chdir(x.dir) && !files_differ("a.h5", "several%.h5"), "from beside it");
    TAP_CHECK(!chdir("several%.parts") && !files_differ("../a.h5", "../several%.h5"), "from below");
    snprintf(link, sizeof link, "%s.link", x.dir);
    TAP_CHECK(!fchdir(back) && !symlink(master, link) && !files_differ(x.path, link), "through a link elsewhere");
    unlink(link);
    snprintf(moved, sizeof moved, "%s.moved", x.dir);
    TAP_CHECK(!rename(x.dir, moved), "the directory is renamed");
    snprintf(link, sizeof link, "%s/several%%.h5", moved);
    lf_kv_report report;
    TAP_CHECK(!fixture_verify(link, &report, &err), "and the file is still whole: %s", err.text);
    TAP_CHECK(!rename(moved, x.dir), "back");
    close(back);
    end(&x);
}

static void sizes(void)
{
    lf_err err = { "" };
    fixture x;
    uint64_t bytes = 0;
    struct stat st;
    lf_kvread *r;

    if (begin(&x, 300, LF_KV_BF16, &err) || write_all(&x, 2, &bytes, &err) || stat(master, &st) ||
        lf_kvread_open(&r, master, &err)) {
        TAP_CHECK(0, "written: %s", err.text);
        return;
    }
    TAP_CHECK(lf_kvread_parts(r) == 2 && in_parts("") == 2 && in_parts(".h5") == 2, "two parts and nothing else");
    TAP_CHECK((int64_t)bytes == (int64_t)st.st_size + lf_kvread_part_bytes(r), "the bytes are those of all files");
    lf_kvread_close(r);
    end(&x);
}

int main(void)
{
    shared_out();
    same_as_one();
    from_anywhere();
    sizes();
    return tap_done();
}
