/* SPDX-License-Identifier: Apache-2.0
 *
 * bpe_table: the two hash tables of a BPE model.  Included by bpe*.c only.  Floor 1.
 */
#ifndef LF_BPE_TABLE_H
#define LF_BPE_TABLE_H

#include "bpe.h"

enum { LF_NO_RANK = 0xffffffff };          /* also: no id.  Ids and ranks are below 2^31. */

/* Entries by spelling; open addressing.  The spellings belong to the table. */
typedef struct lf_entry {
    uint32_t hash, id;
    uint32_t at, bytes;                    /* of `text`; bytes = 0: a free slot */
} lf_entry;

typedef struct lf_entries {
    uint32_t mask;
    int64_t n;
    lf_entry *slot;
    char *text;
    size_t text_bytes;
} lf_entries;

/* Merges by the pair of ids. */
typedef struct lf_merge {
    uint32_t left, right;
    uint32_t rank, id;                     /* id: what the pair becomes; rank LF_NO_RANK: a free slot */
} lf_merge;

typedef struct lf_merges {
    uint32_t mask;
    lf_merge *slot;
} lf_merges;

struct lf_bpe {
    lf_entries entries;
    lf_merges merges;
    uint32_t largest;
    uint32_t longest;                      /* bytes of the longest spelling */
    int ignore_merges;
    uint32_t byte_id[256];                 /* LF_NO_RANK for bytes that UTF-8 does not use */
    uint8_t spelling[256][2];              /* of a byte, in the GPT-2 alphabet, as UTF-8 */
    uint8_t spelling_bytes[256];
};

uint64_t lf_bpe_hash(const void *data, size_t bytes);
void lf_entries_make(lf_entries *e, size_t count, size_t text_bytes);
/* -1: it was there already.  Neither more entries nor more text than announced. */
int lf_entries_add(lf_entries *e, const char *text, size_t bytes, uint32_t id);
const lf_entry *lf_entries_find(const lf_entries *e, const void *text, size_t bytes);   /* or NULL */

void lf_merges_make(lf_merges *m, size_t count);
/* Of several settings of a pair the last one counts. */
void lf_merges_set(lf_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);

/* NULL: no merge. */
static inline const lf_merge *lf_merges_find(const lf_merges *m, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t i = (uint32_t)(h >> 32) & m->mask;

    for (;; i = (i + 1) & m->mask) {
        const lf_merge *s = &m->slot[i];
        if (s->rank == LF_NO_RANK)
            return NULL;
        if (s->left == left && s->right == right)
            return s;
    }
}

#endif
