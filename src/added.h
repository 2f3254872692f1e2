/* SPDX-License-Identifier: Apache-2.0
 *
 * added: the "added_tokens" of tokenizer.json, which are looked for in the text before anything
 * else.  Floor 1.
 *
 * First those with "normalized": false in the whole text, then, in what remains, those with "normalized":
 * true (there is no normalizer here, so they are looked for as they are).  In each pass the leftmost match
 * counts, and of several there the longest; the search goes on behind it.  single_word: dropped, with the
 * text it covers left as text, when a word character touches it.  lstrip and rstrip: takes the white space
 * before and after it along.  A special token in the text is one token, as in the library.
 *
 * The id is the one the library gives: that of the same entry in the vocabulary, or the next free one; a
 * file whose "id" says something else is refused.
 */
#ifndef LF_ADDED_H
#define LF_ADDED_H

#include "alphabet.h"
#include "bpe.h"

enum { LF_MAX_ADDED = 65536, LF_MAX_ADDED_BYTES = 1024 };

typedef struct lf_added lf_added;

/* A part of the text: text still (id -1) or an added token. */
typedef struct lf_part {
    size_t first, end;
    int64_t id;
} lf_part;

typedef struct lf_parts {
    size_t n, cap;
    lf_part *v;                            /* owned, freed with free() */
} lf_parts;

/* From the "added_tokens" value, which may be absent (NULL); adds its sets to the open alphabet. */
int lf_added_parse(lf_added **out, const json_t *list, const lf_bpe *b, lf_alphabet *a, lf_err *err);
void lf_added_free(lf_added *t);           /* NULL is allowed */

int64_t lf_added_id(const lf_added *t, const char *content, size_t bytes);    /* or -1 */
uint32_t lf_added_bound(const lf_added *t);         /* largest id + 1, 0 without tokens */

/* Cut valid UTF-8 into parts (appended to out, in order, together the whole text but for overlaps of
 * rstrip). */
int lf_added_cut(const lf_added *t, const lf_alphabet *a, const uint8_t *text, size_t bytes, lf_parts *out,
                 lf_err *err);

#endif
