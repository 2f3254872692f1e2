/* SPDX-License-Identifier: Apache-2.0
 *
 * Two kernels (the others: index_wgmma.cu).  mma: bf16 on tensor cores, with index_dim 32, 64 or 128 and heads in
 * eights.  A warp keeps 64 keys in registers as the rows of its products; the heads of one query after another are
 * the columns, so that relu and the weighted sum over heads stay in registers, in a fixed order: per thread over its
 * columns, then over the four threads that share a row.  general: float32 fused multiply-adds.  Which of them is a
 * matter of type and shape, never of the number of rows.
 */
#include "index_score.cuh"

enum {
    WARPS = 4, WARP_KEYS = 64, BLOCK_KEYS = WARPS * WARP_KEYS,
    GROUP = 32,                            /* queries that a block goes through */
    PAD = 8                                /* elements between rows of shared memory: no bank conflicts */
};

static __device__ __forceinline__ void copy16(void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(global) : "memory");
}

static __device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], const void *shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)) : "memory");
}

static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct score_args {
    float *score;
    const void *q, *keys;
    const float *w;
    int64_t ld, queries, pos0, row_first, rows;
    int heads, width;
};

static __device__ __forceinline__ int64_t sees(const score_args &a, int64_t query)
{
    return min((a.pos0 + query + 1) / 4 - a.row_first, a.rows);
}

/* One query's heads and weights to shared memory, rows PAD apart; one group of asynchronous copies. */
template <int KS> static __device__ void fetch_query(__nv_bfloat16 *to, const score_args &a, int64_t query)
{
    constexpr int DI = 16 * KS;
    const __nv_bfloat16 *q = (const __nv_bfloat16 *)a.q + query * a.heads * DI;
    char *w = (char *)(to + a.heads * (DI + PAD));

    for (int i = threadIdx.x; i < a.heads * DI / 8; i += WARPS * 32)
        copy16(to + i / (DI / 8) * (DI + PAD) + i % (DI / 8) * 8, q + i * 8);
    for (int i = threadIdx.x; i < a.heads / 4; i += WARPS * 32)
        copy16(w + 16 * i, a.w + query * a.heads + 4 * i);
}

static __device__ __forceinline__ void commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* The warp's 64 keys as left factors: [16 rows each][16 columns each]. */
template <int KS> static __device__ void load_keys(uint32_t (&k)[4][KS][4], const score_args &a, int64_t key0)
{
    int g = (threadIdx.x & 31) / 4, t = threadIdx.x & 3;

#pragma unroll
    for (int m = 0; m < 4; m++) {
        const __nv_bfloat16 *first = (const __nv_bfloat16 *)a.keys + 2 * t;
        const __nv_bfloat16 *top = first + min(key0 + 16 * m + g, a.rows - 1) * 16 * KS;
        const __nv_bfloat16 *low = first + min(key0 + 16 * m + g + 8, a.rows - 1) * 16 * KS;
#pragma unroll
        for (int s = 0; s < KS; s++) {
            k[m][s][0] = *(const uint32_t *)(top + 16 * s);
            k[m][s][1] = *(const uint32_t *)(low + 16 * s);
            k[m][s][2] = *(const uint32_t *)(top + 16 * s + 8);
            k[m][s][3] = *(const uint32_t *)(low + 16 * s + 8);
        }
    }
}

/* part[m][r] = this thread's columns' share of the scores of keys 16 m + 8 r + lane / 4. */
template <int KS>
static __device__ __forceinline__ void score_query(float (&part)[4][2], const uint32_t (&k)[4][KS][4],
                                                   const __nv_bfloat16 *q, int heads)
{
    constexpr int LD = 16 * KS + PAD;
    int lane = threadIdx.x & 31, t = lane & 3;
    const float *w = (const float *)(q + heads * LD);
    const __nv_bfloat16 *mine = q + (lane & 7) * LD + (lane >> 3) * 8;

    for (int h = 0; h < heads; h += 8) {
        float acc[4][4] = { { 0 } };
#pragma unroll
        for (int s = 0; s < KS; s += 2) {
            uint32_t b[4];
            ldmatrix4(b, mine + h * LD + 16 * s);
#pragma unroll
            for (int m = 0; m < 4; m++)
                multiply(acc[m], k[m][s], b[0], b[1]);
#pragma unroll
            for (int m = 0; m < 4; m++)
                multiply(acc[m], k[m][s + 1], b[2], b[3]);
        }
        float w0 = w[h + 2 * t], w1 = w[h + 2 * t + 1];
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                part[m][r] = fmaf(w1, lf_relu(acc[m][2 * r + 1]), fmaf(w0, lf_relu(acc[m][2 * r]), part[m][r]));
    }
}

/* Sums the four threads of a row, and stores: thread t of them the keys of tile t. */
static __device__ __forceinline__ void store_scores(float *score, int64_t key0, int64_t rows, float (&part)[4][2])
{
    int lane = threadIdx.x & 31, t = lane & 3;

#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            part[m][r] += __shfl_xor_sync(~0u, part[m][r], 1);
            part[m][r] += __shfl_xor_sync(~0u, part[m][r], 2);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float x = t == 0 ? part[0][r] : t == 1 ? part[1][r] : t == 2 ? part[2][r] : part[3][r];
        int64_t key = key0 + 16 * t + 8 * r + lane / 4;
        if (key < rows)
            score[key] = x;
    }
}

/* Grid: keys in 256s, groups of queries. */
template <int KS> static __global__ void __launch_bounds__(WARPS * 32, 2) tensor_kernel(score_args a)
{
    extern __shared__ uint4 room[];        /* two queries: the one at work, and the next */
    int64_t q0 = (int64_t)blockIdx.y * GROUP, q1 = min(q0 + GROUP, a.queries);
    int64_t block0 = (int64_t)blockIdx.x * BLOCK_KEYS;
    int64_t key0 = block0 + threadIdx.x / 32 * WARP_KEYS, each = a.heads * (16 * KS + PAD + 2);
    __nv_bfloat16 *q = (__nv_bfloat16 *)room;
    uint32_t k[4][KS][4];

    while (q0 < q1 && sees(a, q0) <= block0)                   /* queries that see none of these keys */
        q0++;
    if (q0 == q1)
        return;
    fetch_query<KS>(q, a, q0);
    commit();
    load_keys<KS>(k, a, key0);
    for (int64_t i = q0; i < q1; i++) {
        const __nv_bfloat16 *now = q + ((i - q0) & 1) * each;
        float part[4][2] = { { 0 } };
        if (i + 1 < q1)
            fetch_query<KS>(q + ((i + 1 - q0) & 1) * each, a, i + 1);
        commit();
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        if (key0 < sees(a, i)) {
            score_query<KS>(part, k, now, a.heads);
            store_scores(a.score + i * a.ld, key0, a.rows, part);
        }
        __syncthreads();
    }
}

/* ---- float32, and shapes that the tensor cores do not take ---- */

enum { KEYS = 64, SHARES = 4, HEADS = 8, PLAIN_GROUP = 8 };

/* Dot products of a key with HEADS heads from h on, in channel order. */
static __device__ __forceinline__ void dots(float (&acc)[HEADS], const float *q, const float *key, int h, int heads,
                                            int width)
{
#pragma unroll
    for (int i = 0; i < HEADS; i++)
        acc[i] = 0;
    for (int d = 0; d < width; d++) {
        float x = key[d];
#pragma unroll
        for (int i = 0; i < HEADS; i++)
            acc[i] = fmaf(q[min(h + i, heads - 1) * width + d], x, acc[i]);
    }
}

/* Grid: keys in 64s, groups of queries.  Thread: one key, a quarter of the heads; the quarters are added in order. */
template <typename T> static __global__ void __launch_bounds__(KEYS * SHARES) plain_kernel(score_args a)
{
    extern __shared__ float room_f[];
    float *keys = room_f, *q = keys + KEYS * (a.width + 1), *sum = q + (int64_t)a.heads * a.width;
    int64_t q0 = (int64_t)blockIdx.y * PLAIN_GROUP, q1 = min(q0 + PLAIN_GROUP, a.queries);
    int64_t key0 = (int64_t)blockIdx.x * KEYS;
    int mine = threadIdx.x % KEYS, share = threadIdx.x / KEYS, each = a.heads * a.width;

    for (int i = threadIdx.x; i < KEYS * a.width; i += KEYS * SHARES)
        keys[i / a.width * (a.width + 1) + i % a.width] =
            lf_load((const T *)a.keys + min(key0 + i / a.width, a.rows - 1) * a.width + i % a.width);
    for (int64_t query = q0; query < q1; query++) {
        float part = 0, acc[HEADS];
        if (sees(a, query) <= key0)
            continue;
        __syncthreads();
        for (int i = threadIdx.x; i < each; i += KEYS * SHARES)
            q[i] = lf_load((const T *)a.q + query * each + i);
        __syncthreads();
        for (int h = share * HEADS; h < a.heads; h += SHARES * HEADS) {
            dots(acc, q, keys + mine * (a.width + 1), h, a.heads, a.width);
            for (int i = 0; i < HEADS && h + i < a.heads; i++)
                part = fmaf(a.w[query * a.heads + h + i], lf_relu(acc[i]), part);
        }
        sum[threadIdx.x] = part;
        __syncthreads();
        if (share == 0 && key0 + mine < a.rows) {
            for (int s = 1; s < SHARES; s++)
                part += sum[s * KEYS + mine];
            a.score[query * a.ld + key0 + mine] = part;
        }
    }
}

/* ---- launches ---- */

template <int KS> static void launch_tensor(lf_cuda *c, const score_args *a)
{
    size_t shared = 2 * (size_t)a->heads * (16 * KS + PAD + 2) * 2;
    dim3 grid(lf_blocks(a->rows, BLOCK_KEYS), lf_blocks(a->queries, GROUP));

    if (LF_CUDA(c, cudaFuncSetAttribute(tensor_kernel<KS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                "index_topk: shared memory for the scores"))
        return;
    tensor_kernel<KS><<<grid, WARPS * 32, shared, c->stream>>>(*a);
    LF_LAUNCHED(c, "index_topk, scores on tensor cores");
}

static void launch_plain(lf_cuda *c, const score_args *a)
{
    size_t shared = 4 * ((size_t)KEYS * (size_t)(a->width + 1) + (size_t)a->heads * (size_t)a->width + KEYS * SHARES);
    dim3 grid(lf_blocks(a->rows, KEYS), lf_blocks(a->queries, PLAIN_GROUP));

    if (shared > c->smem_max) {
        lf_cuda_fail(c, "index_topk: %d heads of %d channels do not fit in shared memory: use --device cpu", a->heads,
                     a->width);
        return;
    }
    LF_ACT(c, {
        if (LF_CUDA(c, cudaFuncSetAttribute(plain_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                    "index_topk: shared memory for the scores") == 0)
            plain_kernel<T><<<grid, KEYS * SHARES, shared, c->stream>>>(*a);
    });
    LF_LAUNCHED(c, "index_topk, scores");
}

static void launch_mma(lf_cuda *c, const score_args *a)
{
    if (a->width == 128)
        launch_tensor<8>(c, a);
    else if (a->width == 64)
        launch_tensor<4>(c, a);
    else
        launch_tensor<2>(c, a);
}

void lf_cuda_index_score(lf_cuda *c, const lf_cuda_scores *s)
{
    const lf_model *m = c->dev.model;
    score_args a = { s->score, s->q, s->keys, s->w, s->ld, s->queries, s->pos0, s->row_first, s->rows, m->index_heads,
                     m->index_dim };

    if (s->kernel == LF_INDEX_WGMMA || s->kernel == LF_INDEX_FP8)
        lf_cuda_index_wgmma(c, s);
    else if (s->queries > 65535 * (int64_t)PLAIN_GROUP)
        lf_cuda_fail(c, "index_topk: %lld queries in a tile", (long long)s->queries);
    else if (s->kernel == LF_INDEX_MMA)
        launch_mma(c, &a);
    else
        launch_plain(c, &a);
}
