/* SPDX-License-Identifier: Apache-2.0
 *
 * synth: checkpoints of any geometry in the released format, with made-up weights.  Floor 1.
 *
 * The weights come from a counter: each value depends on the seed, the tensor's name and the value's place alone, so
 * that any rows of any tensor can be made without the rest, on any machine, bit for bit.  Their spread is chosen so
 * that activations stay finite and of order one through any number of layers, and routing, sinks, gates and logits are
 * far from uniform.
 */
#ifndef LF_SYNTH_H
#define LF_SYNTH_H

#include "inventory.h"

typedef struct lf_synth_options {
    const char *preset;                    /* "nano", "mini": small; "flash", "pro": the released geometries */
    uint64_t seed;
    int bf16;                              /* all BF16; otherwise fp8 and packed fp4 as released */
    int sparse;                            /* headers only: the data are holes, which read as zeros */
    int64_t shard_size;                    /* bytes of data after which a new shard begins; a tensor is never split */
    const char *const *set;                /* "key=value": fields of config.json, a value being JSON or a plain text; */
    int sets;                              /* a dot goes into an object: rope_scaling.factor=4 */
} lf_synth_options;

/* The text of config.json; *text is the caller's.  Changing num_hidden_layers alone continues the preset's schedule. */
int lf_synth_config(const lf_synth_options *o, char **text, lf_err *err);

/* Writes config.json, the index and the shards into dir, which is made, or is there and empty; anything else is
 * refused.  Needs memory for 128 rows of the widest tensor, and disk space, which is checked first.  config.json is
 * written last: a directory that has one is whole.  A failure leaves the directory as it was. */
int lf_synth_write(const char *dir, const lf_synth_options *o, lf_err *err);

/* How the values of a floating tensor are made, so that a device can make the same: value i = mean + gain * z(key, i),
 * z(key, i) = (sum of the four 16-bit quarters of draw(key + i * 0x9e3779b97f4a7c15) - 131070) / 37837.228, in float32;
 * draw(z): z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9, z = (z ^ z >> 27) * 0x94d049bb133111eb, z ^ z >> 31. */
typedef struct lf_synth_law {
    uint64_t key;
    float mean, gain;
} lf_synth_law;

lf_synth_law lf_synth_law_of(const lf_inventory_item *item, uint64_t seed);

/* Values [first, first + n) of a floating tensor, before it is rounded to the type it is stored in. */
void lf_synth_values(const lf_inventory_item *item, uint64_t seed, int64_t first, int64_t n, float *out);

/* Rows [row, row + rows) as stored; row is a multiple of 128 where it is fp8.  weight gets those rows, scale those of
 * its companion (fp8: one row for each 128; may be NULL when there is none).  scratch holds min(rows, 128) * cols
 * floats.  experts: n_routed_experts, for tid2eid. */
void lf_synth_rows(const lf_inventory_item *item, lf_storage store, uint64_t seed, int experts, int64_t row,
                   int64_t rows, void *weight, uint8_t *scale, float *scratch);

/* Of a floating tensor, rows [at[0], at[0] + size[0]), and of them columns [at[1], at[1] + size[1]): they begin on a
 * block of scales (lf_inventory_block), and end on one or with the tensor.  scratch: min(size[0], 128) * size[1]
 * floats. */
void lf_synth_part(const lf_inventory_item *item, lf_storage store, uint64_t seed, const int64_t at[2],
                   const int64_t size[2], void *weight, uint8_t *scale, float *scratch);

#endif
