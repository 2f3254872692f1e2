/* SPDX-License-Identifier: Apache-2.0 */
#include "writer.h"
#include "log.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

#define BUDGET ((size_t)256 << 20)         /* of a job: some layers of a long prompt */

typedef enum item_kind { ITEM_SKIP, ITEM_BEGIN, ITEM_ROWS, ITEM_LOGITS, ITEM_END, ITEM_QUIT } item_kind;

/* The head of a piece in the ring; its bytes follow. */
typedef struct item {
    size_t room;                           /* bytes of the ring, this head included */
    size_t bytes;
    lf_writer_file *file;
    int64_t row0, rows;
    int layer;
    uint16_t kind, part;                   /* item_kind; lf_kv_part or lf_logits_kind */
} item;

_Static_assert(sizeof(item) <= ALIGN, "the head of a piece must fit where the ring ends");

struct lf_writer_file {
    void *what;
    atomic_int failed;                     /* set by either thread; the writer's text wins */
    lf_err refused;                        /* the computing thread's, before its end is queued */
    lf_err err;                            /* the writer's thread */
    void *stored;                          /* of the store; NULL before create and once dropped */
    double seconds;
    uint64_t bytes;
};

struct lf_writer {
    lf_writer_store store;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, room;
    char *ring;
    size_t size;
    size_t head, tail;                     /* where the next piece goes, where the oldest lies */
    size_t used;                           /* bytes between them */
    lf_writer_stats stats;
    double say;                            /* seconds of waiting after which the log is told */
};

static void lock(lf_writer *w)
{
    pthread_mutex_lock(&w->lock);
}

static void unlock(lf_writer *w)
{
    pthread_mutex_unlock(&w->lock);
}

/* ---- the computing thread ---- */

static size_t item_room(size_t bytes)
{
    return ALIGN + (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* The others wait for this rank, and do not know for what: it says so in time, and then each time it has waited twice
 * as long as when it last did. */
static void wait_for(lf_writer *w, size_t need)
{
    if (w->used + need <= w->size)
        return;
    double t = lf_now(), before = w->stats.waited;
    while (w->used + need > w->size) {
        struct timespec until = lf_deadline(w->say - w->stats.waited);
        pthread_cond_timedwait(&w->room, &w->lock, &until);
        w->stats.waited = before + lf_now() - t;
        if (w->stats.waited < w->say)
            continue;
        lf_warn("the disk is slower than the computing: this rank has waited %.3g seconds for it, in which others may "
                "wait for this rank, LONGFILL_PATIENCE seconds at a time at most", w->stats.waited);
        w->say = 2 * w->stats.waited;
    }
}

/* Takes room for a piece in one stretch, jumping over the end of the ring where it is too short.  The piece
 * is the caller's alone until push() shows it, so that it is filled without the lock. */
static item *reserve(lf_writer *w, size_t bytes)
{
    size_t room = item_room(bytes), left = w->size - w->head;
    size_t skip = left < room ? left : 0;

    lock(w);
    wait_for(w, skip + room);
    unlock(w);
    item *it = (item *)(void *)(w->ring + (skip ? 0 : w->head));
    *it = (item){ .room = room, .bytes = bytes };
    return it;
}

static void push(lf_writer *w, item *it)
{
    size_t at = (size_t)((char *)it - w->ring), skip = at == w->head ? 0 : w->size - w->head;

    if (skip)
        *(item *)(void *)(w->ring + w->head) = (item){ .room = skip, .kind = ITEM_SKIP };
    lock(w);
    w->used += skip + it->room;
    w->head = (at + it->room) % w->size;
    if (w->used > w->stats.most)
        w->stats.most = w->used;
    pthread_cond_signal(&w->more);
    unlock(w);
}

static void push_empty(lf_writer *w, item_kind kind, lf_writer_file *f)
{
    item *it = reserve(w, 0);

    it->kind = (uint16_t)kind;
    it->file = f;
    push(w, it);
}

static void refuse(lf_writer *w, lf_writer_file *f, size_t row_bytes)
{
    lf_fail(&f->refused, "a row of %zu bytes does not fit the writer's buffer of %zu", row_bytes, w->size);
    atomic_store(&f->failed, 1);
}

static void push_pieces(lf_writer *w, const item *proto, const void *data, size_t bytes)
{
    const char *p = data;
    size_t row_bytes = proto->rows ? bytes / (size_t)proto->rows : 0, most = w->size / 2 - ALIGN;
    int64_t left = proto->rows, at = proto->row0;

    if (row_bytes > most) {
        refuse(w, proto->file, row_bytes);
        return;
    }
    while (left > 0 && !atomic_load(&proto->file->failed)) {
        int64_t n = row_bytes ? lf_min(left, (int64_t)(most / row_bytes)) : left;
        size_t take = (size_t)n * row_bytes;
        item *it = reserve(w, take);
        size_t room = it->room;
        *it = *proto;
        it->room = room;
        it->bytes = take;
        it->row0 = at;
        it->rows = n;
        memcpy((char *)it + ALIGN, p, take);
        push(w, it);
        p += take;
        at += n;
        left -= n;
    }
}

lf_writer_file *lf_writer_begin(lf_writer *w, void *what)
{
    lf_writer_file *f = lf_alloc(sizeof *f);

    f->what = what;
    push_empty(w, ITEM_BEGIN, f);
    return f;
}

void lf_writer_rows(lf_writer *w, lf_writer_file *f, int layer, lf_kv_part part, int64_t row0, int64_t rows,
                    const void *packed, size_t bytes)
{
    item proto = { .file = f, .row0 = row0, .rows = rows, .kind = ITEM_ROWS, .part = (uint16_t)part };

    proto.layer = layer;
    push_pieces(w, &proto, packed, bytes);
}

void lf_writer_logits(lf_writer *w, lf_writer_file *f, lf_logits_kind kind, int64_t row0, int64_t rows,
                      const void *data, size_t bytes)
{
    item proto = { .file = f, .row0 = row0, .rows = rows, .kind = ITEM_LOGITS, .part = (uint16_t)kind };

    push_pieces(w, &proto, data, bytes);
}

void lf_writer_end(lf_writer *w, lf_writer_file *f, const char *failed)
{
    if (failed && !f->refused.text[0]) {
        lf_fail(&f->refused, "%s", failed);
        atomic_store(&f->failed, 1);
    }
    push_empty(w, ITEM_END, f);
}

void lf_writer_flush(lf_writer *w)
{
    lock(w);
    while (w->used)
        pthread_cond_wait(&w->room, &w->lock);
    unlock(w);
}

void lf_writer_stats_get(lf_writer *w, lf_writer_stats *out)
{
    lock(w);
    *out = w->stats;
    unlock(w);
}

/* ---- the writer's thread ---- */

static void file_drop(lf_writer *w, lf_writer_file *f)
{
    atomic_store(&f->failed, 1);
    if (f->stored)
        w->store.drop(f->stored);
    f->stored = NULL;
}

static void file_create(lf_writer *w, lf_writer_file *f)
{
    if (w->store.create(w->store.ctx, f->what, &f->stored, &f->err)) {
        f->stored = NULL;
        file_drop(w, f);
    }
}

static void file_add(lf_writer *w, const item *it)
{
    lf_writer_file *f = it->file;
    const void *data = (const char *)it + ALIGN;

    if (!f->stored || atomic_load(&f->failed))
        return;
    int bad;
    if (it->kind == ITEM_ROWS)
        bad = w->store.rows(f->stored, it->layer, (lf_kv_part)it->part, it->row0, it->rows, data, it->bytes,
                            &f->err);
    else
        bad = w->store.logits(f->stored, (lf_logits_kind)it->part, it->row0, it->rows, data, it->bytes,
                              &f->err);
    if (bad)
        file_drop(w, f);
    else
        f->bytes += it->bytes;
}

static void file_end(lf_writer *w, lf_writer_file *f)
{
    if (atomic_load(&f->failed)) {
        file_drop(w, f);
    } else {
        atomic_store(&f->failed, w->store.finish(f->stored, &f->err) != 0);
        f->stored = NULL;
    }
}

static void file_done(lf_writer *w, lf_writer_file *f)
{
    int failed = atomic_load(&f->failed);
    lf_written r = { .failed = failed, .why = "", .seconds = f->seconds, .bytes = failed ? 0 : f->bytes };

    if (failed)
        r.why = f->err.text[0] ? f->err.text : f->refused.text;
    lock(w);
    w->stats.bytes += r.bytes;
    unlock(w);
    w->store.done(w->store.ctx, f->what, &r);
    free(f);
}

static void handle(lf_writer *w, const item *it)
{
    lf_writer_file *f = it->file;
    double t = lf_now();

    if (it->kind == ITEM_BEGIN)
        file_create(w, f);
    else if (it->kind == ITEM_ROWS || it->kind == ITEM_LOGITS)
        file_add(w, it);
    else if (it->kind == ITEM_END)
        file_end(w, f);
    else
        return;
    double took = lf_now() - t;
    f->seconds += took;
    lock(w);
    w->stats.busy += took;
    unlock(w);
    if (it->kind == ITEM_END)
        file_done(w, f);
}

static void *work(void *arg)
{
    lf_writer *w = arg;

    for (int quit = 0; !quit;) {
        lock(w);
        while (!w->used)
            pthread_cond_wait(&w->more, &w->lock);
        const item *it = (const item *)(void *)(w->ring + w->tail);
        unlock(w);
        handle(w, it);
        quit = it->kind == ITEM_QUIT;
        lock(w);
        w->tail = (w->tail + it->room) % w->size;
        w->used -= it->room;
        pthread_cond_signal(&w->room);
        unlock(w);
    }
    return NULL;
}

/* Signals are for the thread that computes. */
static int thread_start(lf_writer *w)
{
    sigset_t all, old;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int why = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return why;
}

static size_t ring_bytes(size_t budget)
{
    return (budget < LF_WRITER_LEAST ? LF_WRITER_LEAST : budget) / (2 * ALIGN) * (2 * ALIGN);
}

/* A row of all logits has to fit in half of it. */
size_t lf_writer_budget(const lf_model *m)
{
    size_t rows = 8 * sizeof(float) * (size_t)m->vocab;

    return ring_bytes(BUDGET > rows ? BUDGET : rows);
}

int lf_writer_open(lf_writer **out, const lf_writer_store *store, size_t budget, lf_err *err)
{
    lf_writer *w = lf_alloc(sizeof *w);
    lf_err unread;

    w->store = *store;
    w->size = ring_bytes(budget);
    w->ring = aligned_alloc(ALIGN, w->size);
    lf_patience(&w->say, &unread);
    w->say /= 10;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    pthread_cond_init(&w->room, NULL);
    int why = w->ring ? thread_start(w) : 0;
    if (!w->ring || why) {
        lf_fail(err, "cannot start the writer with %zu bytes of buffer: %s", w->size,
                w->ring ? strerror(why) : "out of host memory");
        free(w->ring);
        free(w);
        return -1;
    }
    *out = w;
    return 0;
}

void lf_writer_close(lf_writer *w)
{
    if (!w)
        return;
    push_empty(w, ITEM_QUIT, NULL);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->more);
    pthread_cond_destroy(&w->room);
    free(w->ring);
    free(w);
}
