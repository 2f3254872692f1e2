/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention for bf16 activations 512 wide, on the warpgroup products of Hopper.   Source: model.md, "Attention".
 *
 * A block of threads takes one query and 64 heads at a time.  The query's rows come in blocks of 64 into two places
 * of shared memory: even blocks into the first, odd ones into the second, each in two halves of 256 channels.  One
 * warpgroup copies.  The other two share the products: "even" and "odd" each score the blocks of their place and tell
 * the other the weights and the running maximum; both add all weighted rows to what they hold of the output: even its
 * first 256 channels, odd its last.  So each half of a place is given back by one warpgroup, and products of one run
 * while the other is at its exponentials.
 */
#include "attention_copy.cuh"

/* Of one thread: two heads (rows of the products), g = row0 and g + 8.  Scores are unscaled in `top`. */
typedef struct softmax {
    float top[2], sum[2];                  /* sum: over this thread's columns only, until the end */
    float scale;                           /* width^-1/2 * log2(e): weights are powers of two */
    int row0;
} softmax;

static __device__ __forceinline__ float power2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* To a new maximum: what came before shrinks by the factors in `by`. */
static __device__ __forceinline__ void raise(softmax &x, const float (&now)[2], float (&by)[2])
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        by[k] = power2((x.top[k] - (now[k] == -INFINITY ? 0.0f : now[k])) * x.scale);
        x.sum[k] *= by[k];
        x.top[k] = now[k];
    }
}

/* Times 1 changes no bit, so it is left out where no head of the warp needs another factor. */
static __device__ __forceinline__ void shrink(float (&out)[128], const float (&by)[2])
{
    if (!__any_sync(~0u, by[0] != 1.0f || by[1] != 1.0f))
        return;
#pragma unroll
    for (int j = 0; j < 128; j++)
        out[j] *= by[j >> 1 & 1];
}

/* Scores to weights, in bf16 as the next product wants them in registers; `rows` of the block are real. */
static __device__ __forceinline__ void weigh(softmax &x, float (&s)[32], int rows, float (&by)[2],
                                             uint32_t (&w)[4][4])
{
    float now[2] = { x.top[0], x.top[1] }, from[2];
    int column = ((int)threadIdx.x & 3) * 2;

    if (rows < BLOCK) {
#pragma unroll
        for (int j = 0; j < 32; j++)
            if (j / 4 * 8 + column + (j & 1) >= rows)
                s[j] = -INFINITY;
    }
#pragma unroll
    for (int j = 0; j < 32; j++)
        now[j >> 1 & 1] = fmaxf(now[j >> 1 & 1], s[j]);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        now[k] = fmaxf(now[k], __shfl_xor_sync(~0u, now[k], 1));
        now[k] = fmaxf(now[k], __shfl_xor_sync(~0u, now[k], 2));
        from[k] = now[k] == -INFINITY ? 0.0f : now[k] * x.scale;
    }
    raise(x, now, by);
#pragma unroll
    for (int j = 0; j < 32; j += 2) {
        int k = j >> 1 & 1;
        float u = power2(fmaf(s[j], x.scale, -from[k])), v = power2(fmaf(s[j + 1], x.scale, -from[k]));
        x.sum[k] += u + v;
        __nv_bfloat162 both = __floats2bfloat162_rn(u, v);
        w[j / 8][j / 2 % 4] = *(const uint32_t *)&both;
    }
}

/* Weights and maxima for the other warpgroup. */
static __device__ __forceinline__ void tell(memory *m, int place, const softmax &x, const uint32_t (&w)[4][4])
{
    uint32_t row = (uint32_t)x.row0, lane = threadIdx.x & 3;

#pragma unroll
    for (uint32_t j = 0; j < 8; j++) {
        *(uint32_t *)(m->weight[place] + lf_panel_at(row, j) + lane * 4) = w[j / 2][j % 2 * 2];
        *(uint32_t *)(m->weight[place] + lf_panel_at(row + 8, j) + lane * 4) = w[j / 2][j % 2 * 2 + 1];
    }
    if (lane == 0) {
        m->top[place][row] = x.top[0];
        m->top[place][row + 8] = x.top[1];
    }
    lf_fence_async();
    lf_bar_arrive(&m->told[place]);
}

/* The other's maxima; its weights lie ready afterwards. */
static __device__ __forceinline__ void hear(memory *m, int place, uint32_t parity, softmax &x, float (&by)[2])
{
    lf_bar_wait(&m->told[place], parity);
    lf_fence_async();
    float now[2] = { m->top[place][x.row0], m->top[place][x.row0 + 8] };
    raise(x, now, by);
}

/* Begins s = q k^T for the rows of a place, as they arrive. */
static __device__ __forceinline__ void score(memory *m, int place, uint32_t parity, float (&s)[32])
{
    uint64_t q = lf_panel_desc(lf_shared(m->q), PANEL), k = lf_panel_desc(lf_shared(m->rows[place]), PANEL);

#pragma unroll
    for (int half = 0; half < 2; half++) {
        lf_bar_wait(&m->full[place][half], parity);
        lf_fence_async();
        lf_wgmma_fence();
#pragma unroll
        for (int j = 0; j < 16; j++) {
            uint64_t at = (uint64_t)((half * HALF + j / 4) * PANEL + j % 4 * 32) >> 4;
            lf_wgmma_64x64(s, q + at, k + at, half || j);
        }
    }
    lf_wgmma_commit();
}

static __device__ __forceinline__ uint64_t values(memory *m, int place, int half, int step)
{
    return lf_panel_desc(lf_shared(m->rows[place][half * HALF]), PANEL) + (uint64_t)(step * 16 * 128 >> 4);
}

/* Begins out += weights times a half of a place: own weights from registers, the other's from shared memory. */
static __device__ __forceinline__ void add_own(memory *m, int place, float (&out)[128], const uint32_t (&w)[4][4])
{
    lf_wgmma_pin(out);
    lf_wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        lf_wgmma_64x256(out, w[step], values(m, place, place, step));
    lf_wgmma_commit();
}

static __device__ __forceinline__ void add_other(memory *m, int place, float (&out)[128])
{
    uint64_t w = lf_panel_desc(lf_shared(m->weight[place]), PANEL);

    lf_wgmma_pin(out);
    lf_wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        lf_wgmma_64x256(out, w + (uint64_t)(step * 32 >> 4), values(m, place, 1 - place, step));
    lf_wgmma_commit();
}

/* Blocks b and, if there is one, b + 1, by the warpgroup of even blocks. */
static __device__ __forceinline__ void even_pair(memory *m, const uint32_t (&use)[2], int left, softmax &x,
                                                 float (&out)[128])
{
    float s[32], by[2];
    uint32_t w[4][4];

    score(m, 0, use[0] & 1, s);
    lf_wgmma_wait<0>();
    lf_wgmma_pin(s);
    weigh(x, s, left, by, w);
    tell(m, 0, x, w);
    shrink(out, by);
    add_own(m, 0, out, w);
    lf_wgmma_wait<0>();
    lf_wgmma_pin(out);
    lf_bar_arrive(&m->empty[0][0]);
    if (left <= BLOCK)
        return;
    hear(m, 1, use[1] & 1, x, by);
    shrink(out, by);
    add_other(m, 1, out);
    lf_wgmma_wait<0>();
    lf_wgmma_pin(out);
    lf_bar_arrive(&m->empty[1][0]);
}

/* The same by the warpgroup of odd blocks: its exponentials run beside the even block's last product. */
static __device__ __forceinline__ void odd_pair(memory *m, const uint32_t (&use)[2], int left, softmax &x,
                                                float (&out)[128])
{
    float s[32], by[2];
    uint32_t w[4][4];

    if (left <= BLOCK) {
        hear(m, 0, use[0] & 1, x, by);
        shrink(out, by);
        add_other(m, 0, out);
        lf_wgmma_wait<0>();
        lf_wgmma_pin(out);
        lf_bar_arrive(&m->empty[0][1]);
        return;
    }
    score(m, 1, use[1] & 1, s);
    hear(m, 0, use[0] & 1, x, by);
    shrink(out, by);
    add_other(m, 0, out);
    lf_wgmma_wait<1>();
    lf_wgmma_pin(s);
    weigh(x, s, left - BLOCK, by, w);
    tell(m, 1, x, w);
    lf_wgmma_wait<0>();
    lf_wgmma_pin(out);
    lf_bar_arrive(&m->empty[0][1]);
    shrink(out, by);
    add_own(m, 1, out, w);
    lf_wgmma_wait<0>();
    lf_wgmma_pin(out);
    lf_bar_arrive(&m->empty[1][1]);
}

/* Both warpgroups' sums, and from them the factor of each of the thread's heads; the log-sum-exp on the way. */
template <int WHO> static __device__ __forceinline__ void settle(const lf_attend &p, memory *m, int64_t i, int head0,
                                                                 softmax &x, float (&factor)[2])
{
    bool first = (threadIdx.x & 3) == 0;

#pragma unroll
    for (int k = 0; k < 2; k++) {
        x.sum[k] += __shfl_xor_sync(~0u, x.sum[k], 1);
        x.sum[k] += __shfl_xor_sync(~0u, x.sum[k], 2);
        if (first)
            m->sum[WHO][x.row0 + 8 * k] = x.sum[k];
    }
    lf_meet(MEET_END, 2 * GROUP);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int row = x.row0 + 8 * k, head = head0 + row;
        float lse = 0;
        factor[k] = 0;
        if (head < p.a.heads)
            factor[k] = lf_seen_finish(x.top[k] * p.scale, m->sum[0][row] + m->sum[1][row],
                                       p.a.sink ? p.a.sink + head : NULL, &lse);
        if (WHO == 0 && first && p.a.lse && head < p.a.heads)
            p.a.lse[i * p.a.heads + head] = lse;
    }
}

/* Half of the output through the place of the query, which nobody needs any more: each warp its 16 heads. */
template <int WHO> static __device__ __forceinline__ void write(const lf_attend &p, memory *m, int64_t i, int head0,
                                                                const softmax &x, const float (&out)[128],
                                                                const float (&factor)[2])
{
    int lane = (int)threadIdx.x & 31, first = x.row0 & ~15;

#pragma unroll
    for (int j = 0; j < 64; j++) {
        int k = j & 1, n = j / 2;
        __nv_bfloat162 both = __floats2bfloat162_rn(out[2 * j] * factor[k], out[2 * j + 1] * factor[k]);
        *(uint32_t *)(m->q[WHO * HALF + n / 8] + lf_panel_at((uint32_t)(x.row0 + 8 * k), (uint32_t)n % 8) +
                      (lane & 3) * 4) = *(const uint32_t *)&both;
    }
    __syncwarp();
    for (int row = first; row < first + 16 && head0 + row < p.a.heads; row++) {
        uint4 v = *(const uint4 *)(m->q[WHO * HALF + lane / 8] + lf_panel_at((uint32_t)row, (uint32_t)lane & 7));
        *(uint4 *)((__nv_bfloat16 *)(void *)p.a.out + (i * p.a.heads + head0 + row) * WIDTH + WHO * (WIDTH / 2) +
                   lane * 8) = v;
    }
    lf_bar_arrive(&m->q_empty);
}

template <int WHO> static __device__ __forceinline__ void compute_all(const lf_attend &p, int64_t items, int tiles,
                                                                      memory *m)
{
    int thread = (int)threadIdx.x % GROUP;
    uint32_t turn = 0, use[2] = { 0, 0 };  /* use: how often each place has been filled before */

    for (int64_t item = blockIdx.x; item < items; item += gridDim.x, turn++) {
        softmax x = { { -INFINITY, -INFINITY }, { 0, 0 }, p.scale * 1.44269504f, thread / 32 * 16 + thread % 32 / 4 };
        float out[128], factor[2];
#pragma unroll
        for (int j = 0; j < 128; j++)
            out[j] = 0;
        lf_bar_wait(&m->q_full, turn & 1);
        lf_fence_async();
        int n = m->n;
        for (int row = 0; row < n; row += 2 * BLOCK) {
            if (WHO == 0)
                even_pair(m, use, n - row, x, out);
            else
                odd_pair(m, use, n - row, x, out);
            use[0]++;
            use[1] += n - row > BLOCK;
        }
        settle<WHO>(p, m, item / tiles, (int)(item % tiles) * HEADS, x, factor);
        write<WHO>(p, m, item / tiles, (int)(item % tiles) * HEADS, x, out, factor);
    }
}

static __global__ void __launch_bounds__(THREADS, 1) attend_wgmma(const __grid_constant__ lf_attend p, int64_t items,
                                                                  int tiles)
{
    extern __shared__ uint8_t raw[];
    memory *m = (memory *)(raw + (-lf_shared(raw) & 1023));
    int group = __shfl_sync(~0u, (int)threadIdx.x / GROUP, 0);

    if (threadIdx.x == 0) {
        for (int j = 0; j < 4; j++) {
            lf_bar_init(&m->full[j / 2][j % 2], GROUP);
            lf_bar_init(&m->empty[j / 2][j % 2], GROUP);
        }
        lf_bar_init(&m->told[0], GROUP);
        lf_bar_init(&m->told[1], GROUP);
        lf_bar_init(&m->q_full, GROUP + 1);
        lf_bar_init(&m->q_empty, 2 * GROUP);
    }
    __syncthreads();
    if (group == 0) {
        lf_registers_less<COPY_REGISTERS>();
        copy_all(p, items, tiles, m);
    } else if (group == 1) {
        lf_registers_more<MATH_REGISTERS>();
        compute_all<0>(p, items, tiles, m);
    } else {
        lf_registers_more<MATH_REGISTERS>();
        compute_all<1>(p, items, tiles, m);
    }
}

static int aligned(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

void lf_attend_wgmma(lf_cuda *c, const lf_attend *p)
{
    const lf_attn *a = &p->a;
    int64_t tiles = lf_ceil_div(a->heads, HEADS), items = a->queries * tiles;
    int bytes = (int)sizeof(memory) + 1024;

    if (!aligned(a->q) || !aligned(a->out) || !aligned(a->win) || !aligned(a->rows)) {
        lf_cuda_fail(c, "attention: rows are not aligned to 16 bytes");
        return;
    }
    if (LF_CUDA(c, cudaFuncSetAttribute(attend_wgmma, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                "attention: shared memory"))
        return;
    attend_wgmma<<<(unsigned)lf_min(items, c->sms), THREADS, (size_t)bytes, c->stream>>>(*p, items, (int)tiles);
    LF_LAUNCHED(c, "attention");
}
