#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The command line as a user meets it: exit codes, one line for an error, nothing on standard output with it; and
# `longfill plan` against the sizes of the files.
. "${srcdir:-.}/tap.sh"

run() {
    "$longfill" "$@" >"$dir/out" 2>"$dir/err"
    code=$?
}

refused() {                                  # refused CODE WORDS ARGUMENT...: one line that has the words
    want=$1 words=$2
    shift 2
    run "$@"
    [ $code -eq "$want" ] && [ ! -s "$dir/out" ] && [ "$(wc -l <"$dir/err")" -eq 1 ] &&
        grep -q "^longfill: " "$dir/err" && grep -qF -- "$words" "$dir/err"
    result $? "longfill $*: exit $want, $words"
}

printed() {                                  # printed WORDS ARGUMENT...: exit 0, the words on standard output
    words=$1
    shift
    run "$@"
    [ $code -eq 0 ] && [ ! -s "$dir/err" ] && grep -qF -- "$words" "$dir/out"
    result $? "longfill $*: $words"
}

printed "longfill " --version
printed "longfill " -V
printed "usage: longfill COMMAND" --help
printed "usage: longfill COMMAND" help
printed "usage: longfill prefill -m DIR -i FILE -o DIR" help prefill
printed "--shard-size BYTES" synth --help
printed "usage: longfill verify [options] FILE..." verify -h

refused 2 "which command?"
refused 2 "did you mean prefill?" prefil
refused 2 "longfill --help" frobnicate
refused 2 "did you mean verify?" help verfy
refused 2 "prefill needs --model DIR" prefill
refused 2 "--frontier is not in this version" prefill -m M -i I -o O --frontier 128
refused 2 "did you mean --numerics?" prefill -m M -i I -o O --numeric exact
refused 2 "info needs FILE" info
refused 2 "exclude each other" verify -v -q x
refused 2 "here it is --tp" prefill -m M -i I -o O --tensor-parallel-size 8
refused 2 "write 80g, which is 80 GiB" plan -m M --memory 80GB
refused 2 "$dir/none" plan -m "$dir/none"
refused 2 "a model is a directory on this disk, and nothing is downloaded" plan -m deepseek-ai/DeepSeek-V4-Flash

refused 2 "let hidden_size and moe_intermediate_size be such multiples" synth --preset nano --set hidden_size=63 "$dir/odd"
[ ! -e "$dir/odd" ]
result $? "and nothing is written"

OMPI_COMM_WORLD_RANK=3 "$longfill" prefill >"$dir/out" 2>"$dir/err"
[ $? -eq 2 ] && [ ! -s "$dir/err" ]
result $? "of many ranks only the first says what is wrong with the command line"

if [ -w /dev/full ]; then
    "$longfill" --version >/dev/full 2>"$dir/err"
    [ $? -eq 1 ] && grep -q "cannot write to standard output" "$dir/err"
    result $? "a full standard output is a failure"
fi

number() {                                   # number KEY: of the JSON in out
    sed -n "s/^ *\"$1\": \([0-9.]*\),*\$/\1/p" "$dir/out" | head -n 1
}

run synth --preset nano --seed 3 --shard-size 100k "$dir/nano"
result $code "synth makes a small model"
total=0
for f in "$dir"/nano/*.safetensors; do
    header=$(od -An -t u8 -N 8 "$f" | tr -d ' ')
    total=$((total + $(wc -c <"$f") - 8 - header))
done
run plan --json -m "$dir/nano" -l 300
[ $code -eq 0 ] && [ $total -gt 0 ] && [ "$(number weight_bytes)" = $total ]
result $? "plan counts the $total bytes of the files' data"
sum=$(sed '/"grids"/q' "$dir/out" | sed -n '/"weights": {/,/}/s/.*: \([0-9]*\),*$/\1/p' |
    awk '{ s += $1 } END { print s }')
[ "$sum" = $total ]
result $? "and its groups add up to them"
[ "$(number length)" = 300 ]
result $? "plan takes the length"
printed "for each token more" plan -m "$dir/nano"
refused 2 "positions" plan -m "$dir/nano" -l 4g

results
