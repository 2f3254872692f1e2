/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention and merge on the GPU against the CPU backend in float32 on the same inputs.
 *
 * Every output and log-sum-exp lies within the bound that g_bound_attention.h derives, against float64.  Beside that,
 * measured, |got - want| / |want| of one head's output: float32 1e-5, scores of magnitude 20 from 512 terms; bf16 4e-3:
 * the weights and the output are rounded to bf16 once each, by up to 2^-8 apiece.  The log-sum-exp is float32 in both:
 * 1e-4 absolute, for scores of magnitude 20 summed over 512 channels by the tensor cores.
 */
#include "attention_case.h"
#include "g_bound_attention.h"

#include "../src/dev_cuda_choice.h"
#include "../src/log.h"

#include <unistd.h>

static const att_shape nano = { 4, 32, 8 }, mini = { 8, 64, 16 }, odd = { 3, 100, 5 }, flash = { 64, 512, 128 };

static float *get_act(lf_dev *d, const lf_act *p, int64_t n)
{
    float *x = lf_alloc(sizeof *x * (size_t)(n + 1));

    if (d->act_bytes == 4) {
        d->ops->get(d, x, p, sizeof *x * (size_t)n);
        return x;
    }
    uint16_t *y = lf_alloc(sizeof *y * (size_t)(n + 1));
    d->ops->get(d, y, p, sizeof *y * (size_t)n);
    for (int64_t i = 0; i < n; i++)
        x[i] = lf_bf16_f32(y[i]);
    free(y);
    return x;
}

/* What a call gave, on the host. */
typedef struct result {
    float *out, *lse;
} result;

static result run(lf_dev *d, const att_host *h)
{
    att_dev v;
    int64_t rows = h->c.queries * h->shape.heads;
    result r = { NULL, NULL };

    att_load(&v, d, h);
    d->ops->attention(d, &v.a);
    att_sync(d);
    r.out = get_act(d, v.a.out, rows * h->shape.width);
    if (h->c.lse) {
        r.lse = lf_alloc(sizeof(float) * (size_t)(rows + 1));
        d->ops->get(d, r.lse, v.a.lse, sizeof(float) * (size_t)rows);
    }
    att_unload(&v);
    return r;
}

static void drop(result *r)
{
    free(r->out);
    free(r->lse);
}

/* The largest relative error of a row; NaN counts as infinite, and so does anything where zero is wanted. */
static double worst(const float *got, const float *want, int64_t rows, int64_t width)
{
    double most = 0;

    for (int64_t r = 0; r < rows; r++) {
        double off = 0, all = 0;
        for (int64_t j = r * width; j < (r + 1) * width; j++) {
            off += ((double)got[j] - want[j]) * ((double)got[j] - want[j]);
            all += (double)want[j] * want[j];
        }
        double e = off == 0 ? 0 : sqrt(off / all);
        most = e <= most ? most : isnan(e) ? INFINITY : e;
    }
    return most;
}

static double worst_lse(const float *got, const float *want, int64_t rows)
{
    double most = 0;

    for (int64_t r = 0; r < rows; r++) {
        double e = got[r] == want[r] ? 0 : fabs((double)got[r] - want[r]);
        most = e <= most ? most : isnan(e) ? INFINITY : e;
    }
    return most;
}

typedef struct pair {                      /* the device under test, and the reference */
    lf_dev *gpu, *cpu;
    double tol;
    const char *name;
} pair;

/* kernels: asked for, as in LONGFILL_KERNELS; NULL: none are. */
static void open_pair(pair *p, const lf_model *m, int act_bytes, const char *kernels)
{
    lf_err err;

    p->tol = act_bytes == 2 ? 4e-3 : 1e-5;
    p->name = kernels ? kernels : act_bytes == 2 ? "bf16" : "float32";
    if (kernels)
        setenv("LONGFILL_KERNELS", kernels, 1);
    else
        unsetenv("LONGFILL_KERNELS");
    if (lf_cuda_open(&p->gpu, m, LF_EXACT, act_bytes, 0, &err) != 0 ||
        lf_cpu_open(&p->cpu, m, LF_EXACT, 0, &err) != 0)
        att_die("open", &err);
}

static void close_pair(pair *p)
{
    lf_dev_close(p->gpu);
    lf_dev_close(p->cpu);
}

static void bounds(const pair *p, const att_host *h, const result *got)
{
    const att_case *c = &h->c;
    int bf16 = p->gpu->act_bytes == 2, fits = bf16 && h->shape.width == 512;
    unsigned all = 1u << LF_ATTENTION_GENERAL | (unsigned)fits << LF_ATTENTION_WGMMA;
    gb_attn a = { .q = h->q, .win = h->win, .rows = h->rows, .sink = h->sink, .sel = h->sel, .queries = c->queries,
                  .pos0 = c->pos0, .win_pos0 = h->win_pos0, .win_rows = h->win_rows, .row_first = c->first,
                  .row_count = h->count, .sel_ld = c->k, .heads = h->shape.heads, .width = h->shape.width,
                  .window = h->shape.window, .ratio = c->ratio, .bf16 = bf16,
                  .wgmma = lf_kernel_of(p->gpu->kernels, LF_CHOICE_ATTENTION, all) == LF_ATTENTION_WGMMA };

    gb_judge_attention(&a, got->out, got->lse);
}

static void compare(pair *p, att_shape shape, att_case c, const char *what)
{
    att_host h;

    if (c.spread == 0)
        c.spread = 1;
    att_make(&h, shape, c, p->gpu->act_bytes == 2, (uint64_t)c.pos0 * 7919 + (uint64_t)c.k);
    result got = run(p->gpu, &h), want = run(p->cpu, &h);
    int64_t rows = c.queries * shape.heads;
    double e = worst(got.out, want.out, rows, shape.width);
    TAP_CHECK(e <= p->tol, "%s, %d heads of %d, positions %lld +%lld, %s: %.2g", p->name, shape.heads, shape.width,
              (long long)c.pos0, (long long)c.queries, what, e);
    if (c.lse) {
        e = worst_lse(got.lse, want.lse, rows);
        TAP_CHECK(e <= 1e-4, "  and the log-sum-exp: %.2g", e);
    }
    bounds(p, &h, &got);
    drop(&got);
    drop(&want);
    att_free(&h);
}

static void positions(pair *p, att_shape s)
{
    const int64_t w = s.window;

    compare(p, s, (att_case){ .pos0 = 0, .queries = w + 2, .sink = 1 }, "window only");
    compare(p, s, (att_case){ .pos0 = 130, .queries = 3, .lse = 1 }, "window only, no sink");
    compare(p, s, (att_case){ .pos0 = 0, .queries = 11, .ratio = 4, .k = 512, .count = -1, .sink = 1 }, "c4");
    compare(p, s, (att_case){ .pos0 = 515, .queries = 3, .ratio = 4, .k = 512, .count = -1, .sink = 1, .lse = 1 },
            "c4, the whole past");
    compare(p, s, (att_case){ .pos0 = 4095, .queries = 3, .ratio = 4, .k = 512, .count = -1, .sink = 1, .spread = 2 },
            "c4, chosen, peaked");
    compare(p, s, (att_case){ .pos0 = 4 * 700 - 2, .queries = 4, .ratio = 4, .k = 1024, .count = -1, .sink = 1 },
            "c4, k 1024");
    compare(p, s, (att_case){ .pos0 = 126, .queries = 4, .ratio = 128, .count = -1, .sink = 1, .lse = 1 },
            "c128, the first entry");
    compare(p, s, (att_case){ .pos0 = 128 * 66 - 2, .queries = 4, .ratio = 128, .count = -1, .sink = 1 }, "c128");
    compare(p, s, (att_case){ .pos0 = 128 * 66 - 2, .queries = 1, .ratio = 128, .count = 40, .sink = 1 },
            "c128, fewer entries here");
    compare(p, s, (att_case){ .pos0 = 9000 * 4 - 1, .queries = 1, .ratio = 4, .count = -1, .sink = 1 },
            "dense, 9000 entries");
}

static void partials(pair *p, att_shape s)
{
    compare(p, s, (att_case){ .pos0 = 5000, .queries = 3, .ratio = 4, .k = 512, .first = 300, .count = 500,
                              .no_window = 1, .lse = 1 }, "a part of the chosen");
    compare(p, s, (att_case){ .pos0 = 40, .queries = 3, .ratio = 4, .k = 512, .first = 300, .count = 500,
                              .no_window = 1, .lse = 1 }, "nothing of it here");
    compare(p, s, (att_case){ .pos0 = 0, .queries = 3, .ratio = 4, .k = 16, .count = 0, .no_window = 1, .lse = 1,
                              .sink = 1 }, "no rows at all, a sink");
    compare(p, s, (att_case){ .pos0 = 128 * 20 - 2, .queries = 3, .ratio = 128, .first = 19, .count = 8,
                              .no_window = 1, .lse = 1 }, "dense, from one entry on");
}

/* Everything in one call, against three calls (two ranges of entries, the window) and a merge. */
static void merging(pair *p, att_shape s)
{
    att_case c = { .pos0 = 255, .queries = 9, .ratio = 4, .k = 48, .count = -1, .sink = 1, .spread = 1 };
    int64_t rows = c.queries * s.heads, n = rows * s.width, split = 33;
    size_t act = p->gpu->act_bytes;
    att_host h;
    att_dev v;

    att_make(&h, s, c, act == 2, 4711);
    result want = run(p->cpu, &h);
    att_load(&v, p->gpu, &h);
    lf_act *parts = att_take(&v, (size_t)(3 * n) * act);
    float *lse = att_take(&v, sizeof(float) * (size_t)(3 * rows));
    for (int k = 0; k < 3; k++) {
        lf_attn a = v.a;
        a.out = lf_act_at(p->gpu, parts, k * n);
        a.lse = lse + k * rows;
        a.sink = NULL;
        if (k < 2) {
            a.win_rows = 0;
            a.row_first = k ? split : 0;
            a.row_count = k ? h.count - split : split;
            a.rows = lf_act_at(p->gpu, v.a.rows, a.row_first * s.width);
        } else {
            a.rows = NULL;
        }
        p->gpu->ops->attention(p->gpu, &a);
    }
    p->gpu->ops->merge(p->gpu, v.a.out, parts, lse, 3, c.queries, s.heads, v.a.sink);
    att_sync(p->gpu);
    float *got = get_act(p->gpu, v.a.out, n);
    double e = worst(got, want.out, rows, s.width);
    TAP_CHECK(e <= p->tol, "%s, %d heads of %d: parts merged are the whole: %.2g", p->name, s.heads, s.width, e);
    free(got);
    drop(&want);
    att_unload(&v);
    att_free(&h);
}

static void empty_merge(pair *p, att_shape s)
{
    int64_t rows = 2 * s.heads, n = rows * s.width;
    att_dev v = { .d = p->gpu };
    float *x = att_normal(2 * n, 1, 0, 5), *nothing = lf_alloc(sizeof(float) * (size_t)(2 * rows)), big = 0;

    for (int64_t i = 0; i < 2 * rows; i++)
        nothing[i] = -INFINITY;
    lf_act *parts = att_put_act(&v, x, 2 * n), *out = att_take(&v, (size_t)n * p->gpu->act_bytes);
    float *lse = att_put(&v, nothing, sizeof(float) * (size_t)(2 * rows));
    p->gpu->ops->merge(p->gpu, out, parts, lse, 2, 2, s.heads, NULL);
    att_sync(p->gpu);
    float *got = get_act(p->gpu, out, n);
    for (int64_t i = 0; i < n; i++)
        big = got[i] == 0 ? big : INFINITY;
    TAP_CHECK(big == 0, "%s, %d heads of %d: a merge of nothing is zero", p->name, s.heads, s.width);
    free(got);
    free(x);
    free(nothing);
    att_unload(&v);
}

/* Bytes of every query alone, and of half of the heads alone, against those of the whole call. */
static void invariance(pair *p, att_shape s, att_case c, const char *what)
{
    int64_t row = s.heads * s.width, half = s.heads / 2;
    lf_dev *d = p->gpu;
    att_host h;
    att_dev v;
    int bad = 0;

    c.spread = 1;
    att_make(&h, s, c, d->act_bytes == 2, 31);
    att_load(&v, d, &h);
    d->ops->attention(d, &v.a);
    att_sync(d);
    float *all = get_act(d, v.a.out, c.queries * row);
    for (int64_t i = 0; i < c.queries; i++) {
        lf_attn a = v.a;
        d->ops->fill(d, v.a.out, 0x7f, (size_t)row * d->act_bytes);
        a.queries = 1;
        a.pos0 += i;
        a.q = lf_act_at(d, v.a.q, i * row);
        a.sel = v.a.sel ? v.a.sel + i * a.sel_ld : NULL;
        d->ops->attention(d, &a);
        for (int k = 0; k < 2; k++) {
            if (k) {
                a.heads = (int)half;
                a.q = lf_act_at(d, a.q, half * s.width);
                a.sink = v.a.sink ? v.a.sink + half : NULL;
                d->ops->attention(d, &a);
            }
            att_sync(d);
            float *one = get_act(d, a.out, a.heads * s.width);
            size_t bytes = sizeof(float) * (size_t)(a.heads * s.width);
            TAP_QUIET(bad, memcmp(one, all + i * row + k * half * s.width, bytes) == 0, "query %d, %s", (int)i,
                      k ? "its second half of heads" : "alone");
            free(one);
        }
    }
    TAP_CHECK(bad == 0, "%s, %d heads of %d, %s: a query's bytes depend on nothing else", p->name, s.heads, s.width,
              what);
    free(all);
    att_unload(&v);
    att_free(&h);
}

static void geometry(att_shape s, int act_bytes, const char *kernels)
{
    lf_model m = att_model(s);
    pair p;

    open_pair(&p, &m, act_bytes, kernels);
    positions(&p, s);
    partials(&p, s);
    merging(&p, s);
    empty_merge(&p, s);
    invariance(&p, s, (att_case){ .pos0 = 250, .queries = 9, .ratio = 4, .k = 40, .count = -1, .sink = 1 }, "c4");
    invariance(&p, s, (att_case){ .pos0 = 128 * 80 - 3, .queries = 5, .ratio = 128, .count = -1, .sink = 1 }, "c128");
    invariance(&p, s, (att_case){ .pos0 = s.window - 3, .queries = 5, .sink = 1 }, "window");
    close_pair(&p);
}

/* Other numbers of heads, and enough queries that every multiprocessor gets several. */
static void widths(int act_bytes)
{
    static const int heads[] = { 16, 32, 80, 128 };
    lf_model m = att_model(flash);
    pair p;

    open_pair(&p, &m, act_bytes, NULL);
    for (int k = 0; k < 4; k++) {
        att_shape s = { heads[k], 512, 128 };
        compare(&p, s, (att_case){ .pos0 = 2000, .queries = 2, .ratio = 4, .k = 128, .count = -1, .sink = 1,
                                   .lse = 1 }, "c4");
    }
    att_shape s = { 16, 512, 128 };
    compare(&p, s, (att_case){ .pos0 = 0, .queries = 700, .ratio = 4, .k = 64, .count = -1, .sink = 1 },
            "many queries");
    compare(&p, s, (att_case){ .pos0 = 0, .queries = 700, .ratio = 128, .count = -1, .no_window = 1, .lse = 1 },
            "many queries, many of them without a row");
    close_pair(&p);
}

/* ---- which kernel ran ---- */

static void one_call(lf_dev *d, att_shape s)
{
    att_host h;
    att_dev v;

    att_make(&h, s, (att_case){ .pos0 = 0, .queries = 3, .spread = 1 }, d->act_bytes == 2, 7);
    att_load(&v, d, &h);
    d->ops->attention(d, &v.a);
    att_unload(&v);
    att_free(&h);
}

/* How often a line stands in what -v says while attention runs twice with 64 heads and once with 16. */
static int lines(lf_dev *d, const char *line)
{
    char text[4096] = "";
    FILE *f = tmpfile();
    int old = dup(2), n = 0;

    if (!f || old < 0)
        return -1;
    lf_log_setup(0, LF_VERBOSE);
    dup2(fileno(f), 2);
    one_call(d, flash);
    one_call(d, flash);
    one_call(d, (att_shape){ 16, 512, 128 });
    dup2(old, 2);
    close(old);
    lf_log_setup(0, LF_NORMAL);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    printf("# %s: %zu bytes said\n", line, strlen(text));
    for (const char *p = text; (p = strstr(p, line)); p++)
        n++;
    return n;
}

static void told(void)
{
    static const char *const name[] = { "general", "wgmma" };
    lf_model m = att_model(flash);
    char line[128];
    pair p;

    for (int forced = 0; forced < 2; forced++)
        for (int other = 0; other < 2; other++) {
            const char *ran = name[!forced], *kernel = other ? name[forced] : ran;
            open_pair(&p, &m, 2, forced ? "attention=general" : NULL);
            snprintf(line, sizeof line, "attention: %s (64 heads of 512, bf16)\n", kernel);
            int n = lines(p.gpu, line);
            TAP_CHECK(n == !other, "%s: -v tells %s %d times", p.name, kernel, n);
            close_pair(&p);
        }
}

/* A kernel that cannot do a shape, and one that does not exist. */
static void refused(void)
{
    lf_model m = att_model(nano);
    lf_err err = { "" };
    lf_dev *d;
    pair p;

    open_pair(&p, &m, 4, "attention=wgmma");
    one_call(p.gpu, nano);
    int bad = p.gpu->ops->sync(p.gpu, &err);
    TAP_CHECK(bad && strstr(err.text, "attention=wgmma, which cannot do 4 heads of 32, float32: it needs bf16"),
              "refused: %s", err.text);
    close_pair(&p);
    setenv("LONGFILL_KERNELS", "index=mma,attention=fast", 1);
    bad = lf_cuda_open(&d, &m, LF_EXACT, 4, 0, &err);
    TAP_CHECK(bad && strstr(err.text, "\"attention=fast\"") && strstr(err.text, "attention: general wgmma"),
              "refused: %s", err.text);
    if (!bad)
        lf_dev_close(d);
    unsetenv("LONGFILL_KERNELS");
}

int main(void)
{
    int count;
    lf_err err;

    if (lf_cuda_devices(&count, &err) != 0) {
        tap_skip("attention on a GPU", err.text);
        return tap_done();
    }
    for (int act_bytes = 4; act_bytes >= 2; act_bytes -= 2) {
        geometry(nano, act_bytes, NULL);
        geometry(mini, act_bytes, NULL);
        geometry(odd, act_bytes, NULL);
        geometry(flash, act_bytes, NULL);
        widths(act_bytes);
    }
    geometry(flash, 2, "attention=general");
    told();
    refused();
    return tap_done();
}
