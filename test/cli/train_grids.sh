#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# 8 steps of `lap train` on grids of 2 to 16 ranks: each parallelism alone, all pairs of them, all triples and all four; every schedule of a
# pipeline, every way in which keys travel, and on some grids each way to compute. Losses and norms are those of one rank, with every digit
# the same without overlap, and each grid is proved. This is where grids are tried: other scripts have one or two for what they add. FAKE_CUDA, if it
# is set, is the folder of a driver that is a fake: a few grids run on that; and on a GPU, which LAP_DEVICE names.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
if [ -n "${FAKE_CUDA:-}" ]; then
    export LD_LIBRARY_PATH=$FAKE_CUDA PATH=$LAP_SOURCE_DIR/test/fake:$PATH FAKE_RECORD=/dev/null LAP_GPU_TUNE=0 LAP_DEVICE=cuda
fi
# Threads as ranks are quicker to start. A GPU has processes, and multiplies parts of a matrix in other ways.
ranks='--transport self' bound=5e-6
[ "${LAP_DEVICE:-cpu}" = cpu ] || ranks='' bound=1e-4

same='--dtype float32 --layers 4 --hidden 24 --heads 12 --seq 12 --global-batch 24'
gpt="--model gpt --vocab 61 $same"
llama="--model llama-tiny --kv-heads 6 --ffn 36 --vocab 67 $same"

# numbers ARGUMENTS...: losses and norms of a run, in $numbers. Gradients that are rounding alone move no weight: with an epsilon of
# 1e-8 AdamW makes whole steps of them, which differ by the order of sums.
numbers() {
    # shellcheck disable=SC2086
    lap train --auto=no $model --iters 8 --lr 0.002 --adam-eps 1e-6 --no-predict --no-trace --json $ranks "$@"
    numbers=$(tail -n 1 "$work/out" | grep -oE '"(loss|grad_norm)":[^,]+' | cut -d: -f2)
}

# starts MODEL OPTIONS...: what grids are compared with.
starts() {
    model="$*"
    numbers --tp 1
    alone=$numbers
    is "one rank with $model: 8 losses and norms" "$status$err $(wc -l <<<"$alone")" '0 16'
}

tried=0
try() { # TP CP PP DP OPTIONS...
    local grid=(--tp "$1" --cp "$2" --pp "$3" --dp "$4") overlapped
    local pp=$3 dp=$4
    shift 4
    [ "$pp" -eq 1 ] || grid+=(--micro-batches $((24 / dp % 4 ? 2 : 4)))
    grid+=("$@")
    numbers "${grid[@]}"
    overlapped=$numbers
    ok "${grid[*]}: the losses and norms of one rank" near "$numbers" "$alone" "${rounds:-$bound}"
    if [[ ${LAP_DEVICE:-cpu}${grid[*]} = cpu* && ${grid[*]} != *rs-dgrad* ]]; then # which overlaps another call
        numbers "${grid[@]}" --no-comm-overlap
        is '... with the same digits without overlap' "$numbers" "$overlapped"
    fi
    # shellcheck disable=SC2086
    lap check train $model "${grid[@]}" --json
    has '... which is proved' "$status $out" '0 ' '"ok":true'
    tried=$((tried + 1))
}

starts "$llama"
for grid in '2 1 1 2' '3 1 2 1' '1 2 2 1 --schedule zb-h1' '1 1 2 1 --schedule zb-v' '1 2 1 2 --cp-comm-type a2a'; do
    # shellcheck disable=SC2086
    try $grid
done
# Each way to compute, on two by two ranks: options of one rank, too; what numbers of so few bits differ by; and options of the grid.
while IFS='|' read -r both rounds options; do
    for kind in "$gpt" "$llama"; do
        starts "$kind $both"
        # shellcheck disable=SC2086
        try 2 1 1 2 $options
    done
done <<'WAYS'
|| --no-sequence-parallel
|| --recompute full
|| --recompute selective --tp-comm-overlap-rs-dgrad
|| --micro-batches 2
--dtype bf16|0.03|
--dtype float16|0.004|
--vocab 1027||
--fp8=delayed --dtype bf16|0.5|
--fp8=current --dtype bf16|0.5| --micro-batches 2
WAYS
rounds=
for tied in yes no; do
    starts "$gpt --tied=$tied"
    try 1 1 2 2 --schedule zb-h1 --recompute full
    try 2 1 2 1 --layers-per-stage 3,1 --recompute selective
done
if [ "${LAP_DEVICE:-cpu}" != cpu ]; then
    ok "$tried grids" test "$tried" -ge 27
    finish
fi

starts "$gpt"
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
ok "$tried grids" test "$tried" -ge 65
finish
