/* SPDX-License-Identifier: Apache-2.0 */
#include "model_parts.h"

#include <stdio.h>

static const char *const layer_types[] = {
    [LF_SWA] = "sliding_attention",
    [LF_C4] = "compressed_sparse_attention",
    [LF_C128] = "heavily_compressed_attention",
};

/* A list with an entry for every layer at least; what goes beyond belongs to MTP or speculative stages. */
static int get_list(const lf_field *f, const char *key, int layers, const json_t **list)
{
    char shown[64];

    *list = lf_field_get(f, key);
    if (!*list)
        return 0;
    if (!json_is_array(*list))
        return lf_fail(f->err, "%s: field %s is %s; it must be a list", f->where, key,
                       lf_field_show(*list, shown, sizeof shown));
    if (json_array_size(*list) < (size_t)layers)
        return lf_fail(f->err, "%s: field %s has %zu element%s; num_hidden_layers is %d", f->where, key,
                       json_array_size(*list), lf_s((int64_t)json_array_size(*list)), layers);
    return 0;
}

static int kind_of_ratio(const json_t *v, lf_kind *kind)
{
    json_int_t r = json_is_integer(v) ? json_integer_value(v) : -1;

    *kind = r == 4 ? LF_C4 : r == 128 ? LF_C128 : LF_SWA;
    return r == 0 || r == 4 || r == 128 ? 0 : -1;
}

static int kind_of_type(const json_t *v, lf_kind *kind)
{
    const char *name = json_string_value(v);

    for (int k = LF_SWA; name && k <= LF_C128; k++)
        if (strcmp(name, layer_types[k]) == 0) {
            *kind = (lf_kind)k;
            return 0;
        }
    return -1;
}

static int read_kinds(lf_model *m, const lf_field *f, const json_t *ratios, const json_t *types)
{
    char shown[64], other[64];

    for (int l = 0; l < m->layers; l++) {
        const json_t *r = ratios ? json_array_get(ratios, (size_t)l) : NULL;
        const json_t *t = types ? json_array_get(types, (size_t)l) : NULL;
        lf_kind a = LF_SWA, b = LF_SWA;
        if (r && kind_of_ratio(r, &a))
            return lf_fail(f->err, "%s: field compress_ratios[%d] is %s; ratios are 0, 4 and 128", f->where,
                           l, lf_field_show(r, shown, sizeof shown));
        if (t && kind_of_type(t, &b))
            return lf_fail(f->err, "%s: field layer_types[%d] is %s; types are %s, %s and %s", f->where, l,
                           lf_field_show(t, shown, sizeof shown), layer_types[0], layer_types[1],
                           layer_types[2]);
        if (r && t && a != b)
            return lf_fail(f->err, "%s: fields compress_ratios and layer_types disagree on layer %d: %s and %s",
                           f->where, l, lf_field_show(r, shown, sizeof shown),
                           lf_field_show(t, other, sizeof other));
        m->kind[l] = r ? a : b;
    }
    return 0;
}

/* The rates have one supported value per type; older files of the new form write them as two plain fields. */
static int check_rates(const lf_field *f)
{
    const json_t *rates = lf_field_get(f, "compress_rates");
    lf_field in = { rates, f->where, "compress_rates.", f->err };

    if (rates && !json_is_object(rates))
        return lf_fail(f->err, "%s: field compress_rates is not an object", f->where);
    if (lf_field_is_int(&in, layer_types[LF_C4], 4) || lf_field_is_int(&in, layer_types[LF_C128], 128) ||
        lf_field_is_int(f, "compress_rate_csa", 4) || lf_field_is_int(f, "compress_rate_hca", 128))
        return -1;
    return 0;
}

/* Hash layers come first: "hash_moe" may not follow "moe". */
static int count_hash(const lf_model *m, const lf_field *f, const json_t *types, int64_t *count)
{
    char shown[64];

    *count = 0;
    for (int l = 0; l < m->layers; l++) {
        const json_t *t = json_array_get(types, (size_t)l);
        const char *name = json_string_value(t);
        int hash = name && strcmp(name, "hash_moe") == 0;
        if (!hash && (!name || strcmp(name, "moe")))
            return lf_fail(f->err, "%s: field mlp_layer_types[%d] is %s; types are hash_moe and moe",
                           f->where, l, lf_field_show(t, shown, sizeof shown));
        if (hash && *count < l)
            return lf_fail(f->err,
                           "%s: field mlp_layer_types[%d] is hash_moe after a moe layer; hash layers come first",
                           f->where, l);
        *count += hash;
    }
    return 0;
}

static int read_hash(lf_model *m, const lf_field *f)
{
    const json_t *types;
    int64_t listed = 0, count = lf_min(3, m->layers); /* transformers' value when the file has none */

    if (get_list(f, "mlp_layer_types", m->layers, &types) || (types && count_hash(m, f, types, &listed)))
        return -1;
    if (lf_field_get(f, "num_hash_layers")) {
        if (lf_field_int(f, "num_hash_layers", LF_FIELD_NEEDED, 0, m->layers, &count))
            return -1;
        if (types && count != listed)
            return lf_fail(f->err,
                           "%s: fields num_hash_layers (%lld) and mlp_layer_types (%lld hash_moe) disagree",
                           f->where, (long long)count, (long long)listed);
    } else if (types) {
        count = listed;
    }
    m->hash_layers = (int)count;
    return 0;
}

int lf_model_schedule(lf_model *m, const lf_field *f)
{
    const json_t *ratios, *types;

    if (get_list(f, "compress_ratios", m->layers, &ratios) || get_list(f, "layer_types", m->layers, &types))
        return -1;
    if (!ratios && !types)
        return lf_fail(f->err,
                       "%s: neither compress_ratios nor layer_types says which attention each layer has",
                       f->where);
    if (read_kinds(m, f, ratios, types) || check_rates(f))
        return -1;
    return read_hash(m, f);
}
