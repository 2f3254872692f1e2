/* SPDX-License-Identifier: Apache-2.0
 *
 * bank: a layer's packed e2m1 experts as fp8, expanded once for all its tiles.  Private to cuda/.
 */
#ifndef LF_BANK_CUH
#define LF_BANK_CUH

#include "cuda.cuh"

/* How an expert is multiplied with.  Where the way that was asked for cannot do it, that is recorded: look at
 * c->failed. */
lf_expert_way lf_cuda_expert_way(lf_cuda *c, const lf_experts *e, int expert);

struct lf_cuda_bank {
    const void *key;                       /* the first expert's bytes; NULL: nothing in it */
    int experts;
    int64_t hidden, inter, code_step, scale_step;      /* step: from one expert to the next */
    uint8_t *code;                         /* each: w1 and w3 as one [2 inter, hidden], then w2 [hidden, inter] */
    float *scale;
};

/* The bank with these experts in it, filled now if it held others; NULL: recorded.  One bank for now; filling the next
 * layer's on another stream takes a second one and an event. */
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
