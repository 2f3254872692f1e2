/* SPDX-License-Identifier: Apache-2.0 */
#include "h5.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows are written as they lie in memory: a little-endian machine is needed"
#endif
#if !H5_VERSION_GE(1, 10, 3)
#error "HDF5 1.10.3 or newer is needed"
#endif

enum { TEXT_LIMIT = 16 << 20 };

size_t lf_elem_bytes(lf_elem e)
{
    static const size_t bytes[] = { 1, 4, 4, 8, 4, 2 };

    return bytes[e];
}

static hid_t bf16_type(void)
{
    hid_t t = H5Tcopy(H5T_IEEE_F32LE);

    if (t < 0 || H5Tset_fields(t, 15, 7, 8, 0, 7) < 0 || H5Tset_size(t, 2) < 0 || H5Tset_ebias(t, 127) < 0)
        return -1;
    return t;
}

hid_t lf_h5_type(lf_elem e)
{
    switch (e) {
    case LF_ELEM_U8:
        return H5Tcopy(H5T_STD_U8LE);
    case LF_ELEM_U32:
        return H5Tcopy(H5T_STD_U32LE);
    case LF_ELEM_I32:
        return H5Tcopy(H5T_STD_I32LE);
    case LF_ELEM_U64:
        return H5Tcopy(H5T_STD_U64LE);
    case LF_ELEM_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    default:
        return bf16_type();
    }
}

void lf_h5_setup(void)
{
    /* At exit HDF5 would try once more to write what a full disk refused, and complain on stderr. */
    (void)H5dont_atexit();
    (void)H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

static herr_t innermost(unsigned n, const H5E_error2_t *e, void *ctx)
{
    char *text = ctx;

    if (n == 0)
        snprintf(text, 256, "%s", e->desc ? e->desc : "");
    return 0;
}

/* The drivers' texts list every argument; of those only the system's message helps. */
static void reason(char text[256])
{
    static const char mark[] = "error message = '";

    text[0] = 0;
    (void)H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, text);
    char *p = strstr(text, mark);
    if (p) {
        p += sizeof mark - 1;
        memmove(text, p, strlen(p) + 1);
        text[strcspn(text, "'")] = 0;
    }
    if (!text[0])
        strcpy(text, "HDF5 gives no reason");
}

int lf_h5_fail(lf_err *err, const char *fmt, ...)
{
    char why[256];
    va_list ap;

    reason(why);
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, ": %s", why);
    return -1;
}

hid_t lf_h5_access(void)
{
    hid_t p = H5Pcreate(H5P_FILE_ACCESS);

    if (p < 0)
        return -1;
    /* With these bounds HDF5 keeps a checksum over every piece of its own metadata. */
    (void)H5Pset_libver_bounds(p, H5F_LIBVER_V110, H5F_LIBVER_V110);
    (void)H5Pset_fclose_degree(p, H5F_CLOSE_STRONG);
    (void)H5Pset_meta_block_size(p, 1 << 16);
#if H5_VERSION_GE(1, 10, 7)
    /* A file is written under a name that nobody else opens; some parallel file systems know no locks. */
    (void)H5Pset_file_locking(p, 0, 1);
#endif
    return p;
}

static hid_t text_type(void)
{
    hid_t t = H5Tcopy(H5T_C_S1);

    if (t >= 0 && (H5Tset_size(t, H5T_VARIABLE) < 0 || H5Tset_cset(t, H5T_CSET_UTF8) < 0)) {
        H5Tclose(t);
        return -1;
    }
    return t;
}

/* Takes over file and space. */
static int put_attribute(hid_t obj, const char *name, hid_t file, hid_t memory, hid_t space, const void *value,
                         lf_err *err)
{
    hid_t a = H5Acreate2(obj, name, file, space, H5P_DEFAULT, H5P_DEFAULT);
    int rc = a < 0 || H5Awrite(a, memory, value) < 0 ? lf_h5_fail(err, "attribute %s", name) : 0;

    if (a >= 0 && H5Aclose(a) < 0 && !rc)
        rc = lf_h5_fail(err, "attribute %s", name);
    H5Sclose(space);
    H5Tclose(file);
    return rc;
}

int lf_h5_put_text(hid_t obj, const char *name, const char *value, lf_err *err)
{
    hid_t t = text_type();

    return put_attribute(obj, name, t, t, H5Screate(H5S_SCALAR), &value, err);
}

int lf_h5_put_sealed(hid_t obj, const char *name, const char *value, lf_err *err)
{
    hid_t t = H5Tcopy(H5T_C_S1);

    if (t < 0 || H5Tset_size(t, strlen(value) + 1) < 0 || H5Tset_cset(t, H5T_CSET_UTF8) < 0)
        return lf_h5_fail(err, "attribute %s", name);
    return put_attribute(obj, name, t, t, H5Screate(H5S_SCALAR), value, err);
}

int lf_h5_put_i64(hid_t obj, const char *name, int64_t value, lf_err *err)
{
    return put_attribute(obj, name, H5Tcopy(H5T_STD_I64LE), H5T_NATIVE_INT64, H5Screate(H5S_SCALAR), &value, err);
}

int lf_h5_put_i64s(hid_t obj, const char *name, int rows, int cols, const int64_t *values, lf_err *err)
{
    hsize_t dims[2] = { (hsize_t)rows, (hsize_t)cols };

    return put_attribute(obj, name, H5Tcopy(H5T_STD_I64LE), H5T_NATIVE_INT64, H5Screate_simple(2, dims, NULL), values,
                         err);
}

int lf_h5_put_u32(hid_t obj, const char *name, uint32_t value, lf_err *err)
{
    return put_attribute(obj, name, H5Tcopy(H5T_STD_U32LE), H5T_NATIVE_UINT32, H5Screate(H5S_SCALAR), &value, err);
}

int lf_h5_put_f64(hid_t obj, const char *name, double value, lf_err *err)
{
    return put_attribute(obj, name, H5Tcopy(H5T_IEEE_F64LE), H5T_NATIVE_DOUBLE, H5Screate(H5S_SCALAR), &value, err);
}

int lf_h5_put_labels(hid_t dataset, int n, const char *const *labels, lf_err *err)
{
    hsize_t dim = (hsize_t)n;
    hid_t t = text_type();

    return put_attribute(dataset, "DIMENSION_LABELS", t, t, H5Screate_simple(1, &dim, NULL), labels, err);
}

int lf_h5_put_array(hid_t obj, const char *name, lf_elem elem, int64_t n, const void *data, const char *label,
                    lf_err *err)
{
    hsize_t dim = (hsize_t)n;
    hid_t t = lf_h5_type(elem), s = H5Screate_simple(1, &dim, NULL);
    hid_t d = H5Dcreate2(obj, name, t, s, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    int rc = d < 0 || H5Dwrite(d, t, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0 ? lf_h5_fail(err, "%s", name) : 0;

    if (!rc)
        rc = lf_h5_put_labels(d, 1, &label, err);
    if (d >= 0 && H5Dclose(d) < 0 && !rc)
        rc = lf_h5_fail(err, "%s", name);
    H5Sclose(s);
    H5Tclose(t);
    return rc;
}

/* Without times, so that the same rows make the same file. */
static hid_t plain_group(hid_t file, const char *path)
{
    hid_t p = H5Pcreate(H5P_GROUP_CREATE), g = -1;

    if (p >= 0 && H5Pset_obj_track_times(p, 0) >= 0)
        g = H5Gcreate2(file, path, H5P_DEFAULT, p, H5P_DEFAULT);
    if (g >= 0)
        H5Pclose(p);
    return g;
}

int lf_h5_parents(hid_t file, const char *path, lf_err *err)
{
    char *above = lf_strdup(path);
    int rc = 0;

    for (char *p = strchr(above + 1, '/'); p && !rc; p = strchr(p + 1, '/')) {
        *p = 0;
        if (H5Lexists(file, above, H5P_DEFAULT) <= 0) {
            hid_t g = plain_group(file, above);
            rc = g < 0 ? lf_h5_fail(err, "group %s", above) : 0;
            if (g >= 0)
                H5Gclose(g);
        }
        *p = '/';
    }
    free(above);
    return rc;
}

hid_t lf_h5_group(hid_t file, const char *path, lf_err *err)
{
    if (lf_h5_parents(file, path, err))
        return -1;
    hid_t g = plain_group(file, path);
    if (g < 0)
        lf_h5_fail(err, "group %s", path);
    return g;
}

static int64_t attribute_count(hid_t a)
{
    hid_t s = H5Aget_space(a);
    hssize_t n = s < 0 ? -1 : H5Sget_simple_extent_npoints(s);

    if (s >= 0)
        H5Sclose(s);
    return n;
}

static char *read_fixed_text(hid_t a, hid_t type)
{
    size_t n = H5Tget_size(type);

    if (n == 0 || n > TEXT_LIMIT)
        return NULL;
    char *s = lf_alloc(n + 1);
    if (H5Aread(a, type, s) >= 0)
        return s;
    free(s);
    return NULL;
}

int lf_h5_get_sealed(hid_t obj, const char *name, char **value, lf_err *err)
{
    hid_t a = lf_h5_has_attribute(obj, name) ? H5Aopen(obj, name, H5P_DEFAULT) : -1;

    if (a < 0)
        return lf_fail(err, "attribute %s is missing", name);
    hid_t t = H5Aget_type(a);
    *value = NULL;
    if (t >= 0 && H5Tget_class(t) == H5T_STRING && !H5Tis_variable_str(t) && attribute_count(a) == 1)
        *value = read_fixed_text(a, t);
    if (t >= 0)
        H5Tclose(t);
    H5Aclose(a);
    return *value ? 0 : lf_fail(err, "attribute %s is not a readable text of fixed length", name);
}

int lf_h5_get_i64(hid_t obj, const char *name, int64_t *value, lf_err *err)
{
    hid_t a = lf_h5_has_attribute(obj, name) ? H5Aopen(obj, name, H5P_DEFAULT) : -1;

    if (a < 0)
        return lf_fail(err, "attribute %s is missing", name);
    hid_t t = H5Aget_type(a);
    int ok = t >= 0 && H5Tget_class(t) == H5T_INTEGER && attribute_count(a) == 1 &&
             H5Aread(a, H5T_NATIVE_INT64, value) >= 0;
    if (t >= 0)
        H5Tclose(t);
    H5Aclose(a);
    return ok ? 0 : lf_fail(err, "attribute %s is not a readable integer", name);
}

int lf_h5_get_i64s(hid_t obj, const char *name, int most, int cols, int *rows, int64_t *values, lf_err *err)
{
    hid_t a = lf_h5_has_attribute(obj, name) ? H5Aopen(obj, name, H5P_DEFAULT) : -1;
    hsize_t dims[2] = { 0, 0 };

    if (a < 0)
        return lf_fail(err, "attribute %s is missing", name);
    hid_t t = H5Aget_type(a), s = H5Aget_space(a);
    int ok = t >= 0 && s >= 0 && H5Tget_class(t) == H5T_INTEGER && H5Sget_simple_extent_ndims(s) == 2 &&
             H5Sget_simple_extent_dims(s, dims, NULL) == 2 && dims[0] >= 1 && dims[0] <= (hsize_t)most &&
             dims[1] == (hsize_t)cols && H5Aread(a, H5T_NATIVE_INT64, values) >= 0;
    if (s >= 0)
        H5Sclose(s);
    if (t >= 0)
        H5Tclose(t);
    H5Aclose(a);
    *rows = (int)dims[0];
    return ok ? 0 : lf_fail(err, "attribute %s is not a readable array of integers", name);
}

int lf_h5_get_array(hid_t obj, const char *name, lf_elem elem, int64_t n, void *data, lf_err *err)
{
    hid_t d = H5Dopen2(obj, name, H5P_DEFAULT), s = d < 0 ? -1 : H5Dget_space(d), t = lf_h5_type(elem);
    int ok = s >= 0 && H5Sget_simple_extent_ndims(s) == 1 && H5Sget_simple_extent_npoints(s) == n &&
             H5Dread(d, t, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0;

    if (s >= 0)
        H5Sclose(s);
    if (d >= 0)
        H5Dclose(d);
    H5Tclose(t);
    return ok ? 0 : lf_fail(err, "%s does not hold %lld readable element%s", name, (long long)n, lf_s(n));
}

int lf_h5_has_attribute(hid_t obj, const char *name)
{
    return H5Aexists(obj, name) > 0;
}

int lf_h5_has_path(hid_t obj, const char *path)
{
    char *copy = lf_strdup(path);
    int there = 1;

    for (char *p = strchr(copy + 1, '/'); there; p = strchr(p + 1, '/')) {
        if (p)
            *p = 0;
        there = H5Lexists(obj, copy, H5P_DEFAULT) > 0;
        if (!p)
            break;
        *p = '/';
    }
    there = there && H5Oexists_by_name(obj, copy, H5P_DEFAULT) > 0;
    free(copy);
    return there;
}
