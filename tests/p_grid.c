/* SPDX-License-Identifier: Apache-2.0
 *
 * Every grid of this world against one rank: the same bytes in gather mode, within rounding in merge mode, every row
 * handed over exactly once.  Each rank first runs all prompts alone (dp = world), then every pcp x tp = world together.
 * Merge mode in released numerics is judged by the exact rows, with a model of its own (grid_noise.h).
 */
#include "grid_world.h"

static void all_grids(world *w, lf_numerics numerics)
{
    setting alone = { .pcp = 1, .tp = 1, .numerics = numerics, .device = LF_DEVICE_CPU };
    store want;
    lf_err err = { "" };
    int bad = run(w, &alone, &want, &err);

    everywhere(w, bad, err.text, "each rank alone");
    alone.made_up = 1;
    if (w->size == 1)
        one_grid(w, &alone, &want);
    for (int pcp = 1; pcp <= w->size; pcp++)
        for (int tp = 1; pcp * tp <= w->size && tp <= 4; tp *= 2) {
            if (w->size % (pcp * tp) || w->model.experts % (pcp * tp))
                continue;
            if (numerics == LF_RELEASED && pcp * tp < w->size)
                continue;
            setting s = { .pcp = pcp, .tp = tp, .numerics = numerics, .tile = 256, .together = 1,
                          .device = LF_DEVICE_CPU };
            one_grid(w, &s, &want);
            s.together = 0;
            s.tile = 128;
            if (w->size <= 2)
                one_grid(w, &s, &want);
            s.made_up = 1;
            if (tp > 1 && numerics == LF_EXACT)
                one_grid(w, &s, &want);
            s.made_up = 0;
            s.merge = s.together = 1;
            s.rows_within = s.logits_within = 1e-5;
            if (pcp > 1 && numerics == LF_EXACT)
                one_grid(w, &s, &want);
        }
    store_free(&want);
}

static void noisy_merge(world *w)
{
    static const char *const set[] = { NOISY_MODEL };
    setting alone = { .pcp = 1, .tp = 1, .numerics = LF_EXACT, .device = LF_DEVICE_CPU };
    store exact, want;
    lf_err err = { "" };
    int bad = open_model(w, "noisy", (lf_synth_options){ .seed = 7, .set = set, .sets = sizeof set / sizeof *set },
                         &err) || run(w, &alone, &exact, &err);

    alone.numerics = LF_RELEASED;
    bad = bad || run(w, &alone, &want, &err);
    everywhere(w, bad, err.text, "each rank alone, exact and released");
    for (int pcp = 2; pcp <= w->size && !bad; pcp++) {
        setting s = { .pcp = pcp, .tp = w->size / pcp, .numerics = LF_RELEASED, .device = LF_DEVICE_CPU, .tile = 256,
                      .together = 1, .merge = 1, .exact = &exact, .logits_within = 0.5 };
        if (w->size % pcp == 0 && w->model.heads % s.tp == 0)
            one_grid(w, &s, &want);
    }
    store_free(&exact);
    store_free(&want);
    close_model(w);
}

int main(int argc, char **argv)
{
    static const char *const set[] = { "n_routed_experts=24", "num_attention_heads=8", "o_groups=4", "o_lora_rank=128",
                                       "sliding_window=136", "num_hash_layers=2" };
    world w = { 0 };
    lf_topo t;
    lf_err err = { "" };

    world_start(&w, &t, &argc, &argv);
    int bad = open_model(&w, "m", (lf_synth_options){ .seed = 7, .set = set, .sets = 6 }, &err);
    everywhere(&w, bad, err.text, "a model of 24 experts, 8 heads, 4 groups, window 136");
    if (!bad) {
        all_grids(&w, LF_EXACT);
        all_grids(&w, LF_RELEASED);
        close_model(&w);
        if (w.size > 1)
            noisy_merge(&w);
        everywhere(&w, w.leaks, "memory", "every engine gave back what it took");
        everywhere(&w, w.late, "experts", "prepared while the layer before runs");
        everywhere(&w, w.unplanned, "weights", "as many bytes as planned");
        everywhere(&w, w.off_peak, "passes", "as many bytes as planned, within 5 %");
        everywhere(&w, w.unplanned_host, "host memory for output", "as many bytes as planned");
    }
    return world_end(&w, &t);
}
