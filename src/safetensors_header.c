/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"
#include "safetensors_parts.h"

#include <jansson.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { HEADER_LIMIT = 100000000, NAME_LIMIT = 512 };

static uint64_t little_u64(const char *p)
{
    uint64_t v = 0;

    for (int i = 7; i >= 0; i--)
        v = v << 8 | (uint8_t)p[i];
    return v;
}

static int read_header_of(int fd, lf_shard_file *s, char **text, lf_err *err)
{
    char length[8];

    if (fstat(fd, &s->st) || !S_ISREG(s->st.st_mode))
        return lf_fail(err, "shard %s is not a regular file", s->path);
    s->bytes = (uint64_t)s->st.st_size;
    if (s->bytes < 8)
        return lf_fail(err, "shard %s has %llu byte%s: too short for a safetensors file", s->path,
                       (unsigned long long)s->bytes, lf_s((int64_t)s->bytes));
    if (lf_file_read_at(fd, length, 8, 0))
        return lf_fail(err, "cannot read shard %s", s->path);
    s->header = little_u64(length);
    if (s->header > HEADER_LIMIT)
        return lf_fail(err, "shard %s: its header claims %llu bytes; at most %d are read", s->path,
                       (unsigned long long)s->header, HEADER_LIMIT);
    if (s->header > s->bytes - 8)
        return lf_fail(err, "shard %s is truncated: its header claims %llu byte%s, the file has %llu", s->path,
                       (unsigned long long)s->header, lf_s((int64_t)s->header), (unsigned long long)s->bytes);
    *text = lf_alloc((size_t)s->header + 9);
    if (lf_file_read_at(fd, *text, (size_t)s->header + 8, 0)) {
        free(*text);
        *text = NULL;
        return lf_fail(err, "cannot read the header of shard %s", s->path);
    }
    return 0;
}

int lf_shard_read_header(lf_shard_file *s, char **text, lf_err *err)
{
    int fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    *text = NULL;
    if (fd < 0)
        return lf_fail(err, "cannot open shard %s: %s", s->path, strerror(errno));
    int rc = read_header_of(fd, s, text, err);
    close(fd);
    return rc;
}

/* Names go into one-line errors and, for some readers, into paths: only printable text is taken. */
static int check_name(const lf_shard_file *s, const char *name, lf_err *err)
{
    size_t n = strlen(name);

    if (n == 0 || n > NAME_LIMIT)
        return lf_fail(err, "shard %s: a tensor's name has %zu bytes; 1 to %d are accepted", s->path, n,
                       NAME_LIMIT);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return lf_fail(err, "shard %s: a tensor's name has a control character (after \"%.*s\")", s->path,
                           (int)lf_min((int64_t)i, 80), name);
    return 0;
}

static int parse_dtype(const lf_shard_file *s, const json_t *entry, lf_tensor *t, lf_err *err)
{
    const char *type = json_string_value(json_object_get(entry, "dtype"));

    if (!type)
        return lf_fail(err, "shard %s: tensor %s has no dtype", s->path, t->name);
    if (lf_dtype_parse(type, &t->dtype) || t->dtype == LF_U32)
        return lf_fail(err,
                       "shard %s: tensor %s has the dtype \"%.40s\"; BF16, F16, F32, F8_E4M3, F8_E8M0, I8, U8,"
                       " I32 and I64 are read",
                       s->path, t->name, type);
    return 0;
}

/* Also sets bytes to what the shape needs. */
static int parse_shape(const lf_shard_file *s, const json_t *entry, lf_tensor *t, lf_err *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    uint64_t count = 1;

    if (!json_is_array(shape))
        return lf_fail(err, "shard %s: tensor %s has no shape", s->path, t->name);
    if (json_array_size(shape) > LF_MAX_DIMS)
        return lf_fail(err, "shard %s: tensor %s has %zu dimensions; at most %d are read", s->path, t->name,
                       json_array_size(shape), LF_MAX_DIMS);
    t->ndim = (int)json_array_size(shape);
    for (int d = 0; d < t->ndim; d++) {
        const json_t *v = json_array_get(shape, (size_t)d);
        int64_t size = json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;
        if (size < 0)
            return lf_fail(err, "shard %s: tensor %s has a size in its shape that is no integer from 0 up",
                           s->path, t->name);
        t->shape[d] = size;
        if (__builtin_mul_overflow(count, (uint64_t)size, &count))
            return lf_fail(err, "shard %s: tensor %s has a shape beyond 2^64 elements", s->path, t->name);
    }
    if (__builtin_mul_overflow(count, (uint64_t)lf_dtype_bytes(t->dtype), &t->bytes))
        return lf_fail(err, "shard %s: tensor %s has a shape beyond 2^64 bytes", s->path, t->name);
    return 0;
}

static int parse_offsets(const lf_shard_file *s, const json_t *entry, lf_tensor *t, lf_err *err)
{
    const json_t *pair = json_object_get(entry, "data_offsets");
    const json_t *a = json_array_get(pair, 0), *b = json_array_get(pair, 1);
    int64_t begin = json_is_integer(a) ? (int64_t)json_integer_value(a) : -1;
    int64_t end = json_is_integer(b) ? (int64_t)json_integer_value(b) : -1;
    uint64_t data = s->bytes - 8 - s->header;

    if (json_array_size(pair) != 2 || begin < 0 || end < begin)
        return lf_fail(err, "shard %s: tensor %s: data_offsets is not a pair of ascending integers from 0 up",
                       s->path, t->name);
    if ((uint64_t)end > data)
        return lf_fail(err, "shard %s is truncated: tensor %s ends at byte %lld of the data, the file has %llu",
                       s->path, t->name, (long long)end, (unsigned long long)data);
    if ((uint64_t)(end - begin) != t->bytes)
        return lf_fail(err, "shard %s: tensor %s has %lld byte%s of data; its shape and dtype need %llu",
                       s->path, t->name, (long long)(end - begin), lf_s(end - begin), (unsigned long long)t->bytes);
    t->offset = 8 + s->header + (uint64_t)begin;
    return 0;
}

static lf_tensor *append(lf_tensor_list *list)
{
    if (list->n == list->capacity) {
        list->capacity = lf_max(1024, 2 * list->capacity);
        list->v = lf_realloc(list->v, (size_t)list->capacity * sizeof *list->v);
    }
    memset(&list->v[list->n], 0, sizeof *list->v);
    return &list->v[list->n];
}

static int parse_entry(const lf_shard_file *s, int shard, const char *name, const json_t *entry,
                       lf_tensor_list *list, lf_err *err)
{
    if (check_name(s, name, err))
        return -1;
    lf_tensor *t = append(list);
    t->name = name;
    t->shard = shard;
    if (!json_is_object(entry))
        return lf_fail(err, "shard %s: the entry of tensor %s is not an object", s->path, name);
    if (parse_dtype(s, entry, t, err) || parse_shape(s, entry, t, err) || parse_offsets(s, entry, t, err))
        return -1;
    t->name = lf_strdup(name);
    list->n++;
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const lf_tensor *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int check_cover(const lf_shard_file *s, const lf_tensor *t, int64_t n, lf_err *err)
{
    uint64_t at = 8 + s->header;

    for (int64_t i = 0; i < n; i++) {
        if (t[i].offset < at)
            return lf_fail(err, "shard %s: tensor %s overlaps tensor %s", s->path, t[i].name, t[i - 1].name);
        if (t[i].offset > at)
            return lf_fail(err, "shard %s: no tensor has the %llu byte%s in front of tensor %s", s->path,
                           (unsigned long long)(t[i].offset - at), lf_s((int64_t)(t[i].offset - at)), t[i].name);
        at += t[i].bytes;
    }
    if (at != s->bytes)
        return lf_fail(err, "shard %s: no tensor has the %llu byte%s after %s%s", s->path,
                       (unsigned long long)(s->bytes - at), lf_s((int64_t)(s->bytes - at)),
                       n ? "tensor " : "the header", n ? t[n - 1].name : "");
    return 0;
}

static int parse_entries(const lf_shard_file *s, int shard, json_t *root, lf_tensor_list *list, lf_err *err)
{
    int64_t first = list->n;
    const char *name;
    json_t *entry;

    json_object_foreach(root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (parse_entry(s, shard, name, entry, list, err))
            return -1;
    }
    if (list->n > first)
        qsort(list->v + first, (size_t)(list->n - first), sizeof *list->v, by_offset);
    return check_cover(s, list->v + first, list->n - first, err);
}

int lf_shard_parse_header(const lf_shard_file *s, int shard, const char *json, lf_tensor_list *list,
                          lf_err *err)
{
    json_error_t bad;
    json_t *root = json_loadb(json, (size_t)s->header, JSON_REJECT_DUPLICATES, &bad);

    if (!root)
        return lf_fail(err, "shard %s: its header is not JSON: %s (line %d, column %d)", s->path, bad.text,
                       bad.line, bad.column);
    int rc = json_is_object(root) ? parse_entries(s, shard, root, list, err)
                                  : lf_fail(err, "shard %s: its header is not a JSON object", s->path);
    json_decref(root);
    return rc;
}
