/* SPDX-License-Identifier: Apache-2.0
 *
 * Pairs by expert, at home and on the rank that owns the experts.   Source: dev.h.
 */
#include "cpu.h"

void lf_cpu_pairs(lf_dev *d, const lf_pairs *p)
{
    int64_t pairs = p->m * p->k, at = 0;
    int32_t *next = lf_cpu_shared(lf_cpu_of(d), 1, sizeof *next * (size_t)p->experts);

    memset(p->count, 0, sizeof *p->count * (size_t)p->experts);
    for (int64_t i = 0; i < pairs; i++)
        p->count[p->expert[i]]++;
    for (int e = 0; e < p->experts; at += p->count[e++])
        next[e] = (int32_t)at;
    for (int64_t i = 0; i < pairs; i++) {
        int32_t to = next[p->expert[i]]++;
        p->slot[i] = to;
        p->token[to] = (int32_t)(i / p->k);
        p->weight[to] = p->of[i];
    }
}

void lf_cpu_arrivals(lf_dev *d, const lf_arrivals *a)
{
    int n = a->senders * a->experts;
    int64_t *at = lf_cpu_shared(lf_cpu_of(d), 1, sizeof *at * (size_t)n), came = 0, used = 0;

    for (int i = 0; i < n; came += a->count[i++])
        at[i] = came;
    for (int e = 0; e < a->experts; e++)
        for (int i = e; i < n; i += a->experts)
            for (int64_t j = 0; j < a->count[i]; j++, used++) {
                a->src[used] = (int32_t)(at[i] + j);
                a->home[at[i] + j] = (int32_t)used;
            }
}
