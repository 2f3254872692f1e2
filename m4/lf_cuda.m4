dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl LF_CUDA: nvcc, the CUDA runtime and cuBLASLt.  --with-cuda: an error if missing; --with-cuda=DIR: there
dnl (DIR/bin/nvcc); --without-cuda: no GPU backend; default: if found.  The runtime is linked statically; cuBLASLt, a
dnl shared library, is looked for at run time where it was found here.  Sets NVCC, NVCCFLAGS, CUDA_LIBS, lf_have_cuda,
dnl lf_cuda_from and the macro LF_HAVE_CUDA.
AC_DEFUN([LF_CUDA], [
    AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@], [GPU backend, with CUDA below DIR (default: if found)])])
    AC_ARG_VAR([NVCC], [CUDA compiler])
    AC_ARG_VAR([NVCCFLAGS], [CUDA compiler flags])
    AC_ARG_VAR([CUDA_LIBS], [linker flags for the CUDA runtime and cuBLASLt])
    lf_have_cuda=no lf_cuda_from=no
    AS_CASE([$with_cuda],
        [no], [NVCC=],
        [/*], [NVCC=$with_cuda/bin/nvcc],
        [''|yes], [AC_PATH_PROG([NVCC], [nvcc], [],
            [$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin])],
        [AC_MSG_ERROR([--with-cuda wants an absolute directory, not `$with_cuda'])])
    : "${NVCCFLAGS=-O3 -gencode=arch=compute_90a,code=sm_90a}"
    AS_IF([test -n "$NVCC"], [LF_CUDA_TRY])
    AS_IF([test $lf_have_cuda = yes], [AC_DEFINE([LF_HAVE_CUDA], [1], [Define to 1 if the CUDA backend is built.])],
        [test -n "$with_cuda" && test "x$with_cuda" != xno],
        [AC_MSG_ERROR([--with-cuda: no nvcc that compiles for sm_90a and links (CUDA 12 or later; see config.log)
  elsewhere than in PATH: ./configure --with-cuda=DIR
  without a GPU backend:  ./configure --without-cuda])])
])

AC_DEFUN([LF_CUDA_TRY], [
    AC_MSG_CHECKING([whether $NVCC compiles and links])
    lf_cuda_root=`AS_DIRNAME(["$NVCC"])`/..
    AS_IF([test -z "$CUDA_LIBS"], [
        for lf_dir in lib64 lib targets/x86_64-linux/lib; do
            AS_IF([test -z "$CUDA_LIBS" && test -f "$lf_cuda_root/$lf_dir/libcudart_static.a"],
                [lf_cuda_dir=`cd "$lf_cuda_root/$lf_dir" && pwd`
                CUDA_LIBS="-L$lf_cuda_dir -Wl,-rpath,$lf_cuda_dir"])
        done
        CUDA_LIBS="$CUDA_LIBS -lcublasLt -lcudart_static -lstdc++ -ldl -lrt -lpthread"])
    cat >conftest.cu <<_LF
#include <cublasLt.h>
#include <cuda_runtime.h>
__global__ void f(int *p) { *p = 1; }
int main() { f<<<1, 1>>>(0); return cublasLtGetVersion() != 0 && cudaDeviceSynchronize() != cudaSuccess; }
_LF
    AS_IF([AC_RUN_LOG([$NVCC $NVCCFLAGS -c -o conftest.o conftest.cu >&2 &&
            $CC $CFLAGS $LDFLAGS -o conftest conftest.o $CUDA_LIBS >&2])],
        [lf_have_cuda=yes lf_cuda_from="$NVCC $NVCCFLAGS"], [CUDA_LIBS=])
    rm -f conftest.cu conftest.o conftest
    AC_MSG_RESULT([$lf_have_cuda])
])
