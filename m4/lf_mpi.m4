dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl LF_MPI: MPI 3 for the C compiler that we already have; CC is never replaced by a wrapper.  Flags come from
dnl DIR/bin/mpicc (--with-mpi=DIR), MPI_CFLAGS and MPI_LIBS, the mpicc in PATH (the MPI whose mpirun the user will start),
dnl pkg-config ompi-c, or the compiler itself.  Sets MPI_CFLAGS, MPI_LIBS, MPIRUN, lf_mpi_from.
AC_DEFUN([LF_MPI], [
    AC_ARG_WITH([mpi], [AS_HELP_STRING([--with-mpi=DIR], [MPI installed below DIR (DIR/bin/mpicc)])])
    AC_ARG_VAR([MPI_CFLAGS], [C compiler flags for MPI])
    AC_ARG_VAR([MPI_LIBS], [linker flags for MPI])
    AC_ARG_VAR([MPIRUN], [program that starts MPI jobs in the tests])
    lf_mpi_path=$PATH
    AS_CASE([$with_mpi],
        [no], [AC_MSG_ERROR([longfill cannot be built without MPI])],
        [/*], [AS_IF([test ! -x "$with_mpi/bin/mpicc"], [AC_MSG_ERROR([--with-mpi=$with_mpi: no $with_mpi/bin/mpicc])])
            lf_mpi_path=$with_mpi/bin],
        [''|yes], [],
        [AC_MSG_ERROR([--with-mpi wants an absolute directory, not `$with_mpi'])])
    AC_PATH_PROG([LF_MPICC], [mpicc], [], [$lf_mpi_path])
    AC_PATH_PROGS([MPIRUN], [mpirun mpiexec], [], [$lf_mpi_path])

    AC_MSG_CHECKING([for MPI])
    lf_mpi_from=
    AS_IF([test -n "$MPI_LIBS"], [lf_mpi_from="MPI_CFLAGS, MPI_LIBS"])
    AS_IF([test -z "$lf_mpi_from" && test -n "$LF_MPICC" && "$LF_MPICC" --showme:compile >/dev/null 2>&1],
        [MPI_CFLAGS=`"$LF_MPICC" --showme:compile`
        MPI_LIBS=`"$LF_MPICC" --showme:link`
        lf_mpi_from="$LF_MPICC"])
    AS_IF([test -z "$lf_mpi_from" && test -n "$PKG_CONFIG" && $PKG_CONFIG --exists ompi-c],
        [MPI_CFLAGS=`$PKG_CONFIG --cflags ompi-c`
        MPI_LIBS=`$PKG_CONFIG --libs ompi-c`
        lf_mpi_from="pkg-config ompi-c"])
    AS_IF([test -z "$lf_mpi_from"], [lf_mpi_from="the compiler $CC"])
    LF_TRY_LINK([MPI], [[#include <mpi.h>
#if MPI_VERSION < 3
#error "MPI 3 is needed"
#endif]], [[return MPI_Init(0, 0);]],
        [AC_MSG_RESULT([$lf_mpi_from])],
        [AC_MSG_RESULT([no])
        AC_MSG_ERROR([MPI 3 does not compile and link ($lf_mpi_from: see config.log)
  on Debian or Ubuntu: apt-get install openmpi-bin libopenmpi-dev
  elsewhere:           ./configure --with-mpi=DIR])])
])
