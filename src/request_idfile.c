/* SPDX-License-Identifier: Apache-2.0 */
#include "request_idfile.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

lf_idfile_kind lf_idfile_kind_of(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot && !strcasecmp(dot, ".npy")   ? LF_IDFILE_NPY
           : dot && !strcasecmp(dot, ".bin") ? LF_IDFILE_BIN
                                             : LF_IDFILE_NONE;
}

/* ---- the header of a .npy file: a Python dictionary with three entries ---- */

typedef struct npy {
    const char *p, *end;                   /* what is left of the header */
    char descr[8];
    int have_order, fortran, ndim;         /* ndim -1: not seen yet */
    int64_t count;
} npy;

static int next_is(npy *h, const char *word)
{
    size_t n = strlen(word);

    while (h->p < h->end && (*h->p == ' ' || *h->p == '\n'))
        h->p++;
    if ((size_t)(h->end - h->p) < n || memcmp(h->p, word, n))
        return 0;
    h->p += n;
    return 1;
}

/* A quoted word without escapes; the names and types that matter have none. */
static int quoted(npy *h, char *out, size_t room)
{
    char quote = 0;
    size_t n = 0;

    if (next_is(h, "'"))
        quote = '\'';
    else if (next_is(h, "\""))
        quote = '"';
    else
        return -1;
    while (h->p < h->end && *h->p != quote && *h->p != '\\' && n + 1 < room)
        out[n++] = *h->p++;
    out[n] = 0;
    return h->p < h->end && *h->p++ == quote ? 0 : -1;
}

static int number(npy *h, int64_t *out)
{
    int64_t v = 0;
    int digits = 0;

    for (; h->p < h->end && *h->p >= '0' && *h->p <= '9'; h->p++, digits++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *h->p - '0', &v))
            return -1;
    *out = v;
    return digits ? 0 : -1;
}

static int shape(npy *h)
{
    int64_t v;

    if (!next_is(h, "("))
        return -1;
    h->ndim = 0;
    while (!next_is(h, ")")) {
        if (number(h, &v))
            return -1;
        h->count = v;
        h->ndim++;
        if (!next_is(h, ",")) {
            if (!next_is(h, ")"))
                return -1;
            break;
        }
    }
    return 0;
}

static int entry(npy *h)
{
    char key[16];

    if (quoted(h, key, sizeof key) || !next_is(h, ":"))
        return -1;
    if (!strcmp(key, "descr") && !h->descr[0])
        return quoted(h, h->descr, sizeof h->descr);
    if (!strcmp(key, "shape") && h->ndim < 0)
        return shape(h);
    if (!strcmp(key, "fortran_order") && !h->have_order) {
        h->have_order = 1;
        h->fortran = next_is(h, "True");
        return h->fortran || next_is(h, "False") ? 0 : -1;
    }
    return -1;
}

static int dictionary(npy *h)
{
    if (!next_is(h, "{"))
        return -1;
    while (!next_is(h, "}")) {
        if (entry(h))
            return -1;
        if (!next_is(h, ",")) {
            if (!next_is(h, "}"))
                return -1;
            break;
        }
    }
    next_is(h, "");                        /* padding */
    return h->p == h->end && h->descr[0] && h->have_order && h->ndim >= 0 ? 0 : -1;
}

/* Finds the header, reads it, and leaves *at at the first byte of the data. */
static int header(npy *h, const uint8_t *data, size_t bytes, size_t *at, lf_err *err)
{
    if (bytes < 10 || memcmp(data, "\x93NUMPY", 6))
        return lf_fail(err, "it does not begin like a .npy file");
    if (data[6] < 1 || data[6] > 3)
        return lf_fail(err, ".npy format %d.%d; 1.0 to 3.0 are read", data[6], data[7]);
    size_t first = data[6] == 1 ? 10 : 12;
    if (bytes < first)
        return lf_fail(err, "the .npy header is cut off");
    size_t n = (size_t)data[8] | (size_t)data[9] << 8;
    if (first == 12)
        n |= (size_t)data[10] << 16 | (size_t)data[11] << 24;
    if (n > bytes - first)
        return lf_fail(err, "the .npy header is cut off");
    *h = (npy){ .p = (const char *)data + first, .end = (const char *)data + first + n, .ndim = -1 };
    *at = first + n;
    if (dictionary(h))
        return lf_fail(err, "the .npy header is not {'descr': ..., 'fortran_order': ..., 'shape': ...}");
    return 0;
}

/* ---- ids ---- */

enum { U2, I4, U4, I8, TYPES };

static int64_t id_at(const uint8_t *p, int type)
{
    uint64_t v = 0;

    for (int i = 0, n = type == U2 ? 2 : type == I8 ? 8 : 4; i < n; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return type == I4 ? (int32_t)(uint32_t)v : (int64_t)v;
}

static int ids_take(const uint8_t *p, int64_t n, int type, int64_t vocab, uint32_t **ids, lf_err *err)
{
    size_t step = type == U2 ? 2 : type == I8 ? 8 : 4;
    uint32_t *out = lf_alloc((size_t)n * sizeof *out);

    for (int64_t i = 0; i < n; i++) {
        int64_t v = id_at(p + (size_t)i * step, type);
        if (v < 0 || v >= vocab) {
            free(out);
            return lf_fail(err, "token %lld is %lld; the model's ids are 0 to %lld", (long long)i,
                           (long long)v, (long long)vocab - 1);
        }
        out[i] = (uint32_t)v;
    }
    *ids = out;
    return 0;
}

static int npy_parse(const uint8_t *data, size_t bytes, int64_t vocab, uint32_t **ids, int64_t *n,
                     lf_err *err)
{
    static const char *const name[TYPES] = { "<u2", "<i4", "<u4", "<i8" };
    size_t at = 0;
    int type = 0;
    npy h;

    if (header(&h, data, bytes, &at, err))
        return -1;
    while (type < TYPES && strcmp(h.descr, name[type]))
        type++;
    if (type == TYPES)
        return lf_fail(err, "its elements are '%s'; '<u2', '<i4', '<u4' and '<i8' are read", h.descr);
    if (h.ndim != 1 || h.fortran)
        return lf_fail(err, "it has %d dimension%s%s; token ids have one, in C order", h.ndim, lf_s(h.ndim),
                       h.fortran ? " in Fortran order" : "");
    size_t step = type == U2 ? 2 : type == I8 ? 8 : 4;
    if ((bytes - at) % step || (uint64_t)h.count != (bytes - at) / step)
        return lf_fail(err, "it announces %lld element%s of %zu bytes but has %zu byte%s of data",
                       (long long)h.count, lf_s(h.count), step, bytes - at, lf_s((int64_t)(bytes - at)));
    *n = h.count;
    return ids_take(data + at, h.count, type, vocab, ids, err);
}

int lf_idfile_parse(const void *data, size_t bytes, lf_idfile_kind kind, int64_t vocab, uint32_t **ids,
                    int64_t *n, lf_err *err)
{
    if (kind == LF_IDFILE_NPY)
        return npy_parse(data, bytes, vocab, ids, n, err);
    if (kind != LF_IDFILE_BIN)
        return lf_fail(err, "not a file of token ids; those end in .npy or .bin");
    if (bytes % 4)
        return lf_fail(err, "%zu byte%s: no whole number of u32 token ids", bytes, lf_s((int64_t)bytes));
    *n = (int64_t)(bytes / 4);
    return ids_take(data, *n, U4, vocab, ids, err);
}
