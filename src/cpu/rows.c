/* SPDX-License-Identifier: Apache-2.0
 *
 * Cache rows to packed bytes and back.   Source: kvlayout.h; model.md, "Numerics".
 */
#include "cpu.h"

#include <math.h>

/* Sums and differences in double: exact for bf16 input, so the one rounding is the last. */
void lf_cpu_hadamard(float *x, int64_t n)
{
    double t[1024];
    double scale = 1 / sqrt((double)n);

    for (int64_t i = 0; i < n; i++)
        t[i] = x[i];
    for (int64_t h = 1; h < n; h *= 2)
        for (int64_t i = 0; i < n; i += 2 * h)
            for (int64_t j = i; j < i + h; j++) {
                double a = t[j], b = t[j + h];
                t[j] = a + b;
                t[j + h] = a - b;
            }
    for (int64_t i = 0; i < n; i++)
        x[i] = lf_round_bf16((float)(t[i] * scale));
}

static float amax_of(const float *x, int64_t n)
{
    float amax = 0;

    for (int64_t j = 0; j < n; j++)
        amax = fmaxf(amax, fabsf(x[j]));
    return amax;
}

static void put_bf16(uint8_t *dst, const float *x, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        uint16_t b = lf_f32_bf16(x[j]);
        memcpy(dst + 2 * j, &b, 2);
    }
}

static void get_bf16(float *x, const uint8_t *src, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        uint16_t b;
        memcpy(&b, src + 2 * j, 2);
        x[j] = lf_bf16_f32(b);
    }
}

static void pack_fp8(const lf_model *m, uint8_t *dst, const float *x, size_t row_bytes)
{
    int64_t plain = m->head_dim - m->rope_dim;
    int groups = lf_fp8_groups(m);
    int64_t size = plain / groups;
    uint8_t *scale = dst + lf_fp8_scale_at(m);

    for (int g = 0; g < groups; g++) {
        scale[g] = lf_scale_e4m3(amax_of(x + g * size, size));
        float s = lf_e8m0_f32(scale[g]);
        for (int64_t j = g * size; j < (g + 1) * size; j++)
            dst[j] = lf_f32_e4m3(x[j] / s);
    }
    put_bf16(dst + lf_fp8_rope_at(m), x + plain, m->rope_dim);
    memset(scale + groups, 0, row_bytes - lf_fp8_scale_at(m) - (size_t)groups);
}

static void unpack_fp8(const lf_model *m, float *x, const uint8_t *src)
{
    int64_t plain = m->head_dim - m->rope_dim, size = plain / lf_fp8_groups(m);
    const uint8_t *scale = src + lf_fp8_scale_at(m);

    for (int64_t j = 0; j < plain; j++)
        x[j] = lf_e4m3_table[src[j]] * lf_e8m0_f32(scale[j / size]);
    get_bf16(x + plain, src + lf_fp8_rope_at(m), m->rope_dim);
}

static void pack_fp4(uint8_t *dst, const float *x, int64_t width, int transformed)
{
    float t[1024];

    memcpy(t, x, sizeof(float) * (size_t)width);
    if (!transformed)
        lf_cpu_hadamard(t, width);
    memset(dst, 0, (size_t)(width / 2));
    for (int64_t g = 0; g < width / 32; g++) {
        uint8_t scale = lf_scale_e2m1(amax_of(t + g * 32, 32));
        dst[width / 2 + g] = scale;
        for (int64_t j = g * 32; j < g * 32 + 32; j++)
            dst[j / 2] |= (uint8_t)(lf_f32_e2m1(t[j] / lf_e8m0_f32(scale)) << (j & 1 ? 4 : 0));
    }
}

static void unpack_fp4(float *x, const uint8_t *src, int64_t width)
{
    for (int64_t j = 0; j < width; j++)
        x[j] = lf_e2m1_table[src[j / 2] >> (j & 1 ? 4 : 0) & 15] * lf_e8m0_f32(src[width / 2 + j / 32]);
}

void lf_cpu_row_pack(lf_dev *d, uint8_t *dst, const lf_act *x, int64_t m, int64_t width, lf_row_fmt fmt,
                     int transformed)
{
    size_t bytes = lf_row_bytes(d->model, fmt, width);

#pragma omp parallel for num_threads(lf_cpu_of(d)->threads) schedule(static)
    for (int64_t i = 0; i < m; i++) {
        const float *row = lf_cf(x) + i * width;
        uint8_t *out = dst + (size_t)i * bytes;
        if (fmt == LF_ROW_F32)
            memcpy(out, row, bytes);
        else if (fmt == LF_ROW_BF16)
            put_bf16(out, row, width);
        else if (fmt == LF_ROW_FP8)
            pack_fp8(d->model, out, row, bytes);
        else
            pack_fp4(out, row, width, transformed);
    }
}

void lf_cpu_row_unpack(lf_dev *d, lf_act *x, const uint8_t *src, int64_t m, int64_t width, lf_row_fmt fmt)
{
    size_t bytes = lf_row_bytes(d->model, fmt, width);

#pragma omp parallel for num_threads(lf_cpu_of(d)->threads) schedule(static)
    for (int64_t i = 0; i < m; i++) {
        float *row = lf_f(x) + i * width;
        const uint8_t *in = src + (size_t)i * bytes;
        if (fmt == LF_ROW_F32)
            memcpy(row, in, bytes);
        else if (fmt == LF_ROW_BF16)
            get_bf16(row, in, width);
        else if (fmt == LF_ROW_FP8)
            unpack_fp8(d->model, row, in);
        else
            unpack_fp4(row, in, width);
    }
}
