/* SPDX-License-Identifier: Apache-2.0 */
#include "inventory.h"

#include <stdio.h>
#include <stdlib.h>

static const char *show_shape(const lf_tensor *t, char *buf, size_t bytes)
{
    size_t n = (size_t)snprintf(buf, bytes, "[");

    for (int d = 0; d < t->ndim && n < bytes; d++)
        n += (size_t)snprintf(buf + n, bytes - n, "%s%lld", d ? ", " : "", (long long)t->shape[d]);
    if (n < bytes)
        snprintf(buf + n, bytes - n, "]");
    return buf;
}

/* A vector's shape here is [1, n]. */
static int check_shape(const lf_tensor *t, int ndim, const int64_t shape[2], lf_err *err)
{
    char shown[100];
    int ok = t->ndim == ndim;

    for (int d = 0; ok && d < ndim; d++)
        ok = t->shape[d] == shape[d + 2 - ndim];
    if (ok)
        return 0;
    show_shape(t, shown, sizeof shown);
    if (ndim == 1)
        return lf_fail(err, "tensor %s has the shape %s; the config needs [%lld]", t->name, shown,
                       (long long)shape[1]);
    return lf_fail(err, "tensor %s has the shape %s; the config needs [%lld, %lld]%s", t->name, shown,
                   (long long)shape[0], (long long)shape[1], t->dtype == LF_I8 ? " (two values a byte)" : "");
}

static int store_of(const lf_inventory_item *item, lf_dtype dtype, lf_storage *store)
{
    lf_dtype want;
    int64_t shape[2], scale[2];

    for (int s = 0; s < LF_STORES; s++) {
        lf_inventory_stored(item, (lf_storage)s, &want, shape, scale);
        if (item->stores & 1u << s && want == dtype) {
            *store = (lf_storage)s;
            return 0;
        }
    }
    return -1;
}

static int fail_dtype(const lf_inventory_item *item, const lf_tensor *t, lf_err *err)
{
    char allowed[64] = "";
    lf_dtype want;
    int64_t shape[2], scale[2];

    for (int s = 0; s < LF_STORES; s++) {
        if (!(item->stores & 1u << s))
            continue;
        lf_inventory_stored(item, (lf_storage)s, &want, shape, scale);
        size_t n = strlen(allowed);
        snprintf(allowed + n, sizeof allowed - n, "%s%s", n ? " or " : "", lf_dtype_name(want));
    }
    return lf_fail(err, "tensor %s is %s; it must be %s%s", t->name, lf_dtype_name(t->dtype), allowed,
                   t->dtype == LF_I8 && item->expert >= 0 ? " (its columns are not a multiple of 32)" : "");
}

static int find_scale(const lf_checkpoint *c, const lf_inventory_item *item, const int64_t shape[2],
                      lf_inventory_found *found, lf_err *err)
{
    const lf_tensor *t = item->scale[0] ? lf_checkpoint_find(c, item->scale) : NULL;
    const char *type = lf_dtype_name(found->weight->dtype);

    found->scale = t;
    if (!shape[0] && !t)
        return 0;
    if (!shape[0])
        return lf_fail(err, "tensor %s is there, but %s is %s and takes no scale", t->name, item->name, type);
    if (!t)
        return lf_fail(err, "tensor %s is missing: %s is %s and needs it", item->scale, item->name, type);
    if (t->dtype != LF_E8M0)
        return lf_fail(err, "tensor %s is %s; a scale must be F8_E8M0", t->name, lf_dtype_name(t->dtype));
    return check_shape(t, 2, shape, err);
}

int lf_inventory_find(const lf_checkpoint *c, const lf_inventory_item *item, lf_inventory_found *found,
                      lf_err *err)
{
    const lf_tensor *t = lf_checkpoint_find(c, item->name);
    lf_dtype dtype;
    int64_t shape[2], scale[2];

    *found = (lf_inventory_found){ .weight = t };
    if (!t)
        return lf_fail(err, "tensor %s is missing", item->name);
    if (store_of(item, t->dtype, &found->store))
        return fail_dtype(item, t, err);
    lf_inventory_stored(item, found->store, &dtype, shape, scale);
    if (check_shape(t, item->ndim, shape, err))
        return -1;
    return find_scale(c, item, scale, found, err);
}

typedef struct check {
    const lf_checkpoint *c;
    unsigned char *seen;                   /* by place in the checkpoint */
    lf_inventory_report *report;
    int layer;                             /* of the expert seen last */
    lf_storage experts;                    /* how that layer stores them */
} check;

static void count_tensor(check *k, const lf_tensor *t)
{
    k->seen[t - lf_checkpoint_at(k->c, 0)] = 1;
    k->report->tensors++;
    k->report->of_dtype[t->dtype]++;
    k->report->bytes += (int64_t)t->bytes;
}

static int check_item(void *arg, const lf_inventory_item *item, lf_err *err)
{
    check *k = arg;
    lf_inventory_found found;

    if (lf_inventory_find(k->c, item, &found, err))
        return -1;
    if (item->expert >= 0) {
        if (item->layer == k->layer && found.store != k->experts)
            return lf_fail(err, "tensor %s is %s, unlike the layer's other routed experts", item->name,
                           lf_dtype_name(found.weight->dtype));
        k->layer = item->layer;
        k->experts = found.store;
    }
    k->report->items++;
    count_tensor(k, found.weight);
    if (found.scale)
        count_tensor(k, found.scale);
    return 0;
}

static void count_others(const check *k)
{
    lf_inventory_report *r = k->report;

    for (int64_t i = 0; i < lf_checkpoint_count(k->c); i++) {
        const char *name = lf_checkpoint_at(k->c, i)->name;
        if (k->seen[i])
            continue;
        if (strncmp(name, "mtp.", 4) == 0)
            r->mtp++;
        else if (r->unknown++ == 0)
            r->first_unknown = name;
    }
}

int lf_inventory_check(const lf_model *m, const lf_checkpoint *c, lf_inventory_report *report, lf_err *err)
{
    lf_inventory_report own;
    check k = { .c = c, .report = report ? report : &own, .layer = -1 };

    memset(k.report, 0, sizeof *k.report);
    k.seen = lf_alloc((size_t)lf_checkpoint_count(c));
    int rc = lf_inventory_each(m, check_item, &k, err);
    if (rc == 0)
        count_others(&k);
    free(k.seen);
    return rc ? lf_fail_in(err, "%s", lf_checkpoint_dir(c)) : 0;
}

void lf_inventory_floats(lf_dtype dtype, const void *data, int64_t first, int64_t n, float *out)
{
    const uint8_t *p = (const uint8_t *)data + first * (int64_t)lf_dtype_bytes(dtype);

    if (dtype == LF_F32) {
        memcpy(out, p, (size_t)n * 4);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        out[i] = dtype == LF_BF16 ? lf_bf16_f32(h) : lf_f16_f32(h);
    }
}
