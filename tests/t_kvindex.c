/* SPDX-License-Identifier: Apache-2.0
 *
 * The output directory: file names of ids, what resuming decides, and lines in results.jsonl.
 */
#include "tap.h"
#include "kv_fixture.h"
#include "../src/file.h"
#include "../src/kvindex.h"
#include "../src/kvmaster.h"
#include "../src/results.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/resource.h>
#include <signal.h>
#include <sys/stat.h>

static char *temporary(void)
{
    char *dir = lf_strdup("/tmp/lf-kvindex-XXXXXX");

    return mkdtemp(dir);
}

static void temporary_end(char *dir)
{
    char *command = lf_printf("rm -r '%s'", dir);

    TAP_CHECK(system(command) == 0, "cleared away");
    free(command);
    free(dir);
}

/* ---- names ---- */

static void name_is(const char *id, const char *want)
{
    char *name = lf_kvindex_name(id);

    TAP_CHECK(!strcmp(name, want), "\"%.30s\" -> %s", id, name);
    free(name);
}

static void names(void)
{
    char longest[400], *a, *b;

    name_is("request-1", "request-1");
    name_is("a_b.c-9", "a_b.c-9");
    name_is("../../etc/passwd", "_._.._etc_passwd~3754d6cb3a38");
    name_is("", "~e3b0c44298fc");
    name_is(".hidden", "_hidden~1692419006a8");
    memset(longest, 'x', sizeof longest);
    longest[399] = 0;
    a = lf_kvindex_name(longest);
    longest[398] = 'y';
    b = lf_kvindex_name(longest);
    TAP_CHECK(strlen(a) == 93 && strlen(b) == 93 && strcmp(a, b), "long ids are cut and stay different");
    free(a);
    free(b);
    longest[100] = 0;
    name_is(longest, longest);
    a = lf_kvindex_name("Doc");
    b = lf_kvindex_name("doc");
    TAP_CHECK(strcasecmp(a, b), "ids that differ in case only have names that differ without it: %s %s", a, b);
    free(a);
    free(b);
    a = lf_kvindex_path("out/dir", "q");
    TAP_CHECK(!strcmp(a, "out/dir/kv/q.h5"), "%s", a);
    free(a);
}

/* No name leaves its directory or hides, whatever the id. */
static void names_safe(void)
{
    int bad = 0;

    for (int i = 0; i < 20000; i++) {
        char id[16];
        uint32_t r = fixture_mix((uint64_t)i);
        int n = 1 + (int)(r % 12);
        for (int k = 0; k < n; k++)
            id[k] = (char)(1 + fixture_mix((uint64_t)i * 16 + (uint64_t)k) % 255);
        id[n] = 0;
        char *name = lf_kvindex_name(id);
        TAP_QUIET(bad, name[0] != '.' && name[0] != '-' && !strpbrk(name, "/\\ \"'*?\n") && strlen(name) <= 100,
                  "%s", name);
        for (const char *p = name; *p; p++)
            TAP_QUIET(bad, *p > 32 && *p < 127, "byte %d", *p);
        free(name);
    }
    TAP_CHECK(bad == 0, "names of 20000 random ids are safe");
}

static void collisions(void)
{
    static const char *const good[] = { "a", "A", "b", "a/b", "a_b", "a b", "\xc3\xa4", "\xc3\xb6" };
    static const char *const twice[] = { "a", "b", "a" };
    lf_err err = { "" };

    TAP_CHECK(!lf_kvindex_check_names(8, good, &err), "different ids, different names %s", err.text);
    TAP_CHECK(lf_kvindex_check_names(3, twice, &err), "refused: %s", err.text);
    TAP_CHECK(!lf_kvindex_check_names(0, NULL, &err), "no ids are fine");
}

/* ---- the directory ---- */

static void prepare(void)
{
    lf_err err = { "" };
    struct stat st;
    char *dir = temporary(), *out = lf_printf("%s/a/b/c", dir), *kv = lf_printf("%s/kv", out);
    char *file = lf_printf("%s/file", dir);

    TAP_CHECK(!lf_kvindex_prepare(out, &err) && !stat(kv, &st) && S_ISDIR(st.st_mode), "made with parents %s",
              err.text);
    TAP_CHECK(!lf_kvindex_prepare(out, &err), "twice is fine");
    lf_file_replace(file, "x", 1, &err);
    TAP_CHECK(lf_kvindex_prepare(file, &err) && strstr(err.text, "not a directory"), "refused: %s", err.text);
    free(kv);
    kv = lf_printf("%s/d", dir);
    free(out);
    out = lf_printf("%s/kv", kv);
    mkdir(kv, 0777);
    lf_file_replace(out, "x", 1, &err);
    TAP_CHECK(lf_kvindex_prepare(kv, &err) && strstr(err.text, "not a directory"), "refused: %s", err.text);
    TAP_CHECK(lf_kvindex_prepare("", &err), "refused: %s", err.text);
    TAP_CHECK(lf_kvindex_prepare("/proc/longfill", &err), "refused: %s", err.text);
    free(file);
    free(kv);
    free(out);
    temporary_end(dir);
}

/* ---- resuming ---- */

typedef struct resumed {
    fixture x;
    char *out;
    uint32_t ids[133];
} resumed;

static int resumed_begin(resumed *s, lf_err *err)
{
    if (fixture_begin(&s->x, 0, 133, LF_KV_FP8, err))
        return -1;
    s->out = lf_strdup(s->x.dir);
    if (lf_kvindex_prepare(s->out, err))
        return -1;
    snprintf(s->x.path, sizeof s->x.path, "%s/kv/fixture-1.h5", s->out);
    for (int i = 0; i < 133; i++)
        s->ids[i] = fixture_token(&s->x.meta, i);
    return 0;
}

static void resumed_end(resumed *s)
{
    char *command = lf_printf("rm -r '%s'", s->out);

    TAP_CHECK(system(command) == 0, "cleared away");
    free(command);
    free(s->out);
    lf_model_free(&s->x.model);
}

static void resume_same(void)
{
    resumed s;
    lf_err err = { "" };
    lf_kvfound found;
    struct stat st;
    char *part;

    if (resumed_begin(&s, &err))
        return;
    lf_kv_check how = LF_CHECK_BYTES;
    TAP_CHECK(!lf_kvindex_resume(s.out, &s.x.meta, s.ids, how, 0, &found, &err) && !found.skip && !found.why.text[0],
              "no file: run");
    fixture_write(&s.x, -1, &err);
    part = lf_printf("%s.part", s.x.path);
    lf_file_replace(part, "x", 1, &err);
    stat(s.x.path, &st);
    TAP_CHECK(!lf_kvindex_resume(s.out, &s.x.meta, s.ids, how, 0, &found, &err) && found.skip &&
                  found.bytes == (uint64_t)st.st_size, "the same file: skip %s", err.text);
    TAP_CHECK(access(part, F_OK), "the stale .part is gone");
    s.x.meta.producer = "longfill 9";
    s.x.meta.created = "2030-01-01T00:00:00Z";
    TAP_CHECK(!lf_kvindex_resume(s.out, &s.x.meta, s.ids, how, 0, &found, &err) && found.skip,
              "another version of the program and another day: skip");
    TAP_CHECK(!lf_kvindex_resume(s.out, &s.x.meta, s.ids, how, 1, &found, &err) && !found.skip, "--overwrite: run");
    free(part);
    resumed_end(&s);
}

static void resume_other(void)
{
    resumed s;
    lf_err err = { "" };
    lf_kvfound found;
    int k = 0;

    if (resumed_begin(&s, &err) || fixture_write(&s.x, -1, &err))
        return;
    static const char *const says[] = { "is there, made with other weights (weights_id \"0123abcd\", and this run has",
                                        "made with another tokenizer (tokenizer_sha256 none, ",
                                        "is there with numerics \"released\"", "kv_dtype \"fp8\"", "logits \"last\"",
                                        "frontier 0", "num_tokens 133", "made with another model (config_sha256 \"" };
    lf_model other = *s.x.meta.model;
    other.sha256[0] = other.sha256[0] == '0' ? '1' : '0';
    for (; k < 8; k++) {
        lf_kv_meta m = s.x.meta;
        switch (k) {
        case 0: m.weights_id = "feed"; break;
        case 1: m.tokenizer_sha256 = "beef"; break;
        case 2: m.numerics = LF_EXACT; break;
        case 3: m.kv_dtype = LF_KV_BF16; break;
        case 4: m.logits.logprob = 1; break;
        case 5: m.frontier = 128; break;
        case 6: m.num_tokens = 132; break;
        case 7: m.model = &other; break;
        }
        int rc = lf_kvindex_resume(s.out, &m, s.ids, LF_CHECK_BYTES, 0, &found, &err);
        TAP_CHECK(rc && strstr(err.text, says[k]) && strstr(err.text, "--overwrite"), "refused: %s", err.text);
    }
    lf_kv_meta made = s.x.meta;
    made.device = "cpu";
    made.tp = 1;
    made.pcp_attention = "gather";
    TAP_CHECK(!lf_kvindex_resume(s.out, &made, s.ids, LF_CHECK_BYTES, 0, &found, &err) && found.skip,
              "on what and how it was made is not compared");
    s.ids[132]++;
    int rc = lf_kvindex_resume(s.out, &s.x.meta, s.ids, LF_CHECK_BYTES, 0, &found, &err);
    TAP_CHECK(rc && strstr(err.text, "other tokens"), "refused: %s", err.text);
    TAP_CHECK(!access(s.x.path, F_OK), "the file is still there");
    resumed_end(&s);
}

static void resume_damaged(void)
{
    resumed s;
    lf_err err = { "" };
    lf_kvfound found;
    struct stat st;

    if (resumed_begin(&s, &err) || fixture_write(&s.x, -1, &err) || stat(s.x.path, &st))
        return;
    TAP_CHECK(!truncate(s.x.path, st.st_size / 2), "cut in half");
    int rc = lf_kvindex_resume(s.out, &s.x.meta, s.ids, LF_CHECK_SHAPES, 0, &found, &err);
    TAP_CHECK(!rc && !found.skip && found.why.text[0], "run again: %s", found.why.text);
    lf_file_replace(s.x.path, "", 0, &err);
    rc = lf_kvindex_resume(s.out, &s.x.meta, s.ids, LF_CHECK_SHAPES, 0, &found, &err);
    TAP_CHECK(!rc && !found.skip && found.why.text[0], "run again: %s", found.why.text);
    TAP_CHECK(!fixture_write(&s.x, -1, &err), "the file is replaced");
    rc = lf_kvindex_resume(s.out, &s.x.meta, s.ids, LF_CHECK_SHAPES, 0, &found, &err);
    TAP_CHECK(!rc && found.skip, "and skipped from then on");
    resumed_end(&s);
}

/* Another job is played by a second opening of the same file. */
static void resume_claimed(void)
{
    resumed s;
    lf_err err = { "" };
    lf_kvfound found;
    lf_kvfile *f;

    if (resumed_begin(&s, &err) || lf_kvfile_create(&f, s.x.path, &s.x.meta, &err))
        return;
    char *part = lf_printf("%s.part", s.x.path), *dir = lf_kvmaster_directory(s.x.path);
    char *live = lf_printf("%s/r0000.h5.part", dir), *dead = lf_printf("%s/r0001.h5.part", dir);
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        int rc = lf_kvindex_resume(s.out, &s.x.meta, s.ids, LF_CHECK_SHAPES, overwrite, &found, &err);
        TAP_CHECK(rc && strstr(err.text, "fixture-1.h5.part: another job is writing it") && !access(part, F_OK),
                  "refused, and left alone: %s", err.text);
    }
    lf_kvfile *second;
    TAP_CHECK(lf_kvfile_create(&second, s.x.path, &s.x.meta, &err) && strstr(err.text, "another job"),
              "not written by two: %s", err.text);
    lf_kvfile_abandon(f);
    TAP_CHECK(!lf_kvfile_create(&f, s.x.path, &s.x.meta, &err), "once it is given up it can be written");
    lf_kvfile_abandon(f);
    mkdir(dir, 0777);
    lf_file_replace(dead, "x", 1, &err);
    int fd = open(live, O_RDWR | O_CREAT, 0666);
    TAP_CHECK(fd >= 0 && !lf_file_claim(fd), "claimed");
    lf_kvmaster_sweep(s.x.path, LF_SWEEP_ALL);
    TAP_CHECK(!access(live, F_OK) && access(dead, F_OK), "sweeping leaves a part that another job is writing");
    close(fd);
    lf_kvmaster_sweep(s.x.path, LF_SWEEP_ALL);
    TAP_CHECK(access(dir, F_OK), "and takes it when that job is gone");
    free(part);
    free(live);
    free(dead);
    free(dir);
    resumed_end(&s);
}

/* ---- results.jsonl ---- */

static lf_result line_of(const char *id)
{
    return (lf_result){ .custom_id = id, .path = "kv/a.h5", .num_tokens = 5, .numerics = "exact", .kv_dtype = "f32",
                        .bytes = 1234, .ttft_s = 0.25, .compute_s = 0.5, .write_s = 0.125, .durable_s = NAN,
                        .rank = 1 };
}

/* The i-th line of the file, or NULL. */
static json_t *line_at(const char *out, int i)
{
    lf_err err;
    char *path = lf_printf("%s/results.jsonl", out), *text = NULL;
    size_t n;
    json_t *j = NULL;

    if (!lf_file_read(path, 1 << 20, &text, &n, &err)) {
        char *p = text;
        while (i-- > 0 && p)
            p = (p = strchr(p, '\n')) ? p + 1 : NULL;
        if (p && strchr(p, '\n'))
            j = json_loads(p, JSON_DISABLE_EOF_CHECK, NULL);
    }
    free(text);
    free(path);
    return j;
}

static int add(const char *out, const lf_result *l, lf_err *err)
{
    lf_results *r;

    if (lf_results_open(&r, out, 1, err))
        return -1;
    int rc = lf_results_append(r, l, err);
    lf_results_close(r);
    return rc;
}

static void result_lines(void)
{
    lf_err err = { "" };
    char *out = temporary();
    lf_result l = line_of("a\"\n\xc3\xa4");

    TAP_CHECK(!add(out, &l, &err), "appended %s", err.text);
    l = line_of("b");
    l.status = LF_STATUS_FAILED;
    l.error = "disk full";
    l.path = NULL;
    l.bytes = -1;
    l.ttft_s = NAN;
    TAP_CHECK(!add(out, &l, &err), "appended %s", err.text);
    json_t *a = line_at(out, 0), *b = line_at(out, 1), *c = line_at(out, 2);
    TAP_CHECK(a && b && !c, "two lines");
    TAP_CHECK(!strcmp(json_string_value(json_object_get(a, "custom_id")), "a\"\n\xc3\xa4"), "the id comes back");
    TAP_NEAR(json_real_value(json_object_get(a, "ttft_ms")), 250, 1e-9, "ttft_ms");
    TAP_CHECK(json_is_null(json_object_get(a, "durable_s")) && json_is_null(json_object_get(a, "error")), "nulls");
    TAP_CHECK(json_integer_value(json_object_get(a, "bytes")) == 1234, "bytes");
    TAP_CHECK(!strcmp(json_string_value(json_object_get(b, "status")), "failed") &&
                  !strcmp(json_string_value(json_object_get(b, "error")), "disk full"), "failed, and why");
    TAP_CHECK(json_is_null(json_object_get(b, "bytes")) && json_is_null(json_object_get(b, "path")), "no file");
    TAP_CHECK(json_object_size(a) == 14 && json_object_size(b) == 14, "every line has every key");
    json_decref(a);
    json_decref(b);
    l = line_of("\xff");
    TAP_CHECK(!add(out, &l, &err) && (c = line_at(out, 2)) && json_is_null(json_object_get(c, "custom_id")),
              "an id that is not UTF-8 does not stop the run");
    json_decref(c);
    temporary_end(out);
}

/* A crash leaves any part of a line: what was whole before stays, and the next line is whole. */
static void torn_lines(void)
{
    static const char whole[] = "{\"custom_id\":\"a\"}\n{\"custom_id\":\"b\"}\n";
    lf_err err = { "" };
    char *out = temporary(), *path = lf_printf("%s/results.jsonl", out);
    lf_result l = line_of("next");
    int bad = 0;

    for (size_t n = 0; n < sizeof whole; n++) {
        lf_file_replace(path, whole, n, &err);
        TAP_QUIET(bad, !add(out, &l, &err), "%zu: %s", n, err.text);
        /* 18 characters a line; whole is a line from its last brace on */
        int before = (int)(n + 1) / 18;
        json_t *j = line_at(out, before), *more = line_at(out, before + 1);
        const char *id = json_string_value(json_object_get(j, "custom_id"));
        TAP_QUIET(bad, id && !strcmp(id, "next") && !more, "cut at %zu", n);
        json_decref(j);
        json_decref(more);
    }
    TAP_CHECK(bad == 0, "a torn last line is repaired wherever it was cut");
    free(path);
    temporary_end(out);
}

static void long_torn_line(void)
{
    lf_err err = { "" };
    char *out = temporary(), *path = lf_printf("%s/results.jsonl", out), *text = lf_alloc(20001);
    lf_result l = line_of("next");

    memset(text, 'x', 20000);
    memcpy(text, "{}\n", 3);
    lf_file_replace(path, text, 20000, &err);
    TAP_CHECK(!add(out, &l, &err), "repaired %s", err.text);
    json_t *j = line_at(out, 1);
    TAP_CHECK(j && json_object_size(j) == 14, "a torn line of 20000 characters is removed");
    json_decref(j);
    free(text);
    free(path);
    temporary_end(out);
}

static void result_errors(void)
{
    lf_err err = { "" };
    struct rlimit before, now;
    char *out = temporary();
    lf_results *r;
    lf_result l = line_of("a");

    signal(SIGXFSZ, SIG_IGN);
    TAP_CHECK(!add(out, &l, &err), "one line fits");
    getrlimit(RLIMIT_FSIZE, &before);
    now = before;
    now.rlim_cur = 300;
    TAP_CHECK(!lf_results_open(&r, out, 0, &err), "opened");
    setrlimit(RLIMIT_FSIZE, &now);
    int rc = lf_results_append(r, &l, &err);
    setrlimit(RLIMIT_FSIZE, &before);
    TAP_CHECK(rc && strstr(err.text, "results.jsonl: File too large"), "a full disk is an error: %s", err.text);
    TAP_CHECK(!lf_results_append(r, &l, &err), "with room again it goes on");
    lf_results_close(r);
    json_t *j = line_at(out, 1);
    TAP_CHECK(j, "and no half line is in between");
    json_decref(j);
    temporary_end(out);
    TAP_CHECK(lf_results_open(&r, "/nonexistent", 1, &err), "refused: %s", err.text);
    for (int what = 0; what < 2; what++) {
        out = temporary();
        char *path = lf_printf("%s/results.jsonl", out);
        TAP_CHECK(!(what ? symlink("/dev/full", path) : mkfifo(path, 0666)), "something else is there");
        TAP_CHECK(lf_results_open(&r, out, 1, &err) && strstr(err.text, "not a regular file"), "refused: %s", err.text);
        free(path);
        temporary_end(out);
    }
}

int main(void)
{
    names();
    names_safe();
    collisions();
    prepare();
    resume_same();
    resume_other();
    resume_damaged();
    resume_claimed();
    result_lines();
    torn_lines();
    long_torn_line();
    result_errors();
    return tap_done();
}
