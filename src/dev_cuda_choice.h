/* SPDX-License-Identifier: Apache-2.0
 *
 * dev_cuda_choice: which kernel an operation of the CUDA backend runs, where it has several.  Floor 2, no CUDA type:
 * cuda/choice.cu decides and tells by it, planning counts memory by it.
 *
 * An operation knows which of its kernels can do a shape (a set: bit 1 << kernel); the last of these, in the order
 * below, is its own choice.  LONGFILL_KERNELS names others, for tests: "attention=general,index=wgmma".  A kernel that
 * was asked for and cannot do a shape is an error, never another kernel; where the CPU computes, any is.  Instances of
 * one kernel for types and widths of words count as one.
 */
#ifndef LF_DEV_CUDA_CHOICE_H
#define LF_DEV_CUDA_CHOICE_H

#include "base.h"

typedef enum lf_choice {
    LF_CHOICE_ATTENTION, LF_CHOICE_INDEX, LF_CHOICE_SELECT, LF_CHOICE_GEMM, LF_CHOICE_EXPERTS, LF_CHOICES
} lf_choice;

/* Kernels, of the general one to those of a few shapes. */
typedef enum lf_attention_kernel { LF_ATTENTION_GENERAL, LF_ATTENTION_WGMMA } lf_attention_kernel;

/* The indexer's scores.  fp8: from e4m3, and from bf16 what e4m3 cannot give (index_fold.cu). */
typedef enum lf_index_kernel { LF_INDEX_GENERAL, LF_INDEX_MMA, LF_INDEX_WGMMA, LF_INDEX_FP8 } lf_index_kernel;

/* The choice of the best scores; stream reads them once. */
typedef enum lf_select_kernel { LF_SELECT_GENERAL, LF_SELECT_STREAM } lf_select_kernel;

/* parts: lf_gemm.parts, in float32; plain: in bf16 or float32. */
typedef enum lf_gemm_way { LF_GEMM_PLAIN, LF_GEMM_PARTS, LF_GEMM_FP8 } lf_gemm_way;

/* plain: through gemm; both other ways as fp8 with block scales, from the weights as they are stored (e4m3) or from the
 * bank (packed e2m1, folds: nothing is lost by that). */
typedef enum lf_expert_way { LF_EXPERT_PLAIN, LF_EXPERT_STORED, LF_EXPERT_FOLDED } lf_expert_way;

const char *lf_choice_name(lf_choice op);                      /* "attention", ... */
const char *lf_kernel_name(lf_choice op, int kernel);          /* "general", ...; NULL: the operation has no such one */

/* Kernels asked for, four bits an operation; 0: none is.  Fails on names that do not exist and lists those that do.
 * read: from the environment. */
int lf_kernels_parse(uint32_t *kernels, const char *text, lf_err *err);
int lf_kernels_read(uint32_t *kernels, lf_err *err);
/* Where a run computes on the CPU: refuses any. */
int lf_kernels_none(lf_err *err);

/* The kernel of a shape that `fits` can do: the one asked for, or else the operation's own choice; -1: it cannot. */
int lf_kernel_of(uint32_t kernels, lf_choice op, unsigned fits);

/* Why lf_kernel_of gave -1 for a shape, which is told in words; -1. */
int lf_kernel_refuse(uint32_t kernels, lf_choice op, const char *shape, lf_err *err);

#endif
