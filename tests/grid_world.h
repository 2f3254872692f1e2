/* SPDX-License-Identifier: Apache-2.0
 *
 * grid_world: what the tests of grids and of devices share: a made-up model and prompts known to every rank, runs of
 * the engine in one setting, comparison of two runs over all ranks.  Rank 0 prints one result for all.
 */
#ifndef LF_GRID_WORLD_H
#define LF_GRID_WORLD_H

#include "tap.h"
#include "dev_cuda_plan.h"
#include "device.h"
#include "grid_noise.h"
#include "made_ids.h"
#include "plan.h"
#include "synthdir.h"

enum { PROMPTS = 6, TOPK = 3 };

static const int64_t length_of[PROMPTS] = { 1, 3, 128, 131, 300, 1153 };

typedef struct world {
    int rank, size;
    lf_model model;
    lf_checkpoint *checkpoint;
    lf_prompt prompt[PROMPTS];
    lf_comm *all;
    lf_dev *dev;                           /* for sums over all ranks */
    int leaks;                             /* engines that did not give back what they took */
    int late;                              /* runs whose experts were not prepared a layer ahead */
    int unplanned;                         /* engines whose weights took other memory than planned */
    int off_peak;                          /* passes that took other memory than planned */
    int unplanned_host;                    /* engines that took other host memory */
} world;

/* Rank 0 writes the model; the name of its directory goes round. */
static inline int open_model(world *w, const char *name, lf_synth_options o, lf_err *err)
{
    int bad = 0, any;

    if (w->rank == 0) {
        strcpy(synthdir_root, "/tmp/lf_test.XXXXXX");
        synthdir_make();
        bad = synthdir_write(name, o, err);
    }
    if (lf_topo_any(w->all, bad, &any, err) || any ||
        lf_topo_bcast(w->all, synthdir_root, sizeof synthdir_root, 0, err))
        return -1;
    char *dir = synthdir_path(name);
    bad = lf_model_read(&w->model, dir, err) || lf_checkpoint_open(&w->checkpoint, dir, err) ||
          lf_cpu_open(&w->dev, &w->model, LF_EXACT, 1, err);
    free(dir);
    for (int i = 0; i < PROMPTS; i++)
        w->prompt[i] = (lf_prompt){ made_ids(length_of[i], w->model.vocab, (uint32_t)i + 1), length_of[i] };
    return bad;
}

typedef struct setting {
    int pcp, tp, merge;
    lf_numerics numerics;
    int64_t tile;
    int together;                          /* all prompts in one pass; else a pass each */
    int made_up;                           /* without the checkpoint: the same values made in place */
    int device;                            /* lf_device_choice */
    lf_kv_dtype kv;                        /* LF_KV_AUTO: as the numerics have it */
    double rows_within, logits_within;     /* relative norm; 0: the same bytes */
    int layers;                            /* compare the rows of so many layers; 0: all */
    const store *exact;                    /* not NULL: rows are judged by these instead (compare_noise) */
} setting;

/* A device's operations, with a look at the order of prepare() and experts(), and at what is taken. */
typedef struct ahead {
    lf_dev_ops ops;
    const lf_dev_ops *own;
    int64_t bytes;                         /* asked of take() */
    void *host[8];                         /* what host_take() gave and has not back */
    size_t host_bytes[8], host_now, host_most;
    const void *set[64];                   /* prepared in this pass: the first expert's bytes */
    int sets, layers, late;
} ahead;

static ahead watched;

static inline void watch_prepare(lf_dev *d, const lf_experts *e)
{
    if (watched.sets == watched.layers)
        watched.sets = 0;
    watched.set[watched.sets++] = e->w1[0].data;
    if (watched.own->prepare)
        watched.own->prepare(d, e);
}

/* A layer's have been prepared, and the next one's; the shared expert, which is one, need not be. */
static inline void watch_experts(lf_dev *d, const lf_experts *e)
{
    int i = 0;

    while (i < watched.sets && watched.set[i] != e->w1[0].data)
        i++;
    watched.late += e->experts > 1 && (i == watched.sets || watched.sets != lf_min(i + 2, watched.layers));
    watched.own->experts(d, e);
}

static inline int watch_take(lf_dev *d, void **out, size_t bytes, const char *what, lf_err *err)
{
    watched.bytes += (int64_t)bytes;
    return watched.own->take(d, out, bytes, what, err);
}

static inline int watch_host_take(lf_dev *d, void **out, size_t bytes, const char *what, lf_err *err)
{
    int i = 0, bad = watched.own->host_take(d, out, bytes, what, err);

    while (i < 7 && watched.host[i])
        i++;
    watched.host[i] = *out;
    watched.host_bytes[i] = bytes;
    watched.host_now += bytes;
    watched.host_most = watched.host_now > watched.host_most ? watched.host_now : watched.host_most;
    return bad;
}

static inline void watch_host_give(lf_dev *d, void *at)
{
    for (int i = 0; i < 8 && at; i++)
        if (watched.host[i] == at) {
            watched.host[i] = NULL;
            watched.host_now -= watched.host_bytes[i];
        }
    watched.own->host_give(d, at);
}

static inline void watch(lf_dev *d, const lf_model *m)
{
    watched = (ahead){ .ops = *d->ops, .own = d->ops, .layers = m->layers };
    watched.ops.prepare = watch_prepare;
    watched.ops.experts = watch_experts;
    watched.ops.take = watch_take;
    watched.ops.host_take = watch_host_take;
    watched.ops.host_give = watch_host_give;
    d->ops = &watched.ops;
}

/* Weights took what the plan says, to the byte; besides them there are two tables of rope frequencies.  taken: by the
 * device's count, which has more for each piece on the CPU, whose own requests are counted instead. */
static inline int as_planned(const world *w, const setting *s, const lf_grid *g, int64_t taken)
{
    int gpu = s->device == LF_DEVICE_CUDA;
    int64_t rope = 2 * (gpu ? LF_CUDA_GRAIN : w->model.rope_dim / 2 * (int64_t)sizeof(float));
    lf_plan_grid x = { .grid = *g };
    lf_plan p;
    lf_err err;

    if (lf_plan_open(&p, &w->model, s->made_up ? NULL : w->checkpoint, &err))
        return 0;
    p.on_host = !gpu;
    p.made_up = s->made_up;
    lf_plan_weights_size(&p, &x);
    lf_plan_free(&p);
    int64_t want = (gpu ? lf_round_up(x.weights, LF_CUDA_GRAIN) : x.weights) + rope;
    int64_t got = gpu ? taken : watched.bytes;
    if (got != want)
        printf("# rank %d: weights took %lld bytes, planned %lld\n", w->rank, (long long)got, (long long)want);
    return got == want;
}

/* The most that a pass of all prompts took against the plan, within 5 %.  GPU: with weights and all.  CPU: the pass
 * alone, so what was taken since `before`; its weights are many pieces, each with more than was asked for. */
static inline int peak_as_planned(const world *w, const setting *s, const lf_grid *g, const lf_dev *d, size_t before)
{
    int gpu = s->device == LF_DEVICE_CUDA;
    lf_plan_grid x = { .grid = *g };
    lf_plan p;
    lf_err err;

    if (lf_plan_open(&p, &w->model, s->made_up ? NULL : w->checkpoint, &err))
        return 0;
    p.on_host = !gpu;
    p.made_up = s->made_up;
    lf_engine_plan e = { .model = &w->model, .grid = *g, .numerics = s->numerics, .on_host = !gpu,
                         .act_bytes = d->act_bytes, .tile = s->tile, .merge = s->merge,
                         .logits = { .topk = TOPK }, .stores = p.stores, .kernels = d->kernels };
    lf_plan_weights_size(&p, &x);
    lf_engine_plan_room(&e, PROMPTS, length_of, &x.expanded, &x.kernels);
    double want = (double)lf_engine_plan_bytes(&e, PROMPTS, length_of, x.pass);
    want += gpu ? (double)(x.weights + x.expanded + x.kernels) : 0;
    double got = (double)(gpu ? d->peak : d->peak - before);
    lf_plan_free(&p);
    int ok = got <= 1.05 * want && want <= 1.05 * got;
    if (!ok || gpu)
        printf("# rank %d: took %.0f bytes, planned %.0f\n", w->rank, got, want);
    return ok;
}

/* Host memory for output, to the byte: of the fullest pass. */
static inline int host_as_planned(const world *w, const setting *s, const lf_engine_setup *setup)
{
    const lf_dev *d = setup->dev;
    lf_engine_plan p = { .model = &w->model, .grid = setup->topo->grid, .numerics = s->numerics,
                         .on_host = s->device != LF_DEVICE_CUDA, .act_bytes = d->act_bytes, .tile = s->tile,
                         .merge = s->merge, .kv_dtype = setup->kv_dtype, .logits = setup->logits };
    size_t of[LF_HOST_KINDS], want = 0;

    for (int i = 0; i < PROMPTS; i += s->together ? PROMPTS : 1) {
        lf_engine_plan_host(&p, s->together ? PROMPTS : 1, length_of + i, of);
        want = of[LF_HOST_OUTPUT] > want ? of[LF_HOST_OUTPUT] : want;
    }
    if (watched.host_most != want || watched.host_now)
        printf("# rank %d: %zu bytes of host memory for output, planned %zu; %zu were kept\n", w->rank,
               watched.host_most, want, watched.host_now);
    return watched.host_most == want && watched.host_now == 0;
}

static inline int run(world *w, const setting *s, store *out, lf_err *err)
{
    lf_grid g;
    lf_topo t;
    lf_dev *d;
    lf_engine *e = NULL;
    double seconds[LF_PHASES] = { 0 };
    int bad = lf_grid_make(&g, &w->model, w->size, w->rank, w->size / (s->pcp * s->tp), s->pcp, s->tp, err) ||
              lf_topo_open(&t, &g, err);
    lf_kv_dtype kv = s->kv ? s->kv : lf_kv_resolve(LF_KV_AUTO, s->numerics);
    if (bad || lf_device_open(&d, &t, &w->model, s->numerics, kv, s->device, 1, err))
        return -1;
    lf_engine_setup setup = { .model = &w->model, .checkpoint = s->made_up ? NULL : w->checkpoint, .seed = 7,
                              .dev = d, .topo = &t,
                              .kv_dtype = kv, .logits = { 1, 1, TOPK, 1 },
                              .tile = s->tile, .merge = s->merge };
    size_t before = d->taken;
    watch(d, &w->model);
    bad = lf_engine_open(&e, &setup, err);
    w->unplanned += !bad && !as_planned(w, s, &g, (int64_t)(d->taken - before));
    *out = store_make(&w->model, setup.kv_dtype, PROMPTS, w->prompt);
    lf_sink sink = store_sink(out);
    size_t loaded = d->taken;
    if (!bad && s->together) {
        bad = lf_engine_run(e, PROMPTS, w->prompt, &sink, seconds, err);
        w->off_peak += !bad && !peak_as_planned(w, s, &g, d, loaded);
    }
    for (int i = 0; i < PROMPTS && !bad && !s->together; i++) {
        store one = *out;
        one.prompt += i;
        one.kv = store_kv(out, i, 0, 0);
        one.logits += i * STORE_KINDS;
        sink.ctx = &one;
        bad = lf_engine_run(e, 1, w->prompt + i, &sink, seconds, err);
    }
    lf_engine_close(e);
    w->unplanned_host += !bad && !host_as_planned(w, s, &setup);
    w->late += watched.late || watched.sets != watched.layers;
    w->leaks += !s->made_up && s->device == LF_DEVICE_CPU && d->taken != before;
    lf_topo_close(&t);
    lf_dev_close(d);
    return bad;
}

/* Rows of any part that were not handed over exactly once in every group. */
static inline int64_t not_once(const world *w, const store *s, int groups)
{
    int64_t bad = 0;
    lf_err err;

    for (int i = 0; i < PROMPTS * w->model.layers * LF_PARTS; i++) {
        int layer = i / LF_PARTS % w->model.layers;
        int64_t tokens = s->prompt[i / LF_PARTS / w->model.layers].tokens;
        int64_t rows = lf_part_rows(&w->model, w->model.kind[layer], i % LF_PARTS, tokens);
        float *seen = lf_alloc(4 * (size_t)(rows + 1)), *room = lf_alloc(4 * (size_t)(rows + w->size));
        for (int64_t r = 0; s->kv[i].seen && r < rows; r++)
            seen[r] = s->kv[i].seen[r];
        bad += lf_coll_sum(w->all, w->dev, seen, rows, room, &err) != 0;
        for (int64_t r = 0; r < rows; r++)
            bad += seen[r] != (float)groups;
        free(seen);
        free(room);
    }
    return bad;
}

/* One result for all ranks, printed by rank 0. */
static inline void everywhere(const world *w, int bad, const char *name, const char *what)
{
    int any = 1;
    lf_err err;

    if (lf_topo_any(w->all, bad, &any, &err))
        any = 1;
    if (w->rank == 0)
        TAP_CHECK(!any, "%s: %s", name, what);
}

/* Rows of the first NOISE_LAYERS layers against the exact ones, beside one rank's (grid_noise.h).  Of index rows, which
 * are stored transformed, the layers after them tell. */
static inline void compare_noise(const world *w, const char *name, const setting *s, const store *got,
                                 const store *alone)
{
    int groups = w->size / (s->pcp * s->tp), stretches = 0, bad = 0;
    char text[80];
    double most = 0;
    lf_err err;

    for (int i = 0; i < PROMPTS * w->model.layers * LF_PARTS; i++) {
        int64_t rows = (int64_t)s->exact->kv[i].rows;
        if (i / LF_PARTS % w->model.layers >= NOISE_LAYERS ||
            (i % LF_PARTS != LF_PART_SWA && i % LF_PARTS != LF_PART_COMPRESSED))
            continue;
        float *far = lf_alloc(4 * (size_t)(rows + 1)), *one = lf_alloc(4 * (size_t)(rows + 1));
        float *room = lf_alloc(4 * (size_t)(rows + w->size));
        noise_of(far, got, s->exact, i);
        noise_of(one, alone, s->exact, i);
        bad += lf_coll_sum(w->all, w->dev, far, rows, room, &err) != 0;
        for (int64_t r = 0; r + NOISE_ROWS <= rows; r += NOISE_ROWS, stretches++)
            most = fmax(most, (double)noise_median(far + r) / groups / (double)noise_median(one + r));
        free(far);
        free(one);
        free(room);
    }
    if (w->rank == 0)
        printf("# %d stretches, at most %.3f times as far from the exact rows as those of one rank\n", stretches, most);
    snprintf(text, sizeof text, "rows at most %g times as far from the exact ones", NOISE);
    everywhere(w, bad || !stretches || !(most <= NOISE), name, text);
}

static inline void compare(const world *w, const char *name, const setting *s, const store *got, const store *want)
{
    store_diff rows = { 0 }, logits = { 0 };
    char text[64];

    for (int i = 0; i < PROMPTS * w->model.layers * LF_PARTS; i++)
        if (!s->layers || i / LF_PARTS % w->model.layers < s->layers)
            store_compare_kv(&rows, got, want, i);
    for (int i = 0; i < PROMPTS * STORE_KINDS; i++)
        store_compare(&logits, &got->logits[i], &want->logits[i], i % STORE_KINDS != LF_LOGITS_TOPK_IDS);
    int bad_rows = s->rows_within > 0 ? !(store_relative(&rows) <= s->rows_within) : rows.differ != 0;
    int bad_logits = s->logits_within > 0 ? !(store_relative(&logits) <= s->logits_within) : logits.differ != 0;
    if (bad_rows || bad_logits || s->device == LF_DEVICE_CUDA)
        printf("# rank %d: %lld of %lld rows differ (%.2e), logits %lld of %lld (%.2e)\n", w->rank,
               (long long)rows.differ, (long long)rows.rows, store_relative(&rows), (long long)logits.differ,
               (long long)logits.rows, store_relative(&logits));
    snprintf(text, sizeof text, s->rows_within > 0 ? "rows within %g" : "rows are the same bytes", s->rows_within);
    if (s->exact)
        compare_noise(w, name, s, got, want);
    else
        everywhere(w, bad_rows, name, text);
    snprintf(text, sizeof text, s->logits_within > 0 ? "logits within %g" : "logits are the same bytes",
             s->logits_within);
    everywhere(w, bad_logits, name, text);
    everywhere(w, not_once(w, got, w->size / (s->pcp * s->tp)) != 0, name, "every row is handed over once");
}

static inline void one_grid(world *w, const setting *s, const store *want)
{
    char *name = lf_printf("%s %d x %d x %d, %s, %s%s", s->device == LF_DEVICE_CUDA ? "GPU" : "CPU",
                           w->size / (s->pcp * s->tp), s->pcp, s->tp,
                           s->numerics == LF_EXACT ? "exact" : "released", s->merge ? "merge" : "gather",
                           s->made_up ? ", made-up weights" : s->together ? ", one pass" : "");
    store got;
    lf_err err = { "" };
    int bad = run(w, s, &got, &err);

    if (bad)
        printf("# rank %d: %s\n", w->rank, err.text);
    everywhere(w, bad, name, "runs");
    if (!bad)
        compare(w, name, s, &got, want);
    store_free(&got);
    free(name);
}

/* Starts MPI, opens the world's communicator.  Ends the process where that fails. */
static inline void world_start(world *w, lf_topo *t, int *argc, char ***argv)
{
    lf_err err = { "" };

    if (lf_topo_start(argc, argv, &w->rank, &w->size, &err))
        exit(1);
    lf_grid g = { .dp = w->size, .pcp = 1, .tp = 1, .rank = w->rank, .dp_rank = w->rank, .ep = 1 };
    if (lf_topo_open(t, &g, &err)) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    w->all = t->world;
}

static inline void close_model(world *w)
{
    lf_dev_close(w->dev);
    lf_checkpoint_close(w->checkpoint);
    lf_model_free(&w->model);
    for (int i = 0; i < PROMPTS; i++)
        free((void *)(uintptr_t)w->prompt[i].ids);
    if (w->rank == 0)
        synthdir_remove();
}

static inline int world_end(world *w, lf_topo *t)
{
    lf_topo_close(t);
    lf_topo_end();
    return w->rank == 0 ? tap_done() : 0;
}

#endif
