#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lap check --guard and lap check train --guard: what ref computes in trainings of many grids touches nothing but its operands.
. "$(dirname "$0")/tap.bash"

# guarded ARGUMENT...: leaves its status and what it prints in $status and $out.
guarded() {
    out=$("$LAP" check "$@" 2>&1 </dev/null)
    status=$?
}

guarded --guard
is 'all trainings of the list: status' "$status" 0
has '... each was run' "$out" 'trainings, 0 failed'
is '... and says how much' "$(grep -c 'kernels of the first rank touched nothing but their operands' <<<"$out")" \
    "$(grep -c '^lap check train --guard' <<<"$out")"
guarded train --layer layernorm_linear --tp 1 --seq 8 --heads 2 --head-dim 4 --guard --json
is 'a training as JSON: status' "$status" 0
has '... the proof, and a line of what ran' "$out" '"ok":true' '"guarded_steps":3,"guarded_kernels":'
guarded ag --guard
has 'operators have no guard of their own' "$status $out" '2 ' 'lap check train'
finish
