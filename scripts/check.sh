#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh BUILD [ARGUMENT of ctest...]: the tests of a build that are quick: those that need no GPU and are not in test/slow.txt.
set -eu
build=$1
shift
root=$(dirname "$0")/..
slow=$(mktemp)
trap 'rm -f "$slow"' EXIT
grep -v '^#' "$root/test/slow.txt" >"$slow"
# "  Test  #17: schedule/mutate": numbers of names that no pattern fits.
numbers=$(ctest --test-dir "$build" -N -LE gpu | sed -n 's/^ *Test *#\([0-9]*\): \(.*\)/\1 \2/p' |
    while read -r number name; do
        echo "$name" | grep -qEf "$slow" || printf ',%s' "$number"
    done)
[ -n "$numbers" ] || { echo "check: test/slow.txt leaves no test" >&2 && exit 1; }
sh "$root/scripts/run_tests.sh" "$build" -I "0,0,0$numbers" "$@"
