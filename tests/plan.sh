#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `longfill plan`: what it predicts is what a run takes, over grids, lengths, numerics, modes, real and made-up weights;
# which grids fit, and which is recommended.
. "${srcdir:-.}/tap.sh"
tiny=$data/tiny

planned() {                                  # planned MODEL GRID LENGTH ARGUMENT...: device_bytes of the CPU
    "$longfill" plan --json --device cpu -m "$1" --grid "$2" -l "$3" $4 2>"$dir/err" |
        sed -n 's/^ *"device_bytes": \([0-9]*\),$/\1/p'
}

# same MODEL RANKS GRID LENGTH WEIGHTS ARGUMENTS: a run's peak and its plan within 5 %
same() {
    want=$(planned "$1" "$3" "$4" "$6")
    got=$($mpi -n "$2" "$longfill" bench -m "$1" --device cpu --weights "$5" --repeat 1 --format csv --grids "$3" \
        --lengths "$4" $6 2>"$dir/err" | awk -F, 'NR == 2 { print $NF }')
    awk -v a="${got:-0}" -v b="${want:-0}" 'BEGIN { exit !(a > 0 && b > 0 && a <= 1.05 * b && b <= 1.05 * a) }'
    result $? "$3, $4 tokens, $5 weights $6: a run takes ${got:-none}, planned ${want:-none}"
}

same "$tiny" 1 1x1x1 1 real ""
same "$tiny" 1 1x1x1 2000 real ""
same "$tiny" 2 1x2x1 777 real ""
same "$tiny" 2 1x1x2 777 real ""
same "$tiny" 2 1x2x1 777 real "--pcp-attention merge"
same "$tiny" 2 2x1x1 300 real "--numerics exact"
same "$tiny" 4 1x2x1 130 real ""
mkdir "$dir/m" && cp "$tiny/config.json" "$dir/m"
same "$dir/m" 2 1x2x1 777 dummy ""
same "$dir/m" 2 1x1x2 300 dummy "--numerics exact"

awk 'BEGIN { printf "{\"custom_id\": \"a\", \"token_ids\": [1"; for (i = 1; i < 900; i++) printf ", %d", i % 500
    print "]}" }' >"$dir/prompts"
"$longfill" prefill -q -m "$tiny" -i "$dir/prompts" -o "$dir/o" --device cpu --format csv >"$dir/out" 2>"$dir/err"
got=$(sed -n 's/^rank,0,peak_device_bytes,//p' "$dir/out")
want=$(planned "$tiny" 1x1x1 900 "")
awk -v a="${got:-0}" -v b="${want:-0}" 'BEGIN { exit !(a > 0 && b > 0 && a <= 1.05 * b && b <= 1.05 * a) }'
result $? "prefill reports ${got:-none}, planned ${want:-none}"

"$longfill" plan --json --device cpu -m "$tiny" --grid 1x1x1 -l 900 --kv-dtype fp8 >"$dir/out" 2>"$dir/err"
want=$(sed -n 's/^ *"host_bytes": \([0-9]*\),*$/\1/p' "$dir/out")
"$longfill" prefill -m "$tiny" -i "$dir/prompts" -o "$dir/dry" --device cpu --dry-run --format csv >"$dir/out" 2>"$dir/err"
got=$(sed -n 's/^host_bytes,//p' "$dir/out")
[ -n "$got" ] && [ "$got" = "$want" ] && [ "$got" -gt 268435456 ]
result $? "host memory of a dry run: ${got:-none}, planned ${want:-none}"

flash() {                                    # flash ARGUMENT...: JSON of the released geometry in out
    "$longfill" plan --json -m "$dir/flash" "$@" >"$dir/out" 2>"$dir/err"
}

recommended() {
    tr -d ' \n' <"$dir/out" | sed -n 's/.*"recommended":{"dp":\([0-9]*\),"pcp":\([0-9]*\),"tp":\([0-9]*\)}.*/\1x\2x\3/p'
}

"$longfill" synth --sparse --preset flash "$dir/flash" >"$dir/out" 2>"$dir/err"
result $? "headers of the released geometry"
flash --ranks 2 -l 1m
[ "$(recommended)" = 1x2x1 ]
result $? "two GPUs: 1 x 2 x 1"
[ "$(grep -c '"fits": true' "$dir/out")" -eq 2 ] && [ "$(grep -c '"fits": false' "$dir/out")" -eq 1 ]
result $? "one GPU cannot hold the model, two can"
# What two H200 took: bench --weights dummy --lengths 131072 --grids 1x2x1, before scratch was taken at once.
for grid in 1x2x1 1x1x2; do
    flash --device cuda --grid $grid -l 131072
    got=$([ $grid = 1x2x1 ] && echo 93565988864 || echo 95224120832)
    want=$(sed -n 's/^ *"device_bytes": \([0-9]*\),$/\1/p' "$dir/out")
    awk -v a=$got -v b="${want:-0}" 'BEGIN { exit !(b > 0 && a <= 1.05 * b && b <= 1.05 * a) }'
    result $? "$grid, 131072 tokens: measured $got, planned ${want:-none}"
done
expanded() {                                 # of the plan in out
    sed -n 's/^ *"expanded_bytes": \([0-9]*\),$/\1/p' "$dir/out"
}
own=$(expanded)
LONGFILL_KERNELS=experts=plain flash --device cuda --grid 1x1x2 -l 131072
[ "${own:-0}" -gt 0 ] && [ "$(expanded)" = 0 ]
result $? "kernels that are asked for are planned: no expanded experts ($(expanded)), else ${own:-none}"
LONGFILL_KERNELS=experts=wgmma flash --device cuda --grid 1x1x2
[ $? -eq 2 ] && grep -q "experts: plain stored folded" "$dir/err" && [ ! -s "$dir/out" ]
result $? "and kernels that do not exist are refused"
LONGFILL_KERNELS=experts=plain flash --device cpu --grid 1x1x2
[ $? -eq 2 ] && grep -q "LONGFILL_KERNELS .*the CPU has none" "$dir/err" && [ ! -s "$dir/out" ]
result $? "and on the CPU all of them are"
flash --ranks 1 -l 1m
[ "$(grep -c '"recommended": null' "$dir/out")" -eq 1 ]
result $? "on one GPU nothing is recommended"
would=$(tr -d ' \n' <"$dir/out" | sed -n \
    's/.*"smallest":{"dp":1,"pcp":2,"tp":1,"ranks":2,"device_bytes":\([0-9]*\),"fits":true}.*/\1/p')
flash --grid 1x2x1 -l 1m
[ -n "$would" ] && grep -q "^ *\"device_bytes\": $would,\$" "$dir/out" && grep -q '"smallest": null' "$dir/out"
result $? "two would do, with what their own plan says: ${would:-nothing}"
"$longfill" plan -m "$dir/flash" --grid 1x1x4 -l 1m --memory 70g >"$dir/out" 2>"$dir/err" &&
    grep -q "^none fits; 4 ranks would, as 1 x 4 x 1 with [0-9.]* GiB each$" "$dir/out"
result $? "another grid of as many ranks is told, in words"
"$longfill" plan -m "$dir/flash" --ranks 8 --memory 1g >"$dir/out" 2>"$dir/err" &&
    grep -q "^none fits, nor does any other grid; least is taken by [0-9]* ranks, as 1 x [0-9]* x [0-9]* with " "$dir/out"
result $? "what fits nowhere is said to"
flash --ranks 6
[ "$(recommended)" = 3x2x1 ]
result $? "6 ranks: 256 experts go over 2, not 3 or 6; the rest takes other prompts"
mkdir "$dir/wide"
sed 's/"vocab_size": 129280/"vocab_size": 1292800/' "$dir/flash/config.json" >"$dir/wide/config.json"
room=$("$longfill" plan --json -m "$dir/wide" --grid 1x4x2 -l 8k | sed -n 's/^ *"device_bytes": \([0-9]*\),$/\1/p')
for memory in "$room 1x4x2" "200g 1x8x1"; do
    "$longfill" plan --json -m "$dir/wide" --ranks 8 --memory "${memory% *}" -l 8k >"$dir/out" 2>"$dir/err"
    [ "$(recommended)" = "${memory#* }" ]
    result $? "a large vocabulary, ${memory% *} bytes: ${memory#* }: tp only where it does not fit otherwise"
done
"$longfill" plan -m "$dir/flash" --ranks 2 -l 1m >"$dir/out" 2>"$dir/err" && grep -q "recommended: 1 x 2 x 1" "$dir/out" &&
    grep -q "in all  fits host memory$" "$dir/out" && grep -q "^ *1 x *2 x *1 .* yes *513.5 MiB$" "$dir/out"
result $? "and in the text form"
"$longfill" plan -m "$dir/flash" -l 1 >"$dir/out" 2>"$dir/err" && grep -q "^KV of a prompt of 1 token$" "$dir/out" &&
    grep -q "^a prompt on 1 GPU (" "$dir/out"
result $? "one token on one GPU"
cp "$dir/flash/config.json" "$dir/config.json"
"$longfill" plan --json -m "$dir" --grid 1x8x1 >"$dir/out" 2>"$dir/err" && grep -q '"weights_id": null' "$dir/out" &&
    grep -q '"weight_bytes": 15[0-9]*,' "$dir/out"
result $? "config.json alone is planned as released"
flash --grid 1x3x1
[ $? -eq 2 ] && grep -q "does not divide" "$dir/err" && [ ! -s "$dir/out" ]
result $? "a grid that does not divide the model is refused, as prefill does"
flash --grid 1x2x1 --memory 80
[ $? -eq 2 ] && grep -q "80 bytes? 80g is 80 GiB" "$dir/err" && [ ! -s "$dir/out" ]
result $? "80 bytes are not meant"
flash --grid 1x3
[ $? -eq 2 ] && grep -q "is not a grid" "$dir/err"
result $? "so is what is not a grid"
flash --grid 1x2x1 --ranks 2
[ $? -eq 2 ] && grep -q "exclude each other: give one of them" "$dir/err"
result $? "--grid and --ranks exclude each other"

results
