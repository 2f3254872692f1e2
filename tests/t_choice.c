/* SPDX-License-Identifier: Apache-2.0
 *
 * Which kernel an operation of a GPU runs: names, rules, kernels that are asked for, and the memory that follows.
 */
#include "../src/dev_cuda_plan.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

static uint32_t asked(const char *text)
{
    uint32_t kernels = 0;
    lf_err err = { "" };

    TAP_CHECK(lf_kernels_parse(&kernels, text, &err) == 0, "\"%s\" %s", text, err.text);
    return kernels;
}

static void names(void)
{
    static const char *const wrong[] = { "atention=general", "attention=fast", "attention", "attention=", "=general",
                                         "attention=general,,index=mma", ",", "gemm=wgmma", "attention=generale",
                                         "attention=general index=mma", "fp8" };
    uint32_t kernels;
    lf_err err;
    int bad = 0;

    for (int op = 0; op < LF_CHOICES; op++) {
        TAP_QUIET(bad, lf_choice_name(op) && lf_kernel_name(op, 1), "operation %d has one kernel", op);
        for (int k = 0; lf_kernel_name(op, k); k++) {
            char *text = lf_printf("%s=%s", lf_choice_name(op), lf_kernel_name(op, k));
            TAP_QUIET(bad, lf_kernels_parse(&kernels, text, &err) == 0 && lf_kernel_of(kernels, op, ~0u) == k &&
                      lf_kernel_of(kernels, (op + 1) % LF_CHOICES, 1) == 0, "%s", text);
            free(text);
        }
    }
    TAP_CHECK(bad == 0, "every kernel can be asked for by its name, and changes no other operation");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        TAP_CHECK(lf_kernels_parse(&kernels, wrong[i], &err) == -1 && kernels == 0 &&
                      strstr(err.text, "LONGFILL_KERNELS") &&
                      strstr(err.text, "attention: general wgmma; index: general"),
                  "\"%s\" is refused: %s", wrong[i], err.text);
    setenv("LONGFILL_KERNELS", "select=general,attention=wgmma", 1);
    TAP_CHECK(lf_kernels_read(&kernels, &err) == 0 &&
                  lf_kernel_of(kernels, LF_CHOICE_SELECT, 3) == LF_SELECT_GENERAL &&
                  lf_kernel_of(kernels, LF_CHOICE_ATTENTION, 3) == LF_ATTENTION_WGMMA, "two from the environment");
    TAP_CHECK(lf_kernels_none(&err) == -1 && strstr(err.text, "(select=general,attention=wgmma), and the CPU has none"),
              "%s", err.text);
    setenv("LONGFILL_KERNELS", "select=generous", 1);
    TAP_CHECK(lf_kernels_none(&err) == -1 && strstr(err.text, "there are attention: general"), "%s", err.text);
    unsetenv("LONGFILL_KERNELS");
    TAP_CHECK(lf_kernels_read(&kernels, &err) == 0 && kernels == 0 && lf_kernels_none(&err) == 0, "and none");
}

static void refusals(void)
{
    uint32_t kernels = asked("attention=wgmma");
    lf_err err;

    TAP_CHECK(lf_kernel_of(0, LF_CHOICE_ATTENTION, 3) == LF_ATTENTION_WGMMA &&
                  lf_kernel_of(0, LF_CHOICE_ATTENTION, 1) == LF_ATTENTION_GENERAL,
              "the last that can do it, by itself");
    TAP_CHECK(lf_kernel_of(kernels, LF_CHOICE_ATTENTION, 1) == -1 && lf_kernel_of(0, LF_CHOICE_ATTENTION, 0) == -1,
              "never another than was asked for, and none where none can");
    TAP_CHECK(lf_kernel_refuse(kernels, LF_CHOICE_ATTENTION, "4 heads of 32, float32", &err) == -1 &&
                  strstr(err.text, "attention=wgmma") && strstr(err.text, "cannot do 4 heads of 32, float32") &&
                  strstr(err.text, "needs bf16"), "%s", err.text);
    TAP_CHECK(lf_kernel_refuse(0, LF_CHOICE_ATTENTION, "3 heads of 600, bf16", &err) == -1 &&
                  strstr(err.text, "no kernel can do 3 heads of 600, bf16") && strstr(err.text, "--device cpu"), "%s",
              err.text);
}

/* ---- rules ---- */

static lf_weight weight(lf_dtype type, int64_t rows, int64_t cols)
{
    return (lf_weight){ .dtype = type, .rows = rows, .cols = cols, .all_rows = rows, .all_cols = cols };
}

static unsigned index_of(int heads, int width, lf_numerics numerics, size_t act)
{
    lf_model m = { .index_heads = heads, .index_dim = width };
    lf_dev d = { .model = &m, .numerics = numerics, .act_bytes = act };

    return lf_cuda_index_fits(&d);
}

static int gemm_of(lf_numerics numerics, size_t act, const lf_weight *w, int plain, int parts)
{
    lf_dev d = { .numerics = numerics, .act_bytes = act };
    lf_gemm g = { .w = w, .plain = plain, .parts = parts };

    return lf_kernel_of(0, LF_CHOICE_GEMM, lf_cuda_gemm_fits(&d, &g));
}

static int experts_of(lf_numerics numerics, lf_dtype type, int64_t hidden, int64_t inter, int folds)
{
    lf_weight w1 = weight(type, inter, hidden), w2 = weight(type, hidden, inter);

    return lf_kernel_of(0, LF_CHOICE_EXPERTS, lf_cuda_expert_fits(numerics, &w1, &w2, &w1, folds));
}

static void rules(void)
{
    lf_weight e4m3 = weight(LF_E4M3, 256, 384), bf16 = weight(LF_BF16, 256, 384);
    lf_weight inside = lf_weight_rows(e4m3, 64, 128);

    TAP_CHECK(index_of(64, 128, LF_RELEASED, 2) == 15 && index_of(64, 128, LF_EXACT, 2) == 7 &&
                  index_of(64, 128, LF_EXACT, 4) == 1, "index scores of released heads");
    TAP_CHECK(index_of(16, 32, LF_RELEASED, 2) == 3 && index_of(12, 32, LF_RELEASED, 2) == 1 &&
                  index_of(16, 48, LF_RELEASED, 2) == 1 && index_of(264, 64, LF_EXACT, 2) == 1, "and of others");
    TAP_CHECK(gemm_of(LF_RELEASED, 2, &e4m3, 0, 0) == LF_GEMM_FP8 &&
                  gemm_of(LF_RELEASED, 2, &e4m3, 1, 0) == LF_GEMM_PLAIN &&
                  gemm_of(LF_RELEASED, 2, &inside, 0, 0) == LF_GEMM_PLAIN &&
                  gemm_of(LF_RELEASED, 2, &bf16, 0, 0) == LF_GEMM_PLAIN &&
                  gemm_of(LF_EXACT, 2, &e4m3, 0, 0) == LF_GEMM_PLAIN, "products");
    TAP_CHECK(gemm_of(LF_EXACT, 4, &e4m3, 1, 4) == LF_GEMM_PARTS &&
                  gemm_of(LF_EXACT, 2, &e4m3, 1, 4) == LF_GEMM_PLAIN &&
                  gemm_of(LF_EXACT, 4, &e4m3, 1, 1) == LF_GEMM_PLAIN &&
                  gemm_of(LF_EXACT, 4, &e4m3, 1, 5) == LF_GEMM_PLAIN, "products in parts");
    TAP_CHECK(experts_of(LF_RELEASED, LF_I8, 256, 128, 1) == LF_EXPERT_FOLDED &&
                  experts_of(LF_RELEASED, LF_I8, 256, 128, 0) == LF_EXPERT_PLAIN &&
                  experts_of(LF_RELEASED, LF_I8, 96, 64, 1) == LF_EXPERT_PLAIN &&
                  experts_of(LF_RELEASED, LF_E4M3, 256, 192, 0) == LF_EXPERT_STORED &&
                  experts_of(LF_EXACT, LF_I8, 256, 128, 1) == LF_EXPERT_PLAIN &&
                  experts_of(LF_RELEASED, LF_BF16, 256, 128, 0) == LF_EXPERT_PLAIN, "experts");
}

/* ---- memory ---- */

enum { HIDDEN = 4096, INTER = 2048, EXPERTS = 16, ROWS = 1000 };

static const lf_model flash = { .vocab = 100, .layers = 2, .hidden = HIDDEN, .hc = 4, .experts = EXPERTS,
                                .index_heads = 64, .index_dim = 128 };

static void room(size_t slot[LF_SCRATCH_SLOTS], const char *kernels)
{
    lf_dev d = { .model = &flash, .numerics = LF_RELEASED, .act_bytes = 2, .kernels = asked(kernels) };
    lf_dev_load *l = lf_alloc(sizeof *l);

    l->gemm[0] = (lf_load_gemm){ { .m = ROWS, .ldx = HIDDEN, .ldo = 512 }, weight(LF_E4M3, 512, HIDDEN) };
    l->gemms = 1;
    l->experts[0] = (lf_load_experts){ weight(LF_I8, INTER, HIDDEN), weight(LF_I8, HIDDEN, INTER),
                                       weight(LF_I8, INTER, HIDDEN), EXPERTS, 6 * ROWS, ROWS };
    l->experts_n = 1;
    l->queries = ROWS;
    l->keys = 5000;
    lf_cuda_room(slot, &d, l);
    free(l);
}

/* Slots that differ, as bits. */
static unsigned differ(const size_t *a, const size_t *b)
{
    unsigned bits = 0;

    for (int i = 0; i < LF_SCRATCH_SLOTS; i++)
        bits |= (unsigned)(a[i] != b[i]) << i;
    return bits;
}

static void memory(void)
{
    size_t own[LF_SCRATCH_SLOTS], x[LF_SCRATCH_SLOTS];

    room(x, "experts=folded");
    room(own, "");
    TAP_CHECK(differ(own, x) == (1u << LF_SCRATCH_GEMM_X | 1u << LF_SCRATCH_GEMM_W) &&
                  own[LF_SCRATCH_GEMM_X] == (size_t)2 * ROWS * HIDDEN &&
                  own[LF_SCRATCH_GEMM_W] == (size_t)2 * INTER * HIDDEN && x[LF_SCRATCH_GEMM_W] == 0,
              "packed experts: room for those that do not fold, too, a weight at a time in bf16");
    room(own, "experts=folded");
    room(x, "index=fp8,experts=folded,gemm=fp8,select=stream,attention=wgmma");
    TAP_CHECK(differ(own, x) == 0 && own[LF_SCRATCH_B] > 0 && own[LF_SCRATCH_MOE_BANK] > 0 &&
                  own[LF_SCRATCH_MOE_BANK_2] > 0,
              "asking for what is chosen anyway changes no memory");
    room(x, "experts=folded,index=wgmma");
    TAP_CHECK(differ(own, x) == 1u << LF_SCRATCH_B && x[LF_SCRATCH_B] == 0, "index scores from bf16: no codes");
    room(x, "experts=folded,gemm=plain");
    TAP_CHECK(differ(own, x) == (1u << LF_SCRATCH_GEMM_X | 1u << LF_SCRATCH_GEMM_X_SCALE | 1u << LF_SCRATCH_GEMM_W |
                                 1u << LF_SCRATCH_GEMM_OUT) &&
                  x[LF_SCRATCH_GEMM_W] == (size_t)2 * 512 * HIDDEN &&
                  x[LF_SCRATCH_GEMM_X] == (size_t)2 * ROWS * HIDDEN &&
                  x[LF_SCRATCH_GEMM_X_SCALE] == 0 && x[LF_SCRATCH_GEMM_OUT] == 0,
              "a plain product: the weight and its input in bf16");
    room(x, "experts=plain");
    TAP_CHECK(x[LF_SCRATCH_MOE_BANK] == 0 && x[LF_SCRATCH_MOE_BANK_SCALE] == 0 &&
                  x[LF_SCRATCH_MOE_BANK_2] == 0 && x[LF_SCRATCH_MOE_TABLE] == 0 &&
                  x[LF_SCRATCH_MOE_X] == (size_t)2 * ROWS * HIDDEN &&
                  x[LF_SCRATCH_MOE_GU] == (size_t)4 * ROWS * INTER &&
                  x[LF_SCRATCH_GEMM_W] == (size_t)2 * INTER * HIDDEN,
              "plain experts: no bank, a weight at a time in bf16");
    room(x, "experts=stored");
    TAP_CHECK(x[LF_SCRATCH_MOE_BANK] == 0 && x[LF_SCRATCH_MOE_X] == 0, "what cannot be done has no room");
}

int main(void)
{
    names();
    refusals();
    rules();
    memory();
    return tap_done();
}
