/* SPDX-License-Identifier: Apache-2.0 */
#include "pass.h"
#include "dev_cuda_plan.h"

#include <string.h>

const char *lf_memory_name(lf_memory_kind k)
{
    static const char *const name[LF_MEMORY_KINDS] = { "streams", "tokens", "window", "compressed", "workspace" };

    return name[k];
}

const char *lf_host_name(lf_host_kind k)
{
    static const char *const name[LF_HOST_KINDS] = { "output", "staging", "writer", "prompts" };

    return name[k];
}

int64_t lf_engine_tile(int64_t own, const lf_grid *g, int merge)
{
    return merge && g->pcp > 1 ? own / 4 : own;
}

/* An engine that knows its sizes and nothing else. */
typedef struct shell {
    lf_dev dev;
    lf_topo topo;
    lf_engine engine;
} shell;

static void shell_make(shell *x, const lf_engine_plan *s)
{
    x->dev = (lf_dev){ .model = s->model, .numerics = s->numerics, .act_bytes = s->act_bytes,
                       .tile = s->on_host ? LF_CPU_TILE : LF_CUDA_TILE, .kernels = s->kernels };
    x->topo = (lf_topo){ .grid = s->grid };
    x->engine = (lf_engine){ .setup = { .model = s->model, .tile = s->tile, .merge = s->merge,
                                        .kv_dtype = s->kv_dtype, .logits = s->logits },
                             .dev = &x->dev, .model = s->model, .topo = &x->topo };
    lf_engine_formats(&x->engine);
    lf_weights_shape(&x->engine.weights, s->model, &s->grid);
    if (s->stores)
        memcpy(x->engine.weights.stores, s->stores, sizeof x->engine.weights.stores);
}

size_t lf_engine_plan_bytes(const lf_engine_plan *s, int n, const int64_t *lengths, size_t of[LF_MEMORY_KINDS])
{
    shell x;

    shell_make(&x, s);
    return lf_pass_plan(&x.engine, n, lengths, of, NULL, NULL);
}

void lf_engine_plan_room(const lf_engine_plan *s, int n, const int64_t *lengths, int64_t *expanded, int64_t *rest)
{
    size_t slot[LF_SCRATCH_SLOTS];
    lf_dev_load load;
    shell x;

    *expanded = *rest = 0;
    if (s->on_host)
        return;
    shell_make(&x, s);
    lf_pass_plan(&x.engine, n, lengths, NULL, &load, NULL);
    lf_cuda_room(slot, &x.dev, &load);
    *expanded = lf_cuda_room_bank(slot);
    *rest = LF_CUDA_WORKSPACE + lf_cuda_room_rest(slot);
}

void lf_engine_plan_host(const lf_engine_plan *s, int n, const int64_t *lengths, size_t of[LF_HOST_KINDS])
{
    shell x;

    shell_make(&x, s);
    memset(of, 0, sizeof *of * LF_HOST_KINDS);
    lf_pass_plan(&x.engine, n, lengths, NULL, NULL, of);
    of[LF_HOST_STAGING] = s->on_host ? 0 : LF_CUDA_STAGING;
}
