/* SPDX-License-Identifier: Apache-2.0
 *
 * g_ops: what the g_ops_* programs share.  Each operation of dev.h runs on the GPU and on the CPU backend, which
 * t_ops_* have compared with an independent implementation, on the same random input.
 *
 * Three geometries: nano, mini (released head sizes, small model) and flash (released, with few rows).  Three modes:
 * exact with float32 activations, exact with bf16 ones, released.  Where activations are bf16 both sides get the same
 * bf16 values.  What the CPU is asked for: released numerics where the mode is released, and also in exact/bf16 for an
 * operation that quantises nothing, because then released means just the rounding to bf16; exact otherwise.
 *
 * Every operation is a function that computes rows first .. first+m-1 of its case on one device, as floats.  g_check
 * compares all rows with the CPU's, and asks the GPU again for other counts and beginnings: 0, 1, and around the tile
 * edges 64, 128 and 256: those bytes must be the same as before.
 *
 * LF_TEST_SMALL in the environment, for compute-sanitizer, under which a launch takes milliseconds: nano with fewer
 * counts, and then narrow, in released numerics, whose heads and indexer are the released ones: of it the cases of
 * kernels that nano's shapes do not fit, each asked for by name, which refuses a shape that it cannot do.  Nano's rows
 * stay as many where shares of values may differ: these are meant for so many.
 * Compiled with -DG_OPS_STAND_IN the "GPU" is a second CPU device: for work on these tests without a GPU.
 */
#ifndef LF_TEST_G_OPS_H
#define LF_TEST_G_OPS_H

#include "tap.h"

#include "../src/dev_cuda.h"

#include <stdlib.h>
#include <string.h>

enum { G_IN = 12, G_KEPT = 512, G_WEIGHTS = 96 };

/* How a weight is stored; the last has scales too far apart for one e4m3 scale per 128 columns. */
typedef enum g_kind { G_F32, G_BF16, G_E4M3, G_FP4, G_FP4_WIDE } g_kind;

typedef struct g_run {
    const char *geometry, *mode, *own_mode;            /* mode: with the kernel asked for (g_kernels.h) */
    char asked[64];
    int64_t rows;                          /* of a case: the largest count asked for */
    int narrow;                            /* the geometry for compute-sanitizer */
    lf_model model;
    lf_numerics numerics;
    int act;                               /* bytes of an activation on the GPU */
    int quantises;                         /* the operation at hand does, in released numerics */
    lf_dev *cpu[2], *gpu;                  /* CPU: exact, released */
    uint64_t state;                        /* of the random numbers */
    lf_weight weight[G_WEIGHTS][2];        /* of a case: as the CPU has it, as the GPU has it */
    int weights;
    const void *in[G_IN];                  /* a case's input, host memory; its numbers */
    int64_t opt[G_IN];
    void *host[G_KEPT], *device[G_KEPT];
    lf_dev *owner[G_KEPT];
    int hosts, devices;
} g_run;

typedef void (*g_fn)(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out);

/* How far a value may be off: `slack` times the largest magnitude of its row, or, for bf16 activations, `ulps` steps of
 * bf16, whichever is more; and the row's difference no longer than `l2` times the row.  At most `share` of all values
 * may differ by more than 1e-5 of their row's largest (with slack 0: at all); 1 asks nothing. */
typedef struct g_tol {
    double slack;
    int ulps;
    double share, l2;
} g_tol;

static inline void g_die(const char *what, const char *why)
{
    printf("Bail out! %s: %s\n", what, why);
    exit(1);
}

static inline int g_small(void)
{
    return getenv("LF_TEST_SMALL") != NULL;
}

/* ---- random input ---- */

static inline uint64_t g_next(g_run *r)
{
    r->state ^= r->state << 13;
    r->state ^= r->state >> 7;
    r->state ^= r->state << 17;
    return r->state;
}

static inline int64_t g_below(g_run *r, int64_t n)
{
    return (int64_t)(g_next(r) >> 11) % n;
}

static inline void *g_keep(g_run *r, size_t bytes)
{
    if (r->hosts == G_KEPT)
        g_die("host memory", "too many pieces");
    return r->host[r->hosts++] = lf_alloc(bytes + 64);
}

/* About normal, of deviation `scale`. */
static inline float *g_floats(g_run *r, int64_t n, float scale)
{
    float *x = g_keep(r, (size_t)n * 4);

    for (int64_t i = 0; i < n; i++) {
        uint64_t u = g_next(r);
        float sum = (float)(u & 0xffff) + (float)(u >> 16 & 0xffff) + (float)(u >> 32 & 0xffff) + (float)(u >> 48);
        x[i] = scale * (sum / 65536 - 2) * 1.7320508f;
    }
    return x;
}

/* The same, as activations can hold it. */
static inline float *g_values(g_run *r, int64_t n, float scale)
{
    float *x = g_floats(r, n, scale);

    for (int64_t i = 0; r->act == 2 && i < n; i++)
        x[i] = lf_round_bf16(x[i]);
    return x;
}

/* Whole numbers from -most to most, times `unit`: with few of them every order of summation is exact, and ties
 * abound. */
static inline float *g_whole(g_run *r, int64_t n, int most, float unit)
{
    float *x = g_keep(r, (size_t)n * 4);

    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(g_below(r, 2 * most + 1) - most) * unit;
    return x;
}

/* ---- device memory ---- */

static inline void *g_new(g_run *r, lf_dev *d, size_t bytes)
{
    lf_err err;
    void *p;

    if (r->devices == G_KEPT)
        g_die("device memory", "too many pieces");
    if (d->ops->take(d, &p, bytes + 64, "test", &err) != 0)
        g_die("take", err.text);
    d->ops->fill(d, p, 0xff, bytes + 64);                      /* what is not written shows as NaN, or -1 */
    r->owner[r->devices] = d;
    return r->device[r->devices++] = p;
}

static inline void *g_put(g_run *r, lf_dev *d, const void *host, size_t bytes)
{
    void *p = g_new(r, d, bytes);

    if (bytes)
        d->ops->put(d, p, host, bytes);
    return p;
}

static inline lf_act *g_new_act(g_run *r, lf_dev *d, int64_t n)
{
    return g_new(r, d, (size_t)n * d->act_bytes);
}

static inline lf_act *g_act(g_run *r, lf_dev *d, const float *x, int64_t n)
{
    if (d->act_bytes == 4)
        return g_put(r, d, x, (size_t)n * 4);
    uint16_t *h = lf_alloc((size_t)n * 2 + 2);
    for (int64_t i = 0; i < n; i++)
        h[i] = lf_f32_bf16(x[i]);
    lf_act *p = g_put(r, d, h, (size_t)n * 2);
    lf_err err;
    if (d->ops->sync(d, &err) != 0)                            /* before h goes away */
        g_die("sync", err.text);
    free(h);
    return p;
}

static lf_err *g_expected;                 /* not NULL: errors go here, and the program goes on */

static inline void g_get(lf_dev *d, void *out, const void *p, size_t bytes)
{
    lf_err err;

    if (d->ops->sync(d, g_expected ? g_expected : &err) != 0 && !g_expected)
        g_die(d->ops->name, err.text);
    if (bytes)
        d->ops->get(d, out, p, bytes);
}

static inline void g_get_act(lf_dev *d, float *out, const lf_act *p, int64_t n)
{
    g_get(d, out, p, (size_t)n * d->act_bytes);
    for (int64_t i = n; d->act_bytes == 2 && i-- > 0;) {
        uint16_t b;
        memcpy(&b, (char *)out + 2 * i, 2);
        out[i] = lf_bf16_f32(b);
    }
}

/* Whole numbers and bytes as floats, for g_check. */
static inline void g_get_ints(lf_dev *d, float *out, const int32_t *p, int64_t n)
{
    g_get(d, out, p, (size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        int32_t v;
        memcpy(&v, &out[i], 4);
        out[i] = (float)v;
    }
}

static inline void g_get_bytes(lf_dev *d, float *out, const uint8_t *p, int64_t n)
{
    uint8_t *h = lf_alloc((size_t)n + 1);

    g_get(d, h, p, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        out[i] = h[i];
    free(h);
}

static inline void g_release(g_run *r)     /* device memory */
{
    lf_err err;

    if (r->gpu->ops->sync(r->gpu, &err) != 0)
        g_die("sync", err.text);
    while (r->devices) {
        r->devices--;
        r->owner[r->devices]->ops->give(r->owner[r->devices], r->device[r->devices]);
    }
}

static inline void g_forget(g_run *r)      /* and host memory: the next case */
{
    g_release(r);
    while (r->hosts)
        free(r->host[--r->hosts]);
    r->weights = 0;
}

/* ---- weights: made once for a case, used by their number ---- */

static inline void g_fill_weight(g_run *r, g_kind kind, uint8_t *data, size_t bytes, uint8_t *scale, size_t scale_bytes)
{
    int middle = kind == G_E4M3 ? 117 : 121, spread = kind == G_FP4_WIDE ? 14 : 2;

    for (size_t i = 0; i + 8 <= bytes + 8; i += 8) {
        uint64_t u = g_next(r);
        memcpy(data + i, &u, 8);
    }
    for (size_t i = 0; kind == G_E4M3 && i < bytes; i++)
        data[i] = (data[i] & 0x7f) == 0x7f ? 0 : data[i];      /* NaN */
    for (size_t i = 0; i < scale_bytes; i++)
        scale[i] = (uint8_t)(middle - spread + (int)g_below(r, 2 * spread + 1));
}

static inline size_t g_weight_bytes(const lf_weight *w)
{
    return (size_t)(w->all_rows * w->all_cols) * lf_dtype_bytes(w->dtype) / (w->dtype == LF_I8 ? 2 : 1);
}

static inline size_t g_weight_scales(const lf_weight *w)
{
    int64_t blocks = lf_ceil_div(w->all_rows, 128) * lf_ceil_div(w->all_cols, 128);

    return (size_t)(w->dtype == LF_E4M3 ? blocks : w->dtype == LF_I8 ? w->all_rows * w->all_cols / 32 : 0);
}

/* A whole weight of which w says type and size to both sides, its bytes in host memory; returns its number. */
static inline int g_place(g_run *r, lf_weight w, const uint8_t *data, const uint8_t *scale)
{
    lf_err err;

    if (r->weights == G_WEIGHTS)
        g_die("weights", "too many");
    for (int side = 0; side < 2; side++) {
        lf_dev *d = side ? r->gpu : r->cpu[0];
        r->weight[r->weights][side] = w;
        if (d->ops->weight(d, &r->weight[r->weights][side], w.all_cols, data, g_weight_bytes(&w), scale,
                           g_weight_scales(&w), &err) != 0)
            g_die("weight", err.text);
    }
    return r->weights++;
}

static inline lf_weight g_weight_like(g_kind kind, int64_t rows, int64_t cols)
{
    static const lf_dtype type[] = { LF_F32, LF_BF16, LF_E4M3, LF_I8, LF_I8 };

    return (lf_weight){ .dtype = type[kind], .rows = rows, .cols = cols, .all_rows = rows, .all_cols = cols };
}

/* [rows, cols] of random values of about cols^-1/2; returns its number. */
static inline int g_weight(g_run *r, g_kind kind, int64_t rows, int64_t cols)
{
    lf_weight w = g_weight_like(kind, rows, cols);
    size_t bytes = g_weight_bytes(&w), scales = g_weight_scales(&w);
    uint8_t *data = g_keep(r, bytes), *scale = scales ? g_keep(r, scales) : NULL;

    if (kind >= G_E4M3) {
        g_fill_weight(r, kind, data, bytes, scale, scales);
        return g_place(r, w, data, scale);
    }
    float *x = g_floats(r, rows * cols, 1 / sqrtf((float)cols));
    for (size_t i = 0, each = lf_dtype_bytes(w.dtype); i < (size_t)(rows * cols); i++) {
        uint16_t h = lf_f32_bf16(x[i]);
        memcpy(data + i * each, kind == G_F32 ? (void *)&x[i] : &h, each);
    }
    return g_place(r, w, data, scale);
}

static inline const lf_weight *g_weight_on(const g_run *r, const lf_dev *d, int64_t n)
{
    return &r->weight[n][d == r->gpu];
}

static inline lf_dev *g_oracle(const g_run *r)
{
    return r->cpu[r->numerics == LF_RELEASED || (r->act == 2 && !r->quantises)];
}

/* ---- rotary positions: the last possible one is among them ---- */

static inline lf_rope g_rope(g_run *r, lf_dev *d)
{
    float freq[512];
    int rd = r->model.rope_dim;

    for (int i = 0; i < rd / 2; i++)
        freq[i] = (float)pow(10000, -2.0 * i / rd);
    lf_rope rope = { rd, g_put(r, d, freq, sizeof(float) * (size_t)(rd / 2)) };
    g_get(d, freq, rope.inv_freq, 4);                          /* freq is on the stack: wait for the copy */
    return rope;
}

static inline const int64_t *g_positions(g_run *r, int64_t n)
{
    int64_t *pos = g_keep(r, (size_t)n * 8);

    for (int64_t i = 0; i < n; i++)
        pos[i] = i % 4 == 0 ? 1048575 - i : g_below(r, 1048576);
    return pos;
}

/* ---- comparing ---- */

static inline double g_ulp(float x)
{
    int e;

    frexp(x, &e);
    return ldexp(1, e - 8);
}

static inline int g_row_near(const g_run *r, const float *got, const float *want, int64_t n, g_tol tol, int64_t *differ)
{
    double top = 0, d2 = 0, w2 = 0;
    int ok = 1;

    for (int64_t j = 0; j < n; j++)
        top = isfinite(want[j]) ? fmax(top, fabs((double)want[j])) : top;
    for (int64_t j = 0; j < n; j++) {
        double d = fabs((double)got[j] - (double)want[j]);
        if (!isfinite(want[j]) || !isfinite(got[j])) {
            ok &= isnan(want[j]) ? isnan(got[j]) : got[j] == want[j];
            continue;
        }
        d2 += d * d;
        w2 += (double)want[j] * want[j];
        *differ += d > fmin(1e-5, tol.slack) * top;
        ok &= d <= fmax(tol.slack * top, r->act == 2 ? tol.ulps * g_ulp(want[j]) : 0);
    }
    return ok && d2 <= tol.l2 * tol.l2 * w2;
}

static inline void g_compare(const g_run *r, const char *name, const float *got, const float *want, int64_t rows,
                             int64_t width, g_tol tol)
{
    int64_t differ = 0, bad = 0, worst = 0;
    double far = 0;

    for (int64_t i = 0; i < rows; i++)
        if (!g_row_near(r, got + i * width, want + i * width, width, tol, &differ) && bad++ < 3)
            printf("# row %lld is off\n", (long long)i);
    for (int64_t i = 0; i < rows * width; i++)
        if (fabs((double)got[i] - (double)want[i]) > far) {
            far = fabs((double)got[i] - (double)want[i]);
            worst = i;
        }
    if (far > 0)
        printf("# %s: largest difference %.3g (got %.9g, expected %.9g; row %lld, channel %lld), %lld of %lld differ\n",
               name, far, (double)got[worst], (double)want[worst], (long long)(worst / width),
               (long long)(worst % width), (long long)differ, (long long)(rows * width));
    TAP_CHECK(bad == 0, "%s, %s, %s: as on the CPU", name, r->geometry, r->mode);
    if (tol.share < 1)
        TAP_CHECK((double)differ <= 2 + tol.share * (double)(rows * width),
                  "  and %lld of %lld values off by a rounding", (long long)differ, (long long)(rows * width));
}

/* The same rows in other batches: bytes.  step: counts and beginnings are multiples of it. */
static inline void g_invariant(g_run *r, const char *name, g_fn fn, int64_t rows, int64_t width, const float *all)
{
    static const int64_t counts[] = { 0, 1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257 };
    float *part = lf_alloc((size_t)(rows * width) * 4 + 4);
    int bad = 0;

    for (size_t k = 0; k < sizeof counts / sizeof *counts && counts[k] <= rows; k++)
        for (int late = 0; late < 2 && (k % 5 == 1 || !g_small()); late++) {       /* 1, 17, 64, 255 */
            int64_t m = counts[k], first = late ? rows - m : (rows - m) / 3;
            memset(part, 0x55, (size_t)(m * width) * 4);
            fn(r, r->gpu, first, m, part);
            g_release(r);
            TAP_QUIET(bad, memcmp(part, all + first * width, (size_t)(m * width) * 4) == 0,
                      "rows %lld .. of %lld alone differ", (long long)first, (long long)m);
        }
    TAP_CHECK(bad == 0, "%s, %s, %s: a row's bytes depend on nothing but the row", name, r->geometry, r->mode);
    free(part);
}

static inline void g_check(g_run *r, const char *name, g_fn fn, int64_t rows, int64_t width, g_tol tol)
{
    float *got = lf_alloc((size_t)(rows * width) * 4 + 4), *want = lf_alloc((size_t)(rows * width) * 4 + 4);

    fn(r, g_oracle(r), 0, rows, want);
    g_release(r);
    fn(r, r->gpu, 0, rows, got);
    g_release(r);
    g_compare(r, name, got, want, rows, width, tol);
    g_invariant(r, name, fn, rows, width, got);
    free(got);
    free(want);
}

/* ---- the runs ---- */

static inline void g_model(g_run *r, int which)
{
    static const lf_model models[] = {
        { .vocab = 96, .hidden = 64, .heads = 4, .head_dim = 32, .rope_dim = 16, .q_rank = 32, .o_groups = 2,
          .o_rank = 16, .experts = 6, .experts_per_tok = 2, .expert_inter = 32, .window = 8, .index_heads = 16,
          .index_dim = 32, .index_topk = 4 },
        { .vocab = 512, .hidden = 128, .heads = 8, .head_dim = 512, .rope_dim = 64, .q_rank = 64, .o_groups = 2,
          .o_rank = 32, .experts = 8, .experts_per_tok = 2, .expert_inter = 64, .window = 128, .index_heads = 16,
          .index_dim = 128, .index_topk = 16 },
        { .vocab = 129280, .hidden = 4096, .heads = 64, .head_dim = 512, .rope_dim = 64, .q_rank = 1024, .o_groups = 8,
          .o_rank = 1024, .experts = 256, .experts_per_tok = 6, .expert_inter = 2048, .window = 128, .index_heads = 64,
          .index_dim = 128, .index_topk = 512 },
        { .vocab = 96, .hidden = 640, .heads = 64, .head_dim = 512, .rope_dim = 64, .q_rank = 128, .o_groups = 8,
          .o_rank = 128, .experts = 6, .experts_per_tok = 2, .expert_inter = 128, .window = 128, .index_heads = 64,
          .index_dim = 128, .index_topk = 80 },
    };
    lf_model *m = &r->model;

    *m = models[which];
    strcpy(m->type, "deepseek_v4");
    m->layers = 1;
    m->max_positions = 1048576;
    m->hc = 4;
    m->hc_iters = 20;
    m->rms_eps = m->hc_eps = 1e-6f;
    m->swiglu_limit = 10;
    m->routed_scale = 1.5f;
    m->rope_theta = 10000;
    m->compress_theta = 160000;
}

/* Whether a geometry and a mode are among those of this run. */
static inline int g_wanted(int g, int mode)
{
    return g_small() ? g == 0 || (g == 3 && mode == 2) : g < 3;
}

/* Runs `all` in each geometry and mode. */
static inline int g_main(const char *what, void (*all)(g_run *r))
{
    static const char *const geometry[] = { "nano", "mini", "flash", "narrow" };
    static const char *const mode[] = { "exact/float32", "exact/bf16", "released" };
    static g_run r;
    lf_err err;
#ifndef G_OPS_STAND_IN
    int count;
    if (lf_cuda_devices(&count, &err) != 0) {
        tap_skip(what, err.text);
        return tap_done();
    }
#endif
    for (int g = 0; g < 4; g++)
        for (int k = 0; k < 3; k++) {
            if (!g_wanted(g, k))
                continue;
            r = (g_run){ .geometry = geometry[g], .mode = mode[k], .rows = g == 3 ? 9 : g == 2 ? 33 : 257,
                         .narrow = g == 3, .numerics = k == 2 ? LF_RELEASED : LF_EXACT, .act = k ? 2 : 4,
                         .state = 0x9e3779b97f4a7c15u + (uint64_t)(3 * g + k) };
            g_model(&r, g);
            for (int n = 0; n < 2; n++)
                if (lf_cpu_open(&r.cpu[n], &r.model, n ? LF_RELEASED : LF_EXACT, 0, &err) != 0)
                    g_die("open", err.text);
#ifdef G_OPS_STAND_IN
            if (lf_cpu_open(&r.gpu, &r.model, k ? LF_RELEASED : LF_EXACT, 0, &err) != 0)
                g_die(what, err.text);
#else
            if (lf_cuda_open(&r.gpu, &r.model, r.numerics, r.act, 0, &err) != 0)
                g_die(what, err.text);
            if (g_small())
                lf_cuda_blocks_most(r.gpu, 2);
#endif
            all(&r);
            g_forget(&r);
            lf_dev_close(r.gpu);
            lf_dev_close(r.cpu[0]);
            lf_dev_close(r.cpu[1]);
        }
    return tap_done();
}

#endif
