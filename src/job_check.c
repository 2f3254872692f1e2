/* SPDX-License-Identifier: Apache-2.0 */
#include "job_store.h"
#include "log.h"
#include "request_text.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

int lf_job_any(lf_job *j, int bad, lf_err *err)
{
    size_t bytes = (size_t)j->world * sizeof(int64_t);
    int64_t *send = lf_alloc(bytes), *recv = lf_alloc(bytes);
    int first = -1;

    for (int r = 0; r < j->world; r++)
        send[r] = bad != 0;
    if (lf_coll_counts(j->control.world, recv, send, 1, err)) {
        lf_error("%s", err->text);
        lf_topo_abort(LF_EXIT_FAILED);
    }
    for (int r = j->world - 1; r >= 0; r--)
        if (recv[r])
            first = r;
    free(send);
    free(recv);
    if (first >= 0 && first != j->rank)
        err->text[0] = 0;
    return first >= 0 ? -1 : 0;
}

/* ---- rank 0 ---- */

static int options_check(lf_job *j, lf_err *err)
{
    const lf_options *o = j->o;

    if (lf_job_device_check(o, err))
        return -1;
    if (o->logits == LF_KEEP_TOPK && o->topk > j->model.vocab)
        return lf_fail(err, "--logits topk:%lld: the model's vocabulary has %lld tokens", (long long)o->topk,
                       (long long)j->model.vocab);
    return 0;
}

/* srun without the interface that this MPI wants starts as many worlds of one rank. */
static int grid_make(lf_job *j, lf_err *err)
{
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    const lf_options *o = j->o;

    if (!lf_grid_make(&j->grid, &j->model, j->world, j->rank, (int)o->dp, (int)o->pcp, (int)o->tp, err))
        return 0;
    if (j->world == 1 && tasks && atoi(tasks) > 1) {
        lf_err why = *err;
        lf_fail(err, "%s; srun started %s processes, which MPI does not know to belong together: `srun --mpi=list` "
                "tells what it can do for that, pmix most likely", why.text, tasks);
    }
    return -1;
}

static int item_count(void *arg, const lf_inventory_item *item, lf_err *err)
{
    (void)err;
    ((lf_inventory_report *)arg)->bytes += lf_inventory_bytes(item, item->released);
    return 0;
}

/* The checkpoint, or the name of what stands in for it. */
static int weights_open(lf_job *j, lf_err *err)
{
    if (j->o->weights == LF_WEIGHTS_REAL)
        return lf_checkpoint_open(&j->checkpoint, j->o->model, err);
    snprintf(j->made_up, sizeof j->made_up, "dummy:%lld:%s", (long long)j->o->seed, j->model.sha256);
    return 0;
}

const char *lf_job_weights_id(const lf_job *j)
{
    return j->checkpoint ? lf_checkpoint_id(j->checkpoint) : j->made_up;
}

static int model_check(lf_job *j, lf_err *err)
{
    const char *dir = j->o->model;

    if (lf_model_read(&j->model, dir, err) || options_check(j, err) ||
        grid_make(j, err))
        return -1;
    if (weights_open(j, err))
        return -1;
    if (j->checkpoint ? lf_inventory_check(&j->model, j->checkpoint, &j->inventory, err)
                      : lf_inventory_each(&j->model, item_count, &j->inventory, err))
        return -1;
    if (j->inventory.unknown)
        lf_verbose("%s: %lld tensor%s that the model has no use for, such as %s", dir,
                   (long long)j->inventory.unknown, lf_s(j->inventory.unknown), j->inventory.first_unknown);
    return 0;
}

static int prompts_read(lf_job *j, lf_err *err)
{
    lf_request_text text = { .model_dir = j->o->model };
    lf_request_rules rules = { j->model.vocab, j->model.max_positions, lf_request_text_encode, &text };
    double t = lf_now();
    int bad = lf_requests_read(&j->requests, j->o->input, &rules, err);

    j->tokenize_s = lf_now() - t;
    if (!bad && text.tokenizer)
        snprintf(j->tokenizer_sha256, sizeof j->tokenizer_sha256, "%s", lf_tokenizer_sha256(text.tokenizer));
    lf_request_text_close(&text);
    if (!bad)
        bad = lf_job_names(j, err);        /* of all shards: they share the directory */
    if (!bad)
        lf_requests_shard(&j->requests, j->o->shard, j->o->shards);
    return bad;
}

static int check(lf_job *j, lf_err *err)
{
    return model_check(j, err) || prompts_read(j, err) || lf_job_output(j, err) ? -1 : 0;
}

/* ---- to the others ---- */

static int share(lf_job *j, void *data, size_t bytes, lf_err *err)
{
    return lf_topo_bcast(j->control.world, data, bytes, 0, err);
}

static int share_text(lf_job *j, char **text, lf_err *err)
{
    int64_t bytes = j->rank ? 0 : (int64_t)strlen(*text);

    if (share(j, &bytes, sizeof bytes, err))
        return -1;
    if (j->rank)
        *text = lf_alloc((size_t)bytes + 1);
    return share(j, *text, (size_t)bytes, err);
}

/* Prompts that are done already travel without their tokens. */
static int share_request(lf_job *j, int64_t i, lf_err *err)
{
    lf_request *r = &j->requests.v[i];
    int64_t field[] = { r->tokens, r->line, r->place, r->source, j->skip[i], j->skip_bytes[i] };

    if (share_text(j, &r->id, err) || share(j, field, sizeof field, err))
        return -1;
    if (j->rank) {
        r->tokens = field[0];
        r->line = field[1];
        r->place = field[2];
        r->source = (lf_request_source)field[3];
        j->skip[i] = (unsigned char)field[4];
        j->skip_bytes[i] = field[5];
        r->ids = j->skip[i] ? NULL : lf_alloc((size_t)r->tokens * sizeof *r->ids);
    }
    return j->skip[i] ? 0 : share(j, r->ids, (size_t)r->tokens * sizeof *r->ids, err);
}

static int share_requests(lf_job *j, lf_err *err)
{
    lf_requests *r = &j->requests;

    if (share(j, &r->n, sizeof r->n, err) || share(j, &r->tokens, sizeof r->tokens, err) ||
        share(j, j->tokenizer_sha256, sizeof j->tokenizer_sha256, err))
        return -1;
    if (j->rank) {
        r->v = lf_alloc((size_t)r->n * sizeof *r->v);
        j->skip = lf_alloc((size_t)r->n);
        j->skip_bytes = lf_alloc((size_t)r->n * sizeof *j->skip_bytes);
    }
    for (int64_t i = 0; i < r->n; i++)
        if (share_request(j, i, err))
            return -1;
    return 0;
}

/* On the other ranks, from what rank 0 has read and checked. */
static int know(lf_job *j, const char *config, lf_err *err)
{
    char *path = lf_printf("%s/config.json", j->o->model);
    int bad = lf_model_parse(&j->model, config, strlen(config), path, err);

    free(path);
    if (bad || grid_make(j, err))
        return -1;
    return weights_open(j, err);
}

/* Everything is sent before anything is looked at: a rank that fails must not miss a broadcast. */
static int share_all(lf_job *j, lf_err *err)
{
    char *config = j->model.text;

    if (share_text(j, &config, err) || share_requests(j, err)) {
        lf_error("%s", err->text);
        lf_topo_abort(LF_EXIT_FAILED);
    }
    int bad = j->rank && know(j, config, err);
    if (j->rank)
        free(config);
    return lf_job_any(j, bad, err);
}

static void choices_make(lf_job *j)
{
    const lf_options *o = j->o;

    j->kv_dtype = lf_kv_resolve((lf_kv_dtype)o->kv_dtype, (lf_numerics)o->numerics);
    j->want = (lf_logits_want){ .last = o->logits != LF_KEEP_NONE, .all = o->logits == LF_KEEP_ALL,
                                .topk = (int)o->topk, .logprob = o->logprobs };
}

int lf_job_check(lf_job *j, int *code, lf_err *err)
{
    lf_grid plain = { .dp = j->world, .pcp = 1, .tp = 1, .rank = j->rank, .dp_rank = j->rank, .ep = 1 };

    *code = LF_EXIT_FAILED;
    if (lf_topo_open(&j->control, &plain, err))
        return -1;
    j->control_open = 1;
    *code = LF_EXIT_USAGE;
    choices_make(j);
    if (lf_job_any(j, j->rank == 0 && check(j, err), err))
        return -1;
    *code = LF_EXIT_FAILED;
    if (share_all(j, err))
        return -1;
    lf_job_plan_make(&j->plan, &j->requests, j->skip, j->grid.dp);
    if (j->rank == 0)
        lf_job_space(j);
    return 0;
}
