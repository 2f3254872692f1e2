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

/* Rows, or columns. */
typedef struct stretch {
    int64_t at, n;
} stretch;

static stretch of_tp(int64_t all, const lf_grid *g)
{
    return (stretch){ g->tp_rank * (all / g->tp), all / g->tp };
}

/* What a tp rank computes with. */
static void own(stretch *rows, stretch *cols, const lf_inventory_item *item, const lf_model *m, const lf_grid *g)
{
    *rows = (stretch){ 0, item->rows };
    *cols = (stretch){ 0, item->cols };
    if (item->role == LF_ROLE_HEAD) {
        rows->at = lf_vocab_at(m, g->tp, g->tp_rank);
        rows->n = lf_vocab_at(m, g->tp, g->tp_rank + 1) - rows->at;
    } else if (item->role == LF_ROLE_WQ_B || item->role == LF_ROLE_WO_A) {
        *rows = of_tp(item->rows, g);
    } else if (item->role == LF_ROLE_WO_B) {
        *cols = of_tp(item->cols, g);
    }
}

/* A scale is that of a whole block's values: what begins or ends inside of one keeps all of it. */
static stretch whole_blocks(stretch s, int64_t block, int64_t all)
{
    int64_t at = s.at / block * block;

    return (stretch){ at, lf_min(lf_round_up(s.at + s.n, block), all) - at };
}

int64_t lf_weights_share(const lf_inventory_item *item, lf_storage store, const lf_model *m, const lf_grid *g,
                         int *matrix)
{
    lf_inventory_item part = *item;
    int64_t at[2];
    lf_weight w;

    *matrix = is_matrix(item);
    if (item->expert >= 0 && item->expert / (m->experts / g->ep) != g->ep_rank)
        return 0;
    if (!*matrix)
        return item->rows * item->cols * (item->role == LF_ROLE_TID2EID ? 8 : 4);
    lf_weights_view(&w, at, item, store, m, g);
    part.rows = w.all_rows;
    part.cols = w.all_cols;
    return lf_inventory_bytes(&part, store);
}

void lf_weights_view(lf_weight *w, int64_t at[2], const lf_inventory_item *item, lf_storage store, const lf_model *m,
                     const lf_grid *g)
{
    int64_t block[2], shape[2], scale[2];
    stretch rows, cols;

    own(&rows, &cols, item, m, g);
    lf_inventory_block(store, block);
    stretch r = whole_blocks(rows, block[0], item->rows), c = whole_blocks(cols, block[1], item->cols);
    *w = (lf_weight){ .rows = rows.n, .cols = cols.n, .row0 = rows.at - r.at, .col0 = cols.at - c.at,
                      .all_rows = r.n, .all_cols = c.n };
    lf_inventory_stored(item, store, &w->dtype, shape, scale);
    at[0] = r.at;
    at[1] = c.at;
}

int64_t lf_weights_on_gpu(const lf_inventory_item *item, lf_storage store, const lf_model *m, const lf_grid *g,
                          int *matrix)
{
    int64_t bytes = lf_weights_share(item, store, m, g, matrix), at[2];
    lf_weight w;

    if (!*matrix || bytes == 0)
        return lf_round_up(bytes, LF_CUDA_GRAIN);
    lf_weights_view(&w, at, item, store, m, g);
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
