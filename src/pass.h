/* SPDX-License-Identifier: Apache-2.0
 *
 * pass: one pass of prompts on one rank: its tiles, its buffers, its clocks.  Floor 4, private to the model's files.
 * Source: engine.md, "Layer-major" and "One layer on one rank".
 *
 * A tile is a stretch of local rows that goes through token-wise products at once; its pieces are its parts that are
 * contiguous in one run.  Inside a run, pieces begin at multiples of 128 tokens, so a compressor block never straddles
 * two pieces.
 */
#ifndef LF_PASS_H
#define LF_PASS_H

#include "prefill.h"
#include "shard.h"
#include "weight.h"

enum { LF_HEAD_TILE = 128 };               /* rows of logits made at once */

typedef struct lf_piece {
    int run;
    int64_t off, len;                      /* within the run */
    int64_t row;                           /* first row within the tile */
} lf_piece;

typedef struct lf_tile {
    int64_t row0, rows;                    /* local rows */
    int piece0, pieces;
} lf_tile;

/* The buffers of one compressor, reused by every layer.  w = channels of an entry, a w = channels of a u or g row. */
typedef struct lf_pool {
    int64_t width;
    float *head_u, *head_g;                /* [runs, 4, 2w]: the first block of each run, waiting for the one before it */
    float *tail_u, *tail_g;                /* [runs, 4, w]: the last complete block of each run, its first channels */
    float *prev_u, *prev_g;                /* [runs, 4, w]: the block before each run, from its owner */
    float *open_u, *open_g;                /* [sequences, open_floats]: the open block of sequences that end here */
    int64_t open_floats;                   /* the larger of 127 rows of w and 3 rows of 2w; index: 3 rows of 2w */
    uint8_t *mine, *all;                   /* packed entries: this rank's, and every rank's in rank order */
    lf_act *rows;                          /* [entries of all sequences, w], sequence after sequence */
} lf_pool;

struct lf_engine {
    lf_engine_setup setup;
    lf_dev *dev;
    const lf_model *model;
    lf_topo *topo;
    lf_weights weights;
    lf_row_fmt row_fmt, index_fmt;         /* how finished entries travel between ranks, and are rounded */
};

typedef struct lf_pass {
    lf_engine *engine;
    lf_dev *dev;
    const lf_dev_ops *ops;
    const lf_model *model;
    const lf_prompt *prompts;
    const lf_sink *sink;
    lf_err *err;

    lf_shard *shard;                       /* [pcp]: every rank's share; mine = shard[pcp_rank] */
    const lf_shard *mine;
    lf_tile *tile;
    lf_piece *piece;
    int tiles;
    int rounds;                            /* tiles of the busiest rank: how often all enter the expert exchange */
    int64_t tile_rows;

    /* Device memory.  Rows are local rows unless said otherwise. */
    lf_act *x;                             /* [rows, n, D] residual streams */
    lf_act *kv;                            /* [window-buffer rows, d] */
    lf_act *q_lat;                         /* [rows, R] */
    float *index_w;                        /* [rows, Hi] */
    float *mix;                            /* [rows, n + n n] */
    int64_t *pos, *kv_row;                 /* [rows] */
    uint32_t *ids;                         /* [rows] */
    lf_pool main, index;
    uint8_t *file_rows;                    /* a tile of rows as the file has them */

    /* One tile's workspace. */
    lf_act *y, *z, *q, *o, *o_lat, *t;     /* [T, D] twice, [T, H d] twice, [T, G O], [T, max(d, D)] */
    lf_act *index_q;                       /* [T, Hi, di] */
    int32_t *sel;                          /* [T, k] */
    float *u, *g;                          /* [T, 2 d] */
    int32_t *expert, *slot, *src;          /* [T, K], [T, K], [ep T K] */
    float *weight, *pair_weight;           /* [T, K], [ep T K] */
    float *ones, *came_weight;             /* [T], [ep T K] */
    int32_t *iota;                         /* [T]: 0, 1, 2 .. */
    lf_act *sent, *came, *done;            /* expert exchange: [T K, D] (there and back), [ep T K, D], [ep T K, D] */
    float *logits;                         /* [LF_HEAD_TILE, vocab] */
    int32_t *top_ids;
    float *top_values, *logprob;
    uint32_t *next;                        /* [LF_HEAD_TILE] token ids */
    int64_t vocab_part;                    /* vocabulary rows of this tp rank */

    uint8_t *host;                         /* host staging for the sink and for expert ids; pass-owned */
    size_t host_bytes;

    double *seconds;                       /* [LF_PHASES] */
    lf_phase phase;
    double since;
} lf_pass;

/* Shares, tiles, buffers; every byte the pass takes on the device is taken here, or nothing. */
int lf_pass_open(lf_pass *p, lf_engine *e, int n, const lf_prompt *prompts, const lf_sink *sink, double *seconds,
                 lf_err *err);
void lf_pass_close(lf_pass *p);
size_t lf_pass_bytes(const lf_engine *e, int n, const int64_t *lengths);

/* From now on time counts as this phase. */
void lf_pass_phase(lf_pass *p, lf_phase phase);

/* Host memory of at least so many bytes, valid until the next call. */
void *lf_pass_host(lf_pass *p, size_t bytes);

/* Entries of ratio m before sequence s in the pool's rows, and (s = sequences) in all. */
int64_t lf_pass_entry0(const lf_pass *p, int s, int ratio);
/* Entries that rank r produces before its run `run` (run = runs: in all). */
int64_t lf_share_entry0(const lf_shard *s, int run, int ratio);

/* The sublayers.  Each leaves x updated.  Collective over the group. */
int lf_attention_sublayer(lf_pass *p, int layer);
int lf_moe_sublayer(lf_pass *p, int layer);

/* The compressors (compressor.c). */
void lf_compress_tile(lf_pass *p, int layer, const lf_tile *tile, int index);
void lf_compress_heads(lf_pass *p, int layer, int index);              /* the first block of each run, after the halo */
int lf_compress_exchange(lf_pass *p, int layer, int index);            /* all-gather the finished rows */
int lf_halo_exchange(lf_pass *p, int layer);

/* What the finished layer leaves behind, to the sink (state.c). */
void lf_state_hand_over(lf_pass *p, int layer);

/* Logits (head.c). */
int lf_head_last(lf_pass *p);
int lf_head_all(lf_pass *p);

static inline int lf_pass_ratio(const lf_pass *p, int layer)
{
    return lf_kind_ratio(p->model->kind[layer]);
}

#endif
