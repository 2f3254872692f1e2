/* SPDX-License-Identifier: Apache-2.0 */
#include "traffic.h"

#include "shard.h"

#include <stdlib.h>

lf_row_fmt lf_travel_fmt(lf_numerics numerics, size_t act_bytes, int index)
{
    if (numerics == LF_RELEASED)
        return index ? LF_ROW_FP4 : LF_ROW_FP8;
    return act_bytes == 4 ? LF_ROW_F32 : LF_ROW_BF16;
}

/* One finished entry of a layer: of its main compressor, and of the indexer's where there is one. */
static int64_t entry_bytes(const lf_traffic_case *c, lf_kind kind)
{
    const lf_model *m = c->model;
    size_t main = lf_row_bytes(m, lf_travel_fmt(c->numerics, c->act_bytes, 0), m->head_dim);
    size_t index = lf_row_bytes(m, lf_travel_fmt(c->numerics, c->act_bytes, 1), m->index_dim);

    return kind == LF_SWA ? 0 : (int64_t)(kind == LF_C4 ? main + index : main);
}

static int64_t window_bytes(const lf_traffic_case *c, int64_t positions)
{
    return positions * c->model->head_dim * (int64_t)c->act_bytes;
}

/* u and g of both compressors. */
static int64_t pool_bytes(const lf_traffic_case *c)
{
    return 2 * 4 * (int64_t)sizeof(float) * (c->model->head_dim + c->model->index_dim);
}

double lf_traffic_token_bytes(const lf_traffic_case *c, lf_kind kind)
{
    return kind == LF_SWA ? 0 : (double)entry_bytes(c, kind) / lf_kind_ratio(kind);
}

int64_t lf_traffic_halo_bytes(const lf_traffic_case *c, lf_kind kind)
{
    return window_bytes(c, c->model->window - 1) + (kind == LF_C4 ? pool_bytes(c) : 0);
}

/* Halos of a width that this rank sends to others: how many, and their positions in all. */
static int64_t halos_sent(const lf_shard *s, int width, int64_t *positions)
{
    lf_halo *h;
    int64_t sent = 0;
    int n = lf_shard_halos(s, width, &h);

    *positions = 0;
    for (int i = 0; i < n; i++)
        if (h[i].from == s->rank && h[i].to != s->rank) {
            sent++;
            *positions += h[i].len;
        }
    free(h);
    return sent;
}

static int64_t entries_of(const lf_shard *s, int ratio)
{
    int64_t n = 0, first, count;

    for (int i = 0; i < s->runs; i++) {
        lf_run_blocks(&s->run[i], ratio, &first, &count);
        n += count;
    }
    return n;
}

void lf_traffic_sent(lf_traffic *t, const lf_traffic_case *c, int rank, int n, const int64_t *lengths)
{
    const lf_model *m = c->model;
    lf_shard s;
    int64_t window, four;

    lf_shard_make(&s, c->pcp, rank, m->window, n, lengths);
    halos_sent(&s, m->window - 1, &window);
    int64_t pools = halos_sent(&s, 4, &four);
    *t = (lf_traffic){ 0 };
    for (int l = 0; l < m->layers; l++) {
        lf_kind kind = m->kind[l];
        t->halo += window_bytes(c, window) + (kind == LF_C4 ? pools * pool_bytes(c) : 0);
        if (kind != LF_SWA)
            t->rows[kind] += (c->pcp - 1) * entries_of(&s, lf_kind_ratio(kind)) * entry_bytes(c, kind);
    }
    t->all = t->halo + t->rows[LF_C4] + t->rows[LF_C128];
    lf_shard_free(&s);
}
