#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the figures of `lap bench` and `lap train` say of themselves: what ranks wait for adds up, and the right
# one where a link is slow or cores are few; columns have names of their own; objects tell where, when and with what they were measured.
# Nothing here depends on how fast the machine is.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/tap.bash"
limit=120
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
# shellcheck source=causes.bash
. "$(dirname "$0")/causes.bash"

# ---- causes ----

# 2 MiB to each of two peers take 400 ms at this rate, and the GEMM next to nothing.
mostly 'a slow link' '
for method in it["methods"]:
    parts = causes(method["traced"])
    assert method["traced"]["sent_bytes"] >= 2 << 20 and 0 < method["wire_gbps"] < 0.2, method' '
    assert parts["wire"] > 0.6 * method["traced"]["waited_ms"], method' \
    "$LAP" bench ag 1536 3 1024 --ranks 3 --iters 1 --warmup 0 --method serial,direct --link 10MB/s --json

cores=$(two_cores)
mostly '8 ranks on 2 cores' '
assert it["local_ranks"] == 8 and it["cores"] <= 2, it
share = [causes(method["traced"])["core"] / method["traced"]["waited_ms"] for method in it["methods"]]' '
assert sorted(share)[len(share) // 2] > 0.6, share' \
    timeout 120 taskset -c "$cores" "$LAP" bench ag 2048 1024 512 --ranks 8 --iters 2 --warmup 1 --json
timeout 120 taskset -c "$cores" "$LAP" bench ag 64 64 64 --ranks 8 --iters 1 >"$work/out" 2>"$work/err" </dev/null
is '... and a table says so, once' "$(grep -c '^8 ranks share [12] cores*: ' "$work/out")" 1
timeout 120 taskset -c "$cores" "$LAP" bench sweep ag --m 8:16 --n 64 --k 64 --ranks 8 --iters 1 >"$work/out" 2>"$work/err" \
    </dev/null
is '... a sweep, too' "$(grep -c '^8 ranks share [12] cores*: ' "$work/out")" 1
lap bench ag 8 8 8 --ranks 1 --iters 1
is '... and not where they are enough' "$(grep -c 'ranks share' "$work/out")" 0

# Of layers, and of gradients on their way to replicas; of each iteration and of each GEMM.
layer='--auto=no --layer layernorm_mlp --seq 64 --heads 4 --head-dim 16'
everything='
rows = [it["gradients"]] + it["iterations"] + it["gemms"]
for row in rows:
    causes(row)
total = {c: sum(row["waited_" + c + "_ms"] for row in it["iterations"][1:]) for c in ("wire", "late", "core")}
share = {c: total[c] / sum(total.values()) for c in total}'
# shellcheck disable=SC2086
mostly 'training over a slow link' "$everything" '
assert share["wire"] > 0.6, share' \
    "$LAP" train $layer --tp 2 --num-replicas 2 --iters 4 --link 100kB/s --micro-batches 2 --batch 4 --json
holds '... tokens and bytes' '
assert it["tokens"] == 256 and it["wire_gbps"] > 0, it
for row in it["iterations"]:
    assert abs(row["tokens_per_s"] - 256e3 / row["ms"]) < 1e-4 * row["tokens_per_s"], row'
# Three GEMMs of each of two matrices, 256 x 64, of which a rank has half, with the 128 tokens of its replica.
holds '... the work of a rank is its share of the GEMMs' '
assert it["gemm_flops"] == 6 * 2 * 128 * 256 * 64 / 2, it["gemm_flops"]'
mostly 'training on 8 ranks and 2 cores' "$everything" '
assert share["core"] > max(share["wire"], share["late"]), share' \
    timeout 120 taskset -c "$cores" "$LAP" train --auto=no --layer layernorm_mlp --tp 8 --seq 256 --heads 8 --head-dim 32 --iters 5 --json

# Where a link has a latency, calls of backward are in flight together, and a rank waits for several of them at once.
train_with_latency() {
    lap train --auto=no --layer transformer --heads 4 --head-dim 16 --seq 32 --layers 2 --tp 2 --link 100MB/s,1ms --iters 3 --no-predict --json
}
ok_in_three 'a pause that several calls have counts once: it is part of the row of one' train_with_latency is_so '
rows = sum(row["waited_ms"] for row in it["gemms"]) + it["collectives"]["waited_ms"]
mean = sum(row["waited_ms"] for row in it["iterations"][1:]) / 2 # of two, as their median is
assert rows < 1.08 * mean, (rows, it["iterations"])'
holds '... and none is longer than the iteration' '
for row in it["iterations"]:
    causes(row)
    assert 0 < row["waited_ms"] < row["ms"], row'

# ---- efficiency ----

lap bench ag 512 64 64 --ranks 2 --iters 5 --method all,auto --json
holds 'E has an error bar, or a reason why it is not printed' '
for method in it["methods"]:
    e, noise, why = method["efficiency"], method["efficiency_noise"], method["no_efficiency"]
    assert (e is None) == (why is not None), method
    assert e is None or noise < 0.5 and noise < abs(e), method
    assert why != "noise" or noise >= 0.5 or noise >= abs(1 - method["ect_ms"] / it["methods"][0]["ect_ms"]), method
    picked = method["picked"] or method["method"]
    assert (why == "serial") == (picked.split(":")[0] == "serial"), method'
# Nothing beats serial on one rank, and auto knows.
lap bench ag 64 64 64 --ranks 1 --iters 3 --method auto --json
holds 'auto that picked serial has no E' '
method = it["methods"][0]
assert method["picked"] == "serial" and method["efficiency"] is None and method["no_efficiency"] == "serial", method'
holds 'error, tolerance and what is made of them agree' '
for method in it["methods"]:
    assert method["ok"] and 0 <= method["error"] <= method["tolerance"], method
    assert abs(method["error_over_tolerance"] - method["error"] / method["tolerance"]) < 1e-5, method'
lap bench sweep ag --m 64:128 --n 64 --k 64 --ranks 2 --iters 1 --link 1GB/s,3ms
is 'one round of a sweep has no noise, and so no star' "$(grep -c '^\*  *[0-9]' "$work/out")" 0
lap bench sweep ag --m 64:128 --n 64 --k 64 --ranks 2 --iters 3 --json
holds 'a star of a sweep is a difference beyond the noise' '
for point in it["points"]:
    serial, best = (point["serial_ms"], point["serial_noise_ms"]), (point["best_ms"], point["best_noise_ms"])
    assert point["overlap_pays"] == (best[0] + best[1] < serial[0] - serial[1] and point["best"] != "serial"), point'

# ---- tables, pictures, objects ----

# The words of a heading, of which some belong together, are there once.
unique() {
    sed -n "$1" "$work/out" | sed 's/total ms/total/; s/ECT ms/ECT/; s/. GEMM/xGEMM/; s/. base/xbase/; s/, noise/_noise/g
        s/auto picked/picked/; s/one call/call/' | tr -s ' ' '\n' | sort | uniq -d | grep -v '^$'
}
lap bench rs 64 64 64 --ranks 2 --iters 2 --method all,auto --timeline "$work/t.svg"
is 'no two columns have the same name: times' "$(unique '/^  method /p')" ''
is '... causes' "$(unique '/^  one call /p')" ''
has '... and the tolerance is there' "$out" ' tolerance '
ok 'the timeline says which call it is' grep -q ': call [1-5] of 5, the median</text>' "$work/t.svg"
rm "$work/t.svg"
lap bench sweep rs --m 8:16 --n 64 --k 64 --ranks 2 --iters 2
is '... sweeps' "$(unique '/^ *M  *GEMM /p')" ''
lap bench rs 64 64 64 --ranks 2 --iters 2 --quiet
is '--quiet: tables, and no words about them' "$status $(grep -c 'verdict\|tolerance' "$work/out") $(grep -c 'Medians' "$work/out")" '0 2 0'
lap bench rs 64 64 64 --ranks 2 --iters 2 --no-trace
is '--no-trace: nothing is printed of what was exposed' "$status $(grep -c 'waited\|hidden: ' "$work/out")" '0 0'
lap bench rs 64 64 64 --ranks 2 --iters 2 --no-trace --timeline "$work/t.svg"
is '... and there is no picture' "$status $(wc -l <"$work/err")" '2 1'

about='
import datetime
assert it["host"] == socket.gethostname() and it["cpu"] and it["gpu"] is None, it
assert re.fullmatch(r"\d+\.\d+\.\d+", it["version"]) and it["commit"], it
then = datetime.datetime.strptime(it["date"], "%Y-%m-%dT%H:%M:%S%z")
assert abs((datetime.datetime.now(datetime.timezone.utc) - then).total_seconds()) < 300, it["date"]'
lap bench ag 8 8 8 --ranks 1 --iters 1 --seed 77 --json
holds 'host, CPU, version, commit, seed and date: bench' "$about"'
assert it["seed"] == 77 and it["gemm_flops"] == 2 * 8 ** 3, it'
lap bench sweep ag --m 8:8 --n 8 --k 8 --ranks 1 --iters 1 --seed 78 --json
holds '... sweep' "$about"'
assert it["seed"] == 78, it'
lap bench latency --iters 5 --json
holds '... latency' "$about"
lap check ag --ranks 2 --json
holds '... check' "$about"
# shellcheck disable=SC2086
lap train $layer --tp 2 --iters 1 --seed 79 --json
holds '... train' "$about"'
assert it["seed"] == 79, it'

# ---- as it goes ----

# shellcheck disable=SC2086
lap train $layer --tp 2 --iters 4 --log-interval 2
is '--log-interval 2: every other iteration says something' "$status $(grep -c '\] Iter [24]$' "$work/out") $(grep -c '\] Iter' "$work/out")" '0 2 2'
is '... and its time' "$(grep -cE '\] \|-- Time: [0-9.]+ ms, [0-9]+ tokens/s$' "$work/out")" 2
is '... all are in the table' "$(grep -cE '^ +[1-4]  ' "$work/out")" 4
# shellcheck disable=SC2086
lap train $layer --tp 2 --iters 2 --quiet
is '--quiet: tables alone' "$status $(grep -c 'rank0' "$work/out") $(grep -cE '^ +[1-2]  ' "$work/out")" '0 0 2'
for interval in 0 x; do
    # shellcheck disable=SC2086
    lap train $layer --tp 2 --log-interval $interval
    is "--log-interval $interval is refused" "$status $(grep -c -- "--log-interval" "$work/err")" '2 1'
done
finish
