/* SPDX-License-Identifier: Apache-2.0
 *
 * request_line: one line of the prompts file.  Floor 1; used by request.c.
 */
#ifndef LF_REQUEST_LINE_H
#define LF_REQUEST_LINE_H

#include "request.h"

#include <jansson.h>

typedef struct lf_request_context {
    const lf_request_rules *rules;
    const char *dir;                       /* ends with '/', or is empty */
} lf_request_context;

/* Fills id, ids, tokens and source; what is filled on failure is the caller's to free. */
int lf_request_line(lf_request *q, const lf_request_context *c, const char *text, size_t bytes, lf_err *err);

#endif
