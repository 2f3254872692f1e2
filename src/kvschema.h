/* SPDX-License-Identifier: Apache-2.0
 *
 * kvschema: the datasets of a KV file of version 1, derived from its metadata; the writer, the reader and verify walk
 * the same list.  Floor 5.   Source: product.md, "The KV file, version 1".
 *
 * A table is a set of rows that is handed over packed (kvlayout.h) and stored as one to three datasets, its pieces:
 * path + suffix, each [rows, cols] (or [rows]).  Names:
 *   /tokens  /page_hash  /logits/{last,all,topk_ids,topk_values,logprob}
 *   /layers/NNN/<part>  /frontiers/<position>/layers/NNN/<part>      with <part> as lf_part_path, and in an fp8 file
 *   {swa,compressed}_{nope,scale,rope}  index_{codes,scale}
 */
#ifndef LF_KVSCHEMA_H
#define LF_KVSCHEMA_H

#include "h5.h"
#include "hash.h"
#include "kvlayout.h"
#include "prefill.h"

enum { LF_KV_VERSION = 1, LF_PAGE = 256, LF_KV_RANGES = 2 };

/* Rows from .. to-1. */
typedef struct lf_span {
    int64_t from, to;
} lf_span;

/* Who and what a KV file is.  Everything is borrowed and must outlive the writer. */
typedef struct lf_kv_meta {
    const char *custom_id;
    int64_t num_tokens;                    /* >= 1 */
    lf_numerics numerics;
    lf_kv_dtype kv_dtype;                  /* resolved: not auto */
    const lf_model *model;
    const char *weights_id;                /* lf_checkpoint_id */
    const char *tokenizer_sha256;          /* NULL: no tokenizer was used */
    const char *producer;                  /* "longfill 0.1.0" */
    const char *created;                   /* NULL: now, as "2026-01-31T12:00:00Z" */
    const char *device;                    /* "cpu" or "cuda", which computed it; NULL: not recorded */
    const char *pcp_attention;             /* "gather" or "merge", as the ranks did it; NULL: not recorded */
    int64_t tp;                            /* ranks that shared each layer's heads; 0: not recorded */
    lf_logits_want logits;
    int64_t frontier;                      /* tail data at every so many tokens, a multiple of 128; 0: none */
    size_t chunk_bytes;                    /* 0: 4 MiB.  Tests use less. */
} lf_kv_meta;

typedef struct lf_kv_piece {
    const char *suffix;                    /* "", "_nope", ... */
    lf_elem elem;
    int64_t cols;                          /* -1: one-dimensional */
    size_t at;                             /* where the piece lies in a packed row */
    const char *dtype;                     /* attribute `dtype`: the ml_dtypes type of u8 codes, or NULL */
    const char *label;                     /* of the columns */
} lf_kv_piece;

typedef struct lf_kv_table {
    char path[96];
    int64_t rows;
    size_t row_bytes;                      /* packed */
    int64_t first_position;                /* attribute of window rows; -1: none */
    int hadamard;                          /* attribute transform="hadamard" */
    const char *label;                     /* of the rows */
    int ranges;                            /* > 0: these rows of the prompt only, one range after the other (kvshare) */
    lf_span range[LF_KV_RANGES];
    int pieces;
    lf_kv_piece piece[3];
} lf_kv_table;

/* Tables are numbered 0 .. count-1; lf_kv_table_at returns 0 where the file has none of that number. */
int64_t lf_kv_table_count(const lf_kv_meta *m);
int lf_kv_table_at(const lf_kv_meta *m, int64_t i, lf_kv_table *t);
/* Numbers.  position 0 is the end of the prompt, otherwise a frontier's. */
int64_t lf_kv_part_number(const lf_kv_meta *m, int64_t position, int layer, lf_kv_part part);
int64_t lf_kv_logits_number(const lf_kv_meta *m, lf_logits_kind kind);
int64_t lf_kv_tokens_number(const lf_kv_meta *m);
int64_t lf_kv_pages_number(const lf_kv_meta *m);

int64_t lf_kv_frontiers(const lf_kv_meta *m);                 /* positions frontier, 2 frontier, ... < num_tokens */
size_t lf_kv_piece_row_bytes(const lf_kv_piece *p);

/* Pages of 256 tokens, the last one perhaps short; digest i = sha256(digest i-1 || ids as u32 LE), nothing in front of
 * the first.  out: [pages, 32]. */
int64_t lf_kv_page_count(int64_t tokens);
void lf_kv_page_hash(const uint32_t *ids, int64_t tokens, uint8_t *out);

/* "none", or "last", "all", "topk:K", "logprob" joined by commas. */
void lf_kv_logits_text(const lf_logits_want *w, char text[64]);
int lf_kv_logits_parse(const char *text, lf_logits_want *w);  /* -1: not such a text */

/* The identity as compact JSON with a fixed order of keys; `all`: with what is said of how the file was made
 * (device, pcp_attention and tp, where they are recorded, producer, created) and the config's text, which is what a
 * file holds in its attribute `identity`; otherwise what resuming compares.  NULL when a text is not UTF-8.  Owned by
 * the caller. */
char *lf_kv_identity(const lf_kv_meta *m, int all);

#endif
