/* SPDX-License-Identifier: Apache-2.0
 *
 * The whole model on GPUs: one GPU against the CPU, and every grid of this world's GPUs against one.
 *
 * Tolerances, as relative norms over all rows or logits.  exact in float32: 1e-5, as the CPU against the reference.
 * exact with bf16 activations against float32: each of some forty roundings a layer adds up to 2^-8 of a value, at
 * random, and a routed expert or an index row may be chosen otherwise: 1e-1.  released: what flips there changes
 * everything after it, so the rows of the first layer only are compared, 1e-2, and logits to 0.5 (0.27
 * was measured; logits that have nothing to do with each other are 1.4 apart); those of later layers with a model of
 * its own, by the exact rows (grid_noise.h).  Grids of GPUs in gather mode: the same bytes along pcp; along tp the
 * products are cut elsewhere.
 */
#include "grid_world.h"
#include "dev_cuda.h"

typedef struct mode {
    lf_numerics numerics;
    lf_kv_dtype kv;
    double rows, logits;                   /* against the CPU; and tp and merge mode against one GPU */
    int layers;
} mode;

static const mode modes[] = {
    { LF_EXACT, LF_KV_F32, 1e-5, 1e-5, 0 },
    { LF_EXACT, LF_KV_BF16, 1e-1, 1e-1, 0 },
    { LF_RELEASED, LF_KV_FP8, 1e-2, 0.5, 1 },
};

static void grids(world *w, const mode *m, const store *alone, const store *exact)
{
    for (int pcp = w->size; pcp >= 1; pcp--) {
        setting s = { .pcp = pcp, .tp = w->size / pcp, .numerics = m->numerics, .kv = m->kv, .device = LF_DEVICE_CUDA,
                      .together = 1 };
        if (w->size % pcp || w->size == 1)
            continue;
        s.layers = s.tp > 1 ? m->layers : 0;
        s.exact = s.tp > 1 ? exact : NULL;
        s.rows_within = s.tp > 1 ? m->rows : 0;
        s.logits_within = s.tp > 1 ? m->logits : 0;
        one_grid(w, &s, alone);
        s.made_up = 1;
        if (s.tp > 1)
            one_grid(w, &s, alone);
        s.made_up = 0;
        s.merge = 1;
        s.layers = m->layers;
        s.exact = exact;
        s.rows_within = m->rows;
        s.logits_within = m->logits;
        if (pcp > 1)
            one_grid(w, &s, alone);
    }
}

/* exact: NULL, or the rows that those of released numerics are judged by. */
static void one_mode(world *w, const mode *m, const store *exact)
{
    setting cpu = { .pcp = 1, .tp = 1, .numerics = m->numerics, .device = LF_DEVICE_CPU,
                    .kv = m->numerics == LF_EXACT ? LF_KV_F32 : m->kv };
    setting gpu = { .pcp = 1, .tp = 1, .numerics = m->numerics, .kv = m->kv, .device = LF_DEVICE_CUDA, .tile = 256,
                    .rows_within = m->rows, .logits_within = m->logits, .layers = m->layers, .exact = exact };
    store want, alone;
    lf_err err = { "" };

    everywhere(w, run(w, &cpu, &want, &err), err.text, "each rank alone on the CPU");
    one_grid(w, &gpu, &want);
    gpu.made_up = 1;
    one_grid(w, &gpu, &want);
    gpu.made_up = 0;
    gpu.tile = 0;
    gpu.together = 1;
    everywhere(w, run(w, &gpu, &alone, &err), err.text, "each rank alone on its GPU");
    grids(w, m, &alone, exact);
    store_free(&want);
    store_free(&alone);
}

static void one_model(world *w, const char *name, lf_synth_options o)
{
    lf_err err = { "" };
    int bad = open_model(w, name, o, &err);

    everywhere(w, bad, name, bad ? err.text : "a made-up model");
    for (int i = 0; i < 3 && !bad; i++)
        one_mode(w, &modes[i], NULL);
    close_model(w);
}

static void noisy_model(world *w)
{
    static const char *const set[] = { NOISY_MODEL };
    setting cpu = { .pcp = 1, .tp = 1, .numerics = LF_EXACT, .device = LF_DEVICE_CPU };
    store exact;
    lf_err err = { "" };
    int bad = open_model(w, "noisy", (lf_synth_options){ .seed = 7, .set = set, .sets = sizeof set / sizeof *set },
                         &err) || run(w, &cpu, &exact, &err);

    everywhere(w, bad, "noisy", bad ? err.text : "each rank alone on the CPU, exact");
    if (!bad)
        one_mode(w, &modes[2], &exact);
    store_free(&exact);
    close_model(w);
}

int main(int argc, char **argv)
{
    static const char *const small[] = { "n_routed_experts=24", "num_attention_heads=8", "o_groups=4",
                                         "o_lora_rank=128", "sliding_window=136", "num_hash_layers=2" };
    static const char *const wide[] = { "n_routed_experts=8", "num_attention_heads=64", "o_groups=4",
                                        "o_lora_rank=128", "hidden_size=256", "q_lora_rank=128", "index_n_heads=64",
                                        "index_topk=32", "moe_intermediate_size=128" };
    world w = { 0 };
    lf_topo t;
    lf_err err;
    int gpus = 0;

    world_start(&w, &t, &argc, &argv);
    if (lf_cuda_devices(&gpus, &err)) {
        if (w.rank == 0)
            tap_skip("whole runs on the GPU", err.text);
        return world_end(&w, &t);
    }
    one_model(&w, "nano", (lf_synth_options){ .preset = "nano", .seed = 7, .set = small, .sets = 6 });
    one_model(&w, "mini", (lf_synth_options){ .preset = "mini", .seed = 7, .set = wide, .sets = 9 });
    noisy_model(&w);
    everywhere(&w, w.leaks, "memory", "every engine gave back what it took");
    everywhere(&w, w.late, "experts", "prepared while the layer before runs");
    everywhere(&w, w.unplanned, "weights", "as many bytes as planned");
    everywhere(&w, w.off_peak, "passes", "as many bytes as planned, within 5 %");
    everywhere(&w, w.unplanned_host, "host memory for output", "as many bytes as planned");
    return world_end(&w, &t);
}
