/* SPDX-License-Identifier: Apache-2.0
 *
 * Two ranks on two GPUs: one that comes late to a collective is waited for; one that does not come is an error that
 * names the collective, within LONGFILL_PATIENCE, and the process goes on to its end.
 *
 * SLACK: seconds beyond the patience.  Ending the communicators takes NCCL about one; 10 at most, by cuda/nccl.cu.
 */
#include "tap.h"

#include "../src/dev_cuda.h"

#include "coll_nccl.h"
#include "device.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE = 3, LATE = 1, SLACK = 12, BYTES = 1 << 20 };

typedef struct duo {
    lf_topo topo;
    lf_model model;
    lf_dev *dev;
    int rank;
    uint8_t *mine, *theirs, *host;         /* [BYTES]: device, device, host */
} duo;

static int duo_open(duo *u, lf_err *err)
{
    lf_grid g;
    void *mine, *theirs;

    u->model = (lf_model){ .type = "deepseek_v4", .layers = 1, .vocab = 96, .hidden = 64, .heads = 4, .head_dim = 32,
                           .rope_dim = 16, .q_rank = 32, .o_groups = 2, .o_rank = 16, .experts = 6,
                           .experts_per_tok = 2, .expert_inter = 32, .window = 8, .index_heads = 16, .index_dim = 32,
                           .index_topk = 4, .hc = 4 };
    if (lf_grid_make(&g, &u->model, 2, u->rank, 1, 2, 1, err) || lf_topo_open(&u->topo, &g, err) ||
        lf_device_open(&u->dev, &u->topo, &u->model, LF_EXACT, LF_KV_F32, LF_DEVICE_CUDA, 1, err) ||
        u->dev->ops->take(u->dev, &mine, BYTES, "test", err) || u->dev->ops->take(u->dev, &theirs, BYTES, "test", err))
        return -1;
    u->mine = mine;
    u->theirs = theirs;
    u->host = lf_alloc(BYTES);
    u->dev->ops->fill(u->dev, mine, u->rank + 1, BYTES);
    u->dev->ops->fill(u->dev, theirs, 0xff, BYTES);
    return u->dev->ops->sync(u->dev, err);
}

static int swap(duo *u, lf_comm *c, lf_err *err)
{
    lf_xfer send = { !u->rank, u->mine, BYTES }, recv = { !u->rank, u->theirs, BYTES };

    return lf_coll_exchange(c, u->dev, &send, 1, &recv, 1, err);
}

/* What the host has are BYTES bytes of this value. */
static int holds(const duo *u, int value)
{
    for (int i = 0; i < BYTES; i++)
        if (u->host[i] != value)
            return 0;
    return 1;
}

static void fetch(duo *u)
{
    memset(u->host, 0xee, BYTES);
    u->dev->ops->get(u->dev, u->host, u->theirs, BYTES);
}

static void test_late(duo *u)
{
    lf_err err = { "" }, other;
    int any = 1;

    if (u->rank == 1)
        sleep(LATE);
    int bad = swap(u, u->topo.pcp, &err);
    fetch(u);
    bad |= u->dev->ops->sync(u->dev, &err) || !holds(u, !u->rank + 1);
    if (lf_topo_any(u->topo.world, bad, &any, &other))
        any = 1;
    if (u->rank == 0)
        TAP_CHECK(!any, "a rank that comes %d s late is waited for%s%s", LATE, err.text[0] ? ": " : "", err.text);
}

/* Rank 0 alone: two collectives on two communicators, which hang one behind the other, then a wait. */
static void test_missing(duo *u)
{
    static const char first[] = "oldest collective that has not ended: exchange 2 on pcp, rank 0, layer 7, tile 1";
    const lf_dev_ops *ops = u->dev->ops;
    lf_err err = { "" }, again = { "" };

    ops->at(u->dev, 7, 1);
    TAP_CHECK(swap(u, u->topo.pcp, &err) == 0, "a collective that the other rank does not enter is given to the GPU");
    ops->at(u->dev, 8, 0);
    TAP_CHECK(swap(u, u->topo.group, &err) == 0, "and one on another communicator behind it%s", err.text);
    TAP_CHECK(ops->failed(u->dev, &err) == 0, "nothing has failed yet");
    double start = lf_now();
    fetch(u);
    double took = lf_now() - start;
    printf("# %.1f s\n", took);
    TAP_CHECK(took >= PATIENCE && took < PATIENCE + SLACK, "waiting ends after %d s", PATIENCE);
    TAP_CHECK(holds(u, 0), "what did not come is 0");
    TAP_CHECK(ops->failed(u->dev, &err) == -1, "now it has failed");
    TAP_CHECK(ops->sync(u->dev, &again) == -1 && strcmp(err.text, again.text) == 0, "sync says the same");
    printf("# %s\n", again.text);
    TAP_CHECK(strstr(again.text, first) && !strstr(again.text, "on ep"), "the first that hangs is named, and where");
    TAP_CHECK(strstr(again.text, "nothing for 3 seconds") && strstr(again.text, "LONGFILL_PATIENCE"),
              "and why, and what would help");
    start = lf_now();
    TAP_CHECK(swap(u, u->topo.pcp, &err) == -1 && strcmp(err.text, again.text) == 0,
              "a later collective fails with the same text");
    TAP_CHECK(ops->sync(u->dev, &err) == -1, "and so does a later sync");
    TAP_CHECK(lf_now() - start < 1, "both at once");
}

static void test_end(duo *u)
{
    lf_err err = { "" };
    double start = lf_now();

    lf_topo_close(&u->topo);
    lf_dev_close(u->dev);
    TAP_CHECK(lf_now() - start < SLACK, "communicators and device are closed");
    int bad = lf_cuda_open(&u->dev, &u->model, LF_EXACT, 4, 0, &err) || u->dev->ops->sync(u->dev, &err);
    TAP_CHECK(!bad, "and the GPU can be opened again%s%s", bad ? ": " : "", err.text);
    if (!bad)
        lf_dev_close(u->dev);
}

/* Why there is nothing to test here, or NULL; the same on both ranks. */
static const char *reason(int ranks, lf_err *err)
{
    int gpus;

    if (lf_cuda_devices(&gpus, err))
        return err->text;
    if (gpus < 2 || ranks != 2)
        return "it takes two GPUs and two ranks";
    return lf_nccl_here() ? NULL : "this longfill was built without NCCL";
}

int main(int argc, char **argv)
{
    duo u = { 0 };
    lf_err err = { "" };
    int ranks;

    if (lf_topo_start(&argc, &argv, &u.rank, &ranks, &err)) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    const char *why = reason(ranks, &err);
    if (why) {
        if (u.rank == 0)
            tap_skip("collectives that hang", why);
        lf_topo_end();
        return u.rank == 0 ? tap_done() : 0;
    }
    setenv("LONGFILL_PATIENCE", "3", 1);
    if (duo_open(&u, &err)) {
        printf("Bail out! rank %d: %s\n", u.rank, err.text);
        lf_topo_abort(1);
    }
    test_late(&u);
    if (u.rank == 0)
        test_missing(&u);
    if (lf_topo_barrier(u.topo.world, &err))
        lf_topo_abort(1);
    if (u.rank == 0)
        test_end(&u);
    lf_topo_end();                         /* rank 1 ends as it is: its communicators have lost their other end */
    free(u.host);
    return u.rank == 0 ? tap_done() : 0;
}
