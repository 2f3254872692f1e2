# SPDX-License-Identifier: Apache-2.0
# What the scripts that drive the command line share; they begin with  . "${srcdir:-.}/tap.sh"  and end with  results.
# $longfill and $mpi start the program, $dir is theirs and goes away with them.  A command under test writes to
# $dir/out and $dir/err and its exit status may be in $code: shown when a result is bad.
set -u
longfill=${LONGFILL:-./longfill}
mpi=${MPI_RUN:-sh ${srcdir:-.}/mpi-run}
data=${srcdir:-.}/../data
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
count=0 failed=0 code=

result() {                                   # result STATUS WHAT
    count=$((count + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $count - $2"
    else
        failed=$((failed + 1))
        echo "not ok $count - $2"
        echo "# exit $code"
        cat "$dir/err" "$dir/out" 2>&1 | head -60 | sed 's/^/# /'
    fi
}

skip() {                                     # skip WHAT WHY
    count=$((count + 1))
    echo "ok $count - $1 # SKIP $2"
}

prompt() {                                   # prompt ID TOKENS: a line of the prompts file, ids below $vocab
    awk -v id="$1" -v n="$2" -v vocab="$vocab" 'BEGIN {
        x = n * 7919 + length(id)
        printf "{\"custom_id\": \"%s\", \"token_ids\": [", id
        for (i = 0; i < n; i++) {
            x = (x * 1103515245 + 12345) % 2147483648
            printf "%s%d", i ? ", " : "", int(x / 65536) % vocab
        }
        print "]}"
    }'
}

results() {
    echo "1..$count"
    [ $failed -eq 0 ]
}
