#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/run_tests.sh, which make test calls: what it says of tests that were skipped and of the time they took, and that it ends as ctest
# does. It is given tests that are one line of a shell each.
. "$(dirname "$0")/tap.bash"

# add NAME COMMAND: a test more, of those that the next call of `try` runs.
add() {
    printf 'add_test("%s" sh "%s")\nset_tests_properties("%s" PROPERTIES SKIP_RETURN_CODE 77)\n' \
        "$1" "$work/$1.sh" "$1" >>"$work/CTestTestfile.cmake"
    echo "$2" >"$work/$1.sh"
}

ci=
budget=

# try ARGUMENT...: leaves what is said in $out and the status in $status.
try() {
    # shellcheck disable=SC2086
    out=$(CI=$ci sh "$LAP_SOURCE_DIR/scripts/run_tests.sh" $budget "$work" "$@" 2>&1)
    status=$?
}

ci=true
add passes 'echo "ok 1 # SKIP only a check, not the test"'
try
is 'a test that passes: status' "$status" 0
is '... and nothing was skipped' "$(grep 'skipped' <<<"$out")" ''
ci=

add first "echo 'ok 1 - a check'; echo '1..1 # SKIP there is no <thing> & no \"other\"'; echo bye; exit 77"
add second "echo '[1] 1..0 # SKIP there is no <thing> & no \"other\"'; exit 77"
add third "echo; echo \"It needs a GPU: that's all.\"; exit 77"
add fourth 'exit 77'
try -j2
is 'tests that are skipped: status' "$status" 0
is '... and they are counted by their reasons' "$(sed -n '/were skipped/,$p' <<<"$out" | sort)" \
    "$(printf '%s\n' '4 tests were skipped:' '     2  there is no <thing> & no "other"' "     1  It needs a GPU: that's all." \
        '     1  it gives no reason' | sort)"
try -R first
has '... one, too' "$out" '1 test was skipped:' '     1  there is no <thing>'

ci=true
try -R first
is 'in continuous integration a skipped test fails' "$status" 1
has '... and the reason is printed' "$out" '1 test was skipped:' '     1  there is no <thing>' 'every test has to run'
ci=false

mkdir "$work/core"
add core/busy 'i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done'
try -R busy
ok 'the time of folders is told' grep -qE '^ +[0-9]+ s +1  core$' <<<"$out"
budget='--budget 1000'
try -R busy
is '... which are within a budget' "$status $(grep -c 'of --budget' <<<"$out")" '0 0'
budget='--budget 0.01'
try -R busy
has '... or not' "$status $out" '1 ' ' s of processors are more than the 0.01 of --budget'
budget=

add fails 'echo the reason of the failure; exit 3'
try
ok 'a test that fails: status' test "$status" != 0
has '... with its output, and the skipped ones last' "$out" 'the reason of the failure' '4 tests were skipped:'
try -R nothing
ok 'no test at all is a failure, too' test "$status" != 0
finish
