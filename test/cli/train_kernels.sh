#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a GPU the trials of GEMM kernels decide about times, not about results: losses and norms have the same bits with them, without them
# and again. The backward pass of the head, multiplied in parts, is a GEMM for which cuBLASLt proposes kernels that split sums and some
# that do not.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB

small='--auto=no --model gpt2-774m --layers 2 --tp 2 --pp 2 --micro-batch 2 --batch 4 --iters 2 --dtype bf16 --schedule zb-h1 --no-predict --no-trace'

# numbers: losses and norms of a run, in $numbers.
numbers() {
    # shellcheck disable=SC2086
    lap train $small --json
    is "'lap train' with LAP_GPU_TUNE=${LAP_GPU_TUNE:-} ends well" "$status$err" 0
    numbers=$(tail -n 1 "$work/out" | grep -oE '"(loss|grad_norm)":[^,]+')
}

LAP_GPU_TUNE=0 numbers
first=$numbers
is 'losses and norms of two iterations' "$(wc -l <<<"$first")" 4
for try in 1 2 3; do
    LAP_GPU_TUNE=1 numbers
    is "trial $try of the kernels gives the same bits" "$numbers" "$first"
done
finish
