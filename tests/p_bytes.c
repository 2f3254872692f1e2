/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes measured on the pcp communicator against the arithmetic of traffic.h, exactly, on every rank; and that
 * arithmetic against the numbers of the released geometry.
 */
#include "tap.h"
#include "synthdir.h"

#include "prefill.h"
#include "traffic.h"

enum { PROMPTS = 5 };

static const int64_t length_of[PROMPTS] = { 1, 127, 300, 1024, 1153 };

typedef struct world {
    int rank, size;
    lf_comm *all;
    lf_model model;
    lf_checkpoint *checkpoint;
    uint32_t *ids;                         /* shared by all prompts */
} world;

typedef struct setting {
    int pcp, tp, n;
    lf_numerics numerics;
    const int64_t *lengths;
} setting;

static void no_rows(void *ctx, int seq, int layer, lf_kv_part part, int64_t row0, int64_t rows, const void *packed,
                    size_t bytes)
{
    (void)ctx, (void)seq, (void)layer, (void)part, (void)row0, (void)rows, (void)packed, (void)bytes;
}

static void no_logits(void *ctx, int seq, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data,
                      size_t bytes)
{
    (void)ctx, (void)seq, (void)kind, (void)row0, (void)rows, (void)data, (void)bytes;
}

static void no_token(void *ctx)
{
    (void)ctx;
}

static void no_layer(void *ctx, int layer)
{
    (void)ctx, (void)layer;
}

/* One result for all ranks, printed by rank 0. */
static void everywhere(const world *w, int bad, const char *what)
{
    int any = 1;
    lf_err err;

    if (lf_topo_any(w->all, bad, &any, &err))
        any = 1;
    if (w->rank == 0)
        TAP_CHECK(!any, "%s", what);
}

/* The bytes that a pass sends from this rank, and receives. */
static int measure(const world *w, const setting *s, int64_t *sent, int64_t *received, int *pcp_rank, lf_err *err)
{
    lf_grid g;
    lf_topo t;
    lf_dev *d;
    lf_engine *e = NULL;
    lf_prompt prompt[PROMPTS];
    lf_sink sink = { NULL, no_rows, no_logits, no_token, no_layer };
    lf_comm_stats before, after;
    double seconds[LF_PHASES] = { 0 };

    if (lf_grid_make(&g, &w->model, w->size, w->rank, 0, s->pcp, s->tp, err) || lf_topo_open(&t, &g, err) ||
        lf_cpu_open(&d, &w->model, s->numerics, 1, err))
        return -1;
    lf_engine_setup setup = { .model = &w->model, .checkpoint = w->checkpoint, .dev = d, .topo = &t,
                              .kv_dtype = lf_kv_resolve(LF_KV_AUTO, s->numerics), .logits = { .last = 1 } };
    for (int i = 0; i < s->n; i++)
        prompt[i] = (lf_prompt){ w->ids, s->lengths[i] };
    int bad = lf_engine_open(&e, &setup, err);
    lf_comm_stats_get(t.pcp, &before);
    bad = bad || lf_engine_run(e, s->n, prompt, &sink, seconds, err);
    lf_comm_stats_get(t.pcp, &after);
    *sent = (int64_t)(after.bytes_sent - before.bytes_sent);
    *received = (int64_t)(after.bytes_received - before.bytes_received);
    *pcp_rank = g.pcp_rank;
    lf_engine_close(e);
    lf_dev_close(d);
    lf_topo_close(&t);
    return bad ? -1 : 0;
}

/* What all ranks of one group send. */
static int64_t expected_sum(const lf_traffic_case *c, const setting *s)
{
    lf_traffic t;
    int64_t sum = 0;

    for (int r = 0; r < c->pcp; r++) {
        lf_traffic_sent(&t, c, r, s->n, s->lengths);
        sum += t.all;
    }
    return sum;
}

static int64_t sum_over_world(const world *w, int64_t mine)
{
    int64_t *send = lf_alloc(8 * (size_t)w->size), *recv = lf_alloc(8 * (size_t)w->size), sum = 0;
    lf_err err;

    for (int r = 0; r < w->size; r++)
        send[r] = mine;
    if (lf_coll_counts(w->all, recv, send, 1, &err))
        sum = -1;
    for (int r = 0; r < w->size && sum >= 0; r++)
        sum += recv[r];
    free(send);
    free(recv);
    return sum;
}

static void one_case(const world *w, const setting *s, const char *name)
{
    lf_traffic_case c = { .model = &w->model, .numerics = s->numerics, .act_bytes = 4, .pcp = s->pcp };
    int64_t sent = -1, received = -1;
    int pcp_rank = 0;
    lf_traffic t;
    lf_err err = { "" };
    char *what = lf_printf("%s, %d x %d x %d, %s, %d in a pass", name, w->size / (s->pcp * s->tp), s->pcp, s->tp,
                           s->numerics == LF_EXACT ? "exact" : "released", s->n);
    int bad = measure(w, s, &sent, &received, &pcp_rank, &err);

    lf_traffic_sent(&t, &c, pcp_rank, s->n, s->lengths);
    if (bad || sent != t.all)
        printf("# rank %d sent %lld, expected %lld (halo %lld) %s\n", w->rank, (long long)sent, (long long)t.all,
               (long long)t.halo, err.text);
    everywhere(w, bad || sent != t.all, what);
    int64_t all_sent = sum_over_world(w, sent), all_received = sum_over_world(w, received);
    int64_t expected = expected_sum(&c, s) * (w->size / s->pcp);
    if (w->rank == 0)
        TAP_CHECK(all_sent == expected && all_received == expected, "%s: %lld bytes in all, sent and received", what,
                  (long long)expected);
    free(what);
}

static void all_cases(const world *w, const char *name)
{
    for (int numerics = LF_EXACT; numerics <= LF_RELEASED; numerics++) {
        setting s = { .pcp = w->size, .tp = 1, .n = PROMPTS, .numerics = (lf_numerics)numerics, .lengths = length_of };
        if (w->model.head_dim < 512)       /* the released geometry costs more: one prompt will do */
            one_case(w, &s, name);
        s.n = 1;
        s.lengths = length_of + 3;
        one_case(w, &s, name);
        if (w->size % 2 == 0) {
            s.pcp = w->size / 2;
            s.tp = 2;
            s.lengths = length_of + 2;
            one_case(w, &s, name);
        }
    }
}

/* engine.md: 163 B per token per c4 layer, 4.6 B per c128 layer, halo under 0.2 MB, here by hand from (584 + 68) / 4
 * and 584 / 128. */
static void test_released(const world *w)
{
    lf_traffic_case c = { .model = &w->model, .numerics = LF_RELEASED, .act_bytes = 2, .pcp = 4 };
    int64_t length = 128 << 10, rows = 0;
    int of_kind[3] = { 0, 0, 0 };
    lf_traffic t;

    TAP_NEAR(lf_traffic_token_bytes(&c, LF_C4), 163, 0, "163 B per token and c4 layer");
    TAP_NEAR(lf_traffic_token_bytes(&c, LF_C128), 4.5625, 0, "4.5625 B per token and c128 layer");
    TAP_NEAR(lf_traffic_token_bytes(&c, LF_SWA), 0, 0, "none in a window-only layer");
    TAP_CHECK(lf_traffic_halo_bytes(&c, LF_C4) == 127 * 1024 + 2 * 16 * (512 + 128) &&
              lf_traffic_halo_bytes(&c, LF_C4) < 200000, "the halo of a segment is %lld B",
              (long long)lf_traffic_halo_bytes(&c, LF_C4));
    for (int l = 0; l < w->model.layers; l++)
        of_kind[w->model.kind[l]]++;
    for (int r = 0; r < c.pcp; r++) {
        lf_traffic_sent(&t, &c, r, 1, &length);
        rows += t.all - t.halo;
    }
    TAP_NEAR((double)rows / 3 / (double)length, 163 * of_kind[LF_C4] + 4.5625 * of_kind[LF_C128], 0,
             "128K tokens over 4 ranks: every row goes to 3 others once");
    c.numerics = LF_EXACT;
    TAP_NEAR(lf_traffic_token_bytes(&c, LF_C4), (1024 + 256) / 4., 0, "exact: bf16 rows");
    c.act_bytes = 4;
    TAP_NEAR(lf_traffic_token_bytes(&c, LF_C128), 2048 / 128., 0, "exact: float32 rows");
}

static int open_model(world *w, const char *preset, lf_err *err)
{
    int any, bad = w->rank == 0 && synthdir_write(preset, (lf_synth_options){ .seed = 7, .preset = preset,
                                                   .set = &(const char *){ "n_routed_experts=24" }, .sets = 1 }, err);

    if (lf_topo_any(w->all, bad, &any, err) || any)
        return -1;
    char *dir = synthdir_path(preset);
    bad = lf_model_read(&w->model, dir, err) || lf_checkpoint_open(&w->checkpoint, dir, err);
    free(dir);
    w->ids = lf_alloc(4 * 2048);
    for (uint32_t i = 0; i < 2048; i++)
        w->ids[i] = i * 31 % (uint32_t)w->model.vocab;
    return bad;
}

static void close_model(world *w)
{
    lf_checkpoint_close(w->checkpoint);
    lf_model_free(&w->model);
    free(w->ids);
    w->checkpoint = NULL;
    w->ids = NULL;
}

static void one_model(world *w, const char *preset)
{
    lf_err err = { "" };
    int bad = open_model(w, preset, &err);

    everywhere(w, bad, preset);
    if (!bad)
        all_cases(w, preset);
    if (!bad && w->rank == 0 && w->model.head_dim == 512)
        test_released(w);
    close_model(w);
}

int main(int argc, char **argv)
{
    world w = { 0 };
    lf_topo t;
    lf_err err = { "" };

    if (lf_topo_start(&argc, &argv, &w.rank, &w.size, &err))
        return 1;
    lf_grid g = { .dp = w.size, .pcp = 1, .tp = 1, .rank = w.rank, .dp_rank = w.rank, .ep = 1 };
    if (lf_topo_open(&t, &g, &err)) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    w.all = t.world;
    if (w.rank == 0)
        synthdir_make();
    int bad = lf_topo_bcast(w.all, synthdir_root, sizeof synthdir_root, 0, &err);
    everywhere(&w, bad, "a directory for the models");
    if (!bad) {
        one_model(&w, "nano");
        one_model(&w, "mini");
    }
    if (w.rank == 0)
        synthdir_remove();
    lf_topo_close(&t);
    lf_topo_end();
    return w.rank == 0 ? tap_done() : 0;
}
