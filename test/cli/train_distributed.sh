#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lap train --distributed-optimizer`: replicas that share the optimizer have the losses and norms of one rank on every grid, overlapped or
# not, and the bits of replicas that do not; their state is 12 bytes a parameter for all of them together; checkpoints of pipelines go from and to
# other grids (checkpoint/grids has the rest); what cannot be is refused; a rank that is killed ends the job with its name.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB

# Some norms are above the one that gradients are clipped to, some are not.
small='--auto=no --model gpt --layers 1 --hidden 32 --heads 4 --vocab 64 --seq 8 --global-batch 12 --iters 20 --lr 0.003 --clip-grad 1.2 --no-predict'
shared='--distributed-optimizer --bucket-size 2000'

# numbers ARGUMENTS...: losses and norms of a run, in $numbers. Ranks are threads, which are quicker to start, unless $threads is empty.
threads='--transport self'
numbers() {
    # shellcheck disable=SC2086
    lap train $small $threads --json "$@"
    is "'lap train $*' ends well" "$status$err" 0
    numbers=$(tail -n 1 "$work/out" | grep -oE '"(loss|grad_norm)":[^,]+' | cut -d: -f2)
}
losses() { sed -n 'p;n' <<<"$1"; }
norms() { sed -n 'n;p' <<<"$1"; }

numbers --tp 1
alone=$numbers
ok 'norms are above and below the one that gradients are clipped to' awk 'NR > 1 && $1 > 1.2 { a = 1 } NR > 1 && $1 < 1.2 { b = 1 } END { exit !(a && b) }' <<<"0
$(norms "$alone")"
for grid in '--tp 1 --dp 3' '--tp 2 --cp 2 --dp 2' '--tp 1 --dp 2 --micro-batch 2'; do
    # shellcheck disable=SC2086
    numbers $grid $shared
    is "$grid: 20 steps" "$(wc -l <<<"$numbers")" 40
    ok '... with the losses and norms of one rank' near "$numbers" "$alone" 1e-5
done
first=$numbers
# shellcheck disable=SC2086
numbers --tp 1 --dp 2 --micro-batch 2 $shared
is 'a second run has the same bits' "$numbers" "$first"
# shellcheck disable=SC2086
threads='' numbers --tp 1 --dp 2 --micro-batch 2 $shared
is '... and one whose ranks are processes' "$numbers" "$first"
# shellcheck disable=SC2086
numbers --tp 1 --dp 2 --micro-batch 2 $shared --no-overlap-param-sync
is '... and one that gathers weights after the step, not during forward' "$numbers" "$first"
# shellcheck disable=SC2086
numbers --tp 1 --dp 2 --micro-batch 2 $shared --no-overlap-grad-sync
is '... and one that sends gradients after backward' "$numbers" "$first"
# shellcheck disable=SC2086
numbers --tp 1 --dp 2 --micro-batch 2 $shared --overlap-param-gather-with-optimizer-step
is '... and one that gathers the first weights during the step' "$numbers" "$first"
numbers --tp 1 --dp 2 --micro-batch 2 --distributed-optimizer --bucket-by layer
is '... and one whose buckets end where layers do, in losses' "$(losses "$numbers")" "$(losses "$first")"
ok '... and in norms, but for the order of a sum' near "$(norms "$numbers")" "$(norms "$first")" 1e-12
# shellcheck disable=SC2086
lap check train ${small%% --global-batch*} --batch 12 --tp 1 --dp 2 --distributed-optimizer --bucket-by layer --json
has '... which is proved' "$status $out" '0 ' '"ok":true'
# shellcheck disable=SC2086
lap train $small --tp 2 --dp 2 --compare --quiet $shared
has 'overlapped or not' "$out" 'The losses are the same to the last bit.'

for wire in fp32 bf16; do
    numbers --tp 2 --dp 3 --dtype bf16 --grad-sync-dtype $wire --bucket-size 2000
    plain=$numbers
    # shellcheck disable=SC2086
    numbers --tp 2 --dp 3 --dtype bf16 --grad-sync-dtype $wire $shared
    is "bfloat16, gradients as $wire: the losses of replicas that share nothing, to the last bit" "$(losses "$numbers")" "$(losses "$plain")"
    ok '... and their norms, but for the order of a sum' near "$(norms "$numbers")" "$(norms "$plain")" 1e-12
done

# FP8 weights are made from fp32 ones that are gathered, with the scales that a rank by itself would give them; or made before.
for way in '--tp 2 --dp 2 --fp8=current --dtype bf16' '--tp 1 --cp 2 --dp 2 --fp8=delayed' '--tp 1 --pp 2 --layers 2 --micro-batches 2 --dp 2 --fp8=current'; do
    # shellcheck disable=SC2086
    numbers $way --bucket-size 2000
    plain=$numbers
    # shellcheck disable=SC2086
    numbers $way $shared
    is "$way: the losses of replicas that share nothing, to the last bit" "$(losses "$numbers")" "$(losses "$plain")"
    ok '... and their norms, but for the order of a sum' near "$(norms "$numbers")" "$(norms "$plain")" 1e-12
    plain=$numbers
    # shellcheck disable=SC2086
    numbers $way $shared --no-comm-overlap
    is '... and the same bits without overlap' "$numbers" "$plain"
    # shellcheck disable=SC2086
    numbers $way $shared --fp8-param-gather
    is '... and the losses with weights gathered as FP8' "$(losses "$numbers")" "$(losses "$plain")"
    ok '... and the norms, but for the order of a sum' near "$(norms "$numbers")" "$(norms "$plain")" 1e-12
    for more in '' --fp8-param-gather; do
        # shellcheck disable=SC2086
        lap check train ${small%% --global-batch*} --batch 12 $way $shared $more --json
        has "... which is proved${more:+, too}" "$status $out" '0 ' '"ok":true'
        bytes=${bytes:-$(grep -oE '"parameter_bytes":[0-9]+' "$work/out" | cut -d: -f2)}
    done
    ok '... and needs less memory' test "$(grep -oE '"parameter_bytes":[0-9]+' "$work/out" | cut -d: -f2)" -lt "$bytes"
    unset bytes
done
printf 'fp8: true\nfp8_recipe: tensorwise\nfp8_params: true\noptim:\n  use_distributed_optimizer: true\n' >"$work/model.yaml"
# shellcheck disable=SC2086
lap check train ${small%% --global-batch*} --batch 12 --tp 2 --dp 2 --dtype bf16 --bucket-size 2000 --config "$work/model.yaml" --json
memory=$(grep -oE '"parameter_bytes":[0-9]+' "$work/out")
# shellcheck disable=SC2086
lap check train ${small%% --global-batch*} --batch 12 --tp 2 --dp 2 --dtype bf16 --fp8=current $shared --fp8-param-gather --json
has 'fp8_params of a file of --config is --fp8-param-gather' "$out" "${memory:-none}"

# In pipelines: those of a stage share the optimizer of its weights. Norms are over all stages, then over all that share.
one=$small
small=${small/--layers 1/--layers 4}
for tied in yes no; do
    numbers --tp 1 --tied=$tied
    [ $tied = no ] || tied_alone=$numbers
    alone=$numbers
done
for grid in '--tp 2 --pp 2 --dp 2 --micro-batches 2 --tied=yes' '--tp 1 --pp 2 --virtual-pp 2 --dp 3 --micro-batches 2 --tied=yes' '--tp 1 --pp 2 --cp 2 --dp 2 --micro-batches 2 --schedule zb-h1 --tied=no'; do
    # shellcheck disable=SC2086
    threads='' numbers $grid $shared
    case $grid in *=yes) first=$tied_alone ;; *) first=$alone ;; esac
    is "$grid: 20 steps" "$(wc -l <<<"$numbers")" 40
    ok '... with the losses and norms of one rank' near "$numbers" "$first" 1e-5
    overlapped=$numbers
    # shellcheck disable=SC2086
    numbers $grid $shared --no-comm-overlap
    is '... and the same bits without overlap' "$numbers" "$overlapped"
    # shellcheck disable=SC2086
    numbers $grid $shared --overlap-param-gather-with-optimizer-step
    is '... and with the first weights gathered during the step' "$numbers" "$overlapped"
    # shellcheck disable=SC2086
    lap check train ${small%% --global-batch*} --batch 12 $grid $shared --json
    has '... which is proved' "$status $out" '0 ' '"ok":true'
done
# Before replicas are joined, too, contexts share buckets as they were cut.
# shellcheck disable=SC2086
lap train $small --tp 1 --pp 2 --cp 2 --micro-batches 2 --distributed-optimizer --bucket-by layer --fp8 --iters 1 --debug --quiet
is 'a pipeline of contexts with FP8 weights, a bucket for each layer: what runs is proved' "$status$err" 0
# shellcheck disable=SC2086
lap train $small --tp 1 --pp 2 --dp 2 --micro-batches 2 $shared --iters 12 --save "$work/run" --quiet
is 'a pipeline saves' "$status$err" 0
for grid in '--tp 1 --dp 2' '--tp 2 --pp 2 --dp 2 --micro-batches 2 --distributed-optimizer'; do
    # shellcheck disable=SC2086
    lap train $small $grid --load "$work/run" --json
    has "$grid: goes on" "$status $out" '0 ' '"step":20'
    last=$(tail -n 1 "$work/out" | grep -oE '"(loss|grad_norm)":[^,]+' | cut -d: -f2 | tail -n 16)
    ok '... with the losses and norms of one rank that never stopped' near "$last" "$(tail -n 16 <<<"$tied_alone")" 1e-5
done
rm -r "$work/run"
small=$one

ok 'the state is 12 bytes a parameter, shared, and a bucket' python3 - "$LAP" <<'PY'
import json, subprocess, sys
def proved(*more):
    command = [sys.argv[1], "check", "train", "--json", "--tp", "1", "--hidden", "256", "--heads", "4", "--layers", "4", "--dtype", "bf16",
               "--bucket-size", "64K", *more]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
def state(n, *more):
    it = proved("--dp", str(n), *more)
    assert it["ok"]
    return it["parameter_bytes"] + it["optimizer_bytes"]
for n in 2, 3, 4, 32:
    plain, shared = state(n), state(n, "--distributed-optimizer")
    count = proved("--dp", "2")["optimizer_bytes"] / 8
    allowed = 4 * 65536
    print(f"# {n} replicas: {plain} bytes, shared {shared}, of {count:.0f} parameters")
    assert abs(plain - shared - 12 * count * (1 - 1 / n)) < allowed
PY

for micro in 1 2; do
    # shellcheck disable=SC2086
    lap train ${small%% --global-batch*} --tp 1 --dp 2 $shared --batch 4 --micro-batches $micro --iters 2 --quiet --trace "$work/t.json" --trace-simulated
    is "a trace of $micro micro-batches: status 0" "$status$err" 0
    ok '... of which the first that is simulated gathers its weights' python3 - "$work/t.json" <<'PY'
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
played = {e["pid"] for e in events if e.get("name") == "process_name" and e["args"]["name"].startswith("rank") and "simulated" in e["args"]["name"]}
calls = [e["args"]["call"] for e in events if e["pid"] in played and "call" in e.get("args", {})]
assert len(played) == 2 and any(c.startswith("weights ") for c in calls), set(calls)
PY
done

refuse '--no-overlap-param-sync is for a shared optimizer; expected --distributed-optimizer' --tp 1 --dp 2 --no-overlap-param-sync

refuse '--fp8-param-gather is for a shared optimizer; expected --distributed-optimizer' --tp 1 --dp 2 --fp8 --fp8-param-gather
refuse '--fp8-param-gather is for weights in FP8; expected --fp8 with it' --tp 1 --dp 2 --distributed-optimizer --fp8-param-gather


# The same options and the same file serve one replica, which has no use for them and says so.
printf '%s\n' 'fp8: true' 'fp8_params: true' 'grad_sync_dtype: bf16' 'optim: {name: distributed_fused_adam, overlap_param_sync: false}' >"$work/replicas.yaml"
nobody='lap train: without effect with one replica:'
while IFS='|' read -r options told; do
    # shellcheck disable=SC2086
    same="--layer linear --hidden 16 --seq 4 --batch 4 --iters 2 --json --no-predict ${options/CONFIG/--config $work/replicas.yaml}"
    # shellcheck disable=SC2086
    lap train $same --tp 1
    is "one replica with $options" "$status $err" "0 $told"
    one=$(grep -o '"loss":[^,]*' "$work/out" | cut -d: -f2)
    # shellcheck disable=SC2086
    lap train $same --tp 2
    is '... whose ranks share the weights' "$status $err" "0 $told"
    # shellcheck disable=SC2086
    lap train $same --tp 1 --dp 2
    ok '... and two replicas, with the losses of one' near "$(grep -o '"loss":[^,]*' "$work/out" | cut -d: -f2)" "$one" 1e-3
    is '... and nothing to be told' "$status $err" '0 '
done <<OPTIONS
--distributed-optimizer --bucket-size 100|$nobody --bucket-size, --distributed-optimizer
--no-overlap-grad-sync --bucket-by layer --grad-sync-dtype bf16|$nobody --grad-sync-dtype, --bucket-by, --no-overlap-grad-sync
--distributed-optimizer --fp8 --fp8-param-gather --no-overlap-param-sync|$nobody --distributed-optimizer, --no-overlap-param-sync, --fp8-param-gather
--distributed-optimizer --overlap-param-gather-with-optimizer-step|$nobody --distributed-optimizer, --overlap-param-gather-with-optimizer-step
CONFIG|lap train: $work/replicas.yaml:3: ${nobody#lap train: } grad_sync_dtype, optim.name, --no-overlap-param-sync, fp8_params
OPTIONS
lap check train --layer linear --hidden 16 --seq 4 --tp 1 --distributed-optimizer
is '... lap check train tells it, too' "$status $err" '0 lap check train: without effect with one replica: --distributed-optimizer'
lap train --layer linear --hidden 16 --seq 4 --tp 1 --iters 1 --distributed-optimizer
has '... and lap train where people read' "$out" '|-- without effect with one replica: --distributed-optimizer'
refuse '--link is for ranks that communicate; expected 2 ranks or more' --tp 1 --link ratio:0.5

# A rate at which communication is half of a step without a link, whatever it is of. Other programs take turns with either run, and ranks
# that wait for each other wait for them, too: the quickest steps count, and a factor of 4 is left.
# shellcheck disable=SC2086
over_half_a_link() {
    local same="--layers 1 --hidden 64 --head-dim 32 --seq 128 --batch 4 --tp 1 --iters 20 --no-comm-overlap --json --no-predict $grid"
    lap train $same
    tail -n 1 "$work/out" >"$work/runs"
    lap train $same --link ratio:0.5
    tail -n 1 "$work/out" >>"$work/runs"
}
is_half_of_a_step() {
    python3 - "$work/runs" <<'PY'
import json, sys
plain, run = map(json.loads, open(sys.argv[1]))
ratio = min(it["comm_ms"] for it in run["iterations"]) / min(it["ms"] for it in plain["iterations"])
print("#", run["link"], ratio)
assert run["link"]["emulated"]
sys.exit(not 0.125 < ratio < 2)
PY
}
for grid in '--dp 2' '--dp 2 --distributed-optimizer' '--dp 2 --micro-batches 2' '--model gpt --vocab 64 --cp 2 --batch 1' '--model gpt --vocab 64 --layers 2 --pp 2 --micro-batches 2'; do
    ok_in_three "$grid: --link ratio:0.5" over_half_a_link is_half_of_a_step
done

printf 'optim:\n  use_distributed_optimizer: true\n' >"$work/model.yaml"
bytes() { lap check train --json --tp 1 --dp 2 "$@" && grep -oE '"optimizer_bytes":[0-9]+' "$work/out"; }
is 'a file of --config has it, too' "$(bytes --config "$work/model.yaml")" "$(bytes --distributed-optimizer)"

# shellcheck disable=SC2086
lap show train ${small%% --global-batch*} --tp 1 --dp 2 $shared
has 'it is shown: gradients are reduce-scattered, weights gathered' "$status $out" '0 ' 'external RS direct' 'weights 0' 'squares_shards'
order() { grep -nE " $1 " "$work/out" | head -n 1 | cut -d: -f1; }
ok '... a bucket ahead: those of the head travel when attention runs, and not before the embedding' test "$(order 'embedding')" -lt "$(order 'weights 0')" -a "$(order 'weights 0')" -lt "$(order 'head_fprop')"

# shellcheck disable=SC2086
lap show train ${small%% --global-batch*} --layers 2 --tp 1 --pp 2 --dp 2 --micro-batches 2 $shared
ok 'so it is in a step of a pipeline' test "$(order '0F0 tokens')" -lt "$(order 'weights 0')" -a "$(order 'weights 0')" -lt "$(order '0F1 tokens')"
# shellcheck disable=SC2086
lap show train ${small%% --global-batch*} --layers 2 --tp 1 --pp 2 --dp 2 --micro-batches 2 $shared --no-overlap-param-sync
ok '... unless weights are gathered before it: after the update' test "$(order 'weights 0')" -gt "$(order 'update')"

# Without overlap, on a GPU too, where a whole step is one graph: no step runs between two others that it needs not wait for.
for more in '' '--pp 2 --micro-batches 2'; do
    # shellcheck disable=SC2086
    lap show train ${small%% --global-batch*} --layers 2 --tp 1 --dp 2 $more $shared --no-overlap-grad-sync --no-overlap-param-sync --target cuda --json
    ok "gradients travel after backward, weights after the update, and nothing at the same time${more:+, $more}" python3 - "$work/out" <<'PY'
import json, sys
fragments = json.load(open(sys.argv[1]))["fragments"]
over, last = {}, {}  # of each step of a fragment: the steps before it; of each stream: its latest
for f, fragment in enumerate(fragments):
    for step in fragment["steps"]:
        key = f, step["step"]
        needed = {(link["after_fragment"], link["after_step"]) for link in fragment["links"] if link["step"] == step["step"]}
        needed |= {(f, i) for i in step["after"]} | {last[s] for s in [step["stream"]] if s in last}
        over[key] = needed.union(*(over[e] for e in needed))
        last[step["stream"]] = key
serial = {f for f, it in enumerate(fragments) if it["name"].startswith(("bucket ", "weights "))}
assert len(serial) > 4, serial
for f, i in over:
    missing = [e for e in over if e[0] < f and (f in serial or e[0] in serial) and e not in over[f, i]]
    assert not missing, (f, i, missing[:3])
PY
done

# shellcheck disable=SC2086
lap show train ${small%% --global-batch*} --tp 1 --dp 2 $shared --overlap-param-gather-with-optimizer-step
ok 'with the step: weights are gathered between its updates' awk '/ update / { n++ } / step .* weights [0-9]+ +external AG/ && n { between = n } END { exit !(between && between < n) }' "$work/out"
# shellcheck disable=SC2086
lap check train ${small%% --global-batch*} --tp 1 --dp 2 $shared --overlap-param-gather-with-optimizer-step --json
has '... which is proved' "$status $out" '0 ' '"ok":true'
printf 'optim:\n  use_distributed_optimizer: true\n  overlap_param_gather_with_optimizer_step: true\n' >"$work/model.yaml"
# shellcheck disable=SC2086
lap show train ${small%% --global-batch*} --tp 1 --dp 2 --bucket-size 2000 --config "$work/model.yaml"
ok '... and a file of --config says so' grep -qE ' step .* weights [0-9]+ +external AG' "$work/out"
refuse '--overlap-param-gather-with-optimizer-step is for weights gathered during forward; expected no --no-overlap-param-sync' --tp 1 --dp 2 --distributed-optimizer --no-overlap-param-sync --overlap-param-gather-with-optimizer-step

# Norms are summed when backward ends: they hold up no matrix.
lap show train --layer transformer --layers 2 --hidden 64 --head-dim 16 --seq 16 --tp 1 --dp 2 --distributed-optimizer --bucket-size 1000
buckets=$(grep -oE 'bucket [0-9]+ +external RS' "$work/out" | grep -oE '[0-9]+')
is 'gradients travel in the order in which backward makes them' "$buckets" "$(seq 0 $(($(wc -l <<<"$buckets") - 1)))"
ok '... but for the last ones, while it goes on' test "$(order "bucket $(($(wc -l <<<"$buckets") - 2))")" -lt "$(order sums)"

# What is hidden is that of weights, since no gradient is, whether or not a file of the timeline is written.
# shellcheck disable=SC2086
share_weights() {
    lap train --layer transformer --layers 2 --hidden 192 --seq 512 --batch 2 --tp 1 --dp 2 --iters 3 --bucket-size 64K --link 120MB/s --json --no-predict --distributed-optimizer --no-overlap-grad-sync $more
}
hides_weights() {
    python3 - "$work" "$more" <<'PY'
import json, sys
run = json.loads(open(sys.argv[1] + "/out").readlines()[-1])
for it in run["iterations"]:
    assert it["comm_ms"] > 20 and it["waited_ms"] < it["ms"], it
    assert it["exposed_ms"] <= 1.05 * it["waited_ms"] + 1, it
assert max(it["hidden_ms"] / it["comm_ms"] for it in run["iterations"]) > 0.15, run["iterations"]
if sys.argv[2]:
    ranks = json.load(open(sys.argv[1] + "/shared.json"))["lapstrake"]["measured"]["by_rank"]
    work = sum(rank["compute_ms"] for rank in ranks) / len(ranks)
    last = run["iterations"][-1]
    assert work + last["waited_ms"] < 1.02 * last["ms"] + 1, (work, last)
PY
}
for more in '' "--trace $work/shared.json"; do
    ok_in_three "what is waited is no more than what a step has besides its work${more:+, with --trace}" share_weights hides_weights
done

kills_one 3 train --model gpt --layers 1 --seq 64 --tp 1 --dp 3 --iters 1000000 --quiet --timeout 20 --distributed-optimizer
finish
