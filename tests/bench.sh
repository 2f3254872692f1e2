#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `longfill bench` with one rank and with two: the table's arithmetic, the same numbers in every form, what is refused.
. "${srcdir:-.}/tap.sh"
tiny=$data/tiny

bench() {                                    # bench RANKS ARGUMENT...
    ranks=$1
    shift
    if [ "$ranks" -eq 1 ]; then
        "$longfill" bench -m "$tiny" --device cpu "$@" >"$dir/out" 2>"$dir/err"
    else
        $mpi -n "$ranks" "$longfill" bench -m "$tiny" --device cpu "$@" >"$dir/out" 2>"$dir/err"
    fi
    code=$?
}

refused() {                                  # refused CODE WORDS RANKS ARGUMENT...
    want=$1 words=$2
    shift 2
    bench "$@"
    [ $code -eq "$want" ] && [ ! -s "$dir/out" ] && [ "$(grep -c '^longfill: ' "$dir/err")" -eq 1 ] &&
        grep -qF -- "$words" "$dir/err"
    result $? "$*: exit $want, $words"
}

# column NUMBER-OF-LINE KEY: of the CSV in out
column() {
    awk -F, -v line="$1" -v key="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == key) at = i }
        NR == line + 1 { print $at }' "$dir/out"
}

holds() {                                    # holds EXPRESSION-OF-AWK
    awk "BEGIN { exit !($1) }"
}

bench 1 --lengths 5,300 --repeat 2 --format csv
[ $code -eq 0 ] && [ "$(wc -l <"$dir/out")" -eq 3 ]
result $? "one rank, two lengths: two lines under the names"
[ "$(column 1 length)" = 5 ] && [ "$(column 2 length)" = 300 ] && [ "$(column 1 grid)" = 1x1x1 ]
result $? "the lengths in their order, the grid of all ranks"
holds "$(column 2 ttft_s) > 0 && $(column 2 ttft_min_s) <= $(column 2 ttft_s) && \
       $(column 2 ttft_s) <= $(column 2 ttft_max_s)"
result $? "the median lies between the least and the most"
holds "$(column 2 prefill_throughput_max) * $(column 2 ttft_min_s) < 300.5"
result $? "compute time is not less than the time to the first token"
[ -z "$(column 1 ttft_reduction_pct)$(column 2 throughput_gain_pct)" ]
result $? "a single grid is compared with nothing"
[ "$(column 2 pcp_bytes_sent)" = 0 ] && [ "$(column 2 kv_bytes)" -gt 10000 ] &&
    ! ls "$tiny"/*.part "$tiny"/kv 2>/dev/null
result $? "rows are counted, none are sent, no file is written"

bench 2 --grids 1x1x1,1x2x1,1x1x2,2x1x1 --lengths 300 --repeat 3 --format csv
[ $code -eq 0 ] && [ "$(wc -l <"$dir/out")" -eq 5 ]
result $? "two ranks, four grids, one of them of one rank"
cp "$dir/out" "$dir/csv"
for line in 2 3 4; do
    holds "(100 * (1 - $(column $line ttft_s) / $(column 1 ttft_s)) - \
            ($(column $line ttft_reduction_pct))) ^ 2 < 1e-4" &&
        holds "(100 * ($(column $line prefill_throughput) / $(column 1 prefill_throughput) - 1) - \
            ($(column $line throughput_gain_pct))) ^ 2 < 1e-4"
    result $? "$(column $line grid): improvements follow from the medians"
done
[ "$(column 1 ranks)" = 1 ] && [ "$(column 2 ranks)" = 2 ] && [ "$(column 4 dp)" = 2 ]
result $? "ranks of each grid"
[ "$(column 2 pcp_bytes_sent)" -gt 0 ] && [ "$(column 2 pcp_bytes_sent)" = "$(column 2 pcp_bytes_expected)" ]
result $? "bytes on pcp are what they should be"
[ "$(column 4 kv_bytes)" -eq $((2 * $(column 1 kv_bytes))) ] && [ "$(column 2 kv_bytes)" = "$(column 1 kv_bytes)" ]
result $? "two groups make two prompts' rows; a split prompt makes one's"

if [ -n "${PYTHON:-}" ]; then
    bench 2 --grids 1x1x1,1x2x1 --lengths 200,300 --repeat 2 --format json --weights dummy --seed 5
    [ $code -eq 0 ] && "$PYTHON" - "$dir/out" <<'END'
import json, sys
r = json.load(open(sys.argv[1]))
assert r["weights"] == "dummy" and r["weights_id"] is None and r["num_ranks"] == 2 and r["repeat"] == 2
assert r["libraries"]["blis"] and "cuda_runtime" not in r["libraries"]
assert r["config"]["grids"] == "1x1x1,1x2x1" and r["seed"] == 5 and r["schema_version"] == 1
cells = r["cells"]
assert [(c["length"], c["grid"]) for c in cells] == [(200, "1x1x1"), (200, "1x2x1"), (300, "1x1x1"), (300, "1x2x1")]
for first, c in (cells[:2], cells[2:]):
    assert first["ttft_reduction_pct"] is None and first["throughput_gain_pct"] is None
    assert abs(100 * (1 - c["ttft_s"] / first["ttft_s"]) - c["ttft_reduction_pct"]) < 0.01
    assert abs(100 * (c["prefill_throughput"] / first["prefill_throughput"] - 1) - c["throughput_gain_pct"]) < 0.01
    assert abs(c["prefill_throughput"] / c["ranks"] - c["prefill_throughput_per_rank"]) < 0.01
    phases = sum(v for k, v in c.items() if k.endswith("_s") and not k.startswith(("ttft", "load", "exchange")))
    assert 0 < phases < 1.5 * c["length"] / c["prefill_throughput_min"], phases
END
    result $? "JSON: made-up weights, each length compared with its own first grid, phases within the pass"
fi

bench 1 --lengths 5,7 --repeat 1
[ $code -eq 0 ] && [ "$(grep -c '^ *[57] ' "$dir/out")" -eq 2 ] && grep -q 'TTFT \[s\]' "$dir/out"
result $? "the text form has a line a length"
grep -q " 1 rank of .* of 1 pass$" "$dir/out"
result $? "under how many ranks and passes there were"
bench 1 --lengths 5 --repeat 1 -q --pcp-attention merge --numerics exact
[ $code -eq 0 ] && [ ! -s "$dir/err" ]
result $? "quiet is quiet"

refused 2 "is not a grid" 1 --grids 1x1
refused 2 "1x2x1 has 2 ranks or more, but 1 was started" 1 --grids 1x2x1
refused 2 "does not divide the model's" 4 --grids 1x1x1,1x4x1
refused 2 "does not divide the 3 ranks" 3 --grids 1x2x1
refused 2 "2x2x1 has 4 ranks or more, but 2 were started" 2 --grids 2x2x1
refused 2 "'0' is not a length" 1 --lengths 0
refused 2 "'' is not a length" 1 --lengths 5,,6
refused 2 "'8x' is not a length" 1 --lengths 8x
refused 2 "positions" 1 --lengths 3m
refused 2 "from 1 to 1000" 1 --repeat 0
no_gpu() {                                   # no_gpu RANKS: prefill's exit status and words
    CUDA_VISIBLE_DEVICES='' $mpi -n "$1" "$longfill" bench -m "$tiny" --device cuda --lengths 9 >"$dir/out" 2>"$dir/err"
    code=$?
    [ $code -eq 2 ] && [ ! -s "$dir/out" ] && [ "$(grep -c '^longfill: --device cuda: ' "$dir/err")" -eq 1 ]
    result $? "$1 ranks: a GPU that is not there is a wrong command line"
}
no_gpu 1
no_gpu 2
LONGFILL_KERNELS=attention=general
export LONGFILL_KERNELS
refused 1 "LONGFILL_KERNELS asks for kernels of a GPU (attention=general), and the CPU has none" 1 --lengths 5
refused 1 "LONGFILL_KERNELS asks for kernels of a GPU (attention=general), and the CPU has none" 2 --lengths 5
LONGFILL_KERNELS=
bench 1 --lengths 5 --repeat 1
result $code "kernels that nobody asks for are none"
unset LONGFILL_KERNELS
mkdir "$dir/m" && cp "$tiny/config.json" "$dir/m"
"$longfill" bench -m "$dir/m" --device cpu --lengths 9 --repeat 1 >"$dir/out" 2>"$dir/err"
[ $? -eq 2 ] && [ ! -s "$dir/out" ] && grep -q "dummy needs only config.json" "$dir/err"
result $? "without weights: refused, naming --weights dummy"
"$longfill" bench -m "$dir/m" --device cpu --lengths 9 --repeat 1 --weights dummy >"$dir/out" 2>"$dir/err" &&
    [ -s "$dir/out" ] && [ "$(ls "$dir/m")" = config.json ]
result $? "with it config.json is enough, and nothing is left behind"

results
