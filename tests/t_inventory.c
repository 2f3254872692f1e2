/* SPDX-License-Identifier: Apache-2.0 */
#include "synthdir.h"
#include "tap.h"

#include <sys/stat.h>

typedef struct counts {
    int64_t of[LF_DTYPES], all, bytes;
} counts;

static int count(void *arg, const lf_inventory_item *item, lf_err *err)
{
    counts *c = arg;
    lf_dtype dtype;
    int64_t shape[2], scale[2];

    (void)err;
    lf_inventory_stored(item, item->released, &dtype, shape, scale);
    c->of[dtype]++;
    c->all++;
    c->bytes += lf_inventory_bytes(item, item->released);
    if (scale[0]) {
        c->of[LF_E8M0]++;
        c->all++;
    }
    return 0;
}

static void preset_model(lf_model *m, const char *preset)
{
    lf_synth_options o = { .preset = preset };
    lf_err err = { "" };
    char *text = NULL;

    if (lf_synth_config(&o, &text, &err) || lf_model_parse(m, text, strlen(text), preset, &err))
        printf("Bail out! %s\n", err.text);
    free(text);
}

/* The MTP layer of a released checkpoint: a window-only layer with learned routing, two fp8 projections, and
 * three norms and a head mixer of its own. */
static void add_mtp(counts *c, lf_model *m)
{
    lf_err err;

    m->kind[m->layers - 1] = LF_SWA;
    lf_inventory_layer(m, m->layers - 1, count, c, &err);
    c->of[LF_E4M3] += 2;
    c->of[LF_E8M0] += 2;
    c->of[LF_BF16] += 3;
    c->of[LF_F32] += 3;
    c->all += 10;
}

/* Flash as released, by type; 1575 of its tensors are the MTP layer's. */
static void check_flash(void)
{
    counts c = { { 0 }, 0, 0 };
    lf_model m;
    lf_err err;

    preset_model(&m, "flash");
    lf_inventory_each(&m, count, &c, &err);
    TAP_CHECK(c.of[LF_E4M3] == 365 && c.of[LF_BF16] == 425 && c.of[LF_F32] == 406 && c.of[LF_I8] == 33024 &&
                  c.of[LF_E8M0] == 33389 && c.of[LF_I64] == 3,
              "tensors by type of Flash without its MTP layer");
    TAP_CHECK(c.all == 67612, "67,612 in all");
    TAP_NEAR((double)c.bytes, 156.0e9, 0.1e9, "and 156 GB");
    add_mtp(&c, &m);
    TAP_CHECK(c.of[LF_E4M3] == 375 && c.of[LF_BF16] == 433 && c.of[LF_F32] == 417 && c.of[LF_I8] == 33792 &&
                  c.of[LF_E8M0] == 34167 && c.of[LF_I64] == 3,
              "with its MTP layer: the types of the released files");
    TAP_CHECK(c.all == 69187, "69,187 in all");
    lf_model_free(&m);
}

static void check_pro(void)
{
    counts c = { { 0 }, 0, 0 };
    lf_model m;
    lf_err err;

    preset_model(&m, "pro");
    lf_inventory_each(&m, count, &c, &err);
    TAP_CHECK(c.all == 142773, "142,773 tensors of Pro without its MTP layer");
    add_mtp(&c, &m);
    TAP_CHECK(c.all == 145116, "145,116 with it");
    lf_model_free(&m);
}

static void check_items(void)
{
    lf_model m;
    lf_inventory_item item;

    preset_model(&m, "flash");
    TAP_CHECK(lf_inventory_item_of(&m, 3, LF_ROLE_WO_A, -1, &item) == 0 && item.rows == 8192 &&
                  item.cols == 4096 && strcmp(item.name, "layers.3.attn.wo_a.weight") == 0 &&
                  strcmp(item.scale, "layers.3.attn.wo_a.scale") == 0,
              "wo_a is [G O, H d / G]");
    TAP_CHECK(lf_inventory_item_of(&m, 42, LF_ROLE_W2, 255, &item) == 0 && item.rows == 4096 &&
                  item.cols == 2048 && strcmp(item.name, "layers.42.ffn.experts.255.w2.weight") == 0 &&
                  item.released == LF_STORE_FP4,
              "w2 of the last expert of the last layer");
    TAP_CHECK(lf_inventory_bytes(&item, LF_STORE_FP4) == 4096 * 1024 + 4096 * 64 &&
                  lf_inventory_bytes(&item, LF_STORE_FP8) == 4096 * 2048 + 32 * 16 &&
                  lf_inventory_bytes(&item, LF_STORE_BF16) == 4096 * 2048 * 2,
              "and its bytes, stored in three ways");
    TAP_CHECK(lf_inventory_item_of(&m, 2, LF_ROLE_COMP_APE, -1, &item) == 0 && item.rows == 4 &&
                  item.cols == 1024,
              "ape of a c4 layer is [4, 2 d]");
    TAP_CHECK(lf_inventory_item_of(&m, 3, LF_ROLE_COMP_APE, -1, &item) == 0 && item.rows == 128 &&
                  item.cols == 512,
              "ape of a c128 layer is [128, d]");
    TAP_CHECK(lf_inventory_item_of(&m, 0, LF_ROLE_COMP_APE, -1, &item) == -1 &&
                  lf_inventory_item_of(&m, 3, LF_ROLE_INDEX_WQ_B, -1, &item) == -1 &&
                  lf_inventory_item_of(&m, 2, LF_ROLE_GATE_BIAS, -1, &item) == -1 &&
                  lf_inventory_item_of(&m, 3, LF_ROLE_TID2EID, -1, &item) == -1 &&
                  lf_inventory_item_of(&m, 43, LF_ROLE_WKV, -1, &item) == -1 &&
                  lf_inventory_item_of(&m, 0, LF_ROLE_W1, 256, &item) == -1 &&
                  lf_inventory_item_of(&m, 0, LF_ROLE_EMBED, -1, &item) == -1,
              "what a layer lacks is said to be lacking");
    lf_model_free(&m);
}

/* Opens root/name and checks it against its own config, with other layers and q_rank when these are not 0. */
static int check_dir(const char *name, int layers, int64_t q_rank, lf_inventory_report *r, lf_checkpoint **c,
                     lf_err *err)
{
    char *dir = synthdir_path(name);
    lf_model m;

    *c = NULL;
    int rc = lf_model_read(&m, dir, err);
    if (layers)
        m.layers = layers;
    if (q_rank)
        m.q_rank = q_rank;
    if (rc == 0)
        rc = lf_checkpoint_open(c, dir, err);
    if (rc == 0)
        rc = lf_inventory_check(&m, *c, r, err);
    lf_model_free(&m);
    free(dir);
    return rc;
}

static void expect_bad(const char *name, int layers, int64_t q_rank, const char *a, const char *b,
                       const char *what)
{
    lf_inventory_report r;
    lf_checkpoint *c;
    lf_err err = { "" };
    int rc = check_dir(name, layers, q_rank, &r, &c, &err);

    if (!TAP_CHECK(rc == -1 && strstr(err.text, a) && strstr(err.text, b), "refused: %s", what))
        printf("# %s\n", err.text);
    lf_checkpoint_close(c);
}

static void check_good(void)
{
    static const char *const fp8[] = { "expert_dtype=fp8" }, *const ragged[] = { "moe_intermediate_size=40" };
    lf_inventory_report r;
    lf_checkpoint *c = NULL;
    lf_err err = { "" };

    TAP_CHECK(synthdir_write("quant", (lf_synth_options){ 0 }, &err) == 0 &&
                  check_dir("quant", 0, 0, &r, &c, &err) == 0,
              "fp8 with fp4 experts %s", err.text);
    TAP_CHECK(r.items == 186 && r.tensors == 292 && r.tensors == lf_checkpoint_count(c) && r.unknown == 0 &&
                  r.mtp == 0 && r.of_dtype[LF_I8] == 72 && r.of_dtype[LF_I64] == 1,
              "and what it holds");
    lf_checkpoint_close(c);
    TAP_CHECK(synthdir_write("bf16", (lf_synth_options){ .bf16 = 1 }, &err) == 0 &&
                  check_dir("bf16", 0, 0, &r, &c, &err) == 0 && r.tensors == 186 && r.of_dtype[LF_E8M0] == 0,
              "all bf16");
    lf_checkpoint_close(c);
    TAP_CHECK(synthdir_write("fp8", (lf_synth_options){ .set = fp8, .sets = 1 }, &err) == 0 &&
                  check_dir("fp8", 0, 0, &r, &c, &err) == 0 && r.of_dtype[LF_I8] == 0,
              "fp8 experts");
    lf_checkpoint_close(c);
    TAP_CHECK(synthdir_write("ragged", (lf_synth_options){ .set = ragged, .sets = 1 }, &err) == 0,
              "40 columns");
    expect_bad("ragged", 0, 0, "unlike", "w2", "one layer with fp4 and fp8 experts");
    TAP_CHECK(check_dir("quant", 3, 0, &r, &c, &err) == 0 && r.unknown == 76 && r.first_unknown &&
                  strncmp(r.first_unknown, "layers.3.", 9) == 0,
              "tensors without a use are counted, the first is named");
    lf_checkpoint_close(c);
}

static void check_defects(void)
{
    lf_inventory_report r;
    lf_checkpoint *c;
    lf_err err = { "" };
    const char *shard = "model-00001-of-00001.safetensors";

    expect_bad("quant", 5, 0, "tensor layers.4.", "missing", "a layer that is not there");
    expect_bad("quant", 0, 48, "tensor layers.0.attn.wq_a.weight", "[32, 64]; the config needs [48, 64]",
               "another shape");
    synthdir_write("a", (lf_synth_options){ 0 }, &err);
    synthdir_rename("a", "layers.3.attn.wq_a.scale", "layers.3.attn.wq_a.scalX");
    expect_bad("a", 0, 0, "tensor layers.3.attn.wq_a.scale is missing", "F8_E4M3", "a scale that is not there");
    synthdir_write("b", (lf_synth_options){ 0 }, &err);
    synthdir_edit("b", shard, "\"layers.2.attn.wo_b.weight\":{\"dtype\":\"F8_E4M3\"",
                  "\"layers.2.attn.wo_b.weight\":{\"dtype\":\"F8_E8M0\"");
    expect_bad("b", 0, 0, "tensor layers.2.attn.wo_b.weight is F8_E8M0", "BF16 or F8_E4M3",
               "a type that no weight has");
    synthdir_write("c", (lf_synth_options){ 0 }, &err);
    synthdir_edit("c", shard, "\"layers.2.ffn.experts.1.w1.scale\":{\"dtype\":\"F8_E8M0\",\"shape\":[32,2]",
                  "\"layers.2.ffn.experts.1.w1.scale\":{\"dtype\":\"F8_E8M0\",\"shape\":[2,32]");
    expect_bad("c", 0, 0, "tensor layers.2.ffn.experts.1.w1.scale", "needs [32, 2]", "a scale turned round");
    synthdir_edit("c", shard, "\"layers.2.ffn.experts.1.w1.scale\":{\"dtype\":\"F8_E8M0\",\"shape\":[2,32]",
                  "\"layers.2.ffn.experts.1.w1.scale\":{\"dtype\":\"F8_E4M3\",\"shape\":[32,2]");
    expect_bad("c", 0, 0, "tensor layers.2.ffn.experts.1.w1.scale is F8_E4M3", "F8_E8M0",
               "a scale that is no e8m0");
    synthdir_write("d", (lf_synth_options){ .bf16 = 1 }, &err);
    synthdir_rename("d", "layers.1.ffn_norm.weight", "layers.0.attn.wq_a.scale");
    expect_bad("d", 0, 0, "layers.0.attn.wq_a.scale", "takes no scale", "a scale beside a bf16 weight");
    synthdir_write("e", (lf_synth_options){ 0 }, &err);
    TAP_CHECK(synthdir_rename("e", "layers.3", "mtp.0.xx") == 76, "76 tensors of a layer renamed");
    TAP_CHECK(check_dir("e", 3, 0, &r, &c, &err) == 0 && r.mtp == 76 && r.unknown == 0,
              "tensors of the MTP layer are counted apart");
    lf_checkpoint_close(c);
}

/* The whole of a released geometry, from headers alone. */
static void check_full_size(void)
{
    lf_inventory_report r;
    lf_checkpoint *c;
    lf_err err = { "" };
    struct stat st;

    if (synthdir_write("flash",
                       (lf_synth_options){ .preset = "flash", .sparse = 1, .shard_size = (int64_t)4 << 30 },
                       &err)) {
        tap_skip("a sparse checkpoint of full size", "the file system takes no such files");
        return;
    }
    double start = lf_now();
    int rc = check_dir("flash", 0, 0, &r, &c, &err);
    double took = lf_now() - start;
    TAP_CHECK(rc == 0 && r.tensors == 67612 && r.unknown == 0, "Flash's 67,612 tensors are checked %s",
              err.text);
    TAP_CHECK(took < 20, "in seconds");
    printf("# %.2f s\n", took);
    TAP_CHECK(c && stat(lf_checkpoint_shard_path(c, 1), &st) == 0 && st.st_size > (off_t)1 << 30 &&
                  st.st_blocks * 512 < (off_t)64 << 20,
              "its files have their full size and hold next to nothing");
    lf_checkpoint_close(c);
}

static void check_floats(void)
{
    float f32[3] = { 1, -2.5f, 3 }, out[2];
    uint16_t bf16[3] = { 0x3f80, 0xc020, 0x4040 }, f16[3] = { 0x3c00, 0xc100, 0x4200 };

    lf_inventory_floats(LF_F32, f32, 1, 2, out);
    TAP_CHECK(out[0] == -2.5f && out[1] == 3, "float32 from a F32 tensor");
    lf_inventory_floats(LF_BF16, bf16, 1, 2, out);
    TAP_CHECK(out[0] == -2.5f && out[1] == 3, "from a BF16 tensor");
    lf_inventory_floats(LF_F16, f16, 1, 2, out);
    TAP_CHECK(out[0] == -2.5f && out[1] == 3, "from a F16 tensor");
}

int main(void)
{
    synthdir_make();
    check_flash();
    check_pro();
    check_items();
    check_good();
    check_defects();
    check_full_size();
    check_floats();
    synthdir_remove();
    return tap_done();
}
