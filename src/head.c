/* SPDX-License-Identifier: Apache-2.0
 *
 * Logits.   Source: model.md, "One forward pass", last line; product.md, "--logits".
 */
#include "pass.h"

#include <stdlib.h>

/* Each tp rank has some of the vocabulary: the columns of all of them side by side. */
static int join_vocabulary(lf_pass *p, int64_t rows)
{
    int tp = p->engine->topo->grid.tp;
    size_t *count = lf_alloc(sizeof *count * 2 * (size_t)tp), *at = count + tp, used = 0;

    for (int r = 0; r < tp; r++) {
        count[r] = sizeof(float) * (size_t)(rows * (lf_vocab_at(p->model, tp, r + 1) - lf_vocab_at(p->model, tp, r)));
        at[r] = used;
        used += count[r];
    }
    int bad = lf_coll_gather(p->engine->topo->tp, p->dev, p->logit_parts, count, at, p->logit_part, p->err);
    for (int r = 0; r < tp && !bad; r++) {
        size_t part = count[r] / (size_t)rows;
        p->ops->copy_rows(p->dev, p->logits + lf_vocab_at(p->model, tp, r), sizeof(float) * (size_t)p->model->vocab,
                          (char *)p->logit_parts + at[r], part, part, rows);
    }
    free(count);
    return bad;
}

/* p->logits = head of the streams at x, `rows` of them. */
static int logits_of(lf_pass *p, const lf_act *x, int64_t rows)
{
    const lf_weights *w = &p->engine->weights;
    int spread = p->engine->topo->grid.tp > 1;
    lf_gemm g = { .x = p->y, .m = rows, .ldx = p->model->hidden, .w = &w->head, .kind = LF_OUT_F32,
                  .out = spread ? p->logit_part : p->logits, .ldo = w->vocab };

    p->ops->hc_head(p->dev, p->y, x, rows, &w->hc_head, w->norm);
    p->ops->gemm(p->dev, &g);
    return spread ? join_vocabulary(p, rows) : 0;
}

/* The logits of `n` sequences' last rows, gathered at p->done: this rank's runs `run`. */
static int last_rows(lf_pass *p, const int *run, int n)
{
    size_t bytes = sizeof(float) * (size_t)p->model->vocab;

    if (logits_of(p, p->done, n))
        return -1;
    char *host = lf_alloc(bytes * (size_t)n);
    p->ops->get(p->dev, host, p->logits, bytes * (size_t)n);
    lf_pass_phase(p, LF_PHASE_WRITE_WAIT);
    for (int i = 0; i < n && p->engine->setup.logits.last && p->engine->topo->grid.tp_rank == 0; i++)
        p->sink->logits(p->sink->ctx, p->mine->run[run[i]].seq, LF_LOGITS_LAST, 0, 1, host + bytes * (size_t)i, bytes);
    lf_pass_phase(p, LF_PHASE_HEAD);
    free(host);
    return 0;
}

/* Several sequences at a time: p->done has room for experts' output, so for this many streams. */
int lf_head_last(lf_pass *p)
{
    int64_t hc = p->model->hc, row = hc * p->model->hidden;
    int64_t room = p->tile_rows * p->model->experts_per_tok / hc;
    int run[LF_HEAD_TILE], n = 0, most = (int)lf_max(1, lf_min(LF_HEAD_TILE, room));

    lf_pass_phase(p, LF_PHASE_HEAD);
    for (int i = 0; i < p->mine->runs; i++) {
        const lf_run *r = &p->mine->run[i];
        if (r->pos0 + r->len != p->mine->length[r->seq])
            continue;
        p->ops->copy(p->dev, lf_act_at(p->dev, p->done, n * row), lf_pass_streams(p, r->row0 + r->len - 1),
                     (size_t)row * p->dev->act_bytes);
        run[n++] = i;
        if (n == most) {
            if (last_rows(p, run, n))
                return -1;
            n = 0;
        }
    }
    if (n && last_rows(p, run, n))
        return -1;
    return p->ops->sync(p->dev, p->err);
}

/* Log-probabilities of the tokens that really follow; the last token has none. */
static void logprobs(lf_pass *p, int seq, int64_t pos, int64_t rows)
{
    uint32_t next[LF_HEAD_TILE];
    float none = lf_bits_f32(0x7fc00000u);
    int64_t length = p->mine->length[seq];

    for (int64_t i = 0; i < rows; i++)
        next[i] = p->prompts[seq].ids[lf_min(pos + i + 1, length - 1)];
    p->ops->put(p->dev, p->next, next, 4 * (size_t)rows);
    p->ops->logprob(p->dev, p->logprob, p->logits, p->next, rows, p->model->vocab);
    if (pos + rows == length)
        p->ops->put(p->dev, p->logprob + rows - 1, &none, sizeof none);
}

static void rows_to_sink(lf_pass *p, int seq, int64_t pos, int64_t rows)
{
    const lf_logits_want *want = &p->engine->setup.logits;
    size_t n = (size_t)rows, topk = 4 * (size_t)want->topk;

    lf_out_begin(p);
    if (want->all)
        lf_out_logits(p, seq, LF_LOGITS_ALL, pos, rows, p->logits, 4 * n * (size_t)p->model->vocab);
    if (want->topk) {
        lf_out_logits(p, seq, LF_LOGITS_TOPK_IDS, pos, rows, p->top_ids, n * topk);
        lf_out_logits(p, seq, LF_LOGITS_TOPK_VALUES, pos, rows, p->top_values, n * topk);
    }
    if (want->logprob)
        lf_out_logits(p, seq, LF_LOGITS_LOGPROB, pos, rows, p->logprob, 4 * n);
    lf_out_end(p);
}

static int some_rows(lf_pass *p, const lf_run *r, int64_t off, int64_t rows)
{
    const lf_logits_want *want = &p->engine->setup.logits;
    int64_t pos = r->pos0 + off, vocab = p->model->vocab;

    lf_out_settled(p);
    if (logits_of(p, lf_pass_streams(p, r->row0 + off), rows))
        return -1;
    if (p->engine->topo->grid.tp_rank != 0)
        return 0;
    if (want->topk)
        p->ops->logits_topk(p->dev, p->top_ids, p->top_values, p->logits, rows, vocab, want->topk);
    if (want->logprob)
        logprobs(p, r->seq, pos, rows);
    rows_to_sink(p, r->seq, pos, rows);
    return 0;
}

int lf_head_all(lf_pass *p)
{
    const lf_logits_want *want = &p->engine->setup.logits;

    if (!want->all && !want->topk && !want->logprob)
        return 0;
    lf_pass_phase(p, LF_PHASE_HEAD);
    for (int i = 0; i < p->mine->runs; i++)
        for (int64_t off = 0; off < p->mine->run[i].len; off += LF_HEAD_TILE)
            if (some_rows(p, &p->mine->run[i], off, lf_min(LF_HEAD_TILE, p->mine->run[i].len - off)))
                return -1;
    return p->ops->sync(p->dev, p->err);
}
