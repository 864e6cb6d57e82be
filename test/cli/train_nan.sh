#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lap train` when numbers stop being finite: it ends with a status of its own, names the first layer and tensor, once, and
# prints what was measured; or goes on on request. FAKE_CUDA is the folder of a driver that is a fake.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
tiny='--auto=no --seq 12 --heads 12 --head-dim 4 --iters 4'

# stops WORDS ARGUMENTS...: with status 3 and one line on standard error, which says the words.
stops() {
    local words=$1
    shift
    # shellcheck disable=SC2086
    lap train $tiny "$@"
    is "'lap train $*' stops, with one line" "$status $(wc -l <"$work/err")" '3 1'
    has "... that says '$words'" "$err" "$words"
}

# A step of AdamW moves every weight by the rate, those of norms too: their results are as large, and the products are too
# large for a float.
qkv='the first tensor that is not finite is activation layer0.qkv.output, of rank 0; --lr, which is 1e+30, may be too large'
for layout in '--tp 1' '--tp 2' '--tp 3 --num-replicas 2' '--tp 4 --transport self' '--tp 2 --num-replicas 2 --micro-batches 2' \
    '--tp 2 --layers 2 --recompute full' '--tp 2 --recompute selective --no-sequence-parallel' '--tp 2 --no-comm-overlap'; do
    # shellcheck disable=SC2086
    stops "lap train: iteration 2: the loss is nan: $qkv (--continue-on-nan goes on)" --lr 1e30 $layout
done
has 'what was measured is printed' "$out" '        1   2.' '        2           nan' 'qkv_fprop'
is '... and no third iteration was begun' "$(grep -c 'Iter 3' "$work/out")" 0
is '... nor a step with such a loss' "$(grep -c 'Optimizer step' "$work/out")" 1
stops 'the loss is nan: the first tensor that is not finite is' --lr 1e30 --tp 2 --json
is '... JSON, too, with what was measured' "$(wc -l <"$work/out") $(grep -oE '"loss":[a-z0-9]+' "$work/out" | tr '\n' ' ')" \
    '1 "loss":2 "loss":null '
stops 'iteration 2, with overlap: the loss is nan' --lr 1e30 --tp 2 --compare
has '... where both ways have an iteration' "$out" '        1   2.' 'An iteration is'
stops 'iteration 2, with overlap: the loss is nan' --lr 1e30 --tp 2 --compare --json
is '... the iteration that was not finite is among those of its way' \
    "$(python3 -c 'import json, sys
run = json.load(sys.stdin)
print([[i["loss"] is None for i in way["iterations"]] for way in (run, run["baseline"])])' <"$work/out")" \
    '[[False, True], [False]]'

# Weights that decay by more than they are become infinite, those of matrices only.
stops 'tensor that is not finite is parameter layer0.qkv.weight, of rank 0' --tp 2 --clip-grad 0 --lr 1e30 --weight-decay 1e30
stops 'tensor that is not finite is parameter layer0.fc1.weight, of rank 0' --tp 2 --clip-grad 0 --lr 1e30 --weight-decay 1e30 \
    --layer layernorm_mlp --dtype bf16
# A weight that is too large for float16, in a layer without norms.
stops 'tensor that is not finite is parameter layer0.linear.weight as float16, of rank 0' --tp 2 --lr 1e6 --dtype half \
    --layer linear
# The way back goes through one more product than the way there.
stops 'the norm of the gradients is nan: the first tensor that is not finite is gradient of layer0.fc2.weight' --tp 2 \
    --layer layernorm_mlp --lr 1e12

# shellcheck disable=SC2086
lap train $tiny --tp 2 --num-replicas 2 --lr 1e30 --continue-on-nan --json
is '--continue-on-nan goes on to the end, with one line' "$status $(wc -l <"$work/err")" '0 1'
has '... that says the same' "$err" "lap train: iteration 2: the loss is nan: $qkv"
is '... of all iterations' "$(grep -oE '"loss":[a-z0-9]+' "$work/out" | tr '\n' ' ')" '"loss":2 "loss":null "loss":null "loss":null '
# shellcheck disable=SC2086
lap train $tiny --tp 2 --continue-on-nan
is '... and has nothing to say of finite losses' "$status$err" 0
# shellcheck disable=SC2086
lap run -n 2 "$LAP" train $tiny --lr 1e30
is 'ranks of lap run have that status, too' "$status $(grep -c 'the loss is nan' "$work/err")" '3 1'
lap train --help
has '--help tells about the status' "$(tr -s ' \n' ' ' <"$work/out")" '3 a loss, or the norm of the gradients, is not finite' \
    '--continue-on-nan'

# One replica alone finds a number that is not finite, and looks for the first: the others do not compute with it.
if [ -n "${WRONG_BLAS:-}" ]; then
    export LAP_OPENBLAS=$WRONG_BLAS WRONG_BY=nan WRONG_RANK=1
    for more in '' --distributed-optimizer; do
        # shellcheck disable=SC2086
        stops 'iteration 1: the loss is nan: the first tensor that is not finite is activation layer0.qkv.output, of rank 1' \
            --tp 1 --dp 2 --no-trace --no-predict --timeout 20 $more
    done
    unset LAP_OPENBLAS WRONG_BY WRONG_RANK
fi

if [ -e "${FAKE_CUDA:-}/libcuda.so.1" ]; then
    export LD_LIBRARY_PATH=$FAKE_CUDA PATH=$LAP_SOURCE_DIR/test/fake:$PATH FAKE_RECORD=/dev/null LAP_GPU_TUNE=0
    stops "iteration 2: the loss is nan: $qkv" --device cuda --dtype fp32 --lr 1e30 --tp 2
    has '... where no iteration was traced yet' "$out" '        2           nan'
    stops 'is parameter layer0.qkv.weight, of rank 0' --device cuda --clip-grad 0 --lr 1e30 --weight-decay 1e30 --tp 2
fi
finish
