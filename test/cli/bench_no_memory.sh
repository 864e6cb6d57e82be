#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Where a rank of `lap bench` has no memory, while it is set up, or where rank 0 alone looks at the traces of all ranks, the other one
# learns why, and does not wait for it. `script.sh LAP`, where LAP is the command with faults.
. "$(dirname "$0")/tap.bash"

# starve RANK ARGS...: fails one allocation after another of that rank. The first six are made before the ranks meet.
starve() {
    local rank=$1 n status text
    shift
    met=0 traces=0 wrong=''
    for ((n = 7; n < 1000; n++)); do
        LAP_FAULT="lap_alloc $rank $n 0" LAP_FAULT_MARK=$work/$rank.$n timeout 60 "$LAP" bench "$@" --ranks 2 --iters 2 \
            >"$work/out" 2>"$work/err"
        status=$?
        [ -e "$work/$rank.$n" ] || break
        rm "$work/$rank.$n"
        IFS= read -r -d '' text <"$work/err"
        # A rank that has no world yet can tell nobody: the others see that it ends.
        [[ $text =~ 'no memory ' ]] && [[ ! $text =~ 'for a group of 2 ranks' ]] || continue
        met=$((met + 1))
        [[ $text =~ 'no memory '(for a trace$'\n'|'to look at a trace'|'for the pauses'|'for the causes') ]] && traces=$((traces + 1))
        if [ $status -ne 1 ] || [[ $text =~ 'peer lost' ]]; then
            wrong+=" $n (status $status: $text)"
        fi
    done
    ok "rank $rank of $1: $met allocations failed" [ $met -ge 10 ]
    is '... the other one is told why' "$wrong" ''
}

starve 0 ag 16 8 8 --method serial
ok "... of which $traces were for traces" [ $traces -ge 15 ]
starve 1 ag 16 8 8 --method serial
starve 1 latency

finish
