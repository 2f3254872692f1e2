dnl SPDX-License-Identifier: Apache-2.0
dnl
dnl LF_PACKAGE(name, VAR, Debian package, pkg-config modules, libs, header, prologue, body)
dnl
dnl A required library.  Taken from, in this order: --with-<name>=DIR (DIR/include/header, DIR/lib), the variables
dnl <VAR>_CFLAGS and <VAR>_LIBS, the first pkg-config module that exists, the compiler's own search path.  `libs` are the
dnl -l flags for the first and the last.  The program <prologue>, <body> must then link: if not, configure stops and
dnl says what to install.  Sets <VAR>_CFLAGS, <VAR>_LIBS and lf_<name>_from.
AC_DEFUN([LF_PACKAGE], [
    AC_ARG_WITH([$1], [AS_HELP_STRING([--with-$1=DIR], [$1 installed below DIR])])
    AC_ARG_VAR([$2_CFLAGS], [C compiler flags for $1])
    AC_ARG_VAR([$2_LIBS], [linker flags for $1])
    AC_MSG_CHECKING([for $1])
    AS_CASE([$with_$1],
        [no], [AC_MSG_ERROR([longfill cannot be built without $1])],
        [/*], [AS_IF([test ! -f "$with_$1/include/$6"],
                [AC_MSG_ERROR([--with-$1=$with_$1: no file $with_$1/include/$6])])
            lf_$1_lib=$with_$1/lib
            AS_IF([test ! -d "$lf_$1_lib"], [lf_$1_lib=$with_$1/lib64])
            $2_CFLAGS="-I$with_$1/include"
            $2_LIBS="-L$lf_$1_lib -Wl,-rpath,$lf_$1_lib $5"
            lf_$1_from="$with_$1"],
        [''|yes], [LF_PACKAGE_LOOK([$1], [$2], [$4], [$5])],
        [AC_MSG_ERROR([--with-$1 wants an absolute directory, not `$with_$1'])])
    LF_TRY_LINK([$2], [$7], [$8],
        [AC_MSG_RESULT([$lf_$1_from])],
        [AC_MSG_RESULT([no])
        AC_MSG_ERROR([$1 does not compile and link ($lf_$1_from: see config.log)
  on Debian or Ubuntu: apt-get install $3
  elsewhere:           ./configure --with-$1=DIR])])
])

AC_DEFUN([LF_PACKAGE_LOOK], [
    AS_IF([test -n "$$2_LIBS"], [lf_$1_from="${lf_$1_from:-$2_CFLAGS, $2_LIBS}"], [lf_$1_from=])
    for lf_module in $3; do
        AS_IF([test -z "$lf_$1_from" && test -n "$PKG_CONFIG" && $PKG_CONFIG --exists "$lf_module"],
            [$2_CFLAGS=`$PKG_CONFIG --cflags "$lf_module"`
            $2_LIBS=`$PKG_CONFIG --libs "$lf_module"`
            lf_$1_from="pkg-config $lf_module `$PKG_CONFIG --modversion "$lf_module"`"])
    done
    AS_IF([test -z "$lf_$1_from"], [$2_LIBS="$4" lf_$1_from="the compiler's search path"])
])

dnl LF_TRY_LINK(VAR, prologue, body, if it links, if not): with <VAR>_CFLAGS and <VAR>_LIBS
AC_DEFUN([LF_TRY_LINK], [
    lf_save_CPPFLAGS=$CPPFLAGS lf_save_LIBS=$LIBS
    CPPFLAGS="$CPPFLAGS $$1_CFLAGS" LIBS="$$1_LIBS $LIBS"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([$2], [$3])], [lf_links=yes], [lf_links=no])
    CPPFLAGS=$lf_save_CPPFLAGS LIBS=$lf_save_LIBS
    AS_IF([test $lf_links = yes], [$4], [$5])
])
