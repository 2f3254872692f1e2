/* SPDX-License-Identifier: Apache-2.0
 *
 * attention: window, compressed rows by choice or all, sink, parts without keys, log-sum-exp; merge of parts.
 */
#include "ops.h"

/* The same call with lse gives a part to be merged: the same values, perhaps not rounded yet. */
static void check_part(ops_run *r, const float *whole, const lf_act *y, int64_t n)
{
    float *part = ops_host(r, (size_t)n * 4);
    int bad = 0;

    ops_get_act(r, part, y, n);
    for (int64_t i = 0; i < n; i++)
        bad += whole[i] != (r->suffix == 'r' ? lf_round_bf16(part[i]) : part[i]);
    if (bad)
        TAP_CHECK(0, "attention, case %d: the output depends on whether lse is asked for", r->n);
}

/* opt: pos0, win_pos0, win_rows, row_first, ratio, sink.  A row is out [heads, d], then lse [heads]. */
static void attend(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t H = r->model.heads, d = r->model.head_dim, b = m ? rows[0] : 0, each = (H * d + H) * 4;
    const ops_entry *e;
    lf_act *y = ops_new_act(r, m * H * d);
    float *lse = ops_device(r, (size_t)(m * H) * 4);
    float *hy = ops_host(r, (size_t)(m * H * d) * 4), *hl = ops_host(r, (size_t)(m * H) * 4);
    lf_attn a = { .out = y, .q = ops_put_act(r, ops_floats(r, "q") + b * H * d, m * H * d), .queries = m,
        .pos0 = ops_opt(r, 0) + b, .heads = (int)H, .win_pos0 = ops_opt(r, 1), .win_rows = ops_opt(r, 2),
        .row_first = ops_opt(r, 3), .ratio = (int)ops_opt(r, 4) };

    if ((e = ops_find(r, "win")) != NULL)
        a.win = ops_put_act(r, ops_floats(r, "win"), e->count);
    if ((e = ops_find(r, "rows")) != NULL) {
        a.rows = ops_put_act(r, ops_floats(r, "rows"), e->count);
        a.row_count = e->shape[0];
    }
    if ((e = ops_find(r, "sel")) != NULL) {
        a.sel_ld = e->shape[1];
        a.sel = ops_put(r, e->data + b * a.sel_ld * 4, (size_t)(m * a.sel_ld) * 4);
    }
    if (ops_opt(r, 5))
        a.sink = ops_put_floats(r, "sink");
    r->dev->ops->attention(r->dev, &a);
    ops_get_act(r, hy, y, m * H * d);
    a.lse = lse;
    r->dev->ops->attention(r->dev, &a);
    check_part(r, hy, y, m * H * d);
    ops_get_raw(r, hl, lse, (size_t)(m * H) * 4);
    for (int64_t i = 0; i < m; i++) {
        memcpy(out + i * each, hy + i * H * d, (size_t)(H * d) * 4);
        memcpy(out + i * each + H * d * 4, hl + i * H, (size_t)H * 4);
    }
}

static void judge_attend(ops_run *r, const uint8_t *out, int64_t m)
{
    int64_t H = r->model.heads, d = r->model.head_dim, each = (H * d + H) * 4;
    float *y = ops_host(r, (size_t)(m * H * d) * 4), *lse = ops_host(r, (size_t)(m * H) * 4);

    for (int64_t i = 0; i < m; i++) {
        memcpy(y + i * H * d, out + i * each, (size_t)(H * d) * 4);
        memcpy(lse + i * H, out + i * each + H * d * 4, (size_t)H * 4);
    }
    ops_compare(r, "out", y, 1, (ops_tol){ 2e-6, 1, 0.005 });
    ops_compare(r, "lse", lse, 0, (ops_tol){ 1e-6, 0, 0 });
}

/* opt: parts, m, heads, sink.  Rows are tokens, all heads of all parts together. */
static void merge(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t parts = ops_opt(r, 0), all = ops_opt(r, 1), H = ops_opt(r, 2), d = r->model.head_dim;
    const float *x = ops_floats(r, "x"), *lse = ops_floats(r, "lse");
    float *px = ops_host(r, (size_t)(parts * m * H * d) * 4), *pl = ops_host(r, (size_t)(parts * m * H) * 4);
    lf_act *y = ops_new_act(r, m * H * d);

    for (int64_t p = 0; p < parts; p++)
        for (int64_t i = 0; i < m; i++) {
            memcpy(px + (p * m + i) * H * d, x + (p * all + rows[i]) * H * d, (size_t)(H * d) * 4);
            memcpy(pl + (p * m + i) * H, lse + (p * all + rows[i]) * H, (size_t)H * 4);
        }
    r->dev->ops->merge(r->dev, y, ops_put_act(r, px, parts * m * H * d), ops_put(r, pl,
                                                                                 (size_t)(parts * m * H) * 4),
                       (int)parts, m, (int)H, ops_opt(r, 3) ? ops_put_floats(r, "sink") : NULL);
    ops_get_act(r, (float *)(void *)out, y, m * H * d);
}

static void judge_merge(ops_run *r, const uint8_t *out, int64_t m)
{
    (void)m;
    ops_compare(r, "y", (const float *)(const void *)out, 1, (ops_tol){ 1e-6, 1, 0.005 });
}

/* The parts of the keys, merged, are the whole: case 4 of the file (ratio 4, choice, sink), cut at entry 12. */
static void halves(const ops_file *f, int n)
{
    ops_run r = { .file = f, .n = n, .suffix = 'e' };
    ops_model(&r);
    ops_open(&r, 2);
    int64_t H = r.model.heads, d = r.model.head_dim, m = ops_get(&r, "q")->shape[0], size = m * H * d;
    const ops_entry *e = ops_get(&r, "rows"), *sel = ops_get(&r, "sel");
    const float *rows = ops_floats(&r, "rows");
    float *got = ops_host(&r, (size_t)size * 4), *part = ops_host(&r, (size_t)size * 12);
    float *lse = ops_host(&r, (size_t)(m * H) * 12);
    lf_act *y = ops_new_act(&r, size);
    float *l = ops_device(&r, (size_t)(m * H) * 4);
    lf_attn a = { .out = y, .q = ops_put_act(&r, ops_floats(&r, "q"), size), .queries = m,
        .pos0 = ops_opt(&r, 0),
        .heads = (int)H, .win_pos0 = ops_opt(&r, 1), .ratio = 4, .sel_ld = sel->shape[1],
        .sel = ops_put(&r, sel->data, (size_t)sel->count * 4), .lse = l };

    for (int p = 0; p < 3; p++) {
        a.win = p == 0 ? ops_put_act(&r, ops_floats(&r, "win"), ops_get(&r, "win")->count) : NULL;
        a.win_rows = p == 0 ? ops_opt(&r, 2) : 0;
        a.row_first = p == 2 ? 12 : 0;
        a.row_count = p == 0 ? 0 : p == 1 ? 12 : e->shape[0] - 12;
        a.rows = p == 0 ? NULL : ops_put_act(&r, rows + a.row_first * d, a.row_count * d);
        r.dev->ops->attention(r.dev, &a);
        ops_get_act(&r, part + p * size, y, size);
        ops_get_raw(&r, lse + p * m * H, l, (size_t)(m * H) * 4);
    }
    r.dev->ops->merge(r.dev, y, ops_put_act(&r, part, 3 * size), ops_put(&r, lse, (size_t)(m * H) * 12), 3,
                      m, (int)H,
                      ops_put_floats(&r, "sink"));
    ops_get_act(&r, got, y, size);
    printf("# window and two parts of the rows, merged with the sink once, against the whole:\n");
    ops_compare(&r, "out", got, 1, (ops_tol){ 2e-6, 1, 0.005 });
    ops_close(&r);
}

int main(void)
{
    ops_file f;

    ops_load(&f, "attention.bin");
    for (int i = 0; i < f.cases; i++) {
        ops_run r = { .file = &f, .n = i };
        ops_model(&r);
        size_t H = (size_t)r.model.heads, d = (size_t)r.model.head_dim;
        if (ops_is(&r, "attention"))
            ops_check(&f, i, attend, ops_get(&r, "q")->shape[0], (H * d + H) * 4, 1, judge_attend);
        else
            ops_check(&f, i, merge, ops_opt(&r, 1), H * d * 4, 0, judge_merge);
        ops_clear(&r);
    }
    halves(&f, 4);
    ops_unload(&f);
    return tap_done();
}
