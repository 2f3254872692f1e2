#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# README.md: its sh and python examples run as they stand, in their order, and give what the text says.
set -u
readme=${srcdir:-.}/../README.md
if [ -z "${PYTHON:-}" ]; then
    echo "1..0 # SKIP no python3 with numpy and h5py"
    exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
count=0 failed=0

check() {                                    # check WHAT COMMAND...
    what=$1
    count=$((count + 1))
    shift
    if "$@" >"$dir/said" 2>&1; then
        echo "ok $count - $what"
    else
        failed=$((failed + 1))
        echo "not ok $count - $what"
        sed 's/^/# /' "$dir/said"
    fi
}

block() {                                    # block LANGUAGE: all of them, one after another
    awk -v begin="\`\`\`$1" '$0 == begin { on = 1; next } $0 == "```" { on = 0 } on' "$readme"
}

files() {                                    # files N PATTERN...
    n=$1
    shift
    [ $# -eq "$n" ] && [ -e "$1" ]
}

# The reader's tree, mpirun and python3; mktemp gives the directory that is looked at afterwards.
mkdir "$dir/tree" "$dir/bin" "$dir/job"
ln -s "${LONGFILL%/*}" "$dir/tree/build"
ln -s "$(cd "${srcdir:-.}/../data" && pwd)" "$dir/tree/data"
real=$(command -v "${MPIRUN:-mpirun}")
printf '#!/bin/sh\nMPIRUN="%s" exec %s "$@"\n' "$real" "$MPI_RUN" >"$dir/bin/mpirun"
printf '#!/bin/sh\nexec "%s" "$@"\n' "$PYTHON" >"$dir/bin/python3"
printf '#!/bin/sh\necho "%s"\n' "$dir/job" >"$dir/bin/mktemp"
chmod +x "$dir"/bin/*
{ echo 'set -e'; echo "PATH=$dir/bin:\$PATH"; block sh; } >"$dir/job.sh"
block python >"$dir/look.py"

check "the examples for the shell" sh -c "cd '$dir/tree' && OMP_NUM_THREADS=1 sh '$dir/job.sh' >'$dir/out' \
    2>'$dir/err' ||
    { cat '$dir/out' '$dir/err'; exit 1; }"
cd "$dir/job" || exit 1
check "a file for each prompt" files 5 out/kv/*.h5
check "named as the text says" grep -q "$(basename out/kv/batch_1~*.h5)" "$readme"
check "run again: all skipped" grep -q '^skipped_requests  *5$' "$dir/out"
check "two reports" files 2 out/report*.json
check "verify finds nothing wrong" test "$(grep -c '^out/kv/.*: ok, ' "$dir/out")" = 5
check "parts of four ranks" files 4 out4/kv/text-file.parts/r000[0-3].h5
check "two shards in one directory" files 5 half/kv/*.h5
check "plan: KV bytes a token" grep -q '^  fp8  *3.4 GiB  3514.2 bytes' "$dir/out"
check "plan: a recommendation" grep -q '^recommended: ' "$dir/out"
check "bench: the improvement" grep -q 'TTFT less tok/s more' "$dir/out"
check "the example in Python" sh -c "'$PYTHON' '$dir/look.py' >'$dir/look'"
check "window and compressed rows of 150 tokens" grep -q '^002 c128 window (128, 512) compressed (1, 512)' "$dir/look"

# The decoding of the example against the program's own: exact and released numerics of one prompt are near.
{ sed '/^with /,$d' "$dir/look.py"
  cat <<'END'
a, b = (h5py.File(d + "/kv/id-file.h5")["layers/000"] for d in ("out", "exact"))
x, y = rows(a, "swa"), rows(b, "swa")
assert x.shape == y.shape and np.abs(x - y).max() < 0.07 * np.abs(y).max(), np.abs(x - y).max() / np.abs(y).max()
END
} >"$dir/near.py"
check "rows of released and exact numerics are near" "$PYTHON" "$dir/near.py"

echo "1..$count"
[ $failed -eq 0 ]
