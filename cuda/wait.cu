/* SPDX-License-Identifier: Apache-2.0
 *
 * The host waits for the GPU, not for ever: another rank may be gone, and then a collective never ends.  A wait that is
 * given up says which collective hangs and ends all communicators, so that the process can end too.
 */
#include "cuda.cuh"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

/* Seconds between two looks at the communicators; that the GPU has to come to rest after a wait was given up. */
static const double look_s = 0.1, rest_s = 10;

/* The first collective that has not ended: those after it only wait for it.  NULL: all have. */
static const char *oldest(lf_cuda *c)
{
    for (int64_t i = lf_max(0, c->calls - LF_CALLS); i < c->calls; i++)
        if (cudaEventQuery(c->call[i % LF_CALLS].done) == cudaErrorNotReady)
            return c->call[i % LF_CALLS].text;
    return NULL;
}

/* Nobody waits in vain twice: what comes later fails at once, with the same text. */
static int give_up(lf_cuda *c, const char *what, const char *why)
{
    const char *call = oldest(c);

    lf_cuda_fail(c, "%s: %s%s%s", what, why, call ? "; oldest collective that has not ended: " : "", call ? call : "");
    c->given_up = 1;
    if (c->comms_abort)
        c->comms_abort(c);
    return -1;
}

static int too_long(lf_cuda *c, const char *what)
{
    char why[160];

    snprintf(why, sizeof why, "nothing for %.0f seconds; is another rank gone, or waiting for its disk? "
             "LONGFILL_PATIENCE=SECONDS waits longer", c->patience);
    return give_up(c, what, why);
}

/* First without sleeping, as most waits are short. */
int lf_cuda_wait(lf_cuda *c, cudaEvent_t event, const char *what)
{
    double start = lf_now(), looked = 0;
    cudaError_t rc;
    lf_err why;

    while ((rc = cudaEventQuery(event)) == cudaErrorNotReady) {
        double waited = lf_now() - start;
        if (c->given_up) {
            lf_cuda_fail(c, "%s", what);
            return -1;
        }
        if (waited > c->patience)
            return too_long(c, what);
        if (waited - looked > look_s && c->comms_look && c->comms_look(c, &why))
            return give_up(c, what, why.text);
        looked = waited - looked > look_s ? waited : looked;
        if (waited > 0.001)
            usleep(50);
    }
    return lf_cuda_check(c, rc, what);
}

int lf_cuda_rests(lf_cuda *c)
{
    double start = lf_now();

    for (int q = 0; q < LF_QUEUES; q++)
        while (c->streams[q] && cudaStreamQuery(c->streams[q]) == cudaErrorNotReady) {
            if (lf_now() - start > (c->given_up ? rest_s : c->patience))
                return 0;
            usleep(50);
        }
    return 1;
}

/* ---- collectives under way ---- */

int lf_cuda_calls_open(lf_cuda *c, lf_err *err)
{
    for (int i = 0; i < LF_CALLS; i++) {
        cudaError_t rc = cudaEventCreateWithFlags(&c->call[i].done, cudaEventDisableTiming);
        if (rc != cudaSuccess)
            return lf_fail(err, "GPU %d has no events for collectives: %s", c->device, cudaGetErrorString(rc));
    }
    return 0;
}

void lf_cuda_calls_free(lf_cuda *c)
{
    for (int i = 0; i < LF_CALLS; i++)
        if (c->call[i].done)
            cudaEventDestroy(c->call[i].done);
}

/* Waits for the one LF_CALLS before: so the oldest that has not ended is always among those kept.  Every rank issues
 * the same ones in the same order, so this cannot be what another rank waits for. */
void lf_cuda_call_begin(lf_cuda *c, const char *fmt, ...)
{
    lf_cuda_call *k = &c->call[c->calls % LF_CALLS];
    va_list ap;

    if (lf_cuda_wait(c, k->done, "waiting for an earlier collective"))
        return;
    va_start(ap, fmt);
    int n = vsnprintf(k->text, sizeof k->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && n < (int)sizeof k->text && c->where[0])
        snprintf(k->text + n, sizeof k->text - (size_t)n, ", %s", c->where);
}

void lf_cuda_call_end(lf_cuda *c)
{
    LF_CUDA(c, cudaEventRecord(c->call[c->calls % LF_CALLS].done, c->stream), "a collective");
    c->calls++;
}

int lf_cuda_calls_wait(lf_cuda *c)
{
    return c->calls ? lf_cuda_wait(c, c->call[(c->calls - 1) % LF_CALLS].done, "waiting for the last collective") : 0;
}
