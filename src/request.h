/* SPDX-License-Identifier: Apache-2.0
 *
 * request: the prompts file, one JSON object a line, read and checked whole before anything is computed.  Floor 1.
 *
 * A line is one of
 *   {"custom_id": ID, "prompt": TEXT or [token ids]}     also "token_ids": [...] or "file": PATH instead of "prompt"
 *   {"custom_id": ID, "method": "POST", "url": "/v1/completions", "body": {"prompt": TEXT or [token ids], ...}}
 * and may have "add_special_tokens": false beside the prompt when a text carries its own.  In `body`, what only steers
 * generation (max_tokens, temperature, ...) is accepted and has no effect; what would change the prompt is refused.
 * PATH is taken from the prompts file's directory (stdin: the working directory): *.npy and *.bin are token ids
 * (request_idfile.h), anything else is UTF-8 text, taken byte for byte.
 *
 * Blank lines, CRLF and a byte order mark at the very beginning are fine.  Ids are unique, 1 to LF_ID_BYTES bytes of
 * UTF-8 without control characters.  A prompt has 1 to max_positions tokens below vocab.  Everything else is refused:
 * one error that names file, line and reason of the first bad line and the numbers of the others (up to 20).
 * A file without a single prompt is refused too: a queue that is empty by mistake should not look like success.
 */
#ifndef LF_REQUEST_H
#define LF_REQUEST_H

#include "base.h"

#include <stdio.h>

enum { LF_ID_BYTES = 512 };

typedef enum lf_request_source { LF_FROM_IDS, LF_FROM_TEXT, LF_FROM_ID_FILE, LF_FROM_TEXT_FILE } lf_request_source;

typedef struct lf_request {
    char *id;                              /* custom_id */
    uint32_t *ids;
    int64_t tokens;
    int64_t line;                          /* in the prompts file, from 1 */
    int64_t place;                         /* among the prompts of the file, from 0; kept by lf_requests_shard */
    lf_request_source source;
} lf_request;

typedef struct lf_requests {
    int64_t n;
    lf_request *v;                         /* in the file's order */
    int64_t tokens;                        /* of all */
    int64_t texts;                         /* how many went through the tokenizer */
} lf_requests;

/* Text to ids, as lf_tokenizer_encode: *ids is taken over. */
typedef int (*lf_request_encode)(void *ctx, const char *text, size_t bytes, int add_special, uint32_t **ids,
                                 int64_t *n, lf_err *err);

typedef struct lf_request_rules {
    int64_t vocab, max_positions;
    lf_request_encode encode;              /* NULL: texts are refused */
    void *ctx;
} lf_request_rules;

/* path "-" is stdin.  On failure *r is empty. */
int lf_requests_read(lf_requests *r, const char *path, const lf_request_rules *rules, lf_err *err);
/* The same from a stream; `where` is its name in errors, `dir` what relative files are taken from. */
int lf_requests_parse(lf_requests *r, FILE *in, const char *where, const char *dir, const lf_request_rules *rules,
                      lf_err *err);
void lf_requests_free(lf_requests *r);

/* Keeps the prompts whose place is `shard` modulo `shards`, which may be none. */
void lf_requests_shard(lf_requests *r, int64_t shard, int64_t shards);

#endif
