/* SPDX-License-Identifier: Apache-2.0
 *
 * synthdir: what the tests of checkpoints share: a directory of their own, small models, edits of headers.
 */
#ifndef LF_SYNTHDIR_H
#define LF_SYNTHDIR_H

#include "file.h"
#include "synth.h"

#include <stdio.h>
#include <stdlib.h>

static char synthdir_root[] = "/tmp/lf_test.XXXXXX";

static inline void synthdir_make(void)
{
    if (!mkdtemp(synthdir_root)) {
        printf("Bail out! no directory for the test\n");
        exit(1);
    }
}

static inline void synthdir_remove(void)
{
    char *clean = lf_printf("rm -rf '%s'", synthdir_root);

    if (system(clean))
        printf("# %s is left behind\n", synthdir_root);
    free(clean);
}

static inline char *synthdir_path(const char *name)
{
    return lf_printf("%s/%s", synthdir_root, name);
}

/* A checkpoint of a preset under root/name, in one shard unless o says otherwise. */
static inline int synthdir_write(const char *name, lf_synth_options o, lf_err *err)
{
    char *dir = synthdir_path(name);

    if (!o.preset)
        o.preset = "nano";
    if (!o.shard_size)
        o.shard_size = (int64_t)1 << 40;
    int rc = lf_synth_write(dir, &o, err);
    free(dir);
    return rc;
}

/* Replaces a text by one of the same length wherever it is in a file; returns how often. */
static inline int synthdir_edit(const char *name, const char *file, const char *from, const char *to)
{
    char *path = lf_printf("%s/%s/%s", synthdir_root, name, file), *text;
    size_t bytes = 0, n = strlen(from);
    int count = 0;
    lf_err err;

    if (strlen(to) != n || lf_file_read(path, 1 << 28, &text, &bytes, &err)) {
        free(path);
        return -1;
    }
    for (size_t i = 0; i + n <= bytes; i++)
        if (memcmp(text + i, from, n) == 0) {
            memcpy(text + i, to, n);
            count++;
        }
    if (lf_file_replace(path, text, bytes, &err))
        count = -1;
    free(text);
    free(path);
    return count;
}

/* The same in the only shard and in the index. */
static inline int synthdir_rename(const char *name, const char *from, const char *to)
{
    int a = synthdir_edit(name, "model-00001-of-00001.safetensors", from, to);
    int b = synthdir_edit(name, "model.safetensors.index.json", from, to);

    return a > 0 && a == b ? a : -1;
}

#endif
