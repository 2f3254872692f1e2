#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# NCCL that fails on one rank while it holds the other (tests/p_attach.c): the job ends and says why.
. "${srcdir:-.}/tap.sh"
LONGFILL_PATIENCE=2
export LONGFILL_PATIENCE
began=$(date +%s)
timeout -k 5 60 $mpi -q -n 2 "${LONGFILL%/*}/tests/p_attach" held >"$dir/out" 2>"$dir/err" </dev/null
code=$?
took=$(($(date +%s) - began))
[ $code -eq 1 ] && [ $took -le 30 ] && [ "$(cat "$dir/err")" = "longfill: no communicator ep today" ]
result $? "a rank that fails while NCCL holds the other ends the job in $took seconds, with the reason"
results
