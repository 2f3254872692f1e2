/* SPDX-License-Identifier: Apache-2.0 */
#include "kvlayout.h"

lf_kv_dtype lf_kv_resolve(lf_kv_dtype want, lf_numerics numerics)
{
    if (want != LF_KV_AUTO)
        return want;
    return numerics == LF_RELEASED ? LF_KV_FP8 : LF_KV_F32;
}

const char *lf_kv_dtype_name(lf_kv_dtype t)
{
    static const char *const name[] = { "auto", "fp8", "bf16", "f32" };

    return name[t];
}

lf_row_fmt lf_part_fmt(lf_kv_part part, lf_kv_dtype t)
{
    if (part > LF_PART_INDEX || t == LF_KV_F32 || t == LF_KV_AUTO)
        return LF_ROW_F32;
    if (t == LF_KV_BF16)
        return LF_ROW_BF16;
    return part == LF_PART_INDEX ? LF_ROW_FP4 : LF_ROW_FP8;
}

int64_t lf_part_width(const lf_model *m, lf_kind kind, lf_kv_part part)
{
    int64_t overlap = kind == LF_C4 ? 2 : 1;

    switch (part) {
    case LF_PART_INDEX:
    case LF_PART_INDEX_PREV_KV:
    case LF_PART_INDEX_PREV_GATE:
        return m->index_dim;
    case LF_PART_INDEX_OPEN_KV:
    case LF_PART_INDEX_OPEN_GATE:
        return overlap * m->index_dim;
    case LF_PART_MAIN_OPEN_KV:
    case LF_PART_MAIN_OPEN_GATE:
        return overlap * m->head_dim;
    default:
        return m->head_dim;
    }
}

int lf_part_present(lf_kind kind, lf_kv_part part, int64_t tokens)
{
    switch (part) {
    case LF_PART_SWA:
        return 1;
    case LF_PART_COMPRESSED:
    case LF_PART_MAIN_OPEN_KV:
    case LF_PART_MAIN_OPEN_GATE:
        return kind != LF_SWA;
    case LF_PART_INDEX:
    case LF_PART_INDEX_OPEN_KV:
    case LF_PART_INDEX_OPEN_GATE:
        return kind == LF_C4;
    default:
        return kind == LF_C4 && tokens >= 4;
    }
}

int64_t lf_part_rows(const lf_model *m, lf_kind kind, lf_kv_part part, int64_t tokens)
{
    if (!lf_part_present(kind, part, tokens))
        return 0;
    switch (part) {
    case LF_PART_SWA:
        return lf_min(tokens, m->window);
    case LF_PART_COMPRESSED:
    case LF_PART_INDEX:
        return tokens / lf_kind_ratio(kind);
    case LF_PART_MAIN_OPEN_KV:
    case LF_PART_MAIN_OPEN_GATE:
    case LF_PART_INDEX_OPEN_KV:
    case LF_PART_INDEX_OPEN_GATE:
        return tokens % lf_kind_ratio(kind);
    default:
        return 4;
    }
}

const char *lf_part_path(lf_kv_part part)
{
    static const char *const path[LF_PARTS] = {
        "swa", "compressed", "index",
        "state/main/open_kv", "state/main/open_gate", "state/main/prev_kv", "state/main/prev_gate",
        "state/index/open_kv", "state/index/open_gate", "state/index/prev_kv", "state/index/prev_gate"
    };

    return path[part];
}

int lf_fp8_groups(const lf_model *m)
{
    int codes = m->head_dim - m->rope_dim;

    return codes % 64 ? 1 : codes / 64;
}

size_t lf_fp8_rope_at(const lf_model *m)
{
    return (size_t)(m->head_dim - m->rope_dim);
}

size_t lf_fp8_scale_at(const lf_model *m)
{
    return lf_fp8_rope_at(m) + 2 * (size_t)m->rope_dim;
}

size_t lf_row_bytes(const lf_model *m, lf_row_fmt fmt, int64_t width)
{
    switch (fmt) {
    case LF_ROW_F32:
        return 4 * (size_t)width;
    case LF_ROW_BF16:
        return 2 * (size_t)width;
    case LF_ROW_FP4:
        return (size_t)(width / 2 + lf_ceil_div(width, 32));
    default:
        return (size_t)lf_round_up((int64_t)lf_fp8_scale_at(m) + lf_fp8_groups(m), 8);
    }
}

static void bf16_floats(const uint8_t *from, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t b;
        memcpy(&b, from + 2 * i, 2);
        out[i] = lf_bf16_f32(b);
    }
}

static void fp8_floats(const lf_model *m, const uint8_t *from, float *out)
{
    int codes = m->head_dim - m->rope_dim, group = codes % 64 ? codes : 64;
    const uint8_t *scale = from + lf_fp8_scale_at(m);

    for (int i = 0; i < codes; i++)
        out[i] = lf_e4m3_table[from[i]] * lf_e8m0_f32(scale[i / group]);
    bf16_floats(from + lf_fp8_rope_at(m), m->rope_dim, out + codes);
}

void lf_row_floats(const lf_model *m, lf_row_fmt fmt, int64_t width, const void *packed, float *out)
{
    const uint8_t *from = packed;

    switch (fmt) {
    case LF_ROW_F32:
        memcpy(out, from, 4 * (size_t)width);
        break;
    case LF_ROW_BF16:
        bf16_floats(from, width, out);
        break;
    case LF_ROW_FP8:
        fp8_floats(m, from, out);
        break;
    case LF_ROW_FP4:
        for (int64_t i = 0; i < width; i++)
            out[i] = lf_e2m1_table[from[i / 2] >> 4 * (i % 2) & 15] * lf_e8m0_f32(from[width / 2 + i / 32]);
        break;
    }
}

/* Bits are looked at, not values: no compiler option makes these loops untrue, and they run as fast as memory does. */
static int f32_bad(const uint8_t *from, int64_t n)
{
    uint32_t bad = 0, b;

    for (int64_t i = 0; i < n; i++) {
        memcpy(&b, from + 4 * i, 4);
        bad |= (b & 0x7f800000u) == 0x7f800000u;
    }
    return bad != 0;
}

static int bf16_bad(const uint8_t *from, int64_t n)
{
    uint16_t bad = 0, b;

    for (int64_t i = 0; i < n; i++) {
        memcpy(&b, from + 2 * i, 2);
        bad |= (b & 0x7f80) == 0x7f80;
    }
    return bad != 0;
}

static int code_bad(const uint8_t *from, int64_t n, uint8_t mask)
{
    int bad = 0;

    for (int64_t i = 0; i < n; i++)
        bad |= (from[i] & mask) == mask;
    return bad;
}

static int row_bad(const lf_model *m, lf_row_fmt fmt, int64_t width, const uint8_t *row)
{
    switch (fmt) {
    case LF_ROW_F32:
        return f32_bad(row, width);
    case LF_ROW_BF16:
        return bf16_bad(row, width);
    case LF_ROW_FP4:
        return code_bad(row + width / 2, lf_ceil_div(width, 32), 0xff);
    default:
        return code_bad(row, m->head_dim - m->rope_dim, 0x7f) || bf16_bad(row + lf_fp8_rope_at(m), m->rope_dim) ||
               code_bad(row + lf_fp8_scale_at(m), lf_fp8_groups(m), 0xff);
    }
}

int64_t lf_row_not_finite(const lf_model *m, lf_row_fmt fmt, int64_t width, int64_t rows, const void *packed)
{
    size_t bytes = lf_row_bytes(m, fmt, width);

    for (int64_t i = 0; i < rows; i++)
        if (row_bad(m, fmt, width, (const uint8_t *)packed + (size_t)i * bytes))
            return i;
    return -1;
}

double lf_kv_bytes(const lf_model *m, lf_kv_dtype t, int64_t tokens)
{
    double sum = 0;

    for (int l = 0; l < m->layers; l++) {
        for (int p = 0; p < LF_PARTS; p++) {
            size_t row = lf_row_bytes(m, lf_part_fmt(p, t), lf_part_width(m, m->kind[l], p));
            sum += (double)lf_part_rows(m, m->kind[l], p, tokens) * (double)row;
        }
    }
    return sum;
}
