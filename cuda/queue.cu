/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues as streams, marks as events, and the host memory that copies do not wait for.
 */
#include "cuda.cuh"

int lf_cuda_queues_open(lf_cuda *c, lf_err *err)
{
    int low = 0, high = 0;
    cudaError_t rc = cudaDeviceGetStreamPriorityRange(&low, &high);

    for (int q = 0; q < LF_QUEUES && rc == cudaSuccess; q++)           /* before what is made ready beside (bank.cu) */
        rc = cudaStreamCreateWithPriority(&c->streams[q], cudaStreamNonBlocking, high);
    for (int i = 0; i < LF_MARKS && rc == cudaSuccess; i++)
        rc = cudaEventCreateWithFlags(&c->marks[i], cudaEventDisableTiming);
    if (rc == cudaSuccess)
        rc = cudaEventCreateWithFlags(&c->end, cudaEventDisableTiming);
    if (rc == cudaSuccess)
        rc = cudaEventCreateWithFlags(&c->turn, cudaEventDisableTiming);
    c->stream = c->streams[LF_QUEUE_COMPUTE];
    return rc == cudaSuccess ? 0 : lf_fail(err, "GPU %d could not be opened: %s", c->device, cudaGetErrorString(rc));
}

void lf_cuda_queues_free(lf_cuda *c)
{
    for (int i = 0; i < LF_MARKS; i++)
        if (c->marks[i])
            cudaEventDestroy(c->marks[i]);
    if (c->end)
        cudaEventDestroy(c->end);
    if (c->turn)
        cudaEventDestroy(c->turn);
    for (int q = 0; q < LF_QUEUES; q++)
        if (c->streams[q])
            cudaStreamDestroy(c->streams[q]);
}

/* A wait is for what the event was last recorded for, so one event serves all turns. */
void lf_cuda_turn(lf_cuda *c, lf_queue from, lf_queue to)
{
    if (from != to && !LF_CUDA(c, cudaEventRecord(c->turn, c->streams[from]), "handing over to another queue"))
        LF_CUDA(c, cudaStreamWaitEvent(c->streams[to], c->turn, 0), "handing over to another queue");
}

void lf_cuda_use(lf_dev *d, lf_queue q)
{
    lf_cuda *c = lf_cuda_of(d);

    c->queue = q;
    c->stream = c->streams[q];
}

void lf_cuda_mark(lf_dev *d, int mark)
{
    lf_cuda *c = lf_cuda_of(d);

    LF_CUDA(c, cudaEventRecord(c->marks[mark], c->stream), "setting a mark");
}

void lf_cuda_after(lf_dev *d, int mark)
{
    lf_cuda *c = lf_cuda_of(d);

    LF_CUDA(c, cudaStreamWaitEvent(c->stream, c->marks[mark], 0), "waiting for a mark");
}

void lf_cuda_await(lf_dev *d, int mark)
{
    lf_cuda *c = lf_cuda_of(d);

    lf_cuda_wait(c, c->marks[mark], "waiting for a mark");
}

int lf_cuda_past(lf_dev *d, int mark)
{
    return cudaEventQuery(lf_cuda_of(d)->marks[mark]) != cudaErrorNotReady;      /* errors: sync tells */
}

int lf_cuda_host_take(lf_dev *d, void **out, size_t bytes, const char *what, lf_err *err)
{
    lf_cuda *c = lf_cuda_of(d);
    cudaError_t rc = cudaMallocHost(out, bytes ? bytes : 1);
    char text[24];

    if (rc == cudaSuccess)
        return 0;
    *out = NULL;
    cudaGetLastError();
    return lf_fail(err, "GPU %d: %s of pinned host memory could not be had for %s: %s; check ulimit -l", c->device,
                   lf_human_bytes(text, (double)bytes), what, cudaGetErrorString(rc));
}

void lf_cuda_host_give(lf_dev *d, void *p)
{
    if (p && !lf_cuda_of(d)->given_up)     /* it would wait for what hangs */
        LF_CUDA(lf_cuda_of(d), cudaFreeHost(p), "giving host memory back");
}

void lf_cuda_fetch(lf_dev *d, void *host, const void *src, size_t bytes)
{
    lf_cuda *c = lf_cuda_of(d);

    if (bytes)
        LF_CUDA(c, cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, c->stream), "copy from the GPU");
}
