#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program under valgrind on the tiny model: no invalid access, no use of undefined bytes, no lost block.
set -u
srcdir=${srcdir:-.}
longfill=${LONGFILL:-./longfill}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
count=0 failed=0
# Valgrind has no AVX-512: BLIS takes its Haswell kernels.
OMPI_MCA_ess_singleton_isolated=1 OMPI_MCA_btl=self OMP_NUM_THREADS=1 BLIS_ARCH_TYPE=3
export OMPI_MCA_ess_singleton_isolated OMPI_MCA_btl OMP_NUM_THREADS BLIS_ARCH_TYPE

memcheck() {
    valgrind -q --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite --num-callers=50 \
        --suppressions="$srcdir/memcheck.supp" --error-exitcode=99 --log-file="$dir/log" "$@" >"$dir/out" 2>"$dir/err"
    code=$?
}

if ! command -v valgrind >"$dir/out" || { memcheck "$longfill" --version && [ $code -ne 0 ]; }; then
    echo "1..0 # SKIP no valgrind that this program runs under"
    exit 0
fi

clean() {                                    # clean CODE WHAT ARGUMENT...
    want=$1 what=$2
    shift 2
    memcheck "$@"
    count=$((count + 1))
    if [ $code -eq "$want" ] && [ ! -s "$dir/log" ]; then
        echo "ok $count - $what"
    else
        failed=$((failed + 1))
        echo "not ok $count - $what"
        echo "# exit $code, expected $want"
        sed 's/^/# /' "$dir/err" "$dir/log" | head -80
    fi
}

model=$srcdir/../data/tiny
cat >"$dir/prompts" <<'END'
{"custom_id": "text", "prompt": "The quick brown fox jumps over the lazy dog, 12345 times: schön, 你好."}
{"custom_id": "ids", "token_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]}
{"custom_id": "one", "token_ids": [7]}
END
{
    printf '{"custom_id": "blocks", "token_ids": [0'
    i=1
    while [ $i -lt 261 ]; do
        printf ', %d' $((i * 7 % 512))
        i=$((i + 1))
    done
    echo ']}'
} >>"$dir/prompts"

prefill() {                                  # prefill CODE WHAT OUT ARGUMENT...
    want=$1 what=$2 out=$3
    shift 3
    clean "$want" "$what" "$@" "$longfill" prefill -q -m "$model" -i "$dir/prompts" -o "$dir/$out" \
        --logits topk:3 --logprobs --format json
}

prefill 0 "prefill: text and ids to files" done
prefill 0 "prefill: resume" done
prefill 3 "prefill: files that grow too large" small prlimit --fsize=90000
clean 0 "info" "$longfill" info --json "$dir/done/kv/blocks.h5"
clean 0 "verify" "$longfill" verify "$dir/done/kv/blocks.h5" "$dir/done/kv/one.h5"
clean 0 "plan" "$longfill" plan -m "$model" --json
clean 0 "synth" "$longfill" synth --preset nano "$dir/nano"
echo '{"custom_id": "ids", "token_ids": [512]}' >>"$dir/prompts"
prefill 2 "prefill: a bad prompt" done
echo "1..$count"
[ $failed -eq 0 ]
