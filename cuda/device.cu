/* SPDX-License-Identifier: Apache-2.0 */
extern "C" {
#include "base.h"
}
#include "dev_cuda.h"

#include <cuda_runtime.h>

int lf_cuda_devices(int *count, lf_err *err)
{
    cudaError_t rc = cudaGetDeviceCount(count);

    if (rc != cudaSuccess) {
        *count = 0;
        return lf_fail(err, "no usable GPU: %s; check the driver with nvidia-smi, or use --device cpu",
                       cudaGetErrorString(rc));
    }
    if (*count == 0)
        return lf_fail(err, "no GPU is visible: check CUDA_VISIBLE_DEVICES and what the job asked for, "
                       "or use --device cpu");
    return 0;
}
