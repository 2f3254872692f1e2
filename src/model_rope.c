/* SPDX-License-Identifier: Apache-2.0 */
#include "model_parts.h"

#include <math.h>

/* qk_rope_head_dim, or a fraction of head_dim: truncated, as transformers does. */
static int read_dim(lf_model *m, const lf_field *f)
{
    int64_t dim = m->head_dim / 8;
    double part = 0;
    int named = lf_field_get(f, "qk_rope_head_dim") != NULL;

    if (lf_field_int(f, "qk_rope_head_dim", 0, 2, m->head_dim - 1, &dim) ||
        lf_field_real(f, "partial_rotary_factor", 0, 1e-4, 1, &part))
        return -1;
    if (part > 0) {
        int64_t other = (int64_t)(m->head_dim * part);
        if (named && other != dim)
            return lf_fail(f->err,
                           "%s: fields qk_rope_head_dim (%lld) and partial_rotary_factor (%g of head_dim %d)"
                           " disagree",
                           f->where, (long long)dim, part, m->head_dim);
        dim = other;
    }
    m->rope_dim = (int)dim;
    return 0;
}

static int check_part(const lf_model *m, const lf_field *f)
{
    double part = 0;

    if (lf_field_real(f, "partial_rotary_factor", 0, 1e-4, 1, &part))
        return -1;
    if (part > 0 && (int)(m->head_dim * part) != m->rope_dim)
        return lf_fail(f->err,
                       "%s: field %spartial_rotary_factor (%g of head_dim %d) disagrees with"
                       " qk_rope_head_dim (%d)",
                       f->where, f->prefix, part, m->head_dim, m->rope_dim);
    return 0;
}

/* "type" and "rope_type" are two spellings of one field. */
static int read_type(const lf_field *f, const char **type)
{
    const char *a = NULL, *b = NULL;

    if (lf_field_text(f, "type", 0, &a) || lf_field_text(f, "rope_type", 0, &b))
        return -1;
    if (a && b && strcmp(a, b))
        return lf_fail(f->err, "%s: fields %stype (%.40s) and %srope_type (%.40s) disagree", f->where,
                       f->prefix, a, f->prefix, b);
    *type = a ? a : b ? b : "default";
    return 0;
}

static int read_yarn(const lf_model *m, const lf_field *f, lf_yarn *y)
{
    const char *type = NULL;
    double attention = 1;

    *y = (lf_yarn){ .beta_fast = 32, .beta_slow = 1 };
    if (read_type(f, &type) || check_part(m, f))
        return -1;
    if (strcmp(type, "default") == 0)
        return 0;
    if (strcmp(type, "yarn"))
        return lf_fail(f->err, "%s: field %stype is \"%.40s\"; yarn and default are supported", f->where,
                       f->prefix, type);
    if (lf_field_real(f, "factor", LF_FIELD_NEEDED, 1, 1e6, &y->factor) ||
        lf_field_real(f, "beta_fast", 0, 1e-6, 1e6, &y->beta_fast) ||
        lf_field_real(f, "beta_slow", 0, 1e-6, 1e6, &y->beta_slow) ||
        lf_field_int(f, "original_max_position_embeddings", LF_FIELD_NEEDED, 1, (int64_t)1 << 32,
                     &y->original) ||
        lf_field_real(f, "attention_factor", 0, 0, 1e6, &attention) || lf_field_is_bool(f, "truncate", 1))
        return -1;
    if (y->beta_fast < y->beta_slow)
        return lf_fail(f->err, "%s: field %sbeta_fast (%g) is less than beta_slow (%g)", f->where, f->prefix,
                       y->beta_fast, y->beta_slow);
    if (attention != 1)
        return lf_fail(f->err, "%s: field %sattention_factor is %g; only 1 is supported", f->where, f->prefix,
                       attention);
    y->on = 1;
    return 0;
}

/* A theta that is given twice must be the same twice. */
static int read_theta(const lf_field *f, const char *key, const lf_field *in, double *theta)
{
    double inner = 0;
    int named = lf_field_get(f, key) != NULL;

    if (lf_field_real(f, key, 0, 1.001, 1e12, theta) ||
        lf_field_real(in, "rope_theta", 0, 1.001, 1e12, &inner))
        return -1;
    if (inner > 0) {
        if (named && inner != *theta)
            return lf_fail(f->err, "%s: fields %s (%g) and %srope_theta (%g) disagree", f->where, key, *theta,
                           in->prefix, inner);
        *theta = inner;
    }
    return 0;
}

static int get_object(const lf_field *f, const char *key, const json_t **object)
{
    *object = lf_field_get(f, key);
    if (*object && !json_is_object(*object))
        return lf_fail(f->err, "%s: field %s%s is not an object", f->where, f->prefix, key);
    return 0;
}

static int same_yarn(const lf_yarn *a, const lf_yarn *b)
{
    return a->on == b->on && (!a->on || (a->factor == b->factor && a->beta_fast == b->beta_fast &&
                                         a->beta_slow == b->beta_slow && a->original == b->original));
}

/* rope_parameters {main, compress}: the window layers' rotary must be plain. */
static int read_nested(lf_model *m, const lf_field *f, const lf_field *main_part, const lf_field *compress)
{
    lf_yarn plain;

    if (read_yarn(m, main_part, &plain))
        return -1;
    if (plain.on)
        return lf_fail(f->err,
                       "%s: field rope_parameters.main asks for yarn; only the compressed layers are scaled",
                       f->where);
    if (read_theta(f, "rope_theta", main_part, &m->rope_theta) ||
        read_theta(f, "compress_rope_theta", compress, &m->compress_theta))
        return -1;
    return read_yarn(m, compress, &m->yarn);
}

/* One flat object describes the compressed layers' scaling; its rope_theta, if any, repeats the main one. */
static int read_flat(lf_model *m, const lf_field *f, const lf_field *flat)
{
    const lf_field none = { NULL, f->where, "", f->err };

    if (read_theta(f, "rope_theta", flat, &m->rope_theta) ||
        read_theta(f, "compress_rope_theta", &none, &m->compress_theta))
        return -1;
    return read_yarn(m, flat, &m->yarn);
}

int lf_model_rope(lf_model *m, const lf_field *f)
{
    const json_t *old, *params, *main_part = NULL, *compress = NULL;
    lf_yarn other;

    if (read_dim(m, f) || get_object(f, "rope_scaling", &old) || get_object(f, "rope_parameters", &params))
        return -1;
    lf_field scaling = { old, f->where, "rope_scaling.", f->err };
    lf_field flat = { params, f->where, "rope_parameters.", f->err };
    if (get_object(&flat, "main", &main_part) || get_object(&flat, "compress", &compress))
        return -1;
    if (!main_part != !compress)
        return lf_fail(f->err, "%s: field rope_parameters.%s is missing", f->where,
                       main_part ? "compress" : "main");
    if (!params)
        return read_flat(m, f, &scaling);
    lf_field a = { main_part, f->where, "rope_parameters.main.", f->err };
    lf_field b = { compress, f->where, "rope_parameters.compress.", f->err };
    if (main_part ? read_nested(m, f, &a, &b) : read_flat(m, f, &flat))
        return -1;
    if (old && read_yarn(m, &scaling, &other))
        return -1;
    if (old && !same_yarn(&other, &m->yarn))
        return lf_fail(f->err, "%s: fields rope_scaling and rope_parameters disagree", f->where);
    return 0;
}
