/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu.h"

#include <blis.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *grow(lf_cpu_area *s, size_t bytes)
{
    if (s->bytes < bytes) {
        free(s->p);
        s->bytes = (bytes + 4095) / 4096 * 4096;
        s->p = aligned_alloc(64, s->bytes);
        if (!s->p) {
            fprintf(stderr, "longfill: out of host memory: %zu bytes of scratch could not be had\n", s->bytes);
            abort();
        }
    }
    return s->p;
}

void *lf_cpu_own(lf_cpu *c, int slot, size_t bytes)
{
    return grow(&c->own[omp_get_thread_num()][slot], bytes);
}

void *lf_cpu_shared(lf_cpu *c, int slot, size_t bytes)
{
    return grow(&c->shared[slot], bytes);
}

/* c [m, n] = a op(b) + beta c.  Without BLIS's kernels for small products: what they do depends on m and n, and in some
 * families (haswell) on where in c a value is; the others pad with zeros, so that a value is the same everywhere. */
static void multiply(trans_t op, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                     int64_t ldb, float beta, float *c, int64_t ldc)
{
    float one = 1;
    rntm_t how;

    bli_rntm_init_from_global(&how);
    bli_rntm_disable_l3_sup(&how);
    bli_sgemm_ex(BLIS_NO_TRANSPOSE, op, m, n, k, &one, (float *)(uintptr_t)a, lda, 1, (float *)(uintptr_t)b, ldb, 1,
                 &beta, c, ldc, 1, NULL, &how);
}

void lf_cpu_abt(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                int64_t ldc)
{
    multiply(BLIS_TRANSPOSE, m, n, k, a, lda, b, ldb, 0, c, ldc);
}

void lf_cpu_ab_add(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                   int64_t ldc)
{
    multiply(BLIS_NO_TRANSPOSE, m, n, k, a, lda, b, ldb, 1, c, ldc);
}

const char *lf_cpu_blis(void)
{
    return bli_info_get_version_str();
}

static void cpu_close(lf_dev *d)
{
    lf_cpu *c = lf_cpu_of(d);

    lf_cpu_made_free(c);
    for (int s = 0; s < LF_SLOTS; s++) {
        free(c->shared[s].p);
        for (int t = 0; t < c->threads; t++)
            free(c->own[t][s].p);
    }
    free(c->own);
    free(c);
}

/* The size stands in front of the buffer, in a cache line of its own. */
static int cpu_take(lf_dev *d, void **out, size_t bytes, const char *what, lf_err *err)
{
    char text[24];
    size_t all = (bytes + 64 + 63) / 64 * 64;
    char *p = aligned_alloc(64, all);

    if (!p)
        return lf_fail(err, "no host memory for %s: %s could not be had", what, lf_human_bytes(text, (double)bytes));
    memcpy(p, &all, sizeof all);
    d->taken += all;
    d->peak = d->taken > d->peak ? d->taken : d->peak;
    *out = p + 64;
    return 0;
}

static void cpu_give(lf_dev *d, void *p)
{
    size_t all;

    if (!p)
        return;
    memcpy(&all, (char *)p - 64, sizeof all);
    d->taken -= all;
    free((char *)p - 64);
}

static void cpu_copy(lf_dev *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (bytes)
        memmove(dst, src, bytes);
}

static void cpu_copy_rows(lf_dev *d, void *dst, size_t ldd, const void *src, size_t lds, size_t row_bytes, int64_t rows)
{
    (void)d;
    for (int64_t i = 0; i < rows; i++)
        memcpy((char *)dst + (size_t)i * ldd, (const char *)src + (size_t)i * lds, row_bytes);
}

static void cpu_gather(lf_dev *d, void *dst, const void *src, const int32_t *idx, int64_t rows, size_t row_bytes)
{
    (void)d;
    for (int64_t i = 0; i < rows; i++)
        memcpy((char *)dst + (size_t)i * row_bytes, (const char *)src + (size_t)idx[i] * row_bytes, row_bytes);
}

static void cpu_fill(lf_dev *d, void *dst, int byte, size_t bytes)
{
    (void)d;
    if (bytes)
        memset(dst, byte, bytes);
}

static int cpu_sync(lf_dev *d, lf_err *err)
{
    (void)d;
    (void)err;
    return 0;
}

static void cpu_stamp(lf_dev *d, double *to, const char *next)
{
    lf_cpu *c = lf_cpu_of(d);
    double now = lf_now();

    (void)next;
    if (to)
        *to += now - c->stamped[c->queue];
    c->stamped[c->queue] = now;
}

/* One thing after the other: what is before a mark is done when it is set. */
static void cpu_use(lf_dev *d, lf_queue q)
{
    lf_cpu_of(d)->queue = q;
}

static void cpu_mark(lf_dev *d, int mark)
{
    (void)d;
    (void)mark;
}

static int cpu_past(lf_dev *d, int mark)
{
    (void)d;
    (void)mark;
    return 1;
}

static void cpu_at(lf_dev *d, int layer, int tile)
{
    (void)d;
    (void)layer;
    (void)tile;
}

static int cpu_weight(lf_dev *d, lf_weight *w, int64_t file_cols, const void *data, size_t bytes, const void *scale,
                      size_t scale_bytes, lf_err *err)
{
    (void)d;
    (void)bytes;
    (void)scale_bytes;
    (void)err;
    w->all_cols = file_cols;
    w->data = data;
    w->scale = scale;
    return 0;
}

/* Not counted as device memory, which is the same kind here: a GPU does not count it either. */
static int cpu_host_take(lf_dev *d, void **out, size_t bytes, const char *what, lf_err *err)
{
    char text[24];

    (void)d;
    *out = aligned_alloc(64, (bytes + 64) / 64 * 64);
    return *out ? 0 : lf_fail(err, "no host memory for %s: %s could not be had", what,
                              lf_human_bytes(text, (double)bytes));
}

static void cpu_host_give(lf_dev *d, void *p)
{
    (void)d;
    free(p);
}

static const lf_dev_ops cpu_ops = {
    .name = "cpu", .close = cpu_close,
    .take = cpu_take, .give = cpu_give, .put = cpu_copy, .get = cpu_copy, .copy = cpu_copy,
    .copy_rows = cpu_copy_rows, .gather = cpu_gather, .fill = cpu_fill, .sync = cpu_sync,
    .stamp = cpu_stamp, .use = cpu_use, .mark = cpu_mark, .after = cpu_mark, .wait = cpu_mark, .past = cpu_past,
    .host_take = cpu_host_take, .host_give = cpu_host_give, .fetch = cpu_copy,
    .at = cpu_at, .weight = cpu_weight,
    .made_up = lf_cpu_made_up,
    .gemm = lf_cpu_gemm, .embed = lf_cpu_embed,
    .hc_pre = lf_cpu_hc_pre, .hc_post = lf_cpu_hc_post, .hc_head = lf_cpu_hc_head,
    .norm = lf_cpu_norm, .query = lf_cpu_query, .rotate = lf_cpu_rotate, .window = lf_cpu_window,
    .index_query = lf_cpu_index_query, .scale = lf_cpu_scale, .add = lf_cpu_add,
    .round = lf_cpu_round,
    .add_ape = lf_cpu_add_ape, .compress = lf_cpu_compress,
    .row_pack = lf_cpu_row_pack, .row_unpack = lf_cpu_row_unpack,
    .index_topk = lf_cpu_index_topk, .topk_merge = lf_cpu_topk_merge,
    .attention = lf_cpu_attention, .merge = lf_cpu_merge,
    .route = lf_cpu_route, .pairs = lf_cpu_pairs, .arrivals = lf_cpu_arrivals, .experts = lf_cpu_experts,
    .combine = lf_cpu_combine,
    .logits_topk = lf_cpu_logits_topk, .logprob = lf_cpu_logprob,
};

/* BLIS takes its slow generic kernels on processors it does not know by name: choose by what the processor can do.
 * Both variables are read at the first call; what the user has set stands. */
static void choose_blis_family(void)
{
    char family[16];
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");

    setenv("BLIS_NUM_THREADS", "1", 1);
    if (avx512 || (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) {
        snprintf(family, sizeof family, "%d", avx512 ? (int)BLIS_ARCH_SKX : (int)BLIS_ARCH_HASWELL);
        setenv("BLIS_ARCH_TYPE", family, 0);
    }
}

/* "model name" of the processor, as far as the system tells. */
static void processor_name(char *buf, size_t bytes)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[512];

    snprintf(buf, bytes, "cpu");
    while (f && fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !value)
            continue;
        value += 1 + (value[1] == ' ');
        value[strcspn(value, "\n")] = 0;
        snprintf(buf, bytes, "%s", value);
        break;
    }
    if (f)
        fclose(f);
}

/* libgomp keeps what it needs to start threads on the stack, and does not look whether it fits. */
enum { THREADS_MOST = 512 };

int lf_cpu_open(lf_dev **out, const lf_model *m, lf_numerics numerics, int threads, lf_err *err)
{
    if (numerics == LF_RELEASED && (m->index_dim & (m->index_dim - 1)))
        return lf_fail(err, "released numerics need an index_head_dim that is a power of two (Hadamard transform), not "
                       "%d: use --numerics exact", m->index_dim);
    choose_blis_family();
    lf_cpu *c = lf_alloc(sizeof *c);
    c->threads = (int)lf_min(threads > 0 ? threads : omp_get_max_threads(), THREADS_MOST);
    omp_set_num_threads(c->threads);
    c->own = lf_alloc((size_t)c->threads * sizeof *c->own);
    c->dev.ops = &cpu_ops;
    processor_name(c->dev.name, sizeof c->dev.name);
    c->dev.model = m;
    c->dev.numerics = numerics;
    c->dev.act_bytes = sizeof(float);
    c->dev.tile = LF_CPU_TILE;
    *out = &c->dev;
    return 0;
}

void lf_dev_close(lf_dev *d)
{
    if (d)
        d->ops->close(d);
}
