/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights on the GPU: as stored, with the scales of e4m3 tensors once more as the float32 table that products want.
 */
#include "cuda.cuh"

#include <stdlib.h>

/* Tensors share large pieces of memory: a checkpoint has tens of thousands of them. */
enum { SLAB_BYTES = 64 << 20 };            /* where nobody has said how much there will be */

struct lf_cuda_stores {
    char *at;                              /* free memory of the newest slab, and how much */
    size_t left;
    lf_cuda_extra **extra;
    int64_t extras, room;
};

static lf_cuda_stores *stores_of(lf_cuda *c)
{
    if (!c->stores)
        c->stores = (lf_cuda_stores *)lf_alloc(sizeof *c->stores);
    return c->stores;
}

/* The slabs themselves are ordinary taken memory, given back when the device closes. */
void lf_cuda_stores_free(lf_cuda *c)
{
    for (int64_t i = 0; c->stores && i < c->stores->extras; i++)
        free(c->stores->extra[i]);
    if (c->stores)
        free(c->stores->extra);
    free(c->stores);
    c->stores = NULL;
}

static int store_take(lf_cuda *c, void **out, size_t bytes, lf_err *err)
{
    lf_cuda_stores *s = stores_of(c);
    size_t all = (size_t)lf_round_up((int64_t)bytes, LF_CUDA_WEIGHT_ALIGN);
    void *slab;

    if (all > s->left) {
        if (all > SLAB_BYTES / 4)
            return lf_cuda_take(&c->dev, out, all, "weights", err);
        if (lf_cuda_take(&c->dev, &slab, SLAB_BYTES, "weights", err))
            return -1;
        s->at = (char *)slab;
        s->left = SLAB_BYTES;
    }
    *out = s->at;
    s->at += all;
    s->left -= all;
    return 0;
}

/* One piece for all. */
int lf_cuda_expect(lf_dev *d, int64_t bytes, lf_err *err)
{
    lf_cuda_stores *s = stores_of(lf_cuda_of(d));
    void *slab;

    if (bytes <= (int64_t)s->left)
        return 0;
    if (lf_cuda_take(d, &slab, (size_t)bytes, "weights", err))
        return -1;
    s->at = (char *)slab;
    s->left = (size_t)bytes;
    return 0;
}

static lf_cuda_extra *extra_new(lf_cuda *c)
{
    lf_cuda_stores *s = stores_of(c);

    if (s->extras == s->room) {
        s->room = s->room ? 2 * s->room : 1024;
        s->extra = (lf_cuda_extra **)lf_realloc(s->extra, sizeof *s->extra * (size_t)s->room);
    }
    return s->extra[s->extras++] = (lf_cuda_extra *)lf_alloc(sizeof(lf_cuda_extra));
}

/* ---- bytes of so many rows and columns ---- */

static int64_t row_bytes(lf_dtype type, int64_t cols)
{
    return type == LF_I8 ? cols / 2 : cols * (int64_t)lf_dtype_bytes(type);
}

static int64_t scale_row_bytes(lf_dtype type, int64_t cols)
{
    return type == LF_E4M3 ? lf_ceil_div(cols, 128) : type == LF_I8 ? cols / 32 : 0;
}

static int64_t scale_rows(lf_dtype type, int64_t rows)
{
    return type == LF_E4M3 ? lf_ceil_div(rows, 128) : rows;
}

static int sizes_match(const lf_weight *w, size_t bytes, size_t scale_bytes, lf_err *err)
{
    int64_t all = w->all_rows * row_bytes(w->dtype, w->all_cols);
    int64_t scales = scale_rows(w->dtype, w->all_rows) * scale_row_bytes(w->dtype, w->all_cols);

    if (w->dtype != LF_F32 && w->dtype != LF_BF16 && w->dtype != LF_E4M3 && w->dtype != LF_I8)
        return lf_fail(err, "a weight of type %s: F32, BF16, F8_E4M3 and I8 (packed e2m1) can be multiplied with",
                       lf_dtype_name(w->dtype));
    if (w->dtype == LF_I8 && w->all_cols % 32)
        return lf_fail(err, "a packed e2m1 weight of %lld columns: they must be a multiple of 32",
                       (long long)w->all_cols);
    if ((int64_t)bytes != all || (int64_t)scale_bytes != scales)
        return lf_fail(err, "a weight of %lld x %lld %s with %zu bytes and %zu of scales does not fit together",
                       (long long)w->all_rows, (long long)w->all_cols, lf_dtype_name(w->dtype), bytes, scale_bytes);
    return 0;
}

static __global__ void widen_scales(float *out, const uint8_t *byte, int64_t rows, int64_t cols, int64_t ld)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = i / ld, col = i % ld;

    if (row < rows)
        out[i] = col < cols ? lf_e8m0(byte[row * cols + col]) : 0.0f;
}

static int scale_table(lf_cuda *c, const lf_weight *w, lf_cuda_extra *x, lf_err *err)
{
    int64_t rows = lf_ceil_div(w->all_rows, 128);
    void *table;

    x->scale_ld = lf_cuda_scale_ld(w->all_cols);
    if (store_take(c, &table, sizeof(float) * (size_t)(rows * x->scale_ld), err))
        return -1;
    x->scale = (const float *)table;
    return 0;
}

void lf_cuda_weight_arrived(lf_cuda *c, const lf_weight *w)
{
    const lf_cuda_extra *x = (const lf_cuda_extra *)w->extra;
    int64_t rows = lf_ceil_div(w->all_rows, 128), cols = lf_ceil_div(w->all_cols, 128);

    if (w->dtype == LF_I8 && c->dev.numerics == LF_RELEASED)
        lf_cuda_fold_look(c, w);
    if (w->dtype != LF_E4M3)
        return;
    float *table = (float *)(uintptr_t)x->scale;
    widen_scales<<<lf_blocks(rows * x->scale_ld, 256), 256, 0, c->stream>>>(table, w->scale, rows, cols, x->scale_ld);
    LF_LAUNCHED(c, "widen_scales");
}

int lf_cuda_weight_place(lf_cuda *c, lf_weight *w, size_t bytes, size_t scale_bytes, lf_err *err)
{
    void *p, *s = NULL;

    if (sizes_match(w, bytes, scale_bytes, err) || store_take(c, &p, bytes, err) ||
        (scale_bytes && store_take(c, &s, scale_bytes, err)))
        return -1;
    lf_cuda_banks_forget(c);
    w->data = (const uint8_t *)p;
    w->scale = (const uint8_t *)s;
    return 0;
}

int lf_cuda_weight_finish(lf_cuda *c, lf_weight *w, lf_err *err)
{
    lf_cuda_extra *x = extra_new(c);

    w->extra = x;
    if (w->dtype == LF_E4M3 && scale_table(c, w, x, err))
        return -1;
    if (c->loader) {
        lf_cuda_load_finish(c, w);
        return 0;
    }
    lf_cuda_weight_arrived(c, w);
    return 0;
}

/* Rows without gaps are one. */
static void arrive(lf_cuda *c, const uint8_t *to, const void *data, int64_t rows, int64_t bytes, int64_t step)
{
    lf_cuda_rows r = { (const char *)data, rows, (size_t)bytes, (size_t)step };
    char *at = (char *)(uintptr_t)to;

    if (bytes == step)
        r = { r.data, 1, (size_t)(rows * bytes), (size_t)(rows * bytes) };
    if (c->loader)
        lf_cuda_load_rows(c, &r, at);
    else
        for (int64_t i = 0; i < r.rows; i++)
            lf_cuda_put(&c->dev, at + (size_t)i * r.bytes, r.data + (size_t)i * r.step, r.bytes);
}

int lf_cuda_weight(lf_dev *d, lf_weight *w, int64_t file_cols, const void *data, size_t bytes, const void *scale,
                   size_t scale_bytes, lf_err *err)
{
    lf_cuda *c = lf_cuda_of(d);
    lf_dtype type = w->dtype;

    if (lf_cuda_weight_place(c, w, bytes, scale_bytes, err))
        return -1;
    arrive(c, w->data, data, w->all_rows, row_bytes(type, w->all_cols), row_bytes(type, file_cols));
    arrive(c, w->scale, scale, scale_rows(type, w->all_rows), scale_row_bytes(type, w->all_cols),
           scale_row_bytes(type, file_cols));
    return lf_cuda_weight_finish(c, w, err);
}

/* ---- weights as bf16 or float32 ---- */

typedef struct view {
    const uint8_t *data, *scale;
    int64_t all_cols, row0, col0, rows, cols, ldo;
} view;

static __device__ float weight_at(const view &w, int dtype, int64_t row, int64_t col)
{
    int64_t i = row * w.all_cols + col;

    switch (dtype) {
    case LF_E4M3:
        return lf_e4m3(w.data[i]) * lf_e8m0(w.scale[row / 128 * ((w.all_cols + 127) / 128) + col / 128]);
    case LF_I8:
        return lf_e2m1(w.data[i / 2] >> (i & 1 ? 4 : 0) & 15) * lf_e8m0(w.scale[i / 32]);
    case LF_BF16:
        return __bfloat162float(((const __nv_bfloat16 *)w.data)[i]);
    default:
        return ((const float *)w.data)[i];
    }
}

/* Columns col .. col+7 of a row, col and all_cols multiples of 8 (all_cols of 32 for packed e2m1): no scale changes
 * between them. */
static __device__ void weight_8_at(float *v, const view &w, int dtype, int64_t row, int64_t col)
{
    int64_t i = row * w.all_cols + col;

    if (dtype == LF_E4M3) {
        float s = lf_e8m0(w.scale[row / 128 * ((w.all_cols + 127) / 128) + col / 128]);
        uint2 u = *(const uint2 *)(w.data + i);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = lf_e4m3((uint8_t)((j < 4 ? u.x : u.y) >> 8 * (j & 3))) * s;
    } else if (dtype == LF_I8) {
        float s = lf_e8m0(w.scale[i / 32]);
        uint32_t u = *(const uint32_t *)(w.data + i / 2);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = lf_e2m1((int)(u >> 4 * j & 15)) * s;
    } else if (dtype == LF_BF16)
        lf_load8(v, (const __nv_bfloat16 *)w.data + i);
    else
        lf_load8(v, (const float *)w.data + i);
}

/* Eight columns a thread. */
template <int DTYPE, typename T> static __global__ void expand(T *out, view w)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, per = w.ldo / 8, row = i / per, j0 = i % per * 8;
    float v[8];

    if (row >= w.rows)
        return;
    if ((w.col0 | w.all_cols) % 8 == 0 && j0 + 8 <= w.cols)
        weight_8_at(v, w, DTYPE, w.row0 + row, w.col0 + j0);
    else
        for (int j = 0; j < 8; j++)
            v[j] = j0 + j < w.cols ? weight_at(w, DTYPE, w.row0 + row, w.col0 + j0 + j) : 0.0f;
    lf_store8(out + row * w.ldo + j0, v);
}

template <typename T> static void expand_as(lf_cuda *c, const lf_weight *w, int64_t r0, int64_t n, T *out, int64_t ldo)
{
    view v = { w->data, w->scale, w->all_cols, w->row0 + r0, w->col0, n, w->cols, ldo };
    unsigned blocks = lf_blocks(n * (ldo / 8), 256);

    if (blocks == 0)
        return;
    if (w->dtype == LF_E4M3)
        expand<LF_E4M3><<<blocks, 256, 0, c->stream>>>(out, v);
    else if (w->dtype == LF_I8)
        expand<LF_I8><<<blocks, 256, 0, c->stream>>>(out, v);
    else if (w->dtype == LF_BF16)
        expand<LF_BF16><<<blocks, 256, 0, c->stream>>>(out, v);
    else
        expand<LF_F32><<<blocks, 256, 0, c->stream>>>(out, v);
    LF_LAUNCHED(c, "expand");
}

void lf_cuda_expand(lf_cuda *c, const lf_weight *w, int64_t r0, int64_t n, __nv_bfloat16 *out, int64_t ldo)
{
    expand_as(c, w, r0, n, out, ldo);
}

void lf_cuda_expand(lf_cuda *c, const lf_weight *w, int64_t r0, int64_t n, float *out, int64_t ldo)
{
    expand_as(c, w, r0, n, out, ldo);
}

/* ---- embedding ---- */

/* A block a token: its row once, stored into all streams. */
template <int DTYPE, typename T>
static __global__ void embed_rows(T *x, const uint32_t *ids, view w, int streams)
{
    int64_t row = w.row0 + ids[blockIdx.x];
    T *out = x + (int64_t)blockIdx.x * streams * w.cols;

    for (int64_t j = threadIdx.x; j < w.cols; j += blockDim.x) {
        float v = weight_at(w, DTYPE, row, w.col0 + j);
        for (int s = 0; s < streams; s++)
            lf_store(out + s * w.cols + j, v);
    }
}

void lf_cuda_embed(lf_dev *d, lf_act *x, const uint32_t *ids, int64_t m, const lf_weight *embed)
{
    lf_cuda *c = lf_cuda_of(d);
    view v = { embed->data, embed->scale, embed->all_cols, embed->row0, embed->col0, embed->rows, embed->cols, 0 };
    int n = d->model->hc;

    if (m == 0)
        return;
    LF_ACT(c, {
        if (embed->dtype == LF_E4M3)
            embed_rows<LF_E4M3><<<(unsigned)m, 256, 0, c->stream>>>(lf_ptr<T>(x), ids, v, n);
        else if (embed->dtype == LF_I8)
            embed_rows<LF_I8><<<(unsigned)m, 256, 0, c->stream>>>(lf_ptr<T>(x), ids, v, n);
        else if (embed->dtype == LF_BF16)
            embed_rows<LF_BF16><<<(unsigned)m, 256, 0, c->stream>>>(lf_ptr<T>(x), ids, v, n);
        else
            embed_rows<LF_F32><<<(unsigned)m, 256, 0, c->stream>>>(lf_ptr<T>(x), ids, v, n);
    });
    LF_LAUNCHED(c, "embed");
}
