dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl LF_JANSSON: JSON with 64-bit integers and error positions, 2.11 or later (json_error_code).
AC_DEFUN([LF_JANSSON], [
    LF_PACKAGE([jansson], [JANSSON], [libjansson-dev], [jansson], [-ljansson], [jansson.h],
        [[#include <jansson.h>
#if JANSSON_VERSION_HEX < 0x020b00
#error "jansson 2.11 or later is needed"
#endif]], [[return json_loads("{}", JSON_REJECT_DUPLICATES, 0) == 0;]])
])
