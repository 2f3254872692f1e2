/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors_parts.h"
#include "file.h"
#include "hash.h"

#include <jansson.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define INDEX "model.safetensors.index.json"
#define SINGLE "model.safetensors"

enum { INDEX_LIMIT = 256 << 20, SHARD_LIMIT = 100000, SAMPLES = 4, SAMPLE_BYTES = 4096 };

struct lf_checkpoint {
    char *dir;
    lf_shard_file *shard;
    int shards;
    lf_tensor_list list;
    int64_t *slot; /* open addressing: 0 empty, else 1 + the tensor's place */
    uint64_t mask;
    char id[65];
};

static uint64_t name_hash(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */

    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    return h ^ h >> 32;
}

/* The slot that holds the name, or the empty one where it would go. */
static uint64_t slot_of(const lf_checkpoint *c, const char *name)
{
    uint64_t i = name_hash(name) & c->mask;

    while (c->slot[i] && strcmp(c->list.v[c->slot[i] - 1].name, name))
        i = (i + 1) & c->mask;
    return i;
}

static int build_table(lf_checkpoint *c, lf_err *err)
{
    uint64_t slots = 16;

    while (slots < 2 * (uint64_t)c->list.n)
        slots *= 2;
    c->slot = lf_alloc(slots * sizeof *c->slot);
    c->mask = slots - 1;
    for (int64_t k = 0; k < c->list.n; k++) {
        const lf_tensor *t = &c->list.v[k];
        uint64_t i = slot_of(c, t->name);
        if (c->slot[i])
            return lf_fail(err, "tensor %s is in two shards, %s and %s", t->name,
                           c->shard[c->list.v[c->slot[i] - 1].shard].path, c->shard[t->shard].path);
        c->slot[i] = k + 1;
    }
    return 0;
}

/* Two fine-tunes of one model have the same headers: a little of the data tells them apart. */
static int id_add_sample(lf_sha256 *h, const lf_shard_file *s, lf_err *err)
{
    uint64_t data = s->header + 8, each = (uint64_t)lf_min(SAMPLE_BYTES, (int64_t)(s->bytes - data));
    uint8_t block[SAMPLE_BYTES];
    int fd = open(s->path, O_RDONLY | O_CLOEXEC), bad = fd < 0;

    for (uint64_t i = 0; i < SAMPLES && !bad; i++) {
        uint64_t at = data + (s->bytes - data - each) * i / (SAMPLES - 1);
        bad = lf_file_read_at(fd, block, each, at);
        lf_sha256_add(h, block, each);
    }
    if (bad)
        lf_fail(err, "cannot read shard %s: %s", s->path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return bad ? -1 : 0;
}

static int id_add_shard(lf_sha256 *h, const lf_shard_file *s, const char *text, lf_err *err)
{
    uint8_t size[8];

    for (int i = 0; i < 8; i++)
        size[i] = (uint8_t)(s->bytes >> 8 * i);
    lf_sha256_add(h, s->name, strlen(s->name) + 1);
    lf_sha256_add(h, size, sizeof size);
    lf_sha256_add(h, text, (size_t)s->header + 8);
    return id_add_sample(h, s, err);
}

static int read_shards(lf_checkpoint *c, lf_err *err)
{
    lf_sha256 h;
    uint8_t digest[32];

    lf_sha256_init(&h);
    for (int i = 0; i < c->shards; i++) {
        lf_shard_file *s = &c->shard[i];
        char *text;
        if (lf_shard_read_header(s, &text, err))
            return -1;
        int rc = id_add_shard(&h, s, text, err) || lf_shard_parse_header(s, i, text + 8, &c->list, err) ? -1 : 0;
        free(text);
        if (rc)
            return -1;
    }
    lf_sha256_end(&h, digest);
    lf_hex(digest, sizeof digest, c->id);
    return build_table(c, err);
}

static void set_shard(lf_checkpoint *c, int i, const char *name)
{
    c->shard[i].name = lf_strdup(name);
    c->shard[i].path = lf_printf("%s/%s", c->dir, name);
}

/* A shard is a file of the checkpoint's own directory, by a plain name. */
static int check_shard_name(const char *path, const char *tensor, const json_t *value, lf_err *err)
{
    const char *name = json_string_value(value);
    size_t n = name ? strlen(name) : 0;

    if (!name)
        return lf_fail(err, "%s: the shard of tensor %.200s is not a text", path, tensor);
    int ok = n > 12 && n <= 255 && name[0] != '.' && strcmp(name + n - 12, ".safetensors") == 0;
    for (size_t i = 0; i < n; i++)
        if (name[i] == '/' || name[i] == '\\' || (unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            ok = 0;
    if (ok)
        return 0;
    char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    lf_fail(
        err,
        "%s: tensor %.200s is said to be in %.200s: a shard is a file NAME.safetensors in the same directory",
        path, tensor, shown);
    free(shown);
    return -1;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct shard names, ascending: the order of shards everywhere, and that of the id. */
static int list_shards(lf_checkpoint *c, const char *path, json_t *map, lf_err *err)
{
    size_t n = json_object_size(map), kept = 0, k = 0;
    const char **name = lf_alloc(n * sizeof *name);
    const char *tensor;
    json_t *value;
    int rc = 0;

    json_object_foreach(map, tensor, value)
    {
        if (check_shard_name(path, tensor, value, err)) {
            free(name);
            return -1;
        }
        name[k++] = json_string_value(value);
    }
    if (n)
        qsort(name, n, sizeof *name, by_text);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || strcmp(name[kept - 1], name[i]))
            name[kept++] = name[i];
    if (kept == 0 || kept > SHARD_LIMIT) {
        rc = lf_fail(err, "%s names %zu shards; 1 to %d are accepted", path, kept, SHARD_LIMIT);
    } else {
        c->shards = (int)kept;
        c->shard = lf_alloc(kept * sizeof *c->shard);
        for (size_t i = 0; i < kept; i++)
            set_shard(c, (int)i, name[i]);
    }
    free(name);
    return rc;
}

/* The index and the shards' headers must say the same. */
static int check_index(const lf_checkpoint *c, const char *path, json_t *map, lf_err *err)
{
    const char *name;
    json_t *value;

    json_object_foreach(map, name, value)
    {
        const lf_tensor *t = lf_checkpoint_find(c, name);
        const char *shard = json_string_value(value);
        if (!t || strcmp(c->shard[t->shard].name, shard))
            return lf_fail(err, "%s: tensor %.200s is not in the shard %s that the index names", path, name,
                           shard);
    }
    if ((uint64_t)c->list.n == json_object_size(map))
        return 0;
    for (int64_t i = 0; i < c->list.n; i++)
        if (!json_object_get(map, c->list.v[i].name))
            return lf_fail(err, "%s: tensor %s of shard %s is not in the index", path, c->list.v[i].name,
                           c->shard[c->list.v[i].shard].name);
    return 0;
}

static int open_map(lf_checkpoint *c, const char *path, json_t *root, lf_err *err)
{
    json_t *map = json_object_get(root, "weight_map");

    if (!json_is_object(map))
        return lf_fail(err, "%s: there is no object weight_map in it", path);
    return list_shards(c, path, map, err) || read_shards(c, err) || check_index(c, path, map, err) ? -1 : 0;
}

static int open_index(lf_checkpoint *c, const char *path, lf_err *err)
{
    char *text;
    size_t bytes;
    json_error_t bad;

    if (lf_file_read(path, INDEX_LIMIT, &text, &bytes, err))
        return -1;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &bad);
    free(text);
    if (!root)
        return lf_fail(err, "%s:%d:%d: not JSON: %s", path, bad.line, bad.column, bad.text);
    int rc = open_map(c, path, root, err);
    json_decref(root);
    return rc;
}

static int open_single(lf_checkpoint *c, lf_err *err)
{
    c->shards = 1;
    c->shard = lf_alloc(sizeof *c->shard);
    set_shard(c, 0, SINGLE);
    if (access(c->shard[0].path, F_OK) && errno == ENOENT)
        return lf_fail(err, "%s has neither " INDEX " nor " SINGLE, c->dir);
    return read_shards(c, err);
}

const char *lf_checkpoint_dir(const lf_checkpoint *c)
{
    return c->dir;
}

int lf_checkpoint_open(lf_checkpoint **out, const char *dir, lf_err *err)
{
    lf_checkpoint *c = lf_alloc(sizeof *c);
    char *index = lf_printf("%s/" INDEX, dir);

    c->dir = lf_strdup(dir);
    int rc = access(index, F_OK) == 0 ? open_index(c, index, err) : open_single(c, err);
    free(index);
    if (rc) {
        lf_checkpoint_close(c);
        c = NULL;
    }
    *out = c;
    return rc;
}

void lf_checkpoint_close(lf_checkpoint *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->shards; i++) {
        const uint8_t *map = atomic_load(&c->shard[i].map);
        if (map)
            munmap((void *)(uintptr_t)map, (size_t)c->shard[i].bytes);
        if (c->shard[i].fd)
            close(c->shard[i].fd - 1);
        free(c->shard[i].name);
        free(c->shard[i].path);
    }
    for (int64_t i = 0; i < c->list.n; i++)
        free((void *)(uintptr_t)c->list.v[i].name);
    free(c->shard);
    free(c->list.v);
    free(c->slot);
    free(c->dir);
    free(c);
}

int64_t lf_checkpoint_count(const lf_checkpoint *c)
{
    return c->list.n;
}

const lf_tensor *lf_checkpoint_at(const lf_checkpoint *c, int64_t i)
{
    return &c->list.v[i];
}

const lf_tensor *lf_checkpoint_find(const lf_checkpoint *c, const char *name)
{
    int64_t at = c->slot[slot_of(c, name)];

    return at ? &c->list.v[at - 1] : NULL;
}

const char *lf_checkpoint_shard_path(const lf_checkpoint *c, int shard)
{
    return c->shard[shard].path;
}

const char *lf_checkpoint_id(const lf_checkpoint *c)
{
    return c->id;
}

static int same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* The descriptor, or -1. */
static int open_shard(const lf_shard_file *s, lf_err *err)
{
    struct stat st;
    int fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return lf_fail(err, "cannot open shard %s: %s", s->path, strerror(errno));
    if (fstat(fd, &st) || !same_file(&st, &s->st)) {
        close(fd);
        return lf_fail(err, "shard %s was changed or replaced while it was in use", s->path);
    }
    return fd;
}

static int map_shard(const lf_shard_file *s, const uint8_t **map, lf_err *err)
{
    int fd = open_shard(s, err);

    if (fd < 0)
        return -1;
    void *p = mmap(NULL, (size_t)s->bytes, PROT_READ, MAP_SHARED, fd, 0);
    int why = errno;
    close(fd);
    if (p == MAP_FAILED)
        return lf_fail(err, "cannot map shard %s: %s", s->path, strerror(why));
    *map = p;
    return 0;
}

int lf_checkpoint_data(lf_checkpoint *c, const lf_tensor *t, const void **data, lf_err *err)
{
    lf_shard_file *s = &c->shard[t->shard];
    const uint8_t *map = atomic_load(&s->map), *none = NULL;

    if (!map) {
        if (map_shard(s, &map, err))
            return lf_fail_in(err, "tensor %s", t->name);
        if (!atomic_compare_exchange_strong(&s->map, &none,
                                            map)) { /* another thread was first: use its map */
            munmap((void *)(uintptr_t)map, (size_t)s->bytes);
            map = none;
        }
    }
    *data = map + t->offset;
    return 0;
}

int lf_checkpoint_file(lf_checkpoint *c, const void *data, size_t bytes, int64_t *at)
{
    for (int i = 0; i < c->shards; i++) {
        lf_shard_file *s = &c->shard[i];
        uintptr_t map = (uintptr_t)atomic_load(&s->map), from = (uintptr_t)data;
        lf_err err;
        if (!map || from < map || from - map > s->bytes || bytes > s->bytes - (from - map))
            continue;
        if (!s->fd) {
            s->fd = open_shard(s, &err) + 1;
            if (s->fd)                     /* much is read ahead; what helps is not needed for the result */
                (void)posix_fadvise(s->fd - 1, 0, 0, POSIX_FADV_SEQUENTIAL);
        }
        *at = (int64_t)(from - map);
        return s->fd - 1;
    }
    return -1;
}
