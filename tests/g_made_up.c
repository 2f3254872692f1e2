/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights without a checkpoint on the GPU: the bytes that synth writes, of a whole tensor and of slices of its rows and
 * columns, however it is stored.
 */
#include "gpu_pair.h"

#include "../src/synth.h"

enum { ROWS = 700 };

/* cols 0: all of them.  A tensor has those slices that begin and end as its scales' blocks do. */
static const struct slice { int64_t row0, rows, col0, cols; } slices[] = {
    { 0, ROWS, 0, 0 },     { 0, 128, 0, 0 },      { 128, 256, 0, 0 },    { 640, 60, 0, 0 },
    { 0, ROWS, 128, 128 }, { 0, ROWS, 256, 160 }, { 128, 256, 0, 128 },  { 37, 200, 0, 0 },
    { 0, ROWS, 32, 64 },   { 37, 600, 64, 32 },   { 37, 600, 128, 288 }, { 5, 301, 7, 51 },
};

typedef struct tensor {
    lf_inventory_item item;
    lf_storage store;
    int64_t row, scale_row, per;           /* bytes of a row; of a row of scales, which is for `per` rows */
    uint8_t *data, *scale;                 /* of the whole, from synth */
} tensor;

static tensor tensor_new(pair *p, lf_role role, const char *name, lf_storage store, int64_t cols)
{
    tensor t = { .store = store, .per = store == LF_STORE_FP8 ? 128 : 1 };
    int64_t shape[2], scale[2];
    lf_dtype dtype;

    t.item = (lf_inventory_item){ .role = role, .expert = -1, .ndim = 2, .rows = ROWS, .cols = cols };
    snprintf(t.item.name, sizeof t.item.name, "%s", name);
    lf_inventory_stored(&t.item, store, &dtype, shape, scale);
    t.row = shape[1] * (int64_t)lf_dtype_bytes(dtype);
    t.scale_row = scale[1];
    t.data = pair_host(p, (size_t)(ROWS * t.row));
    t.scale = pair_host(p, (size_t)(scale[0] * scale[1]));
    float *scratch = pair_host(p, sizeof(float) * (size_t)(128 * cols));
    lf_synth_rows(&t.item, store, 7, 0, 0, ROWS, t.data, t.scale, scratch);
    return t;
}

/* Rows of `bytes` without gaps on the device, `step` apart in what is wanted. */
static int same(pair *p, const void *device, const uint8_t *want, int64_t rows, int64_t bytes, int64_t step)
{
    lf_dev *d = p->dev[PAIR_GPU];
    uint8_t *got = lf_alloc((size_t)(rows * bytes) + 1);
    int equal = 1;

    d->ops->get(d, got, device, (size_t)(rows * bytes));
    for (int64_t i = 0; i < rows; i++)
        equal = equal && memcmp(got + i * bytes, want + i * step, (size_t)bytes) == 0;
    free(got);
    return equal;
}

static int on_blocks(const tensor *t, const struct slice *s)
{
    int64_t block[2], row1 = s->row0 + s->rows, col1 = s->col0 + s->cols;

    lf_inventory_block(t->store, block);
    return s->row0 % block[0] == 0 && (row1 % block[0] == 0 || row1 == ROWS) && s->col0 % block[1] == 0 &&
           (col1 % block[1] == 0 || col1 == t->item.cols) && col1 <= t->item.cols;
}

static void one_slice(pair *p, const tensor *t, struct slice s)
{
    lf_dev *d = p->dev[PAIR_GPU];
    int64_t block[2], at[2] = { s.row0, s.col0 }, all = t->item.cols;
    lf_err err = { "" };

    s.cols = s.cols ? s.cols : all;
    if (!on_blocks(t, &s))
        return;
    lf_inventory_block(t->store, block);
    lf_weight w = { .rows = s.rows, .cols = s.cols, .all_rows = s.rows, .all_cols = s.cols };
    int64_t scale_rows = lf_ceil_div(s.rows, t->per), scale_cols = lf_ceil_div(s.cols, block[1]);
    int bad = d->ops->made_up(d, &w, &t->item, t->store, at, 7, &err);
    TAP_CHECK(!bad && same(p, w.data, t->data + s.row0 * t->row + s.col0 * t->row / all, s.rows, s.cols * t->row / all,
                           t->row) &&
              (t->scale_row == 0 || same(p, w.scale, t->scale + s.row0 / t->per * t->scale_row + s.col0 / block[1],
                                         scale_rows, scale_cols, t->scale_row)),
              "%s, %lld columns, rows %lld to %lld, columns %lld to %lld: the bytes of synth %s",
              lf_dtype_name(w.dtype), (long long)all, (long long)s.row0, (long long)(s.row0 + s.rows - 1),
              (long long)s.col0, (long long)(s.col0 + s.cols - 1), err.text);
}

int main(void)
{
    static const lf_storage stores[] = { LF_STORE_F32, LF_STORE_BF16, LF_STORE_FP8, LF_STORE_FP4 };
    lf_model m = { .vocab = 100, .hidden = 96, .hc = 4, .index_dim = 32 };
    lf_err err = { "" };
    pair p;

    if (!pair_gpu("made-up weights"))
        return tap_done();
    pair_open(&p, &m, LF_RELEASED, 2);
    for (int i = 0; i < 4; i++)
        for (int wide = 0; wide < 2; wide++) {
            lf_role role = wide ? LF_ROLE_W2 : LF_ROLE_WQ_B;
            tensor t = tensor_new(&p, role, "layers.3.a.weight", stores[i], wide ? 416 : 96);
            for (size_t k = 0; k < sizeof slices / sizeof *slices; k++)
                one_slice(&p, &t, slices[k]);
        }
    TAP_CHECK(p.dev[PAIR_GPU]->ops->sync(p.dev[PAIR_GPU], &err) == 0, "nothing went wrong %s", err.text);
    pair_close(&p);
    return tap_done();
}
