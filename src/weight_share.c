/* SPDX-License-Identifier: Apache-2.0
 *
 * What the loader takes, without loading.
 */
#include "weight.h"
#include "dev_cuda_plan.h"

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

int64_t lf_weights_share(const lf_inventory_item *item, lf_storage store, const lf_model *m, const lf_grid *g,
                         int *matrix)
{
    lf_inventory_item part = *item;
    lf_weight w;

    *matrix = is_matrix(item);
    if (item->expert >= 0 && item->expert / (m->experts / g->ep) != g->ep_rank)
        return 0;
    if (!*matrix)
        return item->rows * item->cols * (item->role == LF_ROLE_TID2EID ? 8 : 4);
    lf_weights_view(&w, item, store, m, g);
    part.rows = w.all_rows;
    return lf_inventory_bytes(&part, store);
}

int64_t lf_weights_view(lf_weight *w, const lf_inventory_item *item, lf_storage store, const lf_model *m,
                        const lf_grid *g)
{
    int64_t row0, rows = own_rows(item, m, g, &row0), shape[2], scale[2];
    int apart = row0 % 128 == 0 && rows % 128 == 0;    /* whole blocks of scales, else the whole */
    int64_t all = apart ? rows : item->rows;

    *w = (lf_weight){ .rows = rows, .cols = item->cols, .row0 = apart ? 0 : row0, .all_rows = all,
                      .all_cols = item->cols };
    lf_inventory_stored(item, store, &w->dtype, shape, scale);
    return apart ? row0 : 0;
}

int64_t lf_weights_on_gpu(const lf_inventory_item *item, lf_storage store, const lf_model *m, const lf_grid *g,
                          int *matrix)
{
    int64_t bytes = lf_weights_share(item, store, m, g, matrix);
    lf_weight w;

    if (!*matrix || bytes == 0)
        return lf_round_up(bytes, LF_CUDA_GRAIN);
    lf_weights_view(&w, item, store, m, g);
    return lf_cuda_weight_bytes(w.dtype, w.all_rows, w.all_cols);
}

typedef struct survey {
    unsigned *stores;
    int64_t bytes;
    const lf_model *m;
    const lf_checkpoint *c;
    const lf_grid *g;
} survey;

static int survey_item(void *arg, const lf_inventory_item *item, lf_err *err)
{
    lf_inventory_found found = { .store = item->released };
    survey *s = arg;
    int matrix;

    if (s->c && lf_inventory_find(s->c, item, &found, err))
        return -1;
    int64_t bytes = lf_weights_on_gpu(item, found.store, s->m, s->g, &matrix);
    s->bytes += matrix ? bytes : 0;
    s->stores[item->role] |= 1u << found.store;
    return 0;
}

int lf_weights_survey(unsigned *stores, int64_t *bytes, const lf_model *m, const lf_checkpoint *c, const lf_grid *g,
                      lf_err *err)
{
    survey s = { stores, 0, m, c, g };

    for (int i = 0; i < LF_ROLES; i++)
        stores[i] = 0;
    int bad = lf_inventory_each(m, survey_item, &s, err);
    *bytes = s.bytes;
    return bad;
}
