#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The files of --trace: what Perfetto needs of them, that they agree with what was measured, and that they are compressed,
# refused and written as files of ours are; and what --assert-efficiency says.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/tap.bash"
limit=120
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
command -v python3 >/dev/null || {
    echo '1..0 # SKIP there is no python3 to read JSON'
    exit 77
}

# is_so FILE CODE: the code, in which `it` is the file, raises nothing.
is_so() { python3 "$(dirname "$0")/trace.py" "$1" "$2"; }
# holds NAME FILE CODE: the same, as a check.
holds() {
    ok "$1" is_so "$2" "$3" || tail -n 5 "$work/err" | sed 's/^/# /'
}

# ---- lap bench ----

trace_ring() { lap bench ag 96 48 64 --ranks 3 --iters 1 --warmup 0 --method ring --link 1MB/s --trace "$work/ag.json"; }
trace_ring
is 'a call of three ranks: status 0' $status 0
has '... and the table says where it is' "$out" "trace: $work/ag.json"
holds '... slices of a thread nest, flows begin and end in slices, every rank has a process with a name' "$work/ag.json" '
check(it)
assert sorted(ranks) == [0, 1, 2], ranks
assert names[0] == "rank 0 tp0", names'
holds '... each rank has its GEMM by blocks, whose sizes and rate are told' "$work/ag.json" '
for r in ranks:
    gemms = [e for e in slices(r, "gemm")]
    assert sum(e["args"]["m"] for e in gemms) == 96 and all(e["args"]["n"] == 16 and e["args"]["k"] == 64 for e in gemms), gemms
    for e in gemms:
        flops = 2 * e["args"]["m"] * 16 * 64
        assert abs(e["args"]["tflops"] - flops / e["dur"] * 1e-6) <= 0.05 * e["args"]["tflops"], e'
# A ring of three: each rank sends its 32 rows of 64 floats and passes on as many.
holds '... each transfer is on its link, with its bytes and rate; a counter says how much is in flight' "$work/ag.json" '
for r in ranks:
    links = slices(r, "link")
    assert len(links) == 2 and all(e["args"]["bytes"] == 32 * 64 * 4 and e["args"]["peer"] == (r + 1) % 3 for e in links), links
    assert all(e["args"]["gbs"] < 0.0015 for e in links), links
    flying = counter(r, "bytes in flight")
    assert max(flying) == 8192 and flying[-1] == 0, flying'
holds '... a flow from each put to the wait that it releases' "$work/ag.json" '
puts = [e for r in ranks for e in slices(r, "put")]
assert len(puts) == 6, puts
for e in puts:
    ends = [f for s, f in flows if s["pid"] == e["pid"] and e["ts"] <= s["ts"] <= e["ts"] + e["dur"] and s["tid"] == e["tid"]]
    assert len(ends) >= 1 and all(f["pid"] == e["args"]["peer"] for f in ends), (e, ends)'
holds '... what the counter of exposed time ends with is what was not hidden' "$work/ag.json" '
side = it["lapstrake"]["measured"]
for r in ranks:
    own = side["by_rank"][r]
    assert abs(counter(r, "exposed time")[-1] - 1e3 * own["exposed_ms"]) < 0.1, own
    busy, comm = union(computing(r)), union(flying(r))
    both = common(busy, comm)
    assert abs(length(comm) - 1e3 * own["comm_ms"]) < 0.1 and abs(length(comm) - both - 1e3 * own["exposed_ms"]) < 0.1, own
assert 0 <= side["hidden"] <= 1 and side["dropped"] == 0 and side["emulated_link"], side'
holds '... the critical path is one chain up to the end' "$work/ag.json" '
assert path, path
for a, b in zip(path, path[1:]):
    assert abs(a["ts"] + a["dur"] - b["ts"]) < 0.002, (a, b)
work = [e for r in ranks for e in slices(r) if e["cat"] != "host"]
assert abs(path[-1]["ts"] + path[-1]["dur"] - max(e["ts"] + e["dur"] for e in work)) < 0.002'
ok_in_three '... and goes over the slow link, unless a rank is kept from its core for longer' trace_ring is_so "$work/ag.json" '
assert sum(e["dur"] for e in path if e["args"]["what"] == "link") > 0.5 * sum(e["dur"] for e in path), path'

lap bench external-rs 64 48 32 --ranks 2 --iters 1 --warmup 0 --trace "$work/rs.json.gz" --timeline-method serial --quiet
is 'a compressed file: status 0' $status 0
ok '... is one of gzip' gzip -t "$work/rs.json.gz"
holds '... and holds the GEMM and the collective behind it' "$work/rs.json.gz" '
check(it)
assert {e["args"]["call"] for e in slices(0) if e["cat"] != "host"} == {"gemm", "external-rs"}'

trace_both() {
    lap bench rs 96 48 64 --ranks 3 --iters 1 --warmup 0 --method pipeline:num_splits=1 --link 1MB/s --trace "$work/both.json" --trace-simulated
}
# On so slow a link a call is little more than what that takes: 32 rows of 48 floats to each of two ranks.
ok_in_three 'a call that is simulated takes as long as its link' trace_both is_so "$work/both.json" '
assert abs(it["lapstrake"]["simulated"]["ms"] - 12.3) < 3, it["lapstrake"]'
is 'a measured call and a simulated one: status 0' $status 0
holds '... are both in the file, with the same steps, and measured ones know what was predicted' "$work/both.json" '
check(it)
played = [pid for pid in names if sim <= pid < sim + end_of_path]
assert len(played) == 3 and names[sim] == "rank 0 tp0 (simulated)", names
for r in ranks:
    for cat in ("gemm", "put", "reduce", "link"):
        assert len(slices(r, cat)) == len(slices(sim + r, cat)) > 0, (r, cat)
    assert all(e["args"]["predicted_us"] > 0 for e in slices(r, "gemm")), r
both = it["lapstrake"]
assert both["simulated"]["ms"] > 12 and both["measured"]["ms"] > 12, both'

lap bench ag 64 64 64 --ranks 2 --iters 1 --trace "$work/k.json" --trace-format kineto
is 'a file for each rank: status 0' $status 0
ok '... rank 0' test -s "$work/k.0.json"
holds '... rank 1, with transfers that tools of PyTorch know as communication' "$work/k.1.json" '
assert it["distributedInfo"] == {"backend": "nccl", "rank": 1, "world_size": 2}
kernels = [e for e in it["traceEvents"] if e.get("cat") == "kernel"]
assert any(e["name"].startswith("ncclKernel_Lapstrake_tp_ag") for e in kernels) and any("gemm" in e["name"] for e in kernels)
assert all(e["args"]["stream"] >= 0 and "correlation" in e["args"] for e in kernels)'

# ---- what makes no sense ----

refused() {
    local name=$1 words=$2
    shift 2
    lap "$@"
    is "$name: status 2" $status 2
    has '... and says why' "$(<"$work/err")" "$words"
}
refused 'a format that is none' "perfetto or kineto" bench ag 8 8 8 --ranks 1 --trace "$work/t.json" --trace-format csv
refused 'a format without a file' "needs --trace" bench ag 8 8 8 --ranks 1 --trace-format kineto
refused 'a simulation without a file' 'needs --trace' bench ag 8 8 8 --ranks 1 --trace-simulated
refused 'a trace of nothing' "--no-trace" bench ag 8 8 8 --ranks 1 --trace "$work/t.json" --no-trace
refused 'a sweep' "no option --trace" bench sweep ag --m 8:8 --n 8 --k 8 --trace "$work/t.json"
refused 'an efficiency above 1' "from 0 to 1" bench ag 8 8 8 --ranks 1 --assert-efficiency 90
ok 'nothing was written' test ! -e "$work/t.json"

# ---- assertions ----

# Two ranks that compute next to nothing cannot hide 400 ms.
lap bench ag 512 2 1024 --ranks 2 --iters 2 --warmup 0 --link 10MB/s --method direct --assert-efficiency 0.9
is 'communication that cannot be hidden: status 4' $status 4
has '... and a sentence with what was measured' "$(<"$work/err")" 'lap bench: --assert-efficiency 0.9: ag 512 2 1024 has'
is '... and nothing else' "$(wc -l <"$work/err")" 1
lap bench ag 64 64 64 --ranks 2 --iters 2 --method serial --assert-efficiency 0.1
is 'nothing that overlaps: status 4' $status 4
has '... and says so' "$(<"$work/err")" 'has no method that overlaps'

# ---- lap train ----

trace_pass() {
    lap train --auto=no --tp 2 --num-replicas 2 --heads 4 --head-dim 32 --seq 256 --layers 2 --iters 2 --json --trace "$work/pass.json" --trace-simulated
    cp "$work/out" "$work/pass.out"
}
# Predicted are forward and backward: until the last of them has ended, and the call itself, which comes before what is traced.
# Buckets that are still on their way to replicas then are in the file, too.
passes='
import os
said = json.loads(open(os.path.join(os.path.dirname(sys.argv[1]), "pass.out")).read().splitlines()[-1])["predicted_ms"]
base = min(e["ts"] for r in ranks for e in slices(sim + r))
passes = max(e["ts"] + e["dur"] for r in ranks for e in slices(sim + r) if e["args"].get("kind") != "dp" and e["name"] != "update") - base'
ok_in_three 'a prediction is the simulated passes, and a call, which takes less time than they do' trace_pass is_so "$work/pass.json" "$passes
assert said * 1e3 <= passes * 1.25, (said, passes)"
is 'a measured pass and a simulated one: status 0' "$status$err" 0
holds '... are both in the file, of all ranks and replicas, with flows, counters and a critical path each' "$work/pass.json" "$passes"'
check(it)
played = [pid for pid in names if sim <= pid < sim + end_of_path]
assert len(played) == 4 and names[sim + 3] == "rank 3 tp1 dp1 (simulated)", names
assert sorted(name for name in names.values() if "critical" in name) == ["critical path", "critical path (simulated)"], names
for r in ranks:
    for cat in ("gemm", "kernel", "put"):
        mine, theirs = [[(e["name"], e["args"].get("layer"), e["args"].get("step")) for e in slices(pid, cat) if e["name"] != "update"] for pid in (r, sim + r)]
        assert theirs and not set(theirs) - set(mine), (r, cat, set(theirs) - set(mine))
    assert all(e["args"]["predicted_us"] > 0 for e in slices(r, "gemm")), r
    for phase in ("s", "f", "C"):
        assert any(e["ph"] == phase and e["pid"] == sim + r for e in it["traceEvents"]), (r, phase)
assert {e["args"].get("kind") for e in slices(sim, "put")} == {"tp", "dp"}
both = it["lapstrake"]
assert passes * 0.999 <= said * 1e3 and passes <= both["simulated"]["ms"] * 1e3 * 1.001, (said, passes, both["simulated"])
assert both["measured"]["ms"] > 0, both["measured"]'
# Pipelines and contexts: the same slices in both, by rank, with their messages.
tiny='--auto=no --model llama-tiny --layers 4 --hidden 16 --heads 4 --kv-heads 2 --vocab 32 --seq 16 --iters 1'
for grid in 'pp,tp --tp 2 --pp 2 --virtual-pp 2 --batch 2 --micro-batches 2' 'cp,dp,pp --tp 1 --cp 2 --pp 2 --schedule zb-h1 --batch 3 --micro-batches 3' \
    'dp,pp --tp 1 --pp 2 --dp 2 --batch 4 --micro-batches 2 --no-overlap-p2p' 'cp,dp --tp 1 --cp 2 --cp-comm-type a2a --batch 2' \
    'dp,tp --tp 2 --dp 2 --distributed-optimizer --batch 2' \
    'cp,dp --tp 1 --cp 2 --dp 2 --distributed-optimizer --batch 2' 'cp,dp,pp --tp 1 --cp 2 --pp 2 --dp 2 --distributed-optimizer --batch 4'; do
    read -r kinds options <<<"$grid"
    # shellcheck disable=SC2086
    lap train $tiny $options --json --trace "$work/grid.json" --trace-simulated
    is "a simulation with $options: status 0" "$status$err" 0
    ok '... and a prediction' grep -qE '"predicted_ms":[0-9.]*[1-9]' "$work/out"
    export kinds
    holds '... all that a rank does was simulated, and the other way round' "$work/grid.json" '
import collections, os
check(it)
for r in ranks:
    for cat in ("gemm", "kernel", "put"):
        mine, theirs = [collections.Counter((e["name"], e["args"].get("layer"), e["args"].get("step")) for e in slices(pid, cat)) for pid in (r, sim + r)]
        assert theirs, (r, cat)
        # The step of the optimizer comes after what is simulated.
        later = {name for name, _, _ in mine - theirs if not name.endswith(".weight") and name not in ("update", "norm", "clip", "put norm")}
        assert not theirs - mine and not later, (r, cat, theirs - mine, later)
    assert all(e["args"]["predicted_us"] > 0 for e in slices(r, "gemm")), r
kinds = {e["args"].get("kind") for r in ranks for e in slices(sim + r, "put")}
assert kinds == set(os.environ["kinds"].split(",")) == {e["args"].get("kind") for r in ranks for e in slices(r, "put")}, kinds
assert it["lapstrake"]["simulated"]["ms"] > 0'
    # Of the kinds that travel along one axis, or two. Those of a pipeline have its norm among them, which all ranks of a replica exchange.
    holds '... what is sent goes to ranks of the same place but for its axis, and no wait is over before what releases it begins' "$work/grid.json" '
axes = {"tp": {"tp"}, "cp": {"cp"}, "dp": {"cp", "dp"}}
places = {pid: dict(re.fullmatch("([a-z]+)([0-9]+)", word).groups() for word in names[pid].split()[2:] if word[0] != "(") for pid in names if pid % sim != end_of_path}
for pid, place in places.items():
    for e in slices(pid, "put"):
        to = places[pid // sim * sim + e["args"]["peer"]]
        differ = {axis for axis in place if place[axis] != to[axis]}
        assert differ <= axes.get(e["args"]["kind"], differ), (place, to, e)
assert all(s["ts"] <= f["ts"] + 0.0015 for s, f in flows), [(s, f) for s, f in flows if s["ts"] > f["ts"] + 0.0015][:3]'
done
long='--model gpt --vocab 32 --hidden 8 --heads 2 --layers 8 --seq 4 --tp 1 --pp 2 --batch 64 --micro-batches 64 --iters 1 --json'
# shellcheck disable=SC2086
lap train $long --trace "$work/long.json" --trace-simulated
has 'a step too long to be simulated is run, and one rank says so' "$status $(grep -c . <<<"$err") $err" '0 1 ' \
    'nothing is predicted: a step has 15488 kernels and operators on 2 ranks; expected at most 10000'
ok '... nothing is predicted' grep -q '"predicted_ms":null' "$work/out"
holds '... and what was measured is written' "$work/long.json" 'assert all(slices(r, "gemm") for r in ranks) and "simulated" not in it["lapstrake"]'
# shellcheck disable=SC2086
ok '... and it takes no memory that training does not take' python3 - "$LAP" train $long <<'PY'
import os, subprocess, sys
def peak(*more):  # of the largest process, in KiB
    command = subprocess.Popen([*sys.argv[1:], *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(command.pid, 0)
    assert status == 0, status
    return usage.ru_maxrss
with_it, without = peak(), peak("--no-predict")
print(f"# {with_it} KiB, without a prediction {without}")
assert with_it < without + 40 * 1024
PY
refused 'a simulation without a file, of layers' 'needs a file; expected --trace' train --tp 2 --trace-simulated
refused 'a simulation of what is not predicted' 'needs a prediction; expected no --no-predict' train --tp 2 --trace "$work/t.json" --trace-simulated --no-predict

lap train --tp 2 --num-replicas 2 --heads 4 --head-dim 8 --seq 32 --layers 2 --iters 2 --micro-batches 2 --batch 4 \
    --link 20MB/s --trace "$work/train.json" --assert-hidden 100
is 'a training that hides less than all: status 4' $status 4
has '... and says how much it hid' "$(<"$work/err")" 'lap train: --assert-hidden 100: ' ' % of communication was hidden, '
is '... and nothing else' "$(wc -l <"$work/err")" 1
holds 'its trace: ranks are named by their place in the grid' "$work/train.json" '
check(it)
assert [names[r] for r in ranks] == ["rank 0 tp0 dp0", "rank 1 tp1 dp0", "rank 2 tp0 dp1", "rank 3 tp1 dp1"], names'
holds '... it has all GEMMs of both micro-batches, kernels, and what the host did' "$work/train.json" '
for r in ranks:
    gemms = {(e["args"]["layer"], e["args"]["call"]) for e in slices(r, "gemm") if e["args"]["call"] != "sums"}
    calls = {p + "_" + g for p in ("qkv", "proj", "fc1", "fc2") for g in ("fprop", "dgrad", "wgrad")}
    assert gemms == {(layer, call) for layer in (0, 1) for call in calls}, gemms
    # Three GEMMs of each of four matrices, 32 tokens of each of two sequences, in half of the columns.
    flops = sum(2 * e["args"]["m"] * e["args"]["n"] * e["args"]["k"] for e in slices(r, "gemm") if e["args"]["call"] != "sums")
    assert flops == 2 * 3 * 2 * 64 * (3 + 1 + 4 + 4) * 32 * 32 // 2, flops
    assert len([e for e in slices(r, "kernel") if e["args"]["call"] == "norm1"]) == 8, r
    assert {e["name"] for e in slices(r, "host")} == {"issue", "wait for the pass", "wait for replicas", "optimizer step"}'
holds '... communication of both kinds, with a flow to each wait' "$work/train.json" '
assert {e["args"]["kind"] for r in ranks for e in slices(r, "link")} == {"tp", "dp"}
assert len(flows) == len([e for r in ranks for e in slices(r, "wait")]) > 100, len(flows)'
holds '... what lap report needs: GEMMs, losses, live activations' "$work/train.json" '
about = it["lapstrake"]
assert about["grid"] == {"tp": 2, "cp": 1, "pp": 1, "dp": 2} and len(about["iterations"]) == 2, about
assert {row["kind"] for row in about["rows"]} == {"tp", "", "dp"} and len(about["rows"]) == 14, about["rows"]
assert about["rows"][12]["name"] == "others" and about["all"]["exposed_ms"] <= max(row["ms"] for row in about["iterations"]), about
assert max(counter(0, "activations")) > min(counter(0, "activations")) > 0
last = max(e["ts"] for e in it["traceEvents"] if e["ph"] == "C" and e["name"] == "activations" and e["pid"] == 0)
assert abs(last - max(e["ts"] + e["dur"] for e in slices(0) + slices(1) + slices(2) + slices(3))) < 0.002, last'
# Backward has memory of its own, on top of what forward keeps: as much as lap show says, and it comes and goes with each layer.
for grid in '--tp 2' '--tp 2 --micro-batches 2' '--tp 1 --cp 2' '--tp 2 --fp8'; do
    # shellcheck disable=SC2086
    lap train --model llama-tiny --layers 3 --hidden 32 --ffn 64 --heads 4 --kv-heads 2 --vocab 29 --seq 16 --batch 4 --iters 1 $grid --trace "$work/memory.json"
    # shellcheck disable=SC2086
    most=$("$LAP" show train --model llama-tiny --layers 3 --hidden 32 --ffn 64 --heads 4 --kv-heads 2 --vocab 29 --seq 16 --batch 4 $grid --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["memory"]["most_live_bytes"])')
    holds "activations in backward, $grid" "$work/memory.json" "
assert max(counter(0, 'activations')) == $most, (max(counter(0, 'activations')), $most)
for layer in 0, 1, 2:
    gemms = [e['ts'] for e in slices(0, 'gemm') if e['args'].get('layer') == layer and e['args']['call'].endswith('fc1_wgrad')]
    assert len(gemms) > 0
    live = [e for e in it['traceEvents'] if e['ph'] == 'C' and e['name'] == 'activations' and e['pid'] == 0]
    before = [e['args']['bytes'] for e in live if e['ts'] <= max(gemms)]
    after = [e['args']['bytes'] for e in live if e['ts'] > max(gemms)]
    assert before[-1] > after[0], (layer, before[-1], after[0])"
done
lap train --model gpt --layers 4 --hidden 16 --heads 2 --vocab 29 --seq 8 --micro-batches 4 --iters 1 --tp 1 --pp 2 --trace "$work/pp.json"
is 'a pipeline: status 0' $status 0
holds '... has each message once, as its kind, from one stage to the other' "$work/pp.json" '
check(it)
links = [e for r in ranks for e in slices(r, "link") if e["args"]["call"].startswith("send ")]
assert sorted(e["args"]["call"] for e in links) == sorted("send 1" + work + str(m) for work in "FB" for m in range(4)), links
for e in links:
    assert e["args"]["kind"] == "pp" and e["args"]["peer"] == 1 - e["pid"] and e["pid"] == ("B" in e["args"]["call"]), e'
holds '... and the kernels and GEMMs of each action' "$work/pp.json" '
for r in ranks:
    calls = {e["args"]["call"] for e in slices(r, "gemm")}
    assert {"%d%s%d qkv_%s" % (r, *x) for m in range(4) for x in (("F", m, "fprop"), ("B", m, "dgrad"), ("B", m, "wgrad"))} <= calls, calls
    assert any(e["args"]["call"] == "%dF2 norm1" % r for e in slices(r, "kernel")), slices(r, "kernel")[:3]'

lap train --tp 1 --dp 2 --heads 4 --head-dim 8 --seq 32 --iters 1 --trace "$work/dp.json"
holds 'what does not communicate has no kind of communication' "$work/dp.json" '
assert {e["args"].get("kind") for r in ranks for e in slices(r, "gemm")} == {None}
assert {e["args"].get("kind") for r in ranks for e in slices(r, "link")} == {"dp"}'
for option in --trace --report; do
    LAP_ZLIB=$work/none lap train --tp 2 --heads 4 --head-dim 8 --seq 32 --iters 1 $option "$work/none.gz"
    is "without zlib $option is refused before anything is trained: status" $status 2
    has '... and says what is missing' "$err" "LAP_ZLIB is '$work/none', expected the library zlib"
    is '... without a table' "$out" ''
done
lap train --tp 2 --heads 4 --head-dim 8 --seq 32 --iters 1 --assert-hidden 0 --trace /dev/full
is 'a place that is no file: status 1' $status 1
for option in --trace --report; do
    lap train --tp 2 --heads 4 --head-dim 8 --seq 32 --iters 1 $option "$work/none/it"
    is "$option into a folder that is not there: status 1, as of all files that cannot be written, and nothing is trained" "$status$out $err" \
        "1 lap train: $option: cannot write the ${option#--} $work/none/it: No such file or directory"
done
refused 'an assertion without traces' '--no-trace' train --tp 2 --heads 4 --seq 32 --no-trace --assert-hidden 80
refused 'an assertion of one rank' 'expected 2 ranks' train --tp 1 --heads 4 --seq 32 --assert-hidden 80
lap train --tp 2 --heads 4 --head-dim 8 --seq 32 --iters 2 --assert-hidden 0
is 'an assertion that holds: status 0' $status 0
finish
