/* SPDX-License-Identifier: Apache-2.0
 *
 * Routing and combination.   Source: model.md, "MoE".  The experts themselves: experts.cu.
 */
#include "cuda.cuh"

enum { ROUTE_WARPS = 4 };

/* sqrt(softplus(x)), without overflow. */
static __device__ float router_score(float x)
{
    return sqrtf(log1pf(expf(-fabsf(x))) + fmaxf(x, 0.0f));
}

/* One round of the K best: the largest key below `last`, of every lane's experts and then of the warp. */
static __device__ uint64_t next_best(const float *score, const float *bias, int experts, uint64_t last)
{
    uint64_t best = 0;

    for (int e = (int)threadIdx.x & 31; e < experts; e += 32) {
        uint64_t key = lf_rank_key(score[e] + bias[e], (uint32_t)e);
        if (key < last && key > best)
            best = key;
    }
#pragma unroll
    for (int i = 16; i; i >>= 1) {
        uint64_t other = __shfl_xor_sync(~0u, best, i);
        best = other > best ? other : best;
    }
    return best;
}

typedef struct routing {
    int32_t *expert;
    float *weight;
    const float *logits, *bias;
    const int64_t *tid2eid;
    const uint32_t *ids;
    int64_t m;
    int experts, k;
    float scale;
} routing;

/* A warp a token; its scores in shared memory. */
static __global__ void route_rows(routing r)
{
    extern __shared__ float scores[];
    int64_t t = (int64_t)blockIdx.x * ROUTE_WARPS + (threadIdx.x >> 5);
    int lane = (int)threadIdx.x & 31;
    float *score = scores + (threadIdx.x >> 5) * r.experts, sum = 0;

    if (t >= r.m)
        return;
    for (int e = lane; e < r.experts; e += 32)
        score[e] = router_score(r.logits[t * r.experts + e]);
    __syncwarp();
    uint64_t last = ~0ull;
    for (int j = 0; j < r.k; j++) {
        int e;
        if (r.tid2eid)
            e = (int)r.tid2eid[r.ids[t] * (int64_t)r.k + j];
        else {
            last = next_best(score, r.bias, r.experts, last);
            e = (int)~(uint32_t)last;
        }
        if (lane == 0)
            r.expert[t * r.k + j] = e;
        sum += score[e];
    }
    __syncwarp();
    if (lane == 0)
        for (int j = 0; j < r.k; j++)
            r.weight[t * r.k + j] = score[r.expert[t * r.k + j]] / sum * r.scale;
}

void lf_cuda_route(lf_dev *d, const lf_route *r)
{
    lf_cuda *c = lf_cuda_of(d);
    const lf_model *m = d->model;
    size_t shared = sizeof(float) * ROUTE_WARPS * (size_t)m->experts;

    if (r->m == 0)
        return;
    float *logits = (float *)lf_cuda_scratch(c, LF_SCRATCH_ROUTE, sizeof(float) * (size_t)(r->m * m->experts));
    if (!logits)
        return;
    if (shared > 48 * 1024) {
        lf_cuda_fail(c, "routing among %d experts: the kernel has room for %d", m->experts,
                     48 * 1024 / (int)(sizeof(float) * ROUTE_WARPS));
        return;
    }
    lf_gemm g = { r->y, r->m, m->hidden, r->gate, logits, m->experts, LF_OUT_F32 };
    lf_cuda_gemm(d, &g);
    routing a = { r->expert, r->weight, logits, r->bias, r->tid2eid, r->ids, r->m, m->experts, m->experts_per_tok,
                  m->routed_scale };
    route_rows<<<lf_blocks(r->m, ROUTE_WARPS), 32 * ROUTE_WARPS, shared, c->stream>>>(a);
    LF_LAUNCHED(c, "route");
}

/* ---- combination ---- */

/* A block a token; eight channels a thread where that goes. */
template <typename T, int WIDE>
static __global__ void combine_rows(T *out, const T *z, const int32_t *slot, int k, const T *shared, int64_t hidden)
{
    int64_t t = blockIdx.x;

    for (int64_t i = (int64_t)threadIdx.x * WIDE; i < hidden; i += (int64_t)blockDim.x * WIDE) {
        float sum[WIDE], v[WIDE];
#pragma unroll
        for (int w = 0; w < WIDE; w++)
            sum[w] = 0;
        for (int j = 0; j <= k; j++) {
            const T *from = j < k ? z + slot[t * k + j] * hidden + i : shared + t * hidden + i;
            if constexpr (WIDE == 8)
                lf_load8(v, from);
            else
                v[0] = lf_load(from);
#pragma unroll
            for (int w = 0; w < WIDE; w++)
                sum[w] += v[w];
        }
        if constexpr (WIDE == 8)
            lf_store8(out + t * hidden + i, sum);
        else
            lf_store(out + t * hidden + i, sum[0]);
    }
}

void lf_cuda_combine(lf_dev *d, lf_act *out, const lf_act *z, const int32_t *slot, int k, const lf_act *shared,
                     int64_t m)
{
    lf_cuda *c = lf_cuda_of(d);
    int64_t hidden = d->model->hidden;
    int wide = hidden % 8 == 0 && (((uintptr_t)out | (uintptr_t)z | (uintptr_t)shared) & 15) == 0;

    if (m == 0)
        return;
    LF_ACT(c, {
        if (wide)
            combine_rows<T, 8><<<(unsigned)m, 256, 0, c->stream>>>(lf_ptr<T>(out), lf_ptr<T>(z), slot, k,
                                                                   lf_ptr<T>(shared), hidden);
        else
            combine_rows<T, 1><<<(unsigned)m, 256, 0, c->stream>>>(lf_ptr<T>(out), lf_ptr<T>(z), slot, k,
                                                                   lf_ptr<T>(shared), hidden);
    });
    LF_LAUNCHED(c, "combine");
}
