/* SPDX-License-Identifier: Apache-2.0
 *
 * Versions of the libraries that the backend runs with.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "cuda.cuh"

#include <cublasLt.h>
#include <cuda_runtime.h>
#ifdef LF_HAVE_NCCL
#include <nccl.h>
#endif

static_assert(LF_STAGES * LF_STAGE_BYTES == LF_CUDA_STAGING, "memory_open takes what is planned (dev_cuda_plan.h)");

void lf_cuda_versions_get(lf_cuda_versions *v)
{
    static const libraryPropertyType part[] = { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL };

    *v = lf_cuda_versions();
    cudaRuntimeGetVersion(&v->runtime);
    cudaDriverGetVersion(&v->driver);
    for (int i = 0; i < 3; i++)
        cublasLtGetProperty(part[i], &v->cublaslt[i]);
#ifdef LF_HAVE_NCCL
    ncclGetVersion(&v->nccl);
#endif
}
