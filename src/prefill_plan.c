/* SPDX-License-Identifier: Apache-2.0 */
#include "pass.h"

const char *lf_memory_name(lf_memory_kind k)
{
    static const char *const name[LF_MEMORY_KINDS] = { "streams", "tokens", "window", "compressed", "workspace" };

    return name[k];
}

/* An engine that knows its sizes and nothing else. */
size_t lf_engine_plan_bytes(const lf_engine_plan *s, int n, const int64_t *lengths, size_t of[LF_MEMORY_KINDS])
{
    lf_dev dev = { .model = s->model, .numerics = s->numerics, .act_bytes = s->act_bytes,
                   .tile = s->on_host ? LF_CPU_TILE : LF_CUDA_TILE };
    lf_topo topo = { .grid = s->grid };
    lf_engine e = { .setup = { .model = s->model, .tile = s->tile, .merge = s->merge, .logits = { .topk = s->topk } },
                    .dev = &dev, .model = s->model, .topo = &topo };

    lf_engine_formats(&e);
    lf_weights_shape(&e.weights, s->model, &s->grid);
    return lf_pass_bytes(&e, n, lengths, of);
}
