/* SPDX-License-Identifier: Apache-2.0
 *
 * dev_cuda: what the rest of the program may ask about GPUs, without a CUDA type.  Floor 2.  Implemented by
 * cuda/device.cu, or by dev_cuda_none.c in a program that was built without CUDA.
 */
#ifndef LF_DEV_CUDA_H
#define LF_DEV_CUDA_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *count = GPUs that this process sees, at least 1.  Fails, saying why, where there is none: no GPU backend in this
 * program, no driver, none visible. */
int lf_cuda_devices(int *count, lf_err *err);

#ifdef __cplusplus
}
#endif

#endif
