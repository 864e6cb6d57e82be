#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# 8 steps of `lap train` on grids of 2 to 16 ranks: each parallelism alone, all pairs of them, all triples and all four; every schedule of a
# pipeline, and every way in which keys travel. Losses and norms are those of one rank to 5e-6 of them, and each grid is proved. This is where grids
# are tried: other scripts have one or two for what they add.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB

model='--auto=no --model gpt --layers 4 --hidden 24 --heads 12 --vocab 61 --seq 12 --global-batch 24'

# numbers ARGUMENTS...: losses and norms of a run whose ranks are threads, in $numbers. Gradients that are rounding alone move no
# weight: with an epsilon of 1e-8 AdamW makes whole steps of them, which differ by the order of sums.
numbers() {
    # shellcheck disable=SC2086
    lap train $model --iters 8 --lr 0.002 --adam-eps 1e-6 --no-predict --no-trace --json --transport self "$@"
    numbers=$(tail -n 1 "$work/out" | grep -oE '"(loss|grad_norm)":[^,]+' | cut -d: -f2)
}

# proved NAME ARGUMENTS...: says so.
proved() {
    local name=$1
    shift
    # shellcheck disable=SC2086
    lap check train $model "$@" --json
    has "$name" "$status $out" '0 ' '"ok":true'
}

numbers --tp 1
alone=$numbers
is 'one rank: 8 losses and norms' "$status$err $(wc -l <<<"$alone")" '0 16'

tried=0
try() { # TP CP PP DP OPTIONS...
    local grid=(--tp "$1" --cp "$2" --pp "$3" --dp "$4")
    local pp=$3 dp=$4
    shift 4
    [ "$pp" -eq 1 ] || grid+=(--micro-batches $((24 / dp % 4 ? 2 : 4)))
    grid+=("$@")
    numbers "${grid[@]}"
    ok "${grid[*]}: the losses and norms of one rank" near "$numbers" "$alone" 5e-6
    proved '... which is proved' "${grid[@]}"
    tried=$((tried + 1))
}

for tp in 1 2; do
    for cp in 1 2; do
        for pp in 1 2; do
            for dp in 1 2; do
                [ $((tp * cp * pp * dp)) = 1 ] || try $tp $cp $pp $dp
            done
        done
    done
done
for grid in '3 1 1 1' '1 3 1 1' '1 1 1 3' '1 1 4 1' '6 1 1 1' '4 2 1 1' '1 4 2 1' '1 1 2 4' '1 3 1 2' '2 1 1 3' '3 1 2 1'; do
    # shellcheck disable=SC2086
    try $grid
done
for schedule in interleaved zb-h1 zb-v 1f1b-eager; do
    try 1 1 2 1 --schedule $schedule
    try 2 2 2 1 --schedule $schedule
done
for way in all_gather a2a; do
    try 1 4 1 2 --cp-comm-type $way
    try 2 2 2 1 --cp-comm-type $way
done
try 1 4 1 2 --cp-comm-type a2a+p2p
try 2 2 2 2 --distributed-optimizer --schedule zb-h1
ok "$tried grids" test "$tried" -ge 40
finish
