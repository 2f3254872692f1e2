/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include "synth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads back what was written: the numbers printed are those of the files. */
static int report(const char *dir, lf_err *err)
{
    lf_checkpoint *c = NULL;
    lf_inventory_report r;
    lf_model m;
    char size[24];

    int rc = lf_model_read(&m, dir, err);
    if (rc == 0)
        rc = lf_checkpoint_open(&c, dir, err);
    if (rc == 0)
        rc = lf_inventory_check(&m, c, &r, err);
    int shards = rc ? 0 : lf_checkpoint_at(c, lf_checkpoint_count(c) - 1)->shard + 1;
    if (rc == 0)
        printf("%s: %d layer%s, %lld tensors in %d shard%s, %s, weights %s\n", dir, m.layers, lf_s(m.layers),
               (long long)r.tensors, shards, lf_s(shards), lf_human_bytes(size, (double)r.bytes), lf_checkpoint_id(c));
    lf_checkpoint_close(c);
    lf_model_free(&m);
    return rc;
}

typedef struct experts {
    int layer;                             /* of the expert before */
    lf_storage store;
} experts;

static int expert_alike(void *arg, const lf_inventory_item *item, lf_err *err)
{
    experts *x = arg;

    if (item->expert < 0)
        return 0;
    if (item->layer == x->layer && item->released != x->store)
        return lf_fail(err, "--set: experts whose columns are multiples of 32 are packed, and a layer's have to be "
                       "alike: let hidden_size and moe_intermediate_size be such multiples, or give --weights bf16");
    *x = (experts){ item->layer, item->released };
    return 0;
}

/* What no prefill would take is not written. */
static int settings_check(const char *config, lf_err *err)
{
    experts x = { -1, (lf_storage)0 };
    lf_model m;

    if (lf_model_parse(&m, config, strlen(config), "the settings", err))
        return -1;
    int bad = lf_inventory_each(&m, expert_alike, &x, err);
    lf_model_free(&m);
    return bad;
}

int lf_cmd_synth(const lf_options *o, lf_err *err)
{
    const char *dir = o->operands.v[0];
    lf_synth_options s = {
        .preset = o->preset,
        .seed = (uint64_t)o->seed,
        .bf16 = o->weights == LF_SYNTH_BF16,
        .sparse = o->sparse,
        .shard_size = o->shard_size,
        .set = o->set.v,
        .sets = o->set.n,
    };
    char *config;

    if (lf_synth_config(&s, &config, err))
        return LF_EXIT_USAGE;
    int bad = !s.bf16 && settings_check(config, err);
    free(config);
    if (bad)
        return LF_EXIT_USAGE;
    if (lf_synth_write(dir, &s, err) || report(dir, err))
        return LF_EXIT_FAILED;
    return LF_EXIT_DONE;
}
