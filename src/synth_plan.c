/* SPDX-License-Identifier: Apache-2.0 */
#include "synth_parts.h"

#include <stdio.h>
#include <stdlib.h>

static int add_place(void *arg, const lf_inventory_item *item, lf_err *err)
{
    lf_synth_plan *p = arg;
    lf_storage store = item->released;

    (void)err;
    if (item->expert >= 0 && store == LF_STORE_FP4)
        store = p->experts;
    if (p->o->bf16 && (store == LF_STORE_FP8 || store == LF_STORE_FP4))
        store = LF_STORE_BF16;
    if (p->n == p->capacity) {
        p->capacity = lf_max(256, 2 * p->capacity);
        p->place = lf_realloc(p->place, (size_t)p->capacity * sizeof *p->place);
    }
    p->place[p->n++] = (lf_synth_place){ item->layer, item->expert, item->role, store, 0, 0, 0 };
    return 0;
}

void lf_synth_plan_item(const lf_synth_plan *p, int64_t i, lf_inventory_item *item)
{
    const lf_synth_place *at = &p->place[i];

    lf_inventory_item_of(p->m, at->layer, at->role, at->expert, item);
}

/* Fills shards in the order of the inventory: a layer's tensors stay together. */
static void split(lf_synth_plan *p)
{
    lf_inventory_item item;
    int64_t used = 0;

    p->first = lf_alloc((size_t)(p->n + 1) * sizeof *p->first);
    for (int64_t i = 0; i < p->n; i++) {
        lf_synth_plan_item(p, i, &item);
        int64_t bytes = lf_inventory_bytes(&item, p->place[i].store);
        if (i == 0 || (used > 0 && used + bytes > p->o->shard_size)) {
            p->first[p->shards++] = i;
            used = 0;
        }
        used += bytes;
        p->place[i].shard = p->shards - 1;
    }
    p->first[p->shards] = p->n;
}

/* Wide types first, so that every tensor begins at a multiple of its type's size. */
static void lay_out(lf_synth_plan *p, int shard)
{
    lf_inventory_item item;
    lf_dtype dtype;
    int64_t shape[2], scale[2];
    uint64_t at = 0;

    for (size_t wide = 8; wide > 0; wide /= 2)
        for (int64_t i = p->first[shard]; i < p->first[shard + 1]; i++) {
            lf_synth_place *q = &p->place[i];
            lf_synth_plan_item(p, i, &item);
            lf_inventory_stored(&item, q->store, &dtype, shape, scale);
            if (lf_dtype_bytes(dtype) != wide)
                continue;
            q->offset = at;
            at += (uint64_t)(shape[0] * shape[1]) * wide;
            q->scale_offset = at;
            at += (uint64_t)(scale[0] * scale[1]);
        }
    p->bytes[shard] = at;
    p->total += at;
}

int lf_synth_plan_make(lf_synth_plan *p, const lf_model *m, const lf_synth_options *o, lf_storage experts,
                       lf_err *err)
{
    *p = (lf_synth_plan){ .m = m, .o = o, .experts = experts };
    if (lf_inventory_each(m, add_place, p, err))
        return -1;
    split(p);
    if (p->shards > 99999)
        return lf_fail(err, "a shard size of %lld bytes makes %d shards; at most 99999 are written",
                       (long long)o->shard_size, p->shards);
    p->bytes = lf_alloc((size_t)p->shards * sizeof *p->bytes);
    for (int s = 0; s < p->shards; s++)
        lay_out(p, s);
    return 0;
}

void lf_synth_plan_free(lf_synth_plan *p)
{
    free(p->place);
    free(p->first);
    free(p->bytes);
}

void lf_synth_shard_name(const lf_synth_plan *p, int shard, char name[64])
{
    snprintf(name, 64, "model-%05d-of-%05d.safetensors", shard + 1, p->shards);
}
