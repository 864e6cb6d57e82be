#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What failing tests say: what was got and expected, an example where things are counted, what a command printed, and where
# a program was when its time was up.
. "$(dirname "$0")/tap.bash"

fails() {
    last="tap_fails $*"
    env LAP_TEST_LIMIT_S=1 "$TAP_FAILS" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    out=$(cat "$work/out")
}
fails right
is 'a check that holds: its examples are not told' "$status $out" "0 ok 1 - right
1..1"
fails wrong
is 'a count comes with the first example, once' "$status $out" "1 not ok 1 - zeros: 3 wrong
# for example: element 1 is 1, expected 0
not ok 2 - another check
1..2
# 2 of 2 failed"
fails no-failure
has 'a success where a failure was expected' "$out" "it fails with 'the ranks disagree'" "expected a failure, got 'success'"
ok '... without the sentence of an older one' test "${out/old sentence/}" = "$out"
fails other-failure
has 'another failure than the one expected' "$out" "got 'timeout', expected 'the ranks disagree'" \
    "in which 'rank 3' is missing" 'rank 2 waited'
fails hang
has 'a program whose time is up says where it is' "$status $out" '1 ' 'the time is up' 'something was right' \
    'the long division of 7'

# script TEXT: a script with tap.bash, and what it says.
script() {
    printf '. "%s/test/cli/tap.bash"\n%s\nfinish\n' "$LAP_SOURCE_DIR" "$1" >"$work/script.sh"
    last='the script'
    bash "$work/script.sh" "$LAP" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    out=$(cat "$work/out")
}
script 'lap bench nothing; is "the status of a command" "$status" 0'
has 'a status comes with what the command printed' "$status $out" '1 not ok 1' 'lap bench nothing printed on standard error' \
    "'nothing'" '# got:      2' '# expected: 0'
script 'seq 1 30 >"$work/out"; echo "not ok 9 - inside" >>"$work/out"; seq 31 90 >>"$work/out"; is "a test" 1 0'
has '... and, if that is a test, with what failed in it' "$out" 'not ok 9 - inside'
script 'ok "a number" test 5 -gt 7'
has 'a condition is printed' "$out" 'not ok 1 - a number' '# this failed: test 5 -gt 7'
script 'has "a text" "abc" "b" "x"'
has 'a word that is missing, and in what' "$out" '# missing: x' '# in: abc'
script 'sleep 60 & launcher=$!; until_true() { return 1; }; collect; is "an end" "$status" 137'
has 'who is killed for its time is told' "$status $out" '0 ' 'has not ended' 'killed'
finish
