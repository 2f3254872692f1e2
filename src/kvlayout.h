/* SPDX-License-Identifier: Apache-2.0
 *
 * kvlayout: what a KV file of version 1 holds, as arithmetic: which rows each layer has, and the bytes of one row.
 * Floor 1, pure.   Source: product.md, "The KV file, version 1".
 *
 * A row travels (between ranks, and to the writer) packed in one of these formats; the file stores its parts apart.
 *   LF_ROW_F32   [n] float32
 *   LF_ROW_BF16  [n] bf16
 *   LF_ROW_FP8   main rows (window and compressed), n = d: (d-rd) e4m3 codes, rd bf16, then one e8m0 scale per group of
 *                64 codes (one scale in all when d-rd is not a multiple of 64), zero-padded to a multiple of 8 bytes
 *   LF_ROW_FP4   index rows, n = di: di/2 bytes of e2m1, then di/32 e8m0 scales; no padding.  Holds H x, H the Hadamard
 *                transform of size di scaled by di^-1/2, as released numerics computes it.
 */
#ifndef LF_KVLAYOUT_H
#define LF_KVLAYOUT_H

#include "model.h"

typedef enum lf_row_fmt { LF_ROW_F32, LF_ROW_BF16, LF_ROW_FP8, LF_ROW_FP4 } lf_row_fmt;

typedef enum lf_kv_dtype { LF_KV_AUTO, LF_KV_FP8, LF_KV_BF16, LF_KV_F32 } lf_kv_dtype;

/* The row sets of one layer.  The state rows are float32 always: u, and g with ape added. */
typedef enum lf_kv_part {
    LF_PART_SWA,                           /* [min(L, W), d], first_position = max(0, L - W) */
    LF_PART_COMPRESSED,                    /* [L / ratio, d] */
    LF_PART_INDEX,                         /* [L / 4, di]: c4 */
    LF_PART_MAIN_OPEN_KV, LF_PART_MAIN_OPEN_GATE,      /* [L mod ratio, a d] */
    LF_PART_MAIN_PREV_KV, LF_PART_MAIN_PREV_GATE,      /* [4, d], first d channels of the last full block: c4, L >= 4 */
    LF_PART_INDEX_OPEN_KV, LF_PART_INDEX_OPEN_GATE,    /* [L mod 4, 2 di]: c4 */
    LF_PART_INDEX_PREV_KV, LF_PART_INDEX_PREV_GATE,    /* [4, di]: c4, L >= 4 */
    LF_PARTS
} lf_kv_part;

/* auto: fp8 for released numerics, where it loses nothing; f32 for exact. */
lf_kv_dtype lf_kv_resolve(lf_kv_dtype want, lf_numerics numerics);
const char *lf_kv_dtype_name(lf_kv_dtype t);

lf_row_fmt lf_part_fmt(lf_kv_part part, lf_kv_dtype t);
int64_t lf_part_width(const lf_model *m, lf_kind kind, lf_kv_part part);                /* channels of a row */
int64_t lf_part_rows(const lf_model *m, lf_kind kind, lf_kv_part part, int64_t tokens); /* 0: the part is absent */
int lf_part_present(lf_kind kind, lf_kv_part part, int64_t tokens);             /* absent is not the same as empty */
const char *lf_part_path(lf_kv_part part);                                      /* "swa", "state/main/open_kv", ... */

size_t lf_row_bytes(const lf_model *m, lf_row_fmt fmt, int64_t width);
/* Offsets inside a packed fp8 main row: codes at 0. */
size_t lf_fp8_rope_at(const lf_model *m);
size_t lf_fp8_scale_at(const lf_model *m);
int lf_fp8_groups(const lf_model *m);

/* One packed row as float32 [width]: codes times their scales.  A row of LF_ROW_FP4 stays transformed. */
void lf_row_floats(const lf_model *m, lf_row_fmt fmt, int64_t width, const void *packed, float *out);

/* The first of `rows` packed rows that holds a NaN, an infinity or a code that stands for one; -1: none does. */
int64_t lf_row_not_finite(const lf_model *m, lf_row_fmt fmt, int64_t width, int64_t rows, const void *packed);

/* Bytes of all rows of a prompt (no HDF5 overhead): what plan prints and the writer's memory is sized by. */
double lf_kv_bytes(const lf_model *m, lf_kv_dtype t, int64_t tokens);

#endif
