/* SPDX-License-Identifier: Apache-2.0 */
#include "grid.h"

#include <stdio.h>
#include <stdlib.h>

static int tp_works(const lf_model *m, int64_t tp)
{
    return m->heads % tp == 0 && m->o_groups % tp == 0;
}

static int ep_works(const lf_model *m, int64_t ep)
{
    return m->experts % ep == 0;
}

typedef struct lf_grid_text {
    char at[512];
    size_t used;
    int left_out;
} lf_grid_text;

static void text_add(lf_grid_text *t, const char *word)
{
    size_t room = sizeof t->at - t->used;
    int n = t->left_out ? -1 : snprintf(t->at + t->used, room, "%s%s", t->used ? ", " : "", word);

    if (n < 0 || (size_t)n >= room || t->used + (size_t)n > 200)
        t->left_out++;
    else
        t->used += (size_t)n;
    t->at[t->used] = 0;
}

static const char *text_end(lf_grid_text *t)
{
    if (t->left_out)
        snprintf(t->at + t->used, sizeof t->at - t->used, " and %d more", t->left_out);
    return t->at;
}

/* The grids of `world` ranks that divide the model, those that keep most of what was asked for first. */
static const char *grids_that_work(lf_grid_text *t, const lf_model *m, int world, const int *asked)
{
    for (int keep = 3; keep >= 0; keep--)
        for (int tp = 1; tp <= world; tp++) {
            if (world % tp || !tp_works(m, tp))
                continue;
            for (int pcp = 1; pcp <= world / tp; pcp++) {
                char word[64];
                int dp = world / tp / pcp;
                int kept = (asked[0] == dp) + (asked[1] == pcp) + (asked[2] == tp);
                if (world / tp % pcp || kept != keep || !ep_works(m, (int64_t)pcp * tp))
                    continue;
                snprintf(word, sizeof word, "%d x %d x %d", dp, pcp, tp);
                text_add(t, word);
            }
        }
    return text_end(t);
}

static const char *tps_that_work(lf_grid_text *t, const lf_model *m)
{
    for (int tp = 1; tp <= m->heads && tp <= m->o_groups; tp++) {
        char word[16];
        snprintf(word, sizeof word, "%d", tp);
        if (tp_works(m, tp))
            text_add(t, word);
    }
    return text_end(t);
}

static const char *eps_that_work(lf_grid_text *t, const lf_model *m)
{
    for (int ep = 1; ep <= m->experts; ep++) {
        char word[16];
        snprintf(word, sizeof word, "%d", ep);
        if (ep_works(m, ep))
            text_add(t, word);
    }
    return text_end(t);
}

/* Sizes of 0: when dp is given pcp takes what is left, or tp when pcp is given too; otherwise dp does.
 * What cannot be had stays 1 and is refused by the product. */
static void sizes_choose(int world, int *dp, int *pcp, int *tp)
{
    if (*dp && !*pcp) {
        int64_t others = (int64_t)*dp * (*tp ? *tp : 1);
        *pcp = others <= world ? (int)(world / others) : 1;
    }
    *tp = *tp ? *tp : *dp && *pcp && (int64_t)*dp * *pcp <= world ? (int)(world / ((int64_t)*dp * *pcp)) : 1;
    *pcp = *pcp ? *pcp : 1;
    int64_t others = (int64_t)*pcp * *tp;
    *dp = *dp ? *dp : others <= world ? (int)(world / others) : 1;
}

/* dp * pcp * tp, or -1 when that is more than any world. */
static int64_t ranks_of(int dp, int pcp, int tp)
{
    int64_t ep = (int64_t)pcp * tp;

    return ep > INT32_MAX ? -1 : ep * dp;
}

static int grid_check(const lf_model *m, int world, int dp, int pcp, int tp, const int *asked, lf_err *err)
{
    lf_grid_text sizes = { 0 }, grids = { 0 };
    const char *work = grids_that_work(&grids, m, world, asked);
    int64_t ranks = ranks_of(dp, pcp, tp);

    if (!tp_works(m, tp))
        return lf_fail(err, "tp %d does not divide the model's %d head%s and %d output group%s: tp may be %s; "
                       "grids (dp x pcp x tp) of %d rank%s that work: %s",
                       tp, m->heads, lf_s(m->heads), m->o_groups, lf_s(m->o_groups), tps_that_work(&sizes, m), world,
                       lf_s(world), work);
    if (!ep_works(m, (int64_t)pcp * tp))
        return lf_fail(err,
                       "pcp %d x tp %d = %lld does not divide the model's %d expert%s: pcp x tp may be %s; "
                       "grids (dp x pcp x tp) of %d rank%s that work: %s",
                       pcp, tp, (long long)pcp * tp, m->experts, lf_s(m->experts), eps_that_work(&sizes, m), world,
                       lf_s(world), work);
    if (ranks < 0)
        return lf_fail(err, "a grid of dp %d x pcp %d x tp %d has more ranks than there can be; "
                       "grids of %d rank%s that work: %s", dp, pcp, tp, world, lf_s(world), work);
    if (ranks != world)
        return lf_fail(err,
                       "the grid dp %d x pcp %d x tp %d has %lld rank%s, but %d %s started: start %lld, "
                       "or take one of these grids (dp x pcp x tp) of %d: %s",
                       dp, pcp, tp, (long long)ranks, lf_s(ranks), world, world == 1 ? "was" : "were",
                       (long long)ranks, world, work);
    return 0;
}

int lf_grid_make(lf_grid *g, const lf_model *m, int world, int rank, int dp, int pcp, int tp, lf_err *err)
{
    int asked[] = { dp, pcp, tp };

    if (world < 1 || rank < 0 || rank >= world)
        return lf_fail(err, "rank %d of %d does not exist", rank, world);
    if (dp < 0 || pcp < 0 || tp < 0)
        return lf_fail(err, "dp %d, pcp %d, tp %d: sizes are 1 or more, or 0 to have them chosen", dp, pcp,
                       tp);
    sizes_choose(world, &dp, &pcp, &tp);
    if (grid_check(m, world, dp, pcp, tp, asked, err))
        return -1;
    *g = (lf_grid){ .dp = dp, .pcp = pcp, .tp = tp, .rank = rank, .ep = pcp * tp };
    g->tp_rank = rank % tp;
    g->pcp_rank = rank / tp % pcp;
    g->dp_rank = rank / tp / pcp;
    g->ep_rank = rank % g->ep;
    return 0;
}

int lf_grid_parse(const char *text, int size[3], lf_err *err)
{
    const char *at = text;

    for (int i = 0; i < 3; i++) {
        char *end = (char *)(uintptr_t)at;
        long v = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : 0;
        if (v < 1 || v > INT32_MAX || *end != (i < 2 ? 'x' : 0))
            return lf_fail(err, "'%.64s' is not a grid: it is written DPxPCPxTP, such as 1x4x1", text);
        size[i] = (int)v;
        at = end + 1;
    }
    return 0;
}
