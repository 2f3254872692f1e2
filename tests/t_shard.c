/* SPDX-License-Identifier: Apache-2.0 */
#include "shard.h"

#include <stdlib.h>

#include "tap.h"

enum { MAX_PCP = 16, MAX_SEQ = 4, MAX_RUNS = 2 * MAX_PCP };

/* One random pass: the shards of all its ranks. */
typedef struct lf_pass {
    int pcp, window, sequences;
    int64_t length[MAX_SEQ];
    lf_shard rank[MAX_PCP];
} lf_pass;

typedef struct lf_bad {
    int owned, local, rows, halo, order, lookup, cut;
} lf_bad;

static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* 1 .. 2^bits, every magnitude as often; often at a block boundary or a token beside it. */
static int64_t random_length(uint64_t *state, int bits)
{
    unsigned magnitude = (unsigned)(random_next(state) % (unsigned)(bits + 1));
    int64_t n = 1 + (int64_t)(random_next(state) >> 11) % ((int64_t)1 << magnitude);

    if (random_next(state) % 3 == 0)
        n = lf_max(1, lf_round_up(n, LF_BLOCK) + (int64_t)(random_next(state) % 9) - 4);
    return n;
}

static void pass_make(lf_pass *p, uint64_t *state, int bits)
{
    static const int window[] = { 1, 2, 5, 64, 127, 128, 129, 300, 513, 1024 };

    p->pcp = 1 + (int)(random_next(state) % MAX_PCP);
    p->window = window[random_next(state) % 10];
    p->sequences = 1 + (int)(random_next(state) % MAX_SEQ);
    for (int q = 0; q < p->sequences; q++)
        p->length[q] = random_length(state, bits);
    for (int r = 0; r < p->pcp; r++)
        lf_shard_make(&p->rank[r], p->pcp, r, p->window, p->sequences, p->length);
}

static void pass_free(lf_pass *p)
{
    for (int r = 0; r < p->pcp; r++)
        lf_shard_free(&p->rank[r]);
}

typedef struct lf_owned {
    lf_run run;
    int rank;
} lf_owned;

static int by_position(const void *a, const void *b)
{
    const lf_owned *x = a, *y = b;

    return (x->run.pos0 > y->run.pos0) - (x->run.pos0 < y->run.pos0);
}

/* The runs of a sequence on all ranks, by position. */
static int runs_of(const lf_pass *p, int seq, lf_owned *out)
{
    int n = 0;

    for (int r = 0; r < p->pcp; r++)
        for (int i = 0; i < p->rank[r].runs; i++)
            if (p->rank[r].run[i].seq == seq)
                out[n++] = (lf_owned){ p->rank[r].run[i], r };
    qsort(out, (size_t)n, sizeof *out, by_position);
    return n;
}

static void check_owned(const lf_pass *p, int seq, lf_bad *bad)
{
    lf_owned own[MAX_RUNS];
    int n = runs_of(p, seq, own);
    int64_t next = 0, next4 = 0, next128 = 0, first, count;

    for (int i = 0; i < n; i++) {
        const lf_run *r = &own[i].run;
        TAP_QUIET(bad->owned, r->pos0 == next && r->len > 0 && r->pos0 % LF_BLOCK == 0,
                  "L %lld pcp %d: run at %lld", (long long)p->length[seq], p->pcp, (long long)r->pos0);
        TAP_QUIET(bad->owned, i == 0 || own[i - 1].rank != own[i].rank, "touching runs of rank %d",
                  own[i].rank);
        next = r->pos0 + r->len;
        lf_run_blocks(r, 4, &first, &count);
        TAP_QUIET(bad->rows, first == next4 && count >= 0, "ratio 4, L %lld", (long long)p->length[seq]);
        next4 = first + count;
        lf_run_blocks(r, 128, &first, &count);
        TAP_QUIET(bad->rows, first == next128 && count >= 0, "ratio 128, L %lld", (long long)p->length[seq]);
        next128 = first + count;
    }
    TAP_QUIET(bad->owned, next == p->length[seq], "L %lld pcp %d: ends at %lld", (long long)p->length[seq],
              p->pcp, (long long)next);
    TAP_QUIET(bad->rows, next4 == p->length[seq] / 4 && next128 == p->length[seq] / 128,
              "L %lld: %lld and %lld rows", (long long)p->length[seq], (long long)next4, (long long)next128);
}

static void check_local(const lf_pass *p, lf_bad *bad)
{
    for (int k = 0; k < p->pcp; k++) {
        const lf_shard *s = &p->rank[k];
        int64_t row = 0, kv = 0;
        for (int i = 0; i < s->runs; i++) {
            const lf_run *r = &s->run[i], *b = i ? r - 1 : NULL;
            TAP_QUIET(bad->local, !b || b->seq < r->seq || (b->seq == r->seq && b->pos0 + b->len < r->pos0),
                      "rank %d run %d is out of order", k, i);
            TAP_QUIET(bad->local, r->row0 == row && r->kv_row0 == kv, "rank %d run %d: rows", k, i);
            TAP_QUIET(bad->local, r->halo == (r->pos0 < p->window - 1 ? r->pos0 : p->window - 1), "halo %d",
                      r->halo);
            row += r->len;
            kv += r->halo + r->len;
        }
        TAP_QUIET(bad->local, s->rows == row && s->kv_rows == kv, "rank %d: totals", k);
    }
}

/* Every run that has something before it gets all of it, each stretch whole from one run of its owner. */
static void check_halos(const lf_pass *p, int width, lf_bad *bad)
{
    lf_halo *h, *other;
    int n = lf_shard_halos(&p->rank[0], width, &h), at = 0;
    int again = lf_shard_halos(&p->rank[p->pcp - 1], width, &other);

    TAP_QUIET(bad->order, n == again, "%d and %d transfers", n, again);
    for (int i = 0; i < n && i < again; i++)
        TAP_QUIET(bad->order, h[i].seq == other[i].seq && h[i].from == other[i].from &&
                  h[i].to == other[i].to && h[i].pos0 == other[i].pos0 && h[i].len == other[i].len &&
                  h[i].need == other[i].need, "transfer %d of width %d", i, width);
    for (int q = 0; q < p->sequences; q++) {
        lf_owned own[MAX_RUNS];
        int runs = runs_of(p, q, own);
        for (int i = 0; i < runs; i++) {
            int64_t need = own[i].run.pos0, next = lf_max(0, need - width);
            for (; at < n && h[at].seq == q && h[at].need == need; at++) {
                const lf_run *r = lf_shard_find(&p->rank[h[at].from], q, h[at].pos0);
                TAP_QUIET(bad->halo, h[at].pos0 == next && h[at].len > 0 && h[at].to == own[i].rank,
                          "L %lld need %lld",
                          (long long)p->length[q], (long long)need);
                TAP_QUIET(bad->halo, r && h[at].pos0 + h[at].len <= r->pos0 + r->len,
                          "not whole in a run of %d",
                          h[at].from);
                next += h[at].len;
            }
            TAP_QUIET(bad->halo, next == need, "L %lld pcp %d width %d: the run at %lld lacks rows from %lld",
                      (long long)p->length[q], p->pcp, width, (long long)need, (long long)next);
        }
    }
    TAP_QUIET(bad->halo, at == n, "%d transfers serve no run or are out of order", n - at);
    free(h);
    free(other);
}

/* Position by position, for short sequences: the owner by lf_token_owner, and nobody else has it. */
static void check_lookup(const lf_pass *p, int seq, lf_bad *bad)
{
    int64_t step = p->length[seq] > 2000 ? p->length[seq] / 97 : 1;

    for (int64_t pos = 0; pos < p->length[seq]; pos += step) {
        int owner = lf_token_owner(p->length[seq], p->pcp, pos);
        for (int k = 0; k < p->pcp; k++) {
            const lf_run *r = lf_shard_find(&p->rank[k], seq, pos);
            TAP_QUIET(bad->lookup, (k == owner) == (r != NULL), "L %lld pcp %d: position %lld on rank %d",
                      (long long)p->length[seq], p->pcp, (long long)pos, k);
            TAP_QUIET(bad->lookup, !r || (r->seq == seq && r->pos0 <= pos && pos < r->pos0 + r->len),
                      "wrong run");
        }
    }
    for (int k = 0; k < p->pcp; k++)
        TAP_QUIET(bad->lookup, !lf_shard_find(&p->rank[k], seq, p->length[seq]) && !lf_shard_find(&p->rank[k],
                                                                                                  seq, -1) &&
                  !lf_shard_find(&p->rank[k], p->sequences, 0), "found what is not there");
}

/* Segments tile the sequence, and are equal to within a block and the ragged half block. */
static void check_cut(int64_t length, int pcp, int *bad)
{
    int64_t next = 0, pos0, len, base = (length + LF_BLOCK / 2) / LF_BLOCK / (2 * pcp) * LF_BLOCK;

    for (int i = 0; i < 2 * pcp; i++) {
        lf_segment(length, pcp, i, &pos0, &len);
        TAP_QUIET(*bad, pos0 == next && len >= lf_max(0, base - LF_BLOCK / 2) &&
                  len < base + LF_BLOCK + LF_BLOCK / 2, "L %lld pcp %d: segment %d has %lld tokens",
                  (long long)length, pcp, i, (long long)len);
        TAP_QUIET(*bad, len == 0 || pos0 % LF_BLOCK == 0, "segment %d begins inside a block", i);
        TAP_QUIET(*bad, pos0 + len == length || len == base || len == base + LF_BLOCK, "segment %d is ragged",
                  i);
        next += len;
    }
    TAP_QUIET(*bad, next == length, "L %lld pcp %d: segments end at %lld", (long long)length, pcp,
              (long long)next);
}

static void test_random(void)
{
    lf_bad bad = { 0 };
    uint64_t state = 3;

    for (int i = 0; i < 6000; i++) {
        lf_pass p;
        pass_make(&p, &state, i % 2 ? 21 : 12);
        check_local(&p, &bad);
        for (int q = 0; q < p.sequences; q++) {
            check_owned(&p, q, &bad);
            check_cut(p.length[q], p.pcp, &bad.cut);
            if (i % 8 == 0)
                check_lookup(&p, q, &bad);
        }
        check_halos(&p, p.window - 1, &bad);
        check_halos(&p, 4, &bad);
        pass_free(&p);
    }
    TAP_CHECK(bad.owned == 0, "every token is owned once, touching segments are one run");
    TAP_CHECK(bad.local == 0, "local rows and window-buffer rows are dense, disjoint and in order");
    TAP_CHECK(bad.rows == 0, "every row of both ratios is produced once");
    TAP_CHECK(bad.halo == 0, "every needed halo row comes once, from its owner");
    TAP_CHECK(bad.order == 0, "every rank enumerates the same transfers");
    TAP_CHECK(bad.lookup == 0, "lookups agree with ownership");
    TAP_CHECK(bad.cut == 0, "segments tile the sequence and are equal to within a block");
}

/* The largest deviation from the mean over the ranks, of tokens and of the sum of t + 1. */
static double imbalance(int64_t length, int pcp)
{
    double worst = 0, all = (double)length;

    for (int r = 0; r < pcp; r++) {
        double tokens = 0, work = 0;
        for (int half = 0; half < 2; half++) {
            int64_t pos0, len;
            lf_segment(length, pcp, half ? 2 * pcp - 1 - r : r, &pos0, &len);
            tokens += (double)len;
            work += (double)len * ((double)pos0 + ((double)len + 1) / 2);
        }
        worst = fmax(worst, fabs(tokens * pcp / all - 1));
        worst = fmax(worst, fabs(work * pcp / (all * (all + 1) / 2) - 1));
    }
    return worst;
}

static void test_balance(void)
{
    uint64_t state = 5;
    int cut = 0;

    for (int pcp = 1; pcp <= 8; pcp++) {
        double worst = 0;
        for (int64_t n = 32769; n <= 32768 + 4 * 2048; n++)
            worst = fmax(worst, imbalance(n, pcp));
        for (int i = 0; i < 20000; i++)
            worst = fmax(worst, imbalance(32769 + (int64_t)(random_next(&state) % 1200000), pcp));
        TAP_CHECK(worst < 0.03, "pcp %d: tokens and causal work are within %.3f %% of the mean", pcp,
                  100 * worst);
    }
    for (int pcp = 1; pcp <= 64; pcp++)
        for (int64_t n = 1; n < 2 * 2 * 64 * 128 + 300; n += 1 + (n % 128 > 66) * 30 + (n % 128 < 60) * 29)
            check_cut(n, pcp, &cut);
    TAP_CHECK(cut == 0, "segments are right for pcp up to 64 and every remainder of blocks");
    check_cut(((int64_t)1 << 40) + 77, 16, &cut);
    TAP_CHECK(cut == 0, "a length beyond 2^40");
}

static int run_is(const lf_run *r, int64_t pos0, int64_t len, int64_t row0, int halo, int64_t kv_row0)
{
    return r->pos0 == pos0 && r->len == len && r->row0 == row0 && r->halo == halo && r->kv_row0 == kv_row0;
}

static int halo_is(const lf_halo *h, int from, int to, int64_t pos0, int64_t len, int64_t need)
{
    return h->from == from && h->to == to && h->pos0 == pos0 && h->len == len && h->need == need;
}

static void test_by_hand(void)
{
    int64_t length = 512, many[] = { 1024, 3 };
    lf_shard s;
    lf_halo *h;
    int64_t first, count;

    lf_shard_make(&s, 2, 0, 128, 1, &length);
    TAP_CHECK(s.runs == 2 && run_is(&s.run[0], 0, 128, 0, 0, 0) && run_is(&s.run[1], 384, 128, 128, 127,
                                                                          128) &&
              s.rows == 256 && s.kv_rows == 383, "512 tokens, pcp 2: rank 0 has both ends");
    lf_shard_free(&s);
    lf_shard_make(&s, 2, 1, 128, 1, &length);
    TAP_CHECK(s.runs == 1 && run_is(&s.run[0], 128, 256, 0, 127, 0) && s.kv_rows == 383,
              "rank 1 has one run");
    lf_shard_free(&s);

    lf_shard_make(&s, 4, 2, 300, 2, many);
    TAP_CHECK(lf_shard_halos(&s, 299, &h) == 13,
              "8 segments of 128, window 300: 13 transfers, none for 3 tokens");
    TAP_CHECK(halo_is(&h[0], 0, 1, 0, 128, 128) && halo_is(&h[1], 0, 2, 0, 128, 256) &&
              halo_is(&h[2], 1, 2, 128, 128, 256) && halo_is(&h[3], 0, 3, 85, 43, 384) &&
              halo_is(&h[5], 2, 3, 256, 128, 384), "a window over three segments");
    TAP_CHECK(halo_is(&h[6], 2, 2, 341, 43, 640) && halo_is(&h[7], 3, 2, 384, 256, 640),
              "a rank's own earlier run is listed, the two middle segments are one stretch");
    free(h);
    TAP_CHECK(lf_shard_halos(&s, 0, &h) == 0, "no width, no transfers");
    free(h);
    lf_shard_free(&s);

    length = 130;                          /* a last segment shorter than one block of ratio 4 */
    lf_shard_make(&s, 2, 0, 128, 1, &length);
    TAP_CHECK(s.runs == 1 && s.rows == 2 && s.run[0].pos0 == 128,
              "130 tokens, pcp 2: rank 0 has the last two");
    lf_run_blocks(&s.run[0], 4, &first, &count);
    TAP_CHECK(first == 32 && count == 0, "they finish no block");
    TAP_CHECK(lf_shard_halos(&s, 4, &h) == 1 && halo_is(&h[0], 1, 0, 124, 4, 128),
              "and get the 4 tokens before them");
    free(h);
    lf_shard_free(&s);
}

static void test_empty(void)
{
    int64_t length[] = { 1, 1, 1 };
    int64_t tokens = 0;
    int owners = 0;

    for (int r = 0; r < 8; r++) {
        lf_shard s;
        lf_halo *h;
        lf_shard_make(&s, 8, r, 128, 3, length);
        tokens += s.rows;
        owners += s.runs > 0;
        if (lf_shard_halos(&s, 127, &h) != 0)
            tokens += 100;
        free(h);
        lf_shard_free(&s);
    }
    TAP_CHECK(tokens == 3 && owners == 1, "one-token prompts: one rank has them, the others nothing");
    TAP_CHECK(lf_segment_owner(4, 3) == 3 && lf_segment_owner(4, 4) == 3 && lf_segment_owner(4, 7) == 0,
              "zigzag");
}

int main(void)
{
    test_by_hand();
    test_empty();
    test_random();
    test_balance();
    return tap_done();
}
