/* SPDX-License-Identifier: Apache-2.0
 *
 * pairs and arrivals on the GPU: the same numbers as the CPU's, which t_pairs compares with their definitions.
 */
#include "gpu_pair.h"
#include "pairs_case.h"

static void check_pairs(pair *p, int64_t m, int k, int experts, pairs_kind kind)
{
    pairs_case g = pairs_make(m, k, experts, kind), c = pairs_make(m, k, experts, kind);
    size_t bytes = 4 * (size_t)(m * k);
    int kept = pairs_run(&g, p->dev[PAIR_GPU]) & pairs_run(&c, p->dev[PAIR_CPU]);

    TAP_CHECK(memcmp(g.slot, c.slot, bytes) == 0 && memcmp(g.token, c.token, bytes) == 0 &&
              memcmp(g.weight, c.weight, bytes) == 0 && memcmp(g.count, c.count, 4 * (size_t)experts) == 0,
              "pairs of %d rows, %d each of %d experts, %s", (int)m, k, experts, pairs_name(kind));
    TAP_CHECK(kept, "  and nothing behind the output");
    pair_sync(p, "pairs");
    pairs_free(&g);
    pairs_free(&c);
}

static void check_arrivals(pair *p, int senders, int experts, int most)
{
    arrivals_case g = arrivals_make(senders, experts, most), c = arrivals_make(senders, experts, most);
    size_t bytes = 4 * (size_t)c.received;
    int kept = arrivals_run(&g, p->dev[PAIR_GPU]) & arrivals_run(&c, p->dev[PAIR_CPU]);

    TAP_CHECK(memcmp(g.src, c.src, bytes) == 0 && memcmp(g.home, c.home, bytes) == 0,
              "arrivals from %d senders for %d experts, %d in all", senders, experts, (int)c.received);
    TAP_CHECK(kept, "  and nothing behind the output");
    pair_sync(p, "arrivals");
    arrivals_free(&g);
    arrivals_free(&c);
}

int main(void)
{
    static const int64_t rows[] = { 0, 1, 3, 31, 32, 33, 127, 128, 129, 255, 1000, 1024, 8192, 20000 };
    static const int among[] = { 8, 33, 64, 255, 256, 384, 512 };
    lf_model m = { .vocab = 100, .hidden = 64, .experts = 8, .experts_per_tok = 2, .hc = 4, .index_dim = 32 };
    pair p;

    if (!pair_gpu("pairs"))
        return tap_done();
    pair_open(&p, &m, LF_EXACT, 4);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int k = 1; k <= 8; k++)
            for (int kind = 0; kind < PAIRS_KINDS; kind++)
                check_pairs(&p, rows[r], k, among[(r + (size_t)(3 * k + kind)) % 7], kind);
    check_pairs(&p, 5000, 4, 4, PAIRS_EVEN);           /* every expert */
    check_pairs(&p, 100000, 1, 4, PAIRS_ONE);          /* one expert gets all */
    check_pairs(&p, 300000, 8, 384, PAIRS_EVEN);
    check_arrivals(&p, 1, 1, 5);
    check_arrivals(&p, 2, 3, 0);
    check_arrivals(&p, 1, 256, 400);
    check_arrivals(&p, 2, 128, 1000);
    check_arrivals(&p, 8, 32, 3000);
    check_arrivals(&p, 64, 6, 1000);
    check_arrivals(&p, 384, 1, 100);
    pair_close(&p);
    return tap_done();
}
