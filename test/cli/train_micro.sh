#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lap train --micro-batches`: an iteration of N micro-batches has the losses of an iteration of one, and leaves the same
# weights, which the losses after it show; however the ranks are laid out.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB

# losses ARGUMENTS...: what the iterations of a run with tiny layers ended with, in $losses; one line each.
losses() {
    lap train --auto=no --json --seq 12 --heads 12 --head-dim 4 --iters 3 --batch 4 --optimizer sgd "$@"
    is "'lap train $*' ends well" "$status$err" 0
    losses=$(grep -oE '"loss":[^,]+' "$work/out" | cut -d: -f2)
}

# alike BOUND ARGUMENTS...: the losses of one micro-batch and of as many as there may be. The run with the most is predicted; measuring
# for that is most of the time of so small a layer.
alike() {
    local bound=$1 once n most=4 predict
    shift
    case "$*" in *'--num-replicas 2'*) most=2 ;; esac
    losses "$@" --no-predict
    once=$losses
    for ((n = 2; n <= most; n += 2)); do
        predict=$([ $n = $most ] || echo --no-predict)
        # shellcheck disable=SC2086
        losses "$@" --micro-batches $n $predict
        ok "... with the losses of one micro-batch" near "$losses" "$once" "$bound" || printf '# %s\n' $losses against $once
    done
}

# As in train.sh: sums of at most 192 products in float32, four in a row, are off by less than 4 * 192 * 2^-24. A rounding to
# bfloat16 changes a number by 2^-9 of it, and a loss is the mean of hundreds of squares of such; one to FP8 by 2^-4.
fp32=5e-5 bf16=5e-3 fp8=5e-2

# train_grids.sh has models on grids; here are layers by themselves.
for replicas in 1 2; do
    alike $fp32 --tp 2 --num-replicas $replicas
    overlapped=$losses
    losses --tp 2 --num-replicas $replicas --micro-batches $((4 / replicas)) --no-comm-overlap --no-predict
    is '... and the same bits without overlap' "$losses" "$overlapped"
done
for more in '--layer linear' '--layer layernorm_mlp --clip-grad 0' '--device ref'; do
    # shellcheck disable=SC2086
    alike $fp32 --tp 2 --num-replicas 2 $more
done
alike $bf16 --tp 2 --num-replicas 2 --dtype bf16
alike $bf16 --tp 2 --num-replicas 2 --grad-sync-dtype bf16
alike $fp8 --tp 4 --dtype bf16 --fp8 --no-sequence-parallel
losses --tp 2 --micro-batches 2 --batch 8
more=$losses
losses --tp 2 --micro-batches 4
ok 'other sequences have losses that are not near' eval '! near "$losses" "$more" $fp32'

# Adam's steps follow the sign of gradients: they show at once what is too small or too large nowhere else.
losses --tp 2 --num-replicas 2 --optimizer adamw --clip-grad 0
once=$losses
losses --tp 2 --num-replicas 2 --optimizer adamw --clip-grad 0 --micro-batches 2
ok 'AdamW, too' near "$losses" "$once" 1e-3

lap train --auto=no --seq 12 --heads 12 --head-dim 4 --iters 2 --tp 2 --micro-batches 3 --debug
is 'a sequence for each micro-batch unless told otherwise' "$status$err" 0
has '... is said' "$out" 'batch 3 in 3 micro-batches' '|-- Forward pass, micro-batch 3 of 3' '|-- Backward pass, micro-batch 1 of 3'
is '... and one step in each iteration' "$(grep -c 'Optimizer step' "$work/out")" 2
lap train --auto=no --json --seq 12 --heads 12 --head-dim 4 --iters 2 --tp 2 --micro-batches 3 --compare --link ratio:0.5
is 'with a link, and with and without overlap' "$status$err" 0
has '... as JSON' "$out" '"batch":3,"micro_batches":3'

refuse "--micro-batches is '0'; expected a whole number from 1" --micro-batches 0
refuse '--batch is 6; expected a multiple of 4: 2 replicas times 2 micro-batches' --batch 6 \
    --micro-batches 2 --num-replicas 2
refuse '--batch is 3; expected a multiple of 2: 1 replica times 2 micro-batches' --batch 3 --micro-batches 2
finish
