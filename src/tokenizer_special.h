/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer_special: which ids go before and after a text.  Included by tokenizer*.c only.  Floor 1.  The
 * rule is in tokenizer.h.
 */
#ifndef LF_TOKENIZER_SPECIAL_H
#define LF_TOKENIZER_SPECIAL_H

#include "added.h"

typedef struct lf_special {
    lf_ids before, after;                  /* owned */
} lf_special;

/* From the "post_processor" value (NULL: absent). */
int lf_special_template(lf_special *s, const json_t *post, lf_err *err);
/* What the root of tokenizer_config.json says instead. */
int lf_special_config(lf_special *s, const json_t *config, const lf_added *added, const lf_bpe *b,
                      lf_err *err);
void lf_special_free(lf_special *s);

#endif
