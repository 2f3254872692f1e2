/* SPDX-License-Identifier: Apache-2.0 */
#include "shard.h"

#include <stdlib.h>
#include <string.h>

/* How a sequence is cut: every segment has `base` blocks; segment 0 has `first` more, the last one `last`
 * more, and `many` segments from `from` on have one more each.  The last segment then ends at the
 * sequence's end. */
typedef struct lf_cut {
    int segments;
    int64_t length, base, first, last, from, many;
} lf_cut;

/* Rank 0 has the ragged end, so its two extra blocks are decided first: the last segment takes one when its
 * tokens, the ragged ones counted, come nearer to the mean of all segments (that balances work); segment 0
 * takes one when that brings the rank's tokens nearer to the mean of all ranks.  The other ranks' extras
 * fill the early segments, where they cost least work, or, when there are more, all late ones and then the
 * last of the early ones: then what is missing is missing early.  A last block of fewer than 64 tokens does
 * not count as a block in this. */
static lf_cut cut_make(int64_t length, int pcp)
{
    int64_t blocks = length / LF_BLOCK + (length % LF_BLOCK >= LF_BLOCK / 2);
    int64_t ragged = length - blocks * LF_BLOCK;
    lf_cut c = { .segments = 2 * pcp, .length = length, .base = blocks / (2 * pcp) };
    int64_t extra = blocks - c.base * c.segments;
    int64_t surplus = extra * LF_BLOCK + ragged;

    c.last = surplus - 2 * pcp * ragged >= (int64_t)pcp * LF_BLOCK;
    c.first = surplus - pcp * (c.last * LF_BLOCK + ragged) >= (int64_t)pcp * (LF_BLOCK / 2);
    c.many = extra - c.first - c.last;
    c.from = c.many < pcp ? 1 : 2 * pcp - 1 - c.many;
    return c;
}

static int64_t cut_begin(const lf_cut *c, int i)
{
    if (i >= c->segments)
        return c->length;
    int64_t more = (i > 0 ? c->first : 0) + lf_max(0, lf_min(i - c->from, c->many));
    return lf_min((i * c->base + more) * LF_BLOCK, c->length);
}

void lf_segment(int64_t length, int pcp, int i, int64_t *pos0, int64_t *len)
{
    lf_cut c = cut_make(length, pcp);

    *pos0 = cut_begin(&c, i);
    *len = cut_begin(&c, i + 1) - *pos0;
}

int lf_segment_owner(int pcp, int i)
{
    return i < pcp ? i : 2 * pcp - 1 - i;
}

static int cut_find(const lf_cut *c, int64_t pos)
{
    int i = 0;

    while (i + 1 < c->segments && cut_begin(c, i + 1) <= pos)
        i++;
    return i;
}

int lf_token_owner(int64_t length, int pcp, int64_t pos)
{
    lf_cut c = cut_make(length, pcp);

    return lf_segment_owner(pcp, cut_find(&c, pos));
}

static void run_add(lf_shard *s, int seq, int64_t pos0, int64_t len)
{
    lf_run *before = s->runs ? &s->run[s->runs - 1] : NULL;

    if (len == 0)
        return;
    if (before && before->seq == seq && before->pos0 + before->len == pos0) {
        before->len += len;
    } else {
        lf_run *r = &s->run[s->runs++];
        r->seq = seq;
        r->pos0 = pos0;
        r->len = len;
        r->row0 = s->rows;
        r->halo = (int)lf_min(s->window - 1, pos0);
        r->kv_row0 = s->kv_rows;
        s->kv_rows += r->halo;
    }
    s->rows += len;
    s->kv_rows += len;
}

void lf_shard_make(lf_shard *s, int pcp, int rank, int window, int sequences, const int64_t *lengths)
{
    memset(s, 0, sizeof *s);
    s->pcp = pcp;
    s->rank = rank;
    s->window = window;
    s->sequences = sequences;
    s->length = lf_alloc((size_t)sequences * sizeof *s->length);
    s->run = lf_alloc(2 * (size_t)sequences * sizeof *s->run);
    for (int q = 0; q < sequences; q++) {
        int64_t pos0, len;
        s->length[q] = lengths[q];
        lf_segment(lengths[q], pcp, rank, &pos0, &len);
        run_add(s, q, pos0, len);
        lf_segment(lengths[q], pcp, 2 * pcp - 1 - rank, &pos0, &len);
        run_add(s, q, pos0, len);
    }
}

void lf_shard_free(lf_shard *s)
{
    free(s->length);
    free(s->run);
    memset(s, 0, sizeof *s);
}

void lf_run_blocks(const lf_run *r, int ratio, int64_t *first, int64_t *count)
{
    *first = r->pos0 / ratio;
    *count = (r->pos0 + r->len) / ratio - *first;
}

typedef struct lf_halo_list {
    lf_halo *at;
    int count, room;
} lf_halo_list;

static void halo_add(lf_halo_list *l, lf_halo h)
{
    if (l->count == l->room) {
        l->room = l->room ? 2 * l->room : 16;
        l->at = lf_realloc(l->at, (size_t)l->room * sizeof *l->at);
    }
    l->at[l->count++] = h;
}

/* The owner before segment i, through segments that are empty; -1 at the start of the sequence. */
static int owner_before(const lf_cut *c, int pcp, int i)
{
    int64_t begin = cut_begin(c, i);

    return begin > 0 ? lf_segment_owner(pcp, cut_find(c, begin - 1)) : -1;
}

/* What the run that begins with segment i needs: `width` positions before it, a stretch per run that has
 * them. */
static void halo_of_run(lf_halo_list *l, const lf_cut *c, int pcp, int seq, int i, int width)
{
    int64_t need = cut_begin(c, i), first = lf_max(0, need - width);
    int mine = l->count;

    for (int j = first < need ? cut_find(c, first) : i; j < i; j++) {
        int64_t pos0 = lf_max(first, cut_begin(c, j)), len = cut_begin(c, j + 1) - pos0;
        lf_halo h = { .seq = seq, .from = lf_segment_owner(pcp, j), .to = lf_segment_owner(pcp, i),
                      .pos0 = pos0, .len = len, .need = need };
        if (len <= 0)
            continue;
        if (l->count > mine && l->at[l->count - 1].from == h.from)
            l->at[l->count - 1].len += len;
        else
            halo_add(l, h);
    }
}

int lf_shard_halos(const lf_shard *s, int width, lf_halo **out)
{
    lf_halo_list l = { 0 };

    for (int q = 0; q < s->sequences; q++) {
        lf_cut c = cut_make(s->length[q], s->pcp);
        for (int i = 1; i < c.segments; i++) {
            int empty = cut_begin(&c, i) == cut_begin(&c, i + 1);
            if (!empty && owner_before(&c, s->pcp, i) != lf_segment_owner(s->pcp, i))
                halo_of_run(&l, &c, s->pcp, q, i, width);
        }
    }
    *out = l.at ? l.at : lf_alloc(sizeof(lf_halo));
    return l.count;
}

const lf_run *lf_shard_find(const lf_shard *s, int seq, int64_t pos)
{
    int lo = 0, hi = s->runs;              /* the first run that ends after pos is at lo .. hi */

    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const lf_run *r = &s->run[mid];
        if (r->seq < seq || (r->seq == seq && r->pos0 + r->len <= pos))
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == s->runs || s->run[lo].seq != seq || s->run[lo].pos0 > pos)
        return NULL;
    return &s->run[lo];
}
