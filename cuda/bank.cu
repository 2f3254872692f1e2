/* SPDX-License-Identifier: Apache-2.0
 *
 * The banks of expanded experts.
 */
#include "bank.cuh"

extern "C" {
#include "log.h"
}

#include <stdlib.h>

struct lf_cuda_banks {
    lf_cuda_bank bank[LF_CUDA_BANKS];
    cudaStream_t stream;                   /* that fills them */
    cudaEvent_t before;                    /* what a fill comes after */
    int64_t fills;
    int told;                              /* that experts were not prepared */
};

static int folds(const lf_weight *w)
{
    const lf_cuda_extra *x = (const lf_cuda_extra *)w->extra;

    return x && x->folds;
}

lf_expert_way lf_cuda_expert_way(lf_cuda *c, const lf_experts *e, int expert)
{
    const lf_weight *w1 = &e->w1[expert], *w2 = &e->w2[expert], *w3 = &e->w3[expert];

    lf_cuda_fold_settle(c);
    int fold = folds(w1) && folds(w2) && folds(w3), released = c->dev.numerics == LF_RELEASED;
    const char *loses = released && w1->dtype == LF_I8 && !fold ? " that loses bits as e4m3" : "";
    int way = lf_cuda_choose(c, LF_CHOICE_EXPERTS, lf_cuda_expert_fits(c->dev.numerics, w1, w2, w3, fold),
                             "%s w1 of [%lld, %lld]%s, %s%s", lf_dtype_name(w1->dtype), (long long)w1->rows,
                             (long long)w1->cols, loses, lf_cuda_act_name(c), released ? ", released" : ", exact");

    return way < 0 ? LF_EXPERT_PLAIN : (lf_expert_way)way;
}

int lf_cuda_bank_wanted(lf_cuda *c, const lf_experts *e)
{
    int wanted = 0;

    for (int x = 0; x < e->experts; x++)
        wanted |= lf_cuda_expert_way(c, e, x) == LF_EXPERT_FOLDED;
    return wanted;
}

/* ---- open, close ---- */

/* What a layer computes with goes before what the next one will: the lowest priority. */
int lf_cuda_banks_open(lf_cuda *c, lf_err *err)
{
    lf_cuda_banks *s = c->banks = (lf_cuda_banks *)lf_alloc(sizeof *c->banks);
    int low = 0, high = 0;
    cudaError_t rc = cudaDeviceGetStreamPriorityRange(&low, &high);

    if (rc == cudaSuccess)
        rc = cudaStreamCreateWithPriority(&s->stream, cudaStreamNonBlocking, low);
    if (rc == cudaSuccess)
        rc = cudaEventCreateWithFlags(&s->before, cudaEventDisableTiming);
    for (int i = 0; i < LF_CUDA_BANKS && rc == cudaSuccess; i++)
        rc = cudaEventCreateWithFlags(&s->bank[i].filled, cudaEventDisableTiming);
    return rc == cudaSuccess ? 0 : lf_fail(err, "GPU %d could not be opened: %s", c->device, cudaGetErrorString(rc));
}

void lf_cuda_banks_free(lf_cuda *c)
{
    lf_cuda_banks *s = c->banks;

    if (!s)
        return;
    if (s->stream) {
        cudaStreamSynchronize(s->stream);
        cudaStreamDestroy(s->stream);
    }
    if (s->before)
        cudaEventDestroy(s->before);
    for (int i = 0; i < LF_CUDA_BANKS; i++)
        if (s->bank[i].filled)
            cudaEventDestroy(s->bank[i].filled);
    free(s);
    c->banks = NULL;
}

void lf_cuda_banks_wait(lf_cuda *c)
{
    for (int i = 0; i < LF_CUDA_BANKS && !c->failed; i++)
        lf_cuda_wait(c, c->banks->bank[i].filled, "waiting for experts to be expanded");
}

void lf_cuda_banks_forget(lf_cuda *c)
{
    for (int i = 0; i < LF_CUDA_BANKS; i++) {
        lf_cuda_bank *b = &c->banks->bank[i];
        b->key = NULL;
        b->fill = 0;
        b->waiting = 0;
    }
}

/* ---- fill ---- */

static lf_cuda_bank *find(lf_cuda_banks *s, const lf_experts *e)
{
    for (int i = 0; i < LF_CUDA_BANKS; i++)
        if (s->bank[i].key == e->w1[0].data && s->bank[i].experts == e->experts)
            return &s->bank[i];
    return NULL;
}

/* Which of them is needed least: one that nobody waits for, of two alike the one filled longer ago. */
static lf_cuda_bank *spare(lf_cuda_banks *s)
{
    lf_cuda_bank *best = &s->bank[0];

    for (int i = 1; i < LF_CUDA_BANKS; i++) {
        lf_cuda_bank *b = &s->bank[i];
        if (b->waiting < best->waiting || (b->waiting == best->waiting && b->fill < best->fill))
            best = b;
    }
    return best;
}

static int make_room(lf_cuda *c, lf_cuda_bank *b, const lf_experts *e)
{
    int i = (int)(b - c->banks->bank);

    b->experts = e->experts;
    b->hidden = e->w1[0].cols;
    b->inter = e->w1[0].rows;
    b->code_step = lf_cuda_bank_codes(b->hidden, b->inter);
    b->scale_step = lf_cuda_bank_scales(b->hidden, b->inter);
    b->code = (uint8_t *)lf_cuda_scratch(c, lf_cuda_bank_slot(i), (size_t)(b->code_step * b->experts));
    b->scale = (float *)lf_cuda_scratch(c, lf_cuda_bank_scale_slot(i),
                                        sizeof(float) * (size_t)(b->scale_step * b->experts));
    return b->code && b->scale ? 0 : -1;
}

/* What folds was found at load (lf_cuda_extra), so the kernels' own verdict is not asked for. */
static void expand(lf_cuda *c, const lf_cuda_bank *b, const lf_experts *e)
{
    lf_cuda_folding *f = (lf_cuda_folding *)lf_alloc(sizeof *f * 3 * (size_t)e->experts);
    int64_t ld1 = lf_cuda_scale_ld(b->hidden), ld2 = lf_cuda_scale_ld(b->inter);
    int n = 0;

    lf_cuda_fill(&c->dev, b->scale, 0, sizeof(float) * (size_t)(b->scale_step * b->experts));
    for (int x = 0; x < e->experts; x++) {
        uint8_t *code = b->code + x * b->code_step;
        float *scale = b->scale + x * b->scale_step;
        if (lf_cuda_expert_way(c, e, x) != LF_EXPERT_FOLDED)
            continue;
        f[n++] = { &e->w1[x], code, scale, ld1, NULL };
        f[n++] = { &e->w3[x], code + b->inter * b->hidden, scale + b->inter / 128 * ld1, ld1, NULL };
        f[n++] = { &e->w2[x], code + 2 * b->inter * b->hidden, scale + 2 * b->inter / 128 * ld1, ld2, NULL };
    }
    lf_cuda_fold(c, f, n);
    free(f);
    if (n / 3 < e->experts)
        lf_verbose("GPU %d: %d of a layer's %d experts lose bits as fp8 with 128x128 scales: these multiply in bf16",
                   c->device, e->experts - n / 3, e->experts);
}

/* NULL: recorded. */
static lf_cuda_bank *fill(lf_cuda *c, const lf_experts *e)
{
    lf_cuda_banks *s = c->banks;
    lf_cuda_bank *b = spare(s);
    cudaStream_t used = c->stream;

    b->key = NULL;
    if (make_room(c, b, e) || LF_CUDA(c, cudaEventRecord(s->before, used), "expanding experts") ||
        LF_CUDA(c, cudaStreamWaitEvent(s->stream, s->before, 0), "expanding experts"))
        return NULL;
    c->stream = s->stream;
    expand(c, b, e);
    c->stream = used;
    if (LF_CUDA(c, cudaEventRecord(b->filled, s->stream), "expanding experts") || c->failed)
        return NULL;
    b->key = e->w1[0].data;
    b->fill = ++s->fills;
    b->waiting = 0;
    return b;
}

const lf_cuda_bank *lf_cuda_bank_of(lf_cuda *c, const lf_experts *e)
{
    lf_cuda_banks *s = c->banks;
    lf_cuda_bank *b = find(s, e);

    if (!b) {
        if (!s->told++)
            lf_verbose("GPU %d%s%s: experts that were not prepared are expanded while their products wait", c->device,
                       c->where[0] ? ", " : "", c->where);
        b = fill(c, e);
    }
    if (!b || LF_CUDA(c, cudaStreamWaitEvent(c->stream, b->filled, 0), "waiting for experts to be expanded"))
        return NULL;
    b->waiting = 0;
    return b;
}

void lf_cuda_prepare(lf_dev *d, const lf_experts *e)
{
    lf_cuda *c = lf_cuda_of(d);
    int wanted = lf_cuda_bank_wanted(c, e);

    if (c->failed || !wanted)
        return;
    lf_cuda_bank *b = find(c->banks, e);
    if (!b)
        b = fill(c, e);
    if (b)
        b->waiting = 1;
}
