/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of single queries over their window and compressed rows: the operation, and the kernel for any shape.
 * Source: model.md, "Attention".
 */
#include "attention.cuh"

enum { THREADS = 256, HEADS = 16, BLOCK = 32, MOST = 512, PER_THREAD = MOST / THREADS };
static_assert(MOST == 512, "dev_cuda_choice.c has another number");

/* Floats of a row in shared memory: whole 16-byte vectors, and one more so that rows begin in different banks. */
static __host__ __device__ int pitch_of(int width)
{
    return (width + 3) / 4 * 4 + 4;
}

static size_t shared_bytes(int width)
{
    return sizeof(float) * (size_t)((HEADS + BLOCK) * pitch_of(width) + HEADS * BLOCK + 4 * HEADS);
}

/* A row to shared memory as floats, by a warp; the rest up to the pitch becomes 0, and all of it where p is NULL. */
template <typename T> static __device__ void fetch(float *to, const T *p, int width)
{
    for (int c = (int)threadIdx.x & 31; c < pitch_of(width); c += 32)
        to[c] = p && c < width ? lf_load(p + c) : 0.0f;
}

static __device__ float dot(const float *x, const float *y, int width)
{
    float4 sum = make_float4(0, 0, 0, 0);

#pragma unroll 4
    for (int c = 0; c < width; c += 4) {
        float4 u = *(const float4 *)(x + c), v = *(const float4 *)(y + c);
        sum.x = fmaf(u.x, v.x, sum.x);
        sum.y = fmaf(u.y, v.y, sum.y);
        sum.z = fmaf(u.z, v.z, sum.z);
        sum.w = fmaf(u.w, v.w, sum.w);
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
}

/* Scores of a block, [HEADS][BLOCK], to weights relative to the running largest score; shrink[h] is what the sums so
 * far must be multiplied by.  One warp for each head in turn, one lane a row. */
static __device__ void weigh(float *weight, float *top, float *sum, float *shrink, int rows)
{
    int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;

    for (int h = warp; h < HEADS; h += THREADS / 32) {
        float s = lane < rows ? weight[h * BLOCK + lane] : -INFINITY;
        float old = top[h], now = fmaxf(old, lf_warp_max(s)), from = now == -INFINITY ? 0.0f : now;
        float w = expf(s - from), all = lf_warp_sum(w);
        __syncwarp();
        weight[h * BLOCK + lane] = w;
        if (lane == 0) {
            shrink[h] = expf(old - from);
            sum[h] = sum[h] * shrink[h] + all;
            top[h] = now;
        }
    }
}

/* out += weights times rows, for this thread's channels; the order of rows is fixed. */
static __device__ void gather(float (&out)[HEADS][PER_THREAD], const float *weight, const float *shrink,
                              const float *rows, int count, int width, int pitch)
{
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        int c = (int)threadIdx.x + j * THREADS;
        if (c >= width)
            return;
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            out[h][j] *= shrink[h];
        for (int r = 0; r < count; r++) {
            float v = rows[r * pitch + c];
#pragma unroll
            for (int h = 0; h < HEADS; h++)
                out[h][j] = fmaf(weight[h * BLOCK + r], v, out[h][j]);
        }
    }
}

template <typename T> static __device__ void finish(const lf_attend &p, int64_t i, int head0,
                                                    const float (&out)[HEADS][PER_THREAD], const float *top,
                                                    const float *sum)
{
    const lf_attn &a = p.a;

#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (head0 + h >= a.heads)
            return;
        float lse, factor = lf_seen_finish(top[h], sum[h], a.sink ? a.sink + head0 + h : NULL, &lse);
        int64_t row = i * a.heads + head0 + h;
        if (a.lse && threadIdx.x == 0)
            a.lse[row] = lse;
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) {
            int c = (int)threadIdx.x + j * THREADS;
            if (c < p.width)
                lf_store((T *)(void *)a.out + row * p.width + c, out[h][j] * factor);
        }
    }
}

/* A block of threads is one query and HEADS heads; the query is blockIdx.x / tiles. */
template <typename T> static __global__ void __launch_bounds__(THREADS) attend(const __grid_constant__ lf_attend p,
                                                                               int tiles)
{
    extern __shared__ float4 memory[];
    int warp = (int)threadIdx.x >> 5, pitch = pitch_of(p.width), head0 = (int)(blockIdx.x % tiles) * HEADS;
    int64_t i = blockIdx.x / tiles;
    float *q = (float *)memory, *rows = q + HEADS * pitch, *weight = rows + BLOCK * pitch;
    float *top = weight + HEADS * BLOCK, *sum = top + HEADS, *shrink = sum + HEADS;
    float out[HEADS][PER_THREAD] = {};
    lf_seen s = lf_seen_by(p, i);

    for (int h = warp; h < HEADS; h += THREADS / 32) {
        const T *head = (const T *)(const void *)p.a.q + (i * p.a.heads + head0 + h) * p.width;
        fetch(q + h * pitch, head0 + h < p.a.heads ? head : NULL, p.width);
    }
    if (threadIdx.x < HEADS) {
        top[threadIdx.x] = -INFINITY;
        sum[threadIdx.x] = 0;
    }
    for (int r0 = 0; r0 < s.n; r0 += BLOCK) {
        int count = min(BLOCK, s.n - r0);
        __syncthreads();
        for (int r = warp; r < BLOCK; r += THREADS / 32)
            fetch(rows + r * pitch, r < count ? lf_seen_row<T>(p, s, i, r0 + r) : NULL, p.width);
        __syncthreads();
        for (int k = (int)threadIdx.x; k < HEADS * BLOCK; k += THREADS) {
            int h = k % HEADS, r = k / HEADS;
            weight[h * BLOCK + r] = p.scale * dot(q + h * pitch, rows + r * pitch, p.width);
        }
        __syncthreads();
        weigh(weight, top, sum, shrink, count);
        __syncthreads();
        gather(out, weight, shrink, rows, count, p.width, pitch);
    }
    __syncthreads();
    finish<T>(p, i, head0, out, top, sum);
}

static void attend_any(lf_cuda *c, const lf_attend *p)
{
    int64_t tiles = lf_ceil_div(p->a.heads, HEADS), blocks = p->a.queries * tiles;
    size_t bytes = shared_bytes(p->width);

    if (blocks > INT32_MAX) {
        lf_cuda_fail(c, "attention: %lld queries of %d heads at once: the general kernel does up to %lld",
                     (long long)p->a.queries, p->a.heads, (long long)(INT32_MAX / tiles));
        return;
    }
    LF_ACT(c, {
        if (LF_CUDA(c, cudaFuncSetAttribute(attend<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                    "attention: shared memory"))
            return;
        attend<T><<<(unsigned)blocks, THREADS, bytes, c->stream>>>(*p, (int)tiles);
        LF_LAUNCHED(c, "attention");
    });
}

void lf_cuda_attention(lf_dev *d, const lf_attn *a)
{
    lf_cuda *c = lf_cuda_of(d);
    int width = d->model->head_dim;
    lf_attend p = { *a, width, d->model->window, (float)(1 / sqrt((double)width)) };

    if (a->queries <= 0 || a->heads <= 0)
        return;
    if (a->rows && (a->row_count < 0 || a->row_first < 0 || a->row_first + a->row_count > INT32_MAX ||
                    a->sel_ld > INT32_MAX || (!a->sel && a->ratio <= 0))) {
        lf_cuda_fail(c, "attention: entries %lld .. +%lld with ratio %d are out of range", (long long)a->row_first,
                     (long long)a->row_count, a->ratio);
        return;
    }
    unsigned fits = (width <= MOST) << LF_ATTENTION_GENERAL | (d->act_bytes == 2 && width == 512) << LF_ATTENTION_WGMMA;
    switch (lf_cuda_choose(c, LF_CHOICE_ATTENTION, fits, "%d heads of %d, %s", a->heads, width, lf_cuda_act_name(c))) {
    case LF_ATTENTION_WGMMA:
        lf_attend_wgmma(c, &p);
        break;
    case LF_ATTENTION_GENERAL:
        attend_any(c, &p);
    }
}
