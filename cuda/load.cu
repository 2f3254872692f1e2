/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights from files: several threads read pieces of them into pinned memory, and the calling thread sends these to the
 * GPU in order, with what has to follow each weight, as far behind the readers as there are pieces.
 */
#include "cuda.cuh"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Packed weights of 4 MiB and their scales of 256 KiB take turns: so many readers have some 32 MiB under way, which
 * storage that takes milliseconds to answer needs. */
enum { READERS = 16, PIECES = 48, PIECE_BYTES = 4 << 20 };

/* A piece of pinned memory, and what is to be read into it. */
typedef struct piece {
    char *p;
    cudaEvent_t sent;                      /* its copy to the GPU is over */
    int fd, error;
    lf_cuda_rows from;                     /* mapped memory; read where there is no file */
    int64_t at;                            /* of the first row, in the file */
    void *to;
    int filled;
} piece;

/* What the calling thread does when its turn comes: send a piece, or finish a weight. */
typedef struct step {
    int piece;                             /* -1: finish */
    lf_weight w;
} step;

struct lf_cuda_loader {
    lf_dev_files files;
    pthread_t reader[READERS];
    int readers;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    piece piece[PIECES];
    char *pinned;
    int64_t asked, begun, sent;            /* pieces given out, taken by readers, sent; number i is in i mod PIECES */
    int stop;
    step *step;                            /* those from `first` on wait */
    int64_t steps, first, room;
};

static int read_row(int fd, int64_t at, char *to, size_t bytes)
{
    size_t done = 0;

    while (done < bytes) {
        ssize_t n = pread(fd, to + done, bytes - done, (off_t)(at + (int64_t)done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : ENODATA;
        done += (size_t)n;
    }
    return 0;
}

/* Of columns, row by row: then storage is asked for the pages that have some of them, and not for whole rows. */
static int read_piece(piece *p)
{
    const lf_cuda_rows *r = &p->from;
    int error = 0;

    for (int64_t i = 0; i < r->rows && !error; i++) {
        char *to = p->p + (size_t)i * r->bytes;
        size_t skip = (size_t)i * r->step;
        if (p->fd < 0)
            memcpy(to, r->data + skip, r->bytes);
        else
            error = read_row(p->fd, p->at + (int64_t)skip, to, r->bytes);
    }
    return error;
}

static void *reader(void *arg)
{
    lf_cuda_loader *l = (lf_cuda_loader *)arg;

    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (l->begun == l->asked && !l->stop)
            pthread_cond_wait(&l->work, &l->lock);
        if (l->begun == l->asked)
            break;
        piece *p = &l->piece[l->begun++ % PIECES];
        pthread_mutex_unlock(&l->lock);
        int error = read_piece(p);
        pthread_mutex_lock(&l->lock);
        p->error = error;
        p->filled = 1;
        pthread_cond_broadcast(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static int send_piece(lf_cuda *c, lf_cuda_loader *l, int which)
{
    piece *p = &l->piece[which];

    pthread_mutex_lock(&l->lock);
    while (!p->filled)
        pthread_cond_wait(&l->done, &l->lock);
    p->filled = 0;
    pthread_mutex_unlock(&l->lock);
    l->sent++;
    if (p->error) {
        lf_cuda_fail(c, "reading weights: %s",
                     p->error == ENODATA ? "the file has become shorter" : strerror(p->error));
        return -1;
    }
    size_t bytes = (size_t)p->from.rows * p->from.bytes;
    return LF_CUDA(c, cudaMemcpyAsync(p->to, p->p, bytes, cudaMemcpyHostToDevice, c->stream), "copy of weights") ||
                   LF_CUDA(c, cudaEventRecord(p->sent, c->stream), "copy of weights") ? -1 : 0;
}

/* Steps up to the one that sends a piece, at least; all: every one. */
static void advance(lf_cuda *c, lf_cuda_loader *l, int all)
{
    while (l->first < l->steps) {
        step *s = &l->step[l->first++];
        if (s->piece < 0)
            lf_cuda_weight_arrived(c, &s->w);
        else
            send_piece(c, l, s->piece);
        if (s->piece >= 0 && !all)
            break;
    }
    if (l->first == l->steps)
        l->first = l->steps = 0;
}

static step *step_new(lf_cuda_loader *l)
{
    if (l->steps == l->room) {
        l->room = l->room ? 2 * l->room : 1024;
        l->step = (step *)lf_realloc(l->step, sizeof *l->step * (size_t)l->room);
    }
    return &l->step[l->steps++];
}

/* One piece, of PIECE_BYTES at most. */
static void ask(lf_cuda *c, lf_cuda_loader *l, int fd, int64_t at, const lf_cuda_rows *from, char *to)
{
    int which = (int)(l->asked % PIECES);
    piece *p = &l->piece[which];

    if (l->asked - l->sent == PIECES)
        advance(c, l, 0);
    if (lf_cuda_wait(c, p->sent, "copy of weights"))
        return;
    p->fd = fd;
    p->at = at;
    p->from = *from;
    p->to = to;
    step_new(l)->piece = which;
    pthread_mutex_lock(&l->lock);
    l->asked++;
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->lock);
}

/* As many whole rows a piece as there is room for; of rows that are longer, stretches. */
void lf_cuda_load_rows(lf_cuda *c, const lf_cuda_rows *from, void *to)
{
    lf_cuda_loader *l = c->loader;
    int64_t at = 0, rows;
    size_t bytes;

    if (from->bytes == 0)
        return;
    int fd = l->files.find(l->files.ctx, from->data, (size_t)(from->rows - 1) * from->step + from->bytes, &at);
    for (int64_t i = 0; i < from->rows; i += rows) {
        rows = lf_max(1, lf_min(from->rows - i, PIECE_BYTES / (int64_t)from->bytes));
        for (size_t done = 0; done < from->bytes && !c->failed; done += bytes) {
            size_t skip = (size_t)i * from->step + done;
            bytes = (size_t)lf_min((int64_t)(from->bytes - done), PIECE_BYTES);
            lf_cuda_rows some = { from->data + skip, rows, bytes, from->step };
            ask(c, l, fd, at + (int64_t)skip, &some, (char *)to + (size_t)i * from->bytes + done);
        }
    }
}

void lf_cuda_load_finish(lf_cuda *c, const lf_weight *w)
{
    step *s = step_new(c->loader);

    s->piece = -1;
    s->w = *w;
}

/* ---- begin, end ---- */

static int start(lf_cuda *c, lf_cuda_loader *l, lf_err *err)
{
    cudaError_t rc = cudaMallocHost((void **)&l->pinned, (size_t)PIECES * PIECE_BYTES);

    for (int i = 0; i < PIECES && rc == cudaSuccess; i++) {
        l->piece[i].p = l->pinned + (size_t)i * PIECE_BYTES;
        rc = cudaEventCreateWithFlags(&l->piece[i].sent, cudaEventDisableTiming);
    }
    if (rc != cudaSuccess)
        return lf_fail(err, "GPU %d: %d MiB of pinned host memory for loading could not be had: %s; check ulimit -l",
                       c->device, PIECES * (PIECE_BYTES >> 20), cudaGetErrorString(rc));
    for (; l->readers < READERS; l->readers++)
        if (pthread_create(&l->reader[l->readers], NULL, reader, l))
            break;
    return l->readers ? 0 : lf_fail(err, "no thread for reading weights could be started");
}

static void stop(lf_cuda *c, lf_cuda_loader *l)
{
    pthread_mutex_lock(&l->lock);
    l->stop = 1;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->readers; i++)
        pthread_join(l->reader[i], NULL);
    if (c->stream)
        cudaStreamSynchronize(c->stream);              /* copies from the pieces */
    for (int i = 0; i < PIECES; i++)
        if (l->piece[i].sent)
            cudaEventDestroy(l->piece[i].sent);
    if (l->pinned)
        cudaFreeHost(l->pinned);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->done);
    free(l->step);
    free(l);
}

int lf_cuda_load(lf_dev *d, const lf_dev_files *files, lf_err *err)
{
    lf_cuda *c = lf_cuda_of(d);
    lf_cuda_loader *l = (lf_cuda_loader *)lf_alloc(sizeof *l);

    lf_cuda_load_end(c);
    l->files = *files;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, NULL);
    if (start(c, l, err)) {
        stop(c, l);
        return -1;
    }
    c->loader = l;
    return 0;
}

void lf_cuda_load_end(lf_cuda *c)
{
    lf_cuda_loader *l = c->loader;

    if (!l)
        return;
    advance(c, l, 1);
    c->loader = NULL;
    stop(c, l);
}
