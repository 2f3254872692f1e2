/* SPDX-License-Identifier: Apache-2.0
 *
 * The compressors: gated pooling of token blocks into cache entries.   Source: model.md, "Compressor"; what
 * they give: src/cpu/compress.c.
 *
 * Gates and values are read once: a block of eight warps holds all the rows that 32 channels of one entry
 * pool, agrees on the largest gate, and adds the warps' sums in warp order.
 */
#include "row.cuh"

enum { WARPS = 8 };

static __global__ void add_ape_kernel(float *g, int64_t count, int64_t n, const float *ape, int ratio)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;

    if (i < count)
        g[i] += ape[i / n % ratio * n + i % n];
}

void lf_cuda_add_ape(lf_dev *d, float *g, int64_t m, int64_t n, const float *ape, int ratio)
{
    lf_cuda *c = lf_cuda_of(d);

    if (m == 0 || n == 0)
        return;
    add_ape_kernel<<<lf_blocks(m * n, 256), 256, 0, c->stream>>>(g, m * n, n, ape, ratio);
    LF_LAUNCHED(c, "add_ape");
}

struct pool_args {
    const float *u, *g, *prev_u, *prev_g;
    int64_t width, ld, prev_ld;
};

/* Row r of the rows that entry b pools, from `channel` on: its place in u and g; NULL where there is none. */
template <int ROWS>
static __device__ __forceinline__ const float *row_of(const pool_args &a, int64_t b, int r, const float *own,
                                                      const float *prev, int64_t channel)
{
    if (ROWS > 8)
        return own + (b * ROWS + r) * a.ld + channel;
    if (r >= 4)                                                /* ratio 4: the last channels of the own block */
        return own + (b * 4 + r - 4) * a.ld + a.width + channel;
    if (b > 0)                                                 /* the first channels of the block before */
        return own + ((b - 1) * 4 + r) * a.ld + channel;
    return prev ? prev + r * a.prev_ld + channel : NULL;
}

/* Grid: entries, channels / 32.  Warp w pools rows w ROWS/8 .. of the 32 channels, a lane each. */
template <typename T, int ROWS> static __global__ void __launch_bounds__(WARPS * 32) pool_kernel(T *out, pool_args a)
{
    constexpr int MINE = ROWS / WARPS;
    __shared__ float spare[3][WARPS][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    int64_t channel = blockIdx.y * 32 + lane;
    float u[MINE], g[MINE], top = -INFINITY, sum = 0, value = 0;

#pragma unroll
    for (int i = 0; i < MINE; i++) {
        u[i] = 0;
        g[i] = -INFINITY;
        if (channel < a.width) {
            const float *pu = row_of<ROWS>(a, blockIdx.x, warp * MINE + i, a.u, a.prev_u, channel);
            const float *pg = row_of<ROWS>(a, blockIdx.x, warp * MINE + i, a.g, a.prev_g, channel);
            u[i] = pu ? *pu : 0;
            g[i] = pg ? *pg : -INFINITY;
        }
        top = fmaxf(top, g[i]);
    }
    spare[0][warp][lane] = top;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        top = fmaxf(top, spare[0][w][lane]);
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        float e = expf(g[i] - top);
        sum += e;
        value += e * u[i];
    }
    spare[1][warp][lane] = sum;
    spare[2][warp][lane] = value;
    __syncthreads();
    if (warp != 0 || channel >= a.width)
        return;
    for (int w = 1; w < WARPS; w++) {
        sum += spare[1][w][lane];
        value += spare[2][w][lane];
    }
    lf_store(&out[blockIdx.x * a.width + channel], value / sum);
}

void lf_cuda_compress(lf_dev *d, const lf_compress *k)
{
    lf_cuda *c = lf_cuda_of(d);
    pool_args a = { k->u, k->g, k->prev_u, k->prev_g, k->width, k->ratio == 4 ? 2 * k->width : k->width, k->prev_ld };
    dim3 grid((unsigned)k->blocks, lf_blocks(k->width, 32));

    if (k->blocks == 0)
        return;
    if (k->ratio != 4 && k->ratio != 128) {
        lf_cuda_fail(c, "compress: ratio %d; the GPU kernels know 4 and 128", k->ratio);
        return;
    }
    LF_ACT(c, {
        if (k->ratio == 4)
            pool_kernel<T, 8><<<grid, WARPS * 32, 0, c->stream>>>(lf_ptr<T>(k->out), a);
        else
            pool_kernel<T, 128><<<grid, WARPS * 32, 0, c->stream>>>(lf_ptr<T>(k->out), a);
    });
    if (LF_LAUNCHED(c, "compress, pool") == 0)
        lf_cuda_entry_finish(c, k->out, k->blocks, k->width, k->norm, &k->rope, k->block0, k->ratio);
}
