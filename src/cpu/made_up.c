/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights without a checkpoint.
 */
#include "cpu.h"
#include "../synth.h"

#include <stdlib.h>

static int made_take(lf_cpu *c, void **out, size_t bytes, lf_err *err)
{
    if (c->dev.ops->take(&c->dev, out, bytes, "made-up weights", err))
        return -1;
    c->made = lf_realloc(c->made, sizeof *c->made * (size_t)(c->mades + 1));
    c->made[c->mades++] = *out;
    return 0;
}

void lf_cpu_made_free(lf_cpu *c)
{
    for (int64_t i = 0; i < c->mades; i++)
        c->dev.ops->give(&c->dev, c->made[i]);
    free(c->made);
}

int lf_cpu_made_up(lf_dev *d, lf_weight *w, const lf_inventory_item *item, lf_storage store, const int64_t at[2],
                   uint64_t seed, lf_err *err)
{
    lf_cpu *c = lf_cpu_of(d);
    lf_inventory_item part = *item;
    int64_t shape[2], scales[2], size[2] = { w->all_rows, w->all_cols };
    void *data, *scale = NULL;

    part.rows = size[0];
    part.cols = size[1];
    lf_inventory_stored(&part, store, &w->dtype, shape, scales);
    if (made_take(c, &data, (size_t)(shape[0] * shape[1]) * lf_dtype_bytes(w->dtype), err) ||
        (scales[0] && made_take(c, &scale, (size_t)(scales[0] * scales[1]), err)))
        return -1;
    float *scratch = lf_alloc(sizeof(float) * (size_t)(lf_min(128, size[0]) * size[1]));
    lf_synth_part(item, store, seed, at, size, data, scale, scratch);
    free(scratch);
    w->data = data;
    w->scale = scale;
    return 0;
}
