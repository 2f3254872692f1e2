dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl LF_PYTHON: a python3 that has numpy and h5py, for tests only.  Sets PYTHON, empty if there is none.
AC_DEFUN([LF_PYTHON], [
    AC_ARG_VAR([PYTHON], [python3 with numpy and h5py, for the tests])
    AC_CACHE_CHECK([for a python3 with numpy and h5py], [ac_cv_path_PYTHON],
        [AC_PATH_PROGS_FEATURE_CHECK([PYTHON], [python3],
            [AS_IF(["$ac_path_PYTHON" -c 'import h5py, numpy' 2>/dev/null],
                [ac_cv_path_PYTHON=$ac_path_PYTHON ac_path_PYTHON_found=:])],
            [ac_cv_path_PYTHON=], [$PATH:/usr/bin])])
    PYTHON=$ac_cv_path_PYTHON
])
