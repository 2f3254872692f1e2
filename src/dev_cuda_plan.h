/* SPDX-License-Identifier: Apache-2.0
 *
 * dev_cuda_plan: device memory of the CUDA backend, as arithmetic.  Floor 2, no CUDA type: the operations in cuda/ take
 * their memory by these functions, and planning adds them up without a GPU.
 *
 * Not counted: what the CUDA context, cuBLASLt and NCCL keep for themselves.
 */
#ifndef LF_DEV_CUDA_PLAN_H
#define LF_DEV_CUDA_PLAN_H

#include "dev.h"
#include "dev_cuda_choice.h"

/* Scratch: device memory of an operation while it runs.  Grows, is kept; contents undefined.  Slots A to H are for the
 * operations that call no other; the rest belong to who they are named after. */
typedef enum lf_cuda_slot {
    LF_SCRATCH_A, LF_SCRATCH_B, LF_SCRATCH_C, LF_SCRATCH_D, LF_SCRATCH_E, LF_SCRATCH_F, LF_SCRATCH_G, LF_SCRATCH_H,
    LF_SCRATCH_GEMM_X, LF_SCRATCH_GEMM_X_SCALE, LF_SCRATCH_GEMM_W, LF_SCRATCH_GEMM_W_SCALE, LF_SCRATCH_GEMM_OUT,
    LF_SCRATCH_GEMM_PARTS,
    LF_SCRATCH_ROUTE,
    LF_SCRATCH_MOE_TABLE, LF_SCRATCH_MOE_X, LF_SCRATCH_MOE_X_SCALE, LF_SCRATCH_MOE_GU, LF_SCRATCH_MOE_H,
    LF_SCRATCH_MOE_H_SCALE, LF_SCRATCH_MOE_OUT,
    LF_SCRATCH_MOE_BANK, LF_SCRATCH_MOE_BANK_SCALE, LF_SCRATCH_MOE_BANK_2, LF_SCRATCH_MOE_BANK_2_SCALE,
    LF_SCRATCH_SLOTS
} lf_cuda_slot;

enum {
    LF_CUDA_GRAIN = 512,                   /* what take() hands out, and scratch, is a multiple of it */
    LF_CUDA_WORKSPACE = 32 << 20,          /* of cuBLASLt's products, taken when the device opens */
    LF_CUDA_WEIGHT_ALIGN = 256,            /* weights share one piece of memory */
    LF_CUDA_STRIP = 8192,                  /* rows of a weight that are expanded at a time */
    LF_CUDA_EXPERT_ROWS = 65536,           /* of a batch of experts' pairs in fp8 */
    LF_CUDA_EXPERT_PLAIN = 8192,           /* pairs of an expert that go through gemm at a time */
    LF_CUDA_SEGMENT = 32,                  /* bytes of one expert's description in a batch */
    LF_CUDA_PAIRS = 1024,                  /* pairs that one block sorts */
    LF_CUDA_BANKS = 2,                     /* layers whose packed experts stand expanded: one in use, one ahead */
    LF_CUDA_HC_PIECE = 2048,               /* columns of mixing weights that are summed at a time */
    LF_CUDA_SCORES = 256 << 20,            /* bytes of index scores at a time, but one query's at least */
    LF_CUDA_SCORE_QUERIES = 1 << 16,
    LF_CUDA_FOLD_QUERIES = 8192,           /* index queries as e4m3 at a time */
    LF_CUDA_SORT = 4096,                   /* keys that are sorted without scratch */
    LF_CUDA_STAGING = 64 << 20             /* HOST memory, pinned: of copies, taken when the device opens */
};

/* What a matrix takes among the weights: data, scales and, of e4m3, the scales once more as products want them. */
int64_t lf_cuda_weight_bytes(lf_dtype dtype, int64_t rows, int64_t cols);

/* ---- products ---- */

/* Whether a slice of a weight can be the w of an fp8 product as it is stored. */
int lf_cuda_fp8_fits(const lf_weight *w);
/* Columns of its scales as cuBLASLt has them; and whether a slice's stand so in the whole's table. */
int64_t lf_cuda_scale_ld(int64_t cols);
int lf_cuda_scales_fit(const lf_weight *w);

/* The kernels that can do a product: for lf_kernel_of. */
unsigned lf_cuda_gemm_fits(const lf_dev *d, const lf_gemm *g);

/* How a product in bf16 or float32 is done.  direct: without a copy in another form. */
typedef struct lf_gemm_form {
    size_t element, want, have;            /* bytes: of both inputs, of out as asked for, as the product writes it */
    int64_t k, ldo;                        /* columns of the input, a multiple of 8; ld of what it writes */
    int quantise, direct_x, direct_w, direct_out;
} lf_gemm_form;

void lf_cuda_gemm_form(lf_gemm_form *f, const lf_dev *d, const lf_gemm *g);

static inline int lf_cuda_aligned(const void *p, int64_t ld, size_t element)
{
    return (uintptr_t)p % 16 == 0 && (size_t)ld * element % 16 == 0;
}

/* Sums of halves that wait while `parts` are added up pairwise. */
int lf_cuda_gemm_levels(int parts);

/* ---- experts ---- */

/* The kernels that can do an expert.  folds: its packed weights lose nothing as e4m3. */
unsigned lf_cuda_expert_fits(lf_numerics numerics, const lf_weight *w1, const lf_weight *w2, const lf_weight *w3,
                             int folds);

/* Slots of bank i. */
static inline lf_cuda_slot lf_cuda_bank_slot(int i)
{
    return (lf_cuda_slot)(LF_SCRATCH_MOE_BANK + 2 * i);
}

static inline lf_cuda_slot lf_cuda_bank_scale_slot(int i)
{
    return (lf_cuda_slot)(LF_SCRATCH_MOE_BANK_SCALE + 2 * i);
}

/* Of one expert in a bank: w1 over w3, and w2; bytes of codes, float32 scales. */
int64_t lf_cuda_bank_codes(int64_t hidden, int64_t inter);
int64_t lf_cuda_bank_scales(int64_t hidden, int64_t inter);

/* ---- the rest ---- */

size_t lf_cuda_hc_scratch(int64_t rows, int64_t cols, int outs);
size_t lf_cuda_topk_scratch(int64_t queries, int64_t rows);
/* The kernels that can do the model's index scores. */
unsigned lf_cuda_index_fits(const lf_dev *d);
/* Keys and queries of index_topk as e4m3, where the kernel is fp8 (index_fold.cu); 0: it is another. */
size_t lf_cuda_index_fold_scratch(const lf_dev *d, int64_t queries, int64_t rows);
size_t lf_cuda_sort_scratch(int64_t rows, int64_t vocab, int k);       /* of logits_topk */
size_t lf_cuda_pairs_scratch(int64_t pairs, int64_t experts);
size_t lf_cuda_arrivals_scratch(int64_t senders, int64_t experts);     /* experts: of one rank */

/* ---- all of it ---- */

/* Bytes that each slot has to have for a load; d gives model, numerics and act_bytes. */
void lf_cuda_room(size_t slot[LF_SCRATCH_SLOTS], const lf_dev *d, const lf_dev_load *l);
/* What the slots take together, the banks and the others. */
int64_t lf_cuda_room_bank(const size_t slot[LF_SCRATCH_SLOTS]);
int64_t lf_cuda_room_rest(const size_t slot[LF_SCRATCH_SLOTS]);

#endif
