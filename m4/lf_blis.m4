dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl LF_BLIS: BLIS, for the CPU backend's products; not any BLAS, because a row's bits must not depend on the other rows.
dnl From --with-blis=DIR, BLIS_CFLAGS and BLIS_LIBS, the OpenMP variant of Debian (which has no .pc file and lives in
dnl a directory of its own), pkg-config blis, the compiler's search path; <blis.h> is found as such.  --with-blis-static
dnl links libblis.a, for machines that lack the library.  Sets BLIS_CFLAGS, BLIS_LIBS, lf_blis_from.
AC_DEFUN([LF_BLIS], [
    AC_ARG_WITH([blis-static], [AS_HELP_STRING([--with-blis-static], [link BLIS statically])])
    lf_multiarch=`$CC -print-multiarch 2>/dev/null`
    lf_blis_libdir= lf_blis_include=
    AS_CASE([$with_blis],
        [/*], [AS_IF([test ! -f "$with_blis/include/blis/blis.h" && test ! -f "$with_blis/include/blis.h"],
                [AC_MSG_ERROR([--with-blis=$with_blis: no blis.h in $with_blis/include or its blis/])])
            lf_blis_libdir=$with_blis/lib
            lf_blis_include="-isystem $with_blis/include/blis -isystem $with_blis/include"],
        [''|yes], [AS_IF([test -z "$BLIS_LIBS" && test -f "/usr/include/$lf_multiarch/blis-openmp/blis.h"],
            [lf_blis_libdir=/usr/lib/$lf_multiarch/blis-openmp
            lf_blis_include="-isystem /usr/include/$lf_multiarch/blis-openmp"])])
    AS_IF([test -n "$lf_blis_libdir"],
        [lf_blis_from=$lf_blis_libdir with_blis=
        BLIS_CFLAGS=$lf_blis_include
        BLIS_LIBS="-L$lf_blis_libdir -Wl,-rpath,$lf_blis_libdir -lblis"])
    AS_IF([test "x$with_blis_static" = xyes], [LF_BLIS_STATIC])
    LF_PACKAGE([blis], [BLIS], [libblis-openmp-dev], [blis], [-lblis], [blis.h],
        [[#include <blis.h>]], [[return (int)bli_info_get_int_type_size();]])
])

AC_DEFUN([LF_BLIS_STATIC], [
    lf_blis_a=$lf_blis_libdir/libblis.a
    AS_IF([test ! -f "$lf_blis_a"], [lf_blis_a=`$CC -print-file-name=libblis.a`])
    AS_IF([test ! -f "$lf_blis_a"],
        [AC_MSG_ERROR([--with-blis-static: no libblis.a
  on Debian or Ubuntu: apt-get install libblis-openmp-dev
  elsewhere:           ./configure --with-blis-static --with-blis=DIR])])
    BLIS_LIBS="$lf_blis_a $OPENMP_CFLAGS -lpthread -lm"
    lf_blis_from=$lf_blis_a
])
