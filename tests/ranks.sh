#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ranks.sh: programs for several ranks with other numbers of them than `make check` gives p_* and p4_*, and grids with
# the kernels of BLIS for processors without AVX-512 (family 3), whatever this one is.
set -u
tests=${LONGFILL%/*}/tests
count=0
failed=0

other=
[ "$(uname -m)" != x86_64 ] || other="2 p_grid BLIS_ARCH_TYPE=3"
for run in "3 p_bytes" "4 p_bytes" "1 p_coll" "3 p_coll" "4 p_coll" "1 p4_topo" "2 p4_topo" "8 p4_topo" \
    "1 p_grid" "3 p_grid" "4 p_grid" "8 p_grid" ${other:+"$other"}; do
    count=$((count + 1))
    ranks=${run%% *} run=${run#* }
    program=${run%% *} setting=${run#"$program"}
    out=$(env $setting $MPI_RUN -n "$ranks" "$tests/$program" 2>&1)
    status=$?
    passed=$(printf '%s\n' "$out" | grep -c '^ok ')
    plan=$(printf '%s\n' "$out" | sed -n 's/^1\.\.//p')
    if [ $status -eq 0 ] && [ "$passed" -gt 0 ] && [ "$passed" = "$plan" ]; then
        echo "ok $count - $run with $ranks ranks: $passed checks"
    else
        failed=1
        echo "not ok $count - $run with $ranks ranks"
        printf '%s\n' "$out" | grep -v '^ok ' | sed 's/^/# /'
    fi
done
echo "1..$count"
exit $failed
