#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lap train` on the device cuda, over a driver that is a fake: losses are those of the CPU, however the ranks are laid out.
# FAKE_CUDA is the folder of the fake; its times mean nothing.
. "$(dirname "$0")/tap.bash"

export LD_LIBRARY_PATH=$FAKE_CUDA PATH=$LAP_SOURCE_DIR/test/fake:$PATH FAKE_RECORD=/dev/null LAP_GPU_TUNE=0
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB

# losses ARGUMENTS...: what the iterations of a run with tiny layers ended with, in $losses; one line each.
losses() {
    lap train --auto=no --json --no-predict --seq 12 --heads 12 --head-dim 4 --iters 3 "$@"
    is "'lap train $*' ends well" "$status$err" 0
    losses=$(grep -oE '"loss":[^,]+' "$work/out" | cut -d: -f2)
}

# same PART ARGUMENTS...: losses on both devices differ by less than that part of them.
same() {
    local part=$1 cpu
    shift
    losses --device cpu "$@"
    cpu=$losses
    losses --device cuda "$@"
    ok '... with the losses of the CPU' near "$losses" "$cpu" "$part"
}

LAP_GPU=1 lap train --device cuda --tp 2
is 'LAP_GPU is reported once, before any rank starts' "$status:$out:$err" "2::lap train: device cuda: LAP_GPU is '1', expected 0 to 0"

lap train --device cuda --tp 2
is 'and so is memory that no GPU has' "$status:$out:$err" \
    '2::lap train: device cuda: this needs at least 15 GiB of memory for 2 ranks on GPU 0 (Fake GPU), which has 1.5 GiB'
FAKE_GPUS=2 lap train --device cuda --tp 2
has '... for each of them' "$status:$err" '2:' 'at least 7.5 GiB of memory for 1 rank on GPU 0'
for recipe in --fp8 --fp8=current; do
    FAKE_CAPABILITY=80 lap train --device cuda --tp 2 $recipe
    is "... and $recipe on a GPU that is too old for it" "$status:$out:$err" \
        '2::lap train: device cuda: products of float8_e4m3 need compute capability 8.9 or later; GPU 0 has 8.0'
done
FAKE_CAPABILITY=80 lap train --auto=no --device cuda --tp 2 --seq 12 --heads 12 --head-dim 4 --iters 1 --fp8=none
is '... which can do all else' "$status$err" 0
# At least: an [8192, 8192] has 16 or 18 bytes to a number, of which AdamW has 8; and the list of the layers says what is there at the
# same time besides, which nn/room compares with what is allocated.
for least in '5.63 --layer attention --dtype fp32' '10.1 --layer layernorm_mlp' '14.7 --fp8' '11.7 --optimizer sgd --fp8'; do
    # shellcheck disable=SC2086
    lap train --auto=no --device cuda --tp 2 ${least#* }
    has "... and no more than that with ${least#* }" "$err" "at least ${least%% *} GiB"
done

same 1e-6 --dtype fp32 --tp 2
two=$losses
losses --device cuda --dtype fp32 --tp 4
ok '... and with those of two ranks' near "$losses" "$two" 1e-6
losses --device cuda --dtype fp32 --tp 2 --num-replicas 2
ok '... and with those of one replica' near "$losses" "$two" 1e-6
losses --device cuda --dtype fp32 --tp 2 --no-comm-overlap
ok '... and with those of overlap' near "$losses" "$two" 1e-6
same 1e-3 --dtype bf16 --tp 2 --layers 2 --optimizer sgd
same 1e-3 --dtype bf16 --tp 2 --head-dim 64
same 1e-2 --dtype bf16 --tp 2 --fp8
# Heads of 64 columns go to tensor cores, unless something is dropped.
for type in '1e-5 --dtype fp32 --recompute full' '1e-2 --dtype bf16 --hidden 128 --heads 2 --head-dim 64'; do
    # shellcheck disable=SC2086
    same ${type%% *} --model gpt --layers 2 --hidden 48 --tp 2 --attention-dropout 0.3 --hidden-dropout 0.2 ${type#* }
done
same 1e-2 --dtype bf16 --tp 2 --fp8=current --num-replicas 2 --grad-sync-dtype bf16
is 'one of three iterations is traced, the last' \
    "$(grep -oE '"waited_core_ms":[^,]+,"passes_ms"' "$work/out" | sed 's/:[0-9].*/:N/' | cut -d, -f1 | tr '\n' ' ')" \
    '"waited_core_ms":null "waited_core_ms":null "waited_core_ms":N '
# Forward, loss, backward and step of a repeated iteration are one launch, whoever takes part; traced ones are more, with the same losses.
# launches EACH ARGUMENTS...: so many of each rank in 6 iterations, of which the first is issued step by step.
launches() {
    local each=$1 traced
    shift
    rm -f "$work/launches"
    losses --device cuda --iters 6 "$@"
    traced=$losses
    FAKE_LAUNCHES=$work/launches losses --device cuda --iters 6 --no-trace "$@"
    is '... and each rank launches as often as there are passes' \
        "$(sort "$work/launches" | uniq -c | awk '{ print $1 }' | sort -u | tr '\n' ' ')" "$each "
    is '... without a bit that differs' "$losses" "$traced"
}
launches 5 --dtype bf16 --tp 2 --fp8=current --num-replicas 2 --grad-sync-dtype bf16
launches 10 --dtype fp32 --tp 2 --num-replicas 2 --micro-batches 2 --batch 4 --no-comm-overlap
launches 10 --dtype fp32 --tp 2 --clip-grad 0
launches 5 --dtype bf16 --model gpt --layers 2 --hidden 48 --vocab 96 --tp 2 --num-replicas 2
launches 20 --dtype fp32 --tp 1 --num-replicas 2 --distributed-optimizer --no-comm-overlap --clip-grad 0
# Of a pipeline all is in graphs but the messages: 11 to 13 an iteration, which end where messages and buckets wait for them, and begin where the
# optimizer waits for a bucket.
stages='--dtype fp32 --model gpt --layers 2 --hidden 48 --vocab 96 --pp 2 --micro-batches 2 --batch 4'
for more in '55 60 65 --tp 1 --num-replicas 2' '55 60 65 --tp 1 --num-replicas 2 --link 1GB/s' '35 45 --tp 2 --no-overlap-p2p' '70 80 85 95 --tp 1 --num-replicas 2 --distributed-optimizer'; do
    each=${more%% --*}
    # shellcheck disable=SC2086
    launches "$each" $stages --${more#* --}
    # shellcheck disable=SC2086
    lap check train --target cuda --json --seq 12 --heads 12 --head-dim 4 $stages --${more#* --}
    has '... as lap check train says' "$out" "\"repeated_launches\":$((${each##* } / 5)),"
done
# One hardware queue, in which graphs run their waits as early as they may: keys of a context must not stop what tensor-parallel ranks send.
FAKE_ONE_QUEUE=1 losses --device cuda --dtype fp32 --model gpt --layers 3 --hidden 48 --vocab 96 --batch 2 --seq 36 --tp 2 --cp 3 --iters 10 --no-trace \
    --no-overlap-grad-sync --timeout 20
FAKE_GRAPHS=$work/graphs lap train --auto=no --device cuda --tp 4 --seq 12 --heads 12 --head-dim 4 --iters 6 --no-predict
is 'a run of which three iterations are traced ends well' "$status$err" 0
# The graphs of a pass that is traced are one for each part of it; each may have a kernel that sets memory.
is '... with the signals and the work of others, and fewer kernels for times than for work' "$(awk '
    $3 == 0 && $1 > 0 { plain++; waits += $1; raises += $2; work += $4 }
    $3 > 0 { traced++; waits -= $1; raises -= $2; times += $3; all += $4 }
    END { off = work - all; print (plain > 0), (traced > plain), waits, raises, (off <= traced && -off <= traced), (times < all) }' \
    "$work/graphs")" '1 1 0 0 1 1'
lap train --device cuda --tp 2 --seq 12 --heads 12 --head-dim 4 --iters 2
has 'of two iterations it says that they were traced, and what measuring chose' "$out" 'All iterations were traced' '|-- Overlap, by measurement: '
lap train --auto=no --device cuda --tp 2 --seq 12 --heads 12 --head-dim 4 --iters 3
is 'of three one is traced: that counts' "$(grep -c 'without the first' <<<"$out")" 0
lap train --auto=no --device cuda --tp 2 --seq 12 --heads 12 --head-dim 4 --iters 4 --compare
is '--compare ends well' "$status$err" 0
has '... and says what counts' "$out" 'without the first' 'their times do not count' ' forward and backward, in which communication takes '
# Steps of operators are measured as they are issued, on all ranks at once; those of replicas, too. It changes nothing.
small=(--device cuda --json --auto=no --seq 12 --heads 12 --head-dim 4 --iters 2)
for more in '--tp 3' '--tp 2 --fp8 --link 1GB/s' '--tp 2 --num-replicas 2 --micro-batches 2 --grad-sync-dtype bf16' \
    '--model gpt2-124m --hidden 48 --vocab 96 --layers 2 --batch 1 --tp 2'; do
    # shellcheck disable=SC2086
    lap train "${small[@]}" $more
    ok "a pass is predicted: $more" grep -qE '"predicted_ms":[0-9.]*[1-9]' "$work/out"
    before=$(grep -oE '"loss":[^,]+' "$work/out")
    # shellcheck disable=SC2086
    lap train "${small[@]}" --no-predict $more
    is '... which changes no bit' "$(grep -oE '"loss":[^,]+' "$work/out")" "$before"
done
lap show train "${small[@]:0:3}" --seq 12 --heads 12 --head-dim 4 --tp 2 --predict
ok 'lap show train --predict says when fragments would run' python3 -c '
import json, sys
show = json.load(open(sys.argv[1]))
assert show["predicted_ms"] > 0 and all(0 <= f["begin_ms"] <= f["end_ms"] for f in show["fragments"])' "$work/out"
finish
