/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on single rows: norm, query, rotate, window, index_query, row_pack, row_unpack, add_ape, scale,
 * copies.
 */
#include "ops.h"

static void norm(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t n = ops_opt(r, 0);
    lf_act *x = ops_gather(r, "x", 1, rows, m);

    r->dev->ops->norm(r->dev, x, m, n, ops_put_floats(r, "w"));
    ops_get_act(r, (float *)(void *)out, x, m * n);
}

static void query(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    lf_rope rope = ops_rope(r);
    lf_act *x = ops_gather(r, "x", 1, rows, m);

    r->dev->ops->query(r->dev, x, m, (int)ops_opt(r, 0), ops_gather_raw(r, "pos", 1, 8, rows, m), &rope);
    ops_get_act(r, (float *)(void *)out, x, m * ops_row(ops_get(r, "x")));
}

static void rotate(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    lf_rope rope = ops_rope(r);
    lf_act *x = ops_gather(r, "x", 1, rows, m);

    r->dev->ops->rotate(r->dev, x, m, (int)ops_opt(r, 0), ops_opt(r, 1), ops_gather_raw(r, "pos", 1, 8, rows,
                                                                                        m), &rope,
                        (int)ops_opt(r, 2));
    ops_get_act(r, (float *)(void *)out, x, m * ops_row(ops_get(r, "x")));
}

/* A few rows go to the places the case names; many go backwards. */
static void window(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t d = r->model.head_dim, n = ops_get(r, "x")->shape[0], space = m <= n ? n + 3 : m;
    int64_t *place = ops_host(r, (size_t)(m + 1) * 8);
    lf_rope rope = ops_rope(r);
    lf_act *dst = ops_new_act(r, space * d);
    float *back = ops_host(r, (size_t)(space * d) * 4);

    for (int64_t i = 0; i < m; i++) {
        memcpy(&place[i], ops_get(r, "dst_row")->data + 8 * i % (8 * n), 8);
        if (m > n)
            place[i] = m - 1 - i;
    }
    r->dev->ops->window(r->dev, dst, ops_put(r, place, (size_t)m * 8), ops_gather(r, "x", 1, rows, m), m,
                        ops_put_floats(r, "w"), ops_gather_raw(r, "pos", 1, 8, rows, m), &rope);
    ops_get_act(r, back, dst, space * d);
    for (int64_t i = 0; i < m; i++)
        memcpy(out + (size_t)(i * d) * 4, back + place[i] * d, (size_t)d * 4);
}

static void index_query(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    lf_rope rope = ops_rope(r);
    lf_act *x = ops_gather(r, "x", 1, rows, m);

    r->dev->ops->index_query(r->dev, x, m, (int)ops_opt(r, 0), r->model.index_dim,
                             ops_gather_raw(r, "pos", 1, 8, rows, m), &rope);
    ops_get_act(r, (float *)(void *)out, x, m * ops_row(ops_get(r, "x")));
}

static void pack(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    size_t bytes = (size_t)ops_get(r, "bytes")->shape[1];
    uint8_t *dst = ops_device(r, (size_t)m * bytes);

    r->dev->ops->row_pack(r->dev, dst, ops_gather(r, "x", 1, rows, m), m, ops_opt(r, 2),
                          (lf_row_fmt)ops_opt(r, 0),
                          (int)ops_opt(r, 1));
    ops_get_raw(r, out, dst, (size_t)m * bytes);
}

static void unpack(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t n = ops_opt(r, 2);
    lf_act *x = ops_new_act(r, m * n);

    r->dev->ops->row_unpack(r->dev, x, ops_gather_raw(r, "bytes", 1, 1, rows, m), m, n,
                            (lf_row_fmt)ops_opt(r, 0));
    ops_get_act(r, (float *)(void *)out, x, m * n);
}

static void judge(ops_run *r, const uint8_t *out, int64_t n)
{
    (void)n;
    ops_compare(r, "y", (const float *)(const void *)out, 1, (ops_tol){ 5e-7, ops_is(r, "query") ? 2 : 1,
        0.005 });
}

/* Through codes: no near-ties among these inputs, so every value is the expected one. */
static void judge_codes(ops_run *r, const uint8_t *out, int64_t n)
{
    (void)n;
    ops_compare(r, "y", (const float *)(const void *)out, 1, (ops_tol){ r->suffix == 'e' ? 5e-7 : 0, 0, 0 });
}

static void judge_bytes(ops_run *r, const uint8_t *out, int64_t n)
{
    const ops_entry *e = ops_get(r, "bytes");
    int64_t bad = 0, first = -1;

    for (int64_t i = 0; i < n * e->shape[1]; i++)
        if (out[i] != e->data[i] && bad++ == 0)
            first = i;
    if (!TAP_CHECK(bad == 0, "row_pack, case %d, format %d, transformed %d: bytes", r->n, (int)ops_opt(r, 0),
                   (int)ops_opt(r, 1)))
        printf("# %d bytes differ, first in row %d at byte %d: got %d, expected %d\n", (int)bad,
               (int)(first / e->shape[1]), (int)(first % e->shape[1]), out[first], e->data[first]);
    TAP_CHECK((size_t)e->shape[1] == lf_row_bytes(&r->model, (lf_row_fmt)ops_opt(r, 0), ops_opt(r, 2)),
              "  of the size kvlayout says");
}

static void judge_unpacked(ops_run *r, const uint8_t *out, int64_t n)
{
    const float *want = ops_floats(r, "x"), *got = (const float *)(const void *)out;
    int bad = 0;

    for (int64_t i = 0; i < n * ops_opt(r, 2); i++)
        TAP_QUIET(bad, got[i] == want[i], "value %d: got %.9g, expected %.9g", (int)i, (double)got[i],
                  (double)want[i]);
    TAP_CHECK(bad == 0, "row_unpack, case %d, format %d: exact", r->n, (int)ops_opt(r, 0));
}

static void add_ape(ops_run *r)
{
    const ops_entry *e = ops_get(r, "g");
    float *g = ops_put_floats(r, "g"), back[512], *want = ops_floats(r, "y");

    r->dev->ops->add_ape(r->dev, g, e->shape[0], e->shape[1], ops_put_floats(r, "ape"), (int)ops_opt(r, 0));
    ops_get_raw(r, back, g, (size_t)e->count * 4);
    TAP_CHECK(memcmp(back, want, (size_t)e->count * 4) == 0, "add_ape: row t takes ape[t mod ratio]");
}

static void memory(ops_run *r)
{
    const lf_dev_ops *o = r->dev->ops;
    uint8_t host[64], back[64], want[64];
    size_t taken = r->dev->taken;
    uint8_t *a = ops_device(r, 64), *b = ops_device(r, 64);
    float f[3] = { 1.5f, -2.0f, 3.0e38f }, g[3];

    for (int i = 0; i < 64; i++)
        host[i] = (uint8_t)i;
    TAP_CHECK(r->dev->taken >= taken + 128 && r->dev->peak >= r->dev->taken, "take counts what it gives");
    o->put(r->dev, a, host, 64);
    o->fill(r->dev, b, 0xee, 64);
    o->copy_rows(r->dev, b, 16, a + 1, 8, 5, 3);
    memset(want, 0xee, 64);
    for (int i = 0; i < 3; i++)
        memcpy(want + 16 * i, host + 1 + 8 * i, 5);
    ops_get_raw(r, back, b, 64);
    TAP_CHECK(memcmp(back, want, 64) == 0, "copy_rows moves row_bytes of every row and nothing between");
    o->copy(r->dev, b, a, 64);
    o->copy_rows(r->dev, a, 16, b, 8, 5, 0);
    ops_get_raw(r, back, b, 64);
    TAP_CHECK(memcmp(back, host, 64) == 0, "copy moves bytes, copy_rows of no rows none");
    static const int32_t idx[3] = { 2, 0, 2 };
    o->gather(r->dev, b, a, ops_put(r, idx, sizeof idx), 3, 12);
    ops_get_raw(r, back, b, 36);
    for (int i = 0; i < 3; i++)
        memcpy(want + 12 * i, host + 12 * idx[i], 12);
    TAP_CHECK(memcmp(back, want, 36) == 0, "gather: rows by index");
    float *x = ops_put(r, f, sizeof f);
    o->scale(r->dev, x, 3, 0.5f);
    ops_get_raw(r, g, x, sizeof g);
    TAP_CHECK(g[0] == 0.75f && g[1] == -1.0f && g[2] == 1.5e38f, "scale");
    o->add(r->dev, x, ops_put(r, f, sizeof f), 2);
    ops_get_raw(r, g, x, sizeof g);
    TAP_CHECK(g[0] == 2.25f && g[1] == -3.0f && g[2] == 1.5e38f, "add, of two of three");
    float h[3] = { 1.00390625f, 1.01171875f, -3.0e-3f }, rounded[3];
    lf_act *y = ops_new_act(r, 3);
    o->round(r->dev, y, ops_put(r, h, sizeof h), 3);
    ops_get_act(r, rounded, y, 3);
    if (r->suffix == 'e')
        TAP_CHECK(memcmp(rounded, h, sizeof h) == 0, "round in exact numerics changes nothing");
    else
        TAP_CHECK(rounded[0] == 1.0f && rounded[1] == 1.015625f && rounded[2] == lf_round_bf16(h[2]),
                  "round in released numerics: to bf16, ties to even");
    ops_clear(r);
    TAP_CHECK(r->dev->taken == taken, "give counts back");
}

static void one(const ops_file *f, int i)
{
    ops_run r = { .file = f, .n = i, .suffix = 'e' };
    static const struct {
        const char *op;
        ops_fn fn;
        void (*judge)(ops_run *r, const uint8_t *out, int64_t n);
    } table[] = {
        { "norm", norm, judge }, { "query", query, judge }, { "rotate", rotate, judge }, { "window", window,
            judge_codes },
        { "index_query", index_query, judge_codes },
    };

    ops_model(&r);
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++)
        if (ops_is(&r, table[k].op))
            ops_check(f, i, table[k].fn, ops_get(&r, "x")->shape[0], (size_t)ops_row(ops_get(&r, "x")) * 4, 0,
                      table[k].judge);
    if (ops_is(&r, "row_pack"))
        ops_check(f, i, pack, ops_get(&r, "x")->shape[0], (size_t)ops_get(&r, "bytes")->shape[1], 0,
                  judge_bytes);
    if (ops_is(&r, "row_unpack"))
        ops_check(f, i, unpack, ops_get(&r, "x")->shape[0], (size_t)ops_opt(&r, 2) * 4, 0, judge_unpacked);
    for (int k = 0; k < 2 && ops_is(&r, "add_ape"); k++) {
        r.suffix = "er"[k];
        ops_open(&r, 2);
        add_ape(&r);
        ops_clear(&r);
        memory(&r);
        ops_close(&r);
    }
    ops_clear(&r);
}

int main(void)
{
    ops_file f;

    ops_load(&f, "rows.bin");
    for (int i = 0; i < f.cases; i++)
        one(&f, i);
    ops_unload(&f);
    return tap_done();
}
