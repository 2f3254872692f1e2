# SPDX-License-Identifier: Apache-2.0
# Shared by quickstart and check: install what is missing, configure and build.  Sourced by bash; expects `set -eu`.
#
# lf_install    Debian and Ubuntu: apt-get what is missing, as root or through sudo; else print the one command, stop
# lf_build      autoreconf if needed, configure once, make; sets lf_source and lf_build
#
# LONGFILL_BUILD       where to build (default: build/ in the tree, or below TMPDIR if the tree cannot be written)
# LONGFILL_CONFIGURE   more arguments for configure, read when the build directory is new
# LONGFILL_NO_INSTALL  set: install nothing; configure says what it lacks

# The only list of packages: to build, then to test.
lf_packages="autoconf automake pkg-config gcc libc6-dev make openmpi-bin libopenmpi-dev libhdf5-dev libjansson-dev
    libpcre2-dev libblis-openmp-dev python3 python3-numpy python3-h5py"

lf_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

lf_say() {
    printf '== %s\n' "$*" >&2
}

lf_stop() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

lf_missing() {
    local name state
    for name in $lf_packages; do
        state=$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) || true
        [ "$state" = installed ] || printf ' %s' "$name"
    done
}

# Package servers are sometimes busy: three tries, a little apart.
lf_apt() {
    local try
    for try in 1 2 3; do
        if "$@" </dev/null >&2; then
            return 0
        fi
        [ "$try" = 3 ] || sleep $((try * 10))
    done
    return 1
}

lf_install() {
    local missing as
    if [ -n "${LONGFILL_NO_INSTALL:-}" ] || ! command -v dpkg-query >/dev/null; then
        return 0
    fi
    missing=$(lf_missing)
    if [ -z "$missing" ]; then
        return 0
    fi
    if [ "$(id -u)" = 0 ]; then
        as="env"
    elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        as="sudo env"
    else
        lf_stop "some packages are missing; have them installed:
    sudo apt-get install$missing
or set LONGFILL_NO_INSTALL=1 to build with what is here"
    fi
    lf_say "installing$missing"
    as="$as DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120"
    lf_apt $as update || lf_say "apt-get update failed: trying with the lists that are here"
    lf_apt $as install -y --no-install-recommends $missing || lf_stop "apt-get could not install$missing"
}

lf_jobs() {
    local n
    n=$(nproc 2>/dev/null || echo 2)
    echo $((n > 16 ? 16 : n))
}

# Where to build, and from which source: a tree that cannot be written and has no configure is copied first.
lf_place() {
    lf_source=$lf_root
    lf_build=${LONGFILL_BUILD:-}
    if [ -z "$lf_build" ]; then
        lf_build=$lf_root/build
        [ -w "$lf_root" ] || lf_build=${TMPDIR:-/tmp}/longfill-build-$(id -u)
    fi
    mkdir -p "$lf_build"
    lf_build=$(cd "$lf_build" && pwd -P)
    if [ ! -w "$lf_root" ] && [ ! -f "$lf_root/configure" ]; then
        lf_source=$lf_build/source
        mkdir -p "$lf_source"
        (cd "$lf_root" && tar cf - --exclude=./build --exclude=./.git .) | (cd "$lf_source" && tar xf -)
        chmod -R u+w "$lf_source"
    fi
    if [ -f "$lf_source/config.status" ]; then
        lf_stop "$lf_source was configured in place: make -C $lf_source distclean, then again"
    fi
}

lf_build() {
    lf_place
    if [ ! -f "$lf_source/configure" ]; then
        lf_say "autoreconf"
        (cd "$lf_source" && autoreconf -fi >&2) || lf_stop "autoreconf failed"
    fi
    # A build directory of another checkout (a copied tree) is of no use.
    if [ -f "$lf_build/config.status" ] && [ "$(cat "$lf_build/.source" 2>/dev/null)" != "$lf_source" ]; then
        lf_say "$lf_build belongs to another tree: made new"
        find "$lf_build" -mindepth 1 -maxdepth 1 ! -name source ! -name 'quickstart-*' -exec rm -rf {} +
    fi
    if [ ! -f "$lf_build/config.status" ]; then
        lf_say "configure in $lf_build"
        (cd "$lf_build" && "$lf_source/configure" -q ${LONGFILL_CONFIGURE:-} >&2) || lf_stop "configure failed"
        printf '%s\n' "$lf_source" >"$lf_build/.source"
    fi
    lf_say "make"
    make -C "$lf_build" -j"$(lf_jobs)" --no-print-directory "$@" >&2 || lf_stop "make failed"
}
