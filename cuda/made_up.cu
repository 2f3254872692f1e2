/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights without a checkpoint: the values of synth.h, made and quantised where they are used.
 */
#include "cuda.cuh"

extern "C" {
#include "synth.h"
}

namespace {

const uint64_t STEP = 0x9e3779b97f4a7c15u; /* of the counter, from one value to the next */

struct made {
    uint64_t key;                          /* of the first value here */
    float mean, gain;
    int64_t rows, cols, step;              /* values from one row to the next: the tensor's columns */
};

__device__ float value(const made &m, int64_t row, int64_t col)
{
    uint64_t z = m.key + (uint64_t)(row * m.step + col) * STEP;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    int sum = (int)(z & 0xffff) + (int)(z >> 16 & 0xffff) + (int)(z >> 32 & 0xffff) + (int)(z >> 48);
    return __fadd_rn(m.mean, __fmul_rn(m.gain, __fmul_rn((float)(sum - 131070), 1 / 37837.228f)));
}

template <typename T> __global__ void make_plain(T *out, made m)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < m.rows * m.cols)
        lf_store(out + i, value(m, i / m.cols, i % m.cols));
}

/* A group of 32 a thread. */
__global__ void make_fp4(uint8_t *out, uint8_t *scale, made m)
{
    int64_t g = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = g * 32 / m.cols, col = g * 32 % m.cols;
    float v[32], amax = 0;

    if (g >= m.rows * m.cols / 32)
        return;
    for (int j = 0; j < 32; j++) {
        v[j] = value(m, row, col + j);
        amax = fmaxf(amax, fabsf(v[j]));
    }
    uint8_t s = lf_scale_byte_e2m1(amax);
    float inverse = lf_e8m0_inverse(s);
    scale[g] = s;
    for (int j = 0; j < 32; j += 2)
        out[g * 16 + j / 2] = (uint8_t)(lf_to_e2m1(v[j] * inverse) | lf_to_e2m1(v[j + 1] * inverse) << 4);
}

/* A block of 128 x 128 a thread block. */
__global__ void __launch_bounds__(1024) make_fp8(uint8_t *out, uint8_t *scale, made m)
{
    __shared__ float spare[33];
    int64_t wide = (m.cols + 127) / 128;
    int64_t r0 = blockIdx.x / wide * 128, c = blockIdx.x % wide * 128 + (threadIdx.x & 127);
    float v[16], amax = 0;

    for (int k = 0; k < 16; k++) {
        int64_t r = r0 + (threadIdx.x >> 7) + 8 * k;
        v[k] = r < m.rows && c < m.cols ? value(m, r, c) : 0;
        amax = fmaxf(amax, fabsf(v[k]));
    }
    uint8_t s = lf_scale_byte_e4m3(lf_block_max(amax, spare));
    float inverse = lf_e8m0_inverse(s);
    for (int k = 0; k < 16; k++) {
        int64_t r = r0 + (threadIdx.x >> 7) + 8 * k;
        if (r < m.rows && c < m.cols)
            out[r * m.cols + c] = lf_to_e4m3(v[k] * inverse);
    }
    if (threadIdx.x == 0)
        scale[blockIdx.x] = s;
}

} // namespace

int lf_cuda_made_up(lf_dev *d, lf_weight *w, const lf_inventory_item *item, lf_storage store, const int64_t at[2],
                    uint64_t seed, lf_err *err)
{
    lf_cuda *c = lf_cuda_of(d);
    lf_synth_law law = lf_synth_law_of(item, seed);
    lf_inventory_item part = *item;
    int64_t shape[2], scales[2], n = w->all_rows * w->all_cols;
    made m = { law.key + (uint64_t)(at[0] * item->cols + at[1]) * STEP, law.mean, law.gain, w->all_rows, w->all_cols,
               item->cols };

    part.rows = w->all_rows;
    part.cols = w->all_cols;
    lf_inventory_stored(&part, store, &w->dtype, shape, scales);
    if (lf_cuda_weight_place(c, w, (size_t)(shape[0] * shape[1]) * lf_dtype_bytes(w->dtype),
                             (size_t)(scales[0] * scales[1]), err))
        return -1;
    uint8_t *data = (uint8_t *)(uintptr_t)w->data, *scale = (uint8_t *)(uintptr_t)w->scale;
    if (store == LF_STORE_FP4)
        make_fp4<<<lf_blocks(n / 32, 128), 128, 0, c->stream>>>(data, scale, m);
    else if (store == LF_STORE_FP8)
        make_fp8<<<(unsigned)(scales[0] * scales[1]), 1024, 0, c->stream>>>(data, scale, m);
    else if (store == LF_STORE_BF16)
        make_plain<<<lf_blocks(n, 256), 256, 0, c->stream>>>((__nv_bfloat16 *)data, m);
    else
        make_plain<<<lf_blocks(n, 256), 256, 0, c->stream>>>((float *)data, m);
    LF_LAUNCHED(c, "made_up");
    return lf_cuda_weight_finish(c, w, err);
}
