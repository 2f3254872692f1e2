/* SPDX-License-Identifier: Apache-2.0
 *
 * On the GPU: index_topk, topk_merge, logits_topk, logprob.
 *
 * Two kinds of input for index_topk.  Small whole numbers: every order of summation is exact, ties abound,
 * and choice and scores must be the CPU's, bit for bit, in every mode, with NaN keys too.  Random values: a score lies
 * within its bound of float64's, and no entry is left out that is above a chosen one by more than both their bounds.
 * The bound of a score: g_bound.h's of each head's product, times the head's weight; relu makes no error larger; heads'
 * errors are independent, and the weights' signs random, so their squares add; and that of a float32 sum over heads.
 *
 * Beside that, measured: in float32 the choice is the CPU's, else all but 1 % of its places.
 *
 * Every kernel that can do a geometry runs its cases.  Byte for byte the same must be: both kernels of the choice; and
 * scores in e4m3 and those in bf16 by the same warpgroup products, where a row has one scale, so that all sums of
 * products are exact in both, and everything else is scaled by powers of two and added in the same order.
 */
#include "g_kernels.h"

#include "g_bound.h"

/* opt: k, pos0, row_first, row_count, scores asked for.  A row is k entries, then k scores (0 beside -1). */
static void topk(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t k = r->opt[0], heads = r->model.index_heads, each = heads * r->model.index_dim;
    float *rows = lf_alloc((size_t)(m * k) * 4 + 4), *scores = lf_alloc((size_t)(m * k) * 4 + 4);
    lf_topk t = { .sel = g_new(r, d, (size_t)(m * k) * 4), .score = r->opt[4] ? g_new(r, d, (size_t)(m * k) * 4) : NULL,
                  .q = g_act(r, d, (const float *)r->in[0] + first * each, m * each),
                  .w = g_put(r, d, (const float *)r->in[1] + first * heads, (size_t)(m * heads) * 4), .queries = m,
                  .pos0 = r->opt[1] + first, .keys = g_act(r, d, r->in[2], r->opt[3] * r->model.index_dim),
                  .row_first = r->opt[2], .row_count = r->opt[3], .k = (int)k };

    d->ops->index_topk(d, &t);
    g_get_ints(d, rows, t.sel, m * k);
    if (t.score)
        g_get(d, scores, t.score, (size_t)(m * k) * 4);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < k; j++) {
            out[i * 2 * k + j] = rows[i * k + j];
            out[i * 2 * k + k + j] = t.score && rows[i * k + j] >= 0 ? scores[i * k + j] : 0;
        }
    free(rows);
    free(scores);
}

/* opt as above, but [5] parts of the rows: chosen in each, then merged.  A row is k entries. */
static void merged(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t k = r->opt[0], parts = r->opt[5], list = m * k, heads = r->model.index_heads, di = r->model.index_dim;
    int32_t *cand = g_new(r, d, (size_t)(parts * list) * 4), *sel = g_new(r, d, (size_t)list * 4);
    float *score = g_new(r, d, (size_t)(parts * list) * 4);
    lf_act *keys = g_act(r, d, r->in[2], r->opt[3] * di);
    lf_topk t = { .q = g_act(r, d, (const float *)r->in[0] + first * heads * di, m * heads * di),
                  .w = g_put(r, d, (const float *)r->in[1] + first * heads, (size_t)(m * heads) * 4), .queries = m,
                  .pos0 = r->opt[1] + first, .k = (int)k };

    for (int64_t p = 0; p < parts; p++) {
        int64_t from = r->opt[3] * p / parts;
        t.sel = cand + p * list;
        t.score = score + p * list;
        t.keys = lf_act_at(d, keys, from * di);
        t.row_first = r->opt[2] + from;
        t.row_count = r->opt[3] * (p + 1) / parts - from;
        d->ops->index_topk(d, &t);
    }
    d->ops->topk_merge(d, sel, cand, score, (int)parts, m, (int)k);
    g_get_ints(d, out, sel, list);
}

static gb_sum score_of(const float *q, const float *w, const float *key, int64_t heads, int64_t width, gb_way way)
{
    double value = 0, squares = 0, lost = 0;

    for (int64_t h = 0; h < heads; h++) {
        gb_sum dot = gb_dot(q + h * width, key, width, way);
        double t = w[h] * fmax(dot.value, 0);
        value += t;
        squares += t * t;
        lost += w[h] * dot.bound * (w[h] * dot.bound);
    }
    return (gb_sum){ value, sqrt(lost) + gb_lost(GB_FLOAT32, heads, squares, value) };
}

/* One query's choice: the largest share of its bound that a score is off by; NaN if the choice is wrong, does not
 * ascend, or is too short. */
static double beyond(const g_run *r, const float *got, int64_t query, gb_way way)
{
    int64_t k = r->opt[0], first = r->opt[2], width = r->model.index_dim, heads = r->model.index_heads;
    int64_t seen = lf_min(lf_max((r->opt[1] + query + 1) / 4 - first, 0), r->opt[3]), n = 0;
    double worst = 0, least = INFINITY, most = -INFINITY;  /* of a chosen one at most; of one left out at least */

    for (int64_t c = 0; c < seen; c++) {
        gb_sum s = score_of((const float *)r->in[0] + query * heads * width, (const float *)r->in[1] + query * heads,
                            (const float *)r->in[2] + c * width, heads, width, way);
        if (n < k && got[n] == (float)(first + c)) {
            worst = fmax(worst, gb_share(got[k + n++], s, 0));
            least = fmin(least, s.value + s.bound);
        } else
            most = fmax(most, s.value - s.bound);
    }
    for (int64_t j = n; j < k; j++)
        n += got[j] != -1;
    return n == lf_min(k, seen) && most <= least ? worst : NAN;
}

/* Random values: scores and choice by their bounds; and the choice beside the CPU's. */
static void judge_choice(const g_run *r, const float *got, const float *want, int64_t rows, gb_way way)
{
    int64_t k = r->opt[0], wrong = 0, other = 0;
    double worst = 0;

#pragma omp parallel for schedule(dynamic) reduction(max : worst) reduction(+ : wrong)
    for (int64_t i = 0; i < rows; i++) {
        double share = beyond(r, got + i * 2 * k, i, way);
        wrong += isnan(share);
        worst = share > worst ? share : worst;
    }
    for (int64_t i = 0; i < rows * k; i++)
        other += got[i / k * 2 * k + i % k] != want[i / k * 2 * k + i % k];
    TAP_CHECK(wrong == 0, "index_topk, %s, %s, random: nothing left out is above a chosen one by both their bounds",
              r->geometry, r->mode);
    gb_report(worst);
    TAP_CHECK(r->act == 4 ? other == 0 : (double)other <= 0.01 * (double)(rows * k), "  and %lld of %lld places differ",
              (long long)other, (long long)(rows * k));
}

/* Rows of `width` as index_query and row_unpack leave them in released numerics: e2m1 with a power of two per 32;
 * but each `odd`th is not. */
static float *fp4_rows(g_run *r, int64_t rows, int64_t width, int64_t odd)
{
    static const float value[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    float *x = g_values(r, rows * width, 1);

    for (int64_t i = 0; i < rows * width; i += 32) {
        float unit = ldexpf(0.25f, (int)g_below(r, 4));    /* groups up to 8 apart */
        for (int64_t j = i; j < i + 32 && i / width % odd != odd - 1; j++)
            x[j] = (g_below(r, 2) ? unit : -unit) * value[g_below(r, 8)];
    }
    return x;
}

static void random_choice(g_run *r, int64_t rows, int fp4)
{
    int64_t k = r->opt[0], count = r->opt[3], di = r->model.index_dim, heads = r->model.index_heads;
    float *got = lf_alloc((size_t)(rows * 2 * k) * 4), *want = lf_alloc((size_t)(rows * 2 * k) * 4);
    int e4m3 = r->numerics == LF_RELEASED && r->model.index_heads == 64 && r->model.index_dim == 128 &&
               lf_kernel_of(r->gpu->kernels, LF_CHOICE_INDEX, 15) == LF_INDEX_FP8;

    r->in[0] = fp4 ? fp4_rows(r, rows * heads, di, 300) : g_values(r, rows * heads * di, 1);
    r->in[1] = g_floats(r, rows * heads, 0.1f);
    r->in[2] = fp4 ? fp4_rows(r, count, di, 400) : g_values(r, count * di, 1);
    topk(r, g_oracle(r), 0, rows, want);
    topk(r, r->gpu, 0, rows, got);
    g_release(r);
    judge_choice(r, got, want, rows, r->act == 4 ? GB_FLOAT32 : e4m3 ? GB_FP8 : GB_BF16);
    g_invariant(r, "index_topk, random", topk, rows, 2 * k, got);
    free(got);
    free(want);
}

static void whole_numbers(g_run *r, int64_t rows, int nan)
{
    int64_t count = r->opt[3], di = r->model.index_dim, heads = r->model.index_heads, k = r->opt[0];
    float *keys = g_whole(r, count * di, 1, 1);

    r->in[0] = g_whole(r, rows * heads * di, 1, 1);
    r->in[1] = g_whole(r, rows * heads, 2, 0.25f);
    for (int64_t c = 1; nan && c < count; c += 3)
        keys[c * di + c % di] = NAN;
    r->in[2] = keys;
    g_check(r, nan ? "index_topk, whole numbers and NaN" : "index_topk, whole numbers", topk, rows, 2 * k,
            (g_tol){ 0, 0, 0, 0 });
    r->opt[4] = 0;
    g_check(r, "index_topk, without scores", topk, rows, 2 * k, (g_tol){ 0, 0, 0, 0 });
    r->opt[4] = 1;
    r->opt[5] = 3;
    g_check(r, "topk_merge of 3 parts", merged, rows, k, (g_tol){ 0, 0, 0, 0 });
    r->opt[5] = 1;
    g_check(r, "topk_merge of 1 part", merged, rows, k, (g_tol){ 0, 0, 0, 0 });
}

static void choices(g_run *r)
{
    /* position of the first query, first entry, entries: from the first token on; deep in a prompt; a later part;
     * none */
    static const int64_t cases[4][3] = { { 0, 0, 64 }, { 4000, 0, 1063 }, { 4000, 300, 500 }, { 40, 300, 0 } };
    int64_t k = r->model.index_topk;

    r->quantises = 0;                      /* the values are given: nothing is quantised here */
    for (int i = g_small(); i < (g_small() ? 2 : 4); i++)
        for (int more = 0; more < 2; more++) {
            memcpy(r->opt, (int64_t[]){ more ? k + 3 : k, cases[i][0], cases[i][1], cases[i][2], 1, 1 }, 48);
            if (cases[i][2] && !more)
                random_choice(r, r->rows, 0);
            if (cases[i][2] && more)
                random_choice(r, r->rows, 1);
            whole_numbers(r, more ? lf_min(r->rows, 33) : r->rows, more);
            g_forget(r);
        }
}

/* More entries than the GPU keeps at a time; scores that rise, with ties, are its worst case.  Up to 2,048 are
 * chosen in one way, more in another. */
static void many_entries(g_run *r)
{
    static const int64_t ks[] = { 1, 600, 2048, 2049 };
    int64_t count = g_small() ? 5003 : 20011, rows = g_small() ? 2 : 9;
    int64_t di = r->model.index_dim, heads = r->model.index_heads;

    for (size_t i = (size_t)g_small(); i < sizeof ks / sizeof *ks; i += g_small() ? 2 : 1) {
        memcpy(r->opt, (int64_t[]){ ks[i], 4 * count - 20, 0, count, 1, 1 }, 48);
        if (i == 1)
            random_choice(r, rows, 0);
        whole_numbers(r, rows, i == 2);
        g_forget(r);
        float *q = g_whole(r, rows * heads * di, 0, 1), *w = g_whole(r, rows * heads, 0, 1);
        float *keys = g_whole(r, count * di, 0, 1);
        for (int64_t h = 0; h < rows * heads; h++) {
            q[h * di] = 1;
            w[h] = 0.5f;
        }
        for (int64_t c = 0; c < count; c++)
            keys[c * di] = lf_round_bf16((float)c);
        r->in[0] = q;
        r->in[1] = w;
        r->in[2] = keys;
        g_check(r, "index_topk, rising scores", topk, rows, 2 * ks[i], (g_tol){ 0, 0, 0, 0 });
        g_forget(r);
    }
}

/* opt: vocab, k.  A row is k ids, k values, and the log-probability. */
static void logits(g_run *r, lf_dev *d, int64_t first, int64_t m, float *out)
{
    int64_t v = r->opt[0], k = r->opt[1], width = 2 * k + 1;
    float *x = g_put(r, d, (const float *)r->in[0] + first * v, (size_t)(m * v) * 4);
    float *h = lf_alloc((size_t)(m * width) * 4 + 4);
    int32_t *ids = g_new(r, d, (size_t)(m * k) * 4);
    float *values = g_new(r, d, (size_t)(m * k) * 4), *p = g_new(r, d, (size_t)m * 4);

    d->ops->logits_topk(d, ids, values, x, m, v, (int)k);
    d->ops->logprob(d, p, x, g_put(r, d, (const uint32_t *)r->in[1] + first, (size_t)m * 4), m, v);
    g_get_ints(d, h, ids, m * k);
    g_get(d, h + m * k, values, (size_t)(m * k) * 4);
    g_get(d, h + 2 * m * k, p, (size_t)m * 4);
    for (int64_t i = 0; i < m; i++) {
        memcpy(out + i * width, h + i * k, (size_t)k * 4);
        memcpy(out + i * width + k, h + m * k + i * k, (size_t)k * 4);
        out[i * width + 2 * k] = h[2 * m * k + i];
    }
    free(h);
}

/* Ids and values must be the CPU's; the log-probability, a sum in double of values of up to 20, to 2e-5. */
static void tops(g_run *r)
{
    int64_t v = r->model.vocab, ks[3] = { 1, lf_min(v, 20), lf_min(v, 5000) }, rows = v > 1000 ? 17 : 65;
    uint32_t *next = g_keep(r, (size_t)rows * 4);
    float *x = g_floats(r, rows * v, 4);

    for (int64_t i = 0; i < rows; i++) {
        next[i] = (uint32_t)g_below(r, v);
        for (int64_t j = 0; i % 3 == 0 && j < v; j++)          /* ties, both zeros, infinities */
            x[i * v + j] = j % 11 == 5 ? -0.0f : j % 13 == 7 ? -INFINITY : floorf(x[i * v + j]);
        if (i % 3 == 0)
            x[i * v + next[i]] = 1;
    }
    r->in[0] = x;
    r->in[1] = next;
    for (int i = 0; i < 3; i++) {
        memcpy(r->opt, (int64_t[]){ v, ks[i] }, 16);
        int64_t width = 2 * ks[i] + 1, wrong = 0;
        float *got = lf_alloc((size_t)(rows * width) * 4), *want = lf_alloc((size_t)(rows * width) * 4);
        int far = 0;
        logits(r, r->cpu[0], 0, rows, want);
        logits(r, r->gpu, 0, rows, got);
        g_release(r);
        for (int64_t t = 0; t < rows; t++) {
            wrong += memcmp(got + t * width, want + t * width, (size_t)(2 * ks[i]) * 4) != 0;
            float a = got[(t + 1) * width - 1], b = want[(t + 1) * width - 1];
            TAP_QUIET(far, fabsf(a - b) <= 2e-5f, "logprob of row %d: got %.9g, expected %.9g", (int)t, (double)a,
                      (double)b);
        }
        TAP_CHECK(wrong == 0, "logits_topk, %s, %d of %d: ids and values", r->geometry, (int)ks[i], (int)v);
        TAP_CHECK(far == 0, "  and logprob");
        g_invariant(r, "logits_topk and logprob", logits, rows, width, got);
        free(got);
        free(want);
    }
    g_forget(r);
}

/* Rows of e2m1 values times one power of two a row. */
static float *one_scale(g_run *r, int64_t rows, int64_t width)
{
    static const float value[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    float *x = g_keep(r, (size_t)(rows * width) * 4), unit = 1;

    for (int64_t i = 0; i < rows * width; i++) {
        if (i % width == 0)
            unit = ldexpf(1, (int)g_below(r, 9) - 4);
        x[i] = (g_below(r, 2) ? unit : -unit) * value[g_below(r, 8)];
    }
    return x;
}

/* The bytes of two kernels of an operation, of which neither may be left out. */
static void alike(g_run *r, lf_choice op, int one, int two)
{
    int64_t width = 2 * r->opt[0], n = r->rows * width, some = 0;
    float *a = lf_alloc((size_t)n * 4), *b = lf_alloc((size_t)n * 4);

    g_ask(r, op, one);
    topk(r, r->gpu, 0, r->rows, a);
    g_ask(r, op, two);
    topk(r, r->gpu, 0, r->rows, b);
    g_ask(r, op, -1);
    g_release(r);
    for (int64_t i = 0; i < n; i++)
        some += a[i] > 0;
    TAP_CHECK(some > n / 4 && memcmp(a, b, (size_t)n * 4) == 0, "index_topk, %s, %s: %s is %s, byte for byte",
              r->geometry, r->mode, lf_kernel_name(op, one), lf_kernel_name(op, two));
    free(a);
    free(b);
}

static void same_bytes(g_run *r, int fp8)
{
    int64_t count = 1063, di = r->model.index_dim, heads = r->model.index_heads, k = r->model.index_topk;

    for (int i = 0; i < 3; i++) {
        memcpy(r->opt, (int64_t[]){ i == 2 ? 900 : k + i, 4000, 0, count, 1, 1 }, 48);
        r->in[0] = one_scale(r, r->rows * heads, di);
        r->in[1] = g_floats(r, r->rows * heads, 0.1f);
        r->in[2] = one_scale(r, count, di);
        alike(r, LF_CHOICE_SELECT, LF_SELECT_GENERAL, LF_SELECT_STREAM);
        if (fp8)
            alike(r, LF_CHOICE_INDEX, LF_INDEX_WGMMA, LF_INDEX_FP8);
        g_forget(r);
    }
}

static void kernels(g_run *r, int select)
{
    int bf16 = r->act == 2, flash = r->model.index_heads == 64, released = r->numerics == LF_RELEASED;
    unsigned fits = 1u << LF_INDEX_GENERAL, choice = 1u << LF_SELECT_GENERAL;

    if (bf16)                                                  /* all three geometries have widths that it takes */
        fits |= 1u << LF_INDEX_MMA;
    if (bf16 && flash)
        fits |= 1u << LF_INDEX_WGMMA;
    if (bf16 && flash && released)
        fits |= 1u << LF_INDEX_FP8;
    g_others(r, LF_CHOICE_INDEX, fits, choices);
    if (select)
        g_others(r, LF_CHOICE_SELECT, choice | 1u << LF_SELECT_STREAM,
                 r->model.index_dim == 32 ? many_entries : choices);
    same_bytes(r, bf16 && flash && released);
    memcpy(r->opt, (int64_t[]){ 2049, 12000, 0, 3000, 1, 1 }, 48);
    r->in[0] = g_whole(r, 3 * r->model.index_heads * r->model.index_dim, 1, 1);
    r->in[1] = g_whole(r, 3 * r->model.index_heads, 2, 0.25f);
    r->in[2] = g_whole(r, 3000 * r->model.index_dim, 1, 1);
    g_refused(r, LF_CHOICE_INDEX, fits, "index_topk", topk, 2 * 2049);
    g_refused(r, LF_CHOICE_SELECT, choice, "the choice of 2049 entries", topk, 2 * 2049);
    g_forget(r);
}

/* Whole numbers, so that every sum is exact; of the rows that e4m3 cannot give, none, or these: NaN among the keys of
 * the second 256, and in one query a value of one bit too many, 1 + 2^-4. */
static void released_scores(g_run *r, int64_t pos0, int64_t count, int odd)
{
    int64_t di = r->model.index_dim, heads = r->model.index_heads, k = r->model.index_topk;
    float *q = g_whole(r, r->rows * heads * di, 1, 1), *keys = g_whole(r, count * di, 1, 1);

    for (int64_t c = 256; odd && c < 512; c += 3)
        keys[c * di + c % di] = NAN;
    for (int64_t h = 0; odd && h < heads; h += 5)
        q[(4 * heads + h) * di + h] = 1.0625f;
    memcpy(r->opt, (int64_t[]){ k, pos0, 0, count, 1, 1 }, 48);
    r->in[0] = q;
    r->in[1] = g_whole(r, r->rows * heads, 2, 0.25f);
    r->in[2] = keys;
    g_check(r, odd ? "index_topk, rows that e4m3 cannot give" : "index_topk, many tiles", topk, r->rows, 2 * k,
            (g_tol){ 0, 0, 0, 0 });
    g_forget(r);
}

/* Nine queries: two runs of four and a single one, more than the ring has places.  Keys in three tiles of 256, of the
 * last of which some queries see none; then in more tiles than an H200 has multiprocessors (132). */
static void released_kernels(g_run *r)
{
    for (int k = LF_INDEX_WGMMA; k <= LF_INDEX_FP8; k++) {
        g_ask(r, LF_CHOICE_INDEX, k);
        released_scores(r, 4 * 512 - 5, 600, 1);
        released_scores(r, 4 * 512 - 5, 600, 0);
        released_scores(r, 4 * 134 * 256, 134 * 256, 1);
    }
    g_ask(r, LF_CHOICE_INDEX, -1);
}

/* Every value is judged by itself here, so that a few rows do under compute-sanitizer; and nano has the same kernels in
 * both modes of bf16, those of the choice and of logits in all three. */
static void all(g_run *r)
{
    int once = !g_small() || r->numerics == LF_RELEASED;

    if (r->narrow) {
        released_kernels(r);
        return;
    }
    if (r->act == 2 && !once)
        return;
    r->rows = g_small() ? 33 : r->rows;
    choices(r);
    kernels(r, once);
    if (r->model.index_dim == 32 && once)
        many_entries(r);
    if (once)
        tops(r);
}

int main(void)
{
    return g_main("choices on the GPU", all);
}
