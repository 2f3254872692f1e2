/* SPDX-License-Identifier: Apache-2.0
 *
 * The self-check on every grid of this world, on the CPU: each position is told of by the pcp rank that owns it, with
 * the heads of each tp rank, and agrees with float64 there.
 */
#include "selfcheck_run.h"

enum { LENGTH = 1500, POSITIONS = 12 };

static int64_t heads_of(const look_record *all, int n, const lf_model *m, int tp)
{
    int64_t heads = 0;

    for (int i = 0; i < n; i++)
        heads += all[i].bad ? 0 : m->heads / tp;
    return heads;
}

/* Chosen by score on exactly one of the tp ranks. */
static int64_t scored(const look_record *all, int n)
{
    int64_t count = 0;

    for (int i = 0; i < n; i++)
        count += all[i].scored;
    return count;
}

static void one_grid(lf_topo *world, const lf_model *m, int rank, int size, look_setting *s)
{
    int64_t dp = size / (s->pcp * s->tp), c4 = 0;
    uint32_t *ids = made_ids(LENGTH, m->vocab, 3);
    lf_prompt p = { ids, LENGTH };
    lf_err err = { "" };
    look_record *all = NULL;
    look l;
    int any, bad = look_run(&l, m, rank, size, s, 1, &p, &err);

    if (bad)
        printf("# rank %d: %s\n", rank, err.text);
    if (lf_topo_any(world->world, bad, &any, &err))
        any = 1;
    look_record *mine = look_check(&l, rank);
    int n = look_gather(world->world, mine, l.queries, &all, &err);
    if (rank == 0) {
        for (int i = 0; i < m->layers; i++)
            c4 += m->kind[i] == LF_C4;
        TAP_CHECK(!any, "%d x %d x %d, %s: runs", (int)dp, s->pcp, s->tp,
                  s->numerics == LF_EXACT ? "exact" : "released");
        for (int i = 0; i < n; i++)
            if (all[i].bad)
                look_print(m, &all[i]);
        look_summary(all, n);
        TAP_CHECK(heads_of(all, n, m, s->tp) == dp * m->heads * m->layers * POSITIONS,
                  "all heads of all positions agree with float64");
        TAP_CHECK(scored(all, n) == dp * c4 * POSITIONS, "every list is compared with its scores once");
    }
    free(all);
    free(mine);
    free(ids);
    look_free(&l);
}

int main(int argc, char **argv)
{
    static const int64_t where[POSITIONS] = { 0, 5, 127, 128, 383, 384, 511, 700, 1023, 1280, 1498, 1499 };
    lf_probe_at at[POSITIONS];
    uint8_t layers[LF_MAX_LAYERS];
    lf_model m;
    lf_topo t;
    lf_err err = { "" };
    int rank, size;

    if (lf_topo_start(&argc, &argv, &rank, &size, &err))
        return 1;
    lf_grid g = { .dp = size, .pcp = 1, .tp = 1, .rank = rank, .dp_rank = rank, .ep = 1 };
    if (lf_topo_open(&t, &g, &err) || look_model(&m, "nano", NULL, 0, &err)) {
        printf("Bail out! %s\n", err.text);
        lf_topo_abort(1);
    }
    memset(layers, 1, sizeof layers);
    for (int i = 0; i < POSITIONS; i++)
        at[i] = (lf_probe_at){ 0, where[i] };
    for (lf_numerics n = LF_EXACT; n <= LF_RELEASED; n++)
        for (int pcp = size; pcp >= 1; pcp--) {
            look_setting s = { .pcp = pcp, .tp = size / pcp, .device = LF_DEVICE_CPU, .threads = 1, .numerics = n,
                               .tile = 256, .kv = lf_kv_resolve(LF_KV_AUTO, n), .layers = layers, .at = at,
                               .positions = POSITIONS };
            if (size % pcp == 0 && m.heads % s.tp == 0 && m.o_groups % s.tp == 0 && m.experts % size == 0)
                one_grid(&t, &m, rank, size, &s);
        }
    lf_model_free(&m);
    lf_topo_close(&t);
    lf_topo_end();
    return rank == 0 ? tap_done() : 0;
}
