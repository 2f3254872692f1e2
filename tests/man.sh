#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The manual page and --help say the same: for every command the same options, arguments and defaults.
set -u
page=${srcdir:-.}/../man/longfill.1
longfill=${LONGFILL:-./longfill}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
count=0 failed=0

same() {                                     # same WHAT FILE FILE
    count=$((count + 1))
    if [ -s "$2" ] && diff "$2" "$3" >"$dir/diff"; then
        echo "ok $count - $1"
    else
        failed=$((failed + 1))
        echo "not ok $count - $1"
        sed 's/^/# /' "$dir/diff"
    fi
}

# Lines "tag | (default X)" from --help; a text is wrapped and may hold its default on a second line.
of_help() {
    awk '
        function put() {
            if (tag == "") return
            found = match(text, /\(default [^)]*\)/) ? substr(text, RSTART, RLENGTH) : ""
            print tag " | " found
        }
        /^  (-., |    )--/ {
            put()
            line = substr($0, 3); sub(/^ +/, "", line)
            at = index(line, "  ")
            tag = at ? substr(line, 1, at - 1) : line
            text = at ? substr(line, at) : ""
            next
        }
        { sub(/^ +/, " "); text = text $0 }
        END { put() }'
}

# The same from one .SS of the page: a tag is the line after .TP that begins with a dash.
of_page() {                                  # of_page TITLE
    sed -e 's/\\f[BIPR]//g' -e 's/\\-/-/g' "$page" | awk -v title=".SS \"$1\"" '
        function put() {
            if (tag == "") return
            found = match(text, /\(default [^)]*\)/) ? substr(text, RSTART, RLENGTH) : ""
            print tag " | " found
            tag = ""
        }
        /^\.S[SH]/ { put(); on = $0 == title; next }
        !on { next }
        /^\.TP/ { put(); expect = 1; next }
        expect { tag = $0; text = ""; expect = 0; next }
        { text = text " " $0 }
        END { put() }'
}

"$longfill" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' >"$dir/commands"
sed -n 's/^\.SS "longfill \(.*\)"/\1/p' "$page" >"$dir/sections"
same "the page has a section for every command, in the order of --help" "$dir/commands" "$dir/sections"
of_page "all commands" >"$dir/common"
while read -r command; do
    "$longfill" help "$command" | of_help | sort >"$dir/help"
    { of_page "longfill $command"; cat "$dir/common"; } | sort >"$dir/man"
    same "$command: options, arguments and defaults" "$dir/help" "$dir/man"
done <"$dir/commands"

# Keys of JSON, one a line, that are no word of the page.
not_in_page() {
    sed -e 's/\\f[BIPR]//g' -e 's/\\-/-/g' "$page" >"$dir/plain"
    grep -o '"[a-z_0-9]*":' | tr -d '":' | sort -u | while read -r key; do
        grep -qw -- "$key" "$dir/plain" || echo "$key"
    done
}

defined() {                                  # defined WHAT FILE: of JSON
    echo none >"$dir/none"
    { not_in_page <"$2"; grep -c '":' "$2" | sed 's/^[1-9][0-9]*$/none/'; } >"$dir/missing"
    same "$1: every key of its JSON is in the page" "$dir/none" "$dir/missing"
}

"$longfill" synth --preset nano "$dir/nano" >"$dir/said"
"$longfill" plan --json -m "$dir/nano" -l 300 >"$dir/plan"
"$longfill" plan --json -m "$dir/nano" -l 300 --memory 1m >>"$dir/plan"
defined "plan" "$dir/plan"
echo '{"custom_id": "a", "token_ids": [0, 1, 2, 3, 4]}' >"$dir/prompts"
${MPI_RUN:-sh "${srcdir:-.}/mpi-run"} -n 1 "$longfill" prefill -m "$dir/nano" -i "$dir/prompts" -o "$dir/out" \
    --device cpu >"$dir/said" 2>&1
"$longfill" info --json "$dir/out/kv/a.h5" >"$dir/info"
defined "info" "$dir/info"

echo "1..$count"
[ $failed -eq 0 ]
