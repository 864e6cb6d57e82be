#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every allocation of a small run fails once: the command ends with status 1 and a sentence that says so and names the rank,
# or does without that memory. `script.sh LAP`, where LAP is the command with faults.
. "$(dirname "$0")/tap.bash"

# each NAME COMMAND...: fails allocation 1, 2, ... of the command, until it runs through without meeting the fault.
each() {
    local name=$1 n status text wrong='' met=0
    shift
    for ((n = 1; n < 3000; n++)); do # a thousand times: bash itself does the rest, without a process more
        LAP_RANK=0 LAP_SIZE=1 LAP_FAULT="lap_alloc 0 $n 0" LAP_FAULT_MARK=$work/$name.$n timeout 60 "$@" >"$work/out" 2>"$work/err"
        status=$?
        [ -e "$work/$name.$n" ] || break
        met=$n
        [ $status -ne 0 ] || continue
        IFS= read -r -d '' text <"$work/err"
        if [ $status -ne 1 ] || [[ ! $text =~ 'rank 0'[^$'\n']*'no memory' ]]; then
            wrong+=" $n (status $status: ${text%%$'\n'*})"
        fi
    done
    ok "$name: without the fault it succeeds" [ $status -eq 0 ]
    ok "$name: $met allocations failed" [ $met -gt 20 ]
    is "$name: none of them ended in another status, or without a sentence" "$wrong" ''
}

each 'train' "$LAP" train --layer layernorm_mlp --tp 1 --seq 8 --heads 2 --head-dim 4 --iters 2
each 'bench' "$LAP" bench ag 16 8 8 --ranks 1 --method all --iters 2

finish
