/* SPDX-License-Identifier: Apache-2.0
 *
 * pretokenize: the pre_tokenizer of tokenizer.json: cuts text into the pieces that BPE works on.  Floor 1.
 *
 * Taken: Sequence (nested too), Split (Regex or String; every behavior; invert), Digits, and ByteLevel,
 * which must be there and be the last: it turns text into bytes (and, with use_regex, cuts by GPT-2's
 * pattern; with add_prefix_space puts a space before every piece that does not begin with one).  Others are
 * refused by name. A component sees the pieces of the one before it as separate texts: patterns do not look
 * across a cut.
 */
#ifndef LF_PRETOKENIZE_H
#define LF_PRETOKENIZE_H

#include "pattern.h"

#include <jansson.h>

typedef struct lf_pretokenizer lf_pretokenizer;

typedef struct lf_span {
    uint32_t first, end;                   /* [first, end), never empty */
} lf_span;

typedef struct lf_spans {
    size_t n, cap;
    lf_span *v;
} lf_spans;

/* The pieces of one text.  Reused from text to text; {0} to begin with. */
typedef struct lf_pieces {
    const uint8_t *text;                   /* what the spans are bytes of: the text given, or `spaced` */
    lf_spans bytes;                        /* the result, in order */
    lf_spans chars, next, matches;         /* room to work in */
    uint8_t *classes;
    size_t classes_cap;
    uint8_t *spaced;                       /* owned: the text with prefix spaces */
    lf_matcher *matcher;                   /* owned, made at the first text */
} lf_pieces;

/* From the "pre_tokenizer" value; adds its sets to the open alphabet. */
int lf_pretokenizer_parse(lf_pretokenizer **out, const json_t *spec, lf_alphabet *a, lf_err *err);
/* After the alphabet was closed. */
int lf_pretokenizer_compile(lf_pretokenizer *p, const lf_alphabet *a, lf_err *err);
void lf_pretokenizer_free(lf_pretokenizer *p);

/* Cut valid UTF-8 of less than 2^31 bytes. */
int lf_pretokenizer_cut(const lf_pretokenizer *p, const lf_alphabet *a, const uint8_t *text, size_t bytes,
                        lf_pieces *out, lf_err *err);
void lf_pieces_free(lf_pieces *p);         /* what it holds */

#endif
