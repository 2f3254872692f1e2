/* SPDX-License-Identifier: Apache-2.0 */
#include "synth_parts.h"
#include "file.h"

#include <jansson.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int take_directory(const char *dir, int *made, lf_err *err)
{
    const struct dirent *e;
    const char *other = NULL;

    *made = mkdir(dir, 0777) == 0;
    if (*made)
        return 0;
    if (errno != EEXIST)
        return lf_fail(err, "cannot make the directory %s: %s", dir, strerror(errno));
    DIR *d = opendir(dir);
    if (!d)
        return lf_fail(err, "cannot open the directory %s: %s", dir, strerror(errno));
    while (!other && (e = readdir(d)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            other = e->d_name;
    if (other)
        lf_fail(err, "%s is not empty (it has %.200s); give a new or an empty directory", dir, other);
    closedir(d);
    return other ? -1 : 0;
}

static int check_space(const lf_synth_plan *p, const char *dir, lf_err *err)
{
    struct statvfs v;
    char need[24], have[24];

    if (p->o->sparse || statvfs(dir, &v))
        return 0;
    double room = (double)v.f_bavail * (double)v.f_frsize;
    if ((double)p->total <= room)
        return 0;
    return lf_fail(err, "%s: the weights need %s and the file system has %s left; --sparse writes headers only",
                   dir, lf_human_bytes(need, (double)p->total), lf_human_bytes(have, room));
}

static int write_index(const lf_synth_plan *p, const char *dir, lf_err *err)
{
    json_t *map = json_object();
    lf_inventory_item item;
    char name[64];

    for (int64_t i = 0; i < p->n; i++) {
        lf_synth_plan_item(p, i, &item);
        lf_synth_shard_name(p, p->place[i].shard, name);
        json_object_set_new(map, item.name, json_string(name));
        if (p->place[i].store == LF_STORE_FP8 || p->place[i].store == LF_STORE_FP4)
            json_object_set_new(map, item.scale, json_string(name));
    }
    json_t *index =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)p->total, "weight_map", map);
    char *text = json_dumps(index, JSON_INDENT(1));
    char *path = lf_printf("%s/model.safetensors.index.json", dir);
    int rc = lf_file_replace(path, text, strlen(text), err);
    free(path);
    free(text);
    json_decref(index);
    return rc;
}

static int write_files(const lf_synth_plan *p, const char *dir, const char *config, lf_err *err)
{
    char *path = lf_printf("%s/config.json", dir);
    int rc = 0;

    for (int s = 0; rc == 0 && s < p->shards; s++)
        rc = lf_synth_shard_write(p, s, dir, err);
    if (rc == 0)
        rc = write_index(p, dir, err);
    if (rc == 0)
        rc = lf_file_replace(path, config, strlen(config), err);
    free(path);
    return rc;
}

/* The directory was empty, or not there: so it is again. */
static void undo(const lf_synth_plan *p, const char *dir, int made)
{
    char name[64];

    for (int s = 0; s <= p->shards; s++) {
        snprintf(name, sizeof name, "model.safetensors.index.json");
        if (s < p->shards)
            lf_synth_shard_name(p, s, name);
        char *path = lf_printf("%s/%s", dir, name);
        unlink(path);
        free(path);
    }
    if (made)
        rmdir(dir);
}

static int write_directory(const lf_synth_plan *p, const char *dir, const char *config, lf_err *err)
{
    int made;

    if (take_directory(dir, &made, err))
        return -1;
    if (check_space(p, dir, err) == 0 && write_files(p, dir, config, err) == 0)
        return 0;
    undo(p, dir, made);
    return -1;
}

/* The config was checked: expert_dtype is fp4, fp8, bf16 or not there. */
static lf_storage expert_store(const char *config)
{
    json_t *root = json_loads(config, 0, NULL);
    const char *type = json_string_value(json_object_get(root, "expert_dtype"));
    lf_storage store = LF_STORE_FP4;

    if (type && strcmp(type, "fp8") == 0)
        store = LF_STORE_FP8;
    else if (type && strcmp(type, "bf16") == 0)
        store = LF_STORE_BF16;
    json_decref(root);
    return store;
}

int lf_synth_write(const char *dir, const lf_synth_options *o, lf_err *err)
{
    lf_synth_plan p;
    lf_model m;
    char *config;

    if (o->shard_size < 1)
        return lf_fail(err, "a shard size of %lld bytes is not possible", (long long)o->shard_size);
    if (lf_synth_config(o, &config, err))
        return -1;
    int rc = lf_model_parse(&m, config, strlen(config), "the settings", err);
    if (rc == 0) {
        rc = lf_synth_plan_make(&p, &m, o, expert_store(config), err);
        if (rc == 0)
            rc = write_directory(&p, dir, config, err);
        lf_synth_plan_free(&p);
    }
    lf_model_free(&m);
    free(config);
    return rc;
}
