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
    deep "$model" "$out/kv/b.h5" -l 1
    case $* in
    *all*) [ $code -eq 0 ] && grep -q "1 token run again: 0 of 1 rows differ" "$dir/out" ;;
    *) [ $code -eq 4 ] && grep -q "CANNOT TELL: .*nothing was compared, as 1 token" "$dir/out" ;;
    esac
    result $? "a token of 300, which completes no row, but has logits"
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
    [ $code -eq 0 ] && grep -q "ok, .*; its attributes are not checked" "$dir/out"
    result $? "a changed row with a checksum of its own passes without --deep, and the line tells what is missing"
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

# ---- merge mode
for mode in gather merge; do
    $mpi -q -n 2 "$longfill" prefill -q -m "$model" -i "$dir/prompts" -o "$dir/$mode" --pcp 2 --pcp-attention $mode \
        >"$dir/out" 2>"$dir/err" </dev/null
    code=$?
    [ $code -eq 0 ] && "$longfill" info "$dir/$mode/kv/b.h5" >"$dir/out" 2>"$dir/err" &&
        grep -q "^pcp_attention  *$mode\$" "$dir/out" &&
        grep -q "^device  *cpu$" "$dir/out" && grep -q "^tp  *1$" "$dir/out"
    result $? "a file of $mode mode says so"
done
$mpi -q -n 1 "$longfill" prefill -q -m "$model" -i "$dir/prompts" -o "$dir/alone" --pcp-attention merge \
    >"$dir/out" 2>"$dir/err" </dev/null
"$longfill" info --json "$dir/alone/kv/b.h5" >"$dir/out" 2>"$dir/err" && grep -q '"pcp_attention": "gather"' "$dir/out"
result $? "one rank has nothing to merge"
$mpi -q -n 2 "$longfill" prefill -m "$model" -i "$dir/prompts" -o "$dir/merge" --pcp 2 --pcp-attention gather \
    >"$dir/out" 2>"$dir/err" </dev/null
code=$?
[ $code -eq 0 ] && grep -q "^skipped_requests  *2\$" "$dir/out"
result $? "and files of either mode are done for the other"

# A head as released, and index keys of 4 bits: here the rounding of merge mode does grow past 5 %.
"$longfill" synth --preset mini --seed 1 --set num_hidden_layers=4 "$dir/mini" >"$dir/out" 2>"$dir/err"
$mpi -q -n 2 "$longfill" prefill -q -m "$dir/mini" -i "$dir/prompts" -o "$dir/sound" --pcp 2 --pcp-attention merge \
    >"$dir/out" 2>"$dir/err" </dev/null
deep "$dir/mini" "$dir/sound/kv/b.h5"
[ $code -eq 4 ] || [ $code -eq 0 ]
result $? "a sound file of merge mode is not called wrong: exit $code"

if [ -n "${PYTHON:-}" ]; then
    cat >"$dir/remake.py" <<'END'
"""remake.py FROM TO MADE [DATASET CODE]: a copy whose identity says gather, merge, gather and that a GPU or two tp ranks
made it (cuda, tp), or (none) nothing, with row 20, or the last, of the dataset all CODE; checksums are those of what is
there then."""
import json, os, shutil, sys
import h5py, numpy
import kvfile_h5py


def remake(path, made, dataset, code):
    with h5py.File(path, "r+") as f:
        j = json.loads(f.attrs["identity"])
        for key in "pcp_attention", "device", "tp":
            del j[key]
        if made != "none":
            j.update(pcp_attention="merge" if made == "merge" else "gather", device="cuda" if made == "cuda" else "cpu",
                     tp=2 if made == "tp" else 1)
        f.attrs["identity"] = numpy.bytes_(json.dumps(j))
        if dataset and not f[dataset].is_virtual:
            d = f[dataset]
            d[min(20, len(d) - 1)] = int(code)
            d.attrs.modify("crc32c", kvfile_h5py.crc32c(d[()].tobytes()))


source, path, made, dataset, code = (sys.argv[1:] + [None, None])[:5]
parts = path[:-3] + ".parts"
shutil.copy(source, path)
remake(path, made, dataset, code)
if os.path.isdir(source[:-3] + ".parts"):
    shutil.rmtree(parts, ignore_errors=True)
    shutil.copytree(source[:-3] + ".parts", parts)
    with h5py.File(path, "r+") as f:
        listed = json.loads(f["parts"].attrs["list"])
        for part in listed:
            name = os.path.join(os.path.dirname(path), part["name"])
            remake(name, made, dataset, code)
            with open(name, "rb") as p:
                data = p.read()
            part.update(bytes=len(data), crc32c=kvfile_h5py.crc32c(data))
        f["parts"].attrs["list"] = numpy.bytes_(json.dumps(listed))
    with open(path, "rb+") as f:
        data = f.read()
        f.write(b"%-63s\n" % (b"longfill-kv master crc32c %08x of %d bytes before" % (kvfile_h5py.crc32c(data), len(data))))
END
    judged() {                               # judged EXIT WORDS FROM MADE [DATASET CODE]
        want=$1 words=$2 from=$dir/$3/kv/b.h5
        shift 3
        PYTHONPATH=${srcdir:-.} "$PYTHON" -B "$dir/remake.py" "$from" "$dir/made/b.h5" "$@" 2>"$dir/err" &&
            deep "$model" "$dir/made/b.h5" && [ $code -eq "$want" ] && grep -q "b.h5: $words" "$dir/out"
        result $? "exit $want, ${words%%[!A-Za-z ]*}: ${from#"$dir"/}, $*"
    }
    mkdir "$dir/made"
    large=126 nan=127                        # e4m3
    row=layers/003/compressed_nope
    judged 0 "ok, " fp8 merge
    judged 4 "CANNOT TELL: checksums are right; /layers/003/compressed, .*; merge mode made" fp8 merge $row $large
    deep "$model" "$dir/made/b.h5" "$dir/fp8/kv/a.h5"
    [ $code -eq 4 ] && grep -q "a.h5: ok" "$dir/out"
    result $? "one file that cannot be judged, and one that is right"
    deep "$model" "$dir/made/b.h5" "$dir/none.h5"
    [ $code -eq 1 ] && grep -q "b.h5: CANNOT TELL" "$dir/out"
    result $? "and one that is wrong"
    judged 1 "FAILED: /layers/003/compressed, rows" fp8 gather $row $large
    judged 1 "FAILED: /layers/003/compressed, rows" fp8 none $row $large
    judged 1 "FAILED: /layers/003/compressed, rows" fp8 merge $row $nan
    judged 1 "FAILED: /layers/001/compressed, rows" fp8 merge layers/001/compressed_nope $large
    judged 0 "ok, " fp8 cuda
    judged 4 "CANNOT TELL: checksums are right; /layers/001/compressed, .*; a GPU made" fp8 cuda \
        layers/001/compressed_nope $large
    judged 4 "CANNOT TELL: .*; several tp ranks made" fp8 tp $row $large
    judged 1 "FAILED: /layers/003/compressed, rows" fp8 cuda $row $nan
    judged 1 "FAILED: /layers/000/swa, rows" fp8 cuda layers/000/swa_nope $large
    judged 1 "FAILED: /layers/003/compressed, rows" one cuda layers/003/compressed 126
    judged 4 "CANNOT TELL: .*; merge mode may have made" gather none $row $large
    judged 1 "FAILED: /layers/003/compressed, rows" gather gather $row $large
    judged 0 "ok, " gather none
    "$longfill" info "$dir/made/b.h5" >"$dir/out" 2>"$dir/err" &&
        [ "$(grep -cE "^(device|pcp_attention|tp)  *not recorded$" "$dir/out")" -eq 3 ] &&
        "$longfill" info --json "$dir/made/b.h5" >"$dir/out" 2>"$dir/err" && grep -q '"pcp_attention": null' "$dir/out"
    result $? "a file that does not say how it was made is read"
fi

"$longfill" synth --preset nano --seed 9 "$dir/other" >"$dir/out" 2>"$dir/err"
deep "$dir/other" "$dir/one/kv/a.h5"
[ $code -eq 1 ] && grep -q "FAILED: it is of another model" "$dir/out"
result $? "another model is refused"
"$longfill" verify --deep "$dir/one/kv/a.h5" >"$dir/out" 2>"$dir/err"
code=$?
[ $code -eq 2 ] && grep -q -- "--model" "$dir/err" && [ ! -s "$dir/out" ]
result $? "without a model it is refused"
"$longfill" verify -l 5 "$dir/one/kv/a.h5" >"$dir/out" 2>"$dir/err"
code=$?
[ $code -eq 2 ] && grep -q -- "--deep" "$dir/err" && [ ! -s "$dir/out" ]
result $? "and so is a length without --deep"
deep "$dir/no-model" "$dir/one/kv/a.h5"
[ $code -eq 2 ] && grep -q "no-model" "$dir/err" && [ ! -s "$dir/out" ]
result $? "and so is one that cannot be read"
deep "$model" "$dir/none.h5"
[ $code -eq 1 ] && grep -q "FAILED: cannot open" "$dir/out"
result $? "a file that is not there"

results
