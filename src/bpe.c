/* SPDX-License-Identifier: Apache-2.0 */
#include "bpe_table.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHORT = 40,                            /* bytes up to which a plain search for the best pair is fastest */
    REMEMBERED = 128,                      /* longest piece that is remembered */
    GONE = 0xffffffff,                     /* no neighbour */
};

/* A piece whose ids are in the output already. */
typedef struct seen {
    uint64_t hash;
    const uint8_t *piece;
    int64_t at;                            /* of the ids in the output */
    uint32_t bytes, ids;
    uint32_t round;                        /* 0: free */
} seen;

/* A long piece: tokens in a list, by the byte they start at; the pairs that may merge in a 4-ary heap. */
typedef struct symbol {
    uint32_t id, before, after;
} symbol;

struct lf_bpe_work {
    uint32_t round;                        /* entries of other rounds do not count */
    size_t mask;
    seen *seen;
    symbol *symbol;
    uint64_t *heap;                        /* rank << 32 | start of the left one: the least is the next */
    size_t heap_n, heap_cap, cap;
};

void lf_ids_add(lf_ids *ids, uint32_t id)
{
    if (ids->n == ids->cap) {
        ids->cap = ids->cap ? 2 * ids->cap : 1024;
        ids->v = lf_realloc(ids->v, (size_t)ids->cap * sizeof *ids->v);
    }
    ids->v[ids->n++] = id;
}

int64_t lf_bpe_id(const lf_bpe *b, const char *entry, size_t bytes)
{
    const lf_entry *e = bytes ? lf_entries_find(&b->entries, entry, bytes) : NULL;

    return e ? (int64_t)e->id : -1;
}

int64_t lf_bpe_entries(const lf_bpe *b)
{
    return b->entries.n;
}

uint32_t lf_bpe_largest(const lf_bpe *b)
{
    return b->largest;
}

lf_bpe_work *lf_bpe_work_new(size_t expect)
{
    lf_bpe_work *w = lf_alloc(sizeof *w);
    size_t slots = 64;

    while (slots < 65536 && slots < expect / 16)
        slots *= 2;
    w->mask = slots - 1;
    w->seen = lf_alloc(slots * sizeof *w->seen);
    w->round = 1;
    return w;
}

void lf_bpe_work_forget(lf_bpe_work *w)
{
    w->round++;
}

void lf_bpe_work_free(lf_bpe_work *w)
{
    if (!w)
        return;
    free(w->seen);
    free(w->symbol);
    free(w->heap);
    free(w);
}

static void encode_short(const lf_bpe *b, const uint8_t *piece, size_t n, lf_ids *ids)
{
    uint32_t id[SHORT], rank[SHORT], made[SHORT];

    for (size_t i = 0; i < n; i++)
        id[i] = b->byte_id[piece[i]];
    for (size_t i = 0; i + 1 < n; i++) {
        const lf_merge *m = lf_merges_find(&b->merges, id[i], id[i + 1]);
        rank[i] = m ? m->rank : LF_NO_RANK;
        made[i] = m ? m->id : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best])
                best = i;
        }
        if (rank[best] == LF_NO_RANK)
            break;
        id[best] = made[best];
        n--;
        memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof *id);
        memmove(rank + best, rank + best + 1, (n - best) * sizeof *rank);
        memmove(made + best, made + best + 1, (n - best) * sizeof *made);
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const lf_merge *m = lf_merges_find(&b->merges, id[i], id[i + 1]);
            rank[i] = m ? m->rank : LF_NO_RANK;
            made[i] = m ? m->id : 0;
        }
    }
    for (size_t i = 0; i < n; i++)
        lf_ids_add(ids, id[i]);
}

static void heap_sink(uint64_t *heap, size_t n, size_t i)
{
    uint64_t v = heap[i];

    for (;;) {
        size_t child = 4 * i + 1, best = child, stop = child + 4 < n ? child + 4 : n;
        if (child >= n)
            break;
        while (++child < stop)
            best = heap[child] < heap[best] ? child : best;
        if (heap[best] >= v)
            break;
        heap[i] = heap[best];
        i = best;
    }
    heap[i] = v;
}

static void heap_push(lf_bpe_work *w, uint64_t v)
{
    size_t i = w->heap_n++;

    if (i == w->heap_cap) {
        w->heap_cap *= 2;
        w->heap = lf_realloc(w->heap, w->heap_cap * sizeof *w->heap);
    }
    while (i > 0 && w->heap[(i - 1) / 4] > v) {
        w->heap[i] = w->heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    w->heap[i] = v;
}

static uint64_t heap_pop(lf_bpe_work *w)
{
    uint64_t top = w->heap[0];

    w->heap[0] = w->heap[--w->heap_n];
    if (w->heap_n)
        heap_sink(w->heap, w->heap_n, 0);
    return top;
}

static const lf_merge *merge_at(const lf_bpe *b, const symbol *s, uint32_t at)
{
    return s[at].after == GONE ? NULL : lf_merges_find(&b->merges, s[at].id, s[s[at].after].id);
}

static void start_long(const lf_bpe *b, lf_bpe_work *w, const uint8_t *piece, size_t n)
{
    if (n > w->cap) {
        w->symbol = lf_realloc(w->symbol, n * sizeof *w->symbol);
        w->cap = n;
    }
    if (n > w->heap_cap) {
        w->heap = lf_realloc(w->heap, n * sizeof *w->heap);
        w->heap_cap = n;
    }
    for (size_t i = 0; i < n; i++)
        w->symbol[i] = (symbol){ b->byte_id[piece[i]], i ? (uint32_t)i - 1 : GONE,
                                 i + 1 < n ? (uint32_t)i + 1 : GONE };
    w->heap_n = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        const lf_merge *m = merge_at(b, w->symbol, (uint32_t)i);
        if (m)
            w->heap[w->heap_n++] = (uint64_t)m->rank << 32 | i;
    }
    for (size_t i = w->heap_n / 4 + 1; i-- > 0; ) {
        if (i < w->heap_n)
            heap_sink(w->heap, w->heap_n, i);
    }
}

/* A heap entry whose pair has changed since is recognised by the rank: a rank belongs to one pair. */
static void encode_long(const lf_bpe *b, lf_bpe_work *w, const uint8_t *piece, size_t n, lf_ids *ids)
{
    symbol *s;

    start_long(b, w, piece, n);
    s = w->symbol;
    while (w->heap_n) {
        uint64_t top = heap_pop(w);
        uint32_t at = (uint32_t)top;
        const lf_merge *m = s[at].id == LF_NO_RANK ? NULL : merge_at(b, s, at);
        if (!m || m->rank != top >> 32)
            continue;
        uint32_t right = s[at].after;
        s[at].id = m->id;
        s[at].after = s[right].after;
        s[right].id = LF_NO_RANK;
        if (s[at].after != GONE)
            s[s[at].after].before = at;
        m = merge_at(b, s, at);
        if (m)
            heap_push(w, (uint64_t)m->rank << 32 | at);
        m = s[at].before == GONE ? NULL : merge_at(b, s, s[at].before);
        if (m)
            heap_push(w, (uint64_t)m->rank << 32 | s[at].before);
    }
    for (uint32_t i = 0; i != GONE; i = s[i].after)
        lf_ids_add(ids, s[i].id);
}

/* The whole piece as an entry of the vocabulary, or -1. */
static int64_t whole_entry(const lf_bpe *b, const uint8_t *piece, size_t n)
{
    uint8_t small[256] = { 0 }, *text = small;
    size_t used = 0;

    if (n > b->longest)
        return -1;
    if (2 * n > sizeof small)
        text = lf_alloc(2 * n);
    for (size_t i = 0; i < n; i++) {
        memcpy(text + used, b->spelling[piece[i]], 2);
        used += b->spelling_bytes[piece[i]];
    }
    const lf_entry *e = lf_entries_find(&b->entries, text, used);
    if (text != small)
        free(text);
    return e ? (int64_t)e->id : -1;
}

static void encode_new(const lf_bpe *b, lf_bpe_work *w, const uint8_t *piece, size_t n, lf_ids *ids)
{
    int64_t whole = b->ignore_merges ? whole_entry(b, piece, n) : -1;

    if (whole >= 0)
        lf_ids_add(ids, (uint32_t)whole);
    else if (n <= SHORT)
        encode_short(b, piece, n, ids);
    else
        encode_long(b, w, piece, n, ids);
}

void lf_bpe_encode(const lf_bpe *b, lf_bpe_work *w, const uint8_t *piece, size_t n, lf_ids *ids)
{
    if (n == 1 && !b->ignore_merges) {
        lf_ids_add(ids, b->byte_id[*piece]);
        return;
    }
    if (n > REMEMBERED) {
        encode_new(b, w, piece, n, ids);
        return;
    }
    uint64_t hash = lf_bpe_hash(piece, n);
    seen *s = &w->seen[hash & w->mask];
    if (s->round == w->round && s->hash == hash && s->bytes == n && memcmp(s->piece, piece, n) == 0) {
        for (uint32_t i = 0; i < s->ids; i++)
            lf_ids_add(ids, ids->v[s->at + i]);
        return;
    }
    int64_t at = ids->n;
    encode_new(b, w, piece, n, ids);
    *s = (seen){ hash, piece, at, (uint32_t)n, (uint32_t)(ids->n - at), w->round };
}
