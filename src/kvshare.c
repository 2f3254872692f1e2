/* SPDX-License-Identifier: Apache-2.0 */
#include "kvshare.h"

#include "shard.h"

/* The positions of a writer: its two segments, or one run where they touch. */
static int runs_of(int64_t length, int rank, int of, lf_span run[2])
{
    int n = 0;

    for (int half = 0; half < 2; half++) {
        int64_t pos0, len;
        lf_segment(length, of, half ? 2 * of - 1 - rank : rank, &pos0, &len);
        if (len == 0)
            continue;
        if (n && run[0].to == pos0)
            run[0].to += len;
        else
            run[n++] = (lf_span){ pos0, pos0 + len };
    }
    return n;
}

static void range_add(lf_kv_table *t, int64_t from, int64_t to)
{
    if (from >= to)
        return;
    t->range[t->ranges++] = (lf_span){ from, to };
    t->rows += to - from;
}

/* Is it the run with the last of so many tokens? */
static int has_end(lf_span run, int64_t tokens)
{
    return run.from < tokens && tokens <= run.to;
}

static void part_share(const lf_kv_meta *m, int64_t number, lf_span run, int64_t whole, lf_kv_table *t)
{
    lf_kv_part part = (lf_kv_part)(number % LF_PARTS);
    int layer = (int)(number / LF_PARTS % m->model->layers);
    int64_t at = number / LF_PARTS / m->model->layers * m->frontier, tokens = at ? at : m->num_tokens, first, count;
    lf_run r = { .pos0 = run.from, .len = run.to - run.from };

    if (part == LF_PART_SWA) {
        first = tokens - whole;
        range_add(t, lf_max(first, run.from) - first, lf_min(tokens, run.to) - first);
    } else if (part == LF_PART_COMPRESSED || part == LF_PART_INDEX) {
        lf_run_blocks(&r, lf_kind_ratio(m->model->kind[layer]), &first, &count);
        range_add(t, first, first + count);
    } else if (has_end(run, tokens)) {
        range_add(t, 0, whole);
    }
}

int lf_kv_share_at(const lf_kv_meta *m, int64_t number, int rank, int of, lf_kv_table *t)
{
    int64_t last = lf_kv_logits_number(m, LF_LOGITS_LAST);
    lf_span run[2];

    if (!lf_kv_table_at(m, number, t) || number >= lf_kv_tokens_number(m))
        return 0;
    int64_t whole = t->rows;
    int n = runs_of(m->num_tokens, rank, of, run);
    t->rows = 0;
    t->first_position = -1;
    for (int i = 0; i < n; i++) {
        if (number < last)
            part_share(m, number, run[i], whole, t);
        else if (number > last)
            range_add(t, run[i].from, run[i].to);
        else if (has_end(run[i], m->num_tokens))
            range_add(t, 0, whole);
    }
    return t->rows > 0;
}

int lf_kv_share_any(const lf_kv_meta *m, int rank, int of)
{
    int64_t count = lf_kv_table_count(m);
    lf_kv_table t;

    for (int64_t i = 0; i < count; i++) {
        if (lf_kv_share_at(m, i, rank, of, &t))
            return 1;
    }
    return 0;
}
