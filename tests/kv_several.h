/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_several: a file of several writers for the tests: its parts in an order of chance, and the master over them.
 */
#ifndef LF_KV_SEVERAL_H
#define LF_KV_SEVERAL_H

#include "kv_fixture.h"
#include "../src/kvindex.h"
#include "../src/kvmaster.h"
#include "../src/kvshare.h"

enum { MOST = 9 };

static uint64_t state = 1;

static inline int64_t pick(int64_t lo, int64_t hi)            /* lo .. hi */
{
    return lo + (int64_t)(fixture_mix(state++) % (uint64_t)(hi - lo + 1));
}

static char master[128];

/* The rows of one writer, in pieces, tables and pieces in an order of chance. */
static inline int part_put(lf_kvfile *f, const lf_kv_meta *m, int rank, int of, lf_err *err)
{
    int64_t n = lf_kv_tokens_number(m), at = pick(0, n - 1), last = lf_kv_logits_number(m, LF_LOGITS_LAST);
    lf_kv_table own;

    for (int64_t k = 0; k < n; k++) {
        int64_t number = (at + k * 7919) % n;                  /* 7919 is a prime above any n here's factors */
        if (!lf_kv_share_at(m, number, rank, of, &own))
            continue;
        for (int i = 0; i < own.ranges; i++) {
            lf_span s = own.range[i];
            int64_t step = number == last ? s.to : pick(1, s.to - s.from);
            for (int64_t row = s.from; row < s.to; row += step) {
                if (fixture_put(f, m, number, row, lf_min(step, s.to - row), err))
                    return -1;
            }
        }
    }
    return 0;
}

static inline int part_write(const fixture *x, int rank, int of, lf_kv_written *out, lf_err *err)
{
    lf_kvfile *f;

    *out = (lf_kv_written){ 0 };
    if (!lf_kv_share_any(&x->meta, rank, of))
        return 0;
    if (lf_kvmaster_create_part(&f, master, &x->meta, rank, of, err))
        return -1;
    if (part_put(f, &x->meta, rank, of, err)) {
        lf_kvfile_abandon(f);
        return -1;
    }
    return lf_kvmaster_finish_part(f, out, err);
}

static inline int parts_write(const fixture *x, int of, lf_kv_written *part, lf_err *err)
{
    for (int r = 0; r < of; r++) {
        if (part_write(x, r, of, &part[r], err))
            return -1;
    }
    return 0;
}

static inline int master_join(const fixture *x, int of, const lf_kv_written *part, uint64_t *bytes, lf_err *err)
{
    uint32_t *ids = lf_alloc(4 * (size_t)x->meta.num_tokens);

    for (int64_t i = 0; i < x->meta.num_tokens; i++)
        ids[i] = fixture_token(&x->meta, i);
    int rc = lf_kvmaster_join(master, &x->meta, ids, part, of, bytes, err);
    free(ids);
    return rc;
}

static inline int write_all(const fixture *x, int of, uint64_t *bytes, lf_err *err)
{
    lf_kv_written part[MOST];

    return parts_write(x, of, part, err) || master_join(x, of, part, bytes, err) ? -1 : 0;
}

static inline int begin(fixture *x, int64_t tokens, lf_kv_dtype dtype, lf_err *err)
{
    if (fixture_begin(x, 0, tokens, dtype, err))
        return -1;
    snprintf(master, sizeof master, "%s/several%%.h5", x->dir);
    x->meta.chunk_bytes = 512;
    return 0;
}

static inline int in_parts(const char *end)                         /* files of the parts' directory */
{
    char *dir = lf_kvmaster_directory(master);
    DIR *d = opendir(dir);
    int n = 0;

    for (struct dirent *e; d && (e = readdir(d));) {
        size_t k = strlen(e->d_name), m = strlen(end);
        n += e->d_name[0] != '.' && k >= m && !strcmp(e->d_name + k - m, end);
    }
    if (d)
        closedir(d);
    free(dir);
    return n;
}

static inline void end(fixture *x)
{
    unlink(master);
    lf_kvmaster_sweep(master, LF_SWEEP_ALL);
    fixture_end(x);
}

#endif
