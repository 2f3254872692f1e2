/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_pair: the GPU under test beside the CPU backend, on the same random inputs.  Everything made here lives until
 * pair_clear.
 */
#ifndef LF_TEST_GPU_PAIR_H
#define LF_TEST_GPU_PAIR_H

#include "tap.h"

#include "../src/dev_cuda.h"

#include <stdlib.h>

enum { PAIR_GPU, PAIR_CPU, PAIR_SIDES, PAIR_ROOM = 512 };

typedef struct pair {
    lf_model model;
    lf_dev *dev[PAIR_SIDES];
    int bf16;                              /* activations of the GPU; the CPU's are float32 */
    uint64_t seed;
    void *host[PAIR_ROOM], *device[PAIR_SIDES][PAIR_ROOM];
    int hosts, devices[PAIR_SIDES];
} pair;

static inline void __attribute__((noreturn)) pair_die(const char *what, const char *why)
{
    printf("Bail out! %s: %s\n", what, why);
    exit(1);
}

/* Says so and returns 0 where no GPU answers. */
static inline int pair_gpu(const char *what)
{
    lf_err err;
    int count;

    if (lf_cuda_devices(&count, &err) == 0)
        return 1;
    tap_skip(what, err.text);
    return 0;
}

static inline void pair_open(pair *p, const lf_model *m, lf_numerics numerics, int act_bytes)
{
    lf_err err;

    *p = (pair){ .model = *m, .bf16 = act_bytes == 2, .seed = 0x9e3779b97f4a7c15ull };
    if (lf_cuda_open(&p->dev[PAIR_GPU], &p->model, numerics, act_bytes, 0, &err) ||
        lf_cpu_open(&p->dev[PAIR_CPU], &p->model, numerics, 0, &err))
        pair_die("open", err.text);
}

static inline void *pair_host(pair *p, size_t bytes)
{
    if (p->hosts == PAIR_ROOM)
        pair_die("host memory", "too many pieces");
    return p->host[p->hosts++] = lf_alloc(bytes + 64);
}

static inline void *pair_device(pair *p, int side, size_t bytes)
{
    lf_err err;
    void *v;

    if (p->devices[side] == PAIR_ROOM || p->dev[side]->ops->take(p->dev[side], &v, bytes + 64, "test", &err))
        pair_die("take", p->devices[side] == PAIR_ROOM ? "too many pieces" : err.text);
    p->dev[side]->ops->fill(p->dev[side], v, 0xff, bytes + 64);                /* what is not written shows as NaN */
    return p->device[side][p->devices[side]++] = v;
}

static inline void *pair_put(pair *p, int side, const void *host, size_t bytes)
{
    void *v = pair_device(p, side, bytes);

    p->dev[side]->ops->put(p->dev[side], v, host, bytes);
    return v;
}

static inline void pair_sync(pair *p, const char *what)
{
    lf_err err;

    for (int s = 0; s < PAIR_SIDES; s++)
        if (p->dev[s]->ops->sync(p->dev[s], &err))
            TAP_CHECK(0, "%s: %s", what, err.text);
}

static inline void pair_clear(pair *p)
{
    for (int s = 0; s < PAIR_SIDES; s++)
        while (p->devices[s])
            p->dev[s]->ops->give(p->dev[s], p->device[s][--p->devices[s]]);
    while (p->hosts)
        free(p->host[--p->hosts]);
}

static inline void pair_close(pair *p)
{
    pair_clear(p);
    for (int s = 0; s < PAIR_SIDES; s++)
        lf_dev_close(p->dev[s]);
}

static inline uint32_t pair_random(pair *p)
{
    p->seed ^= p->seed << 13;
    p->seed ^= p->seed >> 7;
    p->seed ^= p->seed << 17;
    return (uint32_t)(p->seed >> 32);
}

static inline float pair_uniform(pair *p)                      /* -1 .. 1 */
{
    return (float)((double)pair_random(p) / 2147483648.0 - 1);
}

/* n activations, as the GPU stores them: of magnitudes that differ by stretches of 32. */
static inline float *pair_values(pair *p, int64_t n)
{
    float *x = pair_host(p, (size_t)n * 4), scale = 1;

    for (int64_t i = 0; i < n; i++) {
        if (i % 32 == 0)
            scale = ldexpf(1, (int)(pair_random(p) % 7) - 3);
        x[i] = pair_uniform(p) * scale;
        x[i] = p->bf16 ? lf_round_bf16(x[i]) : x[i];
    }
    return x;
}

static inline lf_act *pair_act(pair *p, int side, const float *x, int64_t n)
{
    if (p->dev[side]->act_bytes == 4)
        return pair_put(p, side, x, (size_t)n * 4);
    uint16_t *h = pair_host(p, (size_t)n * 2);
    for (int64_t i = 0; i < n; i++)
        h[i] = lf_f32_bf16(x[i]);
    return pair_put(p, side, h, (size_t)n * 2);
}

/* As floats, on the host; f32: these are no activations. */
static inline float *pair_get(pair *p, int side, const void *v, int64_t n, int f32)
{
    float *x = pair_host(p, (size_t)n * 4);

    if (f32 || p->dev[side]->act_bytes == 4) {
        p->dev[side]->ops->get(p->dev[side], x, v, (size_t)n * 4);
        return x;
    }
    uint16_t *h = pair_host(p, (size_t)n * 2);
    p->dev[side]->ops->get(p->dev[side], h, v, (size_t)n * 2);
    for (int64_t i = 0; i < n; i++)
        x[i] = lf_bf16_f32(h[i]);
    return x;
}

typedef struct pair_weight {
    lf_weight side[PAIR_SIDES];
    uint8_t *data, *scale;                 /* host */
} pair_weight;

static inline int64_t pair_scales(lf_dtype type, int64_t rows, int64_t cols)
{
    return type == LF_E4M3 ? lf_ceil_div(rows, 128) * lf_ceil_div(cols, 128) : type == LF_I8 ? rows * cols / 32 : 0;
}

static inline size_t pair_bytes(lf_dtype type, int64_t rows, int64_t cols)
{
    return type == LF_I8 ? (size_t)(rows * cols) / 2 : (size_t)(rows * cols) * lf_dtype_bytes(type);
}

/* Room for a weight, all zeros, scales of 1. */
static inline pair_weight pair_weight_room(pair *p, lf_dtype type, int64_t rows, int64_t cols)
{
    pair_weight w = { 0 };
    int64_t scales = pair_scales(type, rows, cols);

    w.data = (uint8_t *)pair_host(p, pair_bytes(type, rows, cols) + 1) + 1;    /* files have them at odd addresses */
    w.scale = scales ? (uint8_t *)pair_host(p, (size_t)scales + 1) + 1 : NULL;
    if (scales)
        memset(w.scale, 127, (size_t)scales);
    return w;
}

/* To both devices, again if it is there already. */
static inline void pair_weight_put(pair *p, pair_weight *w, lf_dtype type, int64_t rows, int64_t cols)
{
    lf_err err;

    for (int s = 0; s < PAIR_SIDES; s++) {
        w->side[s] = (lf_weight){ .dtype = type, .rows = rows, .cols = cols, .all_rows = rows, .all_cols = cols };
        if (p->dev[s]->ops->weight(p->dev[s], &w->side[s], cols, w->data, pair_bytes(type, rows, cols), w->scale,
                                   (size_t)pair_scales(type, rows, cols), &err))
            pair_die("weight", err.text);
    }
}

static inline void pair_weight_set(pair_weight *w, lf_dtype type, int64_t i, float x)
{
    uint16_t h = lf_f32_bf16(x);

    memcpy(w->data + i * (int64_t)lf_dtype_bytes(type), type == LF_F32 ? (void *)&x : (void *)&h, lf_dtype_bytes(type));
}

/* A random weight, its scales spread over `spread` powers of two; misfit: one of them far above the others. */
static inline pair_weight pair_weight_new(pair *p, lf_dtype type, int64_t rows, int64_t cols, int spread, int misfit)
{
    pair_weight w = pair_weight_room(p, type, rows, cols);
    int64_t n = rows * cols, bytes = (int64_t)pair_bytes(type, rows, cols);

    for (int64_t i = 0; i < bytes && (type == LF_E4M3 || type == LF_I8); i++) {
        w.data[i] = (uint8_t)pair_random(p);
        if (type == LF_E4M3 && (w.data[i] & 0x7f) == 0x7f)
            w.data[i] = 0x38;
    }
    for (int64_t i = 0; i < n && (type == LF_F32 || type == LF_BF16); i++)
        pair_weight_set(&w, type, i, pair_uniform(p));
    for (int64_t i = 0; i < pair_scales(type, rows, cols); i++)
        w.scale[i] = (uint8_t)(118 + pair_random(p) % (uint32_t)(spread + 1));
    if (misfit) {                          /* with a large and a small value beside each other */
        w.scale[1] = 140;
        w.data[16] = 0x77;
    }
    pair_weight_put(p, &w, type, rows, cols);
    return w;
}

/* Row i has a 1 in column i, if there is one, and zeros. */
static inline pair_weight pair_weight_one(pair *p, lf_dtype type, int64_t rows, int64_t cols)
{
    pair_weight w = pair_weight_room(p, type, rows, cols);

    for (int64_t i = 0; i < lf_min(rows, cols); i++) {
        int64_t at = i * cols + i;
        if (type == LF_E4M3)
            w.data[at] = lf_f32_e4m3(1);
        else if (type == LF_I8)
            w.data[at / 2] = (uint8_t)(lf_f32_e2m1(1) << 4 * (at & 1));
        else
            pair_weight_set(&w, type, at, 1);
    }
    pair_weight_put(p, &w, type, rows, cols);
    return w;
}

/* The largest |got - want| of a row in the Euclidean norm, by that of want; NaN counts as infinite. */
static inline double pair_worst(const float *got, const float *want, int64_t rows, int64_t width, int64_t ld)
{
    double most = 0;

    for (int64_t r = 0; r < rows; r++) {
        double off = 0, all = 0;
        for (int64_t j = r * ld; j < r * ld + width; j++) {
            off += ((double)got[j] - want[j]) * ((double)got[j] - want[j]);
            all += (double)want[j] * want[j];
        }
        double e = off == 0 ? 0 : sqrt(off / all);
        most = e <= most ? most : isnan(e) ? INFINITY : e;
    }
    return most;
}

#endif
