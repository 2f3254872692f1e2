/* SPDX-License-Identifier: Apache-2.0 */
#include "bpe_table.h"

#include <string.h>

/* Multiply and fold, eight bytes at a time. */
uint64_t lf_bpe_hash(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint64_t h = bytes * UINT64_C(0x9e3779b97f4a7c15), w;

    for (; bytes >= 8; p += 8, bytes -= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * UINT64_C(0xd6e8feb86659fd93);
        h ^= h >> 32;
    }
    w = 0;
    for (size_t i = 0; i < bytes; i++)
        w |= (uint64_t)p[i] << 8 * i;
    h = (h ^ w) * UINT64_C(0xd6e8feb86659fd93);
    h ^= h >> 32;
    h *= UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* Slots for `count` items at most half full. */
static uint32_t mask_for(size_t count)
{
    uint32_t slots = 16;

    while (slots < 2 * count)
        slots *= 2;
    return slots - 1;
}

void lf_entries_make(lf_entries *e, size_t count, size_t text_bytes)
{
    e->mask = mask_for(count);
    e->slot = lf_alloc(((size_t)e->mask + 1) * sizeof *e->slot);
    e->text = lf_alloc(text_bytes);
}

const lf_entry *lf_entries_find(const lf_entries *e, const void *text, size_t bytes)
{
    uint32_t hash = (uint32_t)lf_bpe_hash(text, bytes);

    for (uint32_t i = hash & e->mask; e->slot[i].bytes; i = (i + 1) & e->mask) {
        const lf_entry *s = &e->slot[i];
        if (s->hash == hash && s->bytes == bytes && memcmp(e->text + s->at, text, bytes) == 0)
            return s;
    }
    return NULL;
}

int lf_entries_add(lf_entries *e, const char *text, size_t bytes, uint32_t id)
{
    uint32_t hash = (uint32_t)lf_bpe_hash(text, bytes), i = hash & e->mask;

    if (lf_entries_find(e, text, bytes))
        return -1;
    while (e->slot[i].bytes)
        i = (i + 1) & e->mask;
    e->slot[i] = (lf_entry){ hash, id, (uint32_t)e->text_bytes, (uint32_t)bytes };
    memcpy(e->text + e->text_bytes, text, bytes);
    e->text_bytes += bytes;
    e->n++;
    return 0;
}

void lf_merges_make(lf_merges *m, size_t count)
{
    m->mask = mask_for(count);
    m->slot = lf_alloc(((size_t)m->mask + 1) * sizeof *m->slot);
    for (uint32_t i = 0; i <= m->mask; i++)
        m->slot[i].rank = LF_NO_RANK;
}

void lf_merges_set(lf_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t h = ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t i = (uint32_t)(h >> 32) & m->mask;

    while (m->slot[i].rank != LF_NO_RANK && (m->slot[i].left != left || m->slot[i].right != right))
        i = (i + 1) & m->mask;
    m->slot[i] = (lf_merge){ left, right, rank, id };
}
