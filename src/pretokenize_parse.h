/* SPDX-License-Identifier: Apache-2.0
 *
 * pretokenize_parse: the parsed form of a pre_tokenizer.  Included by pretokenize*.c only.  Floor 1.
 */
#ifndef LF_PRETOKENIZE_PARSE_H
#define LF_PRETOKENIZE_PARSE_H

#include "pretokenize.h"

enum { LF_MAX_STAGES = 32 };

typedef enum lf_stage_kind { LF_STAGE_SPLIT, LF_STAGE_DIGITS, LF_STAGE_BYTES } lf_stage_kind;

typedef enum lf_behavior {
    LF_REMOVED, LF_ISOLATED, LF_MERGED_WITH_PREVIOUS, LF_MERGED_WITH_NEXT, LF_CONTIGUOUS, LF_BEHAVIORS
} lf_behavior;

/* ByteLevel with use_regex is a SPLIT by GPT-2's pattern with byte_level set; without, it is BYTES. */
typedef struct lf_stage {
    lf_stage_kind kind;
    lf_behavior behavior;
    int invert;
    lf_pattern *pattern;                   /* SPLIT */
    int set;                               /* DIGITS: of the alphabet */
    int byte_level, prefix_space;
} lf_stage;

struct lf_pretokenizer {
    int stages;
    lf_stage stage[LF_MAX_STAGES];
};

#endif
