/* SPDX-License-Identifier: Apache-2.0
 *
 * bpe: byte-level byte-pair encoding, the "model" of tokenizer.json.  Floor 1.
 *
 * A piece starts as one token per byte; of all neighbours that have a merge, the pair whose merge comes
 * first in the list (of equals the leftmost) becomes one token, until no neighbours have one.  With
 * ignore_merges a piece that is an entry of the vocabulary as a whole is that entry.
 *
 * Every byte that UTF-8 text can contain must have its token, so unk_token, fuse_unk and byte_fallback
 * cannot come into play.  dropout, continuing_subword_prefix and end_of_word_suffix are refused.
 */
#ifndef LF_BPE_H
#define LF_BPE_H

#include "base.h"

#include <jansson.h>

typedef struct lf_bpe lf_bpe;
typedef struct lf_bpe_work lf_bpe_work;    /* room to work in, and pieces seen; one per thread and text */

typedef struct lf_ids {
    int64_t n, cap;
    uint32_t *v;
} lf_ids;

void lf_ids_add(lf_ids *ids, uint32_t id);

int lf_bpe_parse(lf_bpe **out, const json_t *model, lf_err *err);
void lf_bpe_free(lf_bpe *b);               /* NULL is allowed */

/* The id of an entry as the file spells it (bytes in the GPT-2 alphabet), or -1. */
int64_t lf_bpe_id(const lf_bpe *b, const char *entry, size_t bytes);
int64_t lf_bpe_entries(const lf_bpe *b);
uint32_t lf_bpe_largest(const lf_bpe *b);  /* id */

/* `expect`: about how many bytes of text will be encoded with it. */
lf_bpe_work *lf_bpe_work_new(size_t expect);
/* Forget the pieces: their memory is about to change. */
void lf_bpe_work_forget(lf_bpe_work *w);
void lf_bpe_work_free(lf_bpe_work *w);

/* Append the ids of a piece, n > 0 bytes, n < 2^31.  The bytes must stay in place until _forget or the last
 * call; `ids` must be the same in all calls with one `w`, and only grow. */
void lf_bpe_encode(const lf_bpe *b, lf_bpe_work *w, const uint8_t *piece, size_t n, lf_ids *ids);

#endif
