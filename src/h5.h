/* SPDX-License-Identifier: Apache-2.0
 *
 * h5: what longfill needs of HDF5, with errors as lf_err.  Floor 5.  Serial library, 1.10.3 or newer; one thread.
 *
 * HDF5 prints nothing: its error stack is silenced, and the innermost message (the system's text where there is one) is
 * folded into err.  Identifiers returned here are closed with the matching H5*close.
 */
#ifndef LF_H5_H
#define LF_H5_H

#include "base.h"

#include <hdf5.h>

/* Element types of the KV file, all little-endian. */
typedef enum lf_elem { LF_ELEM_U8, LF_ELEM_U32, LF_ELEM_I32, LF_ELEM_U64, LF_ELEM_F32, LF_ELEM_BF16 } lf_elem;

size_t lf_elem_bytes(lf_elem e);
/* A new datatype; bf16 is an HDF5 float of 1 sign, 8 exponent and 7 mantissa bits. */
hid_t lf_h5_type(lf_elem e);

/* Silence HDF5 and leave closing to us.  Called by whatever opens files; may be called again. */
void lf_h5_setup(void);

/* "<text>: <HDF5's innermost message>"; to be called right after the HDF5 call that failed.  Returns -1. */
int lf_h5_fail(lf_err *err, const char *fmt, ...) LF_PRINTF(2, 3);

/* File access: checksummed metadata (format of 1.10), no file locking. */
hid_t lf_h5_access(void);

/* Scalar attributes of an object.  A text is UTF-8 of variable length, which is what Python shows as str; HDF5 keeps
 * such texts outside its checksums and crashes on damaged ones, so that longfill itself reads only sealed texts: of
 * fixed length, inside the checksummed object header. */
int lf_h5_put_text(hid_t obj, const char *name, const char *value, lf_err *err);
int lf_h5_put_sealed(hid_t obj, const char *name, const char *value, lf_err *err);
int lf_h5_put_i64(hid_t obj, const char *name, int64_t value, lf_err *err);
int lf_h5_put_i64s(hid_t obj, const char *name, int rows, int cols, const int64_t *values, lf_err *err);
int lf_h5_put_u32(hid_t obj, const char *name, uint32_t value, lf_err *err);
int lf_h5_put_f64(hid_t obj, const char *name, double value, lf_err *err);
/* The dimension labels that H5DSget_label and h5py's dims[i].label read. */
int lf_h5_put_labels(hid_t dataset, int n, const char *const *labels, lf_err *err);
/* A one-dimensional dataset of n elements. */
int lf_h5_put_array(hid_t obj, const char *name, lf_elem elem, int64_t n, const void *data, const char *label,
                    lf_err *err);

/* Missing or of another class: an error that names the attribute.  *value is owned by the caller; at most 16 MiB. */
int lf_h5_get_sealed(hid_t obj, const char *name, char **value, lf_err *err);
int lf_h5_get_i64(hid_t obj, const char *name, int64_t *value, lf_err *err);
/* An array [*rows <= most, cols]. */
int lf_h5_get_i64s(hid_t obj, const char *name, int most, int cols, int *rows, int64_t *values, lf_err *err);
int lf_h5_has_attribute(hid_t obj, const char *name);
/* The whole one-dimensional dataset, which must have n elements. */
int lf_h5_get_array(hid_t obj, const char *name, lf_elem elem, int64_t n, void *data, lf_err *err);
/* A group with the missing ones above it; only those above. */
hid_t lf_h5_group(hid_t file, const char *path, lf_err *err);
int lf_h5_parents(hid_t file, const char *path, lf_err *err);
/* 1 when every link of the path (relative to obj) is there. */
int lf_h5_has_path(hid_t obj, const char *path);

#endif
