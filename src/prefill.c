/* SPDX-License-Identifier: Apache-2.0 */
#include "pass.h"
#include "traffic.h"

#include <stdlib.h>

const char *lf_phase_name(lf_phase p)
{
    static const char *const name[LF_PHASES] = {
        [LF_PHASE_PROJECTIONS] = "projections", [LF_PHASE_INDEXER] = "indexer", [LF_PHASE_ATTENTION] = "attention",
        [LF_PHASE_MOE] = "moe", [LF_PHASE_MHC] = "mhc", [LF_PHASE_HEAD] = "head",
        [LF_PHASE_COMMUNICATION] = "communication", [LF_PHASE_WRITE_WAIT] = "write_wait",
    };

    return name[p];
}

void lf_engine_formats(lf_engine *e)
{
    e->row_fmt = lf_travel_fmt(e->dev->numerics, e->dev->act_bytes, 0);
    e->index_fmt = lf_travel_fmt(e->dev->numerics, e->dev->act_bytes, 1);
}

int lf_engine_open(lf_engine **out, const lf_engine_setup *s, lf_err *err)
{
    if (s->probe && s->merge)
        return lf_fail(err, "a probe looks at whole rows: it works in gather mode, not in merge mode");
    lf_engine *e = lf_alloc(sizeof *e);

    e->setup = *s;
    e->dev = s->dev;
    e->model = s->model;
    e->topo = s->topo;
    lf_engine_formats(e);
    if (lf_weights_load(&e->weights, s->model, s->checkpoint, s->seed, s->dev, &s->topo->grid, err) ||
        s->dev->ops->host_take(s->dev, &e->host_count, lf_engine_counts(s->model), "counts of pairs", err)) {
        lf_engine_close(e);
        return -1;
    }
    *out = e;
    return 0;
}

int64_t lf_engine_loaded(const lf_engine *e)
{
    return e->weights.read;
}

void lf_engine_close(lf_engine *e)
{
    if (!e)
        return;
    e->dev->ops->give(e->dev, e->arena);
    e->dev->ops->host_give(e->dev, e->out_host);
    e->dev->ops->host_give(e->dev, e->host_count);
    lf_weights_free(&e->weights);
    free(e);
}

/* The experts that a device may get ready while the layer before runs. */
static void prepare(lf_pass *p, int layer)
{
    const lf_weights *w = &p->engine->weights;

    if (!p->ops->prepare || layer >= p->model->layers)
        return;
    lf_experts e = { .experts = w->experts, .w1 = w->layer[layer].w1, .w2 = w->layer[layer].w2,
                     .w3 = w->layer[layer].w3 };
    p->ops->prepare(p->dev, &e);
}

static int layers(lf_pass *p)
{
    prepare(p, 0);
    p->ops->embed(p->dev, p->x, p->ids, p->mine->rows, &p->engine->weights.embed);
    for (int layer = 0; layer < p->model->layers; layer++) {
        prepare(p, layer + 1);
        if (lf_attention_sublayer(p, layer))
            return lf_fail_in(p->err, "layer %d, attention", layer);
        if (lf_moe_sublayer(p, layer))
            return lf_fail_in(p->err, "layer %d, experts", layer);
        lf_out_drain(p, 0);
        p->sink->layer_done(p->sink->ctx, layer);
    }
    return 0;
}

/* Memory is had by all ranks of the group or the pass does not begin (-1 on all): a rank left alone would wait in a
 * collective.  -2: the others cannot be asked. */
static int open_together(lf_pass *p, lf_engine *e, int n, const lf_prompt *prompts, const lf_sink *sink,
                         double *seconds, lf_err *err)
{
    int any, bad = lf_pass_open(p, e, n, prompts, sink, seconds, err);

    if (lf_topo_any(e->topo->group, bad, &any, err))
        return -2;
    if (any && !bad)
        bad = lf_fail(err, "another rank has no memory for this pass");
    return bad;
}

int lf_engine_run(lf_engine *e, int n, const lf_prompt *prompts, const lf_sink *sink, double *seconds, lf_err *err)
{
    lf_pass p;
    lf_err later;                          /* only the first error is told */
    int refused = open_together(&p, e, n, prompts, sink, seconds, err), bad = refused;

    if (!bad)
        bad = layers(&p) || lf_head_last(&p);
    if (!bad) {
        sink->first_token(sink->ctx);
        bad = lf_head_all(&p);
    }
    if (!bad)
        lf_out_drain(&p, 1);
    e->dev->ops->stamp(e->dev, &seconds[p.phase], NULL);
    e->dev->ops->at(e->dev, -1, -1);
    if (e->dev->ops->sync(e->dev, bad ? &later : err))
        bad = -1;
    lf_pass_close(&p);
    return refused == -1 ? -1 : bad ? -2 : 0;
}
