/* SPDX-License-Identifier: Apache-2.0
 *
 * charset: sets of Unicode code points, for the patterns of tokenizer.json.  Floor 1.
 *
 * The categories are those of Unicode 16, which the Python `tokenizers` library uses (unicode_table.c,
 * taken from it), whatever the PCRE2 at hand knows: token ids must not depend on the installed library.
 */
#ifndef LF_CHARSET_H
#define LF_CHARSET_H

#include "base.h"

enum { LF_CODE_POINTS = 0x110000 };

/* Ranges, both ends included.  {0} is the empty set.  Everything but lf_charset_add and _add_all wants a
 * tidy set. */
typedef struct lf_charset {
    int n, cap;
    uint32_t (*range)[2];
} lf_charset;

void lf_charset_add(lf_charset *s, uint32_t first, uint32_t last);
void lf_charset_add_all(lf_charset *s, const lf_charset *more);
void lf_charset_tidy(lf_charset *s);                      /* ascending, neither overlapping nor touching */
void lf_charset_invert(lf_charset *s);
int lf_charset_same(const lf_charset *a, const lf_charset *b);
void lf_charset_free(lf_charset *s);

/* Add a general category ("Lu") or a group of them ("L").  -1: no such name. */
int lf_charset_add_category(lf_charset *s, const char *name, size_t length);
void lf_charset_add_space(lf_charset *s);                 /* White_Space: 25 code points */
void lf_charset_add_word(lf_charset *s);                  /* alphabetic, marks, decimal digits, connectors */

/* unicode_table.c */
extern const char lf_category_name[][3];
extern const uint32_t lf_category_run[];
extern const int lf_category_runs;
extern const uint32_t lf_word_extra_range[][2];
extern const int lf_word_extra_ranges;
extern const uint32_t lf_space_range[][2];
extern const int lf_space_ranges;

#endif
