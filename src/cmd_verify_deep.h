/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_verify_deep: the first tokens of KV files once more through the model, on the CPU.  Floor 6, used by
 * cmd_verify.c.
 */
#ifndef LF_CMD_VERIFY_DEEP_H
#define LF_CMD_VERIFY_DEEP_H

#include "kvfile.h"

typedef struct lf_deep lf_deep;

/* Reads the checkpoint; a world of one rank. */
int lf_deep_open(lf_deep **out, const char *model_dir, lf_err *err);
void lf_deep_close(lf_deep *d);                               /* NULL is fine */

typedef struct lf_deep_report {
    int64_t tokens, rows, differ;          /* run again; compared; of these with other bytes */
    double worst;                          /* largest relative norm of a difference, over stretches of rows */
    lf_err unsure;                         /* the first stretch that is off by more, where rounding can do that to a
                                            * sound file: nobody can tell; empty: none is */
} lf_deep_report;

/* Runs min(tokens, num_tokens) tokens with the file's numerics and compares what they determine: all rows when that is
 * the whole prompt, otherwise compressed and index rows of whole blocks and per-token logits.  -1: the file is of other
 * weights or another model, or a set of rows is off by more than rounding: 1e-4 in relative norm with exact numerics,
 * 5e-2 with released ones, whose codes may fall the other way on another device.  With released numerics the rounding
 * of sums on a GPU or over tp ranks, from the second layer on, and of merge mode, from the first layer on whose input
 * holds a merged result, can grow past that: there finite rows that are off make the report unsure, and 0 is
 * returned. */
int lf_deep_run(lf_deep *d, lf_kvread *r, int64_t tokens, lf_deep_report *report, lf_err *err);

#endif
