/* SPDX-License-Identifier: Apache-2.0 */
#include "kvwrite_parts.h"
#include "file.h"
#include "kvmaster.h"
#include "kvshare.h"
#include "kvtail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DEFAULT_CHUNK = 4 << 20 };

/* What this file has of a table. */
static int table_at(const lf_kvfile *f, int64_t number, lf_kv_table *t)
{
    return f->of ? lf_kv_share_at(&f->meta, number, f->rank, f->of, t) : lf_kv_table_at(&f->meta, number, t);
}

static int table_open(lf_kvfile *f, int64_t number, const lf_kv_table *table, lf_err *err)
{
    size_t chunk_bytes = f->meta.chunk_bytes ? f->meta.chunk_bytes : DEFAULT_CHUNK;

    f->state[number] = lf_kvtable_open(f->file, f->part, chunk_bytes, table, err);
    return f->state[number] ? 0 : -1;
}

static int table_close(lf_kvfile *f, int64_t number, lf_err *err)
{
    int rc = lf_kvtable_close(f->state[number], err);

    lf_kvtable_free(f->state[number]);
    f->state[number] = NULL;
    f->written[number] = 1;
    return rc;
}

static int rows_put(lf_kvfile *f, int64_t number, const lf_kv_table *table, int64_t row0, int64_t rows,
                      const void *packed, lf_err *err)
{
    int whole = 0;

    if (f->written[number])
        return lf_fail(err, "%s: row %lld of %s was put before", f->part, (long long)row0, table->path);
    if (!f->state[number] && table_open(f, number, table, err))
        return -1;
    if (lf_kvtable_put(f->state[number], row0, rows, packed, &whole, err))
        return -1;
    return whole ? table_close(f, number, err) : 0;
}

/* Of these rows, which are the prompt's, where they lie in this writer's dataset. */
static int share_rows(lf_kvfile *f, int64_t number, const lf_kv_table *table, int64_t row0, int64_t rows,
                      const uint8_t *packed, lf_err *err)
{
    int64_t mine = 0, before = 0;

    for (int i = 0; i < table->ranges; i++)
        mine += lf_max(0, lf_min(row0 + rows, table->range[i].to) - lf_max(row0, table->range[i].from));
    if (mine != rows)
        return lf_fail(err, "%s: rows %lld..%lld of %s are not all this writer's", f->part, (long long)row0,
                       (long long)(row0 + rows - 1), table->path);
    for (int i = 0; i < table->ranges; i++) {
        lf_span r = table->range[i];
        int64_t from = lf_max(row0, r.from), to = lf_min(row0 + rows, r.to);
        if (from < to && rows_put(f, number, table, before + from - r.from, to - from,
                                  packed + table->row_bytes * (size_t)(from - row0), err))
            return -1;
        before += r.to - r.from;
    }
    return 0;
}

static int table_rows(lf_kvfile *f, int64_t number, const lf_kv_table *table, int64_t row0, int64_t rows,
                      const void *packed, lf_err *err)
{
    int64_t end = table->ranges ? table->range[table->ranges - 1].to : table->rows;

    if (row0 < 0 || rows < 0 || row0 > end || rows > end - row0)
        return lf_fail(err, "%s: %lld row%s from %lld on: %s has %lld", f->part, (long long)rows, lf_s(rows),
                       (long long)row0, table->path, (long long)end);
    if (rows == 0)
        return 0;
    return f->of ? share_rows(f, number, table, row0, rows, packed, err)
                 : rows_put(f, number, table, row0, rows, packed, err);
}

static int table_put(lf_kvfile *f, int64_t number, int64_t row0, int64_t rows, const void *packed, lf_err *err)
{
    lf_kv_table table;

    if (f->failed)
        return lf_fail(err, "%s: an earlier write failed", f->part);
    int rc = table_at(f, number, &table)
                 ? table_rows(f, number, &table, row0, rows, packed, err)
                 : lf_fail(err, "%s: this file has no %s", f->part, table.path[0] ? table.path : "such rows");
    f->failed = f->failed || rc;
    return rc;
}

int lf_kvfile_put_at(lf_kvfile *f, int64_t position, int layer, lf_kv_part part, int64_t row0, int64_t rows,
                     const void *packed, lf_err *err)
{
    if (layer < 0 || layer >= f->meta.model->layers || (int)part < 0 || part >= LF_PARTS)
        return lf_fail(err, "%s: no layer %d, part %d", f->part, layer, (int)part);
    if (position && (position < 0 || !f->meta.frontier || position % f->meta.frontier ||
                     position >= f->meta.num_tokens))
        return lf_fail(err, "%s: %lld is no frontier of this file", f->part, (long long)position);
    return table_put(f, lf_kv_part_number(&f->meta, position, layer, part), row0, rows, packed, err);
}

int lf_kvfile_put(lf_kvfile *f, int layer, lf_kv_part part, int64_t row0, int64_t rows, const void *packed,
                  lf_err *err)
{
    return lf_kvfile_put_at(f, 0, layer, part, row0, rows, packed, err);
}

int lf_kvfile_put_tokens(lf_kvfile *f, const uint32_t *ids, lf_err *err)
{
    int64_t n = f->meta.num_tokens, pages = lf_kv_page_count(n);
    uint8_t *hash = lf_alloc(32 * (size_t)pages);

    lf_kv_page_hash(ids, n, hash);
    int rc = table_put(f, lf_kv_tokens_number(&f->meta), 0, n, ids, err) ||
             table_put(f, lf_kv_pages_number(&f->meta), 0, pages, hash, err);
    free(hash);
    return rc ? -1 : 0;
}

int lf_kvfile_put_logits(lf_kvfile *f, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data, lf_err *err)
{
    int64_t scale = kind == LF_LOGITS_LAST ? f->meta.model->vocab : 1;

    if ((int)kind < 0 || kind > LF_LOGITS_LOGPROB)
        return lf_fail(err, "%s: no logits of kind %d", f->part, (int)kind);
    if (kind == LF_LOGITS_LAST && (row0 < 0 || row0 > 1 || rows < 0 || rows > 1))
        return lf_fail(err, "%s: /logits/last is one row", f->part);
    return table_put(f, lf_kv_logits_number(&f->meta, kind), row0 * scale, rows * scale, data, err);
}

/* ---- the file ---- */

static int meta_check(const lf_kv_meta *m, lf_err *err)
{
    if (m->num_tokens < 1 || m->num_tokens > m->model->max_positions)
        return lf_fail(err, "%s: %lld tokens; 1 to %lld can be stored", m->custom_id, (long long)m->num_tokens,
                       (long long)m->model->max_positions);
    if (m->kv_dtype != LF_KV_FP8 && m->kv_dtype != LF_KV_BF16 && m->kv_dtype != LF_KV_F32)
        return lf_fail(err, "%s: the storage type must be fp8, bf16 or f32", m->custom_id);
    if (m->frontier < 0 || m->frontier % 128)
        return lf_fail(err, "%s: frontier %lld is no multiple of 128", m->custom_id, (long long)m->frontier);
    if (m->logits.topk < 0 || m->logits.topk > m->model->vocab)
        return lf_fail(err, "%s: top-k %d; 1 to %lld are possible", m->custom_id, m->logits.topk,
                       (long long)m->model->vocab);
    return 0;
}

static int root_attributes(const lf_kvfile *f, lf_err *err)
{
    const lf_kv_meta *m = &f->meta;
    hid_t o = f->file;
    char logits[64];

    lf_kv_logits_text(&m->logits, logits);
    if (lf_h5_put_text(o, "format", f->of ? "longfill-kv-part" : "longfill-kv", err) ||
        (f->of && (lf_h5_put_i64(o, "writer", f->rank, err) || lf_h5_put_i64(o, "writers", f->of, err))) ||
        lf_h5_put_i64(o, "format_version", LF_KV_VERSION, err) ||
        lf_h5_put_text(o, "custom_id", m->custom_id, err) || lf_h5_put_i64(o, "num_tokens", m->num_tokens, err) ||
        lf_h5_put_text(o, "numerics", m->numerics == LF_RELEASED ? "released" : "exact", err) ||
        lf_h5_put_text(o, "kv_dtype", lf_kv_dtype_name(m->kv_dtype), err) ||
        lf_h5_put_text(o, "model_type", m->model->type, err) ||
        lf_h5_put_text(o, "config", m->model->text, err) ||
        lf_h5_put_text(o, "config_sha256", m->model->sha256, err) ||
        lf_h5_put_text(o, "weights_id", m->weights_id, err) ||
        (m->tokenizer_sha256 && lf_h5_put_text(o, "tokenizer_sha256", m->tokenizer_sha256, err)) ||
        (m->device && lf_h5_put_text(o, "device", m->device, err)) ||
        (m->pcp_attention && lf_h5_put_text(o, "pcp_attention", m->pcp_attention, err)) ||
        (m->tp && lf_h5_put_i64(o, "tp", m->tp, err)) ||
        lf_h5_put_text(o, "logits", logits, err) || lf_h5_put_i64(o, "frontier", m->frontier, err) ||
        lf_h5_put_text(o, "producer", m->producer, err) || lf_h5_put_text(o, "created", m->created, err))
        return lf_fail_in(err, "%s", f->part);
    char *identity = lf_kv_identity(m, 1);
    int rc = identity ? lf_h5_put_sealed(o, "identity", identity, err)
                      : lf_fail(err, "the identity (custom_id, config, ...) is not UTF-8 throughout");
    free(identity);
    return rc ? lf_fail_in(err, "%s", f->part) : 0;
}

static int layer_group(const lf_kvfile *f, int layer, lf_err *err)
{
    const lf_model *m = f->meta.model;
    lf_kind kind = m->kind[layer];
    char path[32];

    snprintf(path, sizeof path, "/layers/%03d", layer);
    hid_t g = lf_h5_group(f->file, path, err);
    if (g < 0)
        return lf_fail_in(err, "cannot write %s", f->part);
    int rc = lf_h5_put_text(g, "kind", lf_kind_name(kind), err) ||
             lf_h5_put_i64(g, "ratio", lf_kind_ratio(kind), err) ||
             lf_h5_put_f64(g, "rope_theta", kind == LF_SWA ? m->rope_theta : m->compress_theta, err);
    H5Gclose(g);
    return rc ? lf_fail_in(err, "%s: group %s", f->part, path) : 0;
}

/* Between opening and claiming, another job may have given this file its final name: then it is not ours to cut. */
static int is_still(int fd, const char *path)
{
    struct stat a, b;

    return !fstat(fd, &a) && !stat(path, &b) && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/* Two jobs that write one file would spoil it for both, and neither would notice. */
static int part_open(lf_kvfile *f, lf_err *err)
{
    for (int tries = 0; tries < 10; tries++) {
        f->fd = open(f->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (f->fd < 0)
            return lf_fail(err, "cannot create %s: %s", f->part, strerror(errno));
        int claimed = !lf_file_claim(f->fd);
        if (claimed && is_still(f->fd, f->part))
            return ftruncate(f->fd, 0) ? lf_fail(err, "cannot create %s: %s", f->part, strerror(errno)) : 0;
        close(f->fd);
        f->fd = -1;
        if (!claimed)
            break;
    }
    return lf_fail(err, "%s: " LF_KV_CLAIMED, f->part);
}

static int file_begin(lf_kvfile *f, lf_err *err)
{
    if (part_open(f, err))
        return -1;
    hid_t access = lf_h5_access(), create = H5Pcreate(H5P_FILE_CREATE);
    if (create >= 0)
        (void)H5Pset_obj_track_times(create, 0);
    f->file = access < 0 || create < 0 ? -1 : H5Fcreate(f->part, H5F_ACC_TRUNC, create, access);
    int rc = f->file < 0 ? lf_h5_fail(err, "cannot create %s", f->part) : 0;
    H5Pclose(create);
    H5Pclose(access);
    if (rc || root_attributes(f, err))
        return -1;
    for (int l = 0; l < f->meta.model->layers; l++) {
        if (layer_group(f, l, err))
            return -1;
    }
    return 0;
}

int lf_kvfile_begin(lf_kvfile **out, const char *path, const lf_kv_meta *meta, int rank, int of, lf_err *err)
{
    time_t now = time(NULL);
    struct tm utc;

    if (meta_check(meta, err))
        return -1;
    lf_h5_setup();
    lf_kvfile *f = lf_alloc(sizeof *f);
    f->meta = *meta;
    f->rank = rank;
    f->of = of;
    f->fd = -1;
    f->file = -1;
    f->path = lf_strdup(path);
    f->part = lf_printf("%s.part", path);
    strftime(f->created, sizeof f->created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    if (!f->meta.created)
        f->meta.created = f->created;
    f->count = lf_kv_table_count(&f->meta);
    f->state = lf_alloc((size_t)f->count * sizeof *f->state);
    f->written = lf_alloc((size_t)f->count);
    if (file_begin(f, err)) {
        lf_kvfile_abandon(f);
        return -1;
    }
    *out = f;
    return 0;
}

int lf_kvfile_create(lf_kvfile **out, const char *path, const lf_kv_meta *meta, lf_err *err)
{
    return lf_kvfile_begin(out, path, meta, 0, 0, err);
}

void lf_kvfile_free(lf_kvfile *f)
{
    for (int64_t i = 0; i < f->count; i++) {
        if (f->state[i])
            lf_kvtable_free(f->state[i]);
    }
    if (f->file >= 0)
        H5Fclose(f->file);
    if (f->fd >= 0)
        close(f->fd);
    json_decref(f->listed);
    free(f->state);
    free(f->written);
    free(f->path);
    free(f->part);
    free(f);
}

void lf_kvfile_abandon(lf_kvfile *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        unlink(f->part);
    lf_kvfile_free(f);
}

/* ---- the end ---- */

/* Empty parts are datasets of no rows; any other that is not written lacks rows. */
static int tables_finish(lf_kvfile *f, lf_err *err)
{
    lf_kv_table table;

    for (int64_t i = 0; i < f->count; i++) {
        if (f->written[i] || !table_at(f, i, &table))
            continue;
        if (table.rows > 0) {
            int64_t row = f->state[i] ? lf_kvtable_missing(f->state[i]) : 0;
            return lf_fail(err, "%s: row %lld of %lld of %s was never put", f->part, (long long)row,
                           (long long)table.rows, table.path);
        }
        if (table_open(f, i, &table, err) || table_close(f, i, err))
            return -1;
    }
    return 0;
}

static int parts_finish(const lf_kvfile *f, lf_err *err)
{
    if (!f->listed)
        return 0;
    char *list = json_dumps(f->listed, JSON_COMPACT);
    hid_t g = lf_h5_group(f->file, "/parts", err);
    int rc = g < 0 ? -1 : lf_h5_put_sealed(g, "list", list, err);

    if (g >= 0)
        H5Gclose(g);
    free(list);
    return rc ? lf_fail_in(err, "cannot write %s", f->part) : 0;
}

/* `complete` goes in when everything else has reached the system. */
static int file_close(lf_kvfile *f, lf_err *err)
{
    if (H5Fflush(f->file, H5F_SCOPE_GLOBAL) < 0)
        return lf_h5_fail(err, "cannot write %s", f->part);
    if (lf_h5_put_i64(f->file, "complete", 1, err))
        return lf_fail_in(err, "%s", f->part);
    hid_t file = f->file;
    int bad = H5Fflush(file, H5F_SCOPE_GLOBAL) < 0;
    if (bad)
        return lf_h5_fail(err, "cannot write %s", f->part);
    f->file = -1;
    if (H5Fclose(file) < 0)
        return lf_h5_fail(err, "cannot close %s", f->part);
    return 0;
}

static int file_sync(lf_kvfile *f, uint64_t *bytes, lf_err *err)
{
    struct stat st;
    int bad = lf_file_settle(f->fd, fstat(f->fd, &st));

    f->fd = -1;
    if (bad)
        return lf_fail(err, "cannot write %s: %s", f->part, strerror(errno));
    if (bytes)
        *bytes = (uint64_t)st.st_size;
    return 0;
}

int lf_kvfile_seal(lf_kvfile *f, uint64_t *bytes, lf_err *err)
{
    if (f->failed)
        return lf_fail(err, "%s: an earlier write failed", f->part);
    lf_kv_tail tail = f->listed ? LF_TAIL_MASTER : LF_TAIL_FILE;

    return tables_finish(f, err) || parts_finish(f, err) || file_close(f, err) ||
           (!f->of && lf_kvtail_append(f->part, f->fd, tail, err)) || file_sync(f, bytes, err) ? -1 : 0;
}

int lf_kvfile_rename(lf_kvfile *f, lf_err *err)
{
    if (rename(f->part, f->path))
        return lf_fail(err, "cannot rename %s to %s: %s", f->part, f->path, strerror(errno));
    lf_file_sync_directory(f->path);
    return 0;
}

int lf_kvfile_finish(lf_kvfile *f, uint64_t *bytes, lf_err *err)
{
    int hold = dup(f->fd);                 /* the claim, until it has its name */
    int rc = lf_kvfile_seal(f, bytes, err) || lf_kvfile_rename(f, err) ? -1 : 0;

    if (rc)
        unlink(f->part);
    else
        lf_kvmaster_sweep(f->path, LF_SWEEP_ALL);             /* of a file of several writers that was here */
    if (hold >= 0)
        close(hold);
    lf_kvfile_free(f);
    return rc;
}
