#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a rank does in calls and in steps of training, and the sentences of failures, are those of the commit before:
# scripts/oracle.sh, the parts of it that are the same on every machine, and of these some. Hashes say which file is another one;
# the files themselves come of two builds, which diff -r compares. A change that is meant renews both files of golden:
#
#   scripts/oracle.sh build /tmp/oracle o1 o6 --quick --hashes test/cli/golden/oracle.txt
#   cp /tmp/oracle/o6/failures.txt test/cli/golden
. "$(dirname "$0")/tap.bash"
golden=$LAP_SOURCE_DIR/test/cli/golden
oracle=$LAP_SOURCE_DIR/scripts/oracle.sh

"$oracle" "$LAP_BUILD_DIR" "$work/oracle" o1 o6 --quick --hashes "$work/hashes" >"$work/out" 2>"$work/err"
is 'the oracle is written' "$? $(cat "$work/err")" '0 '
ok 'it has calls of all operators, and programs of grids' test "$(wc -l <"$work/hashes")" -ge 140
ok '... with steps' test "$(grep -hE '^ +[0-9]+ (KERNEL|PUT|WAIT)' -r "$work/oracle" | wc -l)" -ge 10000
changed=$(diff "$golden/oracle.txt" "$work/hashes" | grep -oE 'o1-.*' | sort -u)
is 'what ranks do in calls and steps is as it was (files: see scripts/oracle.sh)' "$changed" ''
diff "$golden/failures.txt" "$work/oracle/o6/failures.txt" >"$work/out" 2>&1
is 'the sentences of failures are as they were' "$(cat "$work/out")" ''
ok '... of 70 commands and more' test "$(grep -c '^  status ' "$golden/failures.txt")" -ge 70

# Two that differ do so in the line that says what differs: a method of a call, and a rank's part of it.
show() { lap show ag 37 37 29 --ranks 3 --json "$@"; }
show --rows 5
has 'a call of fewer rows than it could have' "$status $out" '0 ' '"rows":5,' '"input":{"dtype":"float32","rows":2,"cols":29}'
show --field gather_input=1,layout=dgrad
has 'other fields of an operator' "$status $out" '0 ' '"layout":1,' '"gathered":{"dtype":"float32","rows":37,"cols":29}'
show --rows 38
has 'rows are at most the capacity' "$status $err" '2 ' "--rows is '38'; expected a size such as 2048 or 2K, 0 to 37"
for wrong in "layout=left;layout is 'left'; expected forward, dgrad or wgrad" "layout;--field is 'layout'; expected NAME=VALUE" \
    "lay=1;--field is 'lay'; expected kind, m, n, k" 'sharded=k;sharded is 2 with ag_gemm, expected 0 or 1'; do
    show --field "${wrong%%;*}"
    has "--field ${wrong%%;*} is refused" "$status $err" '2 ' "${wrong#*;}"
done
lap show train --tp 2 --heads 4 --seq 16 --json
has 'programs say which region each place is, and what the run is given' "$status $out" '0 ' '"places":{"input":{"region":' \
    '"given":{"alpha":1,"beta":0,' '"regions":[{"name":"x","memory":'

"$oracle" "$LAP_BUILD_DIR" "$work/oracle" o9 2>"$work/err"
has 'a part that there is not is refused' "$? $(cat "$work/err")" '2 ' "no part is called 'o9'; expected some of o1-calls,"
"$oracle" "$work" "$work/oracle" o1 2>"$work/err"
has '... and a folder without a build' "$? $(cat "$work/err")" '2 ' 'expected a folder in which lap was built'
finish
