/* SPDX-License-Identifier: Apache-2.0 */
#include "dev_cuda_choice.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 4 };                         /* kernels of an operation */

typedef struct kernel {
    const char *name, *needs;
} kernel;

typedef struct operation {
    const char *name;
    kernel kernel[MOST];
} operation;

static const operation table[LF_CHOICES] = {
    [LF_CHOICE_ATTENTION] = { "attention", {
        [LF_ATTENTION_GENERAL] = { "general", "heads of up to 512 channels" },
        [LF_ATTENTION_WGMMA] = { "wgmma", "bf16 activations and heads of 512 channels" } } },
    [LF_CHOICE_INDEX] = { "index", {
        [LF_INDEX_GENERAL] = { "general", "a head" },
        [LF_INDEX_MMA] = { "mma", "bf16 activations and a multiple of 8 heads, up to 256, of 32, 64 or 128 channels" },
        [LF_INDEX_WGMMA] = { "wgmma", "bf16 activations and 64 heads of 128 channels" },
        [LF_INDEX_FP8] = { "fp8", "released numerics and 64 heads of 128 channels" } } },
    [LF_CHOICE_SELECT] = { "select", {
        [LF_SELECT_GENERAL] = { "general", "a score" },
        [LF_SELECT_STREAM] = { "stream", "2048 entries to choose or fewer" } } },
    [LF_CHOICE_GEMM] = { "gemm", {
        [LF_GEMM_PLAIN] = { "plain", "a sum over all columns at once: no parts in float32" },
        [LF_GEMM_PARTS] = { "parts", "float32 activations and columns in 2 equal parts or more" },
        [LF_GEMM_FP8] = { "fp8", "released numerics, an input that is quantised, and an e4m3 weight from a 128x128 "
                          "block on, 8 dividing its rows and 16 its columns, 128 of each at least" } } },
    [LF_CHOICE_EXPERTS] = { "experts", {
        [LF_EXPERT_PLAIN] = { "plain", "any weights" },
        [LF_EXPERT_STORED] = { "stored", "released numerics and e4m3 weights that gemm=fp8 can do" },
        [LF_EXPERT_FOLDED] = { "folded", "released numerics and whole packed e2m1 weights that lose nothing as e4m3, "
                               "128 dividing the rows of w1 and 16 its columns, 128 of these at least" } } },
};

const char *lf_choice_name(lf_choice op)
{
    return table[op].name;
}

const char *lf_kernel_name(lf_choice op, int k)
{
    return k >= 0 && k < MOST ? table[op].kernel[k].name : NULL;
}

/* The kernel asked for, or -1. */
static int asked(uint32_t kernels, lf_choice op)
{
    return (int)(kernels >> 4 * op & 15) - 1;
}

/* "attention: general wgmma; index: ..." */
static char *all_names(void)
{
    char *text = lf_strdup("");

    for (int op = 0; op < LF_CHOICES; op++)
        for (int k = 0; lf_kernel_name(op, k); k++) {
            char *longer = k ? lf_printf("%s %s", text, lf_kernel_name(op, k))
                             : lf_printf("%s%s%s: %s", text, op ? "; " : "", table[op].name, lf_kernel_name(op, k));
            free(text);
            text = longer;
        }
    return text;
}

static int is(const char *name, const char *text, size_t n)
{
    return name && strlen(name) == n && memcmp(name, text, n) == 0;
}

/* One "operation=kernel" of n characters. */
static int parse_one(uint32_t *kernels, const char *text, size_t n)
{
    const char *equals = memchr(text, '=', n);
    size_t left = equals ? (size_t)(equals - text) : n;

    for (int op = 0; equals && op < LF_CHOICES; op++)
        for (int k = 0; is(table[op].name, text, left) && lf_kernel_name(op, k); k++)
            if (is(lf_kernel_name(op, k), equals + 1, n - left - 1)) {
                *kernels = (*kernels & ~(15u << 4 * op)) | (uint32_t)(k + 1) << 4 * op;
                return 0;
            }
    return -1;
}

int lf_kernels_parse(uint32_t *kernels, const char *text, lf_err *err)
{
    uint32_t found = 0;

    *kernels = 0;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, ",");
        if (parse_one(&found, p, n)) {
            char *names = all_names();
            lf_fail(err, "LONGFILL_KERNELS: \"%.*s\" is no OPERATION=KERNEL; there are %s", (int)n, p, names);
            free(names);
            return -1;
        }
        p += n + (p[n] == ',');
    }
    *kernels = found;
    return 0;
}

int lf_kernels_read(uint32_t *kernels, lf_err *err)
{
    const char *text = getenv("LONGFILL_KERNELS");

    return lf_kernels_parse(kernels, text ? text : "", err);
}

int lf_kernels_none(lf_err *err)
{
    uint32_t kernels;

    if (lf_kernels_read(&kernels, err))
        return -1;
    if (kernels == 0)
        return 0;
    return lf_fail(err, "LONGFILL_KERNELS asks for kernels of a GPU (%.80s), and the CPU has none of them: unset it or "
                   "use --device cuda", getenv("LONGFILL_KERNELS"));
}

int lf_kernel_of(uint32_t kernels, lf_choice op, unsigned fits)
{
    int k = asked(kernels, op);

    if (k >= 0)
        return fits >> k & 1 ? k : -1;
    for (k = MOST - 1; k >= 0 && !(fits >> k & 1);)
        k--;
    return k;
}

int lf_kernel_refuse(uint32_t kernels, lf_choice op, const char *shape, lf_err *err)
{
    int k = asked(kernels, op);
    const char *name = table[op].name;

    if (k >= 0)
        return lf_fail(err, "%s: LONGFILL_KERNELS asks for %s=%s, which cannot do %s: it needs %s", name, name,
                       table[op].kernel[k].name, shape, table[op].kernel[k].needs);
    return lf_fail(err, "%s: no kernel can do %s: %s needs %s; use --device cpu", name, shape, table[op].kernel[0].name,
                   table[op].kernel[0].needs);
}
