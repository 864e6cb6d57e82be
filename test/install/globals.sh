#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The library has no state of the process, but for the functions of other libraries that it has loaded, which a process has once.
. "$(dirname "$0")/../cli/tap.bash"

# Loaded once: blas, lap_mpi (with loaded and lock), once of NVTX. Of nobody, and never written: empty. A process has one handler of
# SIGSEGV: guard, of lap check --guard.
known='^(blas|guard|lap_mpi|loaded|lock|once|empty)$'
objdump -t "$LAP_BUILD_DIR/liblap.a" >"$work/symbols" 2>"$work/err"
ok 'the library has symbols' grep -q lap_world_create "$work/symbols"
awk '$2 ~ /[lg]/ && ($3 == "O" || $4 == "O") && / \.(bss|data)[ \t]/ { sub(/\.[0-9]+$/, "", $NF); print $NF }' "$work/symbols" | sort -u >"$work/found"
ok 'what is found is what the compiler makes of static variables' grep -qx blas "$work/found"
is 'variables of the process' "$(grep -vE "$known" "$work/found")" ''
finish
