/* SPDX-License-Identifier: Apache-2.0
 *
 * What tp ranks load, on the GPU; and columns of matrices as they come: read from a file by the loader's threads, from
 * mapped memory by them, and without them.
 */
#include "weight_case.h"

#include "../src/dev_cuda.h"

#include <unistd.h>

/* Columns col0 .. col0+cols-1 of rows that have `all`. */
static const struct columns { lf_dtype type; int64_t rows, all, col0, cols; } columns[] = {
    { LF_E4M3, 3000, 16384, 4096, 2048 },          /* more than one piece of the loader */
    { LF_E4M3, 300, 600, 128, 472 },               /* to the end, inside of a block */
    { LF_I8, 130, 320, 32, 96 },
    { LF_BF16, 33, 300, 7, 100 },
    { LF_F32, 3, 1200000, 50, 1100000 },           /* rows longer than a piece */
    { LF_E4M3, 2000, 4096, 0, 4096 },              /* all of them */
};

/* A tensor in a file: codes, then scales. */
typedef struct stored {
    const struct columns *of;
    uint8_t *map;                          /* what is in the file */
    size_t bytes;
    int fd;                                /* -1: not told */
    int64_t scale_rows;
    size_t row, scale_row, scale_at;       /* bytes of whole rows; where the scales begin */
} stored;

enum { CODES_AT = 13 };                    /* files have them at odd places */

static size_t codes(lf_dtype type, int64_t cols)
{
    return type == LF_I8 ? (size_t)cols / 2 : (size_t)cols * lf_dtype_bytes(type);
}

static size_t scales(lf_dtype type, int64_t cols)
{
    return type == LF_E4M3 ? (size_t)(cols + 127) / 128 : type == LF_I8 ? (size_t)cols / 32 : 0;
}

static int find(void *ctx, const void *data, size_t bytes, int64_t *at)
{
    stored *s = ctx;
    const uint8_t *p = data;

    if (p < s->map || p + bytes > s->map + s->bytes)
        return -1;
    *at = p - s->map;
    return s->fd;
}

static int store(stored *s, FILE *file)
{
    const struct columns *k = s->of;
    uint64_t seed = 88172645463325252u;

    s->scale_rows = k->type == LF_E4M3 ? lf_ceil_div(k->rows, 128) : k->rows;
    s->row = codes(k->type, k->all);
    s->scale_row = scales(k->type, k->all);
    s->scale_at = CODES_AT + (size_t)k->rows * s->row;
    s->bytes = s->scale_at + (size_t)s->scale_rows * s->scale_row;
    s->map = lf_alloc(s->bytes + 8);
    for (size_t i = 0; i < s->bytes; i += 8) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        memcpy(s->map + i, &seed, 8);
    }
    return file && fwrite(s->map, 1, s->bytes, file) == s->bytes && fflush(file) == 0;
}

/* Rows without gaps on the device are those of the file from byte `at` on, `step` apart. */
static int came(lf_dev *d, const stored *s, const void *device, size_t at, int64_t rows, size_t bytes, size_t step)
{
    uint8_t *got = lf_alloc((size_t)rows * bytes + 1);
    int same = 1;

    d->ops->get(d, got, device, (size_t)rows * bytes);
    for (int64_t i = 0; i < rows; i++)
        same = same && memcmp(got + (size_t)i * bytes, s->map + at + (size_t)i * step, bytes) == 0;
    free(got);
    return same;
}

static void one_way(lf_dev *d, stored *s, const char *way, int loads)
{
    const struct columns *k = s->of;
    lf_weight w = { .dtype = k->type, .rows = k->rows, .cols = k->cols, .all_rows = k->rows, .all_cols = k->cols };
    size_t row = codes(k->type, k->cols), scale_row = scales(k->type, k->cols);
    size_t data = CODES_AT + codes(k->type, k->col0), scale = s->scale_at + scales(k->type, k->col0);
    lf_dev_files files = { s, find };
    lf_err err = { "" };

    int bad = (loads && d->ops->load(d, &files, &err)) ||
              d->ops->weight(d, &w, k->all, s->map + data, (size_t)k->rows * row, scale_row ? s->map + scale : NULL,
                             (size_t)s->scale_rows * scale_row, &err);
    bad = d->ops->sync(d, bad ? &(lf_err){ "" } : &err) || bad;
    TAP_CHECK(!bad && w.all_cols == k->cols && came(d, s, w.data, data, k->rows, row, s->row) &&
                  came(d, s, w.scale, scale, s->scale_rows, scale_row, s->scale_row),
              "%s, %lld rows, columns %lld to %lld of %lld, %s %s", lf_dtype_name(k->type), (long long)k->rows,
              (long long)k->col0, (long long)(k->col0 + k->cols - 1), (long long)k->all, way, err.text);
}

static void all_columns(void)
{
    lf_model m = { .vocab = 100, .hidden = 96, .hc = 4, .index_dim = 32 };
    lf_err err = { "" };
    lf_dev *d;

    if (lf_cuda_open(&d, &m, LF_RELEASED, 2, 0, &err)) {
        TAP_CHECK(0, "a GPU: %s", err.text);
        return;
    }
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        FILE *file = tmpfile();
        stored s = { .of = &columns[i] };
        TAP_CHECK(store(&s, file), "a file of %zu bytes", s.bytes);
        s.fd = file ? fileno(file) : -1;
        one_way(d, &s, "from the file", 1);
        s.fd = -1;
        one_way(d, &s, "from mapped memory", 1);
        one_way(d, &s, "without the loader", 0);
        free(s.map);
        if (file)
            fclose(file);
    }
    lf_dev_close(d);
}

static int open_gpu(lf_dev **d, const lf_model *m, lf_numerics numerics, lf_err *err)
{
    return lf_cuda_open(d, m, numerics, numerics == LF_EXACT ? 4 : 2, 0, err);
}

int main(void)
{
    lf_err err;
    int count;

    if (lf_cuda_devices(&count, &err)) {
        tap_skip("weights of tp ranks on the GPU", err.text);
        return tap_done();
    }
    all_columns();
    weight_cases(open_gpu);
    return tap_done();
}
