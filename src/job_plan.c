/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"

#include <stdlib.h>
#include <string.h>

typedef struct length {
    int64_t tokens, place, request;
} length;

static int longest_first(const void *a, const void *b)
{
    const length *x = a, *y = b;

    if (x->tokens != y->tokens)
        return x->tokens < y->tokens ? 1 : -1;
    return (x->place > y->place) - (x->place < y->place);
}

static void plan_order(lf_job_plan *p, const lf_requests *r, const unsigned char *skip)
{
    length *l = lf_alloc((size_t)r->n * sizeof *l);

    for (int64_t i = 0; i < r->n; i++)
        if (!skip || !skip[i])
            l[p->n++] = (length){ r->v[i].tokens, r->v[i].place, i };
    qsort(l, (size_t)p->n, sizeof *l, longest_first);
    p->order = lf_alloc((size_t)p->n * sizeof *p->order);
    for (int64_t i = 0; i < p->n; i++) {
        p->order[i] = l[i].request;
        p->tokens += l[i].tokens;
    }
    free(l);
}

/* With few prompts for many groups a full batch would leave groups without work: no batch is more than a
 * quarter of a group's part. */
static int64_t batch_limit(const lf_job_plan *p, int64_t groups)
{
    return lf_min(LF_BATCH_TOKENS, p->tokens / (4 * groups));
}

void lf_job_plan_make(lf_job_plan *p, const lf_requests *r, const unsigned char *skip, int64_t groups)
{
    memset(p, 0, sizeof *p);
    plan_order(p, r, skip);
    int64_t limit = batch_limit(p, groups);
    p->batch = lf_alloc((size_t)p->n * sizeof *p->batch);
    for (int64_t i = 0; i < p->n; i++) {
        int64_t tokens = r->v[p->order[i]].tokens;
        lf_batch *last = p->batches ? &p->batch[p->batches - 1] : NULL;
        if (last && last->tokens + tokens <= limit) {
            last->n++;
            last->tokens += tokens;
        } else {
            p->batch[p->batches++] = (lf_batch){ i, 1, tokens };
        }
    }
}

void lf_job_plan_free(lf_job_plan *p)
{
    free(p->order);
    free(p->batch);
    memset(p, 0, sizeof *p);
}
