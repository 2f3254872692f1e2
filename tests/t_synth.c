/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"
#include "hash.h"
#include "synthdir.h"
#include "tap.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void model_of(lf_model *m, const lf_synth_options *o)
{
    lf_err err = { "" };
    char *text = NULL;

    if (lf_synth_config(o, &text, &err) || lf_model_parse(m, text, strlen(text), "settings", &err))
        printf("Bail out! %s\n", err.text);
    free(text);
}

static void check_presets(void)
{
    lf_model m;

    model_of(&m, &(lf_synth_options){ .preset = "nano" });
    TAP_CHECK(m.vocab == 96 && m.layers == 4 && m.kind[0] == LF_SWA && m.kind[1] == LF_C4 &&
                  m.kind[2] == LF_C128 && m.kind[3] == LF_C4 && m.window == 8 && m.head_dim == 32,
              "nano");
    lf_model_free(&m);
    model_of(&m, &(lf_synth_options){ .preset = "mini", .bf16 = 1 });
    TAP_CHECK(m.layers == 6 && m.head_dim == 512 && m.rope_dim == 64 && m.index_dim == 128 &&
                  m.kind[5] == LF_C4,
              "mini has the released head geometry");
    lf_model_free(&m);
    model_of(&m, &(lf_synth_options){ .preset = "flash" });
    TAP_CHECK(m.layers == 43 && m.hidden == 4096 && m.heads == 64 && m.q_rank == 1024 && m.experts == 256 &&
                  m.expert_inter == 2048 && m.index_topk == 512 && m.routed_scale == 1.5f &&
                  m.hash_layers == 3,
              "flash");
    TAP_CHECK(m.kind[0] == LF_SWA && m.kind[1] == LF_SWA && m.kind[2] == LF_C4 && m.kind[3] == LF_C128 &&
                  m.kind[42] == LF_C4,
              "and its schedule");
    lf_model_free(&m);
    model_of(&m, &(lf_synth_options){ .preset = "pro" });
    TAP_CHECK(m.layers == 61 && m.hidden == 7168 && m.heads == 128 && m.q_rank == 1536 && m.o_groups == 16 &&
                  m.experts == 384 && m.expert_inter == 3072 && m.index_topk == 1024 &&
                  m.routed_scale == 2.5f,
              "pro");
    TAP_CHECK(m.kind[0] == LF_C128 && m.kind[1] == LF_C128 && m.kind[2] == LF_C4 && m.kind[60] == LF_C4,
              "and its schedule");
    lf_model_free(&m);
}

static void check_settings(void)
{
    static const char *const set[] = { "num_hidden_layers=7", "vocab_size=97", "rope_scaling.factor=4",
                                       "num_hash_layers=0" };
    static const char *const first[] = { "compress_ratios=[128,128,4]", "num_hidden_layers=3" };
    static const char *const types[] = { "num_hidden_layers=1",
                                         "layer_types=[\"heavily_compressed_attention\"]" };
    lf_model m;

    model_of(&m, &(lf_synth_options){ .preset = "nano", .set = set, .sets = 4 });
    TAP_CHECK(m.layers == 7 && m.vocab == 97 && m.yarn.factor == 4 && m.hash_layers == 0, "fields are set");
    TAP_CHECK(m.kind[4] == LF_C128 && m.kind[5] == LF_C4 && m.kind[6] == LF_C128,
              "more layers continue the schedule");
    lf_model_free(&m);
    model_of(&m, &(lf_synth_options){ .preset = "nano", .set = first, .sets = 2 });
    TAP_CHECK(m.layers == 3 && m.kind[0] == LF_C128 && m.kind[1] == LF_C128 && m.kind[2] == LF_C4,
              "a schedule that is given stays");
    lf_model_free(&m);
    model_of(&m, &(lf_synth_options){ .preset = "nano", .set = types, .sets = 2 });
    TAP_CHECK(m.layers == 1 && m.kind[0] == LF_C128, "layer types are one, too");
    lf_model_free(&m);
}

static void check_bad_settings(void)
{
    static const struct {
        const char *preset, *set, *says;
    } bad[] = {
        { "huge", "vocab_size=9", "\"huge\"" },
        { "nano", "vocab_size", "key=value" },
        { "nano", "=5", "key=value" },
        { "nano", "vocab_sise=5", "\"vocab_sise=5\": there is no such field in config.json; did you mean vocab_size?" },
        { "nano", "num_layers=3", "there is no such field in config.json; did you mean num_hidden_layers?" },
        { "nano", "n_heads=8", "did you mean num_attention_heads?" },
        { "nano", "num_experts=8", "did you mean n_routed_experts?" },
        { "nano", "compress_rate=8", "did you mean compress_rates?" },
        { "nano", "rope_scalin.factor=5", "no such field in config.json; did you mean rope_scaling?" },
        { "nano", "vocab_size=five", "vocab_size" },
        { "nano", "vocab_size=0", "vocab_size" },
        { "nano", "num_hidden_layers=100000", "num_hidden_layers" },
        { "nano", "o_groups=3", "o_groups" },
        { "nano", "rope_scaling.=1", "no such" },
        { "nano", "scoring_func=softmax", "softmax" },
        { "nano", "hidden_size=\xff", "UTF-8" },
        { "nano", "tie_word_embeddings=true", "tie_word" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *text = NULL;
        lf_err err = { "" };
        lf_synth_options o = { .preset = bad[i].preset, .set = &bad[i].set, .sets = 1 };
        int rc = lf_synth_config(&o, &text, &err);
        if (!TAP_CHECK(rc == -1 && !text && strstr(err.text, bad[i].says), "refused: %s %zu", bad[i].preset,
                       i))
            printf("# %s\n", err.text);
        free(text);
    }
}

/* The generator's numbers are part of the format: a seed means the same weights everywhere. */
static void check_values(void)
{
    lf_model m;
    lf_inventory_item item;
    float v[20000], part[100], other[100];
    double sum = 0, square = 0;

    model_of(&m, &(lf_synth_options){ .preset = "flash" });
    lf_inventory_item_of(&m, -1, LF_ROLE_EMBED, -1, &item);
    lf_synth_values(&item, 1, 0, 20000, v);
    for (int i = 0; i < 20000; i++) {
        sum += v[i];
        square += v[i] * v[i];
    }
    TAP_NEAR(sum / 20000, 0, 0.03, "embeddings have mean 0");
    TAP_NEAR(square / 20000, 1, 0.03, "and variance 1");
    lf_synth_values(&item, 1, 777, 100, part);
    TAP_CHECK(memcmp(part, v + 777, sizeof part) == 0, "any values can be made alone");
    lf_synth_values(&item, 2, 777, 100, other);
    TAP_CHECK(memcmp(part, other, sizeof part) != 0, "another seed makes others");
    TAP_CHECK(lf_f32_bits(v[0]) == 0x3e8e8e50u && lf_f32_bits(v[19999]) == 0xbfd78227u,
              "seed 1 begins as it always did");
    lf_inventory_item_of(&m, 7, LF_ROLE_WO_B, -1, &item);
    lf_synth_values(&item, 1, 0, 20000, v);
    square = 0;
    for (int i = 0; i < 20000; i++)
        square += v[i] * v[i];
    TAP_NEAR(sqrt(square / 20000) * sqrt(8192), 2, 0.05, "a product's weights make outputs of order gain");
    lf_inventory_item_of(&m, 7, LF_ROLE_HC_FFN_SCALE, -1, &item);
    lf_synth_values(&item, 1, 0, 3, v);
    TAP_CHECK(v[0] == 0.8f && v[1] == 0.6f && v[2] == 1.1f, "mHC scales are constants");
    lf_model_free(&m);
}

/* Each stored value is the nearest its block's scale allows; the scale is the least that holds the block. */
static void check_fp8(void)
{
    enum { ROWS = 200, COLS = 150 };
    lf_inventory_item item = {
        .name = "x.weight", .role = LF_ROLE_WKV, .ndim = 2, .rows = ROWS, .cols = COLS
    };
    static float v[ROWS * COLS], scratch[128 * COLS];
    static uint8_t w[ROWS * COLS], tail[72 * COLS];
    uint8_t s[4], s2[2];
    float most[4] = { 0 };
    int bad = 0, badscale = 0;

    lf_synth_values(&item, 3, 0, ROWS * COLS, v);
    lf_synth_rows(&item, LF_STORE_FP8, 3, 0, 0, ROWS, w, s, scratch);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++) {
            int b = r / 128 * 2 + c / 128;
            double scale = ldexp(1, s[b] - 127), x = v[r * COLS + c] / scale;
            most[b] = fmaxf(most[b], fabsf(v[r * COLS + c]));
            double half = fmax(ldexp(1, -10), ldexp(1, (int)floor(log2(fabs(x) + 1e-30)) - 4));
            double error = fabs(x - (double)lf_e4m3_table[w[r * COLS + c]]);
            TAP_QUIET(bad, error <= half, "row %d column %d: %g is off by %g", r, c, x, error);
        }
    for (int b = 0; b < 4; b++)
        TAP_QUIET(badscale, most[b] <= 448 * ldexp(1, s[b] - 127) && most[b] > 224 * ldexp(1, s[b] - 127),
                  "block %d", b);
    TAP_CHECK(bad == 0, "fp8 weights are within half a step of the values");
    TAP_CHECK(badscale == 0,
              "and the scale of each 128 x 128 block, ragged ones too, is the least that holds it");
    lf_synth_rows(&item, LF_STORE_FP8, 3, 0, 128, 72, tail, s2, scratch);
    TAP_CHECK(memcmp(tail, w + 128 * COLS, sizeof tail) == 0 && memcmp(s2, s + 2, 2) == 0,
              "rows can be made alone");
}

/* Columns of what is stored as `store`, from row at[0], column at[1] on, against the whole's. */
static int part_of(lf_storage store, int64_t row0, int64_t rows, int64_t col0, int64_t cols)
{
    enum { ROWS = 200, COLS = 416 };
    lf_inventory_item item = { .name = "x.weight", .role = LF_ROLE_WO_B, .ndim = 2, .rows = ROWS, .cols = COLS };
    static uint8_t whole[4 * ROWS * COLS], part[4 * ROWS * COLS], all_scales[ROWS * COLS], scales[ROWS * COLS];
    static float scratch[128 * COLS];
    int64_t at[2] = { row0, col0 }, size[2] = { rows, cols }, block[2], shape[2], scale[2];
    lf_dtype type;
    int same = 1;

    lf_inventory_block(store, block);
    lf_inventory_stored(&item, store, &type, shape, scale);
    lf_synth_rows(&item, store, 3, 0, 0, ROWS, whole, all_scales, scratch);
    lf_synth_part(&item, store, 3, at, size, part, scales, scratch);
    int64_t row = shape[1] * (int64_t)lf_dtype_bytes(type), some = row * cols / COLS, first = row * col0 / COLS;
    for (int64_t r = 0; r < rows; r++)
        same = same && memcmp(part + r * some, whole + (row0 + r) * row + first, (size_t)some) == 0;
    int64_t groups = scale[1] ? lf_ceil_div(cols, block[1]) : 0;
    for (int64_t r = 0; r < lf_ceil_div(rows, block[0]); r++)
        same = same && memcmp(scales + r * groups, all_scales + (row0 / block[0] + r) * scale[1] + col0 / block[1],
                              (size_t)groups) == 0;
    return same;
}

static void check_parts(void)
{
    TAP_CHECK(part_of(LF_STORE_FP8, 0, 200, 128, 128) && part_of(LF_STORE_FP8, 128, 72, 256, 160),
              "columns of fp8 are those of the whole, scales too");
    TAP_CHECK(part_of(LF_STORE_FP4, 0, 200, 32, 64) && part_of(LF_STORE_FP4, 5, 190, 352, 64), "so are those of fp4");
    TAP_CHECK(part_of(LF_STORE_BF16, 5, 190, 7, 51) && part_of(LF_STORE_F32, 131, 69, 1, 415),
              "and of bf16 and float32");
}

static void check_fp4(void)
{
    enum { ROWS = 5, COLS = 96 };
    lf_inventory_item item = {
        .name = "x.weight", .role = LF_ROLE_W1, .ndim = 2, .rows = ROWS, .cols = COLS
    };
    float v[ROWS * COLS], scratch[ROWS * COLS];
    uint8_t w[ROWS * COLS / 2], s[ROWS * 3];
    int bad = 0;

    lf_synth_values(&item, 3, 0, ROWS * COLS, v);
    lf_synth_rows(&item, LF_STORE_FP4, 3, 0, 0, ROWS, w, s, scratch);
    for (int i = 0; i < ROWS * COLS; i++) {
        int code = w[i / 2] >> (i % 2 ? 4 : 0) & 15;
        double x = v[i] / ldexp(1, s[i / 32] - 127), best = 1e9;
        for (int c = 0; c < 16; c++)
            best = fmin(best, fabs(x - (double)lf_e2m1_table[c]));
        TAP_QUIET(bad, fabs(x) <= 6 && fabs(x - (double)lf_e2m1_table[code]) == best, "value %d: %g as %x", i,
                  x, code);
    }
    TAP_CHECK(bad == 0, "fp4 weights are the nearest codes, low nibble first, a scale for 32");
}

static void check_experts(void)
{
    lf_inventory_item item = { .name = "t", .role = LF_ROLE_TID2EID, .ndim = 2, .rows = 300, .cols = 3 };
    static int64_t ids[300 * 3];
    int bad = 0, used[4] = { 0 };

    lf_synth_rows(&item, LF_STORE_I64, 9, 4, 0, 300, ids, NULL, NULL);
    for (int t = 0; t < 300; t++) {
        const int64_t *e = ids + 3 * t;
        for (int k = 0; k < 3; k++)
            if (e[k] >= 0 && e[k] < 4)
                used[e[k]]++;
            else
                bad++;
        TAP_QUIET(bad, e[0] != e[1] && e[0] != e[2] && e[1] != e[2], "token %d has an expert twice", t);
    }
    TAP_CHECK(bad == 0, "tid2eid names different experts of those there are");
    TAP_CHECK(used[0] > 150 && used[1] > 150 && used[2] > 150 && used[3] > 150,
              "all of them about equally often");
}

static void digest_of(const char *name, const char *file, char hex[65])
{
    char *path = lf_printf("%s/%s/%s", synthdir_root, name, file), *text = NULL;
    size_t bytes = 0;
    lf_err err = { "" };

    hex[0] = 0;
    if (lf_file_read(path, 1 << 28, &text, &bytes, &err) == 0)
        lf_sha256_hex(text, bytes, hex);
    free(text);
    free(path);
}

static void check_files(void)
{
    const char *shard = "model-00001-of-00001.safetensors";
    char a[65], b[65], c[65];
    lf_checkpoint *ck = NULL;
    lf_err err = { "" };
    int bad = 0;

    TAP_CHECK(synthdir_write("one", (lf_synth_options){ .seed = 5 }, &err) == 0, "a checkpoint is written %s",
              err.text);
    synthdir_write("two", (lf_synth_options){ .seed = 5 }, &err);
    synthdir_write("three", (lf_synth_options){ .seed = 6 }, &err);
    digest_of("one", shard, a);
    digest_of("two", shard, b);
    digest_of("three", shard, c);
    TAP_CHECK(a[0] && strcmp(a, b) == 0 && strcmp(a, c),
              "the same seed writes the same bytes, another one others");
    TAP_CHECK(strcmp(a, "2a336e76466d2ae7821ac22ff28218b8a840935a5883e8e2db6cbe13980f9788") == 0,
              "seed 5 writes what it always did");
    printf("# %s\n", a);
    TAP_CHECK(synthdir_write("many", (lf_synth_options){ .seed = 5, .shard_size = 50000 }, &err) == 0,
              "in many shards");
    char *dir = synthdir_path("many"), *one = synthdir_path("one");
    lf_checkpoint *whole = NULL, *third = NULL;
    TAP_CHECK(lf_checkpoint_open(&ck, dir, &err) == 0 && lf_checkpoint_open(&whole, one, &err) == 0,
              "opened");
    for (int64_t i = 0; ck && whole && i < lf_checkpoint_count(ck); i++) {
        const lf_tensor *t = lf_checkpoint_at(ck, i), *u = lf_checkpoint_find(whole, t->name);
        const void *x = NULL, *y = NULL;
        int same = u && lf_checkpoint_data(ck, t, &x, &err) == 0 &&
                   lf_checkpoint_data(whole, u, &y, &err) == 0 && t->bytes == u->bytes &&
                   memcmp(x, y, t->bytes) == 0;
        TAP_QUIET(bad, same && (uintptr_t)x % lf_dtype_bytes(t->dtype) == 0, "%s", t->name);
    }
    TAP_CHECK(bad == 0 && lf_checkpoint_count(ck) == lf_checkpoint_count(whole),
              "tensors do not depend on the shards,"
              " and are aligned");
    TAP_CHECK(lf_checkpoint_at(ck, lf_checkpoint_count(ck) - 1)->shard > 8,
              "a new shard begins after the size asked for");
    char *other = synthdir_path("three");
    TAP_CHECK(lf_checkpoint_open(&third, other, &err) == 0 &&
                  strcmp(lf_checkpoint_id(third), lf_checkpoint_id(whole)) != 0,
              "another seed has another id");
    lf_checkpoint_close(third);
    free(other);
    lf_checkpoint_close(ck);
    lf_checkpoint_close(whole);
    free(dir);
    free(one);
}

/* data/tiny was made by `longfill synth --preset nano --set vocab_size=512 --seed 1`. */
static void check_tiny(void)
{
    static const char *const files[] = { "config.json", "model-00001-of-00001.safetensors",
                                         "model.safetensors.index.json" };
    static const char *const set[] = { "vocab_size=512" };
    const char *srcdir = getenv("srcdir");
    lf_err err = { "" };

    TAP_CHECK(synthdir_write("tiny", (lf_synth_options){ .seed = 1, .set = set, .sets = 1 }, &err) == 0,
              "the model of data/tiny is made again %s", err.text);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = lf_printf("%s/../data/tiny/%s", srcdir ? srcdir : ".", files[i]), *text = NULL;
        char want[65] = "", got[65];
        size_t bytes = 0;
        if (lf_file_read(path, 1 << 28, &text, &bytes, &err) == 0)
            lf_sha256_hex(text, bytes, want);
        digest_of("tiny", files[i], got);
        TAP_CHECK(want[0] && strcmp(want, got) == 0, "its %s is the same, byte for byte", files[i]);
        free(text);
        free(path);
    }
}

static void check_sparse(void)
{
    char *dir = synthdir_path("sparse");
    lf_checkpoint *c = NULL;
    lf_err err = { "" };
    const void *data = NULL;
    int bad = 0;

    TAP_CHECK(synthdir_write("sparse", (lf_synth_options){ .sparse = 1 }, &err) == 0 &&
                  lf_checkpoint_open(&c, dir, &err) == 0,
              "a sparse checkpoint %s", err.text);
    const lf_tensor *t = lf_checkpoint_find(c, "layers.1.attn.wq_b.weight");
    TAP_CHECK(t && lf_checkpoint_data(c, t, &data, &err) == 0, "has every tensor");
    for (uint64_t i = 0; data && i < t->bytes; i++)
        bad += ((const uint8_t *)data)[i] != 0;
    TAP_CHECK(bad == 0, "of zeros");
    lf_checkpoint_close(c);
    free(dir);
}

static void check_directory(void)
{
    char *dir = synthdir_path("empty"), *file = synthdir_path("file"),
         *path = lf_printf("%s/config.json", dir);
    lf_err err = { "" };
    struct stat st;

    mkdir(dir, 0777);
    TAP_CHECK(synthdir_write("empty", (lf_synth_options){ 0 }, &err) == 0 && stat(path, &st) == 0,
              "an empty directory is taken");
    TAP_CHECK(synthdir_write("empty", (lf_synth_options){ 0 }, &err) == -1 && strstr(err.text, "not empty"),
              "one that is not empty is not: %s", err.text);
    FILE *f = fopen(file, "w");
    if (f)
        fclose(f);
    TAP_CHECK(synthdir_write("file", (lf_synth_options){ 0 }, &err) == -1 && strstr(err.text, "file"),
              "nor is a file");
    TAP_CHECK(synthdir_write("no/where", (lf_synth_options){ 0 }, &err) == -1 && strstr(err.text, "no/where"),
              "nor one whose parent is missing: %s", err.text);
    static const char *const bad[] = { "o_groups=3" };
    TAP_CHECK(synthdir_write("refused", (lf_synth_options){ .set = bad, .sets = 1 }, &err) == -1,
              "bad settings");
    free(path);
    path = synthdir_path("refused");
    TAP_CHECK(stat(path, &st) == -1, "leave no directory behind");
    free(path);
    static const char *const wide[] = { "vocab_size=4096" };
    struct rlimit was, low;
    getrlimit(RLIMIT_FSIZE, &was);
    low = was;
    low.rlim_cur = 200000;
    signal(SIGXFSZ, SIG_IGN);
    char *gone = synthdir_path("gone");
    setrlimit(RLIMIT_FSIZE, &low);
    int rc = synthdir_write("gone", (lf_synth_options){ .shard_size = 150000, .set = wide, .sets = 1 }, &err);
    setrlimit(RLIMIT_FSIZE, &was);
    TAP_CHECK(rc == -1 && strstr(err.text, "model-00001-of-") && strstr(err.text, "File too large"),
              "a file that cannot be written: %s", err.text);
    TAP_CHECK(stat(gone, &st) == -1, "leaves nothing behind");
    free(gone);
    free(file);
    free(dir);
}

int main(void)
{
    synthdir_make();
    check_presets();
    check_settings();
    check_bad_settings();
    check_values();
    check_fp8();
    check_parts();
    check_fp4();
    check_experts();
    check_files();
    check_tiny();
    check_sparse();
    check_directory();
    synthdir_remove();
    return tap_done();
}
