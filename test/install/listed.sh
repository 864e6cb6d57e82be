#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A source that is in no list of its folder's CMakeLists.txt is named when CMake runs; one that is in a list is not.
. "$(dirname "$0")/../cli/tap.bash"

mkdir -p "$work/tree/part"
cat >"$work/tree/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(listed NONE)
include("$LAP_SOURCE_DIR/cmake/LapListed.cmake")
lap_check_listed(\${CMAKE_CURRENT_SOURCE_DIR})
set(sources part/old.c part/old.cu)
END
touch "$work/tree/part/old.c" "$work/tree/part/old.cu"

configures() { cmake -S "$work/tree" -B "$work/build" >"$work/output" 2>&1; }

ok 'all files are in a list' configures
touch "$work/tree/part/new.c"
ok 'a C file that is in none stops CMake' test "$(configures; echo $?)" = 1
ok 'and is named' grep -q 'part/new.c is in no list' "$work/output"
mv "$work/tree/part/new.c" "$work/tree/part/new.cu"
ok 'so does a CUDA file' test "$(configures; echo $?)" = 1
ok 'which is named, too' grep -q 'part/new.cu is in no list' "$work/output"
finish
