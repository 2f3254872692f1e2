/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "dev_cuda.h"
#include "job.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

#ifndef LF_HAVE_CUDA
#define LF_HAVE_CUDA 0
#endif
#ifndef LF_HAVE_NCCL
#define LF_HAVE_NCCL 0
#endif

static lf_requests requests_of(const int64_t *tokens, int64_t n)
{
    lf_requests r = { .n = n, .v = lf_alloc((size_t)n * sizeof *r.v) };

    for (int64_t i = 0; i < n; i++) {
        r.v[i].tokens = tokens[i];
        r.v[i].place = i;
        r.tokens += tokens[i];
    }
    return r;
}

static void test_order(void)
{
    static const int64_t tokens[] = { 5, 9000, 70, 9000, 1, 70 };
    static const unsigned char skip[] = { 0, 0, 0, 0, 1, 0 };
    static const int64_t want[] = { 1, 3, 2, 5, 0 };
    lf_requests r = requests_of(tokens, 6);
    lf_job_plan p;

    lf_job_plan_make(&p, &r, skip, 1);
    TAP_CHECK(p.n == 5 && p.tokens == 18145 && !memcmp(p.order, want, sizeof want),
              "longest first, then by place");
    TAP_CHECK(p.batches == 3 && p.batch[0].n == 1 && p.batch[1].n == 1 && p.batch[2].n == 3 &&
                  p.batch[2].tokens == 145 && p.batch[2].first == 2,
              "long prompts go alone, short ones together");
    lf_job_plan_free(&p);
    static const unsigned char all[] = { 1, 1, 1, 1, 1, 1 };
    lf_job_plan_make(&p, &r, all, 1);
    TAP_CHECK(p.n == 0 && p.batches == 0 && p.tokens == 0, "nothing left to do is a plan too");
    lf_job_plan_free(&p);
    free(r.v);
}

/* Every prompt once; a batch of several is no more than a quarter of what each group gets. */
static void test_batches(void)
{
    enum { N = 1000 };
    int64_t tokens[N];
    uint32_t seed = 1;
    int bad = 0;

    for (int i = 0; i < N; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = 1 + (seed >> 20);
    }
    lf_requests r = requests_of(tokens, N);
    for (int64_t groups = 1; groups < 5000; groups = groups * 3 + 1) {
        lf_job_plan p;
        int64_t at = 0, sum = 0, limit = lf_min(LF_BATCH_TOKENS, r.tokens / (4 * groups));
        lf_job_plan_make(&p, &r, NULL, groups);
        for (int64_t b = 0; b < p.batches; b++) {
            TAP_QUIET(bad, p.batch[b].first == at && p.batch[b].n > 0, "batch %lld begins at %lld",
                      (long long)b, (long long)p.batch[b].first);
            TAP_QUIET(bad, p.batch[b].n == 1 || p.batch[b].tokens <= limit, "batch %lld of %lld tokens",
                      (long long)b, (long long)p.batch[b].tokens);
            at += p.batch[b].n;
            sum += p.batch[b].tokens;
        }
        TAP_QUIET(bad, at == N && sum == r.tokens, "%lld prompts in batches", (long long)at);
        lf_job_plan_free(&p);
    }
    TAP_CHECK(bad == 0, "batches hold every prompt once and are small enough for the groups");
    free(r.v);
}

/* "13.1.0": numbers and points. */
static int is_version(const json_t *libraries, const char *name, int points)
{
    const char *text = json_string_value(json_object_get(libraries, name));
    int found = 0;

    for (const char *c = text; c && *c; c++)
        found += *c == '.';
    return text && text[0] >= '1' && text[0] <= '9' && found == points && strspn(text, "0123456789.") == strlen(text);
}

static int has(const json_t *libraries, const char *name)
{
    return json_object_get(libraries, name) != NULL;
}

static lf_report libraries_of(const char *device, int shared)
{
    lf_report r;

    lf_report_init(&r);
    lf_job_libraries(&r, device, shared);
    return r;
}

static void test_libraries(void)
{
    lf_report cpu = libraries_of("cpu", 1), none = libraries_of(NULL, 1), gpu = libraries_of("cuda", 1),
              alone = libraries_of("cuda", 0);
    lf_cuda_versions v;

    TAP_CHECK(has(cpu.libraries, "mpi") && is_version(cpu.libraries, "hdf5", 2) &&
                  is_version(cpu.libraries, "jansson", 1) + is_version(cpu.libraries, "jansson", 2) == 1 &&
                  has(cpu.libraries, "pcre2") && has(cpu.libraries, "blis") && json_object_size(cpu.libraries) == 5,
              "libraries of a run on the CPU: %s", json_string_value(json_object_get(cpu.libraries, "blis")));
    TAP_CHECK(json_object_size(none.libraries) == 4 && !has(none.libraries, "blis"), "without a device, fewer");
    lf_cuda_versions_get(&v);
    if (LF_HAVE_CUDA) {
        TAP_CHECK(v.runtime >= 12000 && is_version(gpu.libraries, "cuda_runtime", 1) && v.cublaslt[0] >= 12 &&
                      is_version(gpu.libraries, "cublaslt", 2) && !has(gpu.libraries, "blis"),
                  "on a GPU: CUDA %s, cuBLASLt %s", json_string_value(json_object_get(gpu.libraries, "cuda_runtime")),
                  json_string_value(json_object_get(gpu.libraries, "cublaslt")));
        TAP_CHECK(has(gpu.libraries, "cuda_driver") == (v.driver != 0), "of the driver, where there is one");
    } else {
        TAP_CHECK(v.runtime == 0 && v.driver == 0 && v.cublaslt[0] == 0 && v.nccl == 0, "there is no CUDA");
    }
    TAP_CHECK((v.nccl >= 20000) == LF_HAVE_NCCL && is_version(gpu.libraries, "nccl", 2) == LF_HAVE_NCCL &&
                  !has(alone.libraries, "nccl"), "NCCL, where ranks share prompts");
    lf_report_free(&cpu);
    lf_report_free(&none);
    lf_report_free(&gpu);
    lf_report_free(&alone);
}

int main(void)
{
    test_order();
    test_batches();
    test_libraries();
    return tap_done();
}
