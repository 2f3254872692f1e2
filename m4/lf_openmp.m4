dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl LF_OPENMP: the CPU backend's threads.  Sets OPENMP_CFLAGS, used for compiling and linking.
AC_DEFUN([LF_OPENMP], [
    AC_OPENMP
    AS_IF([test "x$enable_openmp" = xno || test "x$ac_cv_prog_c_openmp" = xunsupported],
        [AC_MSG_ERROR([longfill needs a C compiler with OpenMP
  on Debian or Ubuntu: apt-get install gcc
  elsewhere:           ./configure CC=gcc])])
])
