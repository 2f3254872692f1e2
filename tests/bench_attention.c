/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention at the released models' shapes, timed: not a test.  Random data; a block of it repeats, which no kernel
 * can tell.  Wall clock around one call and sync(), the median of several after a warm-up.
 *
 *   TFLOP/s = 4 * heads * width * rows * queries / seconds / 1e12, rows counted query by query
 */
#include "attention_case.h"

typedef struct bench {
    const char *name;
    int heads, act_bytes;
    int64_t queries, entries;
    int ratio, k;
} bench;

static const bench table[] = {
    { "Flash c4, 640 rows of 32K", 64, 2, 4096, 32768, 4, 512 },
    { "Flash c4, 640 rows of 256K", 64, 2, 4096, 262144, 4, 512 },
    { "Flash c128, 1152 rows", 64, 2, 4096, 1024, 128, 0 },
    { "Flash c128, 8320 rows", 64, 2, 1024, 8192, 128, 0 },
    { "Pro c4, 1152 rows of 256K", 128, 2, 2048, 262144, 4, 1024 },
    { "Pro c128, 1152 rows", 128, 2, 2048, 1024, 128, 0 },
    { "Flash tp 2 c4, 640 rows of 256K", 32, 2, 4096, 262144, 4, 512 },
    { "window only", 64, 2, 8192, 0, 0, 0 },
    { "float32, Flash c4, 640 rows of 32K", 64, 4, 256, 32768, 4, 512 },
};

enum { ROUNDS = 7, RANDOM = 1 << 20 };

/* n elements: random ones, over and over. */
static lf_act *repeat(att_dev *v, int64_t n, uint64_t seed)
{
    size_t act = v->d->act_bytes;
    int64_t have = n < RANDOM ? n : RANDOM;
    float *x = att_normal(have, 1, act == 2, seed);
    lf_act *start = att_put_act(v, x, have), *p = att_take(v, (size_t)n * act);

    free(x);
    v->d->ops->copy(v->d, p, start, (size_t)have * act);
    while (have < n) {
        int64_t more = have < n - have ? have : n - have;
        v->d->ops->copy(v->d, lf_act_at(v->d, p, have), p, (size_t)more * act);
        have += more;
    }
    return p;
}

static int32_t *chosen(att_dev *v, const bench *b)
{
    size_t n = (size_t)(b->queries * b->k);
    int32_t *sel = lf_alloc(sizeof *sel * n);
    uint64_t seed = 77;

    for (size_t i = 0; i < n; i++) {
        double place = (double)(i % (size_t)b->k) + att_uniform(&seed);
        sel[i] = (int32_t)(place * (double)(b->entries - b->queries) / b->k);
    }
    int32_t *p = att_put(v, sel, sizeof *sel * n);
    free(sel);
    return p;
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double measure(lf_dev *d, const lf_attn *a)
{
    double t[ROUNDS];

    for (int i = -2; i < ROUNDS; i++) {
        double start = lf_now();
        d->ops->attention(d, a);
        att_sync(d);
        if (i >= 0)
            t[i] = lf_now() - start;
    }
    qsort(t, ROUNDS, sizeof *t, order);
    return t[ROUNDS / 2];
}

static void one(const bench *b)
{
    att_shape s = { b->heads, 512, 128 };
    lf_model m = att_model(s);
    att_dev v = { 0 };
    lf_err err;
    double rows = 0;

    if (lf_cuda_open(&v.d, &m, LF_EXACT, b->act_bytes, 0, &err) != 0)
        att_die("open", &err);
    int64_t out = b->queries * b->heads, last = b->ratio ? b->entries * b->ratio - 1 : 100000;
    lf_attn a = { .queries = b->queries, .pos0 = last - b->queries + 1, .heads = b->heads, .ratio = b->ratio,
                  .row_count = b->entries, .sel_ld = b->k };
    a.q = repeat(&v, out * s.width, 1);
    a.out = att_take(&v, (size_t)(out * s.width) * v.d->act_bytes);
    a.win_pos0 = a.pos0 - s.window + 1;
    a.win_rows = last + 1 - a.win_pos0;
    a.win = repeat(&v, a.win_rows * s.width, 2);
    a.rows = b->ratio ? repeat(&v, b->entries * s.width, 3) : NULL;
    a.sel = b->k ? chosen(&v, b) : NULL;
    float *sink = att_normal(b->heads, 1, 0, 4);
    a.sink = att_put(&v, sink, sizeof *sink * (size_t)b->heads);
    for (int64_t t = a.pos0; t <= last; t++)
        rows += s.window + (double)(b->k ? b->k : b->ratio ? (t + 1) / b->ratio : 0);
    double took = measure(v.d, &a);
    printf("%-36s %4d heads %6lld queries %9.3f ms %8.1f TFLOP/s\n", b->name, b->heads, (long long)b->queries,
           1e3 * took, 4.0 * b->heads * s.width * rows / took / 1e12);
    free(sink);
    att_unload(&v);
    lf_dev_close(v.d);
}

int main(void)
{
    int count;
    lf_err err;

    if (lf_cuda_devices(&count, &err) != 0) {
        printf("no GPU: %s\n", err.text);
        return 77;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        one(&table[i]);
    return 0;
}
