/* SPDX-License-Identifier: Apache-2.0 */
#include "request_idfile.h"
#include "request.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VOCAB = 1000, LONGEST = 2000 };

static char dir[] = "/tmp/lf_request_XXXXXX";

/* A tokenizer for tests: an id per byte; 999 in front of a text that begins with 'B', if special ids are wanted. */
static int fake_encode(void *ctx, const char *text, size_t bytes, int add_special, uint32_t **ids, int64_t *n,
                       lf_err *err)
{
    int bos = add_special && *text == 'B';

    (void)ctx;
    if (memchr(text, 0xff, bytes))
        return lf_fail(err, "not UTF-8");
    *ids = lf_alloc((bytes + 1) * sizeof **ids);
    (*ids)[0] = 999;
    for (size_t i = 0; i < bytes; i++)
        (*ids)[i + (size_t)bos] = (uint8_t)text[i] == 0xfe ? 5000 : (uint8_t)text[i];
    *n = (int64_t)bytes + bos;
    return 0;
}

static const lf_request_rules rules = { VOCAB, LONGEST, fake_encode, NULL };

static int parse(lf_requests *r, const char *text, size_t bytes, const lf_request_rules *with, lf_err *err)
{
    char *where = lf_printf("%s/", dir);
    FILE *f = tmpfile();

    err->text[0] = 0;
    fwrite(text, 1, bytes, f);
    rewind(f);
    int bad = lf_requests_parse(r, f, "p.jsonl", where, with, err);
    fclose(f);
    free(where);
    return bad;
}

static int good(lf_requests *r, const char *text)
{
    lf_err err;
    int bad = parse(r, text, strlen(text), &rules, &err);

    if (bad)
        printf("# %s\n", err.text);
    return !bad;
}

static int ids_are(const lf_request *q, int64_t n, uint32_t first, uint32_t last)
{
    return q->tokens == n && q->ids[0] == first && q->ids[n - 1] == last;
}

static void file_put(const char *name, const void *data, size_t bytes)
{
    char *path = lf_printf("%s/%s", dir, name);
    FILE *f = fopen(path, "wb");

    fwrite(data, 1, bytes, f);
    fclose(f);
    free(path);
}

static void test_forms(void)
{
    lf_requests r;

    TAP_CHECK(good(&r, "\xef\xbb\xbf{\"custom_id\": \"a\", \"token_ids\": [1, 2, 999]}\r\n\r\n  \t\n"
                       "{\"custom_id\": \"b\", \"prompt\": \"xyz\"}\n"
                       "{\"custom_id\": \"c\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": "
                       "{\"model\": \"m\", \"prompt\": [7], \"max_tokens\": 1, \"suffix\": null}}\n"
                       "{\"custom_id\": \"d\", \"body\": {\"prompt\": \"B\"}}\n"
                       "{\"custom_id\": \"e\", \"prompt\": \"B\", \"add_special_tokens\": false}\n"
                       "{\"custom_id\": \"\xc3\xa9/..\", \"prompt\": \"\\u0000q\"}"),
              "six prompts in their forms");
    TAP_CHECK(r.n == 6 && r.tokens == 3 + 3 + 1 + 2 + 1 + 2 && r.texts == 4, "counted: %d prompts, %d tokens",
              (int)r.n, (int)r.tokens);
    TAP_CHECK(ids_are(&r.v[0], 3, 1, 999) && r.v[0].source == LF_FROM_IDS && !strcmp(r.v[0].id, "a"),
              "token ids");
    TAP_CHECK(ids_are(&r.v[1], 3, 'x', 'z') && r.v[1].source == LF_FROM_TEXT && r.v[1].line == 4,
              "text, its line");
    TAP_CHECK(ids_are(&r.v[2], 1, 7, 7), "a batch line with ids");
    TAP_CHECK(ids_are(&r.v[3], 2, 999, 'B') && ids_are(&r.v[4], 1, 'B', 'B'), "special ids, and without");
    TAP_CHECK(ids_are(&r.v[5], 2, 0, 'q'), "a NUL inside a text stays");
    lf_requests_free(&r);
    TAP_CHECK(r.n == 0 && !r.v, "free leaves nothing");
}

static void test_files(void)
{
    static const uint32_t u32[] = { 5, 6, 700 };
    static const int64_t i64[] = { 8, 9 };
    char npy[192], line[512];
    lf_requests r;

    file_put("a.bin", u32, sizeof u32);
    file_put("a.txt", "hello\n", 6);
    memset(npy, ' ', sizeof npy);
    memcpy(npy, "\x93NUMPY\1\0\x76\0{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }", 10 + 57);
    npy[127] = '\n';
    memcpy(npy + 128, i64, sizeof i64);
    file_put("a.npy", npy, 128 + sizeof i64);
    snprintf(line, sizeof line,
             "{\"custom_id\": \"1\", \"file\": \"a.bin\"}\n{\"custom_id\": \"2\", \"file\": \"%s/a.npy\"}\n"
             "{\"custom_id\": \"3\", \"file\": \"a.txt\"}\n",
             dir);
    TAP_CHECK(good(&r, line), "three kinds of files");
    TAP_CHECK(r.n == 3 && ids_are(&r.v[0], 3, 5, 700) && r.v[0].source == LF_FROM_ID_FILE, ".bin");
    TAP_CHECK(r.n == 3 && ids_are(&r.v[1], 2, 8, 9), ".npy by an absolute path");
    TAP_CHECK(r.n == 3 && ids_are(&r.v[2], 6, 'h', '\n') && r.v[2].source == LF_FROM_TEXT_FILE,
              "text, byte for byte");
    lf_requests_free(&r);
}

static void test_read(void)
{
    char *path = lf_printf("%s/p.jsonl", dir);
    lf_requests r;
    lf_err err;

    file_put("p.jsonl", "{\"custom_id\": \"1\", \"file\": \"a.bin\"}\n", 36);
    TAP_CHECK(!lf_requests_read(&r, path, &rules, &err) && r.tokens == 3,
              "files lie beside the prompts file");
    lf_requests_free(&r);
    TAP_CHECK(lf_requests_read(&r, dir, &rules, &err) == -1 && strstr(err.text, "is a directory"),
              "a directory: %s", err.text);
    free(path);
    TAP_CHECK(lf_requests_read(&r, "/dev/zero", &rules, &err) == -1 && strstr(err.text, "is a device"),
              "a device: %s", err.text);
    path = lf_printf("%s/none", dir);
    TAP_CHECK(lf_requests_read(&r, path, &rules, &err) == -1 && strstr(err.text, "No such file"),
              "no file: %s", err.text);
    free(path);
}

static void test_shard(void)
{
    lf_requests r;

    good(&r, "{\"custom_id\":\"a\",\"prompt\":\"x\"}\n{\"custom_id\":\"b\",\"token_ids\":[1,2]}\n"
             "{\"custom_id\":\"c\",\"token_ids\":[1,2,3]}\n{\"custom_id\":\"d\",\"token_ids\":[4]}\n");
    lf_requests_shard(&r, 1, 2);
    TAP_CHECK(r.n == 2 && !strcmp(r.v[0].id, "b") && !strcmp(r.v[1].id, "d") && r.tokens == 3 && r.texts == 0,
              "shard 1/2 of four");
    TAP_CHECK(r.v[1].place == 3, "places stay");
    lf_requests_shard(&r, 0, 1000);
    TAP_CHECK(r.n == 0, "a shard may be empty");
    lf_requests_free(&r);
}

static void test_long(void)
{
    size_t n = 0, room = 12 << 20;
    char *s = malloc(room);
    lf_request_rules wide = { 129280, 1 << 20, fake_encode, NULL };
    lf_requests r;
    lf_err err;

    n += (size_t)sprintf(s, "{\"custom_id\": \"long\", \"token_ids\": [");
    for (int i = 0; i < 1 << 20; i++)
        n += (size_t)sprintf(s + n, "%s%d", i ? ", " : "", i % 129280);
    n += (size_t)sprintf(s + n, "]}\n");
    TAP_CHECK(!parse(&r, s, n, &wide, &err) && ids_are(&r.v[0], 1 << 20, 0, ((1 << 20) - 1) % 129280),
              "a line of 2^20 ids, %zu bytes", n);
    lf_requests_free(&r);
    wide.max_positions--;
    TAP_CHECK(parse(&r, s, n, &wide, &err) == -1 && strstr(err.text, "at most 1048575"), "one too many");
    free(s);
}

/* ---- refusals: a file's text, and words that the error must have ---- */

static const char *const refused[][2] = {
    { "", "p.jsonl: there is no prompt in it" },
    { "\n\r\n  \n", "there is no prompt in it" },
    { "hello", "p.jsonl:1: not valid JSON" },
    { "{\"custom_id\": \"a\", \"prompt\": \"x\"", "not valid JSON" },
    { "{\"custom_id\": \"a\", \"prompt\": \"x\"} x", "not valid JSON" },
    { "{\"custom_id\": \"a\", \"prompt\": \"\xff\"}", "not valid JSON" },
    { "{\"custom_id\": \"a\", \"prompt\": \"\\ud800\"}", "not valid JSON" },
    { "{\"custom_id\": \"a\", \"custom_id\": \"a\", \"prompt\": \"x\"}", "not valid JSON" },
    { "[1, 2]", "a line must be a JSON object" },
    { "\"text\"", "not valid JSON" },
    { "{}", "\"custom_id\" is missing" },
    { "{\"prompt\": \"x\"}", "\"custom_id\" is missing" },
    { "{\"custom_id\": \"\", \"prompt\": \"x\"}", "\"custom_id\" must be a text" },
    { "{\"custom_id\": 5, \"prompt\": \"x\"}", "\"custom_id\" must be a text" },
    { "{\"custom_id\": \"a\\nb\", \"prompt\": \"x\"}", "control character at byte 1" },
    { "{\"custom_id\": \"a\\u0000b\", \"prompt\": \"x\"}", "control character at byte 1" },
    { "{\"custom_id\": \"a\"}", "exactly one of" },
    { "{\"custom_id\": \"a\", \"prompt\": \"x\", \"token_ids\": [1]}", "exactly one of" },
    { "{\"custom_id\": \"a\", \"token_ids\": [1], \"file\": \"f\"}", "exactly one of" },
    { "{\"custom_id\": \"a\", \"promt\": \"x\"}", "did you mean \"prompt\"?" },
    { "{\"custom_id\": \"a\", \"tokens_ids\": [1]}", "did you mean \"token_ids\"?" },
    { "{\"custom_id\": \"a\", \"prompt_token_ids\": [1]}", "\"prompt_token_ids\"; did you mean \"token_ids\"?" },
    { "{\"custom_id\": \"a\", \"input_ids\": [1]}", "did you mean \"token_ids\"?" },
    { "{\"custom_id\": \"a\", \"tokens\": [1]}", "did you mean \"token_ids\"?" },
    { "{\"custom_id\": \"a\", \"text\": \"x\"}", "did you mean \"prompt\"?" },
    { "{\"custom_id\": \"a\", \"input\": \"x\"}", "did you mean \"prompt\"?" },
    { "{\"custom_id\": \"a\", \"body\": {\"prompt_token_ids\": [1]}}", "did you mean \"prompt\"?" },
    { "{\"custom_id\": \"a\", \"qqqqqqqqqq\": [1]}", "unknown key \"qqqqqqqqqq\"" },
    { "{\"custom_id\": \"a\", \"q\\nr\\nstuvwx\": [1]}", "unknown key \"q?r?stuvwx\"" },
    { "{\"custom_id\": \"a\", \"prompt\": \"x\", \"prefix\": \"k.h5\"}", "\"prefix\" cannot be used" },
    { "{\"custom_id\": \"a\", \"prompt\": \"\"}", "the prompt is empty" },
    { "{\"custom_id\": \"a\", \"token_ids\": []}", "the prompt is empty" },
    { "{\"custom_id\": \"a\", \"prompt\": null}", "\"prompt\" must be a text or an array" },
    { "{\"custom_id\": \"a\", \"prompt\": [\"x\", \"y\"]}", "a line holds one prompt" },
    { "{\"custom_id\": \"a\", \"prompt\": [[1, 2]]}", "a line holds one prompt" },
    { "{\"custom_id\": \"a\", \"token_ids\": \"x\"}", "\"token_ids\" must be an array" },
    { "{\"custom_id\": \"a\", \"token_ids\": [1, 2.0]}", "token_ids[1] is not a whole number" },
    { "{\"custom_id\": \"a\", \"token_ids\": [1000]}", "token_ids[0] is 1000; the model's ids are 0 to 999" },
    { "{\"custom_id\": \"a\", \"token_ids\": [0, -1]}", "token_ids[1] is -1" },
    { "{\"custom_id\": \"a\", \"token_ids\": [99999999999999999999]}", "not valid JSON" },
    { "{\"custom_id\": \"a\", \"token_ids\": [4294967296]}", "token_ids[0] is 4294967296" },
    { "{\"custom_id\": \"a\", \"prompt\": \"\xc3\xbe\", \"add_special_tokens\": 1}",
      "must be true or false" },
    { "{\"custom_id\": \"a\", \"prompt\": \"x\", \"method\": \"POST\"}", "belong to a line with a \"body\"" },
    { "{\"custom_id\": \"a\", \"body\": {\"model\": \"m\"}}", "\"body\" has no \"prompt\"" },
    { "{\"custom_id\": \"a\", \"body\": \"x\"}", "\"body\" must be an object" },
    { "{\"custom_id\": \"a\", \"body\": {\"messages\": []}}", "no chat template" },
    { "{\"custom_id\": \"a\", \"body\": {\"prompt\": \"x\", \"suffix\": \"y\"}}",
      "\"suffix\" cannot be used" },
    { "{\"custom_id\": \"a\", \"body\": {\"prompt\": \"x\", \"max_token\": 1}}",
      "did you mean \"max_tokens\"?" },
    { "{\"custom_id\": \"a\", \"prompt\": \"x\", \"body\": {\"prompt\": \"x\"}}", "beside \"body\"" },
    { "{\"custom_id\": \"a\", \"url\": \"/v1/chat/completions\", \"body\": {\"prompt\": \"x\"}}",
      "it must be \"/v1/completions\", as no chat template is applied; give the text itself as \"prompt\"" },
    { "{\"custom_id\": \"a\", \"url\": \"/v1/embeddings\", \"body\": {\"prompt\": \"x\"}}",
      "\"url\" is /v1/embeddings; it must be \"/v1/completions\"" },
    { "{\"custom_id\": \"a\", \"method\": \"GET\", \"body\": {\"prompt\": \"x\"}}", "it must be \"POST\"" },
    { "{\"custom_id\": \"a\", \"file\": \"missing.txt\"}", "missing.txt" },
    { "{\"custom_id\": \"a\", \"file\": \".\"}", "not a regular file" },
    { "{\"custom_id\": \"a\", \"file\": \"fifo\"}", "not a regular file" },
    { "{\"custom_id\": \"a\", \"file\": \"/dev/zero\"}", "not a regular file" },
    { "{\"custom_id\": \"a\", \"file\": \"\"}", "\"file\" must be the path" },
    { "{\"custom_id\": \"a\", \"file\": \"odd.bin\"}", "no whole number of u32" },
    { "{\"custom_id\": \"a\", \"file\": \"big.bin\"}", "token 1 is 1000" },
    { "{\"custom_id\": \"a\", \"file\": \"empty.bin\"}", "the prompt is empty" },
    { "{\"custom_id\": \"a\", \"file\": \"empty.txt\"}", "the prompt is empty" },
    { "{\"custom_id\": \"a\", \"file\": \"latin.txt\"}", "\"file\" latin.txt: not UTF-8" },
    { "{\"custom_id\": \"a\", \"file\": \"wide.txt\"}", "they do not belong together" },
    { "{\"custom_id\": \"a\", \"file\": \"long.txt\"}", "2001 tokens; the model takes at most 2000" },
    { "{\"custom_id\": \"a\", \"prompt\": \"x\"}\n\n{\"custom_id\": \"a\", \"prompt\": \"y\"}",
      "p.jsonl:3: custom_id \"a\" is already that of line 1" },
    { "{}\n{\"custom_id\": \"a\", \"prompt\": \"y\"}\n{}\n{}",
      "p.jsonl:1: \"custom_id\" is missing (2 more bad lines: 3, 4)" },
    { "{}\n{}", "(1 more bad line: 2)" },
};

static void test_refused(void)
{
    static const uint32_t big[] = { 999, 1000 };
    char text[2001], *path = lf_printf("%s/fifo", dir);
    lf_requests r;
    lf_err err;

    memset(text, 'x', sizeof text);
    mkfifo(path, 0600);
    free(path);
    file_put("odd.bin", "12345", 5);
    file_put("big.bin", big, sizeof big);
    file_put("empty.bin", "", 0);
    file_put("empty.txt", "", 0);
    file_put("latin.txt", "\xff", 1);
    file_put("wide.txt", "\xfe", 1);
    file_put("long.txt", text, sizeof text);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        int bad = parse(&r, refused[i][0], strlen(refused[i][0]), &rules, &err);
        int ok = bad == -1 && strstr(err.text, refused[i][1]) && !strchr(err.text, '\n') && r.n == 0 && !r.v;
        if (!TAP_CHECK(ok, "refused: %s", refused[i][1]))
            printf("# returned %d: %s\n", bad, err.text);
    }
}

static void test_refused_more(void)
{
    lf_request_rules blind = { VOCAB, LONGEST, NULL, NULL };
    char text[1024];
    lf_requests r;
    lf_err err;

    parse(&r, "{\"custom_id\": \"a\", \"prompt\": \"x\"}", 33, &blind, &err);
    TAP_CHECK(r.n == 0 && strstr(err.text, "text needs a tokenizer"), "no tokenizer, a text: %s", err.text);
    TAP_CHECK(!parse(&r, "{\"custom_id\": \"a\", \"token_ids\": [1]}", 36, &blind, &err),
              "no tokenizer, ids");
    lf_requests_free(&r);
    TAP_CHECK(parse(&r, "{\"custom_id\": \"a\", \0\"prompt\": \"x\"}", 34, &rules, &err) == -1,
              "a NUL byte in a line");
    snprintf(text, sizeof text, "{\"custom_id\": \"%0*d\", \"prompt\": \"x\"}", LF_ID_BYTES, 1);
    TAP_CHECK(good(&r, text) && strlen(r.v[0].id) == LF_ID_BYTES, "an id of %d bytes", LF_ID_BYTES);
    lf_requests_free(&r);
    snprintf(text, sizeof text, "{\"custom_id\": \"%0*d\", \"prompt\": \"x\"}", LF_ID_BYTES + 1, 1);
    TAP_CHECK(parse(&r, text, strlen(text), &rules, &err) && strstr(err.text, "at most 512"),
              "one more is refused");
    text[0] = 0;
    for (int i = 0; i < 30; i++)
        strcat(text, "{}\n");
    TAP_CHECK(parse(&r, text, strlen(text), &rules, &err) && strstr(err.text, "(29 more bad lines: 2, 3,") &&
              strstr(err.text, " 20, ...)"), "thirty bad lines: %s", err.text);
}

/* ---- .npy headers ---- */

static const char *npy(lf_err *err, int major, const char *header, const void *data, size_t bytes,
                       uint32_t **ids, int64_t *n)
{
    uint8_t file[512] = "\x93NUMPY";
    size_t len = strlen(header), at = major == 1 ? 10 : 12;

    file[6] = (uint8_t)major;
    file[8] = (uint8_t)len;
    memcpy(file + at, header, len);
    memcpy(file + at + len, data, bytes);
    *ids = NULL;
    err->text[0] = 0;
    lf_idfile_parse(file, at + len + bytes, LF_IDFILE_NPY, VOCAB, ids, n, err);
    return err->text;
}

static void test_npy(void)
{
    static const char *const bad[][2] = {
        { "{'descr': '>u4', 'fortran_order': False, 'shape': (2,), }", "elements are '>u4'" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "elements are '<f4'" },
        { "{'descr': '<u4', 'fortran_order': True, 'shape': (2,), }", "Fortran order" },
        { "{'descr': '<u4', 'fortran_order': False, 'shape': (1, 2), }", "2 dimensions" },
        { "{'descr': '<u4', 'fortran_order': False, 'shape': (), }", "0 dimensions" },
        { "{'descr': '<u4', 'fortran_order': False, 'shape': (3,), }", "announces 3 elements" },
        { "{'descr': '<u4', 'fortran_order': False, 'shape': (99999999999999999999,), }", "header is not" },
        { "{'descr': '<u4', 'fortran_order': False}", "header is not" },
        { "{'descr': '<u4', 'fortran_order': 0, 'shape': (2,), }", "header is not" },
        { "{'descr': '<u4', 'descr': '<u4', 'fortran_order': False, 'shape': (2,), }", "header is not" },
        { "{'descr': '<u4', 'fortran_order': False, 'shape': (2,), } x", "header is not" },
        { "{'descr': [('a', '<u4')], 'fortran_order': False, 'shape': (2,), }", "header is not" },
        { "{'descr': '<u4", "header is not" },
        { "", "header is not" },
    };
    static const uint32_t two[] = { 3, 4 };
    static const uint16_t small[] = { 11, 12, 13 };
    uint32_t *ids;
    int64_t n;
    lf_err err;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        TAP_CHECK(strstr(npy(&err, 1, bad[i][0], two, 8, &ids, &n), bad[i][1]) && !ids, ".npy: %s",
                  bad[i][1]);
    npy(&err, 2, "{\"shape\": (3,), 'fortran_order': False, 'descr': '<u2'}  \n", small, 6, &ids, &n);
    TAP_CHECK(!err.text[0] && n == 3 && ids[2] == 13, ".npy 2.0 of u16, other order and quotes %s", err.text);
    free(ids);
    npy(&err, 3, "{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}\n", two, 8, &ids, &n);
    TAP_CHECK(!err.text[0] && n == 2 && ids[1] == 4, ".npy 3.0 of i32 %s", err.text);
    free(ids);
    TAP_CHECK(strstr(npy(&err, 4, "", two, 8, &ids, &n), "format 4.0"), ".npy 4.0 is refused");
    TAP_CHECK(strstr(npy(&err, 1, "{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}",
                         "\xff\xff\xff\xff", 4, &ids, &n),
                     "token 0 is -1"),
              "a negative id");
    TAP_CHECK(lf_idfile_parse("\x93NUMPY\1\0\xff\xff", 10, LF_IDFILE_NPY, VOCAB, &ids, &n, &err) &&
              strstr(err.text, "cut off"), "a header longer than the file");
    TAP_CHECK(lf_idfile_parse("\x93NUM", 4, LF_IDFILE_NPY, VOCAB, &ids, &n, &err) &&
              strstr(err.text, "does not begin"), "four bytes");
}

int main(void)
{
    if (!mkdtemp(dir))
        return 1;
    test_forms();
    test_files();
    test_read();
    test_shard();
    test_long();
    test_refused();
    test_refused_more();
    test_npy();
    char *clean = lf_printf("rm -r %s", dir);
    int left = system(clean);
    free(clean);
    return tap_done() || left;
}
