/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel of an operation that has several: decided here, told here with -v, and nowhere else.
 */
#include "cuda.cuh"

extern "C" {
#include "log.h"
}

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What -v says once. */
static void tell(lf_cuda *c, lf_choice op, int kernel, const char *shape)
{
    lf_cuda_line line;

    snprintf(line.text, sizeof line.text, "%s: %s (%s)", lf_choice_name(op), lf_kernel_name(op, kernel), shape);
    for (int i = 0; i < c->tolds; i++)
        if (strcmp(c->told[i].text, line.text) == 0)
            return;
    c->told = (lf_cuda_line *)lf_realloc(c->told, sizeof *c->told * (size_t)(c->tolds + 1));
    c->told[c->tolds++] = line;
    lf_verbose("GPU %d: %s", c->device, line.text);
}

int lf_cuda_choose(lf_cuda *c, lf_choice op, unsigned fits, const char *fmt, ...)
{
    int kernel = lf_kernel_of(c->dev.kernels, op, fits);
    char shape[160];
    lf_err err;
    va_list ap;

    if (kernel >= 0 && lf_log_level() < LF_VERBOSE)
        return kernel;
    va_start(ap, fmt);
    vsnprintf(shape, sizeof shape, fmt, ap);
    va_end(ap);
    if (kernel >= 0) {
        tell(c, op, kernel, shape);
    } else {
        lf_kernel_refuse(c->dev.kernels, op, shape, &err);
        lf_cuda_fail(c, "%s", err.text);
    }
    return kernel;
}

void lf_cuda_told_free(lf_cuda *c)
{
    free(c->told);
    c->told = NULL;
    c->tolds = 0;
}
