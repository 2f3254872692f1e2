/* SPDX-License-Identifier: Apache-2.0
 *
 * What the loader takes, without loading.
 */
#include "weight.h"

static int is_matrix(const lf_inventory_item *item)
{
    return item->ndim == 2 && item->role != LF_ROLE_COMP_APE && item->role != LF_ROLE_INDEX_APE &&
           item->role != LF_ROLE_TID2EID;
}

/* The rows that a tp rank computes with; *row0: the first. */
static int64_t own_rows(const lf_inventory_item *item, const lf_model *m, const lf_grid *g, int64_t *row0)
{
    int64_t each = item->rows / g->tp;

    *row0 = 0;
    if (item->role == LF_ROLE_HEAD) {
        *row0 = lf_vocab_at(m, g->tp, g->tp_rank);
        return lf_vocab_at(m, g->tp, g->tp_rank + 1) - *row0;
    }
    if (item->role != LF_ROLE_WQ_B && item->role != LF_ROLE_WO_A)
        return item->rows;
    *row0 = g->tp_rank * each;
    return each;
}

int64_t lf_weights_share(const lf_inventory_item *item, lf_storage store, const lf_model *m, const lf_grid *g, int made_up,
                         int *matrix)
{
    lf_inventory_item part = *item;
    int64_t row0, rows;

    *matrix = is_matrix(item);
    if (item->expert >= 0 && item->expert / (m->experts / g->ep) != g->ep_rank)
        return 0;
    if (!*matrix)
        return item->rows * item->cols * (item->role == LF_ROLE_TID2EID ? 8 : 4);
    rows = own_rows(item, m, g, &row0);
    if (!made_up && row0 % 128 == 0 && rows % 128 == 0)        /* whole blocks of scales, else the whole */
        part.rows = rows;
    return lf_inventory_bytes(&part, store);
}
