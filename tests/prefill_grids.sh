#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `longfill prefill` on grids: the files of several ranks to a prompt say what those of one rank do; what fails on one
# rank fails that prompt for all and leaves nothing behind; a rank that dies ends the job.
. "${srcdir:-.}/tap.sh"
vocab=512
model=$data/tiny

prefill() {                                  # prefill RANKS OUT ARGUMENT...
    ranks=$1 out=$dir/$2
    shift 2
    $mpi -q -n "$ranks" "$longfill" prefill -m "$model" -o "$out" --device cpu "$@" >"$dir/out" 2>"$dir/err" </dev/null
    code=$?
}

value() {                                    # value KEY: of the text report
    sed -n "s/^$1  *//p" "$dir/out" | head -n 1
}

lines() {                                    # lines STATUS: of results.jsonl
    grep -c "\"status\":\"$1\"" "$out/results.jsonl"
}

files() {                                    # final-named files, parts apart
    find "$out/kv" -maxdepth 1 -name '*.h5' | wc -l
}

parts() {
    find "$out/kv" -mindepth 2 -name '*.h5' | wc -l
}

leftovers() {                                # unfinished files, and directories of parts without a master
    find "$out" -name '*.part' | wc -l
    find "$out/kv" -name '*.parts' | while read -r p; do [ -e "${p%.parts}.h5" ] || echo "$p"; done
}

verified() {
    "$longfill" verify "$out"/kv/*.h5 >"$dir/verified" 2>&1
}

same() {                                     # same OUT OUT [TOLERANCE]: every file, all bytes or in relative norm
    (cd / && PYTHONPATH=${srcdir:-.} "$PYTHON" -B - "$@" <<'END'
import glob, os, sys
import h5py
import numpy as np
import case, grids
one, other, near = sys.argv[1], sys.argv[2], [float(x) for x in sys.argv[3:]]
names = [sorted(os.path.basename(p) for p in glob.glob(d + "/kv/*.h5")) for d in (one, other)]
assert names[0] == names[1] and len(names[0]) == 7, names
why = []
for name in names[0]:
    paths = [os.path.join(d, "kv", name) for d in (one, other)]
    if not near:
        why += [name + ": " + w for w in grids.compare(*paths)]
        continue
    (a, x, _), (b, y, _) = [grids.contents(p) for p in paths]
    (a, x), (b, y) = grids.without_checksums(a, x), grids.without_checksums(b, y)
    why += ["%s: %s is in one only" % (name, k) for k in set(a) ^ set(b)]
    for k in set(a) & set(b):
        if a[k][0] == "float32":
            d = case.rel(*[np.nan_to_num(np.frombuffer(v[k][2], "f4")) for v in (b, a)])
            why += ["%s: %s is off by %.1e" % (name, k, d)] if not d <= near[0] else []
        elif "topk_ids" not in k and a[k] != b[k]:
            why.append("%s: %s differs" % (name, k))
print("\n".join(why[:10]))
sys.exit(bool(why))
END
    ) >"$dir/out" 2>"$dir/err"
}

for p in "one 1" "two 2" "c 130" "d 517" "e 64" "f 1000" "g 257"; do
    prompt ${p% *} ${p#* }
done >"$dir/prompts"

# ---- the same as one rank, in both numerics
for numerics in exact released; do
    how="--numerics $numerics --logits topk:3 --logprobs"
    prefill 1 "$numerics" -i "$dir/prompts" $how
    [ $code -eq 0 ] && [ "$(files)" -eq 7 ] && [ "$(parts)" -eq 0 ]
    result $? "$numerics: one rank"
    for grid in "1 2 1" "1 3 1" "1 1 2" "2 2 1" "1 3 2"; do
        set -- $grid
        name=$numerics-$1x$2x$3
        prefill $(($1 * $2 * $3)) "$name" -i "$dir/prompts" $how --dp "$1" --pcp "$2" --tp "$3"
        [ $code -eq 0 ] && [ "$(files)" -eq 7 ] && [ "$(lines ok)" -eq 7 ] && [ "$(leftovers)" = 0 ] &&
            [ "$(value successful_requests)" = 7 ] && [ "$(value pcp)" = "$2" ] && verified
        result $? "$name: seven files, verified, nothing left over"
        # Of one, two and 64 tokens one rank has all rows.
        want=$((($2 > 1) * (3 + 2 + 2 + ($2 < 3 ? 4 : 6))))
        [ "$(parts)" -eq $want ]
        result $? "$name: $want parts"
        if [ -n "${PYTHON:-}" ]; then
            same "$dir/$numerics" "$out"
            result $? "$name: the same rows, state and logits, bit for bit"
        fi
    done
done
prefill 3 merge -i "$dir/prompts" --numerics exact --logits topk:3 --logprobs --pcp 3 --pcp-attention merge
[ $code -eq 0 ] && [ "$(files)" -eq 7 ] && [ "$(leftovers)" = 0 ] && verified
result $? "merge: seven files, verified"
if [ -n "${PYTHON:-}" ]; then
    same "$dir/exact" "$out" 1e-5
    result $? "merge: within 1e-5"
fi
LONGFILL_CHECK_COLLECTIVES=1
export LONGFILL_CHECK_COLLECTIVES
prefill 6 checked -i "$dir/prompts" --pcp 3
[ $code -eq 0 ] && [ "$(files)" -eq 7 ]
result $? "2x3x1: all ranks enter the same collectives"
unset LONGFILL_CHECK_COLLECTIVES

# ---- resuming, and other grids over what is there
prefill 3 exact-1x3x1 -i "$dir/prompts" --numerics exact --logits topk:3 --logprobs --pcp 3
[ $code -eq 0 ] && [ "$(value skipped_requests)" = 7 ]
result $? "a second run skips what is done"
rm "$out/kv/d.parts/r0001.h5"
: >"$out/kv/f.parts/r0000.h5.part"
prefill 2 exact-1x3x1 -i "$dir/prompts" --numerics exact --logits topk:3 --logprobs --pcp 2
[ $code -eq 0 ] && [ "$(value skipped_requests)" = 6 ] && [ "$(value successful_requests)" = 1 ] &&
    grep -q "d.parts/r0001.h5" "$dir/err" && [ "$(leftovers)" = 0 ] && verified
result $? "a missing part is named and its prompt made again, here by two ranks"
prefill 2 exact-1x3x1 -i "$dir/prompts" --numerics exact --logits topk:3 --logprobs --pcp 2 --overwrite
[ $code -eq 0 ] && [ "$(files)" -eq 7 ] && [ "$(parts)" -eq 11 ] && [ "$(leftovers)" = 0 ] && verified
result $? "--overwrite by two ranks leaves nothing of three"
prefill 1 exact-1x3x1 -i "$dir/prompts" --numerics exact --logits topk:3 --logprobs --overwrite
[ $code -eq 0 ] && [ "$(files)" -eq 7 ] && [ "$(parts)" -eq 0 ] && [ "$(leftovers)" = 0 ] && verified
result $? "--overwrite by one rank leaves no parts"
prefill 2 late -i "$dir/prompts" --pcp 2 --max-seconds 0.001
[ $code -eq 75 ] && [ "$(files)" -eq 0 ] && [ "$(value remaining_requests)" = 7 ]
result $? "--max-seconds: exit 75"

# ---- grids that do not fit
for bad in "2 --pcp 3|start 3" "4 --pcp 4|pcp x tp may be 1, 2, 3, 6" "3 --tp 3|tp may be 1, 2" \
    "2 --dp 1 --pcp 1 --tp 1|2 x 1 x 1"; do
    args=${bad%|*}
    prefill ${args%% *} none -i "$dir/prompts" ${args#* }
    [ $code -eq 2 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -qF "${bad#*|}" "$dir/err" && [ ! -e "$out" ]
    result $? "$args: refused once, with ${bad#*|}"
done

# ---- a rank that cannot write its part: a directory is in the way
for broken in 0 1; do
    out=$dir/broken$broken
    mkdir -p "$out/kv/d.parts/r000$broken.h5.part"
    prefill 2 broken$broken -i "$dir/prompts" --pcp 2 -q
    [ $code -eq 3 ] && [ "$(value failed_requests)" = 1 ] && [ "$(files)" -eq 6 ] && [ "$(lines ok)" -eq 6 ] &&
        [ "$(lines failed)" -eq 1 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && verified &&
        grep -q "rank $broken: .*r000$broken.h5.part: Is a directory" "$dir/err" &&
        rmdir "$out/kv/d.parts/r000$broken.h5.part" "$out/kv/d.parts" && [ "$(leftovers)" = 0 ]
    result $? "rank $broken cannot write: its prompt fails for both and leaves no part, the others are done, exit 3"
    prefill 2 broken$broken -i "$dir/prompts" --pcp 2
    [ $code -eq 0 ] && [ "$(value skipped_requests)" = 6 ] && [ "$(files)" -eq 7 ] && verified
    result $? "with the way free the same command does it"
done

# ---- a rank that is killed, and one that only stops
prompt long 12000 >"$dir/long"
hit() {                                      # hit SIGNAL OUT: send it to a rank while the prompt is computed, and wait
    out=$dir/$2
    $mpi -q -n 2 "$longfill" prefill -m "$model" -i "$dir/long" -o "$out" --pcp 2 >"$dir/out" 2>"$dir/err" </dev/null &
    job=$!
    tries=0
    while [ -z "$(find "$out/kv" -name 'r0001.h5.part' 2>/dev/null)" ] && [ $tries -lt 1200 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    rank=$(cat /proc/[0-9]*/status 2>/dev/null | awk -v job=$job '
        /^Name:/ { name = $2 } /^Pid:/ { pid = $2 } /^PPid:/ && $2 == job && name ~ /longfill/ { print pid; exit }')
    kill -"$1" "$rank"
    began=$(date +%s)
    wait $job
    code=$?
    took=$(($(date +%s) - began))
}
hit KILL killed
[ $code -ne 0 ] && [ $took -le 10 ] && [ "$(files)" -eq 0 ] && [ "$(parts)" -eq 0 ]
result $? "a rank that is killed ends the job in $took seconds, without a file"
prefill 2 killed -i "$dir/long" --pcp 2
[ $code -eq 0 ] && [ "$(files)" -eq 1 ] && [ "$(leftovers)" = 0 ] && verified
result $? "the same command does the prompt and leaves nothing of the other run"
LONGFILL_PATIENCE=4
export LONGFILL_PATIENCE
hit STOP stopped
unset LONGFILL_PATIENCE
[ $code -eq 1 ] && [ $took -le 30 ] && [ "$(files)" -eq 0 ] && [ "$(grep -c 'nothing for 4 seconds' "$dir/err")" = 1 ] &&
    grep -q 'layer [0-9]*, .* rank [01] of 2, call [0-9]*: nothing for' "$dir/err"
result $? "a rank that stops ends the job in $took seconds, which says where the other waited: $(cat "$dir/err")"
tries=0
while kill -0 "$rank" 2>/dev/null && [ $tries -lt 200 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
! kill -0 "$rank" 2>/dev/null
result $? "and the stopped rank is gone"

SLURM_STEP_NUM_TASKS=2
export SLURM_STEP_NUM_TASKS
prefill 1 lonely -i "$dir/prompts" --pcp 2
unset SLURM_STEP_NUM_TASKS
[ $code -eq 2 ] && grep -q "has 2 ranks, but 1 was started: start 2.*; srun started 2 processes" "$dir/err"
result $? "processes of srun that MPI does not connect are told so"

results
