/* SPDX-License-Identifier: Apache-2.0
 *
 * What is kept of logits.   Source: product.md, "--logits"; what they give: src/cpu/logits.c.
 */
#include "select.cuh"


struct put_key {
    uint64_t *key;
    const float *score;

    __device__ void operator()(int64_t place, int64_t i) const
    {
        key[place] = lf_rank_key(score[i], (uint32_t)i);
    }
};

/* One block a row.  room: sort_n keys of scratch a row, or NULL: in shared memory. */
static __global__ void __launch_bounds__(LF_SELECT_THREADS)
topk_kernel(int32_t *ids, float *values, const float *logits, int64_t vocab, int k, uint64_t *room, int64_t sort_n)
{
    extern __shared__ uint64_t shared[];
    __shared__ lf_selection s;
    int64_t count = min((int64_t)k, vocab);
    const float *row = logits + blockIdx.x * vocab;
    uint64_t *key = room ? room + blockIdx.x * sort_n : shared;

    for (int64_t i = threadIdx.x; i < sort_n; i += blockDim.x)
        key[i] = 0;                                            /* below every real one: an index is below 2^32 - 1 */
    __syncthreads();
    lf_select(&s, row, vocab, k, put_key{ key, row });
    lf_sort(key, sort_n);
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
        uint32_t id = ~(uint32_t)key[i];
        ids[blockIdx.x * (int64_t)k + i] = (int32_t)id;
        values[blockIdx.x * (int64_t)k + i] = row[id];
    }
}

void lf_cuda_logits_topk(lf_dev *d, int32_t *ids, float *values, const float *logits, int64_t m, int64_t vocab, int k)
{
    lf_cuda *c = lf_cuda_of(d);
    int64_t n = 2;
    uint64_t *room = NULL;

    if (m == 0 || k <= 0)
        return;
    while (n < lf_min(k, vocab))
        n *= 2;
    size_t scratch = lf_cuda_sort_scratch(m, vocab, k);
    if (scratch && !(room = (uint64_t *)lf_cuda_scratch(c, LF_SCRATCH_A, scratch)))
        return;
    size_t shared = room ? 0 : 8 * (size_t)n;
    if (LF_CUDA(c, cudaFuncSetAttribute(topk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 8 * LF_CUDA_SORT),
                "logits_topk: shared memory"))
        return;
    topk_kernel<<<(unsigned)m, LF_SELECT_THREADS, shared, c->stream>>>(ids, values, logits, vocab, k, room, n);
    LF_LAUNCHED(c, "logits_topk");
}

static __global__ void logprob_kernel(float *out, const float *logits, const uint32_t *next, int64_t vocab)
{
    __shared__ float spare[33];
    __shared__ double wide[33];
    const float *row = logits + blockIdx.x * vocab;
    float top = -INFINITY;
    double sum = 0;

    for (int64_t j = threadIdx.x; j < vocab; j += blockDim.x)
        top = fmaxf(top, row[j]);
    top = lf_block_max(top, spare);
    for (int64_t j = threadIdx.x; j < vocab; j += blockDim.x)
        sum += exp((double)row[j] - top);
    sum = lf_block_sum(sum, wide);
    if (threadIdx.x == 0)
        out[blockIdx.x] = (float)((double)row[next[blockIdx.x]] - top - log(sum));
}

void lf_cuda_logprob(lf_dev *d, float *out, const float *logits, const uint32_t *next, int64_t m, int64_t vocab)
{
    lf_cuda *c = lf_cuda_of(d);

    if (m == 0)
        return;
    logprob_kernel<<<(unsigned)m, 512, 0, c->stream>>>(out, logits, next, vocab);
    LF_LAUNCHED(c, "logprob");
}
