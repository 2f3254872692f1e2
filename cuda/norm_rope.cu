/* SPDX-License-Identifier: Apache-2.0
 *
 * RMS norms and rotary positions.   Source: model.md, "Attention" and "RoPE bases"; what they give:
 * src/cpu/norm_rope.c.
 *
 * Every row is read once from device memory (the second look finds it in a cache or in shared memory), and
 * the angles of a position are computed once for all its heads.
 */
#include "row.cuh"

enum { THREADS = 128 };

/* cos, sin of the row's position, by all threads of the block: [2 pairs], shared. */
static __device__ void angles_of(float *cs, const float *freq, int pairs, int64_t pos)
{
    for (int i = threadIdx.x; i < pairs; i += blockDim.x)
        lf_angle(&cs[2 * i], &cs[2 * i + 1], pos, freq[i]);
}

/* The V values from channel j on, rotated as far as they are among the last rd; V and the boundary are even. */
template <typename T, int V>
static __device__ __forceinline__ void turn(float (&x)[V], int64_t j, int64_t plain, const float *cs, int inverse)
{
    if (j < plain)
        return;
#pragma unroll
    for (int i = 0; i < V; i += 2) {
        int at = (int)(j - plain) + i;
        lf_turn(&x[i], &x[i + 1], cs[at], inverse ? -cs[at + 1] : cs[at + 1]);
        x[i] = lf_rounded<T>(x[i]);
        x[i + 1] = lf_rounded<T>(x[i + 1]);
    }
}

template <typename T, int V>
static __device__ __forceinline__ float squares(const T *x, int64_t n, int first, int step)
{
    float sum = 0, v[V];

    for (int64_t j = (int64_t)first * V; j < n; j += (int64_t)step * V) {
        lf_loadv<T, V>(v, x + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            sum += v[i] * v[i];
    }
    return sum;
}

template <typename T, int V>
static __global__ void norm_kernel(T *x, int64_t n, const float *norm, float eps)
{
    __shared__ float spare[33];
    T *row = x + blockIdx.x * n;
    float sum = lf_block_sum(squares<T, V>(row, n, threadIdx.x, blockDim.x), spare), v[V];
    float r = lf_rms_factor(sum, n, eps);

    for (int64_t j = (int64_t)threadIdx.x * V; j < n; j += (int64_t)blockDim.x * V) {
        lf_loadv<T, V>(v, row + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            v[i] = v[i] * r * norm[j + i];
        lf_storev<T, V>(row + j, v);
    }
}

/* One block a token, one warp a head. */
template <typename T, int V>
static __global__ void query_kernel(T *q, int heads, int width, const int64_t *pos, const float *freq, int rd,
                                    float eps)
{
    extern __shared__ float cs[];
    int warps = blockDim.x / 32, lane = threadIdx.x & 31;

    angles_of(cs, freq, rd / 2, pos[blockIdx.x]);
    __syncthreads();
    for (int h = threadIdx.x / 32; h < heads; h += warps) {
        T *row = q + ((int64_t)blockIdx.x * heads + h) * width;
        float r = lf_rms_factor(lf_warp_sum(squares<T, V>(row, width, lane, 32)), width, eps), v[V];
        for (int j = lane * V; j < width; j += 32 * V) {
            lf_loadv<T, V>(v, row + j);
#pragma unroll
            for (int i = 0; i < V; i++)
                v[i] = lf_rounded<T>(v[i] * r);
            turn<T, V>(v, j, width - rd, cs, 0);
            lf_storev<T, V>(row + j, v);
        }
    }
}

template <typename T, int V>
static __global__ void rotate_kernel(T *x, int heads, int64_t width, const int64_t *pos, const float *freq, int rd,
                                     int inverse)
{
    extern __shared__ float cs[];
    int pieces = rd / V;

    angles_of(cs, freq, rd / 2, pos[blockIdx.x]);
    __syncthreads();
    for (int64_t u = threadIdx.x; u < (int64_t)heads * pieces; u += blockDim.x) {
        int64_t h = u / pieces, j = width - rd + u % pieces * V;
        T *p = x + (blockIdx.x * (int64_t)heads + h) * width + j;
        float v[V];
        lf_loadv<T, V>(v, p);
        turn<T, V>(v, j, width - rd, cs, inverse);
        lf_storev<T, V>(p, v);
    }
}

struct window_args {
    const int64_t *dst_row, *pos;              /* NULL: row i, position (pos0 + i) * step */
    int64_t pos0, step, width;
    const float *norm, *freq;
    int rd, group;                             /* group > 0: e4m3 and back, of so many channels at a time */
    float eps;
};

/* row [width], shared: the first `plain` channels through e4m3, a warp a group. */
static __device__ void quantise_groups(float *row, int64_t plain, int group)
{
    int lane = threadIdx.x & 31;

    for (int64_t g = threadIdx.x / 32 * (int64_t)group; g < plain; g += blockDim.x / 32 * (int64_t)group) {
        float amax = 0;
        for (int j = lane; j < group; j += 32)
            amax = fmaxf(amax, fabsf(row[g + j]));
        float scale = lf_e8m0(lf_scale_byte_e4m3(lf_warp_max(amax)));
        for (int j = lane; j < group; j += 32)
            row[g + j] = lf_e4m3(lf_to_e4m3(row[g + j] / scale)) * scale;
    }
}

/* dst row = quantise(rotate(rmsnorm(x) * norm)), one block a row; dst may be x. */
template <typename T> static __global__ void window_kernel(T *dst, const T *x, window_args a)
{
    extern __shared__ float row[];             /* [width], then cos and sin */
    __shared__ float spare[33];
    float *cs = row + a.width, sum = 0;
    const T *src = x + blockIdx.x * a.width;
    T *out = dst + (a.dst_row ? a.dst_row[blockIdx.x] : blockIdx.x) * a.width;
    int64_t plain = a.width - a.rd;

    angles_of(cs, a.freq, a.rd / 2, a.pos ? a.pos[blockIdx.x] : (a.pos0 + blockIdx.x) * a.step);
    for (int64_t j = threadIdx.x; j < a.width; j += blockDim.x) {
        row[j] = lf_load(&src[j]);
        sum += row[j] * row[j];
    }
    float r = lf_rms_factor(lf_block_sum(sum, spare), a.width, a.eps);
    for (int64_t j = threadIdx.x; j < a.width; j += blockDim.x)
        row[j] = lf_rounded<T>(row[j] * r * a.norm[j]);
    __syncthreads();
    for (int i = 2 * threadIdx.x; i < a.rd; i += 2 * blockDim.x)
        lf_turn(&row[plain + i], &row[plain + i + 1], cs[i], cs[i + 1]);
    if (a.group)
        quantise_groups(row, plain, a.group);
    __syncthreads();
    for (int64_t j = threadIdx.x; j < a.width; j += blockDim.x)
        lf_store(&out[j], row[j]);
}

/* One warp a head, 32 E channels: Hadamard, then e2m1 in groups of 32 and back. */
template <typename T, int E> static __global__ void index_query_kernel(T *q, int64_t rows, int width)
{
    int64_t row = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
    int at = (threadIdx.x & 31) * E, mine = at < width;
    float x[E] = { 0 };

    if (row >= rows)
        return;
    q += row * width + at;
    if (mine)
        lf_loadv<T, E>(x, q);
    lf_hadamard<E>(x, width);
    float scale = lf_e8m0(lf_scale_byte_e2m1(lf_amax32<E>(x)));
#pragma unroll
    for (int i = 0; i < E; i++)
        x[i] = lf_e2m1(lf_to_e2m1(x[i] / scale)) * scale;
    if (mine)
        lf_storev<T, E>(q, x);
}

/* ---- the operations ---- */

/* Vectors of eight where rows and the boundary of the rotated part allow it, else pairs, else single values. */
#define BY_WIDTH(all, ...)                                                                                    \
    do {                                                                                                      \
        if ((all) % 8 == 0) {                                                                                 \
            enum { V = 8 };                                                                                   \
            __VA_ARGS__;                                                                                      \
        } else {                                                                                              \
            enum { V = 2 };                                                                                   \
            __VA_ARGS__;                                                                                      \
        }                                                                                                     \
    } while (0)

/* Rows of odd width would not be aligned to pairs. */
static int even(lf_cuda *c, int64_t width, const char *what)
{
    if (width % 2)
        lf_cuda_fail(c, "%s: rows of %lld channels; the GPU kernels need an even number: use --device cpu", what,
                     (long long)width);
    return width % 2 == 0;
}

void lf_cuda_norm(lf_dev *d, lf_act *x, int64_t m, int64_t n, const float *norm)
{
    lf_cuda *c = lf_cuda_of(d);

    if (m == 0 || !even(c, n, "norm"))
        return;
    BY_WIDTH(n, LF_ACT(c, {
        norm_kernel<T, V><<<(unsigned)m, THREADS, 0, c->stream>>>(lf_ptr<T>(x), n, norm, d->model->rms_eps);
    }));
    LF_LAUNCHED(c, "norm");
}

void lf_cuda_query(lf_dev *d, lf_act *q, int64_t m, int heads, const int64_t *pos, const lf_rope *rope)
{
    lf_cuda *c = lf_cuda_of(d);
    int width = d->model->head_dim, rd = rope->rope_dim;

    if (m == 0 || heads == 0 || !even(c, width, "query"))
        return;
    BY_WIDTH(width | rd, LF_ACT(c, {
        query_kernel<T, V><<<(unsigned)m, 256, sizeof(float) * (size_t)rd, c->stream>>>(
            lf_ptr<T>(q), heads, width, pos, rope->inv_freq, rd, d->model->rms_eps);
    }));
    LF_LAUNCHED(c, "query");
}

void lf_cuda_rotate(lf_dev *d, lf_act *x, int64_t m, int heads, int64_t width, const int64_t *pos, const lf_rope *rope,
                    int inverse)
{
    lf_cuda *c = lf_cuda_of(d);
    int rd = rope->rope_dim;

    if (m == 0 || heads == 0 || !even(c, width, "rotate"))
        return;
    BY_WIDTH(width | rd, LF_ACT(c, {
        rotate_kernel<T, V><<<(unsigned)m, THREADS, sizeof(float) * (size_t)rd, c->stream>>>(
            lf_ptr<T>(x), heads, width, pos, rope->inv_freq, rd, inverse);
    }));
    LF_LAUNCHED(c, "rotate");
}

static void norm_rotate(lf_cuda *c, lf_act *dst, const lf_act *x, int64_t m, const window_args *a)
{
    size_t shared = sizeof(float) * (size_t)(a->width + a->rd);

    if (m == 0 || !even(c, a->width, "window"))
        return;
    if (shared > 40960) {
        lf_cuda_fail(c, "window: rows of %lld channels do not fit in shared memory", (long long)a->width);
        return;
    }
    LF_ACT(c, {
        window_kernel<T><<<(unsigned)m, THREADS, shared, c->stream>>>(lf_ptr<T>(dst), lf_ptr<T>(x), *a);
    });
}

void lf_cuda_window(lf_dev *d, lf_act *dst, const int64_t *dst_row, const lf_act *x, int64_t m, const float *norm,
                    const int64_t *pos, const lf_rope *rope)
{
    lf_cuda *c = lf_cuda_of(d);
    window_args a = { dst_row, pos, 0, 0, d->model->head_dim, norm, rope->inv_freq, rope->rope_dim, 0,
                      d->model->rms_eps };

    if (d->numerics == LF_RELEASED)
        a.group = (int)(a.width - d->model->rope_dim) / lf_fp8_groups(d->model);
    norm_rotate(c, dst, x, m, &a);
    LF_LAUNCHED(c, "window");
}

void lf_cuda_entry_finish(lf_cuda *c, lf_act *x, int64_t m, int64_t width, const float *norm, const lf_rope *rope,
                          int64_t block0, int ratio)
{
    window_args a = { NULL, NULL, block0, ratio, width, norm, rope->inv_freq, rope->rope_dim, 0,
                      c->dev.model->rms_eps };

    norm_rotate(c, x, x, m, &a);
    LF_LAUNCHED(c, "compress, finish");
}

void lf_cuda_index_query(lf_dev *d, lf_act *q, int64_t m, int heads, int64_t width, const int64_t *pos,
                         const lf_rope *rope)
{
    lf_cuda *c = lf_cuda_of(d);
    int64_t rows = m * heads;
    unsigned blocks = lf_blocks(rows, THREADS / 32);

    lf_cuda_rotate(d, q, m, heads, width, pos, rope, 0);
    if (d->numerics != LF_RELEASED || rows == 0)
        return;
    LF_BY_WIDTH32(c, width, "index_query", LF_ACT(c, {
        index_query_kernel<T, E><<<blocks, THREADS, 0, c->stream>>>(lf_ptr<T>(q), rows, (int)width);
    }));
    LF_LAUNCHED(c, "index_query");
}
