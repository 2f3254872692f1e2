/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory plan against what runs on a GPU take: models of several geometries, made-up weights, each mode, the
 * general kernels alone, passes of growing length in one engine, short prompts together; and what does not fit is
 * refused before it is loaded.
 */
#include "tap.h"
#include "dev_cuda.h"
#include "device.h"
#include "plan_fit.h"
#include "synthdir.h"

#include <stdlib.h>

static void no_rows(void *ctx, int seq, int layer, lf_kv_part part, int64_t row0, int64_t rows, const void *packed,
                    size_t bytes)
{
    (void)seq, (void)layer, (void)part, (void)row0, (void)rows, (void)packed;
    *(int64_t *)ctx += (int64_t)bytes;
}

static void no_logits(void *ctx, int seq, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data,
                      size_t bytes)
{
    (void)seq, (void)kind, (void)row0, (void)rows, (void)data;
    *(int64_t *)ctx += (int64_t)bytes;
}

static void no_token(void *ctx)
{
    (void)ctx;
}

static void no_layer(void *ctx, int layer)
{
    (void)ctx, (void)layer;
}

typedef struct subject {
    const char *name;
    lf_model model;
    lf_checkpoint *checkpoint;             /* NULL: made up */
    lf_topo topo;
    lf_grid grid;
    lf_dev *dev;
    lf_engine *engine;
} subject;

static int64_t planned(subject *s, int n, const int64_t *lengths)
{
    lf_plan_grid g = { .grid = s->grid };
    lf_plan p;
    lf_err err;

    if (lf_plan_open(&p, &s->model, s->checkpoint, &err))
        return -1;
    p.numerics = s->dev->numerics;
    p.kernels = s->dev->kernels;
    p.act_bytes = s->dev->act_bytes;
    p.made_up = !s->checkpoint;
    p.logits.topk = 5;
    p.lengths = lengths;
    p.prompts = n;
    lf_plan_weights_size(&p, &g);
    lf_plan_pass_size(&p, &g);
    lf_plan_free(&p);
    return g.device_bytes;
}

static void one_pass(subject *s, int n, const int64_t *lengths)
{
    lf_prompt prompt[8];
    int64_t total = 0, bytes = 0;
    double seconds[LF_PHASES] = { 0 };
    lf_sink sink = { &bytes, no_rows, no_logits, no_token, no_layer };
    lf_err err = { "" };

    for (int i = 0; i < n; i++)
        total = lf_max(total, lengths[i]);
    uint32_t *ids = lf_alloc(4 * (size_t)total);
    for (int64_t i = 0; i < total; i++)
        ids[i] = (uint32_t)(i * 7919 % s->model.vocab);
    for (int i = 0; i < n; i++)
        prompt[i] = (lf_prompt){ ids, lengths[i] };
    int bad = lf_engine_run(s->engine, n, prompt, &sink, seconds, &err);
    double want = (double)planned(s, n, lengths), got = (double)s->dev->peak;
    TAP_CHECK(!bad && bytes > 0 && got <= 1.05 * want && want <= 1.05 * got,
              "%s, %d prompts, longest %lld: took %.0f, planned %.0f %s", s->name, n, (long long)total, got, want,
              err.text);
    free(ids);
}

static void no_room(subject *s)
{
    lf_fit f = { .model = &s->model, .checkpoint = s->checkpoint, .dev = s->dev, .grid = s->grid };
    int64_t lengths[2] = { 5, 1 << 20 }, few = 200, tile;
    int n[2] = { 1, 1 };
    lf_err err = { "" };
    void *hog = NULL;

    int64_t left = s->dev->ops->left(s->dev);
    TAP_CHECK(left > (int64_t)1 << 30 && lf_plan_fits(&f, 1, n, &few, &tile, &err) == 0, "%s fits: %s", s->name,
              err.text);
    size_t much = ((size_t)left - ((size_t)600 << 20)) / 512 * 512;
    TAP_CHECK(s->dev->ops->take(s->dev, &hog, much, "a test", &err) == 0, "memory for somebody else: %s", err.text);
    s->dev->taken -= much;                 /* not this run's */
    TAP_CHECK(lf_plan_fits(&f, 2, n, lengths, &tile, &err) == -1 && strstr(err.text, "1048576 tokens") &&
                  strstr(err.text, "needs"), "%s does not fit any more: %s", s->name, err.text);
    s->dev->taken += much;
    s->dev->ops->give(s->dev, hog);
    s->dev->peak = s->dev->taken;
}

static void one_mode(subject *s, lf_numerics numerics, lf_kv_dtype kv, uint64_t seed)
{
    static const int64_t lengths[] = { 1, 130, 777, 300, 5, 1000, 131, 4096, 20011 };
    static const int n[] = { 1, 1, 1, 4, 1, 1 };               /* each needs more than the one before */
    lf_err err = { "" };
    int bad = lf_topo_open(&s->topo, &s->grid, &err) ||
              lf_device_open(&s->dev, &s->topo, &s->model, numerics, kv, LF_DEVICE_CUDA, 1, &err);

    TAP_CHECK(!bad, "%s: a GPU %s", s->name, err.text);
    if (bad)
        return;
    if (numerics == LF_RELEASED)
        no_room(s);
    lf_engine_setup setup = { .model = &s->model, .checkpoint = s->checkpoint, .seed = seed, .dev = s->dev,
                              .topo = &s->topo, .kv_dtype = kv, .logits = { 1, 0, 5, 1 } };
    bad = lf_engine_open(&s->engine, &setup, &err);
    TAP_CHECK(!bad, "%s, %s: an engine %s", s->name, numerics == LF_EXACT ? "exact" : "released", err.text);
    for (int i = 0, at = 0; i < 6 && !bad; at += n[i++])
        one_pass(s, n[i], &lengths[at]);
    if (!bad)
        lf_engine_close(s->engine);
    lf_topo_close(&s->topo);
    lf_dev_close(s->dev);
}

static void one_model(lf_grid g, const char *name, lf_synth_options o, int real)
{
    subject s = { .name = name, .grid = g };
    lf_err err = { "" };
    int bad = synthdir_write(name, o, &err);
    char *dir = synthdir_path(name);

    bad = bad || lf_model_read(&s.model, dir, &err) || (real && lf_checkpoint_open(&s.checkpoint, dir, &err));
    TAP_CHECK(!bad, "%s: a model %s", name, err.text);
    if (!bad) {
        one_mode(&s, LF_RELEASED, LF_KV_FP8, 7);
        one_mode(&s, LF_EXACT, LF_KV_F32, 7);
        one_mode(&s, LF_EXACT, LF_KV_BF16, 7);
        setenv("LONGFILL_KERNELS", "attention=general,index=general,select=general,gemm=plain,experts=plain", 1);
        one_mode(&s, LF_RELEASED, LF_KV_FP8, 7);
        unsetenv("LONGFILL_KERNELS");
    }
    lf_checkpoint_close(s.checkpoint);
    lf_model_free(&s.model);
    free(dir);
}

int main(int argc, char **argv)
{
    static const char *const wide[] = { "n_routed_experts=8", "num_attention_heads=64", "o_groups=4",
                                        "o_lora_rank=128", "hidden_size=256", "q_lora_rank=128", "index_n_heads=64",
                                        "index_topk=32", "moe_intermediate_size=128" };
    int rank, size, gpus;
    lf_err err;

    if (lf_topo_start(&argc, &argv, &rank, &size, &err)) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    lf_grid g = { .dp = size, .pcp = 1, .tp = 1, .rank = rank, .dp_rank = rank, .ep = 1 };
    if (lf_cuda_devices(&gpus, &err)) {
        tap_skip("memory of whole runs on the GPU", err.text);
    } else {
        synthdir_make();
        one_model(g, "nano", (lf_synth_options){ .preset = "nano", .seed = 7 }, 1);
        one_model(g, "mini", (lf_synth_options){ .preset = "mini", .seed = 7 }, 0);
        one_model(g, "wide", (lf_synth_options){ .preset = "mini", .seed = 7, .set = wide, .sets = 9 }, 1);
        one_model(g, "bf16", (lf_synth_options){ .preset = "nano", .seed = 7, .bf16 = 1 }, 1);
        synthdir_remove();
    }
    lf_topo_end();
    return tap_done();
}
