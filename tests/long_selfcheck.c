/* SPDX-License-Identifier: Apache-2.0
 *
 * The self-check at length, by hand:
 *
 *     mpirun -n 2 long_selfcheck CONFIG_DIR LENGTH [POSITIONS [TP [DEVICE]]]
 *
 * The model of CONFIG_DIR/config.json with made-up weights, released numerics, pcp over the ranks that TP (1) leaves;
 * POSITIONS (24) spread over the prompt, the last among them; DEVICE cuda or cpu.  Looks at the first, middle and
 * last ratio-4 layer, the first and last ratio-128 layer, the first without entries.  Host memory of a rank: 1 GB of
 * rows for a million tokens of the released geometry.
 */
#include "selfcheck_run.h"

typedef struct job {
    lf_model model;
    lf_topo world;
    int rank, size;
    int64_t length, positions;
    look_setting s;
} job;

/* Layer number i of a kind; -1: fewer. */
static int nth(const lf_model *m, lf_kind kind, int i)
{
    for (int y = 0; y < m->layers; y++)
        if (m->kind[y] == kind && i-- == 0)
            return y;
    return -1;
}

static void choose_layers(const lf_model *m, uint8_t *layers)
{
    int n[3] = { 0 };

    for (int y = 0; y < m->layers; y++)
        n[m->kind[y]]++;
    const int want[] = { nth(m, LF_SWA, 0), nth(m, LF_C4, 0), nth(m, LF_C4, n[LF_C4] / 2),
                         nth(m, LF_C4, n[LF_C4] - 1), nth(m, LF_C128, 0), nth(m, LF_C128, n[LF_C128] - 1) };
    memset(layers, 0, LF_MAX_LAYERS);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if (want[i] >= 0)
            layers[want[i]] = 1;
}

/* One in each of as many equal parts of the prompt, at places that are no round numbers; then the last. */
static lf_probe_at *choose_positions(int64_t length, int64_t n)
{
    lf_probe_at *at = lf_alloc(sizeof *at * (size_t)n);
    uint32_t seed = 1;

    for (int64_t i = 0; i < n; i++) {
        int64_t from = length * i / n, part = lf_max(1, length * (i + 1) / n - from);
        seed = seed * 1664525u + 1013904223u;
        at[i].pos = i == n - 1 ? length - 1 : from + (seed >> 4) % part;
    }
    return at;
}

static int64_t number(const char *text, int64_t least, int64_t most)
{
    char *end;
    long long n = strtoll(text, &end, 10);

    return *text && !*end && n >= least && n <= most ? n : -1;
}

static int arguments(job *j, int argc, char **argv)
{
    int64_t tp = 1;

    j->positions = 24;
    j->s.device = LF_DEVICE_CUDA;
    if (argc < 3 || argc > 6)
        return -1;
    j->length = number(argv[2], 1, (int64_t)1 << 30);
    if (argc > 3)
        j->positions = number(argv[3], 1, 1 << 16);
    if (argc > 4)
        tp = number(argv[4], 1, j->size);
    if (argc > 5)
        j->s.device = strcmp(argv[5], "cpu") == 0 ? LF_DEVICE_CPU : LF_DEVICE_CUDA;
    if (j->length < 1 || j->positions < 1 || j->positions > j->length || tp < 1 || j->size % tp)
        return -1;
    j->s.tp = (int)tp;
    j->s.pcp = j->size / (int)tp;
    return 0;
}

/* Every look that is due came: each position in each layer, from each tp rank. */
static void expect(const job *j, const look_record *all, int n)
{
    int64_t layers = 0;
    int bad = 0;

    for (int i = 0; i < j->model.layers; i++)
        layers += j->s.layers[i];
    for (int i = 0; i < n; i++)
        look_print(&j->model, &all[i]);
    TAP_CHECK(n == j->positions * layers * j->s.tp, "%d checks of %lld positions in %lld layers on %d tp ranks", n,
              (long long)j->positions, (long long)layers, j->s.tp);
    for (int i = 0; i < n; i++)
        bad += all[i].bad != 0;
    TAP_CHECK(bad == 0, "%lld tokens: scores, chosen rows and outputs agree with float64", (long long)j->length);
    look_summary(all, n);
}

static void check(job *j)
{
    uint32_t *ids = made_ids(j->length, j->model.vocab, 1);
    lf_prompt p = { ids, j->length };
    lf_err err = { "" };
    look_record *all = NULL;
    look l;
    int any, bad = look_run(&l, &j->model, j->rank, j->size, &j->s, 1, &p, &err);

    if (bad)
        printf("# rank %d: %s\n", j->rank, err.text);
    if (lf_topo_any(j->world.world, bad, &any, &err) || any)
        TAP_CHECK(0, "rank %d: the pass runs", j->rank);
    double t = lf_now();
    look_record *mine = look_check(&l, j->rank);
    printf("# rank %d on %s: pass %.1f s, %.1f GB at most; %d checks in %.1f s\n", j->rank, l.device, l.seconds,
           (double)l.peak * 1e-9, l.queries, lf_now() - t);
    fflush(stdout);
    int n = look_gather(j->world.world, mine, l.queries, &all, &err);
    if (j->rank == 0)
        expect(j, all, n);
    free(all);
    free(mine);
    free(ids);
    look_free(&l);
}

int main(int argc, char **argv)
{
    job j = { .s = { .numerics = LF_RELEASED, .kv = LF_KV_FP8 } };
    uint8_t layers[LF_MAX_LAYERS];
    lf_err err = { "" };

    if (lf_topo_start(&argc, &argv, &j.rank, &j.size, &err)) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    lf_grid g = { .dp = j.size, .pcp = 1, .tp = 1, .rank = j.rank, .dp_rank = j.rank, .ep = 1 };
    int bad = arguments(&j, argc, argv);
    if (bad)
        lf_fail(&err, "usage: long_selfcheck CONFIG_DIR LENGTH [POSITIONS [TP [cuda|cpu]]]");
    if (bad || lf_model_read(&j.model, argv[1], &err) || lf_topo_open(&j.world, &g, &err)) {
        printf("Bail out! %s\n", err.text);
        lf_topo_abort(1);
    }
    choose_layers(&j.model, layers);
    lf_probe_at *at = choose_positions(j.length, j.positions);
    j.s.layers = layers;
    j.s.at = at;
    j.s.positions = (int)j.positions;
    check(&j);
    free(at);
    lf_model_free(&j.model);
    lf_topo_close(&j.world);
    lf_topo_end();
    return j.rank == 0 ? tap_done() : tap_failed != 0;
}
