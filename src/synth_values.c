/* SPDX-License-Identifier: Apache-2.0 */
#include "synth.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 128, GROUP = 32 };

/* A finaliser with full avalanche (the one of splitmix64). */
static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t key_of(const char *name, uint64_t seed)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    return mix(seed + 0x9e3779b97f4a7c15u) ^ h;
}

static uint64_t draw(uint64_t key, uint64_t i)
{
    return mix(key + i * 0x9e3779b97f4a7c15u);
}

/* Mean 0, variance 1, from the sum of four 16-bit uniforms: nearly normal, exact up to one rounding. */
static float spread(uint64_t key, uint64_t i)
{
    uint64_t r = draw(key, i);
    int sum = (int)(r & 0xffff) + (int)(r >> 16 & 0xffff) + (int)(r >> 32 & 0xffff) + (int)(r >> 48);

    return (float)(sum - 131070) * (1 / 37837.228f);
}

/* Value = mean + gain * spread; a product's gain is divided by sqrt(in): its outputs are of order gain. */
typedef struct law {
    float mean, gain;
    int product;
} law;

static law law_of(lf_role role)
{
    switch (role) {
    case LF_ROLE_EMBED:
    case LF_ROLE_SINK:
        return (law){ 0, 1, 0 };
    case LF_ROLE_HEAD:
        return (law){ 0, 3, 1 };
    case LF_ROLE_NORM:
    case LF_ROLE_ATTN_NORM:
    case LF_ROLE_FFN_NORM:
    case LF_ROLE_Q_NORM:
    case LF_ROLE_KV_NORM:
    case LF_ROLE_COMP_NORM:
    case LF_ROLE_INDEX_NORM:
        return (law){ 1, 0.1f, 0 };
    case LF_ROLE_HC_HEAD_BASE:
    case LF_ROLE_HC_ATTN_BASE:
    case LF_ROLE_HC_FFN_BASE:
    case LF_ROLE_COMP_APE:
    case LF_ROLE_INDEX_APE:
        return (law){ 0, 0.5f, 0 };
    case LF_ROLE_GATE_BIAS:
        return (law){ 0, 0.2f, 0 };
    case LF_ROLE_WO_A:
    case LF_ROLE_WO_B:
    case LF_ROLE_COMP_WGATE:
    case LF_ROLE_INDEX_WGATE:
    case LF_ROLE_GATE:
    case LF_ROLE_W1:
    case LF_ROLE_W2:
    case LF_ROLE_W3:
    case LF_ROLE_SHARED_W1:
    case LF_ROLE_SHARED_W2:
    case LF_ROLE_SHARED_W3:
        return (law){ 0, 2, 1 };
    default:
        return (law){ 0, 1, 1 };
    }
}

lf_synth_law lf_synth_law_of(const lf_inventory_item *item, uint64_t seed)
{
    law w = law_of(item->role);

    return (lf_synth_law){ .key = key_of(item->name, seed), .mean = w.mean,
                           .gain = w.product ? w.gain / sqrtf((float)item->cols) : w.gain };
}

void lf_synth_values(const lf_inventory_item *item, uint64_t seed, int64_t first, int64_t n, float *out)
{
    static const float scales[3] = { 0.8f, 0.6f, 1.1f };
    lf_synth_law w = lf_synth_law_of(item, seed);

    for (int64_t i = 0; i < n; i++) {
        int64_t at = first + i;
        if (item->role == LF_ROLE_HC_ATTN_SCALE || item->role == LF_ROLE_HC_FFN_SCALE)
            out[i] = scales[at % 3];
        else if (item->role == LF_ROLE_HC_HEAD_SCALE)
            out[i] = 0.7f;
        else
            out[i] = w.mean + w.gain * spread(w.key, (uint64_t)at);
    }
}

/* cols different experts for a token, by the first steps of a shuffle. */
static void fill_experts(const lf_inventory_item *item, uint64_t seed, int experts, int64_t row, int64_t rows,
                         uint8_t *out)
{
    uint64_t key = key_of(item->name, seed);
    int64_t *deck = lf_alloc((size_t)experts * sizeof *deck), k = item->cols;

    for (int64_t r = 0; r < rows; r++) {
        for (int e = 0; e < experts; e++)
            deck[e] = e;
        for (int64_t j = 0; j < k; j++) {
            int64_t pick = j + (int64_t)(draw(key, (uint64_t)((row + r) * k + j)) % (uint64_t)(experts - j));
            int64_t expert = deck[pick];
            deck[pick] = deck[j];
            deck[j] = expert;
            memcpy(out + 8 * (r * k + j), &expert, 8);
        }
    }
    free(deck);
}

static float amax_of(const float *v, int64_t n)
{
    float most = 0;

    for (int64_t i = 0; i < n; i++)
        most = fabsf(v[i]) > most ? fabsf(v[i]) : most;
    return most;
}

/* One block of up to 128 rows: a scale for every 128 columns. */
static void quantise_fp8(const float *v, int64_t rows, int64_t cols, uint8_t *weight, uint8_t *scale)
{
    for (int64_t c = 0; c < cols; c += BLOCK) {
        int64_t wide = lf_min(BLOCK, cols - c);
        float most = 0;
        for (int64_t r = 0; r < rows; r++)
            most = fmaxf(most, amax_of(v + r * cols + c, wide));
        uint8_t s = lf_scale_e4m3(most);
        float inverse = lf_e8m0_f32((uint8_t)(254 - s));
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = r * cols + c; i < r * cols + c + wide; i++)
                weight[i] = lf_f32_e4m3(v[i] * inverse);
        scale[c / BLOCK] = s;
    }
}

static void quantise_fp4(const float *v, int64_t n, uint8_t *weight, uint8_t *scale)
{
    for (int64_t g = 0; g < n / GROUP; g++, v += GROUP) {
        uint8_t s = lf_scale_e2m1(amax_of(v, GROUP));
        float inverse = lf_e8m0_f32((uint8_t)(254 - s));
        for (int i = 0; i < GROUP; i += 2)
            *weight++ = (uint8_t)(lf_f32_e2m1(v[i] * inverse) | lf_f32_e2m1(v[i + 1] * inverse) << 4);
        scale[g] = s;
    }
}

static void round_bf16(const float *v, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t b = lf_f32_bf16(v[i]);
        memcpy(out + 2 * i, &b, 2);
    }
}

void lf_synth_part(const lf_inventory_item *item, lf_storage store, uint64_t seed, const int64_t at[2],
                   const int64_t size[2], void *weight, uint8_t *scale, float *scratch)
{
    int64_t cols = size[1];
    uint8_t *w = weight;

    for (int64_t r = 0; r < size[0]; r += BLOCK) {
        int64_t some = lf_min(BLOCK, size[0] - r), n = some * cols;
        for (int64_t i = 0; i < some; i++)
            lf_synth_values(item, seed, (at[0] + r + i) * item->cols + at[1], cols, scratch + i * cols);
        if (store == LF_STORE_FP8) {
            quantise_fp8(scratch, some, cols, w, scale);
            scale += lf_ceil_div(cols, BLOCK);
            w += n;
        } else if (store == LF_STORE_FP4) {
            quantise_fp4(scratch, n, w, scale);
            scale += n / GROUP;
            w += n / 2;
        } else if (store == LF_STORE_F32) {
            memcpy(w, scratch, (size_t)n * 4);
            w += n * 4;
        } else {
            round_bf16(scratch, n, w);
            w += n * 2;
        }
    }
}

void lf_synth_rows(const lf_inventory_item *item, lf_storage store, uint64_t seed, int experts, int64_t row,
                   int64_t rows, void *weight, uint8_t *scale, float *scratch)
{
    if (store == LF_STORE_I64)
        fill_experts(item, seed, experts, row, rows, weight);
    else
        lf_synth_part(item, store, seed, (int64_t[2]){ row, 0 }, (int64_t[2]){ rows, item->cols }, weight, scale,
                      scratch);
}
