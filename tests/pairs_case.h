/* SPDX-License-Identifier: Apache-2.0
 *
 * pairs_case: random choices of experts, and what pairs and arrivals of a device make of them.
 */
#ifndef LF_TEST_PAIRS_CASE_H
#define LF_TEST_PAIRS_CASE_H

#include "../src/dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Evenly; most tokens to few experts; every token to the same ones, the last. */
typedef enum pairs_kind { PAIRS_EVEN, PAIRS_SKEWED, PAIRS_ONE, PAIRS_KINDS } pairs_kind;

static inline const char *pairs_name(pairs_kind kind)
{
    static const char *const name[] = { "evenly", "skewed", "all to the last ones" };

    return name[kind];
}

static inline uint32_t pairs_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

typedef struct pairs_case {
    int64_t m;
    int k, experts;
    int32_t *expert, *slot, *token, *count;            /* host memory; the last three: what the device gave */
    float *of, *weight;
} pairs_case;

/* A row's experts differ, as a router's do; k <= experts. */
static inline pairs_case pairs_make(int64_t m, int k, int experts, pairs_kind kind)
{
    pairs_case c = { .m = m, .k = k, .experts = experts };
    size_t bytes = 4 * (size_t)(m * k) + 4;
    uint64_t state = (uint64_t)(m * 1000 + k * 100 + experts * 10 + (int)kind);

    c.expert = lf_alloc(bytes);
    c.slot = lf_alloc(bytes);
    c.token = lf_alloc(bytes);
    c.of = lf_alloc(bytes);
    c.weight = lf_alloc(bytes);
    c.count = lf_alloc(4 * (size_t)experts);
    for (int64_t t = 0; t < m; t++)
        for (int j = 0; j < k; j++) {
            uint32_t u = pairs_random(&state), n = (uint32_t)experts;
            int e = (int)(kind == PAIRS_EVEN ? u % n : kind == PAIRS_SKEWED ? u % (u % 16 ? n / 4 + 1 : n) : n - 1);
            for (int l = 0; l < j; l++)
                if (c.expert[t * k + l] == e) {
                    e = (e + 1) % experts;
                    l = -1;
                }
            c.expert[t * k + j] = e;
            c.of[t * k + j] = (float)(t * k + j) + 0.5f;
        }
    return c;
}

static inline void *pairs_device(lf_dev *d, const void *from, size_t bytes)
{
    lf_err err;
    void *p;

    if (d->ops->take(d, &p, bytes + 4, "test", &err)) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    d->ops->fill(d, p, 0xff, bytes + 4);               /* what is not written shows as -1 or NaN */
    if (from && bytes)
        d->ops->put(d, p, from, bytes);
    return p;
}

/* To the host, and gives it back; what lies behind must not have been touched: that is the result. */
static inline int pairs_back(lf_dev *d, void *host, void *p, size_t bytes)
{
    int32_t behind;

    d->ops->get(d, &behind, (char *)p + bytes, 4);
    if (bytes)
        d->ops->get(d, host, p, bytes);
    d->ops->give(d, p);
    return behind == -1;
}

/* Returns whether the device kept to its output. */
static inline int pairs_run(pairs_case *c, lf_dev *d)
{
    size_t bytes = 4 * (size_t)(c->m * c->k), all = 4 * (size_t)c->experts;
    int32_t *expert = pairs_device(d, c->expert, bytes);
    float *of = pairs_device(d, c->of, bytes);
    lf_pairs p = { .slot = pairs_device(d, NULL, bytes), .token = pairs_device(d, NULL, bytes),
                   .weight = pairs_device(d, NULL, bytes), .count = pairs_device(d, NULL, all), .expert = expert,
                   .of = of, .m = c->m, .k = c->k, .experts = c->experts };

    d->ops->pairs(d, &p);
    int ok = pairs_back(d, c->slot, p.slot, bytes) & pairs_back(d, c->token, p.token, bytes) &
             pairs_back(d, c->weight, p.weight, bytes) & pairs_back(d, c->count, p.count, all);
    d->ops->give(d, expert);
    d->ops->give(d, of);
    return ok;
}

static inline void pairs_free(pairs_case *c)
{
    free(c->expert);
    free(c->slot);
    free(c->token);
    free(c->of);
    free(c->weight);
    free(c->count);
}

typedef struct arrivals_case {
    int senders, experts;
    int64_t received, *count;
    int32_t *src, *home;                               /* host memory: what the device gave */
} arrivals_case;

/* 0 .. most of each sender for each expert, a third of them none. */
static inline arrivals_case arrivals_make(int senders, int experts, int most)
{
    arrivals_case c = { .senders = senders, .experts = experts };
    uint64_t state = (uint64_t)(senders * 10000 + experts * 100 + most);

    c.count = lf_alloc(8 * (size_t)(senders * experts));
    for (int i = 0; i < senders * experts; i++) {
        uint32_t u = pairs_random(&state);
        c.count[i] = u % 3 ? u / 3 % ((uint32_t)most + 1) : 0;
        c.received += c.count[i];
    }
    c.src = lf_alloc(4 * (size_t)c.received + 4);
    c.home = lf_alloc(4 * (size_t)c.received + 4);
    return c;
}

static inline int arrivals_run(arrivals_case *c, lf_dev *d)
{
    size_t bytes = 4 * (size_t)c->received, all = 8 * (size_t)(c->senders * c->experts);
    int64_t *count = lf_alloc(all);
    lf_arrivals a = { .src = pairs_device(d, NULL, bytes), .home = pairs_device(d, NULL, bytes), .count = count,
                      .senders = c->senders, .experts = c->experts };

    memcpy(count, c->count, all);
    d->ops->arrivals(d, &a);
    memset(count, 0xff, all);                          /* not looked at after the call */
    int ok = pairs_back(d, c->src, a.src, bytes) & pairs_back(d, c->home, a.home, bytes);
    free(count);
    return ok;
}

static inline void arrivals_free(arrivals_case *c)
{
    free(c->count);
    free(c->src);
    free(c->home);
}

#endif
