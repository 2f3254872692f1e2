/* SPDX-License-Identifier: Apache-2.0 */
#include "field.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 64 };

const char *lf_field_show(const json_t *value, char *buf, size_t bytes)
{
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS) : NULL;
    int n = snprintf(buf, bytes, "%s", text ? text : "not there");

    if (n >= (int)bytes && bytes > 4)
        strcpy(buf + bytes - 4, "...");
    free(text);
    return buf;
}

const json_t *lf_field_get(const lf_field *f, const char *key)
{
    const json_t *v = f->object ? json_object_get(f->object, key) : NULL;

    return v && !json_is_null(v) ? v : NULL;
}

static int absent(const lf_field *f, const char *key, int needed)
{
    if (!needed)
        return 0;
    return lf_fail(f->err, "%s: field %s%s is missing", f->where, f->prefix, key);
}

int lf_field_int(const lf_field *f, const char *key, int needed, int64_t lo, int64_t hi, int64_t *value)
{
    const json_t *v = lf_field_get(f, key);
    char shown[SHOWN];

    if (!v)
        return absent(f, key, needed);
    int64_t i = json_is_integer(v) ? (int64_t)json_integer_value(v) : 0;
    if (!json_is_integer(v) || i < lo || i > hi)
        return lf_fail(f->err, "%s: field %s%s is %s; it must be an integer from %lld to %lld", f->where,
                       f->prefix, key, lf_field_show(v, shown, sizeof shown), (long long)lo, (long long)hi);
    *value = i;
    return 0;
}

int lf_field_real(const lf_field *f, const char *key, int needed, double lo, double hi, double *value)
{
    const json_t *v = lf_field_get(f, key);
    char shown[SHOWN];

    if (!v)
        return absent(f, key, needed);
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= lo && x <= hi))
        return lf_fail(f->err, "%s: field %s%s is %s; it must be a number from %g to %g", f->where, f->prefix,
                       key, lf_field_show(v, shown, sizeof shown), lo, hi);
    *value = x;
    return 0;
}

int lf_field_text(const lf_field *f, const char *key, int needed, const char **value)
{
    const json_t *v = lf_field_get(f, key);
    char shown[SHOWN];

    if (!v)
        return absent(f, key, needed);
    if (!json_is_string(v))
        return lf_fail(f->err, "%s: field %s%s is %s; it must be a text", f->where, f->prefix, key,
                       lf_field_show(v, shown, sizeof shown));
    *value = json_string_value(v);
    return 0;
}

int lf_field_is_text(const lf_field *f, const char *key, const char *only)
{
    const json_t *v = lf_field_get(f, key);
    char shown[SHOWN];

    if (!v || (json_is_string(v) && strcmp(json_string_value(v), only) == 0))
        return 0;
    return lf_fail(f->err, "%s: field %s%s is %s; only \"%s\" is supported", f->where, f->prefix, key,
                   lf_field_show(v, shown, sizeof shown), only);
}

int lf_field_is_bool(const lf_field *f, const char *key, int only)
{
    const json_t *v = lf_field_get(f, key);
    char shown[SHOWN];

    if (!v || (json_is_boolean(v) && !!json_is_true(v) == !!only))
        return 0;
    return lf_fail(f->err, "%s: field %s%s is %s; only %s is supported", f->where, f->prefix, key,
                   lf_field_show(v, shown, sizeof shown), only ? "true" : "false");
}

int lf_field_is_int(const lf_field *f, const char *key, int64_t only)
{
    const json_t *v = lf_field_get(f, key);
    char shown[SHOWN];

    if (!v || (json_is_integer(v) && json_integer_value(v) == only))
        return 0;
    return lf_fail(f->err, "%s: field %s%s is %s; only %lld is supported", f->where, f->prefix, key,
                   lf_field_show(v, shown, sizeof shown), (long long)only);
}
