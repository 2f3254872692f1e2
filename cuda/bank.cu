/* SPDX-License-Identifier: Apache-2.0
 *
 * The bank of expanded experts.
 */
#include "bank.cuh"

extern "C" {
#include "log.h"
}

#include <stdlib.h>

static int folds(const lf_weight *w)
{
    const lf_cuda_extra *x = (const lf_cuda_extra *)w->extra;

    return x && x->folds;
}

lf_expert_way lf_cuda_expert_way(lf_cuda *c, const lf_experts *e, int expert)
{
    const lf_weight *w1 = &e->w1[expert], *w2 = &e->w2[expert], *w3 = &e->w3[expert];
    int fold = folds(w1) && folds(w2) && folds(w3);
    int way = lf_cuda_choose(c, LF_CHOICE_EXPERTS, lf_cuda_expert_fits(c->dev.numerics, w1, w2, w3, fold),
                             "%s w1 of [%lld, %lld]%s, %s%s", lf_dtype_name(w1->dtype), (long long)w1->rows,
                             (long long)w1->cols, w1->dtype == LF_I8 && !fold ? " that loses bits as e4m3" : "",
                             lf_cuda_act_name(c), c->dev.numerics == LF_RELEASED ? ", released" : ", exact");

    return way < 0 ? LF_EXPERT_PLAIN : (lf_expert_way)way;
}

void lf_cuda_bank_free(lf_cuda *c)
{
    free(c->bank);
    c->bank = NULL;
}

void lf_cuda_bank_forget(lf_cuda *c)
{
    if (c->bank)
        c->bank->key = NULL;
}

static int make_room(lf_cuda *c, lf_cuda_bank *b, const lf_experts *e)
{
    b->experts = e->experts;
    b->hidden = e->w1[0].cols;
    b->inter = e->w1[0].rows;
    b->code_step = lf_cuda_bank_codes(b->hidden, b->inter);
    b->scale_step = lf_cuda_bank_scales(b->hidden, b->inter);
    b->code = (uint8_t *)lf_cuda_scratch(c, LF_SCRATCH_MOE_BANK, (size_t)(b->code_step * b->experts));
    b->scale = (float *)lf_cuda_scratch(c, LF_SCRATCH_MOE_BANK_SCALE,
                                        sizeof(float) * (size_t)(b->scale_step * b->experts));
    return b->code && b->scale ? 0 : -1;
}

/* What folds was found at load (lf_cuda_extra), so the kernels' own verdict is not looked at. */
static int fill(lf_cuda *c, lf_cuda_bank *b, const lf_experts *e)
{
    int *misfit = (int *)lf_cuda_scratch(c, LF_SCRATCH_A, sizeof *misfit), plain = 0;
    int64_t ld1 = lf_cuda_scale_ld(b->hidden), ld2 = lf_cuda_scale_ld(b->inter);

    if (!misfit)
        return -1;
    lf_cuda_fill(&c->dev, b->scale, 0, sizeof(float) * (size_t)(b->scale_step * b->experts));
    for (int x = 0; x < e->experts; x++) {
        uint8_t *code = b->code + x * b->code_step;
        float *scale = b->scale + x * b->scale_step;
        if (lf_cuda_expert_way(c, e, x) != LF_EXPERT_FOLDED) {
            plain++;
            continue;
        }
        lf_cuda_fold(c, &e->w1[x], code, scale, ld1, misfit);
        lf_cuda_fold(c, &e->w3[x], code + b->inter * b->hidden, scale + b->inter / 128 * ld1, ld1, misfit);
        lf_cuda_fold(c, &e->w2[x], code + 2 * b->inter * b->hidden, scale + 2 * b->inter / 128 * ld1, ld2, misfit);
    }
    if (plain)
        lf_verbose("GPU %d: %d of a layer's %d experts lose bits as fp8 with 128x128 scales: these multiply in bf16",
                   c->device, plain, e->experts);
    return c->failed ? -1 : 0;
}

const lf_cuda_bank *lf_cuda_bank_of(lf_cuda *c, const lf_experts *e)
{
    if (!c->bank)
        c->bank = (lf_cuda_bank *)lf_alloc(sizeof *c->bank);
    lf_cuda_bank *b = c->bank;

    if (b->key == e->w1[0].data && b->experts == e->experts)
        return b;
    b->key = NULL;
    if (make_room(c, b, e) || fill(c, b, e))
        return NULL;
    b->key = e->w1[0].data;
    return b;
}
