dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl LF_PCRE2: regular expressions of the tokenizer, the 8-bit library.
AC_DEFUN([LF_PCRE2], [
    LF_PACKAGE([pcre2], [PCRE2], [libpcre2-dev], [libpcre2-8], [-lpcre2-8], [pcre2.h],
        [[#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>]], [[pcre2_code_free(0);]])
])
