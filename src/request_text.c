/* SPDX-License-Identifier: Apache-2.0 */
#include "request_text.h"

/* A tokenizer that cannot be opened fails every text with the same words, and is not read again for each. */
int lf_request_text_encode(void *ctx, const char *text, size_t bytes, int add_special, uint32_t **ids, int64_t *n,
                           lf_err *err)
{
    lf_request_text *t = ctx;

    if (!t->tried) {
        t->tried = 1;
        if (lf_tokenizer_open(&t->tokenizer, t->model_dir, &t->why))
            t->tokenizer = NULL;
    }
    if (!t->tokenizer)
        return lf_fail(err, "a text needs the model's tokenizer (token ids do not): %.400s", t->why.text);
    return lf_tokenizer_encode(t->tokenizer, text, bytes, add_special, ids, n, err);
}

void lf_request_text_close(lf_request_text *t)
{
    lf_tokenizer_close(t->tokenizer);
    t->tokenizer = NULL;
    t->tried = 0;
}
