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
    const char *from;                      /* mapped memory, where there is no file */
    int64_t at;
    size_t bytes;
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

static int read_piece(piece *p)
{
    size_t done = 0;

    if (p->fd < 0) {
        memcpy(p->p, p->from, p->bytes);
        return 0;
    }
    while (done < p->bytes) {
        ssize_t n = pread(p->fd, p->p + done, p->bytes - done, (off_t)(p->at + (int64_t)done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : ENODATA;
        done += (size_t)n;
    }
    return 0;
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
    return LF_CUDA(c, cudaMemcpyAsync(p->to, p->p, p->bytes, cudaMemcpyHostToDevice, c->stream), "copy of weights") ||
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

static void ask(lf_cuda *c, lf_cuda_loader *l, int fd, int64_t at, const char *from, char *to, size_t bytes)
{
    for (size_t done = 0, n; done < bytes && !c->failed; done += n) {
        int which = (int)(l->asked % PIECES);
        piece *p = &l->piece[which];
        n = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        if (l->asked - l->sent == PIECES)
            advance(c, l, 0);
        if (lf_cuda_wait(c, p->sent, "copy of weights"))
            return;
        p->fd = fd;
        p->at = at + (int64_t)done;
        p->from = from + done;
        p->to = to + done;
        p->bytes = n;
        step_new(l)->piece = which;
        pthread_mutex_lock(&l->lock);
        l->asked++;
        pthread_cond_signal(&l->work);
        pthread_mutex_unlock(&l->lock);
    }
}

void lf_cuda_load_bytes(lf_cuda *c, const void *data, void *to, size_t bytes)
{
    lf_cuda_loader *l = c->loader;
    int64_t at = 0;
    int fd = bytes ? l->files.find(l->files.ctx, data, bytes, &at) : -1;

    ask(c, l, fd, at, (const char *)data, (char *)to, bytes);
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
