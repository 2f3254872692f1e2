/* SPDX-License-Identifier: Apache-2.0
 *
 * dev_cuda: what the rest of the program may ask about GPUs, without a CUDA type.  Floor 2.  Implemented by
 * cuda/device.cu and version.cu, or by dev_cuda_none.c in a program that was built without CUDA.
 */
#ifndef LF_DEV_CUDA_H
#define LF_DEV_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "dev.h"

/* *count = GPUs that this process sees, at least 1.  Fails, saying why, where there is none: no GPU backend in this
 * program, no driver, none visible. */
int lf_cuda_devices(int *count, lf_err *err);

int lf_cuda_uuid(int device, void *uuid, lf_err *err);         /* 16 bytes that name a GPU among all */

/* The GPU backend of dev.h on GPU `device` of those.  act_bytes: 2 (bf16 activations) or 4 (float32, exact numerics
 * only).  Refuses, naming it, a GPU of another compute capability than 9.0.  Closed with lf_dev_close. */
int lf_cuda_open(lf_dev **out, const lf_model *m, lf_numerics numerics, int act_bytes, int device, lf_err *err);

/* For tests: of a kernel whose blocks go round, d launches at most `most`, so that with few rows, too, each goes round
 * several times. */
void lf_cuda_blocks_most(lf_dev *d, int most);

/* What the libraries of the backend say that they are, at run time.  All 0 without the backend; driver: 0 where there
 * is none; nccl: 0 in a program without it. */
typedef struct lf_cuda_versions {
    int runtime, driver;                   /* 1000 major + 10 minor; driver: the newest CUDA that it serves */
    int cublaslt[3];                       /* major, minor, patch */
    int nccl;                              /* 10000 major + 100 minor + patch */
} lf_cuda_versions;

void lf_cuda_versions_get(lf_cuda_versions *v);

#ifdef __cplusplus
}
#endif

#endif
