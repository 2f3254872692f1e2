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

#include "out.h"
#include "prefill.h"
#include "shard.h"
#include "weight.h"

enum { LF_HEAD_TILE = 128 };               /* rows of logits made at once */

/* Marks (dev.h).  Named after what is done when they are reached. */
enum {
    LF_MARK_FORK,                          /* compute: what the exchange that follows sends */
    LF_MARK_FINISHED,                      /* compute: what out.c copies */
    LF_MARK_OUT,                           /* output, two of them: a half is in host memory */
    LF_MARK_HALO = LF_MARK_OUT + 2,        /* exchange: rows and blocks before each run are here */
    LF_MARK_INDEX, LF_MARK_MAIN,           /* exchange: all ranks' packed entries */
    LF_MARK_CHOICE,                        /* exchange: the chosen rows of all tp ranks' tokens */
    LF_MARK_SUM,                           /* exchange: the output projection, summed over tp */
    LF_MARK_MOE_FIRST = 16,                /* of moe.c: */
    LF_MARK_MOE_COUNTS = LF_MARK_MOE_FIRST,            /* compute: a tile's counts of pairs are on the host */
    LF_MARK_MOE_PACKED,                    /* compute: its pairs' rows are in `sent` */
    LF_MARK_MOE_DONE,                      /* compute: the owner has the results in the order in which rows came */
    LF_MARK_MOE_SLICE,                     /* compute: the sums of this tp rank's tokens */
    LF_MARK_MOE_CAME,                      /* exchange: rows and weights are at the owners of the experts */
    LF_MARK_MOE_HOME,                      /* exchange: results are where their pairs were sent from */
    LF_MARK_MOE_GATHERED                   /* exchange: the sums of all tp ranks' tokens */
};

typedef struct lf_piece {
    int run;
    int64_t off, len;                      /* within the run */
    int64_t row;                           /* first row within the tile */
} lf_piece;

typedef struct lf_tile {
    int64_t row0, rows;                    /* local rows */
    int piece0, pieces;
} lf_tile;

/* One rank's tiles; every rank knows every rank's. */
typedef struct lf_tiling {
    lf_tile *tile;
    lf_piece *piece;
    int tiles;
} lf_tiling;

/* The buffers of one compressor, reused by every layer.  w = channels of an entry, a w = channels of a u or g row. */
typedef struct lf_pool {
    int64_t width;
    float *head_u, *head_g;                /* [runs, 4, 2w]: the first block of each run, waiting for the one before */
    float *tail_u, *tail_g;                /* [runs, 4, w]: the last complete block of each run, its first channels */
    float *prev_u, *prev_g;                /* [runs, 4, w]: the block before each run, from its owner */
    float *open_u, *open_g;                /* [sequences, open_floats]: the open block of sequences that end here */
    int64_t open_floats;                   /* the larger of 127 rows of w and 3 rows of 2w; index: 3 rows of 2w */
    uint8_t *mine, *all;                   /* packed entries: this rank's, and every rank's in rank order */
    lf_act *rows;                          /* gather: [entries of all sequences, w]; merge: this rank's, run by run */
} lf_pool;

struct lf_engine {
    lf_engine_setup setup;
    lf_dev *dev;
    const lf_model *model;
    lf_topo *topo;
    lf_weights weights;
    void *arena;                           /* device memory of passes: taken when one needs more, kept for the next */
    size_t arena_bytes;
    void *out_host;                        /* pinned memory of out.c, the same way */
    size_t out_bytes;
    void *host_count;                      /* pinned, int32 [experts]: where a tile's counts of pairs come */
    lf_row_fmt row_fmt, index_fmt;         /* how finished entries travel between ranks, and are rounded */
};

struct lf_pass {
    lf_engine *engine;
    lf_dev *dev;
    const lf_dev_ops *ops;
    const lf_model *model;
    const lf_prompt *prompts;
    const lf_sink *sink;
    lf_err *err;

    lf_shard *shard;                       /* [pcp]: every rank's share; mine = shard[pcp_rank] */
    const lf_shard *mine;
    lf_tiling *tiling, *my;                /* [pcp]; my = tiling[pcp_rank] */
    int rounds;                            /* tiles of the busiest rank: how often all enter a tile's exchanges */
    int merge;                             /* merge mode: compressed rows stay with their owners */
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
    /* tp > 1: */
    float *partial;                        /* [T, D] this rank's share of an output projection */
    float *sum_room;                       /* for lf_coll_sum */
    lf_act *slice;                         /* [T, D] expert output of this rank's tokens */
    float *logit_part, *logit_parts;       /* [LF_HEAD_TILE, vocab of this rank]; the same of all tp ranks */

    /* Merge mode: queries of all ranks; partial results, two parts (runs) a rank. */
    lf_act *all_q, *all_index_q, *part_out, *parts;    /* [pcp T, ..]; [pcp, 2, T, H d]; [2 pcp + 1, T, H d] */
    float *all_index_w, *part_lse, *parts_lse, *cand_score, *cands_score;
    int32_t *all_sel, *cand, *cands;       /* [pcp T, k]; [pcp, 2, T, k]; [2 pcp, T, k] */

    uint8_t *file_rows;                    /* a tile of rows as the file has them; of the output queue */
    lf_out out;

    /* One tile's workspace. */
    lf_act *y, *z, *q, *o, *o_lat, *t;     /* [T, D] twice, [T, H d] twice, [T, G O], [T, max(d, D)] */
    lf_act *index_q;                       /* [T, Hi, di] */
    int32_t *sel, *sel_slice;              /* [T, k]; the same of this tp rank's tokens */
    float *u, *g;                          /* [T, 2 d] */
    float *ones;                           /* [T]: 1 */
    int32_t *iota;                         /* [T]: 0, 1, 2 .. */

    /* Experts (moe.c), S = rows of a tp rank's slice.  What lives longer than a step of the pipeline is there as often
     * as tiles need it at once; with ep = 1, where tiles follow each other, once, and what is for the exchange not at
     * all. */
    int32_t *expert, *token, *count;       /* [S, K], [S K], [E] */
    int32_t *slot[3];                      /* [S, K]: from pairs to combine, two steps on */
    float *weight, *sent_weight;           /* [S, K], [S K] */
    lf_act *shared;                        /* [S, D]: of odd tiles; of even ones p->t */
    lf_act *sent, *back;                   /* [S K, D] twice: a tile's rows leave while an older one's come home */
    lf_act *came[2];                       /* [pcp T K, D]: a tile's rows come while the experts read another's; later
                                            * the results in their order, until these are sent */
    float *came_weight[2];                 /* [pcp T K] */
    lf_act *done;                          /* [pcp T K, D]: results by expert, within a step */
    float *pair_weight;                    /* [pcp T K] */
    int32_t *src, *home;                   /* [pcp T K] */
    float *logits;                         /* [LF_HEAD_TILE, vocab] */
    int32_t *top_ids;
    float *top_values, *logprob;
    uint32_t *next;                        /* [LF_HEAD_TILE] token ids */

    double *seconds;                       /* [LF_PHASES] */
    lf_phase phase;
};

/* Shares, tiles, buffers: every byte of the device that the pass uses, out of the engine's arena. */
int lf_pass_open(lf_pass *p, lf_engine *e, int n, const lf_prompt *prompts, const lf_sink *sink, double *seconds,
                 lf_err *err);
void lf_pass_close(lf_pass *p);

/* Bytes of a pass, and by kind (of: or NULL); (load: or NULL) what it asks of the device's operations; (host: or NULL)
 * output and prompts of host memory, without token ids, the others as they are. */
size_t lf_pass_plan(const lf_engine *e, int n, const int64_t *lengths, size_t of[LF_MEMORY_KINDS], lf_dev_load *load,
                    size_t host[LF_HOST_KINDS]);
void lf_pass_load(const lf_pass *p, lf_dev_load *load);                /* pass_load.c; after shares and tile_rows */

/* The formats of travelling rows, from the device and the numerics. */
void lf_engine_formats(lf_engine *e);

/* From now on time counts as this phase. */
void lf_pass_phase(lf_pass *p, lf_phase phase);

/* A sublayer's output p->z into the streams of a tile. */
void lf_pass_add_back(lf_pass *p, const lf_tile *t);

/* Entries of ratio m before sequence s in the pool's rows, and (s = sequences) in all. */
int64_t lf_pass_entry0(const lf_pass *p, int s, int ratio);
/* Entries that rank r produces before its run `run` (run = runs: in all). */
int64_t lf_share_entry0(const lf_shard *s, int run, int ratio);

/* Where the entries of one of this rank's runs begin in the pool's rows. */
int64_t lf_pass_rows_at(const lf_pass *p, int run, int ratio);

/* Tile number `t` of a tiling; an empty one past the end. */
const lf_tile *lf_tiling_at(const lf_tiling *g, int t);

/* This tp rank's (rank tp_rank's) part of a tile's rows: first row within the tile, and how many. */
int64_t lf_slice(const lf_pass *p, const lf_tile *t, int tp_rank, int64_t *rows);

/* Piece i of a tile as far as it lies in the tile's rows first .. first+rows-1; x->row is relative to `first`; len may
 * be 0. */
void lf_tiling_clip(const lf_tiling *g, const lf_tile *t, int i, int64_t first, int64_t rows, lf_piece *x);

/* All tp ranks' slices of a tile, each row `bytes`, from src (this rank's) to dst (all of the tile's rows). */
int lf_slice_gather(lf_pass *p, const lf_tile *t, void *dst, const void *src, size_t bytes);

/* Merge mode (merge.c): the chosen rows, and the attention, of round t.  All ranks of the pcp group enter. */
int lf_merge_choose(lf_pass *p, int layer, int round, int32_t *sel);
int lf_merge_attend(lf_pass *p, int layer, int round);

/* For the engine's probe, if any (probe.c): the finished rows of a layer; a tile after its attention. */
void lf_probe_layer(lf_pass *p, int layer);
void lf_probe_tile(lf_pass *p, int layer, const lf_tile *t);

/* The sublayers.  Each leaves x updated.  Collective over the group. */
int lf_attention_sublayer(lf_pass *p, int layer);
int lf_moe_sublayer(lf_pass *p, int layer);

/* Exchanges beside the compute queue.  begin: what follows goes to the exchange queue, after all that the compute queue
 * was given; from: after a mark of it only.  end: marks it and goes back to the compute queue, in the phase before.
 * await: the compute queue needs it now; how long it waits for that counts as communication. */
void lf_exchange_begin(lf_pass *p);
void lf_exchange_from(lf_pass *p, int mark);
void lf_exchange_end(lf_pass *p, int mark);
void lf_exchange_await(lf_pass *p, int mark);

/* The compressors (compressor.c). */
void lf_compress_tile(lf_pass *p, int layer, const lf_tile *tile, int index);
void lf_compress_heads(lf_pass *p, int layer, int index);              /* the first block of each run, after the halo */
int lf_compress_gather(lf_pass *p, int layer, int index);              /* every rank's finished rows, packed; */
void lf_compress_unpack(lf_pass *p, int layer, int index);             /* in their places, when they have come */
int lf_halo_exchange(lf_pass *p, int layer);

/* What the finished layer leaves behind, to the sink (state.c). */
void lf_state_hand_over(lf_pass *p, int layer);

/* Logits (head.c). */
int lf_head_last(lf_pass *p);
int lf_head_all(lf_pass *p);

/* The residual streams, and the mixing weights, of a local row. */
static inline lf_act *lf_pass_streams(const lf_pass *p, int64_t row)
{
    return lf_act_at(p->dev, p->x, row * p->model->hc * p->model->hidden);
}

static inline float *lf_pass_mix(const lf_pass *p, int64_t row)
{
    return p->mix + row * (p->model->hc + p->model->hc * p->model->hc);
}

/* Bytes of engine->host_count. */
static inline size_t lf_engine_counts(const lf_model *m)
{
    return sizeof(int32_t) * (size_t)m->experts;
}

static inline int lf_pass_ratio(const lf_pass *p, int layer)
{
    return lf_kind_ratio(p->model->kind[layer]);
}

#endif
