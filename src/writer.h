/* SPDX-License-Identifier: Apache-2.0
 *
 * writer: one thread per writing rank that puts finished rows and logits into files while the next ones are
 * computed.  Floor 5.   Source: engine.md, "Files".
 *
 * The computing thread calls lf_writer_begin, _rows, _logits and _end; they copy what they are given into a ring
 * of bounded size and return.  The writer's thread takes it out in the same order and calls the store; nobody else
 * does, so a library that is not thread-safe (HDF5) may be behind it.  When the ring is full the caller waits:
 * memory is bounded by the budget, and the seconds waited are counted.
 *
 * Failures are per file: the first call of the store that fails drops that file, what still comes for it is
 * ignored, and the other files go on.  Every file that was begun gets exactly one `done` after its end.
 */
#ifndef LF_WRITER_H
#define LF_WRITER_H

#include "prefill.h"

typedef struct lf_writer lf_writer;
typedef struct lf_writer_file lf_writer_file;            /* one file between its begin and its end */

typedef struct lf_written {
    int failed;
    const char *why;                       /* one line; empty when not failed; valid during the call */
    double seconds;                        /* that the thread spent in the store for this file */
    uint64_t bytes;                        /* rows and logits stored, packed */
} lf_written;

/* Where it all goes.  Every function runs on the writer's thread; ctx is the writer's, what is the file's. */
typedef struct lf_writer_store {
    void *ctx;
    int (*create)(void *ctx, void *what, void **file, lf_err *err);
    int (*rows)(void *file, int layer, lf_kv_part part, int64_t row0, int64_t rows, const void *packed,
                size_t bytes, lf_err *err);
    int (*logits)(void *file, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data,
                  size_t bytes, lf_err *err);
    int (*finish)(void *file, lf_err *err);              /* durable under its final name; frees, also when it fails */
    void (*drop)(void *file);                            /* leaves nothing behind; frees */
    void (*done)(void *ctx, void *what, const lf_written *w);
} lf_writer_store;

typedef struct lf_writer_stats {
    double waited;                         /* seconds the computing thread waited for room in the ring */
    double busy;                           /* seconds the writer's thread spent in the store */
    uint64_t bytes;                        /* stored, packed */
    size_t most;                           /* bytes of the ring in use at most */
} lf_writer_stats;

enum { LF_WRITER_LEAST = 64 << 10 };       /* smaller budgets are raised to it */

/* The budget that a job gives its writer, a ring of as many bytes. */
size_t lf_writer_budget(const lf_model *m);
/* A row may have nearly half of the budget at most. */
int lf_writer_open(lf_writer **out, const lf_writer_store *store, size_t budget, lf_err *err);
/* Waits until everything is written.  NULL is fine. */
void lf_writer_close(lf_writer *w);

lf_writer_file *lf_writer_begin(lf_writer *w, void *what);
/* `bytes` is a multiple of `rows`; a piece too large for the ring travels in several row ranges. */
void lf_writer_rows(lf_writer *w, lf_writer_file *f, int layer, lf_kv_part part, int64_t row0, int64_t rows,
                    const void *packed, size_t bytes);
void lf_writer_logits(lf_writer *w, lf_writer_file *f, lf_logits_kind kind, int64_t row0, int64_t rows,
                      const void *data, size_t bytes);
/* f is gone afterwards.  failed: a text when the file is not to be kept, else NULL. */
void lf_writer_end(lf_writer *w, lf_writer_file *f, const char *failed);

/* Waits until every file that was ended is done. */
void lf_writer_flush(lf_writer *w);
/* Called by the computing thread. */
void lf_writer_stats_get(lf_writer *w, lf_writer_stats *out);

#endif
