/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

typedef int take(void *ctx, int i, const char *word, lf_err *err);

/* The words between commas. */
static int each_word(const char *text, const char *option, take *one, void *ctx, int *n, lf_err *err)
{
    *n = 0;
    for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char word[64];
        size_t len = strcspn(at, ",");
        if (*n == LF_BENCH_MOST)
            return lf_fail(err, "--%s: at most %d of them", option, LF_BENCH_MOST);
        snprintf(word, sizeof word, "%.*s", (int)lf_min((int64_t)len, 63), at);
        if (one(ctx, *n, word, err))
            return lf_fail_in(err, "--%s", option);
        ++*n;
    }
    return 0;
}

static int grid_take(void *ctx, int i, const char *word, lf_err *err)
{
    lf_bench_grid *g = (lf_bench_grid *)ctx + i;
    int size[3];

    if (lf_grid_parse(word, size, err))
        return -1;
    g->dp = size[0];
    g->pcp = size[1];
    g->tp = size[2];
    snprintf(g->name, sizeof g->name, "%dx%dx%d", size[0], size[1], size[2]);
    return 0;
}

static int length_take(void *ctx, int i, const char *word, lf_err *err)
{
    int64_t *length = (int64_t *)ctx + i;

    if (lf_size_parse(word, length) || *length < 1)
        return lf_fail(err, "'%s' is not a length: whole numbers from 1 on, with k or m for powers of 1024", word);
    return 0;
}

int lf_bench_grids(const char *text, lf_bench_grid *grid, int *n, lf_err *err)
{
    return each_word(text, "grids", grid_take, grid, n, err);
}

int lf_bench_lengths(const char *text, int64_t *length, int *n, lf_err *err)
{
    return each_word(text, "lengths", length_take, length, n, err);
}
