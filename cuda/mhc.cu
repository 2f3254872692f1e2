/* SPDX-License-Identifier: Apache-2.0
 *
 * Manifold-constrained hyper-connections.   Source: model.md, "mHC"; what they give: src/cpu/mhc.c.
 *
 * The mixing logits are a product with 24 outputs (n = 4), too narrow for a library: its columns are cut in
 * pieces of one fixed length, each summed by a warp in lane order, and a second kernel adds the pieces in
 * their order, mixes and norms.  The cut depends on the weight alone.  The second kernel finds the streams in
 * the L2 cache when tiles are small.
 */
#include "row.cuh"

enum {
    PIECE = LF_CUDA_HC_PIECE,
    TOKENS = 8,                            /* of a warp */
    OUTS = 6,                              /* outputs of a warp */
    GROUPS = 2,                            /* of tokens in a block */
    MOST_WARPS = 4,                        /* along the outputs in a block */
    FINISH = 256
};

template <typename T, typename W> struct product_args {
    const T *x;
    const W *fn;
    float *part;                           /* [pieces, m, outs + 1]: the last one is the sum of squares */
    int64_t m, k, ld;
    int outs;
};

/* acc[t][o] += x[t] fn[o] over this lane's columns; squares of the tokens whose turn it is (t mod warps = warp). */
template <typename T, typename W, int V>
static __device__ __forceinline__ void multiply(float (&acc)[TOKENS][OUTS], float (&square)[TOKENS],
                                                const product_args<T, W> &a, int64_t t0, int o0, int warp, int warps)
{
    int64_t end = min(a.k, (int64_t)(blockIdx.y + 1) * PIECE);
    const T *row[TOKENS];
    const W *fn[OUTS];

#pragma unroll
    for (int t = 0; t < TOKENS; t++)
        row[t] = a.x + min(t0 + t, a.m - 1) * a.k;
#pragma unroll
    for (int o = 0; o < OUTS; o++)
        fn[o] = a.fn + min(o0 + o, a.outs - 1) * a.ld;
    for (int64_t k = (int64_t)blockIdx.y * PIECE + (threadIdx.x & 31) * V; k < end; k += 32 * V) {
        float x[TOKENS][V], w[V];
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
            lf_loadv<T, V>(x[t], row[t] + k);
#pragma unroll
        for (int o = 0; o < OUTS; o++) {
            lf_loadv<W, V>(w, fn[o] + k);
#pragma unroll
            for (int t = 0; t < TOKENS; t++)
#pragma unroll
                for (int i = 0; i < V; i++)
                    acc[t][o] += x[t][i] * w[i];
        }
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
            if (t % warps == warp)
#pragma unroll
                for (int i = 0; i < V; i++)
                    square[t] += x[t][i] * x[t][i];
    }
}

/* Block: GROUPS groups of TOKENS tokens, times warps along the outputs.  Grid: tokens, pieces, more outputs. */
template <typename T, typename W, int V>
static __global__ void __launch_bounds__(GROUPS * MOST_WARPS * 32) product_kernel(product_args<T, W> a)
{
    float acc[TOKENS][OUTS] = { { 0 } }, square[TOKENS] = { 0 };
    int warp = threadIdx.x / 32, warps = blockDim.x / 32 / GROUPS, group = warp / warps, o0;
    int64_t t0 = ((int64_t)blockIdx.x * GROUPS + group) * TOKENS;
    float *out = a.part + (int64_t)blockIdx.y * a.m * (a.outs + 1);

    warp %= warps;
    o0 = (blockIdx.z * warps + warp) * OUTS;
    if (t0 >= a.m)
        return;
    multiply<T, W, V>(acc, square, a, t0, o0, warp, warps);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        float s = lf_warp_sum(square[t]);
        int writes = (threadIdx.x & 31) == 0 && t0 + t < a.m;
        if (writes && t % warps == warp && blockIdx.z == 0)
            out[(t0 + t) * (a.outs + 1) + a.outs] = s;
#pragma unroll
        for (int o = 0; o < OUTS; o++) {
            s = lf_warp_sum(acc[t][o]);
            if (writes && o0 + o < a.outs)
                out[(t0 + t) * (a.outs + 1) + o0 + o] = s;
        }
    }
}

struct finish_args {
    const float *part, *scale, *base, *norm;
    float *mix;                            /* NULL: the head, which has no mix */
    int64_t m, hidden;
    int pieces, outs, n, iters;
    float rms_eps, hc_eps;
};

static __device__ __forceinline__ float sigmoid(float v)
{
    return 1 / (1 + expf(-v));
}

/* One warp.  Each entry of c [n, n], shared, over (sum of its row, or column, + eps). */
static __device__ void divide(float *c, int n, int by_row, float eps)
{
    float v[LF_MAX_HC * LF_MAX_HC / 32];
    int lane = threadIdx.x & 31;

#pragma unroll
    for (int u = 0; u < LF_MAX_HC * LF_MAX_HC / 32; u++) {
        int e = lane + 32 * u;
        float sum = 0;
        if (e < n * n) {
            for (int i = 0; i < n; i++)
                sum += by_row ? c[e / n * n + i] : c[i * n + e % n];
            v[u] = c[e] / (sum + eps);
        }
    }
    __syncwarp();
#pragma unroll
    for (int u = 0; u < LF_MAX_HC * LF_MAX_HC / 32; u++)
        if (lane + 32 * u < n * n)
            c[lane + 32 * u] = v[u];
    __syncwarp();
}

/* One warp: post and C of a token from its scaled logits [(2+n) n], shared; c: [n, n] of room, shared. */
static __device__ void mixture(const finish_args &a, float *mix, const float *logit, float *c)
{
    int n = a.n, lane = threadIdx.x & 31;

    for (int i = lane; i < n; i += 32)
        mix[i] = 2 * sigmoid(logit[n + i]);
    for (int e = lane; e < n * n; e += 32) {
        const float *row = logit + 2 * n + e / n * n;
        float top = row[0], sum = 0;
        for (int j = 1; j < n; j++)
            top = fmaxf(top, row[j]);
        for (int j = 0; j < n; j++)
            sum += expf(row[j] - top);
        c[e] = expf(row[e % n] - top) / sum + a.hc_eps;
    }
    __syncwarp();
    divide(c, n, 0, a.hc_eps);
    for (int it = 1; it < a.iters; it++) {
        divide(c, n, 1, a.hc_eps);
        divide(c, n, 0, a.hc_eps);
    }
    for (int e = lane; e < n * n; e += 32)
        mix[n + e] = c[e];
}

/* The logits of a token, scaled and shifted, to shared memory: pieces in their order. */
static __device__ void logits_of(const finish_args &a, float *logit, float *square)
{
    int64_t t = blockIdx.x, ld = a.outs + 1;

    if (threadIdx.x <= a.outs) {
        float sum = 0;
        for (int s = 0; s < a.pieces; s++)
            sum += a.part[(s * a.m + t) * ld + threadIdx.x];
        if (threadIdx.x == a.outs)
            *square = sum;
        else
            logit[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x < a.outs) {
        int i = threadIdx.x, kind = i < a.n ? 0 : i < 2 * a.n ? 1 : 2;
        float r = lf_rms_factor(*square, a.n * a.hidden, a.rms_eps);
        logit[i] = logit[i] * r * a.scale[kind] + a.base[i];
    }
    __syncthreads();
}

/* One block a token: y = rmsnorm(round(sum_i pre_i x_i)) * norm, and the mix. */
template <typename T, int V>
static __global__ void __launch_bounds__(FINISH) finish_kernel(T *y, const T *x, finish_args a)
{
    extern __shared__ float pooled[];      /* [hidden] */
    __shared__ float logit[(2 + LF_MAX_HC) * LF_MAX_HC], c[LF_MAX_HC * LF_MAX_HC], spare[33], square;
    float pre[LF_MAX_HC], sum = 0;
    const T *row = x + (int64_t)blockIdx.x * a.n * a.hidden;

    logits_of(a, logit, &square);
#pragma unroll
    for (int i = 0; i < LF_MAX_HC; i++)
        pre[i] = i < a.n ? sigmoid(logit[i]) + a.hc_eps : 0;
    for (int64_t j = (int64_t)threadIdx.x * V; j < a.hidden; j += FINISH * V) {
        float out[V] = { 0 }, v[V];
#pragma unroll
        for (int i = 0; i < LF_MAX_HC; i++)
            if (i < a.n) {
                lf_loadv<T, V>(v, row + i * a.hidden + j);
#pragma unroll
                for (int u = 0; u < V; u++)
                    out[u] += pre[i] * v[u];
            }
#pragma unroll
        for (int u = 0; u < V; u++) {
            pooled[j + u] = out[u] = lf_rounded<T>(out[u]);
            sum += out[u] * out[u];
        }
    }
    float r = lf_rms_factor(lf_block_sum(sum, spare), a.hidden, a.rms_eps);
    for (int64_t j = (int64_t)threadIdx.x * V; j < a.hidden; j += FINISH * V) {
        float out[V];
#pragma unroll
        for (int u = 0; u < V; u++)
            out[u] = pooled[j + u] * r * a.norm[j + u];
        lf_storev<T, V>(y + blockIdx.x * a.hidden + j, out);
    }
    if (a.mix && threadIdx.x < 32)
        mixture(a, a.mix + blockIdx.x * (int64_t)(a.n + a.n * a.n), logit, c);
}

/* N > 0: that many streams; 0: a.n of them. */
template <typename T, int V, int N>
static __global__ void post_kernel(T *x, const T *z, const float *mix, int64_t hidden, int streams)
{
    constexpr int MOST = N ? N : LF_MAX_HC;
    __shared__ float w[LF_MAX_HC + LF_MAX_HC * LF_MAX_HC];
    int n = N ? N : streams;
    T *row = x + (int64_t)blockIdx.x * n * hidden;

    for (int i = threadIdx.x; i < n + n * n; i += blockDim.x)
        w[i] = mix[blockIdx.x * (int64_t)(n + n * n) + i];
    __syncthreads();
    for (int64_t k = (int64_t)threadIdx.x * V; k < hidden; k += (int64_t)blockDim.x * V) {
        float old[MOST][V], zt[V];
        lf_loadv<T, V>(zt, z + blockIdx.x * hidden + k);
#pragma unroll
        for (int i = 0; i < MOST; i++)
            if (i < n)
                lf_loadv<T, V>(old[i], row + i * hidden + k);
#pragma unroll
        for (int j = 0; j < MOST; j++)
            if (j < n) {
                float out[V];
#pragma unroll
                for (int u = 0; u < V; u++) {
                    float sum = 0;
#pragma unroll
                    for (int i = 0; i < MOST; i++)
                        if (i < n)
                            sum += w[n + i * n + j] * old[i][u];
                    out[u] = w[j] * zt[u] + sum;
                }
                lf_storev<T, V>(row + j * hidden + k, out);
            }
    }
}

/* ---- the operations ---- */

template <typename T, typename W>
static void product(lf_cuda *c, const lf_act *x, int64_t m, const lf_weight *fn, float *part, int pieces)
{
    product_args<T, W> a = { lf_ptr<T>(x), (const W *)(const void *)fn->data + fn->row0 * fn->all_cols + fn->col0, part,
                             m, fn->cols, fn->all_cols, (int)fn->rows };
    int sixes = (int)lf_ceil_div(fn->rows, OUTS), warps = (int)lf_min(sixes, MOST_WARPS), threads = GROUPS * warps * 32;
    dim3 grid(lf_blocks(m, GROUPS * TOKENS), (unsigned)pieces, (unsigned)lf_ceil_div(sixes, warps));

    if ((fn->cols | fn->all_cols | fn->col0) % 4 == 0)
        product_kernel<T, W, 4><<<grid, threads, 0, c->stream>>>(a);
    else
        product_kernel<T, W, 1><<<grid, threads, 0, c->stream>>>(a);
    LF_LAUNCHED(c, "hc product");
}

template <typename T> static void finish(lf_cuda *c, lf_act *y, const lf_act *x, const finish_args *a)
{
    size_t shared = sizeof(float) * (size_t)a->hidden;
    auto kernel = a->hidden % 8 == 0 ? finish_kernel<T, 8> : finish_kernel<T, 1>;

    if (shared > 40960 && LF_CUDA(c, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                          (int)shared), "hc: shared memory for a row"))
        return;
    kernel<<<(unsigned)a->m, FINISH, shared, c->stream>>>(lf_ptr<T>(y), lf_ptr<T>(x), *a);
    LF_LAUNCHED(c, "hc finish");
}

static void streams_to_row(lf_cuda *c, lf_act *y, float *mix, const lf_act *x, int64_t m, const lf_hc *hc,
                           const float *norm)
{
    const lf_model *model = c->dev.model;
    int pieces = (int)lf_ceil_div(hc->fn.cols, PIECE), outs = (int)hc->fn.rows;

    if (m == 0)
        return;
    if (outs > (2 + LF_MAX_HC) * LF_MAX_HC || (hc->fn.dtype != LF_F32 && hc->fn.dtype != LF_BF16)) {
        lf_cuda_fail(c, "hc: a mixing weight of type %s with %d rows", lf_dtype_name(hc->fn.dtype), outs);
        return;
    }
    float *part = (float *)lf_cuda_scratch(c, LF_SCRATCH_A, lf_cuda_hc_scratch(m, hc->fn.cols, outs));
    if (!part)
        return;
    finish_args a = { part, hc->scale, hc->base, norm, mix, m, model->hidden, pieces, outs, model->hc, model->hc_iters,
                      model->rms_eps, model->hc_eps };
    LF_ACT(c, {
        if (hc->fn.dtype == LF_F32)
            product<T, float>(c, x, m, &hc->fn, part, pieces);
        else
            product<T, __nv_bfloat16>(c, x, m, &hc->fn, part, pieces);
        finish<T>(c, y, x, &a);
    });
}

void lf_cuda_hc_pre(lf_dev *d, lf_act *y, float *mix, const lf_act *x, int64_t m, const lf_hc *hc, const float *norm)
{
    streams_to_row(lf_cuda_of(d), y, mix, x, m, hc, norm);
}

void lf_cuda_hc_head(lf_dev *d, lf_act *y, const lf_act *x, int64_t m, const lf_hc *hc, const float *norm)
{
    streams_to_row(lf_cuda_of(d), y, NULL, x, m, hc, norm);
}

template <typename T> static void post(lf_cuda *c, T *x, const T *z, const float *mix, int64_t m)
{
    int64_t hidden = c->dev.model->hidden;
    int n = c->dev.model->hc, fast = n == 4 && hidden % 8 == 0;
    int threads = (int)lf_min(256, lf_round_up(lf_ceil_div(hidden, fast ? 8 : 1), 32));

    if (fast)
        post_kernel<T, 8, 4><<<(unsigned)m, threads, 0, c->stream>>>(x, z, mix, hidden, n);
    else
        post_kernel<T, 1, 0><<<(unsigned)m, threads, 0, c->stream>>>(x, z, mix, hidden, n);
    LF_LAUNCHED(c, "hc_post");
}

void lf_cuda_hc_post(lf_dev *d, lf_act *x, const lf_act *z, const float *mix, int64_t m)
{
    lf_cuda *c = lf_cuda_of(d);

    if (m == 0)
        return;
    LF_ACT(c, { post<T>(c, lf_ptr<T>(x), lf_ptr<T>(z), mix, m); });
}
