/* SPDX-License-Identifier: Apache-2.0
 *
 * What is kept of logits.   Source: product.md, "--logits".
 */
#include "cpu.h"

#include <math.h>

void lf_cpu_logits_topk(lf_dev *d, int32_t *ids, float *values, const float *logits, int64_t m, int64_t vocab, int k)
{
    lf_cpu *c = lf_cpu_of(d);

#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t t = 0; t < m; t++) {
        uint64_t *key = lf_cpu_own(c, 0, sizeof *key * (size_t)vocab);
        const float *row = logits + t * vocab;
        lf_cpu_select(ids + t * k, row, vocab, k, 1, key);
        for (int j = 0; j < k; j++)
            values[t * k + j] = row[ids[t * k + j]];
    }
}

void lf_cpu_logprob(lf_dev *d, float *out, const float *logits, const uint32_t *next, int64_t m, int64_t vocab)
{
#pragma omp parallel for num_threads(lf_cpu_of(d)->threads) schedule(static)
    for (int64_t t = 0; t < m; t++) {
        const float *row = logits + t * vocab;
        float top = -INFINITY;
        double sum = 0;
        for (int64_t j = 0; j < vocab; j++)
            top = fmaxf(top, row[j]);
        for (int64_t j = 0; j < vocab; j++)
            sum += exp((double)row[j] - top);
        out[t] = (float)((double)row[next[t]] - top - log(sum));
    }
}
