/* SPDX-License-Identifier: Apache-2.0
 *
 * field: typed, checked reading of the fields of one JSON object, with errors that name the file, the field, the
 * value found and what would work.  Floor 1, pure.  A field that is null counts as absent.
 */
#ifndef LF_FIELD_H
#define LF_FIELD_H

#include "base.h"

#include <jansson.h>

typedef struct lf_field {
    const json_t *object;                  /* borrowed; NULL: every field is absent */
    const char *where;                     /* the file's name, for errors */
    const char *prefix;                    /* "rope_parameters.main." or "": before the field's name in errors */
    lf_err *err;
} lf_field;

/* What stands in front of a field's name when it may be left out. */
enum { LF_FIELD_OPTIONAL = 0, LF_FIELD_NEEDED = 1 };

const json_t *lf_field_get(const lf_field *f, const char *key); /* NULL: absent or null */

/* An integer (or a number) within [lo, hi].  Absent: *value stays as it is, unless the field is needed. */
int lf_field_int(const lf_field *f, const char *key, int needed, int64_t lo, int64_t hi, int64_t *value);
int lf_field_real(const lf_field *f, const char *key, int needed, double lo, double hi, double *value);
/* A text, borrowed from the document. */
int lf_field_text(const lf_field *f, const char *key, int needed, const char **value);

/* The field may be left out, but when it is there it has this value and no other. */
int lf_field_is_text(const lf_field *f, const char *key, const char *only);
int lf_field_is_bool(const lf_field *f, const char *key, int only);
int lf_field_is_int(const lf_field *f, const char *key, int64_t only);

/* A JSON value as text, cut to fit buf; for errors.  Returns buf. */
const char *lf_field_show(const json_t *value, char *buf, size_t bytes);

#endif
