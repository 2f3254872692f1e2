#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `longfill verify --deep`: the model gives the rows that a file has; rows that were changed, checksums and all, are
# found.
. "${srcdir:-.}/tap.sh"
model=$data/tiny

deep() {                                     # deep MODEL ARGUMENT...
    m=$1
    shift
    "$longfill" verify --deep -m "$m" "$@" >"$dir/out" 2>"$dir/err"
    code=$?
}

awk 'BEGIN { print "{\"custom_id\": \"a\", \"token_ids\": [7]}"
    printf "{\"custom_id\": \"b\", \"token_ids\": [5"
    for (i = 1; i < 300; i++) printf ", %d", i * 7919 % 512
    print "]}" }' >"$dir/prompts"
for run in "1 one --numerics exact" "1 fp8 --logits all" "2 two --numerics exact --pcp 2 --logprobs"; do
    set -- $run
    ranks=$1 out=$dir/$2
    shift 2
    $mpi -q -n "$ranks" "$longfill" prefill -m "$model" -i "$dir/prompts" -o "$out" "$@" \
        >"$dir/out" 2>"$dir/err" </dev/null
    code=$?
    result $code "files of $run"
    deep "$model" "$out/kv/a.h5" "$out/kv/b.h5"
    [ $code -eq 0 ] && [ "$(grep -c "run again: 0 of [1-9][0-9]* rows differ" "$dir/out")" -eq 2 ] &&
        grep -q "; 1 token run again" "$dir/out" && grep -q "; 300 tokens run again" "$dir/out"
    result $? "the whole prompts again, bit for bit"
    deep "$model" "$out/kv/b.h5" -l 150
    [ $code -eq 0 ] && grep -q "150 tokens run again: 0 of [1-9][0-9]* rows differ" "$dir/out"
    result $? "150 tokens of 300"
done

if [ -n "${PYTHON:-}" ]; then
    change() {                               # change DATASET ROW: one value, and the checksum with it
        cp "$dir/one/kv/b.h5" "$dir/changed.h5"
        PYTHONPATH=${srcdir:-.} "$PYTHON" -B - "$dir/changed.h5" "$1" "$2" <<'END' 2>"$dir/err"
import sys
import h5py
import kvfile_h5py
with h5py.File(sys.argv[1], "r+") as f:
    d = f[sys.argv[2]]
    d[int(sys.argv[3]), 0] += 1
    d.attrs.modify("crc32c", kvfile_h5py.crc32c(d[()].tobytes()))
END
    }
    change layers/001/compressed 20
    "$longfill" verify "$dir/changed.h5" >"$dir/out" 2>"$dir/err"
    code=$?
    result $code "a changed row with a checksum of its own passes without --deep"
    deep "$model" "$dir/changed.h5" -l 128
    [ $code -eq 1 ] && grep -q "FAILED: /layers/001/compressed, rows" "$dir/out"
    result $? "and is found and named with it"
    deep "$model" "$dir/changed.h5" -l 64
    [ $code -eq 0 ]
    result $? "unless it lies behind the tokens that are run"
    change layers/002/state/main/open_gate 3
    deep "$model" "$dir/changed.h5"
    [ $code -eq 1 ] && grep -q "FAILED: /layers/002/state/main/open_gate" "$dir/out"
    result $? "changed state is found when the whole prompt is run"
fi

"$longfill" synth --preset nano --seed 9 "$dir/other" >"$dir/out" 2>"$dir/err"
deep "$dir/other" "$dir/one/kv/a.h5"
[ $code -eq 1 ] && grep -q "FAILED: it is of another model" "$dir/out"
result $? "another model is refused"
"$longfill" verify --deep "$dir/one/kv/a.h5" >"$dir/out" 2>"$dir/err"
code=$?
[ $code -eq 2 ] && grep -q -- "--model" "$dir/err" && [ ! -s "$dir/out" ]
result $? "without a model it is refused"
deep "$model" "$dir/none.h5"
[ $code -eq 1 ] && grep -q "FAILED: cannot open" "$dir/out"
result $? "a file that is not there"

results
