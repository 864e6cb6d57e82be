#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Loss scaling of `lap train`: float16 is scaled as much as its gradients allow, steps that overflow are left out on all ranks alike, and a
# training goes on from a checkpoint with the scale that it had.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
cd "$work" || exit 1
small=(--auto=no --model gpt --hidden 24 --heads 6 --ffn 40 --layers 2 --seq 16 --batch 4 --no-predict --no-trace --json)

# holds NAME CODE: the code, in which `steps` are the objects of the steps, raises nothing.
holds() {
    ok "$1" python3 -c "
import json
steps = [line for line in map(json.loads, open('out')) if 'step' in line]
$2"
}
losses() { python3 -c 'import json; [print(repr(l["loss"])) for l in map(json.loads, open("out")) if "step" in l]'; }

lap train "${small[@]}" --tp 1 --steps 6
alone=$(losses)
lap train "${small[@]}" --tp 1 --steps 6 --dtype fp16
ok 'float16: the losses of float32' near "$(losses)" "$alone" 3e-3
holds '... scaled by 2^16' 'assert [s["loss_scale"] for s in steps] == [65536] * 6 and steps[-1]["skipped"] == 0, steps'
lap train "${small[@]}" --tp 1 --steps 6 --loss-scale 256
ok 'a constant scale changes nothing but roundings' near "$(losses)" "$alone" 1e-5
is '... and is no news' "$(grep -c loss_scale out)" 0

# 2^34 times gradients of about 1 are more than 65504, so the first steps are left out.
scaled=(--dtype fp16 --initial-loss-scale 17179869184 --hysteresis 1 --loss-scale-window 4 --steps 24)
lap train "${small[@]}" --tp 1 "${scaled[@]}"
is 'a scale that is too large: status' "$status" 0
all=$(losses)
holds '... falls until gradients are finite, and grows again' '
scales = [s["loss_scale"] for s in steps]
made = [s["grad_norm"] is not None for s in steps]
first = made.index(True)
assert first > 3 and scales[:first + 1] == [2.0 ** (34 - i) for i in range(first + 1)], scales
assert steps[-1]["skipped"] == made.count(False) and scales[first + 4] == 2 * scales[first + 3], scales'
lap train "${small[@]}" --tp 2 --dp 2 "${scaled[@]}"
is '... on a grid, too: status' "$status" 0
holds '... with steps that no rank makes' '
made = [s["grad_norm"] is not None for s in steps]
assert not any(made[:3]) and sum(made) > 3 and steps[-1]["skipped"] == made.count(False), steps'
lap train "${small[@]}" --tp 1 "${scaled[@]}" --steps 20 --save run
lap train "${small[@]}" --tp 1 "${scaled[@]}" --load run
is 'a training goes on with its scale' "$(losses)" "$(tail -n 4 <<<"$all")"
lap train "${small[@]}" --tp 1 --dtype fp16 --initial-loss-scale 17179869184 --min-loss-scale 8589934592 --hysteresis 1 --steps 6
has 'a scale that may not fall further ends it, and is named' "$status $err" '3 ' 'the norm of the gradients is ' \
    '; --min-loss-scale, which is 8.58993e+09, or --lr, which is 0.001, may be too large'
lap train "${small[@]}" --tp 1 --dtype fp16 --loss-scale 17179869184 --steps 2
has '... as is one that is too large from the beginning' "$status $err" '3 ' '; --loss-scale, which is 1.71799e+10, or --lr, which is 0.001, may be too large'

refuse '--hysteresis is for a scale that changes; expected --loss-scale dynamic' --hysteresis 3
refuse "--loss-scale is 'much'; expected a number" --loss-scale much
refuse "--loss-scale is '0'; expected a number above 0, or dynamic" --loss-scale 0
refuse '--initial-loss-scale is 2 and --min-loss-scale is 4' --dtype fp16 --initial-loss-scale 2 --min-loss-scale 4
finish
