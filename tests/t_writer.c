/* SPDX-License-Identifier: Apache-2.0 */
#include "tap.h"
#include "writer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A store in memory that checks what arrives, is as slow as asked and fails where asked. */
typedef struct plan {
    int number;
    double delay;                          /* seconds a call of rows takes */
    int fail_create, fail_finish;
    int fail_at;                           /* the n-th call of rows fails, from 1; 0: none */
    /* what came */
    int created, finished, dropped, calls, wrong, done, failed;
    int64_t next[LF_PARTS], logits_next;
    float last;
    char why[256];
    lf_written written;
} plan;

typedef struct shelf {
    pthread_t thread;                      /* of the first call */
    int calls, strangers, order[16], orders;
} shelf;

static void seen(shelf *s)
{
    if (!s->calls++)
        s->thread = pthread_self();
    s->strangers += !pthread_equal(s->thread, pthread_self());
}

typedef struct opened {
    shelf *s;
    plan *p;
} opened;

static uint8_t byte_of(int number, int layer, int64_t row, size_t i)
{
    return (uint8_t)(number * 31 + layer * 7 + row * 3 + (int64_t)i);
}

static int store_create(void *ctx, void *what, void **file, lf_err *err)
{
    plan *p = what;

    seen(ctx);
    if (p->fail_create)
        return lf_fail(err, "no room for file %d", p->number);
    opened *o = lf_alloc(sizeof *o);
    *o = (opened){ ctx, p };
    p->created++;
    *file = o;
    return 0;
}

static void nap(double seconds)
{
    struct timespec t = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };

    if (seconds > 0)
        nanosleep(&t, NULL);
}

static int store_rows(void *file, int layer, lf_kv_part part, int64_t row0, int64_t rows, const void *packed,
                      size_t bytes, lf_err *err)
{
    opened *o = file;
    plan *p = o->p;
    const uint8_t *b = packed;
    size_t width = bytes / (size_t)rows;

    seen(o->s);
    nap(p->delay);
    if (++p->calls == p->fail_at)
        return lf_fail(err, "disk full in file %d", p->number);
    p->wrong += row0 != p->next[part] || bytes % (size_t)rows != 0;
    p->next[part] = row0 + rows;
    for (int64_t r = 0; r < rows; r++)
        for (size_t i = 0; i < width; i++)
            p->wrong += b[(size_t)r * width + i] != byte_of(p->number, layer, row0 + r, i);
    return 0;
}

static int store_logits(void *file, lf_logits_kind kind, int64_t row0, int64_t rows, const void *data,
                        size_t bytes, lf_err *err)
{
    opened *o = file;

    (void)err;
    seen(o->s);
    o->p->wrong += kind != LF_LOGITS_LAST || row0 != o->p->logits_next;
    o->p->wrong += bytes != (size_t)rows * sizeof(float);
    memcpy(&o->p->last, data, sizeof(float));
    o->p->logits_next += rows;
    return 0;
}

static int store_finish(void *file, lf_err *err)
{
    opened *o = file;
    plan *p = o->p;

    seen(o->s);
    free(o);
    if (p->fail_finish)
        return lf_fail(err, "file %d cannot be renamed", p->number);
    p->finished++;
    return 0;
}

static void store_drop(void *file)
{
    opened *o = file;

    seen(o->s);
    o->p->dropped++;
    free(o);
}

static void store_done(void *ctx, void *what, const lf_written *w)
{
    shelf *s = ctx;
    plan *p = what;

    seen(s);
    s->order[s->orders++ % 16] = p->number;
    p->done++;
    p->failed = w->failed;
    snprintf(p->why, sizeof p->why, "%s", w->why);
    p->written = *w;
}

static lf_writer *open_writer(shelf *s, size_t budget)
{
    lf_writer_store st = { s, store_create, store_rows, store_logits, store_finish, store_drop, store_done };
    lf_writer *w;
    lf_err err;

    memset(s, 0, sizeof *s);
    if (lf_writer_open(&w, &st, budget, &err)) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    return w;
}

static void give_rows(lf_writer *w, lf_writer_file *f, int number, int layer, int64_t row0, int64_t rows,
                      size_t width)
{
    uint8_t *b = lf_alloc((size_t)rows * width);

    for (int64_t r = 0; r < rows; r++)
        for (size_t i = 0; i < width; i++)
            b[(size_t)r * width + i] = byte_of(number, layer, row0 + r, i);
    lf_writer_rows(w, f, layer, LF_PART_COMPRESSED, row0, rows, b, (size_t)rows * width);
    free(b);
}

/* Pieces of many sizes, some larger than the ring: all bytes arrive, once, in order. */
static void test_bytes(void)
{
    static const int64_t rows[] = { 1, 7, 64, 1000, 2, 333, 5000, 1, 129 };
    shelf s;
    plan p = { .number = 3 };
    lf_writer *w = open_writer(&s, 0);
    lf_writer_file *f = lf_writer_begin(w, &p);
    lf_writer_stats stats;
    int64_t at = 0;

    for (int round = 0; round < 20; round++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            give_rows(w, f, 3, 5, at, rows[i], 36);
            at += rows[i];
        }
    float last = 2.5f;
    lf_writer_rows(w, f, 5, LF_PART_SWA, 0, 0, NULL, 0);
    lf_writer_logits(w, f, LF_LOGITS_LAST, 0, 1, &last, sizeof last);
    lf_writer_end(w, f, NULL);
    lf_writer_flush(w);
    lf_writer_stats_get(w, &stats);
    TAP_CHECK(p.next[LF_PART_COMPRESSED] == at && p.wrong == 0, "%lld rows arrive in order", (long long)at);
    TAP_CHECK(p.last == 2.5 && p.logits_next == 1, "logits arrive");
    TAP_CHECK(p.created == 1 && p.finished == 1 && !p.dropped && p.done == 1 && !p.failed, "finished once");
    TAP_CHECK(p.written.bytes == (uint64_t)at * 36 + 4 && stats.bytes == p.written.bytes, "the bytes count");
    TAP_CHECK(stats.most <= LF_WRITER_LEAST && stats.most > LF_WRITER_LEAST / 2, "%zu bytes wait at most",
              stats.most);
    TAP_CHECK(!s.strangers && !pthread_equal(s.thread, pthread_self()), "one other thread calls the store");
    lf_writer_close(w);
}

/* A slow disk: the producer waits, and the seconds are counted; a roomy ring makes it wait for nothing. */
static void test_pressure(void)
{
    for (int roomy = 0; roomy < 2; roomy++) {
        shelf s;
        plan p = { .number = 1, .delay = 0.02 };
        lf_writer *w = open_writer(&s, roomy ? 4 << 20 : 0);
        lf_writer_file *f = lf_writer_begin(w, &p);
        lf_writer_stats stats;
        double t = lf_now();

        for (int i = 0; i < 12; i++)
            give_rows(w, f, 1, 0, i * 20, 20, 1000);
        t = lf_now() - t;
        lf_writer_stats_get(w, &stats);
        if (roomy)
            TAP_CHECK(stats.waited == 0, "no wait when everything fits");
        else
            TAP_CHECK(stats.waited > 0.1 && stats.waited <= t, "waited %.3f of %.3f s", stats.waited, t);
        lf_writer_end(w, f, NULL);
        lf_writer_close(w);
        TAP_CHECK(p.done == 1 && p.finished == 1 && p.wrong == 0 && p.written.seconds >= 12 * 0.02,
                  "closing waits for it");
    }
}

/* The warnings that a computing thread gives while it waits for a disk of such a delay. */
static int warnings(double delay, size_t budget, lf_writer_stats *stats)
{
    shelf s;
    plan p = { .number = 1, .delay = delay };
    FILE *said = tmpfile();
    char line[1024];
    int n = 0, err = dup(2);

    dup2(fileno(said), 2);
    lf_writer *w = open_writer(&s, budget);
    lf_writer_file *f = lf_writer_begin(w, &p);
    for (int i = 0; i < 12; i++)
        give_rows(w, f, 1, 0, i * 20, 20, 1000);
    lf_writer_stats_get(w, stats);
    lf_writer_end(w, f, NULL);
    lf_writer_close(w);
    dup2(err, 2);
    close(err);
    rewind(said);
    while (fgets(line, sizeof line, said))
        n += strstr(line, "warning: the disk is slower") && strstr(line, "LONGFILL_PATIENCE");
    fclose(said);
    return n;
}

/* LONGFILL_PATIENCE=1: a rank that waits for its disk says so after 0.1 seconds in all, then after twice the time. */
static void test_warning(void)
{
    lf_writer_stats stats;

    setenv("LONGFILL_PATIENCE", "1", 1);
    int n = warnings(0.1, 0, &stats);
    TAP_CHECK(n >= 1 && 0.1 * (1 << (n - 1)) <= stats.waited && n <= 5, "a slow disk: %d warnings in %.2f seconds", n,
              stats.waited);
    n = warnings(0.1, 4 << 20, &stats);
    TAP_CHECK(n == 0, "a slow disk that nobody waits for: %d", n);
    setenv("LONGFILL_PATIENCE", "600", 1);
    n = warnings(0.1, 0, &stats);
    TAP_CHECK(n == 0, "a disk not so slow that others lose patience: %d in %.2f seconds", n, stats.waited);
    unsetenv("LONGFILL_PATIENCE");
}

static void failing(plan *bad, const char *end, int finished, int dropped, const char *why)
{
    shelf s;
    plan good = { .number = 8 }, after = { .number = 9 };
    lf_writer *w = open_writer(&s, 0);
    lf_writer_file *b = lf_writer_begin(w, bad), *g = lf_writer_begin(w, &good);

    for (int i = 0; i < 100; i++) {
        give_rows(w, b, bad->number, 0, i * 40, 40, 100);
        give_rows(w, g, good.number, 0, i * 40, 40, 100);
    }
    lf_writer_end(w, b, end);
    lf_writer_end(w, g, NULL);
    lf_writer_file *a = lf_writer_begin(w, &after);
    give_rows(w, a, after.number, 2, 0, 40, 100);
    lf_writer_end(w, a, NULL);
    lf_writer_close(w);
    TAP_CHECK(bad->done == 1 && bad->failed && bad->finished == finished && bad->dropped == dropped,
              "%s: it fails once", why);
    TAP_CHECK(!strcmp(bad->why, why) && bad->written.bytes == 0, "%s: the reason arrives", why);
    TAP_CHECK(good.finished == 1 && !good.failed && !good.wrong && good.next[LF_PART_COMPRESSED] == 4000 &&
                  after.finished == 1 && after.next[LF_PART_COMPRESSED] == 40 && after.wrong == 0,
              "%s: the other files are whole", why);
    TAP_CHECK(s.orders == 3 && s.order[0] == bad->number && s.order[1] == 8 && s.order[2] == 9,
              "%s: in order", why);
}

static void test_failures(void)
{
    plan create = { .number = 1, .fail_create = 1 }, rows = { .number = 2, .fail_at = 7 };
    plan first = { .number = 3, .fail_at = 1, .delay = 0.001 }, finish = { .number = 4, .fail_finish = 1 };
    plan ended = { .number = 5 };

    failing(&create, NULL, 0, 0, "no room for file 1");
    failing(&rows, NULL, 0, 1, "disk full in file 2");
    failing(&first, "too late to matter", 0, 1, "disk full in file 3");
    failing(&finish, NULL, 0, 0, "file 4 cannot be renamed");
    failing(&ended, "the pass failed", 0, 1, "the pass failed");
    TAP_CHECK(rows.calls == 7, "nothing is stored after a failure");
}

static void test_wide_row(void)
{
    shelf s;
    plan p = { .number = 1 };
    lf_writer *w = open_writer(&s, 0);
    lf_writer_file *f = lf_writer_begin(w, &p);

    give_rows(w, f, 1, 0, 0, 2, LF_WRITER_LEAST / 2 - 63);
    lf_writer_end(w, f, NULL);
    lf_writer_flush(w);
    TAP_CHECK(p.failed && p.dropped == 1 && strstr(p.why, "does not fit"), "refused: %s", p.why);
    plan q = { .number = 2 };
    f = lf_writer_begin(w, &q);
    give_rows(w, f, 2, 0, 0, 9, LF_WRITER_LEAST / 2 - 64);
    lf_writer_end(w, f, NULL);
    lf_writer_close(w);
    TAP_CHECK(!q.failed && q.calls == 9 && q.wrong == 0, "the widest row passes, one at a time");
    lf_writer_close(NULL);
}

/* Nearly half of the ring takes a row; a row of logits is the widest. */
static void test_budget(void)
{
    lf_model m = { .vocab = 129280 }, wide = { .vocab = 20000003 };
    size_t usual = lf_writer_budget(&m), wider = lf_writer_budget(&wide);

    TAP_CHECK(usual == (size_t)256 << 20, "the budget of a job: %zu", usual);
    TAP_CHECK(wider > usual && wider / 2 > 4 * (size_t)wide.vocab + 4096 && wider % 128 == 0,
              "and of a large vocabulary: %zu", wider);
}

int main(void)
{
    test_budget();
    test_bytes();
    test_pressure();
    test_warning();
    test_failures();
    test_wide_row();
    return tap_done();
}
