#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `longfill prefill` from prompts to files on a model that synth makes: ranks, resuming, stopping early, what is stored,
# exit codes.  That the numbers are right is for other tests; here they have to be the same whatever the run looks like.
. "${srcdir:-.}/tap.sh"
vocab=96
OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export OMP_NUM_THREADS

prefill() {                                  # prefill RANKS OUT ARGUMENT...
    ranks=$1 out=$dir/$2
    shift 2
    $mpi -q -n "$ranks" "$longfill" prefill -m "$dir/model" -o "$out" --device cpu "$@" >"$dir/out" 2>"$dir/err"
    code=$?
}

value() {                                    # value KEY: of the text report
    sed -n "s/^$1  *//p" "$dir/out" | head -n 1
}

lines() {                                    # lines STATUS: of results.jsonl
    grep -c "\"status\":\"$1\"" "$out/results.jsonl"
}

files() {
    find "$out/kv" -name '*.h5' | wc -l
}

leftovers() {                                # what has no business in an output directory
    find "$out" -name '*.part*' | wc -l
}

"$longfill" synth --preset nano --seed 3 "$dir/model" >"$dir/out" 2>"$dir/err"
code=$?
result $code "a model to run"
for p in "a 1" "b 2" "c 130" "d 517" "e 64" "f 129" "g 257"; do
    prompt ${p% *} ${p#* }
done >"$dir/prompts"

# ---- one rank, two, three: the same files
prefill 1 one -i "$dir/prompts"
[ $code -eq 0 ] && [ "$(files)" -eq 7 ] && [ "$(lines ok)" -eq 7 ] && [ "$(leftovers)" -eq 0 ] &&
    [ ! -s "$dir/err" ]
result $? "one rank: seven files, seven lines, nothing left over"
[ "$(value successful_requests)" = 7 ] && [ "$(value total_input_tokens)" = 1100 ] &&
    [ "$(value num_ranks)" = 1 ] &&
    [ -s "$out/report.json" ]
result $? "the report counts 7 prompts of 1100 tokens"
for ranks in 2 3; do
    prefill $ranks ranks$ranks -i "$dir/prompts"
    [ $code -eq 0 ] && [ "$(files)" -eq 7 ] && [ "$(lines ok)" -eq 7 ] && [ "$(leftovers)" -eq 0 ] &&
        [ "$(value dp)" = $ranks ] && [ "$(value total_input_tokens)" = 1100 ]
    result $? "$ranks ranks: the same prompts, each once"
done

same_files() {                               # same_files DIR DIR: every dataset of every file
    "$PYTHON" - "$1" "$2" <<'END'
import glob, os, sys
import h5py
names = [sorted(os.path.basename(p) for p in glob.glob(d + "/kv/*.h5")) for d in sys.argv[1:]]
assert names[0] == names[1] and names[0], names
for name in names[0]:
    with h5py.File(sys.argv[1] + "/kv/" + name, "r") as a, h5py.File(sys.argv[2] + "/kv/" + name, "r") as b:
        sets = [[], []]
        for f, found in ((a, sets[0]), (b, sets[1])):
            f.visititems(lambda path, x: found.append(path) if isinstance(x, h5py.Dataset) else None)
        assert sets[0] == sets[1] and len(sets[0]) > 10, name
        for path in sets[0]:
            assert a[path].dtype == b[path].dtype and a[path][()].tobytes() == b[path][()].tobytes(), (name, path)
END
}

for threads in 2 4; do
    OMP_NUM_THREADS=$threads
    prefill 1 threads$threads -i "$dir/prompts"
    [ $code -eq 0 ] && [ "$(files)" -eq 7 ]
    result $? "$threads threads"
done
OMP_NUM_THREADS=1
if [ -n "${PYTHON:-}" ]; then
    for other in ranks2 ranks3 threads2 threads4; do
        same_files "$dir/one" "$dir/$other" 2>"$dir/err"
        result $? "$other: every dataset is the same, bit for bit"
    done
else
    skip "the files of one and of several ranks" "no python3 with h5py"
fi

# ---- resuming, overwriting
prefill 2 one -i "$dir/prompts"
[ $code -eq 0 ] && [ "$(value skipped_requests)" = 7 ] && [ "$(value successful_requests)" = 0 ] &&
    [ "$(lines ok)" -eq 7 ] &&
    [ -s "$out/report-2.json" ]
result $? "a second run skips what is done and keeps the older report"
rm "$dir/one/kv/c.h5"
: >"$dir/one/kv/d.h5.part"
prefill 1 one -i "$dir/prompts"
[ $code -eq 0 ] && [ "$(value skipped_requests)" = 6 ] && [ "$(value successful_requests)" = 1 ] &&
    [ "$(leftovers)" -eq 0 ]
result $? "a missing file is made again, a stale .part removed"
head -c 3000 "$dir/one/kv/d.h5" >"$dir/one/kv/x" && mv "$dir/one/kv/x" "$dir/one/kv/d.h5"
prefill 1 one -i "$dir/prompts"
[ $code -eq 0 ] && [ "$(value successful_requests)" = 1 ] && [ "$(wc -l <"$dir/err")" -eq 2 ] &&
    grep -q "d.h5" "$dir/err" && grep -q "6 of 7 prompts were done already" "$dir/err"
result $? "a damaged file is named and made again"
grep -v '"e"' "$dir/one/results.jsonl" >"$dir/r" && cp "$dir/r" "$dir/one/results.jsonl"
prefill 1 one -i "$dir/prompts"
[ $code -eq 0 ] && [ "$(lines skipped)" -eq 1 ] &&
    grep -q '"custom_id":"e","status":"skipped"' "$out/results.jsonl"
result $? "a file whose line is missing gets one"
prefill 1 one -i "$dir/prompts" --overwrite
[ $code -eq 0 ] && [ "$(value successful_requests)" = 7 ] && [ "$(files)" -eq 7 ]
result $? "--overwrite does all of them again"
prefill 1 one -i "$dir/prompts" --numerics exact
[ $code -eq 2 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -q -- "--overwrite" "$dir/err" &&
    [ ! -s "$dir/out" ]
result $? "files of another numerics are not mixed in"

# ---- shards of a job array share a directory
for i in 0 1 2; do
    prefill 1 shards -i "$dir/prompts" --shard $i/3 -q
    [ $code -eq 0 ] && [ ! -s "$dir/err" ]
    result $? "shard $i of 3"
done
[ "$(files)" -eq 7 ] && [ "$(lines ok)" -eq 7 ] && [ -s "$out/report-3.json" ]
result $? "three shards make seven files and three reports"
prefill 1 shard9 -i "$dir/prompts" --shard 8/9
[ $code -eq 0 ] && [ "$(files)" -eq 0 ] && [ "$(value successful_requests)" = 0 ]
result $? "a shard without prompts is done"
prefill 1 shards -i "$dir/prompts" --shard 6/7
[ $code -eq 0 ] && grep -q "^longfill: 1 of 1 prompt was done already; --overwrite redoes it$" "$dir/err"
result $? "of a shard of one prompt one is done"

# ---- a dry run
prefill 2 dry -i "$dir/prompts" --dry-run
[ $code -eq 0 ] && [ ! -e "$out" ] && [ "$(value to_do)" = 7 ] && [ "$(value tokens)" = 1100 ] &&
    [ "$(value dp)" = 2 ] &&
    [ "$(value longest)" = 517 ]
result $? "a dry run says what there is to do and makes nothing"
planned=$("$longfill" plan --json --device cpu -m "$dir/model" -l 517 --grid 2x1x1 |
    sed -n 's/^ *"device_bytes": \([0-9]*\),$/\1/p')
[ "$(value device)" = cpu ] && [ "$(value device_bytes | cut -d ' ' -f 1)" = "$planned" ] &&
    [ "$(value passes)" -ge 2 ] && [ "$(value free_bytes | cut -d ' ' -f 1)" -gt "$planned" ]
result $? "and what it takes, as planned: ${planned:-nothing}"
mkdir "$dir/holes" && cp "$dir/model"/* "$dir/holes"
for f in "$dir"/model/*.safetensors; do          # all bits set: NaN, and experts that there are not
    header=$((8 + $(od -An -t u8 -N 8 "$f" | tr -d ' ')))
    { head -c $header "$f" && tr '\0' '\377' </dev/zero | head -c $(($(wc -c <"$f") - header)); } >"$dir/holes/${f##*/}"
done
mv "$dir/model" "$dir/whole" && mv "$dir/holes" "$dir/model"
prefill 1 holes -i "$dir/prompts"
[ $code -eq 1 ]
bad=$?
prefill 1 dry -i "$dir/prompts" --dry-run
mv "$dir/model" "$dir/holes" && mv "$dir/whole" "$dir/model"
[ $bad -eq 0 ] && [ $code -eq 0 ] && [ "$(value to_do)" = 7 ]
result $? "no weights are read: not even those that a run refuses"
prefill 1 shards -i "$dir/prompts" --dry-run --format json
[ $code -eq 0 ] && grep -q '"skipped": 7' "$dir/out" && grep -q '"to_do": 0' "$dir/out" &&
    [ "$(lines ok)" -eq 7 ]
result $? "a dry run sees what is done"
: >"$dir/shards/kv/a.h5.part"
prefill 1 shards -i "$dir/prompts" --dry-run --format csv
[ $code -eq 0 ] && grep -q '^to_do,1$' "$dir/out" && [ "$(leftovers)" -eq 1 ]
result $? "a dry run leaves a file alone that another run may be writing"

# ---- stopping early
for i in 1 2 3 4 5 6; do
    prompt long$i 1500
done >"$dir/long"
prefill 2 late -i "$dir/long" --max-seconds 0.001
[ $code -eq 75 ] && [ "$(value remaining_requests)" = 6 ] && [ "$(files)" -eq 0 ] &&
    [ "$(wc -l <"$dir/err")" -eq 1 ] &&
    grep -q "run the same command again" "$dir/err"
result $? "--max-seconds: nothing is started after it, exit 75"
prefill 2 late -i "$dir/long" --progress 0
[ $code -eq 0 ] && [ "$(files)" -eq 6 ] && [ "$(lines ok)" -eq 6 ]
result $? "the same command goes on"
out=$dir/signal
ASAN_OPTIONS=detect_leaks=0 OMPI_MCA_ess_singleton_isolated=1 \
    "$longfill" prefill -m "$dir/model" -i "$dir/long" -o "$out" >"$dir/out" 2>"$dir/err" &
pid=$!
tries=0
while [ ! -s "$out/results.jsonl" ] && [ $tries -lt 600 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
kill -USR1 $pid
wait $pid
code=$?
[ $code -eq 75 ] && [ "$(files)" -ge 1 ] && [ "$(files)" -lt 6 ] && [ "$(files)" -eq "$(lines ok)" ] &&
    [ "$(leftovers)" -eq 0 ] && [ "$(value remaining_requests)" = $((6 - $(files))) ]
result $? "SIGUSR1: what runs is finished, the rest is left, exit 75"
before=$(files)
prefill 1 signal -i "$dir/long"
[ $code -eq 0 ] && [ "$(value skipped_requests)" = "$before" ] && [ "$(files)" -eq 6 ]
result $? "and the next run does the rest"

# ---- where prompts come from
$mpi -q -n 2 "$longfill" prefill -m "$dir/model" -i - -o "$dir/stdin" <"$dir/prompts" >"$dir/out" 2>"$dir/err"
code=$? out=$dir/stdin
[ $code -eq 0 ] && [ "$(files)" -eq 7 ]
result $? "prompts on standard input, read once"
: >"$dir/empty"
prefill 2 none -i "$dir/empty"
[ $code -eq 2 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && [ ! -e "$out" ]
result $? "an empty prompts file is refused, once, before anything is made"
echo '{"custom_id": "nothing", "token_ids": []}' >"$dir/void"
prefill 1 none -i "$dir/void"
[ $code -eq 2 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -q "void:1" "$dir/err"
result $? "an empty prompt is refused with its line"
prompt single 1 >"$dir/token"
prefill 1 single -i "$dir/token" --logits all --logprobs
[ $code -eq 0 ] && [ "$(files)" -eq 1 ] && [ "$(lines ok)" -eq 1 ]
result $? "a prompt of one token"

# ---- what is stored
for logits in last none topk:5 all; do
    prefill 1 "logits-$logits" -i "$dir/prompts" --logits $logits
    [ $code -eq 0 ] && [ "$(files)" -eq 7 ]
    result $? "--logits $logits"
done
prefill 1 logprobs -i "$dir/prompts" --logits all --logprobs --numerics exact --kv-dtype bf16
[ $code -eq 0 ] && [ "$(files)" -eq 7 ]
result $? "--logits all --logprobs --numerics exact --kv-dtype bf16"
if [ -n "${PYTHON:-}" ]; then
    "$PYTHON" - "$dir" 2>"$dir/err" <<'END'
import sys
import h5py
import numpy as np
top = sys.argv[1]
def logits(run, name="d"):
    with h5py.File("%s/%s/kv/%s.h5" % (top, run, name), "r") as f:
        return {k: v[()] for k, v in f["logits"].items() if "crc" not in k} if "logits" in f else {}
assert set(logits("logits-last")) == {"last"}
assert logits("logits-none") == {}
k, whole, both = logits("logits-topk:5"), logits("logits-all"), logits("logprobs")
assert k["topk_ids"].shape == (517, 5) and whole["all"].shape == (517, 96)
last = logits("logits-last")["last"]
assert np.array_equal(np.ravel(last), whole["all"][-1])
order = np.argsort(-whole["all"], axis=1, kind="stable")[:, :5]
assert np.array_equal(order, k["topk_ids"])
assert np.array_equal(np.take_along_axis(whole["all"], order, 1), k["topk_values"])
with h5py.File(top + "/logprobs/kv/d.h5", "r") as f:
    ids = f["tokens"][()]
x = both["all"].astype(np.float64)
want = (x - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) - x.max(1, keepdims=True))
want = want[np.arange(516), ids[1:]]
assert np.abs(both["logprob"][:-1] - want).max() < 1e-5 and np.isnan(both["logprob"][-1])
one = logits("single", "single")
assert one["all"].shape == (1, 96) and np.isnan(one["logprob"]).all() and one["logprob"].shape == (1,)
END
    result $? "the logits are those asked for and agree with each other"
else
    skip "the logits are those asked for" "no python3 with h5py"
fi

# ---- the report
prefill 2 text -i "$dir/prompts" --report "$dir/elsewhere.json"
[ $code -eq 0 ] && [ -s "$dir/elsewhere.json" ] && [ ! -e "$out/report.json" ] &&
    [ "$(value mean_ttft_ms)" != "" ]
result $? "--report names the file"
prefill 2 csv -i "$dir/prompts" --format csv
[ $code -eq 0 ] && head -n 1 "$dir/out" | grep -q '^scope,of,key,value$' &&
    grep -q '^run,,successful_requests,7$' "$dir/out" &&
    grep -q '^prompt,d,input_tokens,517$' "$dir/out"
result $? "--format csv"
prefill 2 json -i "$dir/prompts" --format json
[ $code -eq 0 ] && grep -q '"successful_requests": *7' "$dir/out"
result $? "--format json"
if [ -n "${PYTHON:-}" ]; then
    "$PYTHON" - "$dir/out" "$out/report.json" 2>"$dir/err" <<'END'
import json, sys
shown, stored = [json.load(open(p)) for p in sys.argv[1:]]
assert shown == stored
assert [p["custom_id"] for p in shown["prompts"]] == list("abcdefg")
assert len(shown["ranks"]) == 2 and sum(r["prompts_taken"] for r in shown["ranks"]) == 7
assert all(0 < p["ttft_ms"] <= 1e3 * p["durable_s"] for p in shown["prompts"])
told = {r["custom_id"]: r for r in map(json.loads, open(sys.argv[2].replace("report.json", "results.jsonl")))}
assert all(abs(told[p["custom_id"]]["durable_s"] - p["durable_s"]) < 1e-6 for p in shown["prompts"])
assert shown["exit_code"] == 0 and shown["libraries"]["hdf5"] and shown["libraries"]["blis"]
assert shown["config"]["format"] == "json"
END
    result $? "the JSON report is the stored one and holds together"
else
    skip "the JSON report holds together" "no python3"
fi
prefill 1 progress -i "$dir/long" --progress 0.01
[ $code -eq 0 ] &&
    grep -q "^longfill: layer [1-4]/4, [0-9]* of 9000 tokens, [0-9]* tok/s, [0-9]*s left$" "$dir/err" &&
    ! grep -qv "^longfill: layer" "$dir/err"
result $? "progress: plain lines on standard error"
prefill 1 quiet -i "$dir/prompts" --progress 0.01 -q
[ $code -eq 0 ] && [ ! -s "$dir/err" ]
result $? "-q: nothing on standard error"

# ---- weights without a checkpoint
mkdir "$dir/config" && cp "$dir/model/config.json" "$dir/config"
dummy() {                                    # dummy RANKS OUT ARGUMENT...
    mv "$dir/model" "$dir/model.away" && mv "$dir/config" "$dir/model"
    prefill "$@" -i "$dir/prompts" --weights dummy
    mv "$dir/model" "$dir/config" && mv "$dir/model.away" "$dir/model"
}
config=$(sha256sum "$dir/config/config.json" | cut -d ' ' -f 1)
dummy 1 dummy --seed 3
[ $code -eq 0 ] && [ "$(files)" -eq 7 ] && [ "$(lines ok)" -eq 7 ] && [ "$(value weights_id)" = "dummy:3:$config" ]
result $? "--weights dummy: all prompts from config.json alone"
"$longfill" verify -q "$out"/kv/*.h5 >"$dir/out" 2>"$dir/err" &&
    "$longfill" info "$out/kv/d.h5" >"$dir/out" 2>"$dir/err" &&
    grep -q "dummy:3:$config" "$dir/out"
result $? "its files are whole and name the seed and the config"
dummy 2 dummy2 --pcp 2 --seed 3
[ $code -eq 0 ] && [ "$(lines ok)" -eq 7 ]
result $? "on two ranks"
dummy 1 dummy --seed 4
[ $code -eq 2 ] && grep -q "dummy:3" "$dir/err"
result $? "files of another seed are not mixed in"
prefill 1 dummy -i "$dir/prompts"
[ $code -eq 2 ] && grep -q "dummy:3" "$dir/err"
result $? "nor with those of a checkpoint"
dummy 1 dummy-dry --dry-run
[ $code -eq 0 ] && [ "$(value to_do)" = 7 ] && [ "$(value weights_bytes | cut -d ' ' -f 1)" -gt 10000 ]
result $? "a dry run knows their size"
if [ -n "${PYTHON:-}" ]; then
    same_files "$dir/one" "$dir/dummy" 2>"$dir/err"
    result $? "the rows are those that synth's checkpoint of this seed gives"
else
    skip "the rows of made-up weights" "no python3 with h5py"
fi

# ---- what it is started with
alone="env OMPI_MCA_ess_singleton_isolated=1"
$alone "$longfill" prefill -m "$dir/model" -i "$dir/prompts" -o "$dir/closed" <&- >&- 2>&-
code=$?
out=$dir/closed
[ $code -eq 1 ] && [ "$(lines ok)" -eq 7 ] && [ "$(files)" -eq 7 ] &&
    [ "$(wc -l <"$out/results.jsonl")" -eq 7 ] && "$longfill" verify -q "$out"/kv/*.h5 >"$dir/out" 2>"$dir/err"
result $? "without standard streams: the report goes nowhere, which is exit 1; the files are whole"
$alone "$longfill" prefill -m "$dir/model" -i - -o "$dir/closed-input" <&- >"$dir/out" 2>"$dir/err"
code=$?
[ $code -eq 2 ] && grep -q "(stdin).*Bad file descriptor" "$dir/err"
result $? "-i - without stdin is refused"
head -n 1 "$dir/prompts" >"$dir/first"
OMP_NUM_THREADS=1000000 $alone "$longfill" prefill -m "$dir/model" -i "$dir/first" -o "$dir/threads" \
    >"$dir/out" 2>"$dir/err"
code=$?
out=$dir/threads
[ $code -eq 0 ] && [ "$(files)" -eq 1 ]
result $? "a million threads asked for: as many as can be had"

# ---- the index's rows may be the wider ones
"$longfill" synth --preset nano --set index_head_dim=128 "$dir/wide" >"$dir/out" 2>"$dir/err"
out=$dir/wide-index
awk 'BEGIN { printf "{\"custom_id\": \"a\", \"token_ids\": [1"; for (i = 1; i < 200; i++) printf ", %d", i % 90
    print "]}" }' >"$dir/long"
OMP_NUM_THREADS=1 $alone "$longfill" prefill -m "$dir/wide" -i "$dir/long" -o "$out" --numerics exact --kv-dtype f32 \
    >"$dir/out" 2>"$dir/err"
code=$?
[ $code -eq 0 ] && "$longfill" verify -q "$out"/kv/*.h5 >"$dir/out" 2>"$dir/err"
result $? "index rows that are wider than the others have room"

# ---- auto goes without GPUs where there are none, and says so where the program has their part
auto() {                                     # auto RANKS ARGUMENT...
    ranks=$1
    shift
    CUDA_VISIBLE_DEVICES='' $mpi -q -n "$ranks" "$longfill" prefill -m "$dir/model" -i "$dir/prompts" -o "$dir/auto" \
        --overwrite "$@" >"$dir/out" 2>"$dir/err"
    code=$?
}
auto 1 --device cuda
[ $code -eq 2 ]
result $? "a GPU that was asked for and is not there"
expect=1
grep -q "built without CUDA" "$dir/err" && expect=0
auto 2
[ $code -eq 0 ] && [ "$(wc -l <"$dir/err")" -eq $expect ] &&
    [ "$(grep -c '^longfill: computing on the CPU: no .*GPU' "$dir/err")" -eq $expect ]
result $? "auto says that it computes on the CPU: $expect line"
auto 1 -q
[ $code -eq 0 ] && [ ! -s "$dir/err" ]
result $? "but not with -q"

# ---- prompts that fail
prefill 1 failing -i "$dir/prompts"
rm -r "$out/kv"
$mpi -q -n 1 sh -c 'ulimit -f 250; exec "$@"' limited "$longfill" prefill -m "$dir/model" -i "$dir/prompts" -o "$out" \
    --logits all -q >"$dir/out" 2>"$dir/err"
code=$?
[ $code -eq 3 ] && [ "$(value failed_requests)" -ge 1 ] && [ "$(value successful_requests)" -ge 1 ] &&
    [ "$(value successful_requests)" -eq "$(files)" ] && [ "$(leftovers)" -eq 0 ] &&
    [ "$(wc -l <"$dir/err")" -eq "$(value failed_requests)" ] &&
    [ "$(lines failed)" -eq "$(value failed_requests)" ]
result $? "a file that grows too large fails its prompt, the others are done, exit 3"
prefill 1 failing -i "$dir/prompts" --logits all
[ $code -eq 0 ] && [ "$(files)" -eq 7 ]
result $? "with room the same command does what failed"

results
