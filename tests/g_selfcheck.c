/* SPDX-License-Identifier: Apache-2.0
 *
 * The self-check on one GPU: small models with 20,000 tokens in float32, bf16 and released numerics, in all layers.
 */
#include "selfcheck_run.h"

#include "dev_cuda.h"

enum { LENGTH = 20003, POSITIONS = 32 };

static void positions_of(lf_probe_at *at)
{
    static const int64_t fixed[] = { 0, 3, 127, 128, 511, 512, 4095, 8191, 8192, 16384, LENGTH - 2, LENGTH - 1 };
    uint32_t seed = 11;

    for (int i = 0; i < POSITIONS; i++) {
        seed = seed * 1664525u + 1013904223u;
        at[i] = (lf_probe_at){ 0, i < (int)(sizeof fixed / sizeof *fixed) ? fixed[i] : (seed >> 8) % LENGTH };
    }
}

static void one_mode(const lf_model *m, const char *name, lf_numerics numerics, lf_kv_dtype kv)
{
    static const char *const kind[] = { "auto", "fp8", "bf16", "f32" };
    lf_probe_at at[POSITIONS];
    uint8_t layers[LF_MAX_LAYERS];
    look_setting s = { .pcp = 1, .tp = 1, .device = LF_DEVICE_CUDA, .numerics = numerics, .kv = kv, .layers = layers,
                       .at = at, .positions = POSITIONS };
    uint32_t *ids = made_ids(LENGTH, m->vocab, 9);
    lf_prompt p = { ids, LENGTH };
    lf_err err = { "" };
    look l;
    int wrong = 0;

    memset(layers, 1, sizeof layers);
    positions_of(at);
    int bad = look_run(&l, m, 0, 1, &s, 1, &p, &err);
    TAP_CHECK(!bad, "%s, %s, rows in %s: runs", name, numerics == LF_EXACT ? "exact" : "released", kind[kv]);
    if (bad)
        printf("# %s\n", err.text);
    look_record *r = look_check(&l, 0);
    for (int i = 0; i < l.queries; i++)
        TAP_QUIET(wrong, !r[i].bad, "layer %d position %lld: %s", r[i].layer, (long long)r[i].pos, r[i].text);
    TAP_CHECK(bad || (wrong == 0 && l.queries == POSITIONS * m->layers), "%d queries agree with float64", l.queries);
    look_summary(r, l.queries);
    free(r);
    free(ids);
    look_free(&l);
}

static void one_model(const char *preset, const char *const *set, int sets)
{
    lf_model m = { 0 };
    lf_err err = { "" };
    int bad = look_model(&m, preset, set, sets, &err);

    TAP_CHECK(!bad, "%s: %s", preset, bad ? err.text : "a model");
    if (!bad) {
        one_mode(&m, preset, LF_EXACT, LF_KV_F32);
        one_mode(&m, preset, LF_EXACT, LF_KV_BF16);
        one_mode(&m, preset, LF_RELEASED, LF_KV_FP8);
    }
    lf_model_free(&m);
}

int main(int argc, char **argv)
{
    static const char *const wide[] = { "index_topk=512", "index_n_heads=64", "num_attention_heads=64", "o_groups=4",
                                        "o_lora_rank=128", "hidden_size=256", "q_lora_rank=128",
                                        "moe_intermediate_size=128" };
    lf_err err = { "" };
    int rank, size, gpus;

    if (lf_topo_start(&argc, &argv, &rank, &size, &err)) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    if (lf_cuda_devices(&gpus, &err))
        tap_skip("the self-check on a GPU", err.text);
    else {
        one_model("nano", NULL, 0);
        one_model("mini", wide, 8);
    }
    lf_topo_end();
    return tap_done();
}
