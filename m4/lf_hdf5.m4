dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl LF_HDF5: the serial HDF5 library, 1.10.3 or later (H5Dwrite_chunk), with hdf5_hl (dimension labels).  Not through
dnl h5cc, which on many systems is the wrapper of another build.  Sets HDF5_CFLAGS, HDF5_LIBS, lf_hdf5_from.
AC_DEFUN([LF_HDF5], [
    LF_PACKAGE([hdf5], [HDF5], [libhdf5-dev], [hdf5-serial hdf5], [-lhdf5], [hdf5.h],
        [[#include <hdf5.h>
#ifdef H5_HAVE_PARALLEL
#error "this is an MPI build of HDF5: longfill writes through the serial library"
#endif
#if !H5_VERSION_GE(1, 10, 3)
#error "HDF5 1.10.3 or later is needed"
#endif]], [[return H5Dwrite_chunk(0, 0, 0, 0, 0, 0) + H5open();]])
    HDF5_LIBS="-lhdf5_hl $HDF5_LIBS"
    LF_TRY_LINK([HDF5], [[#include <hdf5.h>
#include <hdf5_hl.h>]], [[return H5DSset_label(0, 0, "row");]], [],
        [AC_MSG_ERROR([the HDF5 found ($lf_hdf5_from) has no usable hdf5_hl library
  on Debian or Ubuntu: apt-get install libhdf5-dev
  elsewhere:           ./configure --with-hdf5=DIR])])
])
