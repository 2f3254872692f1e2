/* SPDX-License-Identifier: Apache-2.0
 *
 * Time on the device: an event per stamp, read when their number or a sync makes it convenient.  What the compute queue
 * does between two stamps is also a range of NVTX, by which profilers can tell phases.
 */
#include "cuda.cuh"

#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>

enum { STAMPS = 4096 };

typedef struct stamps {                    /* of one queue */
    cudaEvent_t event[STAMPS];
    double *to[STAMPS];                    /* of the time from the event before */
    int n;
} stamps;

struct lf_cuda_clock {
    stamps of[LF_QUEUES];
    int range;                             /* is one open? */
};

/* Adds up the first m intervals and forgets them; the event that ends them begins the rest.  Waits for it. */
static void settle(lf_cuda *c, stamps *k, int m)
{
    float ms;

    if (m <= 0 || lf_cuda_wait(c, k->event[m], "waiting for a time stamp"))
        return;
    for (int i = 1; i <= m; i++)
        if (k->to[i] && !LF_CUDA(c, cudaEventElapsedTime(&ms, k->event[i - 1], k->event[i]), "reading a time stamp"))
            *k->to[i] += 1e-3 * (double)ms;
    for (int i = m; i < k->n; i++) {
        cudaEvent_t old = k->event[i - m];
        k->event[i - m] = k->event[i];
        k->event[i] = old;
        k->to[i - m] = k->to[i];
    }
    k->n -= m;
}

static void range(lf_cuda_clock *k, const char *next)
{
    if (k->range)
        nvtxRangePop();
    if (next)
        nvtxRangePushA(next);
    k->range = next != NULL;
}

void lf_cuda_stamp(lf_dev *d, double *to, const char *next)
{
    lf_cuda *c = lf_cuda_of(d);
    stamps *k = &c->clock->of[c->queue];

    if (c->queue == LF_QUEUE_COMPUTE)
        range(c->clock, next);
    if (k->n == STAMPS)
        settle(c, k, STAMPS / 2);          /* half: the queue goes on meanwhile */
    if (k->n == STAMPS)
        return;                            /* the device failed: sync tells */
    k->to[k->n] = to;
    if (!LF_CUDA(c, cudaEventRecord(k->event[k->n], c->stream), "recording a time stamp"))
        k->n++;
}

void lf_cuda_clock_settle(lf_cuda *c)
{
    for (int q = 0; q < LF_QUEUES; q++)
        settle(c, &c->clock->of[q], c->clock->of[q].n - 1);
}

int lf_cuda_clock_open(lf_cuda *c, lf_err *err)
{
    c->clock = (lf_cuda_clock *)lf_alloc(sizeof *c->clock);
    for (int i = 0; i < LF_QUEUES * STAMPS; i++) {
        cudaError_t rc = cudaEventCreate(&c->clock->of[i / STAMPS].event[i % STAMPS]);
        if (rc != cudaSuccess)
            return lf_fail(err, "GPU %d has no events for time stamps: %s", c->device, cudaGetErrorString(rc));
    }
    return 0;
}

void lf_cuda_clock_free(lf_cuda *c)
{
    for (int i = 0; c->clock && i < LF_QUEUES * STAMPS; i++)
        if (c->clock->of[i / STAMPS].event[i % STAMPS])
            cudaEventDestroy(c->clock->of[i / STAMPS].event[i % STAMPS]);
    free(c->clock);
    c->clock = NULL;
}
