/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing the tokenizer: the input is a tokenizer.json, a marker line, and a text; with a second marker the part
 * between the two is a tokenizer_config.json.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -Isrc tests/fuzz/fuzz_tokenizer.c <the tokenizer's sources>
 *         -ljansson -lpcre2-8
 * With -DLF_FUZZ_MAIN and any compiler it is a program that runs the files named on its command line.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE                        /* memmem */
#endif
#include "file.h"
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char marker[] = "\n----\n";

/* The rest behind the first marker in *p, which then ends before it; NULL without a marker. */
static const char *behind_marker(const char *p, size_t *n, size_t *rest)
{
    size_t m = sizeof marker - 1;
    const char *at = memmem(p, *n, marker, m);

    if (!at)
        return NULL;
    *rest = *n - (size_t)(at - p) - m;
    *n = (size_t)(at - p);
    return at + m;
}

static void check_ids(const lf_tokenizer *t, const char *text, size_t bytes, int special)
{
    uint32_t *ids = NULL;
    int64_t n = 0;
    lf_err err = { "" };

    if (lf_tokenizer_encode(t, text, bytes, special, &ids, &n, &err)) {
        if (!err.text[0])
            abort();
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] >= lf_tokenizer_vocab(t))
            abort();
    }
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *json = (const char *)data;
    size_t json_bytes = size, text_bytes = 0, more_bytes = 0;
    const char *text = behind_marker(json, &json_bytes, &text_bytes);
    const char *more = text ? behind_marker(text, &text_bytes, &more_bytes) : NULL;
    char *config = NULL;
    lf_tokenizer *t = NULL;
    lf_err err = { "" };

    if (more) {
        config = strndup(text, text_bytes);
        text = more;
        text_bytes = more_bytes;
    }
    if (lf_tokenizer_parse(&t, json, json_bytes, config, "fuzz", &err) == 0) {
        check_ids(t, text ? text : "", text_bytes, 0);
        check_ids(t, text ? text : "", text_bytes, 1);
        lf_tokenizer_close(t);
    } else if (!err.text[0]) {
        abort();
    }
    free(config);
    return 0;
}

#ifdef LF_FUZZ_MAIN
#include <stdio.h>

int main(int argc, char **argv)
{
    int bad = 0;

    for (int i = 1; i < argc; i++) {
        char *data = NULL;
        size_t bytes = 0;
        lf_err err;
        if (lf_file_read(argv[i], (size_t)1 << 30, &data, &bytes, &err)) {
            fprintf(stderr, "%s\n", err.text);
            bad = 1;
            continue;
        }
        LLVMFuzzerTestOneInput((const uint8_t *)data, bytes);
        free(data);
    }
    return bad;
}
#endif
