#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Why ranks of `lap train` stand still, whatever they share: a rank whose GEMM begins late, a slow link, or more ranks than cores. The causes
# add up in each object, by kind and in all. `script.sh LAP`, where LAP is the command with faults.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/tap.bash"
# shellcheck source=causes.bash
. "$(dirname "$0")/causes.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB

small=(train --auto=no --model gpt --hidden 64 --heads 8 --ffn 128 --layers 2 --seq 64 --batch 8 --no-predict --json)
everything='
for step in steps:
    for part in [step] + list(step["comm"].values()):
        causes(part)
for row in [it["gradients"], it["collectives"]] + it["iterations"] + it["gemms"] + ([it["messages"]] if "messages" in it else []):
    causes(row)
size = it["tp"] * it["cp"] * it["pp"] * it["dp"]'

# ---- a rank that is late ----

# late GRID RANKS KINDS GEMM: the second that rank 1 is late with a GEMM is waited for by as many other ranks, in groups of these kinds.
late() {
    local grid=$1 ranks=$2
    # shellcheck disable=SC2086
    mostly "a late rank, $grid" "$everything" "
step = max(steps, key=lambda step: step['waited_late_ms'])
for part, least in [(step, $ranks)] + [(step['comm'][kind], 1) for kind in '$3'.split()]:
    assert causes(part)['late'] * size > 900 * least and causes(part)['wire'] < 0.1 * causes(part)['late'], step" \
        env LAP_FAULT="delay 1 $4 1000" "$LAP" "${small[@]}" --iters 2 $grid
}
late '--tp 2' 1 tp 80
late '--tp 1 --cp 2' 1 cp 130
late '--tp 1 --cp 2 --cp-comm-type a2a' 1 cp 130
late '--tp 1 --cp 4 --cp-comm-type a2a+p2p' 3 cp 130
late '--tp 2 --cp 2' 3 'tp cp' 80
late '--tp 1 --cp 2 --dp 2' 1 cp 90
late '--tp 1 --dp 2 --distributed-optimizer' 1 dp 130
# A stage that is late makes a bubble.
mostly 'a late stage' "$everything" '
step = max(steps, key=lambda step: step["comm"]["pp"]["bubble_ms"])
assert step["comm"]["pp"]["bubble_ms"] * size > 900, step' \
    env LAP_FAULT='delay 1 80 1000' "$LAP" "${small[@]}" --iters 2 --tp 1 --pp 2 --micro-batches 2

# ---- a slow link ----

# A rank that does not compute while data are on their way waits, mostly for the wire, or is in the bubble of a pipeline. What one group has in
# flight may be exposed by a wait for another: waits of the groups add up to those of all.
for grid in '--tp 2' '--tp 1 --cp 2' '--tp 2 --cp 2' '--tp 1 --cp 4 --cp-comm-type a2a+p2p' '--tp 1 --cp 2 --dp 2' '--tp 1 --dp 2 --distributed-optimizer' \
    '--tp 1 --pp 2 --micro-batches 2 --link 500kB/s'; do
    # shellcheck disable=SC2086
    mostly "a slow link, $grid" "$everything" '
for step in steps:
    kinds, bubble = step["comm"].values(), step["comm"].get("pp", {}).get("bubble_ms", 0)
    assert 0.8 * step["exposed_ms"] < step["waited_ms"] + bubble and causes(step)["wire"] == max(causes(step).values()), step
    for part in [step] + [part for part in kinds if part["comm_ms"] > 50]:
        assert causes(part)["wire"] < 1.2 * part["comm_ms"], step
    assert sum(causes(part)["wire"] for part in kinds) > 0.99 * causes(step)["wire"], step' \
        "$LAP" "${small[@]}" --iters 2 --link 2MB/s $grid
done

# ---- more ranks than cores ----

cores=$(two_cores)
for grid in '--tp 8' '--tp 1 --cp 8' '--tp 1 --cp 2 --dp 4' '--tp 1 --dp 8 --distributed-optimizer' '--tp 1 --pp 8 --layers 8 --micro-batches 8'; do
    # shellcheck disable=SC2086
    mostly "8 ranks on 2 cores, $grid" "$everything" '
total = {c: sum(causes(step)[c] for step in steps[1:]) for c in ("wire", "late", "core")}
assert total["core"] > max(total["wire"], total["late"]), total' \
        timeout 120 taskset -c "$cores" "$LAP" "${small[@]}" --iters 4 $grid
done
# Who waits in a call of one group for a rank that waits in a call of another waits for a late rank, whatever that one waits for. The more
# other programs take of the cores, the more of this there is, up to about half of all.
mostly '8 ranks on 2 cores, two groups' "$everything" '
total = {c: sum(causes(step)[c] for step in steps[1:]) for c in ("wire", "late", "core")}
assert total["core"] > sum(total.values()) / 3 and total["wire"] < 0.05 * sum(total.values()), total' \
    timeout 120 taskset -c "$cores" "$LAP" "${small[@]}" --iters 4 --tp 2 --cp 4

finish
