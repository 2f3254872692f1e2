/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"
#include "report_columns.h"

#include <stdlib.h>
#include <string.h>

/* What ranks tell rank 0. */
typedef struct need {
    lf_plan_grid most;
    int64_t left;                          /* -1: not known */
} need;

/* Of all ranks: what the fullest takes, and the least that a device has. */
static int need_gather(lf_job *j, need *all, lf_err *err)
{
    need mine = { .left = -1 };
    void *got = NULL;
    size_t bytes;

    if (lf_job_any(j, lf_job_fullest(j, &mine.most, &mine.left, err), err) ||
        lf_job_any(j, lf_topo_gather(j->control.world, &mine, sizeof mine, &got, &bytes, 0, err), err)) {
        free(got);
        return -1;
    }
    *all = mine;
    for (const need *r = got; r && r < (const need *)got + j->world; r++) {
        lf_plan_most(&all->most, &r->most);
        all->left = lf_min(all->left, r->left);
    }
    free(got);
    return 0;
}

static void number_set(json_t *o, const char *key, int64_t value)
{
    json_object_set_new(o, key, json_integer((json_int_t)value));
}

static void text_set(json_t *o, const char *key, const char *value)
{
    json_object_set_new(o, key, json_string(value));
}

static void work_add(json_t *o, const lf_job *j)
{
    int64_t longest = j->plan.n ? j->requests.v[j->plan.order[0]].tokens : 0;

    number_set(o, "prompts", j->requests.n);
    number_set(o, "skipped", j->requests.n - j->plan.n);
    number_set(o, "to_do", j->plan.n);
    number_set(o, "tokens", j->plan.tokens);
    number_set(o, "longest", longest);
    number_set(o, "passes", j->plan.batches);
    number_set(o, "kv_bytes", (int64_t)lf_job_kv_bytes(j));
}

static void device_add(json_t *o, const lf_job *j)
{
    text_set(o, "device", j->dev->ops->name);
    text_set(o, "device_name", j->dev->name);
    number_set(o, "threads", j->threads);
    number_set(o, "dp", j->grid.dp);
    number_set(o, "pcp", j->grid.pcp);
    number_set(o, "tp", j->grid.tp);
    number_set(o, "tile", j->tile);
}

/* Of a rank: names as in plan, but for what it keeps of the weights. */
static void memory_add(json_t *o, const need *all)
{
    const lf_plan_grid *g = &all->most;

    number_set(o, "loaded_bytes", g->weights);
    number_set(o, "mapped_bytes", g->mapped);
    number_set(o, "expanded_bytes", g->expanded);
    number_set(o, "kernel_bytes", g->kernels);
    number_set(o, "pass_bytes", g->pass_bytes);
    number_set(o, "device_bytes", g->device_bytes);
    number_set(o, "host_bytes", g->host_bytes);
    if (all->left >= 0)
        number_set(o, "free_bytes", all->left);
}

static json_t *dry_json(const lf_job *j, const need *all)
{
    json_t *o = json_object();

    text_set(o, "model_type", j->model.type);
    text_set(o, "weights_id", lf_job_weights_id(j));
    number_set(o, "weights_bytes", j->inventory.bytes);
    text_set(o, "numerics", j->o->numerics == LF_EXACT ? "exact" : "released");
    text_set(o, "kv_dtype", lf_kv_dtype_name(j->kv_dtype));
    work_add(o, j);
    device_add(o, j);
    memory_add(o, all);
    return o;
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
        printf("%s,", key);
        if (json_is_string(value))
            lf_csv_field(stdout, json_string_value(value));
        else
            printf("%lld", (long long)json_integer_value(value));
        printf("\n");
    }
}

int lf_job_dry(lf_job *j, lf_err *err)
{
    need all;

    if (need_gather(j, &all, err))
        return -1;
    if (j->rank)
        return 0;
    json_t *plan = dry_json(j, &all);
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
