/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory, scratch, and copies.
 *
 * Host memory that copies meet is pageable and may be gone as soon as put() returns: it goes through pinned pieces, so
 * that put() waits for the GPU only when all pieces are on their way.
 */
#include "cuda.cuh"

extern "C" {
#include "log.h"
}

#include <stdlib.h>
#include <string.h>

/* ---- take, give, scratch ---- */

static void count_in(lf_cuda *c, size_t bytes)
{
    c->dev.taken += bytes;
    c->dev.peak = c->dev.taken > c->dev.peak ? c->dev.taken : c->dev.peak;
}

int lf_cuda_take(lf_dev *d, void **out, size_t bytes, const char *what, lf_err *err)
{
    lf_cuda *c = lf_cuda_of(d);
    size_t all = lf_max(LF_CUDA_GRAIN, lf_round_up((int64_t)bytes, LF_CUDA_GRAIN)), left = 0, total = 0;
    char a[24], b[24];

    cudaError_t rc = cudaMalloc(out, all);
    if (rc != cudaSuccess) {
        *out = NULL;
        cudaGetLastError();
        cudaMemGetInfo(&left, &total);
        return lf_fail(err, "GPU %d has no memory for %s: %s could not be had (%s), %s are free", c->device, what,
                       lf_human_bytes(a, (double)all), cudaGetErrorString(rc), lf_human_bytes(b, (double)left));
    }
    if (c->helds == c->held_room) {
        c->held_room = c->held_room ? 2 * c->held_room : 256;
        c->held = (lf_cuda_held *)lf_realloc(c->held, sizeof *c->held * (size_t)c->held_room);
    }
    c->held[c->helds].p = *out;
    c->held[c->helds++].bytes = all;
    count_in(c, all);
    return 0;
}

void lf_cuda_give(lf_dev *d, void *p)
{
    lf_cuda *c = lf_cuda_of(d);

    if (!p || c->given_up)                 /* cudaFree would wait for what hangs; close frees, when it can */
        return;
    for (int i = c->helds; i-- > 0;)
        if (c->held[i].p == p) {
            c->dev.taken -= c->held[i].bytes;
            c->held[i] = c->held[--c->helds];
            LF_CUDA(c, cudaFree(p), "giving memory back");
            return;
        }
    lf_cuda_fail(c, "memory was given back that was not taken");
}

void *lf_cuda_scratch(lf_cuda *c, lf_cuda_slot slot, size_t bytes)
{
    lf_cuda_area *a = &c->scratch[slot];
    size_t all = lf_max(LF_CUDA_GRAIN, lf_round_up((int64_t)bytes, LF_CUDA_GRAIN));
    char text[24];

    if (a->bytes >= all && a->p)
        return a->p;
    if (c->reserved)
        lf_verbose("GPU %d%s%s: scratch %d grows beyond what was planned, to %zu bytes", c->device,
                   c->where[0] ? ", " : "", c->where, (int)slot, all);
    if (a->p) {                            /* kernels that use it may be under way: cudaFree waits for them */
        LF_CUDA(c, cudaFree(a->p), "growing scratch memory");
        c->dev.taken -= a->bytes;
        *a = lf_cuda_area();
    }
    cudaError_t rc = cudaMalloc(&a->p, all);
    if (rc != cudaSuccess) {
        cudaGetLastError();
        lf_cuda_fail(c, "%s of scratch memory could not be had: %s", lf_human_bytes(text, (double)all),
                     cudaGetErrorString(rc));
        a->p = NULL;
        return NULL;
    }
    a->bytes = all;
    count_in(c, all);
    return a->p;
}

/* A bank is emptied by growing, so what it holds must not be believed. */
int lf_cuda_reserve(lf_dev *d, const lf_dev_load *load, lf_err *err)
{
    lf_cuda *c = lf_cuda_of(d);
    size_t slot[LF_SCRATCH_SLOTS];

    lf_cuda_room(slot, d, load);
    for (int i = LF_SCRATCH_MOE_BANK; i <= LF_SCRATCH_MOE_BANK_2_SCALE; i++)
        if (slot[i] > c->scratch[i].bytes)
            lf_cuda_banks_forget(c);
    c->reserved = 0;
    for (int i = 0; i < LF_SCRATCH_SLOTS; i++)
        if (slot[i] && !lf_cuda_scratch(c, (lf_cuda_slot)i, slot[i])) {
            c->failed = 0;
            return lf_fail(err, "%s", c->error.text);
        }
    c->reserved = 1;
    return 0;
}

int64_t lf_cuda_left(lf_dev *d)
{
    lf_cuda *c = lf_cuda_of(d);
    size_t left = 0, total = 0;

    return LF_CUDA(c, cudaMemGetInfo(&left, &total), "free memory") ? -1 : (int64_t)left;
}

/* ---- staging ---- */

int lf_cuda_memory_open(lf_cuda *c, lf_err *err)
{
    char *all = NULL;
    cudaError_t rc = cudaMallocHost((void **)&all, (size_t)LF_STAGES * LF_STAGE_BYTES);

    c->stage[0].p = all;
    for (int i = 0; i < LF_STAGES && rc == cudaSuccess; i++) {
        c->stage[i].p = all + (size_t)i * LF_STAGE_BYTES;
        rc = cudaEventCreateWithFlags(&c->stage[i].done, cudaEventDisableTiming);
    }
    if (rc != cudaSuccess)
        return lf_fail(err, "GPU %d: %d MiB of pinned host memory could not be had: %s; check ulimit -l", c->device,
                       LF_STAGES * (LF_STAGE_BYTES >> 20), cudaGetErrorString(rc));
    return 0;
}

void lf_cuda_memory_free(lf_cuda *c)
{
    for (int i = 0; i < LF_STAGES; i++)
        if (c->stage[i].done)
            cudaEventDestroy(c->stage[i].done);
    if (c->stage[0].p)
        cudaFreeHost(c->stage[0].p);
    for (int i = 0; i < LF_SCRATCH_SLOTS; i++)
        if (c->scratch[i].p)
            cudaFree(c->scratch[i].p);
    for (int i = 0; i < c->helds; i++)
        cudaFree(c->held[i].p);
    free(c->held);
    c->held = NULL;
    c->helds = 0;
}

/* The next pinned piece, once its last copy is over; NULL: recorded. */
static lf_cuda_stage *stage_next(lf_cuda *c)
{
    lf_cuda_stage *s = &c->stage[c->next_stage];

    c->next_stage = (c->next_stage + 1) % LF_STAGES;
    return lf_cuda_wait(c, s->done, "waiting for a copy") ? NULL : s;
}

void lf_cuda_put(lf_dev *d, void *dst, const void *host, size_t bytes)
{
    lf_cuda *c = lf_cuda_of(d);

    for (size_t at = 0, n; at < bytes; at += n) {
        lf_cuda_stage *s = stage_next(c);
        n = bytes - at < LF_STAGE_BYTES ? bytes - at : LF_STAGE_BYTES;
        if (!s)
            return;
        memcpy(s->p, (const char *)host + at, n);
        if (LF_CUDA(c, cudaMemcpyAsync((char *)dst + at, s->p, n, cudaMemcpyHostToDevice, c->stream),
                    "copy to the GPU") ||
            LF_CUDA(c, cudaEventRecord(s->done, c->stream), "copy to the GPU"))
            return;
    }
}

/* Copies run ahead of the host by as many pieces as there are.  Returns the bytes that came. */
static size_t get(lf_cuda *c, void *host, const void *src, size_t bytes)
{
    size_t out = 0, in = 0, n;
    lf_cuda_stage *flight[LF_STAGES];
    int first = 0, flying = 0;

    while (in < bytes) {
        while (out < bytes && flying < LF_STAGES) {
            lf_cuda_stage *s = stage_next(c);
            n = bytes - out < LF_STAGE_BYTES ? bytes - out : LF_STAGE_BYTES;
            if (!s || LF_CUDA(c, cudaMemcpyAsync(s->p, (const char *)src + out, n, cudaMemcpyDeviceToHost, c->stream),
                              "copy from the GPU") ||
                LF_CUDA(c, cudaEventRecord(s->done, c->stream), "copy from the GPU"))
                return in;
            flight[(first + flying++) % LF_STAGES] = s;
            out += n;
        }
        n = bytes - in < LF_STAGE_BYTES ? bytes - in : LF_STAGE_BYTES;
        if (lf_cuda_wait(c, flight[first]->done, "copy from the GPU"))
            return in;
        memcpy((char *)host + in, flight[first]->p, n);
        first = (first + 1) % LF_STAGES;
        flying--;
        in += n;
    }
    return in;
}

/* The caller will use the bytes before it hears of an error: they are at least not whatever was there. */
void lf_cuda_get(lf_dev *d, void *host, const void *src, size_t bytes)
{
    size_t came = get(lf_cuda_of(d), host, src, bytes);

    if (came < bytes)
        memset((char *)host + came, 0, bytes - came);
}

/* ---- copies on the device ---- */

void lf_cuda_copy(lf_dev *d, void *dst, const void *src, size_t bytes)
{
    lf_cuda *c = lf_cuda_of(d);

    if (bytes && dst != src)
        LF_CUDA(c, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, c->stream), "copy");
}

void lf_cuda_copy_rows(lf_dev *d, void *dst, size_t ldd, const void *src, size_t lds, size_t row_bytes, int64_t rows)
{
    lf_cuda *c = lf_cuda_of(d);

    if (row_bytes == 0 || rows == 0)
        return;
    if (rows == 1 || (ldd == row_bytes && lds == row_bytes))
        lf_cuda_copy(d, dst, src, row_bytes * (size_t)rows);
    else
        LF_CUDA(c, cudaMemcpy2DAsync(dst, ldd, src, lds, row_bytes, (size_t)rows, cudaMemcpyDeviceToDevice, c->stream),
                "copy of rows");
}

/* A block a row; V is the widest word that rows and pointers are multiples of. */
template <typename V>
static __global__ void gather_rows(V *dst, const V *src, const int32_t *idx, int64_t words)
{
    V *to = dst + (int64_t)blockIdx.x * words;
    const V *from = src + (int64_t)idx[blockIdx.x] * words;

    for (int64_t i = threadIdx.x; i < words; i += blockDim.x)
        to[i] = from[i];
}

/* Rows of one word: a thread each. */
static __global__ void gather_words(uint32_t *dst, const uint32_t *src, const int32_t *idx, int64_t rows)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < rows)
        dst[i] = src[idx[i]];
}

template <typename V>
static void gather_as(lf_cuda *c, void *dst, const void *src, const int32_t *idx, int64_t rows, size_t row_bytes)
{
    int64_t words = (int64_t)(row_bytes / sizeof(V));
    int threads = (int)lf_min(256, lf_round_up(words, 32));

    gather_rows<V><<<(unsigned)rows, threads, 0, c->stream>>>((V *)dst, (const V *)src, idx, words);
}

void lf_cuda_gather(lf_dev *d, void *dst, const void *src, const int32_t *idx, int64_t rows, size_t row_bytes)
{
    lf_cuda *c = lf_cuda_of(d);
    uintptr_t all = (uintptr_t)dst | (uintptr_t)src | row_bytes;

    if (rows == 0 || row_bytes == 0)
        return;
    if (row_bytes == 4 && all % 4 == 0)
        gather_words<<<lf_blocks(rows, 256), 256, 0, c->stream>>>((uint32_t *)dst, (const uint32_t *)src, idx, rows);
    else if (all % 16 == 0)
        gather_as<uint4>(c, dst, src, idx, rows, row_bytes);
    else if (all % 4 == 0)
        gather_as<uint32_t>(c, dst, src, idx, rows, row_bytes);
    else
        gather_as<uint8_t>(c, dst, src, idx, rows, row_bytes);
    LF_LAUNCHED(c, "gather");
}

void lf_cuda_fill(lf_dev *d, void *dst, int byte, size_t bytes)
{
    lf_cuda *c = lf_cuda_of(d);

    if (bytes)
        LF_CUDA(c, cudaMemsetAsync(dst, byte, bytes, c->stream), "fill");
}
