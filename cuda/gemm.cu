/* SPDX-License-Identifier: Apache-2.0
 *
 * gemm: which product a weight and the numerics ask for (lf_cuda_gemm_fits), and operands in the form that it takes.
 *
 *   released, e4m3 weight whose slice begins on a 128x128 block, 8 | rows, 16 | columns, at least a block large: fp8
 *                                          with block scales
 *   released, other quantised weights:     the quantised input and the weight as bf16, both exactly, bf16 product
 *   float32 activations or weight:         float32 product
 *   everything else:                       bf16 product, the weight as bf16 (exact for all stored formats but float32)
 */
#include "fp8.cuh"

/* Of columns of a wider tensor they are copied; what a rank loads has no others. */
const float *lf_cuda_fp8_scale(lf_cuda *c, const lf_weight *w)
{
    const lf_cuda_extra *x = (const lf_cuda_extra *)w->extra;
    int64_t rows = lf_ceil_div(w->rows, 128), cols = lf_ceil_div(w->cols, 128), ld = lf_cuda_scale_ld(w->cols);
    const float *from = x->scale + w->row0 / 128 * x->scale_ld + w->col0 / 128;

    if (lf_cuda_scales_fit(w))
        return from;
    size_t bytes = sizeof(float) * (size_t)(rows * ld);
    float *table = (float *)lf_cuda_scratch(c, LF_SCRATCH_GEMM_W_SCALE, bytes);
    if (!table)
        return NULL;
    lf_cuda_fill(&c->dev, table, 0, bytes);
    lf_cuda_copy_rows(&c->dev, table, sizeof(float) * (size_t)ld, from, sizeof(float) * (size_t)x->scale_ld,
                      sizeof(float) * (size_t)cols, rows);
    return table;
}

/* ---- kernels ---- */

/* Rows of a matrix, and zero rows after them. */
struct plain_rows {
    const __nv_bfloat16 *x;
    int64_t ldx, m, padded;

    __device__ const __nv_bfloat16 *at(int64_t row, int64_t, int64_t *scale, int64_t *step) const
    {
        *scale = row;
        *step = padded;
        return row < m ? x + row * ldx : NULL;
    }
};

/* Quantised and back: a warp a group of 128. */
static __global__ void requantise(__nv_bfloat16 *out, int64_t ldo, const __nv_bfloat16 *x, int64_t ldx, int64_t m,
                                  int64_t k)
{
    int64_t row = (int64_t)blockIdx.x * 8 + (threadIdx.x >> 5), j = blockIdx.y * 128 + ((int)threadIdx.x & 31) * 4;
    float v[4];
    uint8_t byte;

    if (row >= m)
        return;
    lf_load_4(v, x + row * ldx, j, k);
    uint32_t codes = lf_quantise_4(v, &byte);
    float scale = lf_e8m0(byte);
    for (int i = 0; i < 4; i++)
        if (j + i < ldo)
            out[row * ldo + j + i] = __float2bfloat16_rn(lf_e4m3((uint8_t)(codes >> 8 * i)) * scale);
}

/* Rows from one stride and type to another; columns n .. ldo-1 become 0 when asked. */
template <typename From, typename To>
static __global__ void convert(To *out, int64_t ldo, const From *x, int64_t ldx, int64_t m, int64_t n, int64_t width)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = i / width, j = i % width;

    if (row < m)
        lf_store(out + row * ldo + j, j < n ? lf_load(x + row * ldx + j) : 0.0f);
}

static __global__ void add(float *out, const float *x, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        out[i] += x[i];
}

/* ---- fp8 ---- */

/* Rows row0 .. row0+m-1, whose number becomes a multiple of 4 with rows of zeros; out has room for these. */
static void fp8_rows(lf_cuda *c, const lf_gemm *g, int64_t row0, int64_t m, void *out, int64_t ldo)
{
    int64_t k = g->w->cols, padded = lf_round_up(m, 4), groups = lf_ceil_div(k, 128);
    uint8_t *code = (uint8_t *)lf_cuda_scratch(c, LF_SCRATCH_GEMM_X, (size_t)(padded * k));
    float *scale = (float *)lf_cuda_scratch(c, LF_SCRATCH_GEMM_X_SCALE, sizeof(float) * (size_t)(padded * groups));
    const float *w_scale = lf_cuda_fp8_scale(c, g->w);
    plain_rows rows = { lf_ptr<__nv_bfloat16>(g->x) + row0 * g->ldx, g->ldx, m, padded };

    if (!code || !scale || !w_scale)
        return;
    lf_quantise_rows<<<lf_quantise_blocks(padded, k), 256, 0, c->stream>>>(code, scale, rows, padded, k);
    if (LF_LAUNCHED(c, "quantise"))
        return;
    const uint8_t *w = g->w->data + g->w->row0 * g->w->all_cols + g->w->col0;
    lf_cuda_product p = { LF_CUDA_FP8, g->kind == LF_OUT_F32, code, w, scale, w_scale, out, padded, g->w->rows, k, k,
                          g->w->all_cols, ldo };
    lf_cuda_multiply(c, &p);
}

static void gemm_fp8(lf_cuda *c, const lf_gemm *g)
{
    size_t element = g->kind == LF_OUT_F32 ? 4 : 2, row = element * (size_t)g->w->rows;
    int direct = lf_cuda_aligned(g->out, g->ldo, element);
    int64_t main = direct ? g->m / 4 * 4 : 0, rest = g->m - main;      /* no padding into the caller's memory */

    if (main)
        fp8_rows(c, g, 0, main, g->out, g->ldo);
    if (rest == 0)
        return;
    void *out = lf_cuda_scratch(c, LF_SCRATCH_GEMM_OUT, row * (size_t)lf_round_up(rest, 4));
    if (!out)
        return;
    fp8_rows(c, g, main, rest, out, g->w->rows);
    lf_cuda_copy_rows(&c->dev, (char *)g->out + element * (size_t)(main * g->ldo), element * (size_t)g->ldo, out, row,
                      row, rest);
}

/* ---- bf16 and float32 ---- */

template <typename From, typename To>
static void convert_rows(lf_cuda *c, To *out, int64_t ldo, const From *x, int64_t ldx, int64_t m, int64_t n,
                         int64_t width)
{
    convert<<<lf_blocks(m * width, 256), 256, 0, c->stream>>>(out, ldo, x, ldx, m, n, width);
    LF_LAUNCHED(c, "convert");
}

/* The input in the product's precision, its columns a multiple of 8.  -1: recorded. */
static int make_input(lf_cuda *c, const lf_gemm *g, const lf_gemm_form *f, lf_cuda_product *p)
{
    int64_t k = g->w->cols;

    p->x = g->x;
    p->ldx = g->ldx;
    if (f->direct_x)
        return 0;
    void *x = lf_cuda_scratch(c, LF_SCRATCH_GEMM_X, f->element * (size_t)(g->m * p->k));
    p->x = x;
    p->ldx = p->k;
    if (!x)
        return -1;
    if (f->quantise) {
        requantise<<<dim3(lf_blocks(g->m, 8), lf_blocks(p->k, 128)), 256, 0, c->stream>>>(
            (__nv_bfloat16 *)x, p->k, lf_ptr<__nv_bfloat16>(g->x), g->ldx, g->m, k);
        return LF_LAUNCHED(c, "requantise");
    }
    LF_ACT(c, {
        if (p->precision == LF_CUDA_F32)
            convert_rows(c, (float *)x, p->k, lf_ptr<T>(g->x), g->ldx, g->m, k, p->k);
        else
            convert_rows(c, (__nv_bfloat16 *)x, p->k, lf_ptr<T>(g->x), g->ldx, g->m, k, p->k);
    });
    return 0;
}

/* All rows of a weight that is stored as the product wants it; otherwise strip by strip. */
static void multiply(lf_cuda *c, const lf_weight *w, const lf_gemm_form *f, lf_cuda_product *p)
{
    size_t element = f->element, out_element = f->have;
    char *out = (char *)p->out;

    p->ldw = w->all_cols;
    p->w = w->data + (int64_t)element * (w->row0 * w->all_cols + w->col0);
    p->n = w->rows;
    if (f->direct_w) {
        lf_cuda_multiply(c, p);
        return;
    }
    void *part = lf_cuda_scratch(c, LF_SCRATCH_GEMM_W, element * (size_t)(lf_min(LF_CUDA_STRIP, w->rows) * p->k));
    if (!part)
        return;
    p->w = part;
    p->ldw = p->k;
    for (int64_t r = 0; r < w->rows; r += LF_CUDA_STRIP) {
        p->n = lf_min(LF_CUDA_STRIP, w->rows - r);
        p->out = out + out_element * (size_t)r;
        if (element == 4)
            lf_cuda_expand(c, w, r, p->n, (float *)part, p->k);
        else
            lf_cuda_expand(c, w, r, p->n, (__nv_bfloat16 *)part, p->k);
        lf_cuda_multiply(c, p);
    }
}

static void gemm_plain(lf_cuda *c, const lf_gemm *g)
{
    int64_t n = g->w->rows;
    lf_gemm_form f;

    lf_cuda_gemm_form(&f, &c->dev, g);
    lf_cuda_product p = { f.element == 4 ? LF_CUDA_F32 : LF_CUDA_BF16, f.have == 4 };
    p.m = g->m;
    p.k = f.k;
    p.out = g->out;
    p.ldo = f.ldo;
    if (!f.direct_out)
        p.out = lf_cuda_scratch(c, LF_SCRATCH_GEMM_OUT, f.have * (size_t)(g->m * p.ldo));
    void *made = p.out;
    if (!made || make_input(c, g, &f, &p))
        return;
    multiply(c, g->w, &f, &p);
    if (f.direct_out)
        return;
    if (f.have == f.want)
        lf_cuda_copy_rows(&c->dev, g->out, f.want * (size_t)g->ldo, made, f.want * (size_t)p.ldo, f.want * (size_t)n,
                          g->m);
    else
        convert_rows(c, (__nv_bfloat16 *)g->out, g->ldo, (const float *)made, p.ldo, g->m, n, n);
}

/* ---- parts ---- */

/* out [m, ld] = the sum over parts lo .. hi-1, pairwise; halves not yet added stand one after the other behind it. */
static void sum_parts(lf_cuda *c, const lf_gemm *g, int lo, int hi, float *out, int64_t ld)
{
    int64_t part = g->w->cols / g->parts, n = g->m * ld;

    if (hi - lo == 1) {
        lf_weight w = lf_weight_cols(*g->w, lo * part, part);
        lf_gemm one = *g;
        one.x = lf_act_at(&c->dev, g->x, lo * part);
        one.w = &w;
        one.out = out;
        one.ldo = ld;
        one.kind = LF_OUT_F32;
        one.parts = 1;
        gemm_plain(c, &one);
        return;
    }
    sum_parts(c, g, lo, (lo + hi) / 2, out, ld);
    sum_parts(c, g, (lo + hi) / 2, hi, out + n, ld);
    lf_cuda_add(&c->dev, out, out + n, n);
}

static void gemm_parts(lf_cuda *c, const lf_gemm *g)
{
    int64_t ld = lf_round_up(g->w->rows, 8);
    int levels = lf_cuda_gemm_levels(g->parts);
    float *sum = (float *)lf_cuda_scratch(c, LF_SCRATCH_GEMM_PARTS, sizeof(float) * (size_t)(levels * g->m * ld));
    if (!sum)
        return;
    sum_parts(c, g, 0, g->parts, sum, ld);
    lf_cuda_copy_rows(&c->dev, g->out, sizeof(float) * (size_t)g->ldo, sum, sizeof(float) * (size_t)ld,
                      sizeof(float) * (size_t)g->w->rows, g->m);
}

static int choose(lf_cuda *c, const lf_gemm *g)
{
    const lf_weight *w = g->w;
    int inside = w->row0 % 128 != 0 || w->col0 % 128 != 0;

    return lf_cuda_choose(c, LF_CHOICE_GEMM, lf_cuda_gemm_fits(&c->dev, g),
                          "%s weight of [%lld, %lld]%s, %s%s, %s input%s", lf_dtype_name(w->dtype),
                          (long long)w->rows, (long long)w->cols, inside ? " from inside a block" : "",
                          g->parts > 1 ? "in parts, " : "", c->dev.numerics == LF_RELEASED ? "released" : "exact",
                          lf_cuda_act_name(c), g->plain ? " as it is" : "");
}

void lf_cuda_gemm(lf_dev *d, const lf_gemm *g)
{
    lf_cuda *c = lf_cuda_of(d);

    if (g->m == 0 || g->w->rows == 0)
        return;
    switch (choose(c, g)) {
    case LF_GEMM_FP8:
        gemm_fp8(c, g);
        break;
    case LF_GEMM_PARTS:
        gemm_parts(c, g);
        break;
    case LF_GEMM_PLAIN:
        gemm_plain(c, g);
    }
}

/* ---- small ones ---- */

static __global__ void multiply_by(float *x, int64_t n, float s)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        x[i] *= s;
}

void lf_cuda_scale(lf_dev *d, float *x, int64_t n, float s)
{
    lf_cuda *c = lf_cuda_of(d);

    if (n == 0)
        return;
    multiply_by<<<lf_blocks(n, 256), 256, 0, c->stream>>>(x, n, s);
    LF_LAUNCHED(c, "scale");
}

void lf_cuda_add(lf_dev *d, float *x, const float *y, int64_t n)
{
    lf_cuda *c = lf_cuda_of(d);

    if (n == 0)
        return;
    add<<<lf_blocks(n, 256), 256, 0, c->stream>>>(x, y, n);
    LF_LAUNCHED(c, "add");
}

void lf_cuda_round(lf_dev *d, lf_act *y, const float *x, int64_t n)
{
    lf_cuda *c = lf_cuda_of(d);

    if (n == 0)
        return;
    LF_ACT(c, convert_rows(c, lf_ptr<T>(y), n, x, n, 1, n, n));
}
