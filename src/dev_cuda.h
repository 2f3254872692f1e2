/* SPDX-License-Identifier: Apache-2.0
 *
 * dev_cuda: what the rest of the program may ask about GPUs, without a CUDA type.  Floor 2.  Implemented by
 * cuda/device.cu, or by dev_cuda_none.c in a program that was built without CUDA.
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

#ifdef __cplusplus
}
#endif

#endif
