dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl LF_NCCL: collectives between GPUs.  --with-nccl: an error if missing; --with-nccl=DIR: there; default: if CUDA is used
dnl and NCCL is found.  Needs LF_CUDA.  Sets NCCL_CFLAGS, NCCL_LIBS, lf_have_nccl, lf_nccl_from and LF_HAVE_NCCL.
AC_DEFUN([LF_NCCL], [
    AC_ARG_WITH([nccl], [AS_HELP_STRING([--with-nccl@<:@=DIR@:>@], [NCCL below DIR (default: if found)])])
    AC_ARG_VAR([NCCL_CFLAGS], [compiler flags for NCCL])
    AC_ARG_VAR([NCCL_LIBS], [linker flags for NCCL])
    lf_have_nccl=no lf_nccl_from=no
    AS_CASE([$with_nccl],
        [/*], [NCCL_CFLAGS="-I$with_nccl/include" NCCL_LIBS="-L$with_nccl/lib -Wl,-rpath,$with_nccl/lib -lnccl"],
        [''|yes], [: "${NCCL_LIBS=-lnccl}"],
        [no], [],
        [AC_MSG_ERROR([--with-nccl wants an absolute directory, not `$with_nccl'])])
    AS_IF([test $lf_have_cuda = yes && test "x$with_nccl" != xno], [LF_NCCL_TRY])
    AS_IF([test $lf_have_nccl = yes], [AC_DEFINE([LF_HAVE_NCCL], [1], [Define to 1 if NCCL is used.])],
        [NCCL_CFLAGS= NCCL_LIBS=
        AS_IF([test -n "$with_nccl" && test "x$with_nccl" != xno],
            [AC_MSG_ERROR([--with-nccl: NCCL does not compile and link, or CUDA is off (see config.log)
  on NVIDIA's Debian and Ubuntu repositories: apt-get install libnccl-dev
  elsewhere: ./configure --with-nccl=DIR])])])
])

AC_DEFUN([LF_NCCL_TRY], [
    AC_MSG_CHECKING([for NCCL])
    lf_cuda_dir=`AS_DIRNAME(["$NVCC"])`/..
    lf_cuda_save=$CPPFLAGS
    CPPFLAGS="$CPPFLAGS -I$lf_cuda_dir/include"
    lf_nccl_libs=$NCCL_LIBS NCCL_LIBS="$NCCL_LIBS $CUDA_LIBS"
    LF_TRY_LINK([NCCL], [[#include <nccl.h>]], [[int v; return ncclGetVersion(&v);]],
        [lf_have_nccl=yes lf_nccl_from="$lf_nccl_libs"], [])
    NCCL_LIBS=$lf_nccl_libs CPPFLAGS=$lf_cuda_save
    AC_MSG_RESULT([$lf_have_nccl])
])
