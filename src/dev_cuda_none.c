/* SPDX-License-Identifier: Apache-2.0 */
#include "dev_cuda.h"

int lf_cuda_devices(int *count, lf_err *err)
{
    *count = 0;
    return lf_fail(err, "this longfill was built without CUDA: configure --with-cuda, or use --device cpu");
}
