/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include "synth.h"

#include <stdio.h>
#include <stdlib.h>

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
    free(config);
    if (lf_synth_write(dir, &s, err) || report(dir, err))
        return LF_EXIT_FAILED;
    return LF_EXIT_DONE;
}
