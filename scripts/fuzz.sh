#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh BUILD [SECONDS [FUZZER...]]: runs the fuzzers of a build with LAP_FUZZ, each for so many seconds, from the corpus of fuzz/.
# An input that breaks a parser is left in BUILD/fuzz/found, named for the fuzzer, and its path is printed; put it into the
# corpus with the mend. Ends with 1 when there was one.
set -u
build=$(cd "$1" && pwd) || exit 2
seconds=${2:-60}
shift $(($# < 2 ? $# : 2))
cd "$(dirname "$0")/.." || exit 2
corpus=$PWD/fuzz/corpus
[ $# -gt 0 ] || set -- $(cd "$corpus" && echo *)
failed=0
for fuzzer in "$@"; do
    if ! [ -x "$build/fuzz/$fuzzer" ]; then
        echo "fuzz: there is no $build/fuzz/$fuzzer; the fuzzers are: $(cd "$corpus" && echo *)" >&2
        exit 2
    fi
    mkdir -p "$build/fuzz/$fuzzer.new" "$build/fuzz/found"
    rm -f "$build/fuzz/found/$fuzzer-"*
    echo "fuzz: $fuzzer, $seconds s"
    # Files that a command line asks for are written where nobody minds.
    (cd "$build/fuzz/$fuzzer.new" && exec env ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 "$build/fuzz/$fuzzer" \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -max_len=4096 -close_fd_mask=1 -verbosity=0 \
        -artifact_prefix="$build/fuzz/found/$fuzzer-" "$build/fuzz/$fuzzer.new" "$corpus/$fuzzer") \
        </dev/null 2>"$build/fuzz/$fuzzer.log" || {
        failed=1
        grep -aE 'ERROR|SUMMARY|does not hold|runtime error' "$build/fuzz/$fuzzer.log" | head -n 5
        echo "fuzz: $fuzzer was broken by $(ls "$build/fuzz/found/$fuzzer-"* 2>/dev/null | head -n 1); see $build/fuzz/$fuzzer.log" >&2
    }
done
[ $failed = 0 ] && echo "fuzz: nothing found"
exit $failed
