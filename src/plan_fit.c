/* SPDX-License-Identifier: Apache-2.0 */
#include "plan_fit.h"

#include <stdio.h>
#include <stdlib.h>

/* Weights are made up by one core at some 50 MB a second and rank: beyond this nobody waits for them. */
#define MADE_UP_BYTES ((int64_t)16 << 30)

/* Kernels that are loaded with their first call, NCCL's buffers. */
#define LIBRARY_BYTES ((int64_t)512 << 20)

static void describe(lf_plan *p, const lf_fit *f)
{
    p->numerics = f->dev->numerics;
    p->act_bytes = f->dev->act_bytes;
    p->on_host = !f->dev->ops->left;
    p->made_up = !f->checkpoint;
    p->kernels = f->dev->kernels;
    p->merge = f->merge;
    p->tile = f->tile;
    p->kv_dtype = f->kv_dtype;
    p->logits = f->logits;
}

/* The fullest pass. */
static void fullest(lf_plan *p, const lf_fit *f, int64_t passes, const int *n, const int64_t *lengths,
                    lf_plan_grid *most)
{
    lf_plan_grid g = { .grid = f->grid };

    p->tokens = 0;
    for (int64_t i = 0, k = 0; i < passes; i++)
        for (int j = 0; j < n[i]; j++)
            p->tokens += lengths[k++];
    lf_plan_weights_size(p, &g);
    *most = g;
    for (int64_t i = 0; i < passes; lengths += n[i++]) {
        p->lengths = lengths;
        p->prompts = n[i];
        p->length = lengths[0];
        lf_plan_pass_size(p, &g);
        lf_plan_most(most, &g);
    }
}

/* The smallest grid that would do for the longest prompt, as part of all ranks where they can be shared out so. */
static char *advice(lf_plan *p, const lf_fit *f, int64_t longest)
{
    int all = f->grid.dp * f->grid.ep;
    lf_plan_grid g;
    char each[24];

    p->lengths = NULL;
    p->length = longest;
    int none = lf_plan_smallest(p, &g), ep = g.grid.pcp * g.grid.tp, dp = all % ep || none ? 1 : all / ep;
    lf_human_bytes(each, (double)g.device_bytes);
    if (none)
        return lf_printf("no grid fits, least takes 1 x %d x %d with %s", g.grid.pcp, g.grid.tp, each);
    return lf_printf("%d rank%s would do, as %d x %d x %d with %s each", dp * ep, lf_s(dp * ep), dp, g.grid.pcp,
                     g.grid.tp, each);
}

static int refuse(lf_plan *p, const lf_fit *f, const lf_plan_grid *g, int64_t tokens, int64_t left, lf_err *err)
{
    char need[24], have[24], weights[24], expanded[24], kernels[24], pass[24];
    char *other = advice(p, f, tokens);

    lf_fail(err, "a prompt of %lld token%s on the grid %d x %d x %d needs %s of device memory on this rank (weights "
            "%s, expanded experts %s, kernels %s, pass %s, its tiles of %lld tokens), and %s can be had on %s: %s; "
            "shorter prompts take less%s",
            (long long)tokens, lf_s(tokens), f->grid.dp, f->grid.pcp, f->grid.tp,
            lf_human_bytes(need, (double)g->device_bytes), lf_human_bytes(weights, (double)g->weights),
            lf_human_bytes(expanded, (double)g->expanded), lf_human_bytes(kernels, (double)g->kernels),
            lf_human_bytes(pass, (double)g->pass_bytes), (long long)g->tile, lf_human_bytes(have, (double)left),
            f->dev->name, other, f->grid.pcp > 1 && !f->merge ? ", so does --pcp-attention merge" : "");
    free(other);
    return -1;
}

static int refuse_host(const lf_fit *f, const lf_plan_grid *g, int64_t tokens, int64_t left, lf_err *err)
{
    char need[24], have[24], weights[24], pass[24], host[24];

    return lf_fail(err, "a prompt of %lld token%s on the grid %d x %d x %d needs %s of memory on this rank (weights "
                   "%s, pass %s, output and prompts %s), and of what is free on this node %s come to each of the "
                   "prompt's %lld rank%s on it: more nodes with a larger pcp, GPUs, or shorter prompts",
                   (long long)tokens, lf_s(tokens), f->grid.dp, f->grid.pcp, f->grid.tp,
                   lf_human_bytes(need, (double)lf_plan_on_host(g)),
                   lf_human_bytes(weights, (double)g->weights), lf_human_bytes(pass, (double)g->pass_bytes),
                   lf_human_bytes(host, (double)(lf_plan_on_host(g) - g->device_bytes)),
                   lf_human_bytes(have, (double)left), (long long)f->sharing, lf_s(f->sharing));
}

int64_t lf_host_free(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    long long kib = -1;
    char line[256];

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib < 0 ? -1 : 1024 * kib;
}

int64_t lf_plan_left(const lf_fit *f)
{
    lf_dev *d = f->dev;
    int64_t left = d->ops->left ? d->ops->left(d) : f->sharing ? lf_host_free() : -1;

    if (left >= 0 && !d->ops->left)
        return left / f->sharing;
    return left < 0 ? -1 : lf_max(0, left + (int64_t)d->taken - LIBRARY_BYTES);        /* plans have what is taken */
}

int lf_plan_fullest(const lf_fit *f, int64_t passes, const int *n, const int64_t *lengths, lf_plan_grid *most,
                    lf_err *err)
{
    lf_plan p;
    int bad = lf_plan_open(&p, f->model, f->checkpoint, err);

    if (!bad) {
        describe(&p, f);
        fullest(&p, f, passes, n, lengths, most);
    }
    lf_plan_free(&p);
    return bad;
}

int lf_plan_fits(const lf_fit *f, int64_t passes, const int *n, const int64_t *lengths, int64_t *tile, lf_err *err)
{
    int64_t left = lf_plan_left(f), longest = 0, all = 0;
    lf_plan_grid most = { 0 };
    lf_plan p;

    *tile = lf_engine_tile(f->dev->tile, &f->grid, f->merge);
    if (left < 0 || passes == 0)
        return 0;
    for (int64_t i = 0; i < passes; i++)
        all += n[i];
    for (int64_t i = 0; i < all; i++)
        longest = lf_max(longest, lengths[i]);
    int bad = lf_plan_open(&p, f->model, f->checkpoint, err);
    if (!bad) {
        describe(&p, f);
        p.memory = left;
        for (int64_t t = lf_plan_tile(&p, &f->grid); t; t = lf_plan_tile_half(&p, &f->grid, t)) {
            p.tile = *tile = t;
            fullest(&p, f, passes, n, lengths, &most);
            if (most.device_bytes <= left)
                break;
        }
        if (p.on_host && lf_plan_on_host(&most) > left)
            bad = refuse_host(f, &most, longest, left, err);
        else if (most.device_bytes > left)
            bad = refuse(&p, f, &most, longest, left, err);
    }
    lf_plan_free(&p);
    return bad;
}

int lf_plan_made_up_bytes(int64_t weights, lf_err *err)
{
    char need[24], have[24];

    if (weights <= MADE_UP_BYTES)
        return 0;
    return lf_fail(err, "--weights dummy: %s of made-up weights a rank take too long on a CPU (at most %s): a smaller "
                   "model, more ranks, or a GPU", lf_human_bytes(need, (double)weights),
                   lf_human_bytes(have, (double)MADE_UP_BYTES));
}

int lf_plan_made_up(const lf_fit *f, lf_err *err)
{
    lf_plan_grid g = { .grid = f->grid };
    lf_plan p;

    if (f->checkpoint || f->dev->ops->left)
        return 0;
    int bad = lf_plan_open(&p, f->model, NULL, err);
    if (!bad) {
        describe(&p, f);
        lf_plan_weights_size(&p, &g);
        bad = lf_plan_made_up_bytes(g.weights, err);
    }
    lf_plan_free(&p);
    return bad;
}
