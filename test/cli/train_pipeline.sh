#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Pipelines of `lap train`: any schedule has the losses and norms of one rank, with tensor-parallel ranks, contexts and replicas; tables that are
# wrong are refused before a rank starts; a rank that is killed is named; checkpoints go from one pipeline to another; and lap check and lap
# show take the same options.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB

small='--auto=no --model gpt --layers 4 --hidden 24 --heads 6 --vocab 61 --seq 8 --batch 8 --micro-batches 4 --iters 4 --lr 0.002'

# figures ARGUMENTS...: losses and norms of the steps of a run, in $losses and $norms.
figures() {
    # shellcheck disable=SC2086
    lap train --json $small "$@"
    is "'lap train $*' ends well" "$status$err" 0
    losses=$(tail -n 1 "$work/out" | grep -oE '"loss":[^,]+' | cut -d: -f2)
    norms=$(tail -n 1 "$work/out" | grep -oE '"grad_norm":[^,]+' | cut -d: -f2)
}

refuse() {
    local words=$1
    shift
    # shellcheck disable=SC2086
    lap train $small "$@"
    is "'lap train $*' is refused in one line" "$status$out $(wc -l <"$work/err")" '2 1'
    has '... that says why' "$err" "$words"
}

# ---- grids ----

figures --tp 1 --no-predict # measuring for a prediction is half of the time of so small a model: it is made once for each grid
alone=$losses alone_norms=$norms
cat >"$work/table.csv" <<'EOF'
0F0,0F1,,0F2,0B0,0F3,0B1,,0B2,,0B3
,1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3
EOF
for grid in '--tp 2 --pp 2 --dp 2 --schedule zb-h1' '--tp 1 --pp 3 --layers-per-stage 2,1,1' "--tp 1 --pp 2 --schedule $work/table.csv"; do
    # shellcheck disable=SC2086
    figures $grid
    ok '... with the losses of one rank' near "$losses" "$alone" 1e-5
    ok '... and its norms' near "$norms" "$alone_norms" 1e-5
done
# A stage for each layer: the same sums, in the same order.
many='--layers 40 --tied=no --no-predict'
# shellcheck disable=SC2086
figures $many --tp 1
one=$losses
# shellcheck disable=SC2086
figures $many --tp 1 --pp 2 --virtual-pp 20
is '20 stages on each of two ranks: the losses of one rank to the last bit' "$losses" "$one"
# shellcheck disable=SC2086
lap check train $small --layers 40 --tp 1 --pp 2 --virtual-pp 20 --fp8
has '... which are proved, with FP8 too' "$status $out" '0 ' "a step with all its messages and the optimizer's is proved safe"
figures --tp 1 --pp 2 --schedule "$work/table.csv" --no-predict
once=$losses$norms
figures --tp 1 --pp 2 --schedule "$work/table.csv" --no-overlap-p2p
is 'messages in line with computing: the same bits' "$losses$norms" "$once"

# ---- FP8 ----

# Each micro-batch has its own scales wherever it is, or all of a step have the same: stages change nothing but the order of sums.
for recipe in current delayed; do
    figures --tp 1 --fp8=$recipe --no-predict
    ok 'FP8 has losses of its own' eval '! near "$losses" "$alone" 1e-5'
    scaled=$losses scaled_norms=$norms
    grids=('--tp 1 --pp 2 --no-predict' '--tp 2 --pp 2 --schedule zb-h1')
    if [ $recipe = current ]; then
        grids+=('--tp 1 --pp 2 --dp 2 --virtual-pp 2 --micro-batches 2')
    else
        grids+=('--tp 1 --pp 2 --virtual-pp 2' '--tp 1 --pp 2 --schedule zb-v --no-predict' "--tp 1 --pp 2 --schedule $work/table.csv --no-predict")
    fi
    for grid in "${grids[@]}"; do
        # shellcheck disable=SC2086
        figures $grid --fp8=$recipe
        ok '... with the losses of one rank, in FP8' near "$losses" "$scaled" 1e-5
        ok '... and its norms' near "$norms" "$scaled_norms" 1e-5
    done
    # shellcheck disable=SC2086
    lap check train $small --tp 2 --pp 2 --schedule zb-h1 --fp8=$recipe
    has 'a pipeline in FP8 is proved' "$status $out" '0 ' "a step with all its messages and the optimizer's is proved safe"
done
# Without the sum of tied gradients, whose order is another one, nothing but the order of norms is left.
figures --tp 1 --fp8 --tied=no
scaled=$losses
figures --tp 1 --pp 2 --virtual-pp 2 --fp8 --tied=no
is 'delayed scaling: the losses of one rank to the last bit' "$losses" "$scaled"
# Replicas have other micro-batches each, and so other scales than one rank.
figures --tp 1 --dp 2 --micro-batches 2 --fp8
scaled=$losses$norms
figures --tp 1 --pp 2 --dp 2 --virtual-pp 2 --micro-batches 2 --fp8
ok 'delayed scaling with stages and replicas: the losses of the same replicas' near "$losses$norms" "$scaled" 1e-5

# ---- what messages cost ----

# A message is a micro-batch of 2 x 8 tokens of 24 floats: 7.68 ms at 200 kB/s, and four go to each of the two ranks.
# shellcheck disable=SC2086
lap train --json $small --iters 1 --tp 1 --pp 2 --tied=no --link 200kB/s
pp=$(head -n 1 "$work/out" | grep -oE '"pp":\{[^}]*\}')
real() { awk "BEGIN { exit !($1 $2 $3) }"; }
of() { grep -oE "\"$1\":[^,}]+" <<<"$pp" | cut -d: -f2; }
ok 'the messages to a rank are on their way as long as the link takes' real "$(of comm_ms)" '>=' 30.72
ok '... hidden or not' real "$(of hidden_ms)" '<=' "$(of comm_ms)"
ok '... and a rank waits for other stages' real "$(of bubble_ms)" '>' 0
# shellcheck disable=SC2086
lap train $small --iters 2 --tp 1 --pp 2 --tied=no --link 200kB/s --no-overlap-p2p --assert-hidden 50
is 'in line with computing nothing is hidden that a rank sends: half of all' "$status" 4
has '... says --assert-hidden' "$err" '--assert-hidden 50: ' ' % of communication was hidden'
has '... and the table has the messages, and the bubble' "$out" 'messages between stages' 'bubble '
# Messages from both neighbours come at once to the rank between them: their row is no sum, and a part of all that is between stages.
# shellcheck disable=SC2086
lap train --json $small --iters 1 --tp 1 --pp 3 --tied=no --link 200kB/s
pp=$(head -n 1 "$work/out" | grep -oE '"pp":\{[^}]*\}')
messages=$(tail -n 1 "$work/out" | grep -oE '"messages":\{[^}]*\}')
row() { grep -oE "\"$1\":[^,}]+" <<<"$messages" | cut -d: -f2; }
ok 'messages that are on their way at once count once in their row' real "$(row comm_ms)" '<=' "1.00001 * $(of comm_ms)"
ok '... and so do waits for them' real "$(row waited_ms)" '<=' "1.00001 * $(of waited_ms)"
ok '... and what of them is not hidden is exposed' real "$(row comm_ms) - $(row hidden_ms) - $(row exposed_ms)" '<=' 0.001
# shellcheck disable=SC2086
lap train --json $small --iters 1 --tp 2 --pp 2 --dp 2
ok 'the communication of a step is told by kind' grep -q '"comm":{"tp":{.*"pp":{.*"dp":{' "$work/out"
ok '... and the grid is, with its schedule' grep -q '^{"layer":"model","tp":2,"cp":1,"pp":2,"dp":2,"schedule":"1f1b",' "$work/out"
ok '... with the GEMMs of all stages' grep -q '"gemm":"qkv_fprop".*"gemm":"head_wgrad"' "$work/out"
# 190 ms of gradients after a backward of a few: the end of the passes does not wait for them.
# shellcheck disable=SC2086
with_replicas() {
    lap train --json $small --iters 1 --tp 1 --pp 2 --dp 2 --tied=no --link 400kB/s
    pp=$(head -n 1 "$work/out" | grep -oE '"dp":\{[^}]*\}')
}
are_exposed() { real "10 * $(of exposed_ms)" '>' "$(of comm_ms)"; }
ok_in_three 'gradients that are in flight after the passes are exposed, in a pipeline too' with_replicas are_exposed

# 185 ms of gradients that contexts sum after the passes: the prediction of the passes, of 120 ms, has none of them.
# shellcheck disable=SC2086
with_contexts() {
    lap train --json $small --iters 1 --tp 1 --pp 2 --cp 2 --tied=no --link 400kB/s --no-overlap-grad-sync
    pp=$(grep -oE '"dp":\{[^}]*\}|"predicted_ms":[0-9.]+' "$work/out")
}
are_apart() { echo "$pp" && real "$(of predicted_ms)" '<' "1.5 * $(of comm_ms)"; }
ok_in_three '... and no part of the prediction of passes' with_contexts are_apart

# ---- what is refused ----

printf '0F0,0F1,0F2,0B0,0B1,0B2,0B3\n,1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n' >"$work/missing.csv"
refuse "rank 0, action 6, 0B3: its forward does not come before it" --tp 1 --pp 2 --schedule "$work/missing.csv"
printf '0F0,0B0,0F1,0F2,0F3,0B1,0B2,0B3\n1F0,1F1,1B0,1B1,1F2,1B2,1F3,1B3\n' >"$work/deadlock.csv"
refuse "deadlock: rank 0, action 1, 0B0 waits for 1B0" --tp 1 --pp 2 --schedule "$work/deadlock.csv"
refuse '--virtual-pp is 1 with --schedule interleaved; expected 2 to 128' --tp 1 --pp 2 --schedule interleaved --virtual-pp 1
refuse "$work/table.csv is for 2 ranks, expected the 3 of the pipeline" --tp 1 --pp 3 --schedule "$work/table.csv"
refuse "lap train: --micro-batches is 2, expected the 4 that $work/table.csv is for" --tp 1 --pp 2 --schedule "$work/table.csv" --micro-batches 2
refuse "no pipeline schedule '1f1', expected 1f1b, interleaved, zb-h1, zb-v or 1f1b-eager; did you mean 1f1b?" --tp 1 --pp 2 --schedule 1f1
refuse '--layers is 4, expected at least one for each of 5 stages' --tp 1 --pp 5
refuse '--layers is 1, expected at least one for each of 2 stages' --tp 1 --pp 2 --layers 1
refuse 'layers are given for 1 stage, expected 2' --tp 1 --pp 2 --layers-per-stage 4
refuse 'zb-v has 1 stage on a rank, expected 2' --tp 1 --pp 2 --schedule zb-v --virtual-pp 1
refuse "--virtual-pp is '129'; expected a whole number from 1 to 128" --tp 1 --pp 2 --virtual-pp 129
refuse 'interleaved has 1 micro-batch, expected a multiple of its 2 ranks' --tp 1 --pp 2 --virtual-pp 2 --micro-batches 1
# Nobody has said how many: an interleaved pipeline has as many as ranks, or says what does not fit that.
plain='--auto=no --model gpt --layers 4 --hidden 24 --heads 6 --vocab 61 --seq 8 --iters 1 --no-trace --no-predict --json'
for options in '--virtual-pp 2' '--schedule interleaved' '--virtual-pp 2 --batch 4 --dp 2' '--virtual-pp 2 --micro-batch 1 --batch 2'; do
    # shellcheck disable=SC2086
    lap train $plain --pp 2 $options
    is "$options: as many micro-batches as ranks" "$status $(grep -oE '"micro_batches":[0-9]+' <<<"$out")" '0 "micro_batches":2'
done
# shellcheck disable=SC2086
lap train $plain --pp 2 --virtual-pp 2 --batch 3
is '... a batch that is not so many' "$status $err" \
    '2 lap train: --batch is 3; expected a multiple of 2: 1 replica times 2 micro-batches, the fewest of an interleaved pipeline'
# shellcheck disable=SC2086
lap train $plain --pp 2 --virtual-pp 2 -b 3
is '... of each replica' "$status $err" '2 lap train: -b is 3; expected a multiple of the 2 micro-batches, the fewest of an interleaved pipeline'
refuse 'the stages have 3 layers, expected the 4 of the model' --tp 1 --pp 2 --layers-per-stage 2,1
refuse "--layers-per-stage is '2,x'; expected numbers of layers" --tp 1 --pp 2 --layers-per-stage 2,x
refuse "--layers-per-stage is '4,0'; expected numbers of layers, 1 or more" --tp 1 --pp 2 --layers-per-stage 4,0
refuse 'interleaved has 4 micro-batches, expected a multiple of its 3 ranks' --tp 1 --pp 3 --schedule interleaved --layers 6
refuse '--schedule is for pipelines; expected --pp 2 or more with it' --tp 1 --schedule 1f1b
lap train --layer transformer --tp 1 --pp 2
has 'only models have stages' "$status $err" '2 ' '--pp is 2; expected --model with it'

# ---- proofs and pictures ----

for options in '--pp 2' '--tp 2 --pp 2 --schedule zb-h1' '--pp 2 --schedule zb-v' '--pp 2 --virtual-pp 2 --no-overlap-p2p' '--pp 2 --target cuda'; do
    # shellcheck disable=SC2086
    lap check train $small --tp 1 $options
    has "lap check train $options" "$status $out" '0 ' "a step with all its messages and the optimizer's is proved safe" "pipeline of 2 ranks"
done
# One rank has both ends of the model, and its stages add to the gradient of tied weights as the table has them.
# shellcheck disable=SC2086
lap check train $small --tp 1 --pp 2 --schedule zb-v --micro-batches 1 --tied
has '... and of a single micro-batch, whose tied weights are on one rank' "$status $out" '0 ' "a step with all its messages and the optimizer's is proved safe"
# shellcheck disable=SC2086
lap check train $small --heads 4 --tp 2 --pp 2 --cp 2 --dp 2
has 'all four at once: 16 ranks' "$status $out" '0 ' '8 ranks in each of 2 replicas' 'context of 2 ranks' "a step with all its messages and the optimizer's is proved safe"
# shellcheck disable=SC2086
lap check train $small --tp 1 --pp 2 --schedule "$work/deadlock.csv"
has 'a deadlock is no proof' "$status $err" '2 ' 'deadlock: rank 0, action 1'
# shellcheck disable=SC2086
lap show train $small --tp 1 --pp 2 --rank 1
has 'lap show train shows a stage with its messages' "$status $out" '0 ' 'receive 1F0' '1F0 qkv_fprop' 'send 1B3' 'slot0.x' 'message'

# ---- checkpoints ----

figures --tp 1 --pp 2 --save "$work/saved" --save-every 2
rm -r "$work/saved/step-00000004"
for grid in '--tp 1' '--tp 2 --pp 2' '--tp 1 --pp 3 --layers-per-stage 1,1,2 --schedule zb-h1'; do
    # shellcheck disable=SC2086
    figures $grid --load "$work/saved"
    ok "a checkpoint of two stages goes on with $grid" near "$(tail -n 2 <<<"$losses")" "$(tail -n 2 <<<"$alone")" 1e-5
done
figures --tp 1 --save "$work/whole" --save-every 2
rm -r "$work/whole/step-00000004"
figures --tp 1 --pp 2 --schedule zb-v --load "$work/whole"
ok 'one of one rank goes on in a pipeline' near "$(tail -n 2 <<<"$losses")" "$(tail -n 2 <<<"$alone")" 1e-5

# ---- a killed rank ----

# shellcheck disable=SC2086
"$LAP" train $small --tp 1 --pp 3 --iters 100000 --timeout 60 >"$work/out" 2>"$work/err" &
launcher=$!
third_step() { grep -q 'Step 3/' "$work/out"; }
until_true third_step
kill -KILL "$(pid_of 2)"
collect
is 'a rank of a pipeline is killed: the job ends at once, with the signal' "$status" 137
has '... and names it' "$err" 'rank 2 (pid' 'killed by signal 9'
tell() { grep -qE "^lap train: (ranks 0, 1|rank $1): peer lost: " "$work/err"; }
has '... by its death' "$err" 'has died'
ok '... as the other ranks do' tell 0
ok '... both of them' tell 1
finish
