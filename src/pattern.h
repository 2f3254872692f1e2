/* SPDX-License-Identifier: Apache-2.0
 *
 * pattern: one regular expression of tokenizer.json, run over the classes of an alphabet.  Floor 1.
 *
 * The library writes its patterns for Oniguruma (Ruby syntax, UTF-8).  Here a pattern is parsed, every
 * character, class and property in it becomes a set of the alphabet, and after the alphabet is closed the
 * same expression over class bytes is compiled by PCRE2, with JIT where there is one.  So PCRE2 sees
 * nothing but bytes, `[...]`, groups, alternation and quantifiers, which mean the same in both.
 *
 * Understood: characters; \r \n \t \f \v \a \e, \xHH below 80, \x{H..}, \uHHHH, escaped punctuation; `.`;
 * \s \d \w \S \D \W; \p{..} and \P{..} with general categories (L, Lu, ...); [...] and [^...] of these with
 * ranges; (...) (?:...) (?>...) (?=...) (?!...) (?<=...) (?<!...); |; * + ? {n} {n,} {n,m}, lazy with ?,
 * possessive * + ? with +.  Everything else is refused by its name and place, among it what the two would
 * read differently: {n}?, {n,m}+, {,m}, nested classes and &&, an unbounded quantifier on what can match
 * nothing, anchors, back references, (?i).
 */
#ifndef LF_PATTERN_H
#define LF_PATTERN_H

#include "alphabet.h"

typedef struct lf_pattern lf_pattern;
typedef struct lf_matcher lf_matcher;      /* what matching needs to write to; one per thread */

enum { LF_MAX_PATTERN = 16384 };           /* bytes */

/* Phase 1: parse valid UTF-8 and add its sets to the (open) alphabet.  `literal`: the text itself is looked
 * for. */
int lf_pattern_parse(lf_pattern **out, const char *text, size_t bytes, int literal, lf_alphabet *a,
                     lf_err *err);
/* Phase 2: compile for the closed alphabet. */
int lf_pattern_compile(lf_pattern *p, const lf_alphabet *a, lf_err *err);
void lf_pattern_free(lf_pattern *p);       /* NULL is allowed */

lf_matcher *lf_matcher_new(void);
void lf_matcher_free(lf_matcher *m);

/* The leftmost match in classes[0..n) at or after `from`: 1 and [*first, *end), 0 when there is none, -1 on
 * failure (PCRE2's limits; its text is in err). */
int lf_pattern_find(const lf_pattern *p, lf_matcher *m, const uint8_t *classes, size_t n, size_t from,
                    size_t *first, size_t *end, lf_err *err);

void lf_pattern_library(char version[64]);             /* of PCRE2, as it says itself */

#endif
