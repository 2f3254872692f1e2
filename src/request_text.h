/* SPDX-License-Identifier: Apache-2.0
 *
 * request_text: the tokenizer behind a prompts file, opened when the first text needs it: a model without a
 * tokenizer.json still takes token ids.  Floor 1.
 */
#ifndef LF_REQUEST_TEXT_H
#define LF_REQUEST_TEXT_H

#include "request.h"
#include "tokenizer.h"

typedef struct lf_request_text {
    const char *model_dir;                 /* filled by the caller, the rest zero */
    lf_tokenizer *tokenizer;               /* NULL: no text was seen, or it cannot be opened */
    int tried;
    lf_err why;                            /* it cannot */
} lf_request_text;

/* An lf_request_encode; ctx is an lf_request_text. */
int lf_request_text_encode(void *ctx, const char *text, size_t bytes, int add_special, uint32_t **ids, int64_t *n,
                           lf_err *err);
void lf_request_text_close(lf_request_text *t);

#endif
