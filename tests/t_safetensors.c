/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"
#include "tap.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/t_safetensors.XXXXXX";

/* Writes root/dir/name; makes the directory. */
static void put_file(const char *dir, const char *name, const void *data, size_t n)
{
    char *path = lf_printf("%s/%s", root, dir);

    mkdir(path, 0777);
    free(path);
    path = lf_printf("%s/%s/%s", root, dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f))
        printf("Bail out! cannot write %s\n", path);
    free(path);
}

/* A safetensors file: the header's length (or `claim`, when not 0), the header, n bytes 0, 1, 2, ... of data. */
static void put_shard(const char *dir, const char *name, const char *header, size_t n, uint64_t claim)
{
    size_t h = strlen(header);
    uint64_t length = claim ? claim : h;
    unsigned char *p = lf_alloc(8 + h + n);

    for (int i = 0; i < 8; i++)
        p[i] = (unsigned char)(length >> 8 * i);
    memcpy(p + 8, header, h);
    for (size_t i = 0; i < n; i++)
        p[8 + h + i] = (unsigned char)i;
    put_file(dir, name, p, 8 + h + n);
    free(p);
}

static int open_dir(lf_checkpoint **c, const char *dir, lf_err *err)
{
    char *path = lf_printf("%s/%s", root, dir);
    int rc = lf_checkpoint_open(c, path, err);

    free(path);
    return rc;
}

#define T(name, type, shape, a, b)                                                                           \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #a "," #b "]}"

/* Headers alone do not tell two fine-tunes apart. */
static void check_other_data(const lf_checkpoint *c)
{
    lf_checkpoint *other = NULL;
    lf_err err = { "" };
    FILE *f = fopen(lf_checkpoint_shard_path(c, 0), "r+b");

    int bad = !f || fseek(f, -1, SEEK_END) || fputc(0xee, f) == EOF || fclose(f);
    TAP_CHECK(!bad && open_dir(&other, "single", &err) == 0, "the same file with another last byte opens");
    TAP_CHECK(strcmp(lf_checkpoint_id(other), lf_checkpoint_id(c)) != 0, "and has another id");
    lf_checkpoint_close(other);
}

static void check_single(void)
{
    lf_checkpoint *c;
    lf_err err = { "" };
    const void *data;
    char room[8];

    put_shard("single", "model.safetensors",
              "{\"__metadata__\":{\"format\":\"pt\"},"
              T("b", "F32", "[2,1]", 6, 14) "," T("a", "BF16", "[3]", 0, 6) ","
              T("e", "F32", "[0,5]", 14, 14) "," T("s", "I64", "[]", 14, 22) "}   ",
              22, 0);
    TAP_CHECK(open_dir(&c, "single", &err) == 0, "a single file opens %s", err.text);
    TAP_CHECK(lf_checkpoint_count(c) == 4 && strcmp(lf_checkpoint_at(c, 0)->name, "a") == 0 &&
                  strcmp(lf_checkpoint_at(c, 1)->name, "b") == 0,
              "its tensors are listed by offset");
    const lf_tensor *b = lf_checkpoint_find(c, "b");
    TAP_CHECK(b && b->dtype == LF_F32 && b->ndim == 2 && b->shape[0] == 2 && b->shape[1] == 1 &&
                  b->bytes == 8,
              "type, shape and size of a tensor");
    TAP_CHECK(lf_checkpoint_data(c, b, &data, &err) == 0 && memcmp(data, "\6\7\10\11\12\13\14\15", 8) == 0,
              "and its bytes");
    int64_t at = 0;
    int fd = lf_checkpoint_file(c, data, 8, &at);
    TAP_CHECK(fd >= 0 && pread(fd, room, 8, at) == 8 && memcmp(room, data, 8) == 0, "the same bytes from the file");
    TAP_CHECK(lf_checkpoint_file(c, data, 1 << 20, &at) == -1 && lf_checkpoint_file(c, room, 8, &at) == -1,
              "bytes beyond it and others are in no file");
    const lf_tensor *e = lf_checkpoint_find(c, "e"), *s = lf_checkpoint_find(c, "s");
    TAP_CHECK(e && e->bytes == 0 && s && s->ndim == 0 && s->bytes == 8, "empty tensors and scalars");
    TAP_CHECK(!lf_checkpoint_find(c, "c") && !lf_checkpoint_find(c, "") &&
                  !lf_checkpoint_find(c, "__metadata__"),
              "other names are not found");
    TAP_CHECK(strstr(lf_checkpoint_shard_path(c, 0), "single/model.safetensors"), "the file is named");
    TAP_CHECK(strlen(lf_checkpoint_id(c)) == 64, "the checkpoint has an id");
    check_other_data(c);
    lf_checkpoint_close(c);
    lf_checkpoint_close(NULL);
}

static void check_dtypes(void)
{
    lf_checkpoint *c;
    lf_err err = { "" };

    put_shard("types", "model.safetensors",
              "{" T("a", "BF16", "[1]", 0, 2) "," T("b", "F16", "[1]", 2, 4) "," T("c", "F32", "[1]", 4, 8) ","
              T("d", "F8_E4M3", "[1]", 8, 9) "," T("e", "F8_E8M0", "[1]", 9, 10) "," T("f", "I8", "[1]", 10, 11) ","
              T("g", "U8", "[1]", 11, 12) "," T("h", "I32", "[1]", 12, 16) "," T("i", "I64", "[1]", 16, 24) "}",
              24, 0);
    TAP_CHECK(open_dir(&c, "types", &err) == 0 && lf_checkpoint_count(c) == 9, "nine types are read %s",
              err.text);
    lf_checkpoint_close(c);
}

static void put_good_pair(const char *dir)
{
    put_shard(dir, "model-1.safetensors", "{" T("x", "U8", "[3]", 0, 3) "," T("y", "U8", "[2]", 3, 5) "}", 5,
              0);
    put_shard(dir, "model-2.safetensors", "{" T("z", "U8", "[2,2]", 0, 4) "}", 4, 0);
}

static void put_index(const char *dir, const char *map)
{
    char *text = lf_printf("{\"metadata\":{\"total_size\":9},\"weight_map\":%s}", map);

    put_file(dir, "model.safetensors.index.json", text, strlen(text));
    free(text);
}

#define GOOD_MAP "{\"z\":\"model-2.safetensors\",\"x\":\"model-1.safetensors\",\"y\":\"model-1.safetensors\"}"

static void check_sharded(void)
{
    lf_checkpoint *c;
    lf_err err = { "" };
    const void *data;
    char id[65];

    put_good_pair("pair");
    put_index("pair", GOOD_MAP);
    TAP_CHECK(open_dir(&c, "pair", &err) == 0, "an index with two shards opens %s", err.text);
    const lf_tensor *z = lf_checkpoint_find(c, "z");
    TAP_CHECK(z && z->shard == 1 && lf_checkpoint_data(c, z, &data, &err) == 0 &&
                  memcmp(data, "\0\1\2\3", 4) == 0,
              "a tensor of the second shard is read");
    strcpy(id, lf_checkpoint_id(c));
    lf_checkpoint_close(c);
    TAP_CHECK(open_dir(&c, "pair", &err) == 0 && strcmp(id, lf_checkpoint_id(c)) == 0,
              "the id is the same again");
    lf_checkpoint_close(c);
    put_shard("pair", "model-2.safetensors", "{" T("z", "I8", "[2,2]", 0, 4) "}", 4, 0);
    TAP_CHECK(open_dir(&c, "pair", &err) == 0 && strcmp(id, lf_checkpoint_id(c)),
              "another header makes another id");
    put_shard("pair", "model-2.safetensors", "{" T("z", "I8", "[2,2]", 0, 4) "} ", 4, 0);
    TAP_CHECK(lf_checkpoint_data(c, lf_checkpoint_find(c, "z"), &data, &err) == -1 &&
                  strstr(err.text, "tensor z") && strstr(err.text, "changed"),
              "a shard replaced after open is refused: %s", err.text);
    lf_checkpoint_close(c);
}

static const struct {
    const char *what, *header;
    size_t bytes;
    uint64_t claim;
    const char *says[2];
} bad[] = {
    { "not JSON", "{\"a\":", 0, 0, { "model.safetensors", "not JSON" } },
    { "a header that is a list", "[]", 0, 0, { "model.safetensors", "object" } },
    { "an entry that is no object", "{\"a\":1}", 0, 0, { "tensor a", "object" } },
    { "a name twice",
      "{" T("a", "U8", "[1]", 0, 1) "," T("a", "U8", "[1]", 1, 2) "}",
      2,
      0,
      { "not JSON", "duplicate" } },
    { "an unknown type", "{" T("a", "F64", "[1]", 0, 8) "}", 8, 0, { "tensor a", "F64" } },
    { "U32", "{" T("a", "U32", "[1]", 0, 4) "}", 4, 0, { "tensor a", "U32" } },
    { "no type", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0, { "tensor a", "dtype" } },
    { "no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, 0, { "tensor a", "shape" } },
    { "no offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, 0, { "tensor a", "data_offsets" } },
    { "five dimensions", "{" T("a", "U8", "[1,1,1,1,1]", 0, 1) "}", 1, 0, { "tensor a", "5 dimensions" } },
    { "a negative size", "{" T("a", "U8", "[-1,-1]", 0, 1) "}", 1, 0, { "tensor a", "shape" } },
    { "a size that is no integer", "{" T("a", "U8", "[1.0]", 0, 1) "}", 1, 0, { "tensor a", "shape" } },
    { "a shape of 2^64 elements",
      "{" T("a", "U8", "[4294967296,4294967296]", 0, 1) "}",
      1,
      0,
      { "tensor a", "2^64" } },
    { "a shape of 2^64 bytes",
      "{" T("a", "I64", "[4611686018427387904]", 0, 1) "}",
      1,
      0,
      { "tensor a", "2^64" } },
    { "too few bytes for the shape",
      "{" T("a", "BF16", "[3]", 0, 5) "}",
      5,
      0,
      { "tensor a has 5", "need 6" } },
    { "too many bytes for the shape",
      "{" T("a", "BF16", "[3]", 0, 7) "}",
      7,
      0,
      { "tensor a has 7", "need 6" } },
    { "descending offsets", "{" T("a", "U8", "[1]", 1, 0) "}", 1, 0, { "tensor a", "ascending" } },
    { "negative offsets", "{" T("a", "U8", "[1]", -1, 0) "}", 1, 0, { "tensor a", "ascending" } },
    { "three offsets",
      "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}",
      2,
      0,
      { "tensor a", "pair" } },
    { "an overlap",
      "{" T("a", "U8", "[3]", 0, 3) "," T("b", "U8", "[2]", 2, 4) "}",
      4,
      0,
      { "tensor b", "overlaps tensor a" } },
    { "one place twice",
      "{" T("a", "U8", "[2]", 0, 2) "," T("b", "U8", "[2]", 0, 2) "}",
      2,
      0,
      { "overlaps" } },
    { "a hole",
      "{" T("a", "U8", "[2]", 0, 2) "," T("b", "U8", "[2]", 3, 5) "}",
      5,
      0,
      { "the 1 byte in front of tensor b" } },
    { "a hole in front", "{" T("a", "U8", "[2]", 2, 4) "}", 4, 0, { "2 bytes in front of tensor a" } },
    { "bytes at the end", "{" T("a", "U8", "[2]", 0, 2) "}", 5, 0, { "3 bytes after tensor a" } },
    { "truncated data", "{" T("a", "U8", "[9]", 0, 9) "}", 8, 0, { "truncated", "tensor a" } },
    { "a truncated header", "{" T("a", "U8", "[9]", 0, 9) "}", 0, 5000, { "truncated", "5000" } },
    { "a header of 2^63 bytes", "{}", 0, (uint64_t)1 << 63, { "9223372036854775808", "100000000" } },
    { "a header just over the limit", "{}", 0, 100000001, { "100000001" } },
    { "a control character in a name", "{" T("a\\n", "U8", "[1]", 0, 1) "}", 1, 0, { "control character" } },
    { "an empty name", "{" T("", "U8", "[1]", 0, 1) "}", 1, 0, { "name" } },
};

static void check_bad(void)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lf_checkpoint *c = NULL;
        lf_err err = { "" };
        put_shard("bad", "model.safetensors", bad[i].header, bad[i].bytes, bad[i].claim);
        int rc = open_dir(&c, "bad", &err);
        int named = strstr(err.text, bad[i].says[0]) &&
                    (!bad[i].says[1] || strstr(err.text, bad[i].says[1])) &&
                    strstr(err.text, "model.safetensors") && !strchr(err.text, '\n');
        TAP_CHECK(rc == -1 && !c && named, "refused: %s", bad[i].what);
        if (!named)
            printf("# %s\n", err.text);
        lf_checkpoint_close(c);
    }
    lf_checkpoint *c;
    lf_err err = { "" };
    put_file("bad", "model.safetensors", "\1\0\0", 3);
    TAP_CHECK(open_dir(&c, "bad", &err) == -1 && strstr(err.text, "too short"), "refused: three bytes");
    TAP_CHECK(open_dir(&c, "none", &err) == -1 && strstr(err.text, "none") &&
                  strstr(err.text, "model.safetensors"),
              "refused: a directory without a model: %s", err.text);
}

static const struct {
    const char *what, *map;
    const char *says[2];
} bad_map[] = {
    { "a missing shard", "{\"x\":\"model-3.safetensors\"}", { "model-3.safetensors" } },
    { "an absolute shard path", "{\"x\":\"/tmp/model-1.safetensors\"}", { "tensor x", "same directory" } },
    { "a shard path going up", "{\"x\":\"../pair/model-1.safetensors\"}", { "tensor x", "same directory" } },
    { "a shard in a directory below", "{\"x\":\"a/model-1.safetensors\"}", { "tensor x", "same directory" } },
    { "a backslash", "{\"x\":\"..\\\\model-1.safetensors\"}", { "tensor x", "same directory" } },
    { "a hidden shard", "{\"x\":\".a.safetensors\"}", { "tensor x", "same directory" } },
    { "another file's name", "{\"x\":\"config.json\"}", { "tensor x", "config.json" } },
    { "an empty shard name", "{\"x\":\"\"}", { "tensor x" } },
    { "a shard that is a number", "{\"x\":1}", { "tensor x" } },
    { "an index of a tensor that no shard has",
      "{\"z\":\"model-2.safetensors\",\"w\":\"model-2.safetensors\"}",
      { "tensor w", "model-2.safetensors" } },
    { "a tensor in another shard than the index says",
      "{\"z\":\"model-1.safetensors\",\"x\":\"model-1.safetensors\",\"y\":\"model-2.safetensors\"}",
      { "tensor z", "model-1" } },
    { "a tensor that the index lacks",
      "{\"z\":\"model-2.safetensors\",\"x\":\"model-1.safetensors\"}",
      { "tensor y", "model-1.safetensors" } },
    { "a tensor in two shards",
      "{\"z\":\"model-2.safetensors\",\"x\":\"model-4.safetensors\",\"y\":\"model-1.safetensors\"}",
      { "tensor x", "two shards" } },
    { "an empty map", "{}", { "0 shards" } },
    { "a map that is a list", "[]", { "weight_map" } },
    { "a tensor twice in the index",
      "{\"x\":\"model-1.safetensors\",\"x\":\"model-1.safetensors\"}",
      { "duplicate" } },
};

static void check_bad_index(void)
{
    put_good_pair("index");
    put_shard("index", "model-4.safetensors", "{" T("x", "U8", "[3]", 0, 3) "}", 3, 0);
    for (size_t i = 0; i < sizeof bad_map / sizeof *bad_map; i++) {
        lf_checkpoint *c = NULL;
        lf_err err = { "" };
        put_index("index", bad_map[i].map);
        int rc = open_dir(&c, "index", &err);
        int named = strstr(err.text, bad_map[i].says[0]) &&
                    (!bad_map[i].says[1] || strstr(err.text, bad_map[i].says[1]));
        TAP_CHECK(rc == -1 && named && !strchr(err.text, '\n'), "refused: %s", bad_map[i].what);
        if (!named)
            printf("# %s\n", err.text);
        lf_checkpoint_close(c);
    }
    char *path = lf_printf("%s/index/dir.safetensors", root);
    mkdir(path, 0777);
    free(path);
    lf_checkpoint *c;
    lf_err err = { "" };
    put_index("index", "{\"x\":\"dir.safetensors\"}");
    TAP_CHECK(open_dir(&c, "index", &err) == -1 && strstr(err.text, "dir.safetensors is not a regular file"),
              "refused: a shard that is a directory");
    put_file("index", "model.safetensors.index.json", "{\"weight_map\":", 14);
    TAP_CHECK(open_dir(&c, "index", &err) == -1 && strstr(err.text, "index.json:1:"),
              "refused: an index cut short");
}

/* 60,000 tensors in 20 shards: found, in order, and opened too quickly for anything quadratic. */
static void check_many(void)
{
    enum { SHARDS = 20, EACH = 3000 };
    char *map = lf_alloc(SHARDS * EACH * 64), *m = map;
    lf_checkpoint *c;
    lf_err err = { "" };
    int wrong = 0;

    for (int s = 0; s < SHARDS; s++) {
        char *header = lf_alloc(EACH * 128), *h = header, name[64];
        for (int i = 0; i < EACH; i++) {
            h += sprintf(h, "%c\"layers.%d.w%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                         i ? ',' : '{', s, i, i, i + 1);
            m += sprintf(m, "%c\"layers.%d.w%d\":\"m-%02d.safetensors\"", s || i ? ',' : '{', s, i, s);
        }
        strcpy(h, "}");
        snprintf(name, sizeof name, "m-%02d.safetensors", s);
        put_shard("many", name, header, EACH, 0);
        free(header);
    }
    strcpy(m, "}");
    put_index("many", map);
    free(map);
    double start = lf_now();
    int rc = open_dir(&c, "many", &err);
    double took = lf_now() - start;
    TAP_CHECK(rc == 0 && lf_checkpoint_count(c) == SHARDS * EACH, "60,000 tensors in 20 shards open %s",
              err.text);
    for (int i = 0; rc == 0 && i < SHARDS * EACH; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.w%d", i / EACH, i % EACH);
        const lf_tensor *t = lf_checkpoint_find(c, name);
        TAP_QUIET(wrong, t && t == lf_checkpoint_at(c, i) && t->shard == i / EACH, "%s", name);
    }
    TAP_CHECK(wrong == 0, "and every one is found");
    TAP_CHECK(took < 10, "in less than 10 seconds");
    printf("# %.3f s\n", took);
    lf_checkpoint_close(c);
}

static void *read_z(void *arg)
{
    const void *data = NULL;
    lf_err err;

    if (lf_checkpoint_data(arg, lf_checkpoint_find(arg, "z"), &data, &err))
        return NULL;
    return (void *)(uintptr_t)data;
}

static void check_threads(void)
{
    lf_checkpoint *c;
    lf_err err = { "" };
    pthread_t thread[8];
    void *got[8];
    int wrong = 0;

    put_good_pair("threads");
    put_index("threads", GOOD_MAP);
    TAP_CHECK(open_dir(&c, "threads", &err) == 0, "opened for eight threads");
    for (int i = 0; i < 8; i++)
        pthread_create(&thread[i], NULL, read_z, c);
    for (int i = 0; i < 8; i++)
        pthread_join(thread[i], &got[i]);
    for (int i = 0; i < 8; i++)
        TAP_QUIET(wrong, got[i] && got[i] == got[0] && memcmp(got[i], "\0\1\2\3", 4) == 0, "thread %d", i);
    TAP_CHECK(wrong == 0, "that all get the same bytes of one map");
    lf_checkpoint_close(c);
}

int main(void)
{
    if (!mkdtemp(root)) {
        printf("Bail out! no directory for the test\n");
        return 1;
    }
    check_single();
    check_dtypes();
    check_sharded();
    check_bad();
    check_bad_index();
    check_many();
    check_threads();
    char *clean = lf_printf("rm -rf '%s'", root);
    if (system(clean))
        printf("# %s is left behind\n", root);
    free(clean);
    return tap_done();
}
