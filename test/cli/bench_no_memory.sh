#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Rank 0 of `lap bench` alone looks at the traces of all ranks. Where it has no memory for that, the other one learns why, and
# does not wait for it. `script.sh LAP`, where LAP is the command with faults.
. "$(dirname "$0")/tap.bash"

# The allocations before number 60 are for the set-up.
met=0 wrong=''
for ((n = 60; n < 1000; n++)); do
    LAP_FAULT="lap_alloc 0 $n 0" LAP_FAULT_MARK=$work/both.$n timeout 60 "$LAP" bench ag 16 8 8 --ranks 2 --method serial --iters 2 \
        >"$work/out" 2>"$work/err"
    status=$?
    [ -e "$work/both.$n" ] || break
    IFS= read -r -d '' text <"$work/err"
    [[ $text =~ 'no memory '(for a trace$'\n'|'to look at a trace'|'for the pauses'|'for the causes') ]] || continue
    met=$((met + 1))
    if [ $status -ne 1 ] || [[ ! $text =~ 'out of memory: rank 0: no memory' ]] || [[ $text =~ 'peer lost' ]]; then
        wrong+=" $n (status $status: $text)"
    fi
done
ok "two ranks: $met allocations for traces failed" [ $met -ge 15 ]
is 'two ranks: the other one is told why' "$wrong" ''

finish
