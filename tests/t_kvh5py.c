/* SPDX-License-Identifier: Apache-2.0
 *
 * KV files as Python sees them: writes files and what is in them, then becomes kvfile_h5py.py, which looks with h5py.
 */
#include "file.h"
#include "kv_several.h"
#include "tap.h"

/* What lf_kvread_floats says of every swa, compressed and index row: DIR/<name>_<layer>_<part>.f32 */
static int floats_dump(const fixture *x, const char *name, lf_err *err)
{
    lf_kvread *r;
    int rc = 0;

    if (lf_kvread_open(&r, x->path, err))
        return -1;
    for (int l = 0; l < x->model.layers && !rc; l++) {
        for (lf_kv_part p = LF_PART_SWA; p <= LF_PART_INDEX && !rc; p++) {
            int64_t rows = lf_part_rows(&x->model, x->model.kind[l], p, x->meta.num_tokens);
            size_t n = (size_t)(rows * lf_part_width(&x->model, x->model.kind[l], p));
            float *out = lf_alloc(n * sizeof *out);
            char *path = lf_printf("%s/%s_%d_%s.f32", x->dir, name, l, lf_part_path(p));
            if (rows)
                rc = lf_kvread_floats(r, 0, l, p, 0, rows, out, err) ||
                     lf_file_replace(path, out, n * sizeof *out, err);
            free(path);
            free(out);
        }
    }
    lf_kvread_close(r);
    return rc;
}

static int write_one(fixture *x, lf_kv_dtype dtype, lf_err *err)
{
    const char *name = lf_kv_dtype_name(dtype);

    x->meta.kv_dtype = dtype;
    x->meta.numerics = dtype == LF_KV_F32 ? LF_EXACT : LF_RELEASED;
    x->meta.tokenizer_sha256 = dtype == LF_KV_F32 ? NULL : "beef";
    snprintf(x->path, sizeof x->path, "%s/%s.h5", x->dir, name);
    snprintf(master, sizeof master, "%s/several-%s.h5", x->dir, name);
    return fixture_write(x, -1, err) || floats_dump(x, name, err) || write_all(x, 3, NULL, err) ? -1 : 0;
}

int main(void)
{
    const char *python = getenv("PYTHON"), *srcdir = getenv("srcdir");
    lf_err err = { "" };
    fixture x;

    if (python && !*python) {
        printf("1..0 # SKIP no python3 with numpy and h5py\n");
        return 0;
    }
    if (fixture_begin(&x, 0, 300, LF_KV_BF16, &err)) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    x.meta.custom_id = "\xc3\xa4/1";
    x.meta.chunk_bytes = 512;
    x.meta.frontier = 128;
    x.meta.logits = (lf_logits_want){ .last = 1, .topk = 5, .logprob = 1 };
    if (write_one(&x, LF_KV_BF16, &err) || write_one(&x, LF_KV_FP8, &err) || write_one(&x, LF_KV_F32, &err)) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    char *script = lf_printf("%s/kvfile_h5py.py", srcdir ? srcdir : ".");
    fflush(stdout);
    execlp(python ? python : "python3", python ? python : "python3", "-B", script, x.dir, (char *)NULL);
    printf("Bail out! %s cannot be started\n", python ? python : "python3");
    return 1;
}
