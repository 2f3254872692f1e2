/* SPDX-License-Identifier: Apache-2.0
 *
 * The smallest number of ranks that a prompt fits on, and what a run that does not fit is told, on a device that says
 * how much it has and does nothing else.
 */
#include "tap.h"
#include "plan_fit.h"
#include "dev_cuda_plan.h"
#include "synth.h"

#include <stdlib.h>
#include <string.h>

static int64_t room;

static int64_t left(lf_dev *d)
{
    (void)d;
    return room;
}

static lf_model released(const char *preset)
{
    lf_synth_options o = { .preset = preset };
    lf_model m = { 0 };
    lf_err err = { "" };
    char *text = NULL;

    TAP_CHECK(!lf_synth_config(&o, &text, &err) && !lf_model_parse(&m, text, strlen(text), "config.json", &err),
              "the released geometry of %s %s", preset, err.text);
    free(text);
    return m;
}

static void question(lf_plan *p, const lf_model *m, int64_t length, int64_t memory)
{
    lf_err err = { "" };

    TAP_CHECK(!lf_plan_open(p, m, NULL, &err), "a plan %s", err.text);
    p->numerics = LF_RELEASED;
    p->act_bytes = 2;
    p->made_up = 1;
    p->length = length;
    p->memory = memory;
}

/* wq_b, wo_a and wo_b of all layers, on one GPU. */
static int64_t split_bytes(const lf_model *m)
{
    int64_t n = 0;

    for (int i = 0; i < m->layers; i++)
        for (int k = 0; k < 3; k++) {
            static const lf_role roles[] = { LF_ROLE_WQ_B, LF_ROLE_WO_A, LF_ROLE_WO_B };
            lf_inventory_item item;
            if (!lf_inventory_item_of(m, i, roles[k], 0, &item))
                n += lf_cuda_weight_bytes(LF_E4M3, item.rows, item.cols);
        }
    return n;
}

/* A tp rank has its part of what is split: of heads and groups, and of the head's rows.  Memory comes in pieces of 256
 * bytes, three a matrix. */
static void test_shares(void)
{
    lf_model m = released("pro");
    int64_t split = split_bytes(&m), whole = 0, pieces = m.layers * 3 * 3 * LF_CUDA_WEIGHT_ALIGN;
    lf_plan_grid g = { 0 };
    lf_err err = { "" };
    lf_plan p;

    question(&p, &m, 1 << 17, 0);
    for (int tp = 1; tp <= 8; tp *= 2) {
        TAP_CHECK(!lf_grid_make(&g.grid, &m, tp, tp - 1, 1, 1, tp, &err), "the last of %d ranks %s", tp, err.text);
        lf_plan_weights_size(&p, &g);
        int64_t attention = g.group[LF_PLAN_ATTENTION], head = g.group[LF_PLAN_HEAD];
        whole = tp == 1 ? attention : whole;
        int64_t over = attention - (whole - split + split / tp);
        TAP_CHECK(head == m.vocab / tp * m.hidden * 2, "tp %d: a rank has %lld bytes of the head", tp, (long long)head);
        TAP_CHECK(split > 0 && over >= 0 && over < pieces, "  and %lld of attention's %lld, of which %lld are split",
                  (long long)attention, (long long)whole, (long long)split);
    }
    lf_plan_free(&p);
    lf_model_free(&m);
}

/* Every grid of every number of ranks, from one on. */
static int fewest(lf_plan *p, int most)
{
    int found = 0;

    for (p->ranks = 1; p->ranks <= most && !found; p->ranks++) {
        lf_plan_grid *g;
        int n = lf_plan_grids(p, &g);
        found = lf_plan_choose(g, n) >= 0 ? p->ranks : 0;
        free(g);
    }
    return found;
}

static void test_smallest(const lf_model *m)
{
    static const int64_t memory[] = { 200, 139, 80, 55, 40, 30 };
    lf_plan_grid g;
    lf_plan p;
    int bad = 0, last = 0, grew = 0;

    question(&p, m, 1 << 17, 0);
    for (int i = 0; i < 6; i++) {
        p.memory = memory[i] << 30;
        int none = lf_plan_smallest(&p, &g);
        TAP_QUIET(bad, !none && g.grid.dp == 1 && g.grid.ep == fewest(&p, 32) && g.fits && g.device_bytes <= p.memory,
                  "%lld GiB: %d ranks", (long long)memory[i], g.grid.ep);
        grew += g.grid.ep > last;
        last = g.grid.ep;
    }
    TAP_CHECK(!bad && grew >= 4, "the smallest is that of all grids of all numbers of ranks");
    p.memory = 1 << 30;
    TAP_CHECK(lf_plan_smallest(&p, &g) && !g.fits && g.device_bytes > p.memory && g.grid.ep > 1, "or there is none");
    lf_plan_free(&p);
}

/* The same sizes as in a plan, for `world` ranks that were started as 1 x 1 x 1 each. */
static void test_refused(const lf_model *m, int world, int64_t tokens, const char *words)
{
    lf_dev_ops ops = { .left = left };
    lf_dev dev = { .ops = &ops, .model = m, .numerics = LF_RELEASED, .act_bytes = 2, .name = "a device" };
    lf_fit f = { .model = m, .dev = &dev };
    lf_plan_grid most = { 0 };
    lf_err err = { "" };
    int64_t tile;
    int n = 1;

    TAP_CHECK(!lf_grid_make(&f.grid, m, world, 0, world, 1, 1, &err), "%d ranks %s", world, err.text);
    TAP_CHECK(lf_plan_fits(&f, 1, &n, &tokens, &tile, &err) && strstr(err.text, words) && strstr(err.text, "a device"),
              "%d ranks, %lld tokens: %s", world, (long long)tokens, err.text);
    int bad = lf_plan_fullest(&f, 1, &n, &tokens, &most, &err);
    TAP_CHECK(!bad && most.device_bytes > lf_plan_left(&f), "they need %lld bytes", (long long)most.device_bytes);
    int64_t had = room;
    room = 1000ll << 30;
    TAP_CHECK(!lf_plan_fits(&f, 1, &n, &tokens, &tile, &err) && lf_plan_left(&f) < room, "with a TiB they fit");
    ops.left = NULL;
    TAP_CHECK(!lf_plan_fits(&f, 1, &n, &tokens, &tile, &err) && lf_plan_left(&f) == -1, "who does not say takes all");
    f.sharing = 1 << 24;
    TAP_CHECK(lf_plan_fits(&f, 1, &n, &tokens, &tile, &err) && strstr(err.text, "free on this node") &&
              lf_plan_left(&f) < (int64_t)1 << 20, "a CPU's ranks share what is free: %s", err.text);
    room = had;
}

/* A small run, where each rank's part of what is free is less than the writer may take. */
static void test_small(void)
{
    lf_dev_ops ops = { .name = "cpu" };
    lf_model m = released("nano");
    lf_dev dev = { .ops = &ops, .model = &m, .numerics = LF_EXACT, .act_bytes = 4, .tile = LF_CPU_TILE };
    lf_fit f = { .model = &m, .dev = &dev, .kv_dtype = LF_KV_F32, .sharing = lf_host_free() >> 26 };
    int64_t tokens = 500, tile;
    lf_err err = { "" };
    int n = 1;

    TAP_CHECK(!lf_grid_make(&f.grid, &m, 1, 0, 1, 1, 1, &err) && f.sharing > 0 && lf_plan_left(&f) < 128ll << 20 &&
                  !lf_plan_fits(&f, 1, &n, &tokens, &tile, &err) && tile == LF_CPU_TILE,
              "%lld ranks of a small model on this node %s", (long long)f.sharing, err.text);
    lf_model_free(&m);
}

/* Tiles of 1x2x1 are as large as memory allows, down to an eighth, as `plan` and a run see it. */
static void test_tiles(const lf_model *m, int merge)
{
    lf_dev_ops ops = { .left = left };
    lf_dev dev = { .ops = &ops, .model = m, .numerics = LF_RELEASED, .act_bytes = 2, .tile = LF_CUDA_TILE };
    lf_fit f = { .model = m, .dev = &dev, .merge = merge, .kv_dtype = LF_KV_FP8 };
    int64_t own = merge ? LF_CUDA_TILE / 4 : LF_CUDA_TILE, tokens = 1 << 20, takes[4], tile, last = 0;
    lf_plan_grid g = { 0 }, first = { 0 };
    lf_err err = { "" };
    int n = 1;
    lf_plan p;

    question(&p, m, tokens, 1000ll << 30);
    p.merge = merge;
    p.kv_dtype = LF_KV_FP8;
    TAP_CHECK(!lf_grid_make(&g.grid, m, 2, 0, 1, 2, 1, &err) && !lf_grid_make(&f.grid, m, 2, 0, 1, 2, 1, &err),
              "1 x 2 x 1, rank 0 %s", err.text);
    for (int i = 0; i < 4; i++) {
        lf_plan_grid_size(&p, &g);
        takes[i] = g.device_bytes;
        TAP_CHECK(g.fits && g.tile == own >> i && (i == 0 || takes[i] < takes[i - 1]), "tiles of %lld tokens take %lld",
                  (long long)g.tile, (long long)takes[i]);
        p.memory = takes[i] - 1;
    }
    lf_plan_grid_size(&p, &g);
    first.grid = f.grid;
    lf_plan_weights_size(&p, &first);
    for (int i = 0; i < 4; i++) {
        p.tile = own >> i;
        lf_plan_pass_size(&p, &first);
        takes[i] = first.device_bytes;
    }
    p.tile = 0;
    TAP_CHECK(!g.fits && g.tile == own / 8 && g.device_bytes == p.memory + 1, "fewer there are not");
    p.on_host = 1;
    lf_plan_grid_size(&p, &g);
    TAP_CHECK(g.tile == (merge ? LF_CPU_TILE / 4 : LF_CPU_TILE), "and a CPU's are as they are");
    lf_plan_free(&p);

    room = 0;
    for (int64_t more = (int64_t)1 << 38; more; more /= 2) {                   /* the least with which the run's fit */
        room += more;
        room -= !lf_plan_fits(&f, 1, &n, &tokens, &tile, &err) ? more : 0;
    }
    room++;
    for (int i = 3; i >= 0; i--) {
        int bad = lf_plan_fits(&f, 1, &n, &tokens, &tile, &err);
        TAP_CHECK(!bad && tile == own >> i && tile > last, "with %lld bytes a run has tiles of %lld", (long long)room,
                  (long long)tile);
        last = tile;
        room += i ? takes[i - 1] - takes[i] : 0;
    }
}

/* What this program is for: a million tokens of the largest model on 8 GPUs. */
static void test_pro(void)
{
    lf_model m = released("pro");
    lf_plan_grid *g;
    lf_plan p;

    question(&p, &m, 1 << 20, 139ll << 30);
    p.ranks = 8;
    int n = lf_plan_grids(&p, &g), best = lf_plan_choose(g, n);
    TAP_CHECK(best >= 0 && g[best].grid.pcp == 4 && g[best].grid.tp == 2 && g[best].tile == LF_CUDA_TILE / 8,
              "Pro at 1M: 1 x 4 x 2");
    free(g);
    lf_plan_free(&p);
    lf_model_free(&m);
}

/* On both sides, which rank takes most of the device, and of the host. */
static void test_host(const lf_model *m)
{
    lf_plan_grid g = { 0 }, one, most = { .device_bytes = 5, .host_bytes = 9, .host = { 9 } };
    lf_err err = { "" };
    size_t sum = 0;
    lf_plan p;

    one = (lf_plan_grid){ .device_bytes = 7, .host_bytes = 8, .host = { 8 } };
    lf_plan_most(&most, &one);
    TAP_CHECK(most.device_bytes == 7 && most.host_bytes == 9 && most.host[0] == 9, "each side's most");
    question(&p, m, 1 << 20, 139ll << 30);
    p.kv_dtype = LF_KV_FP8;
    p.logits.last = 1;
    p.tokens = 3 << 20;
    TAP_CHECK(!lf_grid_make(&g.grid, m, 4, 0, 1, 2, 2, &err), "1 x 2 x 2 %s", err.text);
    lf_plan_grid_size(&p, &g);
    for (int i = 0; i < LF_HOST_KINDS; i++)
        sum += g.host[i];
    double rows = 2. * (584 + 68 + 64) * (1 << 18) / 2;      /* a half has a c4 layer's rows of half the tokens */
    TAP_CHECK(g.host_bytes == (int64_t)sum && (double)g.host[LF_HOST_OUTPUT] > rows &&
                  (double)g.host[LF_HOST_OUTPUT] < 1.01 * rows && g.host[LF_HOST_STAGING] == (size_t)64 << 20 &&
                  g.host[LF_HOST_WRITER] == (size_t)256 << 20 &&
                  g.host[LF_HOST_PROMPTS] == (size_t)(4 * 3 + 20 / 2) * (1 << 20) + 8 * LF_CUDA_TILE,
              "host memory of the released geometry: %lld", (long long)g.host_bytes);
    p.kv_dtype = LF_KV_F32;
    TAP_CHECK(!lf_grid_make(&g.grid, m, 2, 0, 1, 1, 2, &err), "1 x 1 x 2 %s", err.text);
    lf_plan_grid_size(&p, &g);
    TAP_CHECK(g.host[LF_HOST_OUTPUT] == ((size_t)1 << 30) + 1024, "a half has 512 MiB at most, whatever the rows");
    p.length = 1;
    p.logits.all = 1;
    lf_plan_grid_size(&p, &g);
    rows = 2. * 4 * 128 * (double)m->vocab;
    TAP_CHECK((double)g.host[LF_HOST_OUTPUT] > rows && (double)g.host[LF_HOST_OUTPUT] < 1.01 * rows,
              "and a tile of all logits at least, where these are wanted");
    p.on_host = 1;
    lf_plan_grid_size(&p, &g);
    TAP_CHECK(g.host[LF_HOST_STAGING] == 0, "on a CPU nothing is staged");
    g.grid.tp_rank = 1;
    lf_plan_pass_size(&p, &g);
    TAP_CHECK(g.host[LF_HOST_WRITER] == 0 && g.host[LF_HOST_OUTPUT] < 4096, "only the first tp rank writes");
    lf_plan_free(&p);
}

int main(void)
{
    lf_model m = released("flash");

    test_shares();
    test_smallest(&m);
    test_host(&m);
    test_tiles(&m, 0);
    test_tiles(&m, 1);
    test_pro();
    test_small();
    room = 139ll << 30;
    test_refused(&m, 1, 1 << 20, "2 ranks would do, as 1 x 2 x 1 with ");
    test_refused(&m, 4, 1 << 20, "4 ranks would do, as 2 x 2 x 1 with ");
    test_refused(&m, 3, 1 << 20, "2 ranks would do, as 1 x 2 x 1 with ");
    room = 2ll << 30;
    test_refused(&m, 1, 1 << 20, "no grid fits, least takes 1 x ");
    lf_model_free(&m);
    return tap_done();
}
