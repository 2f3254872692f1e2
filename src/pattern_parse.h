/* SPDX-License-Identifier: Apache-2.0
 *
 * pattern_parse: the parser behind lf_pattern_parse.  Included by pattern*.c only.  Floor 1.
 */
#ifndef LF_PATTERN_PARSE_H
#define LF_PATTERN_PARSE_H

#include "pattern.h"

/* An expression as PCRE2 syntax in which LF_UNIT_SET + i stands for set i of the alphabet. */
enum { LF_UNIT_SET = 0x100 };

typedef struct lf_units {
    size_t n, cap;
    uint32_t *v;                           /* owned by the caller, freed with free() */
} lf_units;

int lf_units_literal(lf_units *u, const char *text, size_t bytes, lf_alphabet *a, lf_err *err);
int lf_units_parse(lf_units *u, const char *text, size_t bytes, lf_alphabet *a, lf_err *err);

#endif
