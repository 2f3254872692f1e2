/* SPDX-License-Identifier: Apache-2.0
 *
 * The ids of the Python `tokenizers` library on two small tokenizers and on variants of one of them, from
 * data/tokenizer/golden.json (written by tests/reference/make_tokenizer_golden.py).
 */
#include "file.h"
#include "hash.h"
#include "tap.h"
#include "tokenizer.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct result {
    int failed;
    uint32_t *ids;
    int64_t n;
    lf_err err;
} result;

static const char *data_dir(char *buf, size_t n, const char *name)
{
    const char *srcdir = getenv("srcdir");

    snprintf(buf, n, "%s/../data/tokenizer/%s", srcdir ? srcdir : ".", name);
    return buf;
}

static result encode(const lf_tokenizer *t, const char *text, size_t bytes, int special)
{
    result r = { 0 };

    r.failed = lf_tokenizer_encode(t, text, bytes, special, &r.ids, &r.n, &r.err);
    return r;
}

static result encode_json(const lf_tokenizer *t, const json_t *text)
{
    return encode(t, json_string_value(text), json_string_length(text), 0);
}

static int same_ids(const result *r, const json_t *want)
{
    int same = !r->failed && (size_t)r->n == json_array_size(want);

    for (int64_t i = 0; same && i < r->n; i++)
        same = json_integer_value(json_array_get(want, (size_t)i)) == r->ids[i];
    return same;
}

/* As make_tokenizer_golden.py's summary(): little-endian u32. */
static int same_sum(const result *r, const json_t *want)
{
    char hex[65];

    if (r->failed || r->n != json_integer_value(json_object_get(want, "n")))
        return 0;
    uint8_t *le = malloc((size_t)r->n * 4 + 1);
    for (int64_t i = 0; i < r->n; i++) {
        for (int k = 0; k < 4; k++)
            le[4 * i + k] = (uint8_t)(r->ids[i] >> 8 * k);
    }
    lf_sha256_hex(le, (size_t)r->n * 4, hex);
    free(le);
    return strcmp(hex, json_string_value(json_object_get(want, "sha256"))) == 0;
}

static lf_tokenizer *open_fixture(const char *name)
{
    char dir[4096];
    lf_tokenizer *t = NULL;
    lf_err err = { "" };
    int rc = lf_tokenizer_open(&t, data_dir(dir, sizeof dir, name), &err);

    TAP_CHECK(rc == 0, "%s opens%s%s", name, rc ? ": " : "", err.text);
    return t;
}

static json_t *read_json(const char *name)
{
    char path[4096];
    json_error_t e;

    return json_load_file(data_dir(path, sizeof path, name), JSON_ALLOW_NUL, &e);
}

static void check_cases(const json_t *golden, const lf_tokenizer *mini, const lf_tokenizer *tiny)
{
    const json_t *cases = json_object_get(golden, "cases"), *one;
    size_t i;
    int bad = 0;

    json_array_foreach(cases, i, one) {
        result a = encode_json(mini, json_object_get(one, "text"));
        result b = encode_json(tiny, json_object_get(one, "text"));
        TAP_QUIET(bad, same_ids(&a, json_object_get(one, "mini")), "mini, case %zu", i);
        TAP_QUIET(bad, same_ids(&b, json_object_get(one, "tiny")), "tiny, case %zu", i);
        free(a.ids);
        free(b.ids);
    }
    TAP_CHECK(bad == 0 && i >= 40, "%zu short texts with both tokenizers", i);
}

static void check_classes(const json_t *golden, const lf_tokenizer *mini)
{
    const json_t *classes = json_object_get(golden, "classes"), *one;
    size_t i;
    int bad = 0;

    json_array_foreach(classes, i, one) {
        result a = encode_json(mini, json_object_get(one, "text"));
        TAP_QUIET(bad, same_sum(&a, one), "category %s", json_string_value(json_object_get(one, "category")));
        free(a.ids);
    }
    TAP_CHECK(bad == 0 && i == 29, "characters of all %zu general categories", i);
}

/* The generator of make_tokenizer_golden.py's mixed(). */
static char *mixed(const json_t *fragments, uint64_t seed, size_t size, size_t *bytes)
{
    char *text = malloc(size + 4096);
    size_t n = 0;

    while (n < size) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const json_t *f = json_array_get(fragments, (size_t)((seed >> 33) % json_array_size(fragments)));
        memcpy(text + n, json_string_value(f), json_string_length(f));
        n += json_string_length(f);
    }
    *bytes = n;
    return text;
}

static void check_mixed(const json_t *golden, const lf_tokenizer *mini)
{
    const json_t *list = json_object_get(golden, "mixed"), *one;
    size_t i, bytes;

    json_array_foreach(list, i, one) {
        size_t size = (size_t)json_integer_value(json_object_get(one, "size"));
        char *text = mixed(json_object_get(golden, "fragments"),
                           (uint64_t)json_integer_value(json_object_get(one, "seed")), size, &bytes);
        result a = encode(mini, text, bytes, 0);
        TAP_CHECK(same_sum(&a, one), "mixed text of %zu bytes: code, prose, emoji, special tokens", bytes);
        free(a.ids);
        free(text);
    }
    TAP_CHECK(i == 4, "all mixed texts");
}

/* A megabyte of one thing.  What grows with the square of the length takes hours here, not seconds. */
static void check_runs(const json_t *golden, const lf_tokenizer *mini)
{
    const json_t *list = json_object_get(golden, "runs"), *one;
    size_t i;
    int bad = 0;
    clock_t start = clock();

    json_array_foreach(list, i, one) {
        const json_t *piece = json_object_get(one, "text");
        size_t length = json_string_length(piece);
        size_t times = (size_t)json_integer_value(json_object_get(one, "times"));
        char *text = malloc(length * times);
        for (size_t k = 0; k < times; k++)
            memcpy(text + k * length, json_string_value(piece), length);
        result a = encode(mini, text, length * times, 0);
        TAP_QUIET(bad, same_sum(&a, one), "run %zu", i);
        free(a.ids);
        free(text);
    }
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    TAP_CHECK(bad == 0 && i == 11, "%zu runs of a megabyte", i);
    TAP_CHECK(seconds < 60, "they take no more than a minute (%.1f s)", seconds);
}

/* `base` with a patch as in make_tokenizer_golden.py's tokenizer(). */
static char *patched(const json_t *base, const json_t *patch)
{
    json_t *all = json_copy((json_t *)base), *model = json_copy(json_object_get(base, "model"));
    const json_t *more = json_object_get(patch, "model");

    json_object_update(all, (json_t *)patch);
    if (more)
        json_object_update(model, (json_t *)more);
    json_object_set_new(all, "model", model);
    char *text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    return text;
}

static lf_tokenizer *parse(const char *text, const char *config, lf_err *err)
{
    lf_tokenizer *t = NULL;

    return lf_tokenizer_parse(&t, text, strlen(text), config, "memory", err) ? NULL : t;
}

static void check_variant(const json_t *base, const json_t *one)
{
    const json_t *texts = json_object_get(one, "texts"), *text;
    const char *name = json_string_value(json_object_get(one, "name"));
    char *file = patched(base, json_object_get(one, "patch"));
    lf_err err = { "" };
    lf_tokenizer *t = parse(file, NULL, &err);
    int bad = t == NULL;
    size_t i;

    if (!t)
        printf("# %s: %s\n", name, err.text);
    json_array_foreach(texts, i, text) {
        if (!t)
            break;
        result a = encode_json(t, text);
        TAP_QUIET(bad, same_sum(&a, json_array_get(json_object_get(one, "sums"), i)), "text %zu", i);
        free(a.ids);
    }
    TAP_CHECK(bad == 0 && i > 0, "variant %s: %zu texts", name, i);
    lf_tokenizer_close(t);
    free(file);
}

static void check_variants(const json_t *golden, const json_t *base)
{
    const json_t *list = json_object_get(golden, "variants"), *one;
    size_t i;

    json_array_foreach(list, i, one)
        check_variant(base, one);
    TAP_CHECK(i >= 30, "%zu variants", i);
}

/* ---- what is refused ---- */

static void refuses(const json_t *base, const char *patch, const char *config, const char *must_say)
{
    json_error_t e;
    json_t *p = json_loads(patch, 0, &e);
    char *file = patched(base, p);
    lf_err err = { "" };
    lf_tokenizer *t = parse(file, config, &err);

    TAP_CHECK(t == NULL && strstr(err.text, must_say), "refused: %s", must_say);
    if (t || !strstr(err.text, must_say))
        printf("# said: %s\n", err.text);
    lf_tokenizer_close(t);
    free(file);
    json_decref(p);
}

#define LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"
#define CUT "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["

static void refuses_pattern(const json_t *base, const char *pattern, const char *must_say)
{
    json_t *text = json_string(pattern);
    char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    char *patch = lf_printf(CUT "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,"
                            "\"pattern\":{\"Regex\":%s}}," LEVEL "]}}", quoted);

    refuses(base, patch, NULL, must_say);
    free(patch);
    free(quoted);
    json_decref(text);
}

static void check_patterns_refused(const json_t *base)
{
    static const char *const bad[][2] = {
        { "(?i:a)", "this kind of (?" }, { "^a", "an anchor" }, { "a$", "an anchor" },
        { "\\bx", "the escape \\b" },
        { "(a)\\1", "the escape \\1" }, { "\\p{Han}", "the property Han" }, { "\\p{^L}", "the property ^L" },
        { "\\X", "the escape \\X" }, { "[a[b]]", "a class inside a class" }, { "[a&&b]", "&& in a class" },
        { "[a", "a [ without its ]" }, { "(a", "a ( without its )" }, { "a)", "a ) without its (" },
        { "a{2}?", "a ? after {n}" }, { "a{1,2}+", "a + after {}" },
        { "a**", "a quantifier of a quantifier" },
        { "*a", "a quantifier of nothing" }, { "(a*)*", "repeating without bound" },
        { "[z-a]", "ends before it begins" },
        { "(?=a)*", "a quantifier on a look-around" }, { "a{,2}", "this number of repetitions" },
        { "a\\", "a backslash" },
        { "a{3,2}", "this kind of {}" }, { "[\\w-z]", "a range that begins with a set" },
        { "\\x{d800}", "not a character" },
        { "[]a]", "a ] as the first member" }, { "(?<=a+)b", "PCRE2 does not take it" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses_pattern(base, bad[i][0], bad[i][1]);
}

static void check_refused(const json_t *base)
{
    refuses(base, "{\"normalizer\":{\"type\":\"NFC\"}}", NULL, "normalizer NFC is not supported");
    refuses(base, "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"}]}}", NULL,
            "NFKC");
    refuses(base, "{\"pre_tokenizer\":null}", NULL, "pre_tokenizer: is missing");
    refuses(base, "{\"pre_tokenizer\":{\"type\":\"Metaspace\"}}", NULL,
            "component Metaspace is not supported");
    refuses(base, "{\"pre_tokenizer\":{\"type\":\"Digits\",\"individual_digits\":true}}", NULL,
            "has no ByteLevel");
    refuses(base, CUT LEVEL "," LEVEL "]}}", NULL, "ByteLevel after ByteLevel");
    refuses(base, "{\"post_processor\":{\"type\":\"BertProcessing\"}}", NULL, "component BertProcessing");
    refuses(base, "{\"truncation\":{\"max_length\":5}}", NULL, "\"truncation\" is set");
    refuses(base, "{\"padding\":{}}", NULL, "\"padding\" is set");
    refuses(base, "{\"version\":\"2.0\"}", NULL, "\"version\"");
    refuses(base, "{\"model\":{\"type\":\"Unigram\"}}", NULL, "type \"Unigram\" is not supported");
    refuses(base, "{\"model\":{\"dropout\":0.5}}", NULL, "\"dropout\" is set");
    refuses(base, "{\"model\":{\"end_of_word_suffix\":\"</w>\"}}", NULL, "\"end_of_word_suffix\"");
    refuses(base, "{\"model\":{\"vocab\":{\"a\":0}}}", NULL, "no entry for the byte 0x00");
    refuses(base, "{\"model\":{\"vocab\":{\"a\":0,\"b\":0}}}", NULL,
            "two entries of \"vocab\" have the id 0");
    refuses(base, "{\"model\":{\"vocab\":{\"a\":-1}}}", NULL, "not a whole number");
    refuses(base, "{\"model\":{\"merges\":[\"a b c\"]}}", NULL, "merge 0 is neither");
    refuses(base, "{\"model\":{\"merges\":[\"a qqq\"]}}", NULL, "\"qqq\" is not in \"vocab\"");
    refuses(base, "{\"model\":{\"merges\":[[\"a\",\"q\"]]}}", NULL, "\"aq\" is not in \"vocab\"");
    refuses(base, "{\"added_tokens\":[{\"id\":700,\"content\":\"<x>\",\"single_word\":false,\"lstrip\":false,"
            "\"rstrip\":false,\"normalized\":false,\"special\":false}]}", NULL, "its place gives it 508");
    refuses(base, "{}", "{\"add_bos_token\":true}", "\"add_bos_token\" is true, but \"bos_token\"");
    refuses(base, "{}", "{\"add_eos_token\":true,\"eos_token\":\"<none>\"}",
            "\"<none>\", which tokenizer.json does not");
    refuses(base, "{}", "{\"add_bos_token\":", "tokenizer_config.json: line 1");
    check_patterns_refused(base);
}

/* Where invalid UTF-8 begins; 0 bytes and the largest code points are valid. */
static void check_utf8(const lf_tokenizer *t)
{
    static const struct { const char *text; size_t bytes; const char *say; } bad[] = {
        { "ab\xff", 3, "byte 0xff at offset 2" }, { "a\xc0\x80", 3, "0xc0 at offset 1" },
        { "\xe4\xb8", 2, "0xe4 at offset 0" }, { "\xed\xa0\x80", 3, "0xed at offset 0" },
        { "\xf4\x90\x80\x80", 4, "0xf4 at offset 0" }, { "12345678\x80", 9, "0x80 at offset 8" },
        { "\xe0\x9f\xbf", 3, "0xe0 at offset 0" }, { "\xf0\x8f\xbf\xbf", 4, "0xf0 at offset 0" },
    };
    int wrong = 0;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        result r = encode(t, bad[i].text, bad[i].bytes, 0);
        TAP_QUIET(wrong, r.failed && strstr(r.err.text, bad[i].say), "%zu: %s", i, r.err.text);
    }
    TAP_CHECK(wrong == 0, "invalid UTF-8 is refused with its offset");
    result r = encode(t, "\0\xf4\x8f\xbf\xbf\xed\x9f\xbf", 8, 0);
    TAP_CHECK(!r.failed && r.n == 8, "the limits of UTF-8 are text");
    free(r.ids);
}

/* ---- special tokens ---- */

static void gives(const json_t *base, const char *patch, const char *config, const char *what, int64_t n,
                  const uint32_t *want)
{
    json_error_t e;
    json_t *p = json_loads(patch, 0, &e);
    char *file = patched(base, p);
    lf_err err = { "" };
    lf_tokenizer *t = parse(file, config, &err);
    result r = { .failed = 1 };

    if (t)
        r = encode(t, "\n", 1, 1);
    TAP_CHECK(!r.failed && r.n == n && memcmp(r.ids, want, (size_t)n * sizeof *want) == 0,
              "special tokens: %s", what);
    free(r.ids);
    lf_tokenizer_close(t);
    free(file);
    json_decref(p);
}

static void check_special(const json_t *base, const lf_tokenizer *tiny)
{
    static const char template[] =
        "{\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},"
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"s\",\"type_id\":0}},"
        "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"e\",\"type_id\":0}}],"
        "\"pair\":[],\"special_tokens\":{\"s\":{\"id\":\"s\",\"ids\":[2,0],\"tokens\":[\"\",\"\"]},"
        "\"e\":{\"id\":\"e\",\"ids\":[1],\"tokens\":[\"\"]}}}]}}";
    static const char both[] =
        "{\"add_bos_token\":true,\"bos_token\":{\"content\":\"<｜begin▁of▁sentence｜>\"},"
        "\"add_eos_token\":true,\"eos_token\":\"<｜end▁of▁sentence｜>\"}";
    result r = encode(tiny, "\n", 1, 0);
    uint32_t nl = r.n == 1 ? r.ids[0] : 0;

    TAP_CHECK(r.n == 1 && nl > 2, "without special tokens there are none");
    free(r.ids);
    r = encode(tiny, "", 0, 1);
    TAP_CHECK(!r.failed && r.n == 1 && r.ids[0] == 0, "an empty text is the beginning of a sentence alone");
    free(r.ids);
    r = encode(tiny, "", 0, 0);
    TAP_CHECK(!r.failed && r.n == 0 && r.ids, "or nothing at all");
    free(r.ids);
    gives(base, "{}", NULL, "no configuration", 1, (uint32_t[]){ nl });
    gives(base, "{\"post_processor\":null}", "{}", "an empty configuration", 1, (uint32_t[]){ nl });
    gives(base, "{}", both, "both, as text and object", 3, (uint32_t[]){ 0, nl, 1 });
    gives(base, template, NULL, "the template's", 4, (uint32_t[]){ 2, 0, nl, 1 });
    gives(base, template, both, "configured ones replace the template's", 3, (uint32_t[]){ 0, nl, 1 });
    gives(base, template, "{\"add_bos_token\":false}", "none before, the template's after", 2,
          (uint32_t[]){ nl, 1 });
}

/* ---- several threads, one tokenizer ---- */

typedef struct job {
    const lf_tokenizer *t;
    const char *text;
    size_t bytes;
    result r;
} job;

static void *run_job(void *arg)
{
    job *j = arg;

    j->r = encode(j->t, j->text, j->bytes, 1);
    return NULL;
}

static void check_threads(const json_t *golden, const lf_tokenizer *mini)
{
    enum { N = 4 };
    pthread_t thread[N];
    job j[N];
    size_t bytes;
    char *text = mixed(json_object_get(golden, "fragments"), 5, 50000, &bytes);
    int same = 1;

    for (int i = 0; i < N; i++) {
        j[i] = (job){ mini, text, bytes, { 0 } };
        pthread_create(&thread[i], NULL, run_job, &j[i]);
    }
    for (int i = 0; i < N; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < N; i++)
        same &= !j[i].r.failed && j[i].r.n == j[0].r.n && j[i].r.n > 1000 &&
                memcmp(j[i].r.ids, j[0].r.ids, (size_t)j[0].r.n * sizeof(uint32_t)) == 0;
    TAP_CHECK(same, "%d threads at once get the same ids", N);
    for (int i = 0; i < N; i++)
        free(j[i].r.ids);
    free(text);
}

static void check_identity(const lf_tokenizer *mini, const lf_tokenizer *tiny)
{
    char path[4096], hex[65], *file = NULL;
    size_t bytes = 0;
    lf_err err = { "" };

    TAP_CHECK(lf_tokenizer_vocab(mini) == 6004 && lf_tokenizer_vocab(tiny) == 512,
              "vocabularies of 6004 and 512");
    lf_file_read(data_dir(path, sizeof path, "tiny/tokenizer.json"), 1 << 20, &file, &bytes, &err);
    lf_sha256_hex(file, bytes, hex);
    TAP_CHECK(bytes > 0 && strcmp(hex, lf_tokenizer_sha256(tiny)) == 0,
              "the identity is the SHA-256 of the file");
    free(file);
    lf_tokenizer *none = NULL;
    TAP_CHECK(lf_tokenizer_open(&none, data_dir(path, sizeof path, "none"), &err) &&
              strstr(err.text, "none/tokenizer.json"), "a missing file is named");
}

int main(void)
{
    json_t *golden = read_json("golden.json"), *base = read_json("tiny/tokenizer.json");
    lf_tokenizer *mini = open_fixture("mini"), *tiny = open_fixture("tiny");

    if (TAP_CHECK(golden && base && mini && tiny, "the data is there")) {
        check_identity(mini, tiny);
        check_cases(golden, mini, tiny);
        check_classes(golden, mini);
        check_mixed(golden, mini);
        check_runs(golden, mini);
        check_variants(golden, base);
        check_special(base, tiny);
        check_utf8(mini);
        check_threads(golden, mini);
        check_refused(base);
    }
    lf_tokenizer_close(mini);
    lf_tokenizer_close(tiny);
    json_decref(golden);
    json_decref(base);
    return tap_done();
}
