/* SPDX-License-Identifier: Apache-2.0 */
#include "grid.h"

#include <string.h>

#include "tap.h"

static lf_model model_of(int heads, int o_groups, int experts)
{
    lf_model m;

    memset(&m, 0, sizeof m);
    m.heads = heads;
    m.o_groups = o_groups;
    m.experts = experts;
    return m;
}

static void test_ranks(void)
{
    lf_model m = model_of(64, 8, 256);
    lf_grid g;
    lf_err err;
    int bad = 0;

    for (int rank = 0; rank < 24 * 2; rank++) {
        int ok = lf_grid_make(&g, &m, 48, rank, 3, 8, 2, &err) == 0;
        TAP_QUIET(bad, ok && (g.dp_rank * 8 + g.pcp_rank) * 2 + g.tp_rank == rank && g.rank == rank,
                  "rank %d", rank);
        TAP_QUIET(bad, ok && g.ep == 16 && g.ep_rank == g.pcp_rank * 2 + g.tp_rank, "rank %d in its group",
                  rank);
        TAP_QUIET(bad, ok && g.dp_rank < 3 && g.pcp_rank < 8 && g.tp_rank < 2, "rank %d out of the grid",
                  rank);
    }
    TAP_CHECK(bad == 0, "48 ranks of 3 x 8 x 2: tp adjacent, then pcp, then dp");
    TAP_CHECK(lf_grid_make(&g, &m, 1, 0, 0, 0, 0, &err) == 0 && g.dp == 1 && g.pcp == 1 && g.tp == 1 &&
              g.ep == 1 &&
              g.rank == 0 && g.ep_rank == 0, "one rank is the grid 1 x 1 x 1");
}

static int chosen(int world, int dp, int pcp, int tp, int dp2, int pcp2, int tp2)
{
    lf_model m = model_of(64, 8, 256);
    lf_grid g;
    lf_err err;

    return lf_grid_make(&g, &m, world, 0, dp, pcp, tp,
                        &err) == 0 && g.dp == dp2 && g.pcp == pcp2 && g.tp == tp2;
}

static void test_chosen(void)
{
    TAP_CHECK(chosen(6, 0, 0, 0, 6, 1, 1), "nothing given: all to dp");
    TAP_CHECK(chosen(8, 0, 4, 0, 2, 4, 1), "pcp given: the rest to dp");
    TAP_CHECK(chosen(8, 0, 2, 2, 2, 2, 2), "pcp and tp given: the rest to dp");
    TAP_CHECK(chosen(8, 1, 0, 0, 1, 8, 1), "dp given: the rest to pcp");
    TAP_CHECK(chosen(8, 1, 0, 4, 1, 2, 4), "dp and tp given: the rest to pcp");
    TAP_CHECK(chosen(8, 2, 2, 0, 2, 2, 2), "dp and pcp given: the rest to tp");
    TAP_CHECK(chosen(8, 0, 0, 8, 1, 1, 8), "tp given: the rest to dp");
}

/* Refused, and the message holds all of the words. */
static int refused(const lf_model *m, int world, int rank, const int *size, const char *const *word)
{
    lf_grid g = { .dp = -7 };
    lf_err err = { "" };

    if (lf_grid_make(&g, m, world, rank, size[0], size[1], size[2], &err) != -1 || g.dp != -7)
        return 0;
    for (; *word; word++)
        if (!strstr(err.text, *word)) {
            printf("# \"%s\" is not in: %s\n", *word, err.text);
            return 0;
        }
    return strchr(err.text, '\n') == NULL;
}

#define REFUSED(m, world, rank, dp, pcp, tp, ...) \
    refused(m, world, rank, (const int[]){ dp, pcp, tp }, (const char *const[]){ __VA_ARGS__, NULL })

static void test_refused(void)
{
    lf_model m = model_of(64, 8, 256), odd = model_of(12, 4, 6);

    TAP_CHECK(REFUSED(&m, 4, 0, 2, 3, 1, "pcp 3 x tp 1 = 3", "256 experts", "may be 1, 2, 4, 8, 16",
                      "2 x 2 x 1"),
              "pcp that does not divide the experts");
    TAP_CHECK(REFUSED(&m, 16, 0, 0, 0, 16, "tp 16", "64 heads", "8 output groups", "tp may be 1, 2, 4, 8;",
                      "16 x 1 x 1"),
              "tp that does not divide the output groups");
    TAP_CHECK(REFUSED(&odd, 3, 0, 1, 1, 3, "tp 3", "tp may be 1, 2, 4;", "3 x 1 x 1", "1 x 3 x 1"),
              "tp that divides the heads but not the groups");
    TAP_CHECK(REFUSED(&m, 4, 0, 2, 4, 1, "has 8 ranks", "4 were started", "start 8", "of 4: ", "2 x 2 x 1",
                      "1 x 4 x 1"),
              "too few ranks");
    TAP_CHECK(REFUSED(&m, 8, 0, 1, 2, 2, "has 4 ranks", "8 were started", "2 x 2 x 2", "1 x 4 x 2"),
              "too many ranks");
    TAP_CHECK(REFUSED(&m, 7, 0, 0, 2, 0, "has 6 ranks", "7 were started", "7 x 1 x 1"),
              "a world that pcp does not divide");
    TAP_CHECK(REFUSED(&m, 2, 0, 0, 4, 0, "has 4 ranks", "2 were started"), "pcp larger than the world");
    TAP_CHECK(REFUSED(&m, 4, 4, 1, 1, 4, "rank 4 of 4"), "a rank outside the world");
    TAP_CHECK(REFUSED(&m, 4, 0, -1, 1, 4, "1 or more"), "a negative size");
    TAP_CHECK(REFUSED(&m, 4, 0, 2000000000, 256, 1, "x pcp 256"), "a product beyond 32 bits");
    TAP_CHECK(REFUSED(&m, 4, 0, 1, 2000000000, 2000000000, "tp 2000000000"), "sizes far too large");
    TAP_CHECK(REFUSED(&m, 1 << 20, 0, 3, 1, 1, "1048576 were", " more"), "a long list is cut");
}

int main(void)
{
    test_ranks();
    test_chosen();
    test_refused();
    return tap_done();
}
