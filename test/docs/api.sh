#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The reference of the API, which scripts/api.py makes from the headers: it holds everything that is public, its links lead
# somewhere, and a declaration without a comment is found.
. "$(dirname "$0")/../cli/tap.bash"
cd "$LAP_SOURCE_DIR" || exit 1

# api HEADERS: makes the pages, in $pages.
pages=$work/api
api() {
    out=$(python3 scripts/api.py "$1" "$pages" 2>&1)
    status=$?
}
api include/lap
is 'pages are made of the headers' "$status$out" 0
if [ -d "$LAP_BUILD_DIR/docs/api" ]; then
    ok 'the build has made the same' diff -r "$pages" "$LAP_BUILD_DIR/docs/api"
fi

# What the compiler, the linker and the eye find in the headers, each by its own way.
titles=$(sed -n 's/^##*  *//p' "$pages"/*.md | tr -d ',' | tr ' ' '\n')
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
    comm -23 - <(grep -ohE '\bLAP_[A-Z0-9_]+\b' "$pages"/*.md | sort -u))" ''

# Every link leads to a heading.
is 'every link leads somewhere' "$(grep -ohE '\]\([a-z_]+\.md(#[a-z0-9_-]+)?\)' "$pages"/*.md | tr -d '])(' | sort -u |
    comm -23 - <(cd "$pages" && for page in *.md; do
        echo "$page"
        sed -n "s/^##* //p" "$page" | tr '[:upper:]' '[:lower:]' | sed "s/[^a-z0-9 _-]//g; s/ /-/g; s/^/$page#/"
    done | sort -u))" ''

# Declarations without a comment.
cp -r include/lap "$work/headers"
while IFS='|' read -r name declaration; do
    sed "s|^LAP_END_DECLS|$declaration\n\n&|" include/lap/trace.h >"$work/headers/trace.h"
    api "$work/headers"
    is "$name without a comment: status 1" "$status" 1
    is '... and it is named' "$out" "api: lap/trace.h: $name has no comment above it"
    sed "s|^LAP_END_DECLS|/* A comment. */\n$declaration\n\n&|" include/lap/trace.h >"$work/headers/trace.h"
    api "$work/headers"
    is '... and with one it is well' "$status$out" 0
    ok '... and on the page' grep -qxF "A comment." "$pages/trace.md"
done <<'END'
lap_trace_undo|LAP_API void lap_trace_undo(lap_trace_t *trace);
lap_trace_undo_t|typedef struct lap_trace_undo {\n    int a; /* a field */\n} lap_trace_undo_t;
lap_trace_way_t|typedef enum lap_trace_way { LAP_WAY = 0 } lap_trace_way_t;
LAP_TRACE_MOST|#define LAP_TRACE_MOST 3
lap_trace_done_t|typedef void (*lap_trace_done_t)(void *context);
enum {|enum {\n    LAP_TRACE_FEW = 1,\n};
END
finish
