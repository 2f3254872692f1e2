/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed e2m1 with a scale per 1x32 as e4m3 with a scale per 128x128, without loss: e2m1 * 2^k is an e4m3 number for k
 * from -8 to 6, so a block folds when the exponents of its groups lie within 14 of each other.  Groups of zeros fit
 * anywhere.   Source: model.md, "Released checkpoint format".
 */
#include "cuda.cuh"

#include <stdlib.h>

enum { FOLD_LOW = -8, FOLD_HIGH = 6 };

/* The e4m3 codes of the magnitudes 0 .. 6 times 2^k, byte i for e2m1 code i. */
static __device__ uint2 magnitudes(int k)
{
    float unit = __uint_as_float((uint32_t)(127 + k) << 23);
    uint32_t w[2] = { 0, 0 };

#pragma unroll
    for (int i = 0; i < 8; i++)
        w[i / 4] |= (uint32_t)lf_to_e4m3(lf_e2m1(i) * unit) << 8 * (i & 3);
    return make_uint2(w[0], w[1]);
}

/* Four e2m1 codes, lowest first, as four e4m3 bytes: a table look-up of the magnitudes, and the signs moved up. */
static __device__ uint32_t fold_4(uint32_t codes, uint2 table)
{
    uint32_t sign = (codes & 0x8) << 4 | (codes & 0x80) << 8 | (codes & 0x800) << 12 | (codes & 0x8000) << 16;

    return __byte_perm(table.x, table.y, codes & 0x7777) | sign;
}

static __device__ void fold_32(uint8_t *out, uint4 packed, uint2 table)
{
    uint32_t in[4] = { packed.x, packed.y, packed.z, packed.w }, w[8];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[2 * i] = fold_4(in[i] & 0xffff, table);
        w[2 * i + 1] = fold_4(in[i] >> 16, table);
    }
    *(uint4 *)out = make_uint4(w[0], w[1], w[2], w[3]);
    *(uint4 *)(out + 16) = make_uint4(w[4], w[5], w[6], w[7]);
}

typedef struct matrix {
    const uint8_t *data, *scale;           /* [rows, cols / 2], [rows, cols / 32] */
    int64_t rows, cols;
    uint8_t *out;                          /* the rest: as lf_cuda_folding has it */
    float *out_scale;
    int64_t scale_ld;
    int *misfit;
} matrix;

/* What one launch takes: within the 4 KiB of arguments that every driver takes. */
enum { TOGETHER = 60 };

typedef struct matrices {
    matrix m[TOGETHER];
} matrices;

static_assert(sizeof(matrices) <= 4096, "too many matrices for a kernel's arguments");

/* 256 threads per 128x128: two groups of 32 each. */
static __device__ void fold_block(const matrix &m, int64_t down, int64_t along)
{
    __shared__ int low, high;
    int64_t row0 = down * 128, group0 = along * 4, groups = m.cols / 32;
    uint4 packed[2];
    int exponent[2];

    if (threadIdx.x == 0)
        low = 256, high = -1;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int64_t row = row0 + ((int)threadIdx.x >> 2) + i * 64, group = group0 + ((int)threadIdx.x & 3);
        exponent[i] = -1;
        if (row >= m.rows || group >= groups)
            continue;
        packed[i] = *(const uint4 *)(m.data + (row * groups + group) * 16);
        exponent[i] = m.scale[row * groups + group];
        if ((packed[i].x | packed[i].y | packed[i].z | packed[i].w) & 0x77777777u) {
            atomicMin(&low, exponent[i]);
            atomicMax(&high, exponent[i]);
        }
    }
    __syncthreads();
    int scale = high < 0 ? 127 : max(high - FOLD_HIGH, 1);             /* high < 0: all zeros */
    int fits = high < 0 || (high != 255 && low - scale >= FOLD_LOW);
    if (threadIdx.x == 0 && !fits && m.misfit)
        *m.misfit = 1;
    if (!m.out)
        return;
    if (threadIdx.x == 0)
        m.out_scale[down * m.scale_ld + along] = fits ? lf_e8m0((uint8_t)scale) : lf_e8m0(255);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int64_t row = row0 + ((int)threadIdx.x >> 2) + i * 64, group = group0 + ((int)threadIdx.x & 3);
        if (exponent[i] >= 0) {
            int k = min(max(exponent[i] - scale, (int)FOLD_LOW), (int)FOLD_HIGH);
            fold_32(m.out + (row * groups + group) * 32, packed[i], magnitudes(k));
        }
    }
}

/* A row of the grid per matrix, as long as the one of most blocks needs. */
static __global__ void __launch_bounds__(256) fold(const __grid_constant__ matrices all)
{
    const matrix &m = all.m[blockIdx.y];
    int64_t wide = (m.cols + 127) / 128, down = blockIdx.x / wide;

    if (down * 128 < m.rows)
        fold_block(m, down, blockIdx.x % wide);
}

void lf_cuda_fold(lf_cuda *c, const lf_cuda_folding *f, int n)
{
    matrices all = {};

    for (int at = 0, some; at < n; at += some) {
        int64_t blocks = 0;
        some = (int)lf_min(n - at, TOGETHER);
        for (int i = 0; i < some; i++) {
            const lf_cuda_folding *x = &f[at + i];
            const lf_weight *w = x->w;
            all.m[i] = { w->data, w->scale, w->all_rows, w->all_cols, x->out, x->scale, x->scale_ld, x->misfit };
            blocks = lf_max(blocks, lf_ceil_div(w->all_rows, 128) * lf_ceil_div(w->all_cols, 128));
        }
        if (blocks)
            fold<<<dim3((unsigned)blocks, (unsigned)some), 256, 0, c->stream>>>(all);
        LF_LAUNCHED(c, "fold");
    }
}

/* ---- does it fold? ---- */

enum { LOOKS = 1 << 16 };

struct lf_cuda_looks {
    int *misfit;                           /* device [LOOKS]; NULL: nothing is looked at */
    lf_cuda_extra *of[LOOKS];
    int n;
};

void lf_cuda_fold_look(lf_cuda *c, const lf_weight *w)
{
    lf_cuda_looks *s = c->looks = c->looks ? c->looks : (lf_cuda_looks *)lf_alloc(sizeof *c->looks);
    size_t bytes = sizeof *s->misfit * LOOKS;
    lf_err err;

    if (s->n == LOOKS)
        lf_cuda_fold_settle(c);
    if (!s->misfit) {
        if (lf_cuda_take(&c->dev, (void **)&s->misfit, bytes, "flags of weights", &err)) {
            lf_cuda_fail(c, "%s", err.text);
            return;
        }
        lf_cuda_fill(&c->dev, s->misfit, 0, bytes);
    }
    lf_cuda_folding f = { w, NULL, NULL, 0, s->misfit + s->n };
    s->of[s->n++] = (lf_cuda_extra *)(uintptr_t)w->extra;
    lf_cuda_fold(c, &f, 1);
}

void lf_cuda_fold_settle(lf_cuda *c)
{
    lf_cuda_looks *s = c->looks;

    if (!s || !s->n)
        return;
    int *host = (int *)lf_alloc(sizeof *host * (size_t)s->n);
    lf_cuda_get(&c->dev, host, s->misfit, sizeof *host * (size_t)s->n);
    for (int i = 0; i < s->n; i++)
        s->of[i]->folds = !c->failed && !host[i];
    free(host);
    lf_cuda_give(&c->dev, s->misfit);
    s->misfit = NULL;
    s->n = 0;
}

/* What it has of the device is ordinary taken memory. */
void lf_cuda_looks_free(lf_cuda *c)
{
    free(c->looks);
    c->looks = NULL;
}
