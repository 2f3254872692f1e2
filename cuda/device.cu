/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing a GPU, errors, the table of operations.
 */
#include "cuda.cuh"

#include <stdio.h>
#include <stdlib.h>

int lf_cuda_devices(int *count, lf_err *err)
{
    cudaError_t rc = cudaGetDeviceCount(count);

    if (rc != cudaSuccess) {
        *count = 0;
        cudaGetLastError();
        return lf_fail(err, "no usable GPU: %s; check the driver with nvidia-smi, or use --device cpu",
                       cudaGetErrorString(rc));
    }
    if (*count == 0)
        return lf_fail(err, "no GPU is visible: check CUDA_VISIBLE_DEVICES and what the job asked for, "
                       "or use --device cpu");
    return 0;
}

static int properties(int device, cudaDeviceProp *p, lf_err *err)
{
    cudaError_t rc = cudaGetDeviceProperties(p, device);

    return rc == cudaSuccess ? 0 : lf_fail(err, "GPU %d: its properties could not be read: %s", device,
                                           cudaGetErrorString(rc));
}

int lf_cuda_uuid(int device, void *uuid, lf_err *err)
{
    cudaDeviceProp p;

    if (properties(device, &p, err))
        return -1;
    memcpy(uuid, &p.uuid, 16);
    return 0;
}

static int cuda_sync(lf_dev *d, lf_err *err)
{
    lf_cuda *c = lf_cuda_of(d);

    lf_cuda_load_end(c);
    c->failed |= c->given_up;
    if (!c->failed)
        lf_cuda_fold_settle(c);
    for (int q = 0; q < LF_QUEUES && !c->failed; q++)
        if (!LF_CUDA(c, cudaEventRecord(c->end, c->streams[q]), "waiting for the GPU"))
            lf_cuda_wait(c, c->end, "waiting for the GPU");
    if (!c->failed)
        lf_cuda_banks_wait(c);
    if (!c->failed)
        lf_cuda_clock_settle(c);
    if (!c->failed)
        return 0;
    if (!c->given_up && !c->comms)         /* what comes next finds no queue still at work; others may be gone */
        lf_cuda_rests(c);
    c->failed = 0;
    return lf_fail(err, "%s", c->error.text);
}

static int cuda_failed(lf_dev *d, lf_err *err)
{
    lf_cuda *c = lf_cuda_of(d);

    return c->failed || c->given_up ? lf_fail(err, "%s", c->error.text) : 0;
}

/* ---- the table ---- */

static void cuda_close(lf_dev *d)
{
    lf_cuda *c = lf_cuda_of(d);

    cudaSetDevice(c->device);
    if (!lf_cuda_rests(c))
        return;                            /* freeing would wait for what hangs: the end of the process frees */
    lf_cuda_load_end(c);
    lf_cuda_looks_free(c);
    lf_cuda_banks_free(c);
    lf_cuda_plans_free(c);
    lf_cuda_stores_free(c);
    lf_cuda_clock_free(c);
    lf_cuda_memory_free(c);
    lf_cuda_told_free(c);
    if (c->blas)
        cublasLtDestroy(c->blas);
    lf_cuda_calls_free(c);
    lf_cuda_errors_free(c);
    lf_cuda_queues_free(c);
    free(c);
}

static const lf_dev_ops cuda_ops = {
    .name = "cuda", .close = cuda_close,
    .take = lf_cuda_take, .give = lf_cuda_give, .put = lf_cuda_put, .get = lf_cuda_get, .copy = lf_cuda_copy,
    .copy_rows = lf_cuda_copy_rows, .gather = lf_cuda_gather, .fill = lf_cuda_fill, .sync = cuda_sync,
    .stamp = lf_cuda_stamp, .use = lf_cuda_use, .mark = lf_cuda_mark, .after = lf_cuda_after, .wait = lf_cuda_await,
    .past = lf_cuda_past, .host_take = lf_cuda_host_take, .host_give = lf_cuda_host_give, .fetch = lf_cuda_fetch,
    .failed = cuda_failed, .at = lf_cuda_at,
    .expect = lf_cuda_expect, .reserve = lf_cuda_reserve, .load = lf_cuda_load, .left = lf_cuda_left,
    .weight = lf_cuda_weight, .made_up = lf_cuda_made_up, .gemm = lf_cuda_gemm, .embed = lf_cuda_embed,
    .hc_pre = lf_cuda_hc_pre, .hc_post = lf_cuda_hc_post, .hc_head = lf_cuda_hc_head,
    .norm = lf_cuda_norm, .query = lf_cuda_query, .rotate = lf_cuda_rotate, .window = lf_cuda_window,
    .index_query = lf_cuda_index_query, .scale = lf_cuda_scale, .add = lf_cuda_add,
    .round = lf_cuda_round,
    .add_ape = lf_cuda_add_ape, .compress = lf_cuda_compress,
    .row_pack = lf_cuda_row_pack, .row_unpack = lf_cuda_row_unpack,
    .index_topk = lf_cuda_index_topk, .topk_merge = lf_cuda_topk_merge,
    .attention = lf_cuda_attention, .merge = lf_cuda_merge,
    .route = lf_cuda_route, .pairs = lf_cuda_pairs, .arrivals = lf_cuda_arrivals, .prepare = lf_cuda_prepare,
    .experts = lf_cuda_experts, .combine = lf_cuda_combine,
    .logits_topk = lf_cuda_logits_topk, .logprob = lf_cuda_logprob,
};

/* ---- opening ---- */

static int refuse(const lf_model *m, lf_numerics numerics, int act_bytes, lf_err *err)
{
    if (act_bytes != 2 && act_bytes != 4)
        return lf_fail(err, "activations of %d bytes: the GPU backend has bf16 (2) and float32 (4)", act_bytes);
    if (numerics == LF_RELEASED && act_bytes != 2)
        return lf_fail(err, "released numerics have bf16 activations: float32 ones need --numerics exact");
    if (numerics == LF_RELEASED && (m->index_dim & (m->index_dim - 1)))
        return lf_fail(err, "released numerics need an index_head_dim that is a power of two (Hadamard transform), "
                       "not %d: use --numerics exact", m->index_dim);
    return 0;
}

static int check_gpu(lf_cuda *c, lf_err *err)
{
    cudaDeviceProp p;

    if (properties(c->device, &p, err))
        return -1;
    if (p.major != 9 || p.minor != 0)
        return lf_fail(err, "GPU %d is a %s of compute capability %d.%d: this program was built for 9.0 (H100, H200, "
                       "GH200); choose another with CUDA_VISIBLE_DEVICES, or use --device cpu", c->device, p.name,
                       p.major, p.minor);
    snprintf(c->dev.name, sizeof c->dev.name, "%s", p.name);
    c->sms = p.multiProcessorCount;
    c->smem_max = p.sharedMemPerBlockOptin;
    return 0;
}

static int start(lf_cuda *c, lf_err *err)
{
    cudaError_t rc = cudaSetDevice(c->device);

    if (rc != cudaSuccess)
        return lf_fail(err, "GPU %d could not be opened: %s", c->device, cudaGetErrorString(rc));
    cublasStatus_t blas = cublasLtCreate(&c->blas);
    if (blas != CUBLAS_STATUS_SUCCESS)
        return lf_fail(err, "GPU %d: cuBLASLt did not start: %s", c->device, cublasLtGetStatusString(blas));
    return lf_cuda_errors_open(c, err) || lf_cuda_queues_open(c, err) || lf_cuda_calls_open(c, err) ||
           lf_cuda_memory_open(c, err) || lf_cuda_clock_open(c, err) || lf_cuda_plans_open(c, err) ||
           lf_cuda_banks_open(c, err) ? -1 : 0;
}

void lf_cuda_blocks_most(lf_dev *d, int most)
{
    lf_cuda *c = lf_cuda_of(d);

    c->sms = (int)lf_min(c->sms, most);
}

int lf_cuda_open(lf_dev **out, const lf_model *m, lf_numerics numerics, int act_bytes, int device, lf_err *err)
{
    int count;

    *out = NULL;
    if (refuse(m, numerics, act_bytes, err) || lf_cuda_devices(&count, err))
        return -1;
    if (device < 0 || device >= count)
        return lf_fail(err, "GPU %d does not exist: this process sees GPUs 0 to %d", device, count - 1);
    lf_cuda *c = (lf_cuda *)lf_alloc(sizeof *c);
    c->device = device;
    c->dev.ops = &cuda_ops;
    c->dev.model = m;
    c->dev.numerics = numerics;
    c->dev.act_bytes = (size_t)act_bytes;
    c->dev.tile = LF_CUDA_TILE;
    if (lf_patience(&c->patience, err) || lf_kernels_read(&c->dev.kernels, err) || check_gpu(c, err) || start(c, err)) {
        cuda_close(&c->dev);
        return -1;
    }
    *out = &c->dev;
    return 0;
}
