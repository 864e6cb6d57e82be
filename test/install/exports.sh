#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# liblap.so exports exactly the functions that the public headers declare with LAP_API, all of them named lap_*.
. "$(dirname "$0")/../cli/tap.bash"

# A declaration runs from the mark of an exported function to a semicolon; its name stands before the parenthesis.
headers=$(cd "$LAP_SOURCE_DIR/include" && echo lap/*.h)
if [ "${LAP_HAVE_MPI:-0}" = 0 ]; then
    headers=${headers/lap\/lap_mpi.h/}
fi
# shellcheck disable=SC2086
printf '#include <%s>\n' $headers |
    sed 's/^/#define LAP_EXPORT_H\n#define LAP_API LAP_MARK\n#define LAP_BEGIN_DECLS\n#define LAP_END_DECLS\n/;' |
    "$CC" -std=c11 -E -P -x c -I"$LAP_SOURCE_DIR/include" ${LAP_MPI_CFLAGS:-} - | tr '\n' ' ' |
    grep -oE 'LAP_MARK [^;(]*\(' | grep -oE '[A-Za-z0-9_]+ *\($' | tr -d ' (' |
    sort -u >"$work/declared"
nm -D --defined-only "$LAP_BUILD_DIR/liblap.so" | awk '{ print $3 }' | sed 's/@.*//' | sort -u >"$work/exported"

# none: holds when there is nothing to read; else what there is is printed.
none()
{
    ! sed 's/^/# /' | grep .
}

ok "the headers declare functions" test -s "$work/declared"
ok "every exported symbol is named lap_*" none < <(grep -v '^lap_' "$work/exported")
ok "every exported symbol is declared in a public header" none < <(comm -13 "$work/declared" "$work/exported")
ok "every function of the public headers is exported" none < <(comm -23 "$work/declared" "$work/exported")
finish
