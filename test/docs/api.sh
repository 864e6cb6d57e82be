#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# docs/api, which scripts/api.py makes from the headers: it is as they have it, and holds everything that is public; a
# declaration without a comment, or a page that is older than its header, is found.
. "$(dirname "$0")/../cli/tap.bash"
cd "$LAP_SOURCE_DIR" || exit 1

ok 'docs/api is as the headers have it' python3 scripts/api.py --check

# What the compiler, the linker and the eye find in the headers, each by its own way.
titles=$(sed -n 's/^##*  *//p' docs/api/*.md | tr -d ',' | tr ' ' '\n')
lacking() { sort -u | comm -23 - <(sort -u <<<"$titles") | tr '\n' ' '; }
functions=$(nm -D --defined-only "$LAP_BUILD_DIR"/liblap.so | awk '{ print $3 }' | grep '^lap_' | grep -v '^lap_test_')
ok "the library exports functions: $(wc -l <<<"$functions")" test "$(wc -l <<<"$functions")" -gt 60
is '... and all are there' "$(lacking <<<"$functions")" ''
[ "${LAP_HAVE_MPI:-0}" = 0 ] || mpi='#include <lap/lap_mpi.h>'
# shellcheck disable=SC2086
macros=$(printf '#include <lap/lap.h>\n#include <lap/lap_cuda.h>\n%s\n' "${mpi:-}" |
    "$CC" -E -dM -Iinclude ${LAP_MPI_CFLAGS:-} -x c - | awk '{ print $2 }' | sed 's/(.*//' | grep '^LAP_' | grep -v '_H$')
ok "headers have macros: $(wc -l <<<"$macros")" test "$(wc -l <<<"$macros")" -gt 15
is '... and all are there' "$(lacking <<<"$macros")" ''
types=$(cat include/lap/*.h | sed 's|/\*.*\*/||' | grep -oE '(^typedef [^{(]*|^\} )lap_[a-z0-9_]+_t;' | grep -oE 'lap_[a-z0-9_]+_t;' | tr -d ';')
ok "headers have types: $(wc -l <<<"$types")" test "$(wc -l <<<"$types")" -gt 30
is '... and all are there' "$(lacking <<<"$types")" ''
is 'every enumerator is there' "$(cat include/lap/*.h | grep -oE '^ {4}LAP_[A-Z0-9_]+ =' | tr -d ' =' | sort -u |
    comm -23 - <(grep -ohE '\bLAP_[A-Z0-9_]+\b' docs/api/*.md | sort -u))" ''

# A tree of its own, to be changed.
mkdir -p "$work/scripts" "$work/docs"
cp -r include "$work/"
cp -r docs/api "$work/docs/"
cp scripts/api.py "$work/scripts/"
cd "$work" || exit 1
api() { out=$(python3 scripts/api.py "$@" 2>&1); status=$?; }
api --check
is 'a copy of the tree is right, too' "$status$out" 0
sed -i 's/^\/\* Ends a trace\./\/* Ends any trace./' include/lap/trace.h
api --check
is 'a changed comment: status 1' "$status" 1
has '... and the page is named' "$out" 'trace.md' 'make api'
api
is 'the page is written' "$status$out$(grep -c 'Ends any trace' docs/api/trace.md)" 01
api --check
is '... and is right then' "$status$out" 0
while IFS='|' read -r name declaration; do
    sed "s|^LAP_END_DECLS|$declaration\n\n&|" "$LAP_SOURCE_DIR/include/lap/trace.h" >include/lap/trace.h
    api
    is "$name without a comment: status 1" "$status" 1
    has '... and it is named' "$out" "lap/trace.h: $name has no comment"
done <<'END'
lap_trace_undo|LAP_API void lap_trace_undo(lap_trace_t *trace);
lap_trace_undo_t|typedef struct lap_trace_undo {\n    int a; /* a field */\n} lap_trace_undo_t;
lap_trace_way_t|typedef enum lap_trace_way { LAP_WAY = 0 } lap_trace_way_t;
LAP_TRACE_MOST|#define LAP_TRACE_MOST 3
lap_trace_done_t|typedef void (*lap_trace_done_t)(void *context);
enum {|enum {\n    LAP_TRACE_FEW = 1,\n};
END
finish
