#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A part of make test-tsan, in make test: the library and a few programs are built for ThreadSanitizer, in a folder of
# the build, and run. An acquire that became relaxed is found by nothing else. Which tests these are, test/CMakeLists.txt
# says: those with the label races. -g1 is what its reports need: functions and lines.
. "$(dirname "$0")/../cli/tap.bash"
races=$LAP_BUILD_DIR/races

echo 'int main(void) { return 0; }' >"$work/empty.c"
if ! "$CC" -fsanitize=thread "$work/empty.c" -o "$work/empty" 2>"$work/output"; then
    echo "1..0 # SKIP $CC has no ThreadSanitizer: $(head -n 1 "$work/output")"
    exit 77
fi

# quietly COMMAND...: shows what a command printed only when it failed.
quietly() {
    "$@" >"$work/output" 2>&1 || ! tail -n 60 "$work/output" | sed 's/^/# /'
}

ok 'a build for ThreadSanitizer is configured' quietly cmake -S "$LAP_SOURCE_DIR" -B "$races" -G Ninja \
    -DCMAKE_C_COMPILER="$CC" -DCMAKE_C_COMPILER_LAUNCHER="$LAUNCHER" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-g1 \
    -DLAP_SANITIZE=thread -DLAP_CUDA=OFF -DLAP_BUILD_EXAMPLES=OFF || finish
ok '... and built' quietly cmake --build "$races" --target races || finish

ctest --test-dir "$races" -j2 -L '^races$' --no-tests=error --output-on-failure >"$work/output" 2>&1
status=$?
while read -r name result; do
    ok "$name, without a race" test "$result" = Passed
done < <(sed -n 's/^ *[0-9]*\/[0-9]* Test *#[0-9]*: \([^ ]*\) \.*[ *]*\([A-Za-z]*\).*/\1 \2/p' "$work/output")
is "all of them: status" "$status" 0
[ $status = 0 ] || grep -v '^ok ' "$work/output" | sed 's/^/# /'
finish
