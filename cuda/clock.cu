/* SPDX-License-Identifier: Apache-2.0
 *
 * Time on the device: an event per stamp, read when their number or a sync makes it convenient.
 */
#include "cuda.cuh"

#include <stdlib.h>

enum { STAMPS = 4096 };

struct lf_cuda_clock {
    cudaEvent_t event[STAMPS];
    double *to[STAMPS];                    /* of the time from the event before */
    int n;
};

/* Adds up what is recorded; the last event begins the next interval.  Waits for it: once in STAMPS calls, or in
 * sync. */
static void settle(lf_cuda *c)
{
    lf_cuda_clock *k = c->clock;
    float ms;

    if (k->n == 0 || lf_cuda_wait(c, k->event[k->n - 1], "waiting for a time stamp"))
        return;
    for (int i = 1; i < k->n; i++)
        if (k->to[i] && !LF_CUDA(c, cudaEventElapsedTime(&ms, k->event[i - 1], k->event[i]), "reading a time stamp"))
            *k->to[i] += 1e-3 * (double)ms;
    cudaEvent_t last = k->event[k->n - 1];
    k->event[k->n - 1] = k->event[0];
    k->event[0] = last;
    k->n = 1;
}

void lf_cuda_stamp(lf_dev *d, double *to)
{
    lf_cuda *c = lf_cuda_of(d);
    lf_cuda_clock *k = c->clock;

    if (k->n == STAMPS)
        settle(c);
    if (k->n == STAMPS)
        return;                            /* the device failed: sync tells */
    k->to[k->n] = to;
    if (!LF_CUDA(c, cudaEventRecord(k->event[k->n], c->stream), "recording a time stamp"))
        k->n++;
}

void lf_cuda_clock_settle(lf_cuda *c)
{
    settle(c);
}

int lf_cuda_clock_open(lf_cuda *c, lf_err *err)
{
    c->clock = (lf_cuda_clock *)lf_alloc(sizeof *c->clock);
    for (int i = 0; i < STAMPS; i++) {
        cudaError_t rc = cudaEventCreate(&c->clock->event[i]);
        if (rc != cudaSuccess)
            return lf_fail(err, "GPU %d has no events for time stamps: %s", c->device, cudaGetErrorString(rc));
    }
    return 0;
}

void lf_cuda_clock_free(lf_cuda *c)
{
    for (int i = 0; c->clock && i < STAMPS; i++)
        if (c->clock->event[i])
            cudaEventDestroy(c->clock->event[i]);
    free(c->clock);
    c->clock = NULL;
}
