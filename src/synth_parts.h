/* SPDX-License-Identifier: Apache-2.0
 *
 * synth_parts: the pieces of lf_synth_write.  Included by synth*.c only.
 */
#ifndef LF_SYNTH_PARTS_H
#define LF_SYNTH_PARTS_H

#include "synth.h"

/* An item as it is placed in the files; its scale, if any, is placed apart, in the same shard. */
typedef struct lf_synth_place {
    int layer, expert;
    lf_role role;
    lf_storage store;
    int shard;
    uint64_t offset, scale_offset;         /* from the start of the shard's data */
} lf_synth_place;

typedef struct lf_synth_plan {
    const lf_model *m;
    const lf_synth_options *o;
    lf_storage experts;                      /* the config's expert_dtype, when the weights are quantised */
    lf_synth_place *place;
    int64_t n, capacity;
    int shards;
    int64_t *first;                        /* [shards + 1]: places of each shard */
    uint64_t *bytes;                       /* [shards]: of its data */
    uint64_t total;
} lf_synth_plan;

int lf_synth_plan_make(lf_synth_plan *p, const lf_model *m, const lf_synth_options *o, lf_storage experts, lf_err *err);
void lf_synth_plan_free(lf_synth_plan *p);
void lf_synth_plan_item(const lf_synth_plan *p, int64_t i, lf_inventory_item *item);

/* "model-00001-of-00046.safetensors" */
void lf_synth_shard_name(const lf_synth_plan *p, int shard, char name[64]);
/* Writes one shard under its name, or nothing. */
int lf_synth_shard_write(const lf_synth_plan *p, int shard, const char *dir, lf_err *err);

#endif
