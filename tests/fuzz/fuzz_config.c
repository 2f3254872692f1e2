/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer target: config.json.  clang -fsanitize=fuzzer,address,undefined
 */
#include "inventory.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int look(void *arg, const lf_inventory_item *item, lf_err *err)
{
    (void)arg;
    (void)err;
    if (item->rows < 1 || item->cols < 1 || !item->name[0] || lf_inventory_bytes(item, item->released) < 1)
        abort();
    return 0;
}

/* What is accepted has sizes that make sense; what is refused says so in one line. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lf_model m;
    lf_err err = { "" };

    if (lf_model_parse(&m, (const char *)data, size, "config.json", &err)) {
        if (!err.text[0] || strchr(err.text, '\n'))
            abort();
    } else {
        if (m.layers < 1 || m.heads % m.o_groups || m.rope_dim >= m.head_dim || m.experts_per_tok > m.experts)
            abort();
        for (int l = -1; l < m.layers && m.experts <= 64 && m.layers <= 64; l++)
            lf_inventory_layer(&m, l, look, NULL, &err);
    }
    lf_model_free(&m);
    return 0;
}
