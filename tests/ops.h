/* SPDX-License-Identifier: Apache-2.0
 *
 * ops: what the t_ops_* programs share.  A golden file (reference/make_ops_golden.py) holds cases; a run is
 * one case on
 * one device in one numerics.  Device and host memory obtained through a run is given back by ops_clear.
 *
 * An operation under test is a function that computes chosen rows of a case: ops_check compares all rows
 * with the
 * expected values, and then asks for the same rows alone, in other places, among other numbers of rows and
 * on 1, 2 and
 * 4 threads, and compares bytes.
 */
#ifndef LF_TEST_OPS_H
#define LF_TEST_OPS_H

#include "file.h"
#include "tap.h"

#include "../src/dev.h"

#include <stdlib.h>
#include <string.h>

typedef struct ops_entry {
    char name[40];
    uint32_t type, ndim;                   /* 0 f32, 1 bf16, 2 u8, 3 i32, 4 i64, 5 u32 */
    int64_t shape[4];
    const uint8_t *data;
    int64_t count;
} ops_entry;

typedef struct ops_file {
    char *text;
    ops_entry *entry;
    int entries, cases;
} ops_file;

typedef struct ops_run {
    const ops_file *file;
    int n;                                 /* the case */
    char suffix;                           /* 'e' or 'r' */
    lf_model model;
    lf_dev *dev;
    void *device[128], *host[512];
    int devices, hosts;
} ops_run;

/* Writes rows[0..m-1] of the case to out, row_bytes each. */
typedef void (*ops_fn)(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out);

static inline void ops_die(const char *what, const char *name)
{
    printf("Bail out! %s: %s\n", what, name);
    exit(1);
}

static inline void ops_load(ops_file *f, const char *name)
{
    static const size_t width[6] = { 4, 2, 1, 4, 8, 4 };
    const char *src = getenv("srcdir");
    char *path = lf_printf("%s/../data/ops/%s", src ? src : ".", name);
    size_t bytes, at = 8;
    lf_err err;

    memset(f, 0, sizeof *f);
    if (lf_file_read(path, (size_t)1 << 26, &f->text, &bytes, &err) != 0)
        ops_die("golden file", err.text);
    if (bytes < 8 || memcmp(f->text, "LFOPS1\0", 8) != 0)
        ops_die("not a golden file", path);
    while (at < bytes) {
        f->entry = lf_realloc(f->entry, sizeof *f->entry * (size_t)(f->entries + 1));
        ops_entry *e = &f->entry[f->entries++];
        memcpy(e, f->text + at, 80);
        e->data = (const uint8_t *)f->text + at + 80;
        e->count = e->shape[0] * e->shape[1] * e->shape[2] * e->shape[3];
        at += 80 + ((size_t)e->count * width[e->type] + 7) / 8 * 8;
        f->cases = atoi(e->name) + 1;
    }
    free(path);
}

static inline void ops_unload(ops_file *f)
{
    free(f->entry);
    free(f->text);
}

static inline const ops_entry *ops_find(const ops_run *r, const char *field)
{
    char name[96];

    snprintf(name, sizeof name, "%d/%s", r->n, field);
    for (int i = 0; i < r->file->entries; i++)
        if (strcmp(r->file->entry[i].name, name) == 0)
            return &r->file->entry[i];
    return NULL;
}

static inline const ops_entry *ops_get(const ops_run *r, const char *field)
{
    const ops_entry *e = ops_find(r, field);

    if (e == NULL)
        ops_die("no such field", field);
    return e;
}

static inline int ops_is(const ops_run *r, const char *op)
{
    const ops_entry *e = ops_get(r, "op");

    return (size_t)e->count == strlen(op) && memcmp(e->data, op, strlen(op)) == 0;
}

static inline int64_t ops_opt(const ops_run *r, int i)
{
    int64_t v;

    memcpy(&v, ops_get(r, "opt")->data + 8 * i, 8);
    return v;
}

static inline void *ops_host(ops_run *r, size_t bytes)
{
    if (r->hosts == 512)
        ops_die("host memory", "too many pieces");
    return r->host[r->hosts++] = lf_alloc(bytes + 8);
}

static inline void *ops_device(ops_run *r, size_t bytes)
{
    lf_err err;
    void *p;

    if (r->devices == 128)
        ops_die("device memory", "too many pieces");
    if (r->dev->ops->take(r->dev, &p, bytes + 64, "test", &err) != 0)
        ops_die("take", err.text);
    r->dev->ops->fill(r->dev, p, 0xff, bytes + 64);           /* what is not written shows as NaN */
    return r->device[r->devices++] = p;
}

static inline void *ops_put(ops_run *r, const void *host, size_t bytes)
{
    void *p = ops_device(r, bytes);

    r->dev->ops->put(r->dev, p, host, bytes);
    return p;
}

static inline void ops_clear(ops_run *r)
{
    while (r->devices)
        r->dev->ops->give(r->dev, r->device[--r->devices]);
    while (r->hosts)
        free(r->host[--r->hosts]);
}

static inline float *ops_floats(ops_run *r, const char *field)
{
    const ops_entry *e = ops_get(r, field);
    float *f = ops_host(r, (size_t)e->count * 4);

    for (int64_t i = 0; i < e->count; i++) {
        if (e->type == 1) {
            uint16_t b;
            memcpy(&b, e->data + 2 * i, 2);
            f[i] = lf_bf16_f32(b);
        } else {
            memcpy(&f[i], e->data + 4 * i, 4);
        }
    }
    return f;
}

/* A field's floats on the device, as float32; raw bytes; floats as activations. */
static inline float *ops_put_floats(ops_run *r, const char *field)
{
    return ops_put(r, ops_floats(r, field), (size_t)ops_get(r, field)->count * 4);
}

static inline lf_act *ops_put_act(ops_run *r, const float *x, int64_t n)
{
    if (r->dev->act_bytes == 4)
        return ops_put(r, x, (size_t)n * 4);
    uint16_t *h = ops_host(r, (size_t)n * 2);
    for (int64_t i = 0; i < n; i++)
        h[i] = lf_f32_bf16(x[i]);
    return ops_put(r, h, (size_t)n * 2);
}

static inline lf_act *ops_new_act(ops_run *r, int64_t n)
{
    return ops_device(r, (size_t)n * r->dev->act_bytes);
}

static inline void ops_get_act(ops_run *r, float *out, const lf_act *x, int64_t n)
{
    lf_err err;

    if (r->dev->ops->sync(r->dev, &err) != 0)
        ops_die("sync", err.text);
    r->dev->ops->get(r->dev, out, x, (size_t)n * r->dev->act_bytes);
    for (int64_t i = n; r->dev->act_bytes == 2 && i-- > 0;) {
        uint16_t b;
        memcpy(&b, (char *)out + 2 * i, 2);
        out[i] = lf_bf16_f32(b);
    }
}

static inline void ops_get_raw(ops_run *r, void *out, const void *x, size_t bytes)
{
    lf_err err;

    if (r->dev->ops->sync(r->dev, &err) != 0)
        ops_die("sync", err.text);
    r->dev->ops->get(r->dev, out, x, bytes);
}

static inline int64_t ops_row(const ops_entry *e)              /* elements of a row */
{
    return e->shape[1] * e->shape[2] * e->shape[3];
}

/* Chosen rows of a field, each `each` entries of the first dimension, gathered: floats as activations. */
static inline lf_act *ops_gather(ops_run *r, const char *field, int64_t each, const int64_t *rows, int64_t m)
{
    const float *x = ops_floats(r, field);
    int64_t n = ops_row(ops_get(r, field)) * each;
    float *y = ops_host(r, (size_t)(m * n) * 4);

    for (int64_t i = 0; i < m; i++)
        memcpy(y + i * n, x + rows[i] * n, (size_t)n * 4);
    return ops_put_act(r, y, m * n);
}

/* The same for plain elements of `size` bytes in the file; bf16 fields widen to float32 (size 4). */
static inline void *ops_gather_raw(ops_run *r, const char *field, int64_t each, size_t size,
                                   const int64_t *rows, int64_t m)
{
    const ops_entry *e = ops_get(r, field);
    const void *x = e->type <= 1 ? (const void *)ops_floats(r, field) : e->data;
    size_t n = (size_t)(ops_row(e) * each) * size;
    char *y = ops_host(r, (size_t)m * n);

    for (int64_t i = 0; i < m; i++)
        memcpy(y + (size_t)i * n, (const char *)x + (size_t)rows[i] * n, n);
    return ops_put(r, y, (size_t)m * n);
}

/* A stored weight; kind 0 f32, 1 bf16, 2 fp8, 3 fp4.  The bytes lie at an odd address: files may have them so. */
static inline lf_weight ops_weight(ops_run *r, const char *field, int64_t kind)
{
    static const lf_dtype types[4] = { LF_F32, LF_BF16, LF_E4M3, LF_I8 };
    const ops_entry *e = ops_get(r, field), *s;
    size_t bytes = (size_t)e->count * (kind == 0 ? 4 : kind == 1 ? 2 : 1), scale_bytes = 0;
    uint8_t *data = (uint8_t *)ops_host(r, bytes + 1) + 1, *scale = NULL;
    char name[64];
    lf_err err;
    lf_weight w = { .dtype = types[kind], .all_rows = e->shape[0], .all_cols = e->shape[1] * (kind == 3
                                                                                              ? 2 : 1) };

    w.rows = w.all_rows;
    w.cols = w.all_cols;
    if (kind == 0)
        memcpy(data, ops_floats(r, field), bytes);
    else
        memcpy(data, e->data, bytes);
    if (kind >= 2) {
        snprintf(name, sizeof name, "%s.scale", field);
        s = ops_get(r, name);
        scale_bytes = (size_t)s->count;
        scale = (uint8_t *)ops_host(r, scale_bytes + 1) + 1;
        memcpy(scale, s->data, scale_bytes);
    }
    if (r->dev->ops->weight(r->dev, &w, w.all_cols, data, bytes, scale, scale_bytes, &err) != 0)
        ops_die("weight", err.text);
    return w;
}

static inline lf_rope ops_rope(ops_run *r)
{
    return (lf_rope){ (int)ops_get(r, "freq")->count * 2, ops_put_floats(r, "freq") };
}

static inline void ops_model(ops_run *r)
{
    lf_model *m = &r->model;
    int64_t v[17];
    float real[2];

    memcpy(v, ops_get(r, "model")->data, sizeof v);
    memcpy(real, ops_floats(r, "real"), sizeof real);
    memset(m, 0, sizeof *m);
    *m = (lf_model){
        .type = "deepseek_v4", .layers = 1, .max_positions = 1048576, .vocab = v[0], .hidden = v[1],
        .heads = (int)v[2], .head_dim = (int)v[3], .rope_dim = (int)v[4], .q_rank = v[5], .o_groups = (int)v[6],
        .o_rank = v[7], .experts = (int)v[8], .experts_per_tok = (int)v[9], .expert_inter = v[10],
        .window = (int)v[11], .index_heads = (int)v[12], .index_dim = (int)v[13], .index_topk = (int)v[14],
        .hc = (int)v[15], .hc_iters = (int)v[16], .rms_eps = 1e-6f, .hc_eps = 1e-6f, .swiglu_limit = real[0],
        .routed_scale = real[1], .rope_theta = 10000, .compress_theta = 160000,
    };
}

/* A program for another backend defines this and includes a t_ops_*.c. */
#ifndef OPS_OPEN
#define OPS_OPEN lf_cpu_open
#endif

static inline void ops_open(ops_run *r, int threads)
{
    lf_err err;

    if (OPS_OPEN(&r->dev, &r->model, r->suffix == 'e' ? LF_EXACT : LF_RELEASED, threads, &err) != 0)
        ops_die("open", err.text);
}

static inline void ops_close(ops_run *r)
{
    ops_clear(r);
    lf_dev_close(r->dev);
    r->dev = NULL;
}

/* What a value may be off by.  Float32 values: `f32` times the largest magnitude of the expected row.  Activations
 * in released numerics: `ulps` steps of bf16 (one per rounding on the way), or f32 as above, whichever is more,
 * and no
 * more than `share` of all values may differ at all: those are near-ties of the rounding. */
typedef struct ops_tol {
    double f32;
    int ulps;
    double share;
} ops_tol;

static inline int ops_near(float got, float want, double slack, int ulps)
{
    if (isnan(want) || isinf(want))
        return isnan(want) ? isnan(got) : got == want;
    int e;
    frexp(want, &e);
    return fabs((double)got - (double)want) <= fmax(slack, ulps * ldexp(1, e - 8));
}

/* `got` against the field "<name>.e" or ".r"; act: these are activations. */
static inline void ops_compare(ops_run *r, const char *name, const float *got, int act, ops_tol tol)
{
    char field[64];
    snprintf(field, sizeof field, "%s.%c", name, r->suffix);
    const ops_entry *e = ops_get(r, field);
    const ops_entry *op = ops_get(r, "op");
    const float *want = ops_floats(r, field);
    int64_t n = ops_row(e), differ = 0;
    int bad = 0, rounded = act && r->suffix == 'r';

    for (int64_t i = 0; i < e->shape[0]; i++) {
        double top = 0;
        for (int64_t j = 0; j < n; j++)
            top = isfinite(want[i * n + j]) ? fmax(top, fabs((double)want[i * n + j])) : top;
        for (int64_t j = 0; j < n; j++) {
            float g = got[i * n + j], w = want[i * n + j];
            differ += g != w;
            TAP_QUIET(bad, ops_near(g, w, tol.f32 * top, rounded ? tol.ulps : 0),
                      "row %d channel %d: got %.9g, expected %.9g",
                      (int)i, (int)j, (double)g, (double)w);
        }
    }
    TAP_CHECK(bad == 0, "%.*s, case %d, %s: %s", (int)op->count, (const char *)op->data, r->n,
              r->suffix == 'e' ? "exact" : "released", name);
    if (rounded)
        TAP_CHECK((double)differ <= 2 + tol.share * (double)e->count,
                  "  and %d of %d values differ by a rounding",
                  (int)differ, (int)e->count);
}

static inline int ops_same(ops_run *r, ops_fn fn, const int64_t *rows, int64_t m, const uint8_t *base,
                           size_t row_bytes,
                           const char *how)
{
    uint8_t *out = lf_alloc((size_t)m * row_bytes + 1);
    int bad = 0;

    fn(r, rows, m, out);
    ops_clear(r);
    for (int64_t i = 0; i < m; i++)
        TAP_QUIET(bad, memcmp(out + (size_t)i * row_bytes, base + (size_t)rows[i] * row_bytes,
                              row_bytes) == 0,
                  "%s: row %d (place %d of %d) differs", how, (int)rows[i], (int)i, (int)m);
    free(out);
    return bad == 0;
}

/* contiguous: rows are consecutive positions and only ranges of them can be asked for. */
static inline void ops_invariant(ops_run *r, ops_fn fn, int64_t n, const uint8_t *base, size_t row_bytes,
                                 int contiguous)
{
    static const int threads[] = { 1, 2, 4 };
    int64_t many = 3 * n + 131, *rows = lf_alloc((size_t)many * sizeof *rows);
    int ok = 1;

    for (int t = 0; t < 3; t++) {
        ops_close(r);
        ops_open(r, threads[t]);
        for (int64_t i = 0; i < n; i++)
            ok &= ops_same(r, fn, &(int64_t){ i }, 1, base, row_bytes, "alone");
        for (int64_t i = 0; i < many; i++)
            rows[i] = contiguous ? i : (i * 7 + 3) % n;
        for (int64_t i = 1; contiguous && i < n; i += 1 + n / 5)
            ok &= ops_same(r, fn, rows + i, n - i, base, row_bytes, "a later beginning")
                  && ops_same(r, fn, rows, n - i, base, row_bytes, "an earlier end");
        if (!contiguous)
            ok &= ops_same(r, fn, rows, many, base, row_bytes, "many rows")
                  && ops_same(r, fn, rows + 1, n, base, row_bytes, "other places");
        ok &= ops_same(r, fn, rows, contiguous ? n : 67, base, row_bytes, "the same again");
        ok &= ops_same(r, fn, rows, 0, base, row_bytes, "no rows");
    }
    TAP_CHECK(ok, "  and its bytes depend on nothing but the row");
    free(rows);
}

/* One case in both numerics: `n` rows of row_bytes; judge compares all rows, computed together, with the golden. */
static inline void ops_check(const ops_file *f, int n_case, ops_fn fn, int64_t n, size_t row_bytes,
                             int contiguous,
                             void (*judge)(ops_run *r, const uint8_t *out, int64_t n))
{
    uint8_t *out = lf_alloc((size_t)n * row_bytes + 1);
    int64_t *rows = lf_alloc((size_t)(n + 1) * sizeof *rows);

    for (int64_t i = 0; i < n; i++)
        rows[i] = i;
    for (int k = 0; k < 2; k++) {
        ops_run r = { .file = f, .n = n_case, .suffix = "er"[k] };
        ops_model(&r);
        ops_open(&r, 2);
        fn(&r, rows, n, out);
        judge(&r, out, n);
        ops_invariant(&r, fn, n, out, row_bytes, contiguous);
        ops_close(&r);
    }
    free(rows);
    free(out);
}

#endif
