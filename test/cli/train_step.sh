#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `lap train` says of each step: figures of communication are times of the step, of all and by the group that it is in, MFU follows
# from the peak, and a line tells how far it is where standard error is a terminal, and only there.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
cd "$work" || exit 1
small=(--auto=no --model gpt --hidden 24 --heads 6 --ffn 40 --layers 2 --seq 16 --batch 4 --no-predict)

# is_so CODE: the code, in which `steps` are the objects of the steps and `run` is the last one, raises nothing.
is_so() {
    python3 -c "
import json
*steps, run = [json.loads(line) for line in open('out')]
def same(a, b): return abs(a - b) <= 1e-4 * abs(a) + 1e-4
$1"
}
# holds NAME CODE: the same, as a check.
holds() { ok "$1" is_so "$2"; }

step_of_both() { lap train "${small[@]}" --tp 2 --dp 2 --steps 1 --json --link 100MB/s; }
kinds='
comm = steps[0]["comm"]
assert set(comm) == {"tp", "dp"}, comm
for key in ("comm_ms", "waited_ms"):
    calls = [row[key] for row in run["gemms"]] + [run["collectives"][key]]'
# What is in flight at once counts once. How much of it is depends on how long a rank is kept from its core.
ok_in_three 'communication by kind is most of that of its calls' step_of_both is_so "$kinds"'
    assert comm["tp"][key] > 0.5 * sum(calls), (key, comm, calls)
    assert 0.5 * run["gradients"][key] < comm["dp"][key], (key, comm, run["gradients"])'
holds '... no less than that of any, and no more than that of all' "$kinds"'
    assert max(calls) - 1e-3 <= comm["tp"][key] <= 1.0001 * sum(calls) + 1e-3, (key, comm, calls)
    assert comm["dp"][key] <= 1.0001 * run["gradients"][key] + 1e-3, (key, comm)'
# The embedding of 2 sequences is 2 * 16 * 24 floats, of which a rank sends half, and gets the gradient of half: 31 us at this rate.
holds '... and has that of embeddings and of the loss' '
assert run["collectives"]["comm_ms"] > 0.03 and run["collectives"]["waited_ms"] > 0, run["collectives"]'
holds '... without a peak there is no MFU' 'assert steps[0]["mfu"] is None and run["mfu"] is None, run'
# The groups of a step work at the same time, and a rank waits for several of them at once: all is not their sum. With such a link the sum of
# what was waited was more than the step.
times='
for step, it in zip(steps, run["iterations"]):
    kinds = step["comm"].values()
    assert set(step["comm"]) == expected, step
    for key in ("comm_ms", "hidden_ms", "exposed_ms", "waited_ms"):
        assert same(step[key], it[key]), (key, step, it)
        assert max(kind[key] for kind in kinds) <= 1.0001 * step[key] + 1e-3, (key, step)
        assert step[key] <= 1.0001 * sum(kind[key] for kind in kinds) + 1e-3, (key, step)
        assert step[key] <= 1.0001 * step["ms"], (key, step)
    # A call with tensor-parallel ranks raises its first signals before its input comes from another stage: that wait is the bubble.
    bubble = step["comm"].get("pp", {}).get("bubble_ms", 0)
    assert step["waited_ms"] + bubble <= 1.0001 * step["ms"], step
    assert min(kind["comm_ms"] for kind in kinds) > 1, step # KB and more at 2 MB/s
    for part in [*kinds, step]:
        assert min(part["hidden_ms"], part["exposed_ms"]) >= 0 and same(part["hidden_ms"] + part["exposed_ms"], part["comm_ms"]), step
    parts = [it["waited_" + cause + "_ms"] for cause in ("wire", "late", "core")]
    assert same(sum(parts), it["waited_ms"]) and min(parts) >= 0, it
assert len(steps) == len(run["iterations"]) == 3
if "pp" in expected: # messages of a rank follow one another
    assert run["messages"]["comm_ms"] > 0, run["messages"]
    assert max(step["comm"]["pp"]["comm_ms"] for step in steps) > 0.9 * run["messages"]["comm_ms"], (steps, run["messages"])'
while read -r kinds options; do
    # shellcheck disable=SC2086
    lap train "${small[@]}" $options --steps 3 --json --link 2MB/s
    holds "times are those of the step: $options" "expected = set(\"$kinds\".split(\",\"))$times"
done <<'END'
tp,cp,dp --tp 2 --cp 2
tp,dp --tp 2 --dp 2 --micro-batches 2
tp,pp --tp 2 --pp 2 --micro-batches 4 --tied=no
tp,pp --tp 2 --pp 2 --micro-batches 1
dp --dp 2 --distributed-optimizer --bucket-size 1000
END
lap train "${small[@]}" --tp 2 --cp 2 --steps 3 --link 2MB/s --trace all.json --assert-hidden 99
is '--assert-hidden looks at all' "$status $(grep -c -- '--assert-hidden 99: [0-9.]* % of communication was hidden' <<<"$err")" '4 1'
has '... as the table does, which has the gradients that contexts sum' "$out" 'gradients to replicas  ' 'what happens at once counts once' ', all '
is '... with the same figures' "$(sed -n 's/.*was hidden, \(.*\) of \(.*\) ms/\2 \1/p' <<<"$err")" "$(awk '/^all / { print $2, $3 }' <<<"$out")"
is '... which the trace has, for lap report' \
    "$(python3 -c 'import json; it = json.load(open("all.json"))["lapstrake"]["all"]; print("%.3f %.3f" % (it["comm_ms"], it["hidden_ms"]))')" \
    "$(awk '/^all / { print $2, $3 }' <<<"$out")"
# Table, JSON, trace and page have one definition of what is hidden: a rank computes while data are on their way from it or to it.
one_hidden='
import os, re, subprocess, sys
about = {key: it["lapstrake"][key] for key in ("measured", "all")}
steps = [json.loads(line) for line in open("out")]
for key in ("comm_ms", "hidden_ms", "exposed_ms"):
    of_trace = sum(rank[key] for rank in about["measured"]["by_rank"]) / len(ranks)
    for other in (steps[0], steps[1]["iterations"][0], steps[1]["all"], about["all"]):
        assert abs(other[key] - of_trace) < 1e-3 * of_trace + 1e-3, (key, other[key], of_trace)
assert abs(about["measured"]["hidden"] - about["all"]["hidden_ms"] / about["all"]["comm_ms"]) < 0.002, about
for kind, figures in steps[0]["comm"].items(): # as the page adds up the transfers of a kind
    links = [e for r in ranks for e in slices(r, "link") if e["args"]["kind"] == kind]
    own = [union((e["ts"], e["ts"] + e["dur"]) for e in links if r in (e["pid"], e["args"]["peer"])) for r in ranks]
    assert abs(sum(map(length, own)) / len(ranks) - 1e3 * figures["comm_ms"]) < 1 + figures["comm_ms"], (kind, figures)'
while read -r options; do
    # shellcheck disable=SC2086
    lap train "${small[@]}" $options --steps 1 --json --link 2MB/s --trace one.json
    ok "one definition of what is hidden: $options" python3 "$LAP_SOURCE_DIR/test/cli/trace.py" one.json "$one_hidden"
done <<'END'
--tp 2 --dp 2
--tp 2 --cp 2
--tp 2 --micro-batches 2
--tp 1 --dp 2 --distributed-optimizer --bucket-size 1000
--tp 2 --pp 2 --micro-batches 4
END
lap train "${small[@]}" --tp 2 --dp 2 --steps 1 --link 2MB/s --trace one.json --report one.html
is 'the last line says it' "$(tail -n 1 <<<"$out")" "$(python3 "$LAP_SOURCE_DIR/test/cli/trace.py" one.json '
about = it["lapstrake"]["measured"]
total, exposed = (sum(rank[key] for rank in about["by_rank"]) / len(ranks) for key in ("comm_ms", "exposed_ms"))
print("Communication %.3f ms of a step, %.0f %% hidden, %.3f ms exposed." % (total, 100 * about["hidden"], exposed))')"
is '... the table does' "$(awk '/^all / { printf "Communication %s ms of a step, %.0f %% hidden, %s ms exposed.", $2, 100 * $3 / $2, $4 }' <<<"$out")" \
    "$(tail -n 1 <<<"$out")"
lap train "${small[@]}" --tp 1 --steps 2 --json --peak-tflops 0.5
holds 'MFU is what GEMMs and attention take of the peak' '
attention = 12 * 16 * 17 / 2 * 4 * 6 * 4 * 2 # of heads of 4 columns: 6 of them, 4 sequences, 2 layers
for step in steps:
    expected = (run["gemm_flops"] + attention) / (step["ms"] * 1e-3) / 0.5e12
    assert abs(step["mfu"] - expected) < 1e-4 * expected, (step, expected)
    assert step["comm"] == {} and step["memory_mib"] > 1, step'
lap train "${small[@]}" --tp 2 --steps 1 --peak-tflops 0.5
has 'a line for people' "$out" ' TFLOP/s, MFU ' ' MiB, tp ' ' hidden, ' ' exposed)' 'other collectives'
lap train "${small[@]}" --tp 2 --steps 5 --log-interval 2 --no-trace
is '--log-interval 2: the table has the steps that were told, and the last' "$status $(grep -oE '^ +[0-9]+  ' <<<"$out" | tr -d ' \n')" '0 245'
lap train "${small[@]}" --tp 2 --steps 1 --no-trace --json
holds 'without a trace nothing is known of communication' 'assert steps[0]["comm"] == {} and run["collectives"]["comm_ms"] is None, run'
lap train --tp 2 --peak-tflops much
is 'a peak that is no number is refused' "$status $err" "2 lap train: --peak-tflops is 'much'; expected a number, 0 to 1e+30"

lap train --layer layernorm_mlp --seq 12 --heads 12 --head-dim 4 --tp 2 --iters 3 --compare --no-predict
is '--compare: where losses are other bits, it says why' "$status $(grep -c 'OpenBLAS may round' <<<"$out")" "0 $(grep -c 'not bit for bit' <<<"$out")"

# ---- what nobody has said ----

lap train "${small[@]}" --dp 2 --steps 12 --no-trace --json
holds 'a model warms up in 10 steps, and who says --dp 2 has 2 ranks' '
assert run["tp"] == 1 and run["dp"] == 2, run
for step in steps:
    expected = 0.001 * min(step["step"], 10) / 10
    assert abs(step["lr"] - expected) < 1e-6 * expected, step'
for options in '--lr 0.001' '--lr-warmup-iters 0' '--optimizer sgd --lr 0.001'; do
    # shellcheck disable=SC2086
    lap train "${small[@]}" --tp 1 --steps 1 --no-trace --json $options
    holds "... but not with $options" 'assert abs(steps[0]["lr"] - 0.001) < 1e-9, steps'
done
lap train "${small[@]}" --steps 1 --no-trace --json
holds 'a model alone has one rank' 'assert run["tp"] == 1 and run["local_ranks"] == 1, run'
lap run -n 2 "$LAP" train "${small[@]}" --steps 1 --no-trace --json
is '... or those that a launcher started' "$status $(grep -oE '"tp":[0-9]+,"cp":1,"pp":1,"dp":1' <<<"$out")" '0 "tp":2,"cp":1,"pp":1,"dp":1'

# ---- on a terminal ----

# terminal ARGUMENTS...: standard error is a terminal, what it shows is in err.
terminal() {
    python3 - "$LAP" train "$@" >out <<'EOF'
import os, pty, subprocess, sys
master, slave = pty.openpty()
job = subprocess.Popen(sys.argv[1:], stderr=slave, stdin=subprocess.DEVNULL)
os.close(slave)
text = b""
try:
    while part := os.read(master, 4096):
        text += part
except OSError:
    pass
open("err", "wb").write(text)
sys.exit(job.wait())
EOF
}
for more in '' --json; do
    # shellcheck disable=SC2086
    terminal "${small[@]}" --tp 2 --steps 4 $more
    is "a terminal $more: status" $? 0
    has '... is told how far it is, and how long it will take' "$(<err)" '1 of 4 iterations, loss ' '3 of 4 iterations' ' s left'
    is '... in one line, which is gone in the end' "$(grep -c . err) $(tail -c 4 err | od -An -c | tr -d ' ')" '1 \r033[K'
done
terminal "${small[@]}" --tp 2 --steps 4 --quiet
is '... but not if it should be quiet' "$(wc -c <err)" 0
lap train "${small[@]}" --tp 2 --steps 4
is 'nothing of that where it is no terminal' "$err" ''
finish
