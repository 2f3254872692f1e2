/* SPDX-License-Identifier: Apache-2.0
 *
 * bank: layers' packed e2m1 experts as fp8, each expanded once for all its tiles.  Private to cuda/.
 *
 * There are two, filled on a stream of their own: while one is multiplied with, prepare() has the next layer's experts
 * expanded into the other.  A fill begins after everything that the queue in use was given before it, so after the last
 * product with what the bank held and after what made the weights; experts() goes on after the fill.
 */
#ifndef LF_BANK_CUH
#define LF_BANK_CUH

#include "cuda.cuh"

/* How an expert is multiplied with; and whether any of them needs a bank.  Where the way that was asked for cannot do
 * it, that is recorded: look at c->failed. */
lf_expert_way lf_cuda_expert_way(lf_cuda *c, const lf_experts *e, int expert);
int lf_cuda_bank_wanted(lf_cuda *c, const lf_experts *e);

typedef struct lf_cuda_bank {
    const void *key;                       /* the first expert's bytes; NULL: nothing in it */
    int experts;
    int64_t hidden, inter, code_step, scale_step;      /* step: from one expert to the next */
    uint8_t *code;                         /* each: w1 and w3 as one [2 inter, hidden], then w2 [hidden, inter] */
    float *scale;
    cudaEvent_t filled;
    int64_t fill;                          /* which fill it has: a number that rises */
    int waiting;                           /* prepared, not multiplied with since */
} lf_cuda_bank;

/* The bank with these experts in it, for the queue in use: filled now if none holds them.  NULL: recorded. */
const lf_cuda_bank *lf_cuda_bank_of(lf_cuda *c, const lf_experts *e);

static inline const uint8_t *lf_bank_code(const lf_cuda_bank *b, int expert, int second)
{
    return b->code + expert * b->code_step + (second ? 2 * b->inter * b->hidden : 0);
}

static inline const float *lf_bank_scale(const lf_cuda_bank *b, int expert, int second)
{
    return b->scale + expert * b->scale_step + (second ? 2 * b->inter / 128 * lf_cuda_scale_ld(b->hidden) : 0);
}

#endif
