/* SPDX-License-Identifier: Apache-2.0 */
#include "dev_cuda.h"

int lf_cuda_devices(int *count, lf_err *err)
{
    *count = 0;
    return lf_fail(err, "this longfill was built without CUDA: configure --with-cuda, or use --device cpu");
}

int lf_cuda_open(lf_dev **out, const lf_model *m, lf_numerics numerics, int act_bytes, int device, lf_err *err)
{
    int count;

    (void)m;
    (void)numerics;
    (void)act_bytes;
    (void)device;
    *out = NULL;
    return lf_cuda_devices(&count, err);
}

int lf_cuda_uuid(int device, void *uuid, lf_err *err)
{
    int count;

    (void)device;
    (void)uuid;
    return lf_cuda_devices(&count, err);
}

void lf_cuda_blocks_most(lf_dev *d, int most)
{
    (void)d;
    (void)most;
}

void lf_cuda_versions_get(lf_cuda_versions *v)
{
    *v = (lf_cuda_versions){ 0 };
}
