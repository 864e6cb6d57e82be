#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each public header compiles alone, as C11 and as C++17, without a warning, and pulls in no foreign API.
. "$(dirname "$0")/../cli/tap.bash"
include=$LAP_SOURCE_DIR/include
warnings="-Wall -Wextra -Wpedantic -Werror -fsyntax-only"

compiles()
{
    local header=$1
    shift
    # Twice, so that a header without a guard shows; a file must hold something of its own.
    printf '#include <%s>\n#include <%s>\nint own;\n' "$header" "$header" |
        "$@" $warnings -I"$include" ${LAP_MPI_CFLAGS:-} -
}

is_plain()
{
    ! grep -nE '#[[:space:]]*include[[:space:]]*[<"](cuda|nccl|mpi|cublas)' "$1"
}

for path in "$include"/lap/*.h; do
    header=lap/$(basename "$path")
    if [ "$header" = lap/lap_mpi.h ] && [ "${LAP_HAVE_MPI:-0}" = 0 ]; then
        continue # it needs mpi.h, and is not installed without
    fi
    ok "$header compiles alone as C11" compiles "$header" "$CC" -std=c11 -x c
    ok "$header compiles alone as C++17" compiles "$header" "${CXX:-c++}" -std=c++17 -x c++
    case $header in
    lap/lap_mpi.h) ;;
    *) ok "$header includes no foreign header" is_plain "$path" ;;
    esac
done
finish
