/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include "dev_cuda_choice.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a prompt's rows take: so much for every token, and a constant (window and state). */
static double bytes_per_token(const lf_model *m, lf_kv_dtype t)
{
    const int64_t n = 1 << 20;

    return (lf_kv_bytes(m, t, 2 * n) - lf_kv_bytes(m, t, n)) / (double)n;
}

static void set_bytes(json_t *o, const char *key, int64_t bytes)
{
    json_object_set_new(o, key, json_integer((json_int_t)bytes));
}

/* ---- the model ---- */

static json_t *kv_json(const lf_model *m, int64_t length)
{
    static const lf_kv_dtype types[] = { LF_KV_FP8, LF_KV_BF16, LF_KV_F32 };
    json_t *kv = json_object();

    for (int i = 0; i < 3; i++) {
        json_t *o = json_object();
        set_bytes(o, "bytes", (int64_t)lf_kv_bytes(m, types[i], length));
        json_object_set_new(o, "bytes_per_token", json_real(bytes_per_token(m, types[i])));
        json_object_set_new(kv, lf_kv_dtype_name(types[i]), o);
    }
    return kv;
}

static json_t *model_json(const lf_plan *p)
{
    const lf_model *m = p->model;
    json_t *weights = json_object(), *layers = json_object();
    int64_t of_kind[3] = { 0, 0, 0 };

    for (int i = 0; i < LF_PLAN_GROUPS; i++)
        set_bytes(weights, lf_plan_group_name((lf_plan_group)i), p->bytes[i]);
    for (int i = 0; i < m->layers; i++)
        of_kind[m->kind[i]]++;
    for (int i = 0; i < 3; i++)
        set_bytes(layers, lf_kind_name((lf_kind)i), of_kind[i]);
    return json_pack("{s:s, s:s, s:s?, s:o, s:I, s:I, s:o, s:I, s:o}", "model_type", m->type,
                     "config_sha256", m->sha256,
                     "weights_id", p->checkpoint ? lf_checkpoint_id(p->checkpoint) : NULL, "layers", layers,
                     "parameters", (json_int_t)p->parameters, "weight_bytes", (json_int_t)p->total, "weights", weights,
                     "length", (json_int_t)p->length, "kv", kv_json(m, p->length));
}

/* ---- the grids ---- */

static json_t *sizes_json(const lf_grid *g)
{
    return json_pack("{s:i, s:i, s:i}", "dp", g->dp, "pcp", g->pcp, "tp", g->tp);
}

static json_t *grid_json(const lf_plan_grid *g)
{
    json_t *o = sizes_json(&g->grid), *weights = json_object(), *pass = json_object(), *host = json_object();

    for (int i = 0; i < LF_PLAN_GROUPS; i++)
        set_bytes(weights, lf_plan_group_name((lf_plan_group)i), g->group[i]);
    for (int i = 0; i < LF_MEMORY_KINDS; i++)
        set_bytes(pass, lf_memory_name((lf_memory_kind)i), (int64_t)g->pass[i]);
    for (int i = 0; i < LF_HOST_KINDS; i++)
        set_bytes(host, lf_host_name((lf_host_kind)i), (int64_t)g->host[i]);
    set_bytes(o, "tile", g->tile);
    set_bytes(o, "fullest_rank", g->grid.rank);
    json_object_set_new(o, "weights", weights);
    set_bytes(o, "weight_bytes", g->weights);
    set_bytes(o, "mapped_bytes", g->mapped);
    set_bytes(o, "expanded_bytes", g->expanded);
    set_bytes(o, "kernel_bytes", g->kernels);
    json_object_set_new(o, "pass", pass);
    set_bytes(o, "pass_bytes", g->pass_bytes);
    set_bytes(o, "device_bytes", g->device_bytes);
    json_object_set_new(o, "fits", json_boolean(g->fits));
    json_object_set_new(o, "host", host);
    set_bytes(o, "host_bytes", g->host_bytes);
    return o;
}

static json_t *smallest_json(const lf_plan *p)
{
    lf_plan_grid g;
    int none = lf_plan_smallest(p, &g);
    json_t *o = sizes_json(&g.grid);

    set_bytes(o, "ranks", g.grid.ep);
    set_bytes(o, "device_bytes", g.device_bytes);
    json_object_set_new(o, "fits", json_boolean(!none));
    return o;
}

static json_t *plan_json(const lf_plan *p, const lf_plan_grid *g, int n)
{
    json_t *o = model_json(p), *grids = json_array();
    int best = lf_plan_choose(g, n);

    for (int i = 0; i < n; i++)
        json_array_append_new(grids, grid_json(&g[i]));
    set_bytes(o, "ranks", p->ranks);
    json_object_set_new(o, "device", json_string(p->on_host ? "cpu" : "cuda"));
    json_object_set_new(o, "numerics", json_string(p->numerics == LF_EXACT ? "exact" : "released"));
    set_bytes(o, "memory", p->memory);
    json_object_set_new(o, "grids", grids);
    json_object_set_new(o, "recommended", best < 0 ? json_null() : sizes_json(&g[best].grid));
    json_object_set_new(o, "smallest", best < 0 ? smallest_json(p) : json_null());
    return o;
}

/* ---- text ---- */

static const char *human(char buf[24], json_t *o, const char *key)
{
    return lf_human_bytes(buf, json_number_value(json_object_get(o, key)));
}

static long long number(json_t *o, const char *key)
{
    return (long long)json_integer_value(json_object_get(o, key));
}

static int whole(json_t *o, const char *key)
{
    return (int)number(o, key);
}

static void model_text(FILE *out, json_t *o)
{
    const char *key;
    char buf[24];
    json_t *v;

    fprintf(out, "model       %s,", json_string_value(json_object_get(o, "model_type")));
    json_object_foreach(json_object_get(o, "layers"), key, v)
        fprintf(out, " %lld %s", (long long)json_integer_value(v), key);
    fprintf(out, " layers, %lld parameters\n",
            (long long)json_integer_value(json_object_get(o, "parameters")));
    fprintf(out, "\nweights in the files%s\n",
            json_is_null(json_object_get(o, "weights_id")) ? " (there are none: as the model is released)" : "");
    json_object_foreach(json_object_get(o, "weights"), key, v)
        if (json_integer_value(v))
            fprintf(out, "  %-14s %12s\n", key, lf_human_bytes(buf, json_number_value(v)));
    fprintf(out, "  %-14s %12s\n", "total", human(buf, o, "weight_bytes"));
    fprintf(out, "\nKV of a prompt of %lld token%s\n", number(o, "length"), lf_s(number(o, "length")));
    json_object_foreach(json_object_get(o, "kv"), key, v)
        fprintf(out, "  %-14s %12s  %.1f bytes for each token more\n", key, human(buf, v, "bytes"),
                json_number_value(json_object_get(v, "bytes_per_token")));
}

static void grid_text(FILE *out, json_t *g)
{
    json_t *pass = json_object_get(g, "pass");
    char buf[24];

    fprintf(out, "  %4d x %3d x %3d %5lld %11s", whole(g, "dp"), whole(g, "pcp"), whole(g, "tp"), number(g, "tile"),
            human(buf, g, "weight_bytes"));
    fprintf(out, " %11s", human(buf, g, "expanded_bytes"));
    fprintf(out, " %11s", human(buf, g, "kernel_bytes"));
    for (int i = 0; i < LF_MEMORY_KINDS; i++)
        fprintf(out, " %11s", human(buf, pass, lf_memory_name((lf_memory_kind)i)));
    fprintf(out, " %11s  %-4s", human(buf, g, "device_bytes"), json_is_true(json_object_get(g, "fits")) ? "yes" : "no");
    fprintf(out, " %11s\n", human(buf, g, "host_bytes"));
}

static void smallest_text(FILE *out, json_t *g)
{
    char buf[24];

    fprintf(out, json_is_true(json_object_get(g, "fits")) ? "none fits; %d rank%s would, as %d x %d x %d with %s each\n"
            : "none fits, nor does any other grid; least is taken by %d rank%s, as %d x %d x %d with %s each\n",
            whole(g, "ranks"), lf_s(whole(g, "ranks")), whole(g, "dp"), whole(g, "pcp"), whole(g, "tp"),
            human(buf, g, "device_bytes"));
}

static void grids_text(FILE *out, json_t *o)
{
    json_t *best = json_object_get(o, "recommended"), *v;
    char buf[24];
    size_t i;

    fprintf(out, "\na prompt on %d %s%s (%s), bytes of the fullest one; each may take %s\n", whole(o, "ranks"),
            strcmp(json_string_value(json_object_get(o, "device")), "cpu") ? "GPU" : "CPU rank",
            lf_s(whole(o, "ranks")),
            json_string_value(json_object_get(o, "numerics")), human(buf, o, "memory"));
    fprintf(out, "    dp x pcp x  tp  tile %11s %11s %11s", "weights", "expanded", "kernels");
    for (int k = 0; k < LF_MEMORY_KINDS; k++)
        fprintf(out, " %11s", lf_memory_name((lf_memory_kind)k));
    fprintf(out, " %11s  fits %11s\n", "in all", "host memory");
    json_array_foreach(json_object_get(o, "grids"), i, v)
        grid_text(out, v);
    if (json_is_null(best))
        smallest_text(out, json_object_get(o, "smallest"));
    else
        fprintf(out,
                "recommended: %d x %d x %d, of those that fit the one with the smallest tp, then the largest pcp\n",
                whole(best, "dp"), whole(best, "pcp"), whole(best, "tp"));
}

/* ---- the command ---- */

static void print(const lf_options *o, json_t *all)
{
    if (o->json) {
        json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
        fputc('\n', stdout);
    } else {
        model_text(stdout, all);
        grids_text(stdout, all);
    }
}

/* Of a CPU, if nothing else is said: this machine's, which all ranks share. */
static int64_t memory_of(const lf_plan *p, const lf_options *o)
{
    if (!p->on_host || lf_options_given(o, "memory"))
        return o->memory;
    return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE) / p->ranks;
}

static int question(lf_plan *p, const lf_options *o, lf_err *err)
{
    const lf_model *m = p->model;
    lf_kv_dtype kv = lf_kv_resolve((lf_kv_dtype)o->kv_dtype, (lf_numerics)o->numerics);

    p->length = lf_options_given(o, "length") ? o->length : lf_min(o->length, m->max_positions);
    if (p->length > m->max_positions)
        return lf_fail(err, "--length %lld: the model has %lld positions", (long long)p->length,
                       (long long)m->max_positions);
    if (o->memory < 1 << 20)
        return lf_fail(err, "--memory %lld: %lld byte%s? %lldg is %lld GiB", (long long)o->memory, (long long)o->memory,
                       lf_s(o->memory), (long long)o->memory, (long long)o->memory);
    p->ranks = (int)o->ranks;
    p->numerics = (lf_numerics)o->numerics;
    p->on_host = o->device == LF_DEVICE_CPU;
    p->act_bytes = p->on_host || (p->numerics == LF_EXACT && kv == LF_KV_F32) ? 4 : 2;
    p->made_up = p->on_host && !p->checkpoint;
    p->merge = o->pcp_attention == LF_PCP_MERGE;
    p->kv_dtype = kv;
    p->logits.last = 1;
    p->tokens = p->length;
    return p->on_host ? lf_kernels_none(err) : lf_kernels_read(&p->kernels, err);
}

static int one_grid(lf_plan *p, const char *text, lf_grid *g, lf_err *err)
{
    int size[3];

    if (lf_grid_parse(text, size, err))
        return lf_fail_in(err, "--grid");
    int64_t ranks = (int64_t)size[0] * size[1];
    ranks = ranks > 4096 ? ranks : ranks * size[2];
    if (ranks > 4096)
        return lf_fail(err, "--grid %s: plans are made for up to 4096 ranks", text);
    p->ranks = (int)ranks;
    return lf_grid_make(g, p->model, p->ranks, 0, size[0], size[1], size[2], err) ? lf_fail_in(err, "--grid %s", text)
                                                                                  : 0;
}

/* The grid asked for, or all of them. */
static int grids(lf_plan *p, const lf_options *o, lf_plan_grid **g, int *n, lf_err *err)
{
    lf_plan_grid one = { 0 };

    if (o->grid && one_grid(p, o->grid, &one.grid, err))
        return -1;
    p->memory = memory_of(p, o);
    if (o->grid) {
        lf_plan_grid_size(p, &one);
        *g = lf_alloc(sizeof **g);
        **g = one;
        *n = 1;
    } else {
        *n = lf_plan_grids(p, g);
    }
    return 0;
}

static int plan_run(const lf_options *o, const lf_model *m, const lf_checkpoint *c, lf_err *err)
{
    lf_plan_grid *g = NULL;
    lf_plan p;
    int n, bad = lf_plan_open(&p, m, c, err) || question(&p, o, err) || grids(&p, o, &g, &n, err);

    if (!bad) {
        json_t *all = plan_json(&p, g, n);
        print(o, all);
        json_decref(all);
    }
    free(g);
    lf_plan_free(&p);
    return bad ? -1 : 0;
}

/* config.json alone is enough to plan by. */
static int has_weights(const char *dir)
{
    static const char *const names[] = { "model.safetensors.index.json", "model.safetensors" };
    int there = 0;

    for (int i = 0; i < 2; i++) {
        char *path = lf_printf("%s/%s", dir, names[i]);
        there = there || access(path, F_OK) == 0;
        free(path);
    }
    return there;
}

int lf_cmd_plan(const lf_options *o, lf_err *err)
{
    lf_checkpoint *c = NULL;
    lf_model m;

    if (lf_model_read(&m, o->model, err))
        return LF_EXIT_USAGE;
    int bad = (has_weights(o->model) && lf_checkpoint_open(&c, o->model, err)) || plan_run(o, &m, c, err);
    lf_checkpoint_close(c);
    lf_model_free(&m);
    return bad ? LF_EXIT_USAGE : LF_EXIT_DONE;             /* nothing else can go wrong */
}
