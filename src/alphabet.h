/* SPDX-License-Identifier: Apache-2.0
 *
 * alphabet: maps code points to at most 256 classes, so that a pattern over Unicode becomes a pattern over
 * bytes. Floor 1.
 *
 * Every set of code points that a tokenizer's patterns mention is added; closing the alphabet divides the
 * code points into classes such that two code points of one class are in the same sets.  A text then is
 * mapped once, one byte per code point, and all patterns run over those bytes: PCRE2 needs neither UTF mode
 * nor Unicode tables for it.
 */
#ifndef LF_ALPHABET_H
#define LF_ALPHABET_H

#include "charset.h"

enum { LF_MAX_CHARSETS = 256, LF_MAX_CLASSES = 256 };

typedef struct lf_alphabet {
    int sets, classes;
    lf_charset set[LF_MAX_CHARSETS];
    uint64_t member[LF_MAX_CHARSETS][LF_MAX_CLASSES / 64];   /* of a set: which classes it consists of */
    uint8_t ascii[128];
    uint16_t page[LF_CODE_POINTS >> 8];                       /* of 256 code points: its row of `cell` */
    uint8_t (*cell)[256];
} lf_alphabet;

/* The set becomes the alphabet's (also on failure); equal sets share an index.  Returns the index, or -1. */
int lf_alphabet_add(lf_alphabet *a, lf_charset *set, lf_err *err);
/* After the last set: make the classes.  Fails when there would be more than LF_MAX_CLASSES. */
int lf_alphabet_close(lf_alphabet *a, lf_err *err);
void lf_alphabet_free(lf_alphabet *a);                        /* what it holds, not itself */

/* The classes of valid UTF-8, one per code point, into out (room for `bytes`); returns how many. */
size_t lf_alphabet_map(const lf_alphabet *a, const uint8_t *text, size_t bytes, uint8_t *out);

static inline int lf_alphabet_class(const lf_alphabet *a, uint32_t code)
{
    return a->cell[a->page[code >> 8]][code & 255];
}

static inline int lf_alphabet_has(const lf_alphabet *a, int set, int class)
{
    return (int)(a->member[set][class >> 6] >> (class & 63) & 1);
}

/* The code point at p, of valid UTF-8; *size becomes its length in bytes. */
static inline uint32_t lf_utf8_at(const uint8_t *p, int *size)
{
    if (p[0] < 0x80) {
        *size = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *size = 2;
        return (p[0] & 31u) << 6 | (p[1] & 63u);
    }
    if (p[0] < 0xf0) {
        *size = 3;
        return (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
    }
    *size = 4;
    return (p[0] & 7u) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u);
}

/* The offset of the first byte that is not part of valid UTF-8 (no surrogates, nothing overlong), or
 * `bytes`. */
size_t lf_utf8_valid(const uint8_t *text, size_t bytes);

#endif
