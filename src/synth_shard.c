/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"
#include "synth_parts.h"

#include <jansson.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROWS = 128 };

static void add_entry(json_t *header, const char *name, lf_dtype dtype, int ndim, const int64_t shape[2],
                      uint64_t at)
{
    uint64_t bytes = (uint64_t)(shape[0] * shape[1]) * lf_dtype_bytes(dtype);
    json_t *sizes = json_array(), *offsets = json_array(), *entry = json_object();

    for (int d = 2 - ndim; d < 2; d++)
        json_array_append_new(sizes, json_integer((json_int_t)shape[d]));
    json_array_append_new(offsets, json_integer((json_int_t)at));
    json_array_append_new(offsets, json_integer((json_int_t)(at + bytes)));
    json_object_set_new(entry, "dtype", json_string(lf_dtype_name(dtype)));
    json_object_set_new(entry, "shape", sizes);
    json_object_set_new(entry, "data_offsets", offsets);
    json_object_set_new(header, name, entry);
}

/* The checkpoint's id is taken from headers: the seed in them tells weights of one shape apart. */
static void add_metadata(json_t *header, const lf_synth_options *o)
{
    char seed[32];

    snprintf(seed, sizeof seed, "%llu", (unsigned long long)o->seed);
    json_object_set_new(header, "__metadata__",
                        json_pack("{s:s, s:s}", "format", "pt", "seed", o->sparse ? "none" : seed));
}

/* The 8 length bytes and the JSON, padded with spaces so that the data begin at a multiple of 8. */
static char *make_header(const lf_synth_plan *p, int shard, size_t *bytes)
{
    json_t *header = json_object();
    lf_inventory_item item;
    lf_dtype dtype;
    int64_t shape[2], scale[2];

    add_metadata(header, p->o);
    for (int64_t i = p->first[shard]; i < p->first[shard + 1]; i++) {
        const lf_synth_place *q = &p->place[i];
        lf_synth_plan_item(p, i, &item);
        lf_inventory_stored(&item, q->store, &dtype, shape, scale);
        add_entry(header, item.name, dtype, item.ndim, shape, q->offset);
        if (scale[0])
            add_entry(header, item.scale, LF_E8M0, 2, scale, q->scale_offset);
    }
    char *json = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    size_t n = strlen(json), padded = (size_t)lf_round_up((int64_t)n, 8);
    char *out = lf_alloc(8 + padded + 1);
    for (int i = 0; i < 8; i++)
        out[i] = (char)(uint8_t)((uint64_t)padded >> 8 * i);
    memcpy(out + 8, json, n);
    memset(out + 8 + n, ' ', padded - n);
    free(json);
    *bytes = 8 + padded;
    return out;
}

/* 128 rows at a time; `base` is where the data begin in the file. */
static int write_item(const lf_synth_plan *p, const lf_synth_place *q, const lf_inventory_item *item, int fd,
                      uint64_t base)
{
    lf_dtype dtype;
    int64_t shape[2], scale[2];

    lf_inventory_stored(item, q->store, &dtype, shape, scale);
    size_t row = (size_t)shape[1] * lf_dtype_bytes(dtype);
    int64_t scale_rows = q->store == LF_STORE_FP8 ? 1 : scale[0] ? ROWS : 0;
    void *weight = lf_alloc(ROWS * row);
    uint8_t *codes = lf_alloc((size_t)(scale_rows * scale[1]));
    float *scratch = lf_alloc((size_t)(ROWS * item->cols) * sizeof *scratch);
    int rc = 0;

    for (int64_t r = 0; rc == 0 && r < item->rows; r += ROWS) {
        int64_t rows = lf_min(ROWS, item->rows - r), above = q->store == LF_STORE_FP8 ? r / ROWS : r;
        lf_synth_rows(item, q->store, p->o->seed, p->m->experts, r, rows, weight, codes, scratch);
        rc = lf_file_write_at(fd, weight, (size_t)rows * row, base + q->offset + (uint64_t)r * row);
        if (rc == 0 && scale_rows)
            rc = lf_file_write_at(fd, codes, (size_t)(lf_min(scale_rows, rows) * scale[1]),
                          base + q->scale_offset + (uint64_t)(above * scale[1]));
    }
    free(scratch);
    free(codes);
    free(weight);
    return rc;
}

static int write_shard(const lf_synth_plan *p, int shard, int fd)
{
    size_t base;
    char *header = make_header(p, shard, &base);
    lf_inventory_item item;
    int rc = ftruncate(fd, (off_t)(base + p->bytes[shard])) || lf_file_write_at(fd, header, base, 0) ? -1 : 0;

    free(header);
    for (int64_t i = p->first[shard]; rc == 0 && !p->o->sparse && i < p->first[shard + 1]; i++) {
        lf_synth_plan_item(p, i, &item);
        rc = write_item(p, &p->place[i], &item, fd, base);
    }
    return rc;
}

int lf_synth_shard_write(const lf_synth_plan *p, int shard, const char *dir, lf_err *err)
{
    char name[64];

    lf_synth_shard_name(p, shard, name);
    char *path = lf_printf("%s/%s", dir, name), *part = lf_printf("%s.part", path);
    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int rc = lf_file_publish(fd, part, path, fd >= 0 && write_shard(p, shard, fd), err);

    free(part);
    free(path);
    return rc;
}
