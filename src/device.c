/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "device.h"

#include "dev_cuda.h"
#include "dev_cuda_choice.h"
#include "log.h"

#include <stdlib.h>
#include <string.h>

/* auto went without GPUs: a job that has some, on nodes whose driver fails, would take days.  A program that knows no
 * GPUs says nothing. */
static void say_cpu(const lf_err *why)
{
#ifdef LF_HAVE_CUDA
    lf_progress("computing on the CPU: %s", why->text[0] ? why->text : "another rank has no usable GPU");
    lf_progress_end();
#else
    (void)why;
#endif
}

/* GPUs for all, or for none. */
static int choose(lf_topo *t, int choice, int *gpus, int *use, lf_err *err)
{
    lf_err why = { "" };
    int none = lf_cuda_devices(gpus, &why), missing, asked = choice == LF_DEVICE_CUDA;

    *use = 0;
    if (choice == LF_DEVICE_CPU)
        return 0;
    if (asked && none)
        *err = why;
    if (asked ? lf_topo_agree(t->world, none, err) : lf_topo_any(t->world, none, &missing, err))
        return -1;
    *use = asked || !missing;
    if (!*use)
        say_cpu(&why);
    return 0;
}

/* May the ranks of a node share its GPUs?  Where one says so, all of them. */
static int shared(lf_topo *t, int *share, lf_err *err)
{
    const char *text = getenv("LONGFILL_SHARE_GPUS");

    return lf_topo_any(t->world, text && *text && strcmp(text, "0"), share, err);
}

static int pick(const lf_topo *t, int gpus, int share, int *device, lf_err *err)
{
    *device = share ? t->local_rank % gpus : gpus == 1 ? 0 : t->local_rank;
    if (*device < gpus)
        return 0;
    return lf_fail(err, "this node has %d ranks and %d GPUs: start at most one rank a GPU (srun --ntasks-per-node=%d "
                   "--gpus-per-node=%d --gpu-bind=none, or mpirun --map-by ppr:%d:node)", t->local_size, gpus, gpus,
                   gpus, gpus);
}

/* A launcher that shows each rank one GPU may show two ranks the same. */
static int check_apart(lf_topo *t, int device, lf_err *err)
{
    int size = lf_comm_size(t->world), rank = lf_comm_rank(t->world);
    int64_t *send = lf_alloc(16 * (size_t)size), *all = lf_alloc(16 * (size_t)size);
    int other = -1, bad = lf_cuda_uuid(device, send, err);

    for (int r = 1; r < size; r++)
        memcpy(send + 2 * r, send, 16);
    int late = lf_coll_counts(t->world, all, send, 2, bad ? &(lf_err){ "" } : err);
    for (int r = 0; r < rank && !bad && !late; r++)
        if (memcmp(all + 2 * r, send, 16) == 0)
            other = r;
    free(send);
    free(all);
    if (other >= 0)
        return lf_fail(err, "ranks %d and %d are on one GPU: give each its own (srun --ntasks-per-node=G "
                       "--gpus-per-node=G --gpu-bind=none with G GPUs a node)", other, rank);
    return bad || late ? -1 : 0;
}

int lf_device_open(lf_dev **out, lf_topo *t, const lf_model *m, lf_numerics numerics, lf_kv_dtype kv_dtype, int choice,
                   int threads, lf_err *err)
{
    int gpus = 0, use, share, device = 0;
    int act_bytes = numerics == LF_EXACT && kv_dtype == LF_KV_F32 ? 4 : 2;

    if (choose(t, choice, &gpus, &use, err) || shared(t, &share, err))
        return -1;
    if (!use)
        return lf_topo_agree(t->world, lf_kernels_none(err) || lf_cpu_open(out, m, numerics, threads, err), err);
    if (lf_topo_agree(t->world, pick(t, gpus, share, &device, err), err) ||
        (!share && lf_topo_agree(t->world, check_apart(t, device, err), err)) ||
        lf_topo_agree(t->world, lf_cuda_open(out, m, numerics, act_bytes, device, err), err))
        return -1;
    return share ? 0 : lf_topo_attach(t, *out, err);
}
