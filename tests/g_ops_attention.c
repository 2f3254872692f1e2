/* SPDX-License-Identifier: Apache-2.0
 *
 * On the GPU: attention, merge.
 *
 * Every output and log-sum-exp lies within the bound that g_bound_attention.h derives, against float64.  Beside that,
 * against the CPU, measured.  Float32: 1e-5 of a query's largest output.  bf16: products of bf16 values are exact and
 * sums are float32, but weights are rounded to bf16 before they meet the values, an error of up to 2^-8 each of either
 * sign, and the output is rounded: 1e-2 of the row in all, 2 % of its largest value in one place.  The log-sum-exp:
 * 1e-3 then.  merge: one step.  Every kernel of attention that can do a geometry runs all of its cases.
 */
#include "g_kernels.h"

#include "g_bound_attention.h"

enum { POS0, WIN_POS0, WIN_ROWS, ROW_FIRST, ROW_COUNT, RATIO, SEL, SINK, WANT };           /* opt */
enum { OUT, PART, LSE };                   /* WANT: the output, the same when lse is asked for, lse */

/* in: q, window rows, compressed rows, choice [rows, SEL], sink */
static void attend(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t heads = r->model.heads, width = r->model.head_dim, each = heads * width, sel = r->opt[SEL];
    float *lse = g_new(r, d, (size_t)(m * heads) * 4);
    lf_attn a = { .out = g_new_act(r, d, m * each), .q = g_act(r, d, (const float *)r->in[0] + first * each, m * each),
                  .queries = m, .pos0 = r->opt[POS0] + first, .heads = (int)heads, .win_pos0 = r->opt[WIN_POS0],
                  .win_rows = r->opt[WIN_ROWS], .row_first = r->opt[ROW_FIRST], .row_count = r->opt[ROW_COUNT],
                  .ratio = (int)r->opt[RATIO], .sel_ld = sel, .lse = r->opt[WANT] == OUT ? NULL : lse };

    if (a.win_rows)
        a.win = g_act(r, d, r->in[1], a.win_rows * width);
    if (a.ratio)
        a.rows = g_act(r, d, r->in[2], a.row_count * width);
    if (sel)
        a.sel = g_put(r, d, (const int32_t *)r->in[3] + first * sel, (size_t)(m * sel) * 4);
    if (r->opt[SINK])
        a.sink = g_put(r, d, r->in[4], (size_t)heads * 4);
    d->ops->attention(d, &a);
    if (r->opt[WANT] == LSE)
        g_get(d, out, lse, (size_t)(m * heads) * 4);
    else
        g_get_act(d, out, a.out, m * each);
}

/* Choices of up to `most` of the entries that each query sees, ascending, -1 after the last; of every fifth query
 * none. */
static const int32_t *choose(g_run *r, int64_t rows, int64_t most)
{
    int32_t *sel = g_keep(r, (size_t)(rows * most) * 4);

    for (int64_t i = 0; i < rows; i++) {
        int64_t seen = (r->opt[POS0] + i + 1) / 4, n = 0;
        int64_t want = i % 5 == 4 ? 0 : i % 5 == 0 ? most : g_below(r, most + 1);
        for (int64_t c = 0; c < seen && n < want; c++)
            if (g_below(r, seen - c) < want - n)
                sel[i * most + n++] = (int32_t)c;
        while (n < most)
            sel[i * most + n++] = -1;
    }
    return sel;
}

static void bounds(g_run *r)
{
    int64_t heads = r->model.heads, width = r->model.head_dim, rows = r->rows;
    float *got = lf_alloc((size_t)(rows * heads * width) * 4), *lse = lf_alloc((size_t)(rows * heads) * 4);
    int fits = r->act == 2 && width == 512 ? 1 << LF_ATTENTION_GENERAL | 1 << LF_ATTENTION_WGMMA : 1;
    gb_attn a = { .q = r->in[0], .queries = rows, .pos0 = r->opt[POS0], .win_pos0 = r->opt[WIN_POS0],
                  .win_rows = r->opt[WIN_ROWS], .win = r->opt[WIN_ROWS] ? r->in[1] : NULL,
                  .row_first = r->opt[ROW_FIRST], .row_count = r->opt[ROW_COUNT], .ratio = (int)r->opt[RATIO],
                  .rows = r->opt[RATIO] ? r->in[2] : NULL, .sel = r->in[3], .sel_ld = r->opt[SEL],
                  .sink = r->opt[SINK] ? r->in[4] : NULL, .heads = (int)heads, .width = (int)width,
                  .window = r->model.window, .bf16 = r->act == 2,
                  .wgmma = lf_kernel_of(r->gpu->kernels, LF_CHOICE_ATTENTION, (unsigned)fits) == LF_ATTENTION_WGMMA };

    r->opt[WANT] = OUT;
    attend(r, r->gpu, 0, rows, got);
    r->opt[WANT] = LSE;
    attend(r, r->gpu, 0, rows, lse);
    g_release(r);
    gb_judge_attention(&a, got, lse);
    free(got);
    free(lse);
}

static void one_case(g_run *r, const char *name)
{
    static const char *const want[] = { "attention", "attention, a part", "attention, lse" };
    int64_t heads = r->model.heads, width = r->model.head_dim, rows = r->rows;
    char text[96];

    r->quantises = 0;
    r->in[0] = g_values(r, rows * heads * width, 1.5f);
    r->in[1] = g_values(r, r->opt[WIN_ROWS] * width, 1);
    r->in[2] = g_values(r, r->opt[ROW_COUNT] * width, 1);
    r->in[3] = r->opt[SEL] ? choose(r, rows, r->opt[SEL]) : NULL;
    r->in[4] = g_floats(r, heads, 2);
    for (int w = 0; w < 3; w++) {
        r->opt[WANT] = w;
        snprintf(text, sizeof text, "%s, %s", want[w], name);
        g_check(r, text, attend, rows, w == LSE ? heads : heads * width,
                r->act == 4 ? (g_tol){ 1e-5, 0, 0, 1e-5 } : w == LSE ? (g_tol){ 1e-3, 0, 1, 1e-3 }
                                                                     : (g_tol){ 0.02, 1, 1, 1e-2 });
    }
    bounds(r);
    g_forget(r);
}

/* Prompts from the first token on and deep ones; a window that begins at 0, or earlier than any query needs. */
static void cases(g_run *r)
{
    int64_t n = r->rows, w = r->model.window, k = r->model.index_topk, deep = 8 * k + 2 * w + 3;

    memcpy(r->opt, (int64_t[]){ 0, 0, n, 0, 0, 0, 0, 1 }, 64);
    one_case(r, "window from the first token");
    memcpy(r->opt, (int64_t[]){ deep, deep - w - 5, n + w + 5, 0, 0, 0, 0, 0 }, 64);
    one_case(r, "window deep in a prompt, no sink");
    memcpy(r->opt, (int64_t[]){ 0, 0, n, 0, n / 128 + 1, 128, 0, 1 }, 64);
    one_case(r, "ratio 128 from the first token");
    memcpy(r->opt, (int64_t[]){ 128 * 301 - 7, 128 * 301 - 7 - w + 1, n + w - 1, 0, 304, 128, 0, 1 }, 64);
    one_case(r, "ratio 128, 300 entries");
    memcpy(r->opt, (int64_t[]){ deep, deep - w + 1, n + w - 1, 0, (deep + n) / 4, 4, k, 1 }, 64);
    one_case(r, "ratio 4, chosen entries");
    memcpy(r->opt, (int64_t[]){ 0, 0, n, 0, n / 4, 4, k, 1 }, 64);
    one_case(r, "ratio 4 from the first token");
    memcpy(r->opt, (int64_t[]){ deep, 0, 0, k / 2, deep / 4 - k / 2, 4, k, 0 }, 64);
    one_case(r, "chosen entries of a later part, no window, no sink");
    memcpy(r->opt, (int64_t[]){ 128 * 200, 0, 0, 70, 75, 128, 0, 0 }, 64);
    one_case(r, "ratio 128, a part of the entries, no window, no sink");
    memcpy(r->opt, (int64_t[]){ 128 * 10, 0, 0, 4000, 20, 128, 0, 0 }, 64);
    one_case(r, "a part that no query sees");
}

/* opt: parts, sink */
static void merge(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t parts = r->opt[0], heads = r->model.heads, each = heads * r->model.head_dim, rows = r->rows;
    float *x = lf_alloc((size_t)(parts * m * each) * 4 + 4), *lse = lf_alloc((size_t)(parts * m * heads) * 4 + 4);
    lf_act *y = g_new_act(r, d, m * each);

    for (int64_t p = 0; p < parts; p++) {
        memcpy(x + p * m * each, (const float *)r->in[0] + (p * rows + first) * each, (size_t)(m * each) * 4);
        memcpy(lse + p * m * heads, (const float *)r->in[1] + (p * rows + first) * heads, (size_t)(m * heads) * 4);
    }
    d->ops->merge(d, y, g_act(r, d, x, parts * m * each), g_put(r, d, lse, (size_t)(parts * m * heads) * 4),
                  (int)parts, m, (int)heads, r->opt[1] ? g_put(r, d, r->in[2], (size_t)heads * 4) : NULL);
    g_get_act(d, out, y, m * each);
    free(x);
    free(lse);
}

static void merges(g_run *r)
{
    int64_t heads = r->model.heads, each = heads * r->model.head_dim;

    for (int parts = 1; parts <= 5; parts += 2) {
        float *lse = g_floats(r, parts * r->rows * heads, 3);
        for (int64_t i = 0; i < parts * r->rows * heads; i++)  /* empty parts, and rows of which every part is empty */
            if (i % 3 == 1 || i / heads % r->rows == 2)
                lse[i] = -INFINITY;
        r->in[0] = g_values(r, parts * r->rows * each, 1);
        r->in[1] = lse;
        r->in[2] = g_floats(r, heads, 2);
        for (int sink = 0; sink < 2; sink++) {
            memcpy(r->opt, (int64_t[]){ parts, sink }, 16);
            g_check(r, sink ? "merge" : "merge, no sink", merge, r->rows, each,
                    r->act == 4 ? (g_tol){ 1e-5, 0, 0, 1e-5 } : (g_tol){ 1e-5, 1, 0.005, 2e-3 });
        }
        g_forget(r);
    }
}

static void kernels(g_run *r)
{
    unsigned fits = 1u << LF_ATTENTION_GENERAL;
    int64_t each = (int64_t)r->model.heads * r->model.head_dim;

    if (r->act == 2 && r->model.head_dim == 512)
        fits |= 1u << LF_ATTENTION_WGMMA;
    g_others(r, LF_CHOICE_ATTENTION, fits, cases);
    memcpy(r->opt, (int64_t[]){ 0, 0, 3, 0, 0, 0, 0, 0, OUT }, 72);
    r->in[0] = g_values(r, 3 * each, 1);
    r->in[1] = g_values(r, 3 * r->model.head_dim, 1);
    g_refused(r, LF_CHOICE_ATTENTION, fits, "attention", attend, each);
    g_forget(r);
}

/* Rows of a query in one block of 64 to four, odd and even numbers of them, and none; then 80 heads, which are a whole
 * tile of 64 and a part of one, and more queries and tiles than an H200 has multiprocessors (132), each of which so has
 * a second one to do. */
static void released_kernel(g_run *r)
{
    int64_t n = r->rows, w = r->model.window, k = r->model.index_topk, deep = 8 * k + 2 * w + 3;

    g_ask(r, LF_CHOICE_ATTENTION, LF_ATTENTION_WGMMA);
    memcpy(r->opt, (int64_t[]){ 128 * 21 - 7, 128 * 21 - 7 - w + 1, n + w - 1, 0, 22, 128, 0, 1 }, 64);
    one_case(r, "ratio 128, 20 entries");
    memcpy(r->opt, (int64_t[]){ deep, deep - w + 1, n + w - 1, 0, (deep + n) / 4, 4, k, 1 }, 64);
    one_case(r, "ratio 4, chosen entries");
    memcpy(r->opt, (int64_t[]){ deep, 0, 0, k / 2, deep / 4 - k / 2, 4, k, 0 }, 64);
    one_case(r, "chosen entries of a later part, no window, no sink");
    memcpy(r->opt, (int64_t[]){ 128 * 10, 0, 0, 4000, 20, 128, 0, 0 }, 64);
    one_case(r, "a part that no query sees");
    r->model.heads = 80;
    r->rows = n = 70;
    memcpy(r->opt, (int64_t[]){ 0, 0, n, 0, 0, 0, 0, 1 }, 64);
    one_case(r, "80 heads, window from the first token");
    g_ask(r, LF_CHOICE_ATTENTION, -1);
}

static void all(g_run *r)
{
    if (r->narrow) {
        released_kernel(r);
        return;
    }
    cases(r);
    merges(r);
    kernels(r);
}

int main(void)
{
    return g_main("attention on the GPU", all);
}
