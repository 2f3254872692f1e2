/* SPDX-License-Identifier: Apache-2.0
 *
 * g_kernels: g_ops with each of an operation's kernels instead of the one that it chooses (dev_cuda_choice.h).  Which
 * kernels can do a case is said by the test, not asked of the program.
 */
#ifndef LF_TEST_G_KERNELS_H
#define LF_TEST_G_KERNELS_H

#include "g_ops.h"

#include "../src/dev_cuda_choice.h"

/* From here on the GPU runs this kernel of an operation, and `mode` says so; -1: its own choice again. */
static inline void g_ask(g_run *r, lf_choice op, int kernel)
{
    lf_err err;

    if (!r->own_mode)
        r->own_mode = r->mode;
    r->mode = r->own_mode;
    r->gpu->kernels = 0;
    if (kernel < 0)
        return;
    snprintf(r->asked, sizeof r->asked, "%s=%s", lf_choice_name(op), lf_kernel_name(op, kernel));
    if (lf_kernels_parse(&r->gpu->kernels, r->asked, &err) != 0)
        g_die(r->asked, err.text);
    snprintf(r->asked, sizeof r->asked, "%s, %s=%s", r->own_mode, lf_choice_name(op), lf_kernel_name(op, kernel));
    r->mode = r->asked;
}

/* Runs `run` with each kernel that can do the geometry and mode at hand (`fits`), but for the last, which is the
 * operation's own choice. */
static inline void g_others(g_run *r, lf_choice op, unsigned fits, void (*run)(g_run *r))
{
    for (int k = 0; fits >> (k + 1); k++)
        if (fits >> k & 1) {
            g_ask(r, op, k);
            run(r);
        }
    g_ask(r, op, -1);
}

/* Each kernel of `op` that is not among `fits` refuses the case at hand, by name, and does nothing. */
static inline void g_refused(g_run *r, lf_choice op, unsigned fits, const char *name, g_fn fn, int64_t width)
{
#ifndef G_OPS_STAND_IN
    float *out = lf_alloc((size_t)(3 * width) * 4 + 4);
    char want[64];
    lf_err err;

    for (int k = 0; lf_kernel_name(op, k); k++) {
        if (fits >> k & 1)
            continue;
        g_ask(r, op, k);
        err.text[0] = 0;
        g_expected = &err;
        fn(r, r->gpu, 0, 3, out);
        g_expected = NULL;
        g_release(r);
        snprintf(want, sizeof want, "%s=%s, which cannot do ", lf_choice_name(op), lf_kernel_name(op, k));
        TAP_CHECK(strstr(err.text, want) && strstr(err.text, "it needs "), "%s, %s, %s: refused: %s", name, r->geometry,
                  r->mode, err.text);
    }
    g_ask(r, op, -1);
    free(out);
#else
    (void)r, (void)op, (void)fits, (void)name, (void)fn, (void)width;
#endif
}

#endif
