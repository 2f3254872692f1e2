/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors: the first is kept until sync() hands it out.  Kernels run later than the host gives them, so what the host
 * does when it hears of a failure says nothing of the place: the GPU itself notes, in host memory, which layer and tile
 * it has come to.
 */
#include "cuda.cuh"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lf_cuda_place {
    int layer, tile;                       /* layer -1: none */
};

int lf_cuda_errors_open(lf_cuda *c, lf_err *err)
{
    void *p = NULL;
    cudaError_t rc = cudaMallocHost(&p, sizeof(lf_cuda_place));

    c->place = (volatile lf_cuda_place *)p;
    if (rc != cudaSuccess)
        return lf_fail(err, "GPU %d: no pinned host memory: %s; check ulimit -l", c->device, cudaGetErrorString(rc));
    c->place->layer = -1;
    return 0;
}

void lf_cuda_errors_free(lf_cuda *c)
{
    if (c->place)
        cudaFreeHost((void *)(uintptr_t)c->place);
    c->place = NULL;
}

static __global__ void note(volatile lf_cuda_place *place, int layer, int tile)
{
    place->layer = layer;
    place->tile = tile;
}

static void where(lf_cuda *c, int layer, int tile)
{
    c->where[0] = 0;
    if (layer >= 0)
        snprintf(c->where, sizeof c->where, "layer %d, tile %d", layer, tile);
}

void lf_cuda_at(lf_dev *d, int layer, int tile)
{
    lf_cuda *c = lf_cuda_of(d);

    where(c, layer, tile);
    note<<<1, 1, 0, c->streams[LF_QUEUE_COMPUTE]>>>(c->place, layer, tile);
    LF_LAUNCHED(c, "note of the place");
}

void lf_cuda_fail(lf_cuda *c, const char *fmt, ...)
{
    char text[768];
    va_list ap;

    if (c->failed || c->given_up) {        /* what comes after is a consequence */
        c->failed = 1;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    lf_fail(&c->error, "GPU %d%s%s: %s", c->device, c->where[0] ? ", " : "", c->where, text);
    c->failed = 1;
}

/* Does it belong to a kernel that ran, and not to the call that returned it? */
static int is_late(cudaError_t rc)
{
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");

    if (blocking && strcmp(blocking, "0"))
        return 0;                          /* every launch waits: the call is the kernel's */
    switch (rc) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
        return 1;
    default:
        return 0;
    }
}

int lf_cuda_check(lf_cuda *c, cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return 0;
    cudaGetLastError();                    /* what can be forgotten is; what cannot comes back with the next call */
    if (c->place && is_late(rc)) {
        where(c, c->place->layer, c->place->tile);
        lf_cuda_fail(c, "a kernel failed: %s (%s), seen at: %s; CUDA_LAUNCH_BLOCKING=1 tells its name",
                     cudaGetErrorString(rc), cudaGetErrorName(rc), what);
    } else {
        lf_cuda_fail(c, "%s: %s (%s)", what, cudaGetErrorString(rc), cudaGetErrorName(rc));
    }
    return -1;
}
