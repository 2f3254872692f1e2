/* SPDX-License-Identifier: Apache-2.0
 *
 * pairs and arrivals of the CPU against their definitions: a place is the number of pairs that come before.
 */
#include "tap.h"

#include "../src/dev.h"
#include "pairs_case.h"

/* Pair i comes before pair j when its expert does, or with the same one, when i < j. */
static void check_pairs(lf_dev *d, int64_t m, int k, int experts, pairs_kind kind)
{
    pairs_case c = pairs_make(m, k, experts, kind);
    int64_t n = m * k;
    int bad = 0;

    pairs_run(&c, d);
    for (int64_t i = 0; i < n; i++) {
        int64_t place = 0;
        for (int64_t j = 0; j < n; j++)
            place += c.expert[j] < c.expert[i] || (c.expert[j] == c.expert[i] && j < i);
        TAP_QUIET(bad, c.slot[i] == place && c.token[place] == i / k && c.weight[place] == c.of[i],
                  "pair %d: place %d, expected %d", (int)i, (int)c.slot[i], (int)place);
    }
    for (int e = 0; e < experts; e++) {
        int64_t count = 0;
        for (int64_t i = 0; i < n; i++)
            count += c.expert[i] == e;
        TAP_QUIET(bad, c.count[e] == count, "expert %d: %d pairs, expected %d", e, (int)c.count[e], (int)count);
    }
    TAP_CHECK(bad == 0, "pairs of %d rows, %d each of %d experts, %s", (int)m, k, experts, pairs_name(kind));
    pairs_free(&c);
}

/* Item i comes before item j when its expert does, or with the same one, when it lies before. */
static void check_arrivals(lf_dev *d, int senders, int experts, int most)
{
    arrivals_case c = arrivals_make(senders, experts, most);
    int *expert = lf_alloc(sizeof *expert * (size_t)c.received + 1), bad = 0;

    for (int64_t b = 0, at = 0; b < senders * experts; b++)
        for (int64_t i = 0; i < c.count[b]; i++)
            expert[at++] = (int)(b % experts);
    arrivals_run(&c, d);
    for (int64_t i = 0; i < c.received; i++) {
        int64_t place = 0;
        for (int64_t j = 0; j < c.received; j++)
            place += expert[j] < expert[i] || (expert[j] == expert[i] && j < i);
        TAP_QUIET(bad, c.home[i] == place && c.src[place] == i, "item %d: place %d, expected %d", (int)i,
                  (int)c.home[i], (int)place);
    }
    TAP_CHECK(bad == 0, "arrivals from %d senders for %d experts, %d in all", senders, experts, (int)c.received);
    free(expert);
    arrivals_free(&c);
}

int main(void)
{
    static const int64_t rows[] = { 0, 1, 3, 127, 500 };
    static const int chosen[] = { 1, 2, 3, 6, 8 }, among[] = { 8, 9, 64, 256, 384 };
    lf_model m = { .hidden = 64, .experts = 8, .experts_per_tok = 2, .index_dim = 32 };
    lf_dev *d;
    lf_err err;

    if (lf_cpu_open(&d, &m, LF_EXACT, 0, &err)) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    for (int r = 0; r < 5; r++)
        for (int i = 0; i < 5; i++)
            for (int kind = 0; kind < PAIRS_KINDS; kind++)
                check_pairs(d, rows[r], chosen[i], among[(r + i) % 5], kind);
    check_pairs(d, 300, 1, 4, PAIRS_ONE);              /* all to one expert */
    check_arrivals(d, 1, 1, 5);
    check_arrivals(d, 2, 3, 0);
    check_arrivals(d, 4, 64, 9);
    check_arrivals(d, 8, 48, 7);
    check_arrivals(d, 64, 6, 3);
    lf_dev_close(d);
    return tap_done();
}
