/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

static void test_lists(void)
{
    lf_bench_grid g[LF_BENCH_MOST];
    int64_t length[LF_BENCH_MOST];
    char many[4 * LF_BENCH_MOST + 8] = "1";
    lf_err err;
    int n;

    TAP_CHECK(!lf_bench_grids("1x4x1,2x1x2", g, &n, &err) && n == 2 && g[0].pcp == 4 && g[1].dp == 2 && g[1].tp == 2 &&
                  !strcmp(g[1].name, "2x1x2"),
              "grids");
    TAP_CHECK(!lf_bench_grids("1x1x1,1x1x1", g, &n, &err) && n == 2, "one grid twice shows the noise");
    TAP_CHECK(!lf_bench_lengths("8k,1m,5", length, &n, &err) && n == 3 && length[0] == 8192 && length[1] == 1 << 20 &&
                  length[2] == 5,
              "lengths with k and m");
    for (const char *const *bad = (const char *const[]){ "", "1x1", "1x1x1x1", "0x1x1", "1x1x-1", "1x1x1,", "ax1x1",
                                                         "1x1x 1", "2147483648x1x1", NULL };
         *bad; bad++)
        TAP_CHECK(lf_bench_grids(*bad, g, &n, &err) && strstr(err.text, "--grids: '") && strstr(err.text, "DPxPCPxTP"),
                  "'%s' is no list of grids", *bad);
    for (const char *const *bad = (const char *const[]){ "", "0", "-5", "8x", "1,,2", ",1", "9999999999999999999",
                                                         NULL };
         *bad; bad++)
        TAP_CHECK(lf_bench_lengths(*bad, length, &n, &err) && strstr(err.text, "--lengths: '"),
                  "'%s' is no list of lengths", *bad);
    for (int i = 0; i < LF_BENCH_MOST; i++)
        strcat(many, ",1");
    TAP_CHECK(lf_bench_lengths(many, length, &n, &err) && strstr(err.text, "at most 64"), "65 lengths are too many");
}

/* Two passes on two ranks of a world of three; the third waits. */
static void test_reduce(void)
{
    lf_bench_sample s[6] = { 0 };
    lf_bench_cell c = { .length = 1000, .grid = { .dp = 2, .pcp = 1, .tp = 1 }, .ranks = 2 };

    s[0] = (lf_bench_sample){ .took_part = 1, .ttft_s = 1, .compute_s = 2, .kv_bytes = 10, .peak_device_bytes = 7,
                              .pcp_sent = 3, .pcp_expected = 3 };
    s[1] = (lf_bench_sample){ .took_part = 1, .ttft_s = 1.5, .compute_s = 1.6, .kv_bytes = 30, .peak_device_bytes = 9,
                              .pcp_sent = 4, .pcp_expected = 4 };
    s[3] = s[0];
    s[3].ttft_s = 2.5;
    s[3].compute_s = 4;
    s[4] = s[1];
    for (int i = 0; i < 6; i++)
        s[i].phase_s[LF_PHASE_MOE] = i == 2 || i == 5 ? 0 : 1 + i;
    lf_bench_reduce(&c, s, 2, 3);
    TAP_NEAR(c.ttft_s, 2, 1e-12, "median over passes of the largest over ranks");
    TAP_NEAR(c.ttft_min_s, 1.5, 0, "least");
    TAP_NEAR(c.ttft_max_s, 2.5, 0, "most");
    TAP_NEAR(c.rate, 750, 1e-9, "two prompts over the slowest rank's time");
    TAP_NEAR(c.rate_min, 500, 1e-9, "least");
    TAP_NEAR(c.rate_max, 1000, 1e-9, "most");
    TAP_NEAR(c.rate_rank, 375, 1e-9, "a rank");
    TAP_NEAR(c.phase_s[LF_PHASE_MOE], (1 + 2 + 4 + 5) / 4., 1e-12, "phases: mean over passes and ranks of the grid");
    TAP_CHECK(c.kv_bytes == 40 && c.pcp_sent == 7 && c.pcp_expected == 7 && c.peak_device_bytes == 9,
              "bytes of one pass, the fullest rank");
    s[4].pcp_expected = -1;
    lf_bench_reduce(&c, s, 2, 3);
    TAP_CHECK(c.pcp_expected == -1, "what one rank does not know is not known");
}

static void test_compare(void)
{
    lf_bench b = { .grids = 2, .lengths = 2 };
    lf_bench_cell cell[4] = { { .ttft_s = 4, .rate = 100 }, { .ttft_s = 3, .rate = 150 },
                              { .ttft_s = 1, .rate = 10 }, { .ttft_s = 2, .rate = 4 } };

    b.cell = cell;
    lf_bench_compare(&b);
    TAP_NEAR(cell[1].ttft_less, 25, 1e-12, "a quarter less time");
    TAP_NEAR(cell[1].rate_more, 50, 1e-12, "half as much again");
    TAP_NEAR(cell[3].ttft_less, -100, 1e-12, "twice the time");
    TAP_NEAR(cell[3].rate_more, -60, 1e-12, "each length has its own first");
    TAP_CHECK(isnan(cell[0].ttft_less) && isnan(cell[2].rate_more), "the first is compared with nothing");
}

int main(void)
{
    test_lists();
    test_reduce();
    test_compare();
    return tap_done();
}
