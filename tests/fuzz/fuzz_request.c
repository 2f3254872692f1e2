/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a prompts file, for libFuzzer: everything is either refused with one line or valid to the last id.
 *   clang -g -fsanitize=fuzzer,address,undefined -Isrc tests/fuzz/fuzz_request.c src/request*.c src/options*.c \
 *       src/base.c -ljansson
 */
#include "request.h"
#include "request_idfile.h"

#include <stdlib.h>
#include <string.h>

enum { VOCAB = 1000, LONGEST = 100 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int encode(void *ctx, const char *text, size_t bytes, int add_special, uint32_t **ids, int64_t *n,
                  lf_err *err)
{
    (void)ctx;
    (void)err;
    *ids = lf_alloc((bytes + 1) * sizeof **ids);
    for (size_t i = 0; i < bytes; i++)
        (*ids)[i] = (uint8_t)text[i];
    *n = (int64_t)bytes + add_special;
    return 0;
}

static void must(int ok)
{
    if (!ok)
        abort();
}

static void prompts(const uint8_t *data, size_t size)
{
    static const lf_request_rules rules = { VOCAB, LONGEST, encode, NULL };
    FILE *in = fmemopen((void *)(uintptr_t)data, size, "rb");
    lf_requests r;
    lf_err err;

    if (lf_requests_parse(&r, in, "fuzz", "/nonexistent/", &rules, &err)) {
        must(r.n == 0 && err.text[0] && !strchr(err.text, '\n'));
    } else {
        must(r.n > 0);
        for (int64_t i = 0; i < r.n; i++) {
            must(r.v[i].tokens > 0 && r.v[i].tokens <= LONGEST && r.v[i].id[0]);
            for (int64_t t = 0; t < r.v[i].tokens; t++)
                must(r.v[i].ids[t] < VOCAB);
        }
        lf_requests_free(&r);
    }
    fclose(in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t *ids;
    int64_t n;
    lf_err err;

    if (!size)
        return 0;
    prompts(data, size);
    if (!lf_idfile_parse(data, size, LF_IDFILE_NPY, VOCAB, &ids, &n, &err)) {
        for (int64_t i = 0; i < n; i++)
            must(ids[i] < VOCAB);
        free(ids);
    }
    return 0;
}
