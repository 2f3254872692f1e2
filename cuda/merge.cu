/* SPDX-License-Identifier: Apache-2.0
 *
 * Partial attention outputs to one.   Source: engine.md, "merge mode".
 */
#include "cuda.cuh"

enum { THREADS = 128 };

/* A block of threads is one row, of one head.  Parts are added in order; an empty one (lse -inf) is not read. */
template <typename T> static __global__ void __launch_bounds__(THREADS) merge(T *out, const T *part, const float *lse,
                                                                              int parts, int64_t rows, int heads,
                                                                              int width, const float *sink)
{
    int64_t r = blockIdx.x;
    float column = sink ? sink[r % heads] : -INFINITY, top = column, sum = 0;

    for (int p = 0; p < parts; p++)
        top = fmaxf(top, lse[p * rows + r]);
    if (top > -INFINITY) {
        sum = expf(column - top);
        for (int p = 0; p < parts; p++)
            sum += expf(lse[p * rows + r] - top);
    }
    for (int c = (int)threadIdx.x; c < width; c += THREADS) {
        float v = 0;
        for (int p = 0; p < parts; p++) {
            float l = lse[p * rows + r];
            if (l > -INFINITY)
                v += expf(l - top) / sum * lf_load(part + (p * rows + r) * width + c);
        }
        lf_store(out + r * width + c, v);
    }
}

void lf_cuda_merge(lf_dev *d, lf_act *out, const lf_act *part, const float *lse, int parts, int64_t m, int heads,
                   const float *sink)
{
    lf_cuda *c = lf_cuda_of(d);
    int64_t rows = m * heads;

    if (rows <= 0)
        return;
    if (rows > INT32_MAX) {
        lf_cuda_fail(c, "merge: %lld rows of %d heads are more than one launch can do", (long long)m, heads);
        return;
    }
    LF_ACT(c, {
        merge<T><<<(unsigned)rows, THREADS, 0, c->stream>>>(lf_ptr<T>(out), lf_ptr<T>(part), lse, parts, rows, heads,
                                                            d->model->head_dim, sink);
        LF_LAUNCHED(c, "merge");
    });
}
