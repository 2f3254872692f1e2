/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotation far out: frequencies as the model defines them, and angles at the last position of a
 * million-token prompt.
 */
#include "ops.h"

#include "../src/weight.h"

/* The released models: rope_dim 64, theta 10000, and 160000 under YaRN (16, 65536, 32, 1).  The correction range,
 * worked out by hand: rd ln(65536 / (32 * 2 pi)) / (2 ln 160000) = 15.46 -> 15; with 1 in place of 32: 24.71 -> 25. */
static double frequency(int i, int compressed)
{
    double f = pow(compressed ? 160000.0 : 10000.0, -2.0 * i / 64), ramp = (i - 15) / 10.0;

    if (!compressed)
        return f;
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return f * (1 - ramp) + f / 16 * ramp;
}

static lf_model released(void)
{
    lf_model m = { .type = "deepseek_v4", .layers = 1, .vocab = 8, .hidden = 64, .max_positions = 1048576,
        .heads = 1,
        .head_dim = 512, .rope_dim = 64, .q_rank = 64, .o_groups = 1, .o_rank = 64, .experts = 1,
        .experts_per_tok = 1,
        .expert_inter = 64, .window = 128, .index_heads = 1, .index_dim = 128, .index_topk = 512, .hc = 4,
        .hc_iters = 20, .rms_eps = 1e-6f, .hc_eps = 1e-6f, .rope_theta = 10000, .compress_theta = 160000,
        .yarn = { .on = 1, .factor = 16, .beta_fast = 32, .beta_slow = 1, .original = 65536 } };

    return m;
}

static void frequencies(const lf_model *m, int compressed, float *freq)
{
    int bad = 0;

    lf_rope_frequencies(m, compressed, freq);
    for (int i = 0; i < 32; i++)
        TAP_QUIET(bad, fabs((double)freq[i] / frequency(i, compressed) - 1) <= 2.5e-7,
                  "frequency %d: got %.9g, expected %.9g", i,
                  (double)freq[i], frequency(i, compressed));
    TAP_CHECK(bad == 0, "inverse frequencies of %s layers", compressed ? "compressed" : "window");
}

/* Rotating (1, 0) shows cos and sin. */
static void angles(ops_run *r, const float *freq, int compressed)
{
    static const int64_t at[4] = { 1048575, 1048572, 1048448, 999999 };
    float x[4 * 64], back[4 * 64];
    double worst = 0, inverse = 0;
    lf_rope rope = { 64, ops_put(r, freq, 32 * 4) };
    int64_t *pos = ops_put(r, at, sizeof at);

    for (int i = 0; i < 4 * 64; i++)
        x[i] = i % 2 == 0;
    lf_act *y = ops_put_act(r, x, 4 * 64);
    r->dev->ops->rotate(r->dev, y, 4, 1, 64, pos, &rope, 0);
    ops_get_act(r, back, y, 4 * 64);
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 32; i++) {
            double a = (double)((float)at[p] * freq[i]);
            worst = fmax(worst, fabs((double)back[p * 64 + 2 * i] - cos(a)));
            worst = fmax(worst, fabs((double)back[p * 64 + 2 * i + 1] - sin(a)));
        }
    TAP_NEAR(worst, 0, 1e-5, "cos and sin near position 1,048,575, %s layers", compressed
             ? "compressed" : "window");
    r->dev->ops->rotate(r->dev, y, 4, 1, 64, pos, &rope, 1);
    ops_get_act(r, back, y, 4 * 64);
    for (int i = 0; i < 4 * 64; i++)
        inverse = fmax(inverse, fabs((double)back[i] - (double)x[i]));
    TAP_NEAR(inverse, 0, 1e-6, "  and the inverse turns back");
}

int main(void)
{
    ops_run r = { .suffix = 'e', .model = released() };
    float freq[32];

    for (int compressed = 0; compressed < 2; compressed++) {
        frequencies(&r.model, compressed, freq);
        ops_open(&r, 2);
        angles(&r, freq, compressed);
        ops_close(&r);
    }
    return tap_done();
}
