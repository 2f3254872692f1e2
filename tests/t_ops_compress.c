/* SPDX-License-Identifier: Apache-2.0
 *
 * compress, ratio 4 and 128, with and without the rows before.
 */
#include "ops.h"

/* Blocks rows[0] .. rows[0]+m-1: the block before the first is given whenever there is one. */
static void compress(ops_run *r, const int64_t *rows, int64_t m, uint8_t *out)
{
    int64_t ratio = ops_opt(r, 0), width = ops_opt(r, 1), ld = ops_opt(r, 5), b = m ? rows[0] : 0;
    lf_act *y = ops_new_act(r, m * width);
    const float *u = ops_put_floats(r, "u"), *g = ops_put_floats(r, "g");
    lf_compress c = { .out = y, .u = u + b * ratio * ld, .g = g + b * ratio * ld, .blocks = m,
        .block0 = ops_opt(r, 3) + b,
        .ratio = (int)ratio, .width = width, .prev_ld = ld,
        .norm = ops_put_floats(r, "norm"), .rope = ops_rope(r) };

    if (ratio == 4 && b > 0) {
        c.prev_u = u + (b - 1) * 4 * ld;
        c.prev_g = g + (b - 1) * 4 * ld;
    } else if (ops_opt(r, 4)) {
        c.prev_u = ops_put_floats(r, "prev_u");
        c.prev_g = ops_put_floats(r, "prev_g");
    }
    r->dev->ops->compress(r->dev, &c);
    ops_get_act(r, (float *)(void *)out, y, m * width);
}

static void judge(ops_run *r, const uint8_t *out, int64_t m)
{
    (void)m;
    ops_compare(r, "y", (const float *)(const void *)out, 1, (ops_tol){ 1e-6, 3, 0.02 });
}

int main(void)
{
    ops_file f;

    ops_load(&f, "compress.bin");
    for (int i = 0; i < f.cases; i++) {
        ops_run r = { .file = &f, .n = i };
        ops_model(&r);
        ops_check(&f, i, compress, ops_opt(&r, 2), (size_t)ops_opt(&r, 1) * 4, 1, judge);
        ops_clear(&r);
    }
    ops_unload(&f);
    return tap_done();
}
