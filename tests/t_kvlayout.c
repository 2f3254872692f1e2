/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes per token and row counts against the figures of the format's description.
 */
#include "tap.h"
#include "../src/kvlayout.h"

#include <string.h>

/* first two layers as given, then 4, 128, 4, 128, ..., 4 */
static void released(lf_model *m, int layers, lf_kind first)
{
    memset(m, 0, sizeof *m);
    m->layers = layers;
    m->head_dim = 512;
    m->rope_dim = 64;
    m->window = 128;
    m->index_dim = 128;
    for (int l = 0; l < layers; l++)
        m->kind[l] = l < 2 ? first : l % 2 ? LF_C128 : LF_C4;
}

/* Over one common period of both ratios the constant tail cancels. */
static double per_token(const lf_model *m, lf_kv_dtype t)
{
    int64_t far = 1 << 20;

    return (lf_kv_bytes(m, t, far) - lf_kv_bytes(m, t, far - 128)) / 128;
}

static void bytes_per_token(void)
{
    lf_model flash, pro;

    released(&flash, 43, LF_SWA);
    released(&pro, 61, LF_C128);
    TAP_CHECK(per_token(&flash, LF_KV_BF16) == 6880, "V4-Flash: 6,880 bytes a token in bf16");
    TAP_CHECK(per_token(&flash, LF_KV_FP8) == 3514.25, "V4-Flash: 3,514 bytes a token in fp8");
    TAP_CHECK(per_token(&pro, LF_KV_BF16) == 9848, "V4-Pro: 9,848 bytes a token in bf16");
    TAP_CHECK(per_token(&pro, LF_KV_FP8) == 5031.4375, "V4-Pro: 5,031 bytes a token in fp8");
    TAP_CHECK(per_token(&flash, LF_KV_F32) == 2 * 6880, "f32 takes twice the bytes of bf16");
    /* 21 c4 layers at (584 + 68) / 4, 20 c128 layers at 584 / 128 */
    TAP_CHECK(per_token(&flash, LF_KV_FP8) == 21 * 652 / 4.0 + 20 * 584 / 128.0, "the fp8 sum of V4-Flash");
    TAP_CHECK(per_token(&pro, LF_KV_FP8) == 30 * 652 / 4.0 + 31 * 584 / 128.0, "the fp8 sum of V4-Pro");
    /* the tail at a multiple of 128: the window everywhere, and 4 + 4 rows of 512 and of 128 float32 per c4 layer */
    double tail = lf_kv_bytes(&flash, LF_KV_BF16, 1 << 20) - 6880.0 * (1 << 20);
    TAP_CHECK(tail == 43 * 128 * 1024.0 + 21 * 8 * 4 * (512 + 128.0), "the constant tail of V4-Flash in bf16");
}

static void rows_fp8(void)
{
    lf_model m;

    released(&m, 43, LF_SWA);
    TAP_CHECK(lf_row_bytes(&m, LF_ROW_FP8, 512) == 584, "a packed fp8 row has 584 bytes");
    TAP_CHECK(lf_fp8_rope_at(&m) == 448 && lf_fp8_scale_at(&m) == 576, "its rotated channels and its scales");
    TAP_CHECK(lf_fp8_groups(&m) == 7, "seven scales");
    TAP_CHECK(lf_row_bytes(&m, LF_ROW_FP4, 128) == 68, "a packed index row has 68 bytes");
    m.head_dim = 32;
    m.rope_dim = 16;
    TAP_CHECK(lf_fp8_groups(&m) == 1, "one scale when the codes are no multiple of 64");
    TAP_CHECK(lf_row_bytes(&m, LF_ROW_FP8, 32) == 56, "16 + 32 + 1 bytes are padded to 56");
    TAP_CHECK(lf_row_bytes(&m, LF_ROW_FP4, 32) == 17, "16 + 1 bytes of an index row are not padded");
}

static void row_counts(void)
{
    lf_model m;
    int bad = 0;

    released(&m, 4, LF_SWA);
    for (int64_t n = 1; n < 700; n++) {
        TAP_QUIET(bad, lf_part_rows(&m, LF_SWA, LF_PART_SWA, n) == lf_min(n, 128), "swa at %d", (int)n);
        TAP_QUIET(bad, lf_part_rows(&m, LF_C4, LF_PART_COMPRESSED, n) == n / 4, "c4 at %d", (int)n);
        TAP_QUIET(bad, lf_part_rows(&m, LF_C4, LF_PART_INDEX, n) == n / 4, "index at %d", (int)n);
        TAP_QUIET(bad, lf_part_rows(&m, LF_C128, LF_PART_COMPRESSED, n) == n / 128, "c128 at %d", (int)n);
        TAP_QUIET(bad, lf_part_rows(&m, LF_C4, LF_PART_INDEX_OPEN_KV, n) == n % 4, "open at %d", (int)n);
        TAP_QUIET(bad, lf_part_rows(&m, LF_C128, LF_PART_MAIN_OPEN_KV, n) == n % 128, "open c128 at %d", (int)n);
        TAP_QUIET(bad, lf_part_rows(&m, LF_C4, LF_PART_MAIN_PREV_KV, n) == (n >= 4 ? 4 : 0), "prev at %d", (int)n);
    }
    TAP_CHECK(bad == 0, "rows of every part at 1 to 699 tokens");
}

static void presence(void)
{
    int seen = 0;

    for (int p = 0; p < LF_PARTS; p++)
        seen |= lf_part_present(LF_SWA, p, 1000) << p;
    TAP_CHECK(seen == 1 << LF_PART_SWA, "a pure window layer has its window only");
    seen = 0;
    for (int p = 0; p < LF_PARTS; p++)
        seen |= lf_part_present(LF_C128, p, 1) << p;
    TAP_CHECK(seen == (1 << LF_PART_SWA | 1 << LF_PART_COMPRESSED | 3 << LF_PART_MAIN_OPEN_KV),
              "a ratio-128 layer has no index and no previous block; empty parts are present");
    TAP_CHECK(!lf_part_present(LF_C4, LF_PART_INDEX_PREV_GATE, 3) && lf_part_present(LF_C4, LF_PART_INDEX_PREV_GATE, 4),
              "the previous block is present from 4 tokens on");
    TAP_CHECK(lf_part_present(LF_C4, LF_PART_MAIN_OPEN_KV, 8), "an empty open block is present");
}

static void formats(void)
{
    lf_model m;

    released(&m, 4, LF_SWA);
    TAP_CHECK(lf_kv_resolve(LF_KV_AUTO, LF_RELEASED) == LF_KV_FP8, "auto is fp8 with released numerics");
    TAP_CHECK(lf_kv_resolve(LF_KV_AUTO, LF_EXACT) == LF_KV_F32, "auto is f32 with exact numerics");
    TAP_CHECK(lf_kv_resolve(LF_KV_BF16, LF_RELEASED) == LF_KV_BF16, "what is asked for stays");
    TAP_CHECK(lf_part_fmt(LF_PART_INDEX, LF_KV_FP8) == LF_ROW_FP4, "index rows of an fp8 file are fp4");
    TAP_CHECK(lf_part_fmt(LF_PART_SWA, LF_KV_FP8) == LF_ROW_FP8, "window rows of an fp8 file are fp8");
    TAP_CHECK(lf_part_fmt(LF_PART_MAIN_OPEN_GATE, LF_KV_FP8) == LF_ROW_F32, "state rows are float32 always");
    TAP_CHECK(lf_part_width(&m, LF_C4, LF_PART_MAIN_OPEN_KV) == 1024, "open rows of a ratio-4 layer hold 2d channels");
    TAP_CHECK(lf_part_width(&m, LF_C128, LF_PART_MAIN_OPEN_KV) == 512, "open rows of a ratio-128 layer hold d");
    TAP_CHECK(lf_part_width(&m, LF_C4, LF_PART_INDEX_OPEN_KV) == 256, "open index rows hold 2di");
    TAP_CHECK(lf_part_width(&m, LF_C4, LF_PART_INDEX_PREV_KV) == 128, "previous index rows hold di");
    TAP_CHECK(!strcmp(lf_part_path(LF_PART_INDEX_PREV_GATE), "state/index/prev_gate"), "the last part's path");
}

/* One value at a time is made what it must not be; its row is named.  The largest finite code passes. */
static void not_finite(void)
{
    static const struct { lf_row_fmt fmt; size_t at; uint8_t bytes[4]; int size; int64_t row; } c[] = {
        { LF_ROW_F32, 2 * 2048 + 2044, { 0, 0, 0x80, 0x7f }, 4, 2 },       /* infinity, the row's last value */
        { LF_ROW_F32, 0, { 1, 0, 0x80, 0xff }, 4, 0 },                     /* NaN */
        { LF_ROW_F32, 0, { 0xff, 0xff, 0x7f, 0x7f }, 4, -1 },              /* the largest float */
        { LF_ROW_BF16, 1024 + 1022, { 0xc0, 0x7f }, 2, 1 },
        { LF_ROW_BF16, 1024 + 1022, { 0x7f, 0x7f }, 2, -1 },
        { LF_ROW_FP8, 584 + 447, { 0xff }, 1, 1 },                         /* the last code */
        { LF_ROW_FP8, 584 + 447, { 0xfe }, 1, -1 },                        /* -448 */
        { LF_ROW_FP8, 584 * 2 + 448 + 126, { 0x80, 0xff }, 2, 2 },         /* the last rotated channel */
        { LF_ROW_FP8, 576 + 6, { 0xff }, 1, 0 },                           /* the last scale */
        { LF_ROW_FP8, 576 + 7, { 0xff }, 1, -1 },                          /* padding */
        { LF_ROW_FP4, 68 + 67, { 0xff }, 1, 1 },
        { LF_ROW_FP4, 68 + 63, { 0xff }, 1, -1 },                          /* two codes of -6 */
    };
    static uint8_t rows[3 * 2048];
    lf_model m;

    released(&m, 4, LF_SWA);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int64_t width = c[i].fmt == LF_ROW_FP4 ? 128 : 512;
        memset(rows, 0, sizeof rows);
        memcpy(rows + c[i].at, c[i].bytes, (size_t)c[i].size);
        int64_t got = lf_row_not_finite(&m, c[i].fmt, width, 3, rows);
        TAP_CHECK(got == c[i].row, "format %d, byte %zu: row %lld is not finite", (int)c[i].fmt, c[i].at,
                  (long long)c[i].row);
    }
}

int main(void)
{
    bytes_per_token();
    rows_fp8();
    row_counts();
    presence();
    formats();
    not_finite();
    return tap_done();
}
