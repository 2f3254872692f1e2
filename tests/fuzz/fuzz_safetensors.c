/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer target: a checkpoint directory.  The input's first byte says whether the rest is model.safetensors, or
 * the index of a directory with two good shards.  clang -fsanitize=fuzzer,address,undefined
 */
#include "safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put(const char *dir, const char *name, const void *data, size_t size)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f))
        exit(1);
}

static void put_shard(const char *dir, const char *name, const char *tensor)
{
    char file[256] = { 0 };
    int n = snprintf(file + 8, sizeof file - 8,
                     "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", tensor);

    file[0] = (char)n;
    put(dir, name, file, (size_t)n + 9);
}

static const char *make_dir(int index)
{
    static char single[] = "/tmp/fuzz.XXXXXX", sharded[] = "/tmp/fuzz.XXXXXX";
    static int made;

    if (!made++) {
        if (!mkdtemp(single) || !mkdtemp(sharded))
            exit(1);
        put_shard(sharded, "a.safetensors", "a");
        put_shard(sharded, "b.safetensors", "b");
    }
    return index ? sharded : single;
}

static void read_all(lf_checkpoint *c)
{
    unsigned sum = 0;
    lf_err err = { "" };

    for (int64_t i = 0; i < lf_checkpoint_count(c); i++) {
        const lf_tensor *t = lf_checkpoint_at(c, i);
        const void *data;
        if (lf_checkpoint_find(c, t->name) != t || lf_checkpoint_data(c, t, &data, &err))
            abort();
        for (uint64_t k = 0; k < t->bytes; k++)
            sum += ((const uint8_t *)data)[k];
    }
    (void)*(volatile unsigned *)&sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lf_checkpoint *c;
    lf_err err = { "" };

    if (size == 0)
        return 0;
    int index = data[0] == 'i';
    const char *dir = make_dir(index);
    put(dir, index ? "model.safetensors.index.json" : "model.safetensors", data + 1, size - 1);
    if (lf_checkpoint_open(&c, dir, &err) == 0)
        read_all(c);
    else if (c || !err.text[0] || strchr(err.text, '\n'))
        abort();
    lf_checkpoint_close(c);
    return 0;
}
