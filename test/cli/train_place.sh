#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The folder of lap train --save: what cannot be written is refused before the first iteration; checkpoints of other runs that a later --load
# would take are named; two runs do not write into one folder. And weights that come with a NaN are not blamed on the learning rate.
. "$(dirname "$0")/tap.bash"
cd "$work" || exit 1
gpt=(--auto=no --model gpt2-124m --layers 1 --hidden 48 --heads 6 --seq 20 --vocab 101 --batch 6 --no-predict --no-trace --tp 2)

# Impossible places.
touch file
for place in nowhere/dir file /proc/x; do
    lap train "${gpt[@]}" --iters 2 --save "$place"
    has "--save '$place' is refused" "$status $err" '1 ' "--save $place: cannot "
    is '... before the first iteration' "$(grep -c 'Step 1' <<<"$out")" 0
    is '... in one line, although both ranks end with it' "$(wc -l <<<"$err")" 1
done
lap train "${gpt[@]}" --iters 2 --save ''
is "--save '' is refused before any rank starts, as a wrong command line" "$status $out$err" "2 lap train: --save is ''; expected a folder"
big=(--layer layernorm_mlp --hidden 512 --ffn 4096 --seq 8 --batch 2 --tp 2 --quiet --iters 1)
(
    ulimit -f 12288
    "$LAP" train "${big[@]}" --save full >out 2>err </dev/null
)
has 'the last checkpoint does not fit' "$(cat err)" 'the checkpoint of step 1 was not saved' 'File too large'
is '... and nothing goes on' "$(grep -c 'training goes on' err)" 0

# Checkpoints of another run.
lap train "${gpt[@]}" --iters 5 --save dir --save-every 3
is 'a folder is made' "$status $err $(ls dir | tr '\n' ' ')" '0  step-00000003 step-00000005 '
lap train "${gpt[@]}" --iters 4 --seed 7 --save dir
has 'a shorter run is refused there' "$status $err" '1 ' '--save dir has checkpoints beyond the 4 iterations of this training: step-00000005;' 'removed'
is '... and leaves it as it was' "$(ls dir | tr '\n' ' ')" 'step-00000003 step-00000005 '
lap train "${gpt[@]}" --iters 6 --seed 7 --save dir
has 'a longer one is warned' "$status $err" '0 ' '--save dir has checkpoints of steps that this training has not made yet: step-00000005, step-00000003;'
lap train "${gpt[@]}" --iters 7 --seed 7 --load dir --save dir
is 'one that goes on from the newest is not' "$status $err" '0 '
rm dir/step-00000007/manifest.json
lap train "${gpt[@]}" --iters 6 --load dir/step-00000005 --save dir
has 'what is not whole is in nobody'"'"'s way' "$status $err" '0 ' 'has not made yet: step-00000006;'

# Two at once.
"$LAP" train "${gpt[@]}" --iters 100000 --save both --save-every 50000 >first 2>&1 </dev/null &
launcher=$!
until_true grep -q 'Step 1/' first
lap train "${gpt[@]}" --iters 2 --save both
has 'a second run is refused' "$status $err" '1 ' "--save both: another training saves into the folder 'both'"
ranks=$(pid_of 0; pid_of 1)
# shellcheck disable=SC2086
kill -9 $launcher $ranks
wait $launcher 2>/dev/null
second() { lap train "${gpt[@]}" --iters 2 --save both; [ "$status" = 0 ]; }
ok 'when the first has ended it is not' until_true second

# A NaN that was loaded.
python3 - <<'PY'
import json, os, struct
data = bytearray(open("both/step-00000002/model.safetensors", "rb").read())
length = struct.unpack("<Q", data[:8])[0]
at = 8 + length + json.loads(data[8:8 + length])["transformer.h.0.mlp.c_fc.weight"]["data_offsets"][0]
data[at:at + 4] = struct.pack("<f", float("nan"))
os.mkdir("nan")
open("nan/model.safetensors", "wb").write(data)
PY
lap train "${gpt[@]}" --iters 4 --load nan
has 'a NaN that was loaded is reported as such' "$status $err" '3 ' 'iteration 1: the loss is nan' 'parameter layer0.fc1.weight' \
    'no step was made since it came with --load nan'
is '... and not the learning rate' "$(grep -c -e --lr <<<"$err")" 0
lap train "${gpt[@]}" --iters 4 --load both/step-00000002/model.safetensors --lr 1e30
has 'one that came with a step is not' "$status $err" '3 ' 'iteration 2: the loss is nan' '--lr, which is 1e+30, may be too large'
finish
