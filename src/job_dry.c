/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"

#include <stdlib.h>
#include <string.h>

static int64_t pass_bytes(const lf_job *j)
{
    int64_t most = 0;

    for (int64_t b = 0; j->engine && b < j->plan.batches; b++) {
        const lf_batch *batch = &j->plan.batch[b];
        int64_t *length = lf_alloc((size_t)batch->n * sizeof *length);
        for (int64_t i = 0; i < batch->n; i++)
            length[i] = j->requests.v[j->plan.order[batch->first + i]].tokens;
        most = lf_max(most, (int64_t)lf_engine_bytes(j->engine, (int)batch->n, length));
        free(length);
    }
    return most;
}

static double kv_bytes(const lf_job *j)
{
    double sum = 0;

    for (int64_t i = 0; i < j->plan.n; i++)
        sum += lf_kv_bytes(&j->model, j->kv_dtype, j->requests.v[j->plan.order[i]].tokens);
    return sum;
}

static json_t *dry_json(const lf_job *j)
{
    int64_t longest = j->plan.n ? j->requests.v[j->plan.order[0]].tokens : 0;

    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I,"
                     " s:i, s:i, s:i, s:s, s:i, s:s, s:s, s:I, s:I, s:I}", "model_type", j->model.type,
                     "weights_id", lf_job_weights_id(j),
                     "weights_bytes", (json_int_t)j->inventory.bytes,
                     "prompts", (json_int_t)j->requests.n, "skipped", (json_int_t)(j->requests.n - j->plan.n),
                     "to_do", (json_int_t)j->plan.n, "tokens", (json_int_t)j->plan.tokens,
                     "longest", (json_int_t)longest, "dp", j->grid.dp, "pcp", j->grid.pcp, "tp", j->grid.tp,
                     "device", "cpu", "threads", j->threads,
                     "numerics", j->o->numerics == LF_EXACT ? "exact" : "released",
                     "kv_dtype", lf_kv_dtype_name(j->kv_dtype),
                     "kv_bytes", (json_int_t)kv_bytes(j), "pass_bytes", (json_int_t)pass_bytes(j),
                     "passes", (json_int_t)j->plan.batches);
}

static void dry_text(const json_t *plan)
{
    const char *key;
    json_t *value;
    char human[24];

    json_object_foreach ((json_t *)(uintptr_t)plan, key, value) {
        if (json_is_string(value))
            printf("%-14s %s\n", key, json_string_value(value));
        else if (strstr(key, "_bytes"))
            printf("%-14s %lld (%s)\n", key, (long long)json_integer_value(value),
                   lf_human_bytes(human, (double)json_integer_value(value)));
        else
            printf("%-14s %lld\n", key, (long long)json_integer_value(value));
    }
}

static void dry_csv(const json_t *plan)
{
    const char *key;
    json_t *value;

    printf("key,value\n");
    json_object_foreach ((json_t *)(uintptr_t)plan, key, value) {
        if (json_is_string(value))
            printf("%s,%s\n", key, json_string_value(value));
        else
            printf("%s,%lld\n", key, (long long)json_integer_value(value));
    }
}

int lf_job_dry(lf_job *j, lf_err *err)
{
    if (j->rank)
        return 0;
    json_t *plan = dry_json(j);
    if (!plan)
        return lf_fail(err, "the plan cannot be put together: out of host memory");
    if (j->o->format == LF_FORMAT_CSV) {
        dry_csv(plan);
    } else if (j->o->format == LF_FORMAT_JSON) {
        json_dumpf(plan, stdout, JSON_INDENT(2));
        printf("\n");
    } else {
        dry_text(plan);
    }
    json_decref(plan);
    return 0;
}
