#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Delayed FP8 scaling of `lap train`: a checkpoint has the magnitudes that scales come from, in global terms, so that training goes on to the
# last bit on the same grid, and with the largest magnitudes of all replicas on another one.
. "$(dirname "$0")/tap.bash"
cd "$work" || exit 1
same=(--auto=no --no-predict --no-trace --layers 2 --hidden 24 --heads 6 --seq 8 --lr 0.01 --batch 8 --micro-batches 2)
gpt=(--model gpt --vocab 61 --fp8 "${same[@]}")

# train ARGUMENTS...: a run; losses and norms of its steps with all their digits are in $losses.
train() {
    lap train --json "$@"
    losses=$(tail -n 1 "$work/out" | grep -oE '"(loss|grad_norm)":[^,]+')
}

# magnitudes DIR: the file of magnitudes, by tensor.
magnitudes() {
    python3 - "$1" <<'PY'
import json, struct, sys
data = open(sys.argv[1] + "/fp8.safetensors", "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + length])
header.pop("__metadata__")
for name, tensor in header.items():
    begin, end = tensor["data_offsets"]
    values = struct.unpack("<%df" % ((end - begin) // 4), data[8 + length + begin:8 + length + end])
    print(name, tensor["shape"], *values)
PY
}

# ---- the same grid ----

for grid in '--tp 2 --dtype bf16' '--tp 2 --dp 2 --distributed-optimizer' '--tp 1 --cp 2' '--tp 1 --pp 2 --dp 2 --schedule zb-h1' \
    '--tp 2 --pp 2 --virtual-pp 2 --layers 4'; do
    # shellcheck disable=SC2086
    set -- "${gpt[@]}" $grid
    rm -rf dir
    train "$@" --iters 6
    whole=$losses
    is "$grid: six iterations" "$status $(wc -l <<<"$whole")" '0 12'
    train "$@" --iters 3 --save dir
    is '... three, whose checkpoint has a file of magnitudes' "$status $(ls dir/step-00000003 | tr '\n' ' ')" \
        '0 config.json fp8.safetensors manifest.json model.safetensors optimizer.safetensors '
    train "$@" --iters 6 --load dir
    is '... and the other three, to the last bit' "$status$err $losses" "0 $(tail -n 6 <<<"$whole")"
    rm dir/step-00000003/fp8.safetensors
    lap train "$@" --iters 6 --load dir
    has '... which is part of a whole checkpoint' "$status $err" '1 ' 'fp8.safetensors' 'left out'
done

# ---- another grid ----

one=(--micro-batches 1)
rm -rf dir
train "${gpt[@]}" "${one[@]}" --tp 1 --dp 2 --iters 3 --save dir
magnitudes dir/step-00000003 >two
is 'a tensor for each matrix of a layer, and one for the passes' \
    "$(cut -d ' ' -f 1 two | grep -v layer1 | sort | tr '\n' ' ')$(wc -l <two)" \
    "$(for gemm in fc1 fc2 proj qkv; do printf 'layer0.%s.amax_history ' "$gemm".grad_output "$gemm".input; done)passes 17"
is '... with a row for each replica, of what was found since scales were renewed and the history' \
    "$(grep -c '\[2, 1, 17\]' two) $(tail -n 1 two)" '16 passes [2] 1.0 1.0'
train "${gpt[@]}" "${one[@]}" --tp 2 --iters 4 --load dir --save one
is 'one replica goes on' "$status$err" 0
magnitudes one/step-00000004 >one.txt
ok '... with the largest magnitudes of both' python3 - <<'PY'
def rows(path):
    parts = (line.replace("]", "[").split("[") for line in open(path) if not line.startswith("passes"))
    return {name: [float(v) for v in values.split()] for name, shape, values in parts}
two, one = rows("two"), rows("one.txt")
assert two.keys() == one.keys() and any(row[:17] != row[17:] for row in two.values())
for name, row in two.items():
    assert min(row[:3]) > 0 and row[3:17] == [0] * 14, row  # the first step has no history, the others have renewed it
    assert one[name][1:] == list(map(max, row[:16], row[17:33])), (name, one[name], row)
PY

rm -rf dir
train "${gpt[@]}" --tp 1 --iters 6
whole=$losses
train "${gpt[@]}" --tp 1 --iters 3 --save dir
train "${gpt[@]}" --tp 1 --pp 2 --schedule zb-h1 --iters 6 --load dir
ok 'a pipeline goes on from one rank: its scales are the same' near "$(cut -d : -f 2 <<<"$losses")" \
    "$(tail -n 6 <<<"$whole" | cut -d : -f 2)" 1e-5

# ---- with and without ----

rm -rf dir
without=(--model gpt --vocab 61 --tp 2 "${same[@]}")
lap train "${without[@]}" --iters 2 --save dir
is 'without delayed scaling there is no such file' "$status $(ls dir/step-00000002 | grep -c fp8)" '0 0'
lap train "${without[@]}" --fp8 --iters 3 --load dir --save dir
is 'FP8 goes on from it, with a notice, once' "$status $(grep -c . <<<"$err") $(grep -o "checkpoint 'dir.*" <<<"$err")" \
    "0 2 checkpoint 'dir/step-00000002' has no fp8.safetensors: delayed FP8 scaling begins without a history"
has '... and that the type is another one' "$err" 'lap train: --load dir: --fp8 is none in the checkpoint and delayed here'
lap train "${without[@]}" --iters 4 --load dir
is 'training without FP8 has no use for magnitudes' "$status $err" '0 lap train: --load dir: --fp8 is delayed in the checkpoint and none here'
lap train "${without[@]}" --fp8=current --iters 4 --load dir --save dir --keep 1
is '... nor has current scaling, and what it removes is removed whole' "$status $err $(ls dir)" \
    '0 lap train: --load dir: --fp8 is delayed in the checkpoint and current here step-00000004'
finish
