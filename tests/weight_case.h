/* SPDX-License-Identifier: Apache-2.0
 *
 * weight_case: what each tp rank loads of small models, from files and made up, against the whole that one rank loads:
 * slices multiply as views of the whole do, byte for byte, hold no more than the blocks of scales that they lie in, and
 * take what is planned.  One device stands for all ranks in turn.
 */
#ifndef LF_TEST_WEIGHT_CASE_H
#define LF_TEST_WEIGHT_CASE_H

#include "tap.h"
#include "plan.h"
#include "synthdir.h"
#include "weight.h"

#include <stdlib.h>
#include <string.h>

typedef int (*weight_case_open)(lf_dev **d, const lf_model *m, lf_numerics numerics, lf_err *err);

typedef struct weight_case {
    const lf_model *m;
    lf_checkpoint *c;                      /* NULL: made up */
    lf_dev *d;
    int gpu;
    lf_weights all;                        /* of one rank */
    char name[80];
} weight_case;

enum { WEIGHT_CASE_ROWS = 70, WEIGHT_CASE_SEED = 7 };

static inline int weight_case_load(weight_case *k, lf_weights *w, int tp, int rank)
{
    lf_err err = { "" };
    lf_grid g;

    memset(w, 0, sizeof *w);
    int bad = lf_grid_make(&g, k->m, tp, rank, 1, 1, tp, &err) ||
              lf_weights_load(w, k->m, k->c, WEIGHT_CASE_SEED, k->d, &g, &err);
    if (bad)
        TAP_CHECK(0, "%s, rank %d of %d is loaded: %s", k->name, rank, tp, err.text);
    return bad;
}

/* [rows, w.rows] float32, the caller's; NULL: no memory. */
static inline float *weight_case_product(weight_case *k, lf_weight w, int plain, int parts)
{
    enum { M = WEIGHT_CASE_ROWS };
    const lf_dev_ops *ops = k->d->ops;
    int64_t n = M * w.cols;
    float *host = lf_alloc(4 * (size_t)n), *out = lf_alloc(4 * (size_t)(M * w.rows));
    void *x = NULL, *act = NULL, *y = NULL;
    uint32_t seed = 1;
    lf_err err;

    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        host[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
    int bad = ops->take(k->d, &x, 4 * (size_t)n, "a test", &err) ||
              ops->take(k->d, &act, 4 * (size_t)n, "a test", &err) ||
              ops->take(k->d, &y, 4 * (size_t)(M * w.rows), "a test", &err);
    if (!bad) {
        lf_gemm g = { .x = act, .m = M, .ldx = w.cols, .w = &w, .out = y, .ldo = w.rows, .kind = LF_OUT_F32,
                      .plain = plain, .parts = parts };
        ops->put(k->d, x, host, 4 * (size_t)n);
        ops->round(k->d, act, x, n);
        ops->gemm(k->d, &g);
        ops->get(k->d, out, y, 4 * (size_t)(M * w.rows));
    }
    ops->give(k->d, x);
    ops->give(k->d, act);
    ops->give(k->d, y);
    free(host);
    if (bad)
        free(out);
    return bad ? NULL : out;
}

static inline int weight_case_same(weight_case *k, lf_weight whole, lf_weight slice, int plain, int parts)
{
    float *want = weight_case_product(k, whole, plain, parts), *got = weight_case_product(k, slice, plain, parts);
    int64_t n = WEIGHT_CASE_ROWS * whole.rows;
    double sum = 0;

    for (int64_t i = 0; want && i < n; i++)
        sum += fabs((double)want[i]);
    int same = want && got && whole.rows == slice.rows && whole.cols == slice.cols && sum > 0 && isfinite(sum) &&
               memcmp(want, got, 4 * (size_t)n) == 0;
    free(want);
    free(got);
    return same;
}

/* A slice's own and kept rows (or columns), from `at` on of `all`. */
static inline int weight_case_kept(const lf_weight *w, int cols, int64_t at, int64_t n, int64_t all)
{
    int64_t block = w->dtype == LF_E4M3 ? 128 : 1, first = at - at % block, end = at + n;

    while (end % block && end < all)
        end++;
    return cols ? w->cols == n && w->col0 == at - first && w->all_cols == end - first && w->all_rows == w->rows
                : w->rows == n && w->row0 == at - first && w->all_rows == end - first;
}

static inline void weight_case_slices(weight_case *k, const lf_weights *w, int tp, int rank)
{
    const lf_model *m = k->m;
    int bad = 0, apart = 0;
    lf_weight head = lf_weight_rows(k->all.head, w->vocab0, w->vocab);

    TAP_QUIET(bad, weight_case_same(k, head, w->head, 0, 0), "head");
    TAP_QUIET(apart, weight_case_kept(&w->head, 0, w->vocab0, w->vocab, m->vocab), "head");
    for (int i = 0; i < m->layers; i++) {
        const lf_layer *a = &k->all.layer[i], *b = &w->layer[i];
        int64_t q = a->wq_b.rows / tp, o = a->wo_a.rows / tp, cols = a->wo_b.cols / tp;
        TAP_QUIET(bad, weight_case_same(k, lf_weight_rows(a->wq_b, rank * q, q), b->wq_b, 0, 0), "%d: wq_b", i);
        TAP_QUIET(bad, weight_case_same(k, lf_weight_rows(a->wo_a, rank * o, o), b->wo_a, 1, 0), "%d: wo_a", i);
        TAP_QUIET(bad, weight_case_same(k, lf_weight_cols(a->wo_b, rank * cols, cols), b->wo_b, 0, w->groups),
                  "%d: wo_b", i);
        TAP_QUIET(apart, weight_case_kept(&b->wq_b, 0, rank * q, q, a->wq_b.rows), "%d: wq_b", i);
        TAP_QUIET(apart, weight_case_kept(&b->wo_a, 0, rank * o, o, a->wo_a.rows), "%d: wo_a", i);
        TAP_QUIET(apart, k->c && !k->gpu ? b->wo_b.all_cols == a->wo_b.all_cols
                  : weight_case_kept(&b->wo_b, 1, rank * cols, cols, a->wo_b.cols), "%d: wo_b", i);
    }
    TAP_CHECK(bad == 0, "%s, rank %d of %d: its slices multiply as those of the whole, byte for byte", k->name, rank,
              tp);
    TAP_CHECK(apart == 0, "  and no more is kept than the blocks of scales that they lie in");
}

/* Bytes that this process has read from files so far, other than by mappings; -1: nobody says. */
static inline int64_t weight_case_reads(void)
{
    FILE *in = fopen("/proc/self/io", "r");
    long long n = -1;

    if (in && fscanf(in, "rchar: %lld", &n) != 1)
        n = -1;
    if (in)
        fclose(in);
    return n;
}

/* The plan's bytes of this rank on a GPU: what was taken, in pieces of 512, but for the two tables of frequencies; and
 * read: what came. */
static inline void weight_case_planned(weight_case *k, const lf_weights *w, int tp, int rank, size_t took, int64_t read)
{
    lf_plan_grid g = { 0 };
    lf_err err = { "" };
    int64_t over;
    lf_plan p;

    if (!k->gpu)
        return;
    int bad = lf_plan_open(&p, k->m, k->c, &err) || lf_grid_make(&g.grid, k->m, tp, rank, 1, 1, tp, &err);
    lf_plan_weights_size(&p, &g);
    over = (int64_t)took - 2 * 512 - g.weights;
    TAP_CHECK(!bad && over >= 0 && over < 512, "  it takes %zu bytes, planned %lld %s", took, (long long)g.weights,
              err.text);
    p.on_host = 1;
    lf_plan_weights_size(&p, &g);
    lf_plan_free(&p);
    if (!k->c)
        return;
    TAP_CHECK(w->read == g.mapped, "  it says that %lld bytes came from files, its share is %lld", (long long)w->read,
              (long long)g.mapped);
    if (read < 0)
        tap_skip("  what it reads", "no /proc/self/io");
    else
        TAP_CHECK(read >= g.mapped && read < g.mapped + g.mapped / 20 + 100000, "  and it reads %lld", (long long)read);
}

static inline void weight_case_rank(weight_case *k, int tp, int rank)
{
    lf_weights w;
    size_t before = k->d->taken;
    int64_t reads = weight_case_reads();

    if (!weight_case_load(k, &w, tp, rank)) {
        int64_t now = weight_case_reads();
        weight_case_planned(k, &w, tp, rank, k->d->taken - before, now < 0 || reads < 0 ? -1 : now - reads);
        weight_case_slices(k, &w, tp, rank);
    }
    lf_weights_free(&w);
}

static inline void weight_case_mode(weight_case_open open, const lf_model *m, lf_checkpoint *c, const char *name,
                                    lf_numerics numerics, const int *tp)
{
    weight_case k = { .m = m, .c = c };
    lf_err err = { "" };

    snprintf(k.name, sizeof k.name, "%s, %s, %s", name, c ? "files" : "made up",
             numerics == LF_EXACT ? "exact" : "released");
    if (open(&k.d, m, numerics, &err)) {
        TAP_CHECK(0, "%s: a device: %s", k.name, err.text);
        return;
    }
    k.gpu = k.d->ops->left != NULL;
    if (!weight_case_load(&k, &k.all, 1, 0))
        for (; *tp; tp++)
            for (int rank = 0; rank < *tp; rank++)
                weight_case_rank(&k, *tp, rank);
    TAP_CHECK(k.d->ops->sync(k.d, &err) == 0, "%s: nothing went wrong %s", k.name, err.text);
    lf_weights_free(&k.all);
    lf_dev_close(k.d);
}

/* wide: each rank's columns of wo_b are whole blocks; inside: they begin and end inside of blocks; nano: so do rows. */
static inline void weight_cases(weight_case_open open)
{
    static const char *const wide[] = { "hidden_size=256", "o_groups=4", "o_lora_rank=128", "vocab_size=1001",
                                        "num_hidden_layers=4" };
    static const char *const inside[] = { "hidden_size=256", "o_groups=4", "o_lora_rank=160", "num_hidden_layers=3" };
    static const struct { const char *name; lf_synth_options o; int tp[3]; } of[] = {
        { "nano", { .preset = "nano", .seed = WEIGHT_CASE_SEED }, { 2 } },
        { "wide", { .preset = "mini", .seed = WEIGHT_CASE_SEED, .set = wide, .sets = 5 }, { 2, 4 } },
        { "inside", { .preset = "mini", .seed = WEIGHT_CASE_SEED, .set = inside, .sets = 4 }, { 2, 4 } },
        { "bf16", { .preset = "mini", .seed = WEIGHT_CASE_SEED, .bf16 = 1, .set = inside, .sets = 4 }, { 4 } },
    };

    synthdir_make();
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        lf_checkpoint *c = NULL;
        lf_err err = { "" };
        lf_model m;
        int bad = synthdir_write(of[i].name, of[i].o, &err);
        char *dir = synthdir_path(of[i].name);
        bad = bad || lf_model_read(&m, dir, &err) || lf_checkpoint_open(&c, dir, &err);
        TAP_CHECK(!bad, "%s: a model %s", of[i].name, err.text);
        for (int n = 0; n < 2 && !bad; n++) {
            weight_case_mode(open, &m, c, of[i].name, n ? LF_EXACT : LF_RELEASED, of[i].tp);
            if (!of[i].o.bf16)
                weight_case_mode(open, &m, NULL, of[i].name, n ? LF_EXACT : LF_RELEASED, of[i].tp);
        }
        lf_checkpoint_close(c);
        if (!bad)
            lf_model_free(&m);
        free(dir);
    }
    synthdir_remove();
}

#endif
