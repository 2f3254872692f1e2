/* SPDX-License-Identifier: Apache-2.0
 *
 * Products through cuBLASLt: out [m, n] = x [m, k] w[n, k]^T, one algorithm for each kind and size of weight.
 *
 * The library's matrices are column-major: the weight is its A (k x n, transposed), the input its B (k x m), the output
 * its D (n x m).  The algorithm is what its heuristic takes for PLAN_ROWS rows without a split over k, and it is used
 * for every number of rows, so that a row has the same bits in all of them.
 */
#include "cuda.cuh"

#include <stdlib.h>

enum { PLAN_ROWS = 16384, PLAN_CHOICES = 16, POINTER_ALIGN = 16 };

typedef struct plan {
    lf_cuda_precision precision;
    int f32_out;
    int64_t n, k;
    cublasLtMatmulAlgo_t algo;
} plan;

struct lf_cuda_plans {
    plan *plan;
    int count, room;
    void *workspace;
};

int lf_cuda_plans_open(lf_cuda *c, lf_err *err)
{
    c->plans = (lf_cuda_plans *)lf_alloc(sizeof *c->plans);
    return lf_cuda_take(&c->dev, &c->plans->workspace, LF_CUDA_WORKSPACE, "the workspace of products", err);
}

void lf_cuda_plans_free(lf_cuda *c)
{
    if (c->plans)
        free(c->plans->plan);
    free(c->plans);
    c->plans = NULL;
}

/* The library's description of one product. */
typedef struct layout {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t w, x, out;
} layout;

static cublasStatus_t describe(layout *l, const lf_cuda_product *p, const void *scale_stub)
{
    cublasOperation_t t = CUBLAS_OP_T;
    int32_t block = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, vec = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    const void *ws = p->w_scale ? p->w_scale : scale_stub, *xs = p->x_scale ? p->x_scale : scale_stub;
    cudaDataType in = p->precision == LF_CUDA_FP8 ? CUDA_R_8F_E4M3 : p->precision == LF_CUDA_BF16 ? CUDA_R_16BF
                                                                                                  : CUDA_R_32F;
    cublasStatus_t bad[9] = {
        cublasLtMatmulDescInit(&l->op, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        cublasLtMatmulDescSetAttribute(&l->op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t),
        cublasLtMatrixLayoutInit(&l->w, in, (uint64_t)p->k, (uint64_t)p->n, p->ldw),
        cublasLtMatrixLayoutInit(&l->x, in, (uint64_t)p->k, (uint64_t)p->m, p->ldx),
        cublasLtMatrixLayoutInit(&l->out, p->f32_out ? CUDA_R_32F : CUDA_R_16BF, (uint64_t)p->n, (uint64_t)p->m,
                                 p->ldo),
    };

    if (p->precision == LF_CUDA_FP8) {
        bad[5] = cublasLtMatmulDescSetAttribute(&l->op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &block, sizeof block);
        bad[6] = cublasLtMatmulDescSetAttribute(&l->op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &vec, sizeof vec);
        bad[7] = cublasLtMatmulDescSetAttribute(&l->op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &ws, sizeof ws);
        bad[8] = cublasLtMatmulDescSetAttribute(&l->op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &xs, sizeof xs);
    }
    for (int i = 0; i < 9; i++)
        if (bad[i] != CUBLAS_STATUS_SUCCESS)
            return bad[i];
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t preferences(cublasLtMatmulPreferenceOpaque_t *pref)
{
    uint64_t bytes = LF_CUDA_WORKSPACE;
    uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE, align = POINTER_ALIGN;
    cublasLtMatmulPreferenceAttributes_t sides[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    };
    cublasStatus_t rc = cublasLtMatmulPreferenceInit(pref);

    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none);
    for (int i = 0; i < 4 && rc == CUBLAS_STATUS_SUCCESS; i++)
        rc = cublasLtMatmulPreferenceSetAttribute(pref, sides[i], &align, sizeof align);
    return rc;
}

static int splits_k(const cublasLtMatmulAlgo_t *algo)
{
    int32_t parts = 0;
    size_t written;

    return cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts,
                                                &written) != CUBLAS_STATUS_SUCCESS || parts > 1;
}

static const char *precision_name(lf_cuda_precision p)
{
    return p == LF_CUDA_FP8 ? "fp8" : p == LF_CUDA_BF16 ? "bf16" : "float32";
}

static void fail(lf_cuda *c, const lf_cuda_product *p, const char *what, cublasStatus_t rc)
{
    lf_cuda_fail(c, "a %s product of %lld rows with a weight of %lld x %lld, %s out: %s: %s",
                 precision_name(p->precision), (long long)p->m, (long long)p->n, (long long)p->k,
                 p->f32_out ? "float32" : "bf16", what, cublasLtGetStatusString(rc));
}

/* With the strides that contiguous, aligned rows have: the choice must not hang on where a caller's rows lie. */
static int choose(lf_cuda *c, const lf_cuda_product *p, plan *out)
{
    lf_cuda_product typical = *p;
    cublasLtMatmulPreferenceOpaque_t pref;
    cublasLtMatmulHeuristicResult_t found[PLAN_CHOICES];
    layout l;
    int n = 0;

    typical.m = PLAN_ROWS;
    typical.ldx = typical.ldw = lf_round_up(p->k, p->precision == LF_CUDA_FP8 ? 16 : 8);
    typical.ldo = lf_round_up(p->n, 8);
    cublasStatus_t rc = describe(&l, &typical, c->plans->workspace);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = preferences(&pref);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulAlgoGetHeuristic(c->blas, &l.op, &l.w, &l.x, &l.out, &l.out, &pref, PLAN_CHOICES, found, &n);
    for (int i = 0; i < n && rc == CUBLAS_STATUS_SUCCESS; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && !splits_k(&found[i].algo)) {
            out->algo = found[i].algo;
            return 0;
        }
    fail(c, p, "cuBLASLt has no algorithm without a split over k", rc == CUBLAS_STATUS_SUCCESS
                                                                       ? CUBLAS_STATUS_NOT_SUPPORTED : rc);
    return -1;
}

static const plan *plan_of(lf_cuda *c, const lf_cuda_product *p)
{
    lf_cuda_plans *all = c->plans;

    for (int i = 0; i < all->count; i++) {
        plan *x = &all->plan[i];
        if (x->precision == p->precision && x->f32_out == p->f32_out && x->n == p->n && x->k == p->k)
            return x;
    }
    if (all->count == all->room) {
        all->room = all->room ? 2 * all->room : 64;
        all->plan = (plan *)lf_realloc(all->plan, sizeof *all->plan * (size_t)all->room);
    }
    plan *x = &all->plan[all->count];
    x->precision = p->precision;
    x->f32_out = p->f32_out;
    x->n = p->n;
    x->k = p->k;
    if (choose(c, p, x))
        return NULL;
    all->count++;
    return x;
}

void lf_cuda_multiply(lf_cuda *c, const lf_cuda_product *p)
{
    float one = 1, zero = 0;
    layout l;

    if (p->m == 0 || p->n == 0)
        return;
    const plan *x = plan_of(c, p);
    if (!x)
        return;
    cublasStatus_t rc = describe(&l, p, c->plans->workspace);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmul(c->blas, &l.op, &one, p->w, &l.w, p->x, &l.x, &zero, p->out, &l.out, p->out, &l.out,
                            &x->algo, c->plans->workspace, LF_CUDA_WORKSPACE, c->stream);
    if (rc != CUBLAS_STATUS_SUCCESS)
        fail(c, p, "cuBLASLt cannot run the algorithm of this weight", rc);
    LF_LAUNCHED(c, "of cuBLASLt");
}
