#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lap plan: the best grids, one grid explained, published steps, and descriptions that are wrong.
. "$(dirname "$0")/tap.bash"
machines=$LAP_SOURCE_DIR/machines
steps=$LAP_SOURCE_DIR/docs/published_steps.csv

# ---- published steps: the bars of docs/plan.md ----

lap plan --validate "$steps" --json
cp "$work/out" "$work/validate.json"
is 'published steps: status 0, and nothing on standard error' "$status$err" 0
ok 'the errors: a median of 8 %, nine of ten within 20 %, for rows of Megatron, NeMo, Bridge and dgxc' python3 - "$work/out" "$steps" <<'PY'
import csv, json, statistics, sys
answer, rows = json.load(open(sys.argv[1])), list(csv.DictReader(open(sys.argv[2])))
assert len(answer["by_row"]) == len(rows) > 200
counted = [r for r in answer["by_row"] if r["class"] == "counted"]
assert answer["rows"] == len(counted) >= 60, answer["rows"]
errors = sorted(abs(r["error"]) for r in counted)
assert abs(statistics.median(errors) - answer["median_error"]) < 1e-4
assert {"host", "version", "commit", "date"} <= set(answer)
assert answer["median_error"] <= 0.08 and answer["within_20_percent"] >= 0.9, answer["median_error"]
assert sum(e <= 0.2 for e in errors) >= 0.9 * len(errors)
for r, row in zip(answer["by_row"], rows):
    assert r["class"] != "refused", r
    assert abs(r["planned_s"] / r["published_s"] - 1 - r["error"]) < 1e-4
    if row["step_time_s"]:
        assert abs(float(row["step_time_s"]) - r["published_s"]) < 1e-9
    assert r["tp"] * r["pp"] * r["cp"] * r["dp"] == r["gpus"]
# Each type and GPU by itself, too.
for gpu in "A100", "H100":
    for kind in "fp16", "bf16", "fp8":
        some = [abs(r["error"]) for r in counted if r["gpu"].startswith(gpu) and r["precision"] == kind]
        assert not some or statistics.median(some) <= 0.08, (gpu, kind, some)
PY
ok 'the same for the rows of each GPU that its description was not fitted to' python3 - "$work/out" "$steps" "$LAP_SOURCE_DIR/bench" <<'PY'
import csv, json, statistics, sys
sys.path.insert(0, sys.argv[3])
sys.dont_write_bytecode = True
from fit import split
rows = list(csv.DictReader(open(sys.argv[2])))
for row, verdict in zip(rows, json.load(open(sys.argv[1]))["by_row"]):
    row.update(verdict=verdict)
for gpu, least in ("H100", 20), ("A100", 6):
    halves = split([row for row in rows if row["verdict"]["class"] == "counted" and gpu in row["gpu"]])
    sets = [{(row["source"], row["model"], row["gpu"], row["precision"], row["seq"]) for row in half} for half in halves]
    assert not sets[0] & sets[1] and min(map(len, halves)) >= least, (gpu, list(map(len, halves)))
    held = [abs(row["verdict"]["error"]) for row in halves[1]]
    assert statistics.median(held) <= 0.08 and sum(error <= 0.2 for error in held) >= 0.9 * len(held), (gpu, held)
PY
grep -E '^source|25.04, Nemotron|SC21' "$steps" >"$work/some.csv"
lap plan --validate "$work/some.csv"
has 'the same as a table, by source' "$out" 'dgxc-benchmarking 25.04, Nemotron' 'Megatron SC21' 'within 20 %'

# ---- searching ----

lap plan --model llama-70b --gpus 256 --seq 8192 --global-batch 256 --top 12 --json
ok 'the best grids: sorted, all fit, what is exposed adds up to the step' python3 - "$work/out" <<'PY'
import json, sys
answer = json.load(open(sys.argv[1]))
plans = answer["plans"]
assert len(plans) == 12 and answer["tried"] > 100
for a, b in zip(plans, plans[1:]):
    assert a["step_s"] <= b["step_s"]
for p in plans:
    assert p["fits"] and p["tp"] * p["pp"] * p["cp"] * p["dp"] == 256
    assert abs(sum(p["exposed_s"].values()) - p["step_s"]) < 1e-6 * p["step_s"]
    assert abs(sum(p["memory"].values()) - p["memory_bytes"]) < 16
    assert abs(p["tokens_per_s"] * p["step_s"] / (256 * 8192) - 1) < 1e-6
    assert p["micro_batches"] * p["micro_batch"] * p["dp"] == 256
    assert 0.3 < p["mfu"] < p["mfu_full_attention"] < 0.65
assert "does not fit in memory" in answer["left_out"], answer["left_out"]
PY
# Grids are planned in the order of the least that they may take, and none that would be slower: of more that are asked for the best are the same.
for grid in '--pp 8' '--pp 4 --schedule zb-v' '--cp 1 --no-overlap-pp' ''; do
    for top in 3 64; do
        # shellcheck disable=SC2086
        "$LAP" plan --model llama-8b --layers 30 --gpus 32 --global-batch 128 $grid --top $top --json
    done >"$work/tops.json"
    ok "the best are the same of whatever number: ${grid:-all}" python3 - "$work/tops.json" <<'PY'
import json, sys
few, many = [json.loads(line) for line in open(sys.argv[1])]
assert few["plans"] == many["plans"][:3] and len(many["plans"]) > 3 and few["tried"] == many["tried"]
assert few["left_out"]["slower than the best"] > many["left_out"].get("slower than the best", 0)
PY
done
lap plan --model llama-8b --gpus 16 --global-batch 128
is 'a table: status 0' "$status$err" 0
has 'a table says why grids were left out' "$out" 'H100 SXM 80GB' 'MFU %' 'left out:' 'heads, or those of keys, are no multiple of tp'

lap plan --model llama-405b --gpus 16384 --global-batch 2048 --tp 8 --pp 16 --cp 1 --json --explain
ok 'a grid of 16,384 GPUs' python3 -c 'import json, sys; p = json.load(open(sys.argv[1]))["plan"]; assert p["dp"] == 128 and p["step_s"] > 1' "$work/out"

for schedule in 1f1b interleaved zb-h1 zb-v; do
    lap plan --model llama-8b --gpus 32 --global-batch 64 --tp 2 --pp 4 --cp 1 --schedule $schedule --explain
    has "a pipeline of $schedule" "$out" "$schedule" 'it fits'
done

# ---- one grid ----

lap plan --model gpt2-124m --gpus 1 --gpu h100-sxm --tp 1 --global-batch 32 --micro-batch 32 --recompute none --json
is 'a micro-batch of more sequences than the search tries' "$status $(grep -o '"micro_batch":[0-9]*' <<<"$out")" '0 "micro_batch":32'

# sends NVLINK NETWORK GRID...: milliseconds of a step on GPUs whose wires keep so many SMs busy.
sends() {
    python3 - "$machines/h100-sxm.yaml" "$1" "$2" >"$work/sends.yaml" <<'PY'
import re, sys
path, *busy = sys.argv[1:]
numbers = iter(busy)
print(re.sub(r"(?m)^  sms: \d+", lambda match: f"  sms: {next(numbers)}", open(path).read()), end="")
PY
    shift 2
    "$LAP" plan --model llama-8b --layers 4 --gpus 8 --pp 1 --cp 1 --global-batch 8 --micro-batch 1 --recompute none --gpu "$work/sends.yaml" --json "$@" |
        python3 -c 'import json, sys; print(round(1e6 * json.load(sys.stdin)["plans"][0]["step_s"]))'
}
layers=$(sends 0 0 --tp 8) buckets=$(sends 0 0 --tp 1)
ok 'there are such steps' test "$layers" -gt 0 -a "$buckets" -gt 0
ok 'what layers send takes the SMs of NVLink from GEMMs' test "$(sends 66 0 --tp 8)" -gt $((layers * 101 / 100))
ok '... and buckets those of the network' test "$(sends 0 66 --tp 1)" -gt $((buckets * 101 / 100))
is '... neither those of the other: layers' "$(sends 0 66 --tp 8)" "$layers"
is '... and buckets' "$(sends 66 0 --tp 1)" "$buckets"

grid="plan --model llama-70b --gpus 64 --global-batch 128 --tp 4 --pp 4 --cp 2 --virtual-pp 5 --micro-batch 1 --recompute none"
# shellcheck disable=SC2086
lap $grid --explain
has 'the energy of a step follows from the power of the description' "$out" 'kWh a billion tokens, of GPUs alone at their limit'
# shellcheck disable=SC2086
limit_j=$("$LAP" $grid --json | grep -o '"energy_j":[0-9.]*') given_j=$("$LAP" $grid --power 700 --json | grep -o '"energy_j":[0-9.]*')
is '... which is that of --power 700 for an H100' "$limit_j" "$given_j"
sed '/^power_w/d' "$machines/h100-sxm.yaml" >"$work/no_power.yaml"
# shellcheck disable=SC2086
lap $grid --explain --gpu "$work/no_power.yaml"
is '... and where it has none there is no energy' "$status $(grep -c ^energy <<<"$out")" '0 0'
# shellcheck disable=SC2086
lap $grid --explain --price 2 --power 1000
has 'one grid: where time and memory go' "$out" 'tp 4, pp 4, cp 2, dp 2; interleaved, 5 stages a rank, 64 micro-batches of 1' \
    'pp bubble' 'optimizer' 'activations' 'it fits' 'attention counted causal' 'a billion tokens' 'kWh'
# step_of OPTIONS: the step of that grid.
step_of() { "$LAP" $grid --explain --json "$@" | python3 -c 'import json, sys; print(json.load(sys.stdin)["plan"]["step_s"])'; }
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && a < b) }'; }
plain=$(step_of)
ok 'overlap pays' less "$plain" "$(step_of --no-overlap)"
ok 'FP8 is faster than bf16' less "$(step_of --precision fp8)" "$plain"
ok 'recomputing a layer takes time' less "$plain" "$(step_of --recompute layer)"
ok 'a B200 is faster than an H100' less "$(step_of --gpu b200)" "$plain"
sed 's/^  gb_per_s: 450/  gb_per_s: 45/' "$machines/h100-sxm.yaml" >"$work/slow.yaml"
ok 'a slower NVLink is slower' less "$plain" "$(step_of --gpu "$work/slow.yaml")"
# 16 layers of Llama 70B: 10 gathers and scatters of a layer's tokens between 4 ranks, 5 of embedding and head.
for options in "" --no-overlap-tp --no-overlap; do
    # shellcheck disable=SC2086
    "$LAP" plan --model llama-70b --layers 16 --gpus 4 --tp 4 --pp 1 --cp 1 --global-batch 2 --micro-batch 1 --recompute none --explain --json $options
done >"$work/tensor.json"
ok 'tensor parallelism: what travels counts once, and without overlap none of it is hidden' python3 - "$work/tensor.json" <<'PY'
import json, sys
overlap, alone, serial = [json.loads(line)["plan"] for line in open(sys.argv[1])]
tp = lambda plan: (plan["exposed_s"]["tp"], plan["hidden_s"]["tp"])
travel = 2 * (10 * 16 + 5) * 8192 * 3 / 4 * 8192 * 2 / (450e9 * 0.8)
assert abs(sum(tp(overlap)) / travel - 1) < 1e-3 and tp(overlap)[0] < travel / 2, (tp(overlap), travel)
for plan in alone, serial:
    assert abs(tp(plan)[0] / travel - 1) < 1e-3 and tp(plan)[1] < 1e-6, (tp(plan), travel)
PY
for options in "" --no-overlap --fsdp "--fsdp --global-batch 16" "--fsdp --no-overlap"; do
    # shellcheck disable=SC2086
    "$LAP" plan --model llama-8b --gpus 8 --tp 1 --pp 1 --cp 1 --global-batch 8 --micro-batch 1 --recompute full --explain --json $options
done >"$work/replicas.json"
ok 'replicas: buckets of gradients and weights are linked and simulated' python3 - "$work/replicas.json" <<'PY'
import json, math, sys
overlap, serial, fsdp, twice, late = [json.loads(line)["plan"] for line in open(sys.argv[1])]
dp = lambda plan: (plan["exposed_s"]["dp"], plan["hidden_s"]["dp"])
# Llama 8B on 8 replicas inside a node: buckets of 40 million, over NVLink with the latencies of a tree
params = 2 * 128256 * 4096 + 32 * (4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336) + 2 * 4096) + 4096
buckets = math.ceil(params / 40e6)
def travel(params, size, count): return params * size * 7 / 8 / (450e9 * 0.8) + count * 8e-6 * 2 * 3
assert abs(dp(serial)[0] / (travel(params, 4, buckets) + travel(params, 2, buckets)) - 1) < 0.001, dp(serial)
assert dp(serial)[1] < 1e-6
# The gradient of the embedding comes last and its weights are needed first: nothing hides those buckets but one.
embedding = 128256 * 4096
exposed, hidden = dp(overlap)
assert travel(embedding - 40e6, 6, 0) < exposed < travel(embedding, 6, 30) + 0.2 * dp(serial)[0], (exposed, hidden)
assert abs(exposed + hidden - dp(serial)[0]) < 0.01
# Each layer is gathered twice and scattered once, in every micro-batch.
layer = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336) + 2 * 4096
assert abs(sum(dp(fsdp)) / (32 * travel(layer, 8, 3)) - 1) < 0.001, dp(fsdp)
assert dp(late)[1] < 1e-6 and abs(dp(late)[0] / (32 * travel(layer, 8, 3)) - 1) < 0.001, dp(late)
assert all(abs(two / one - 2) < 1e-6 for one, two in zip(dp(fsdp), dp(twice)))
assert overlap["bucket_parameters"] == round(params / buckets) and not overlap["larger_buckets"] and "bucket_parameters" not in fsdp
PY
lap plan --model llama-70b --gpus 2 --tp 1 --pp 1 --cp 1 --dp 2 --global-batch 2 --explain --json
ok 'as many buckets as a rank has: 1,764' python3 - "$work/out" <<'PY'
import json, sys
plan = json.load(open(sys.argv[1]))["plan"]
assert not plan["larger_buckets"] and 39e6 < plan["bucket_parameters"] <= 40e6, plan
PY
lap plan --model llama-405b --layers 206 --gpus 2 --tp 1 --pp 1 --cp 1 --dp 2 --global-batch 2 --explain
has 'of more than 16,384 larger ones are planned, and that is said' "$out" 'dp: planned with buckets of 40.3 million parameters'

for options in "" --no-overlap "--seq 512" "--seq 512 --no-overlap" "--cp 32 --gpus 32 --seq 65536"; do
    # shellcheck disable=SC2086
    "$LAP" plan --model llama-8b --gpus 4 --tp 1 --pp 1 --cp 4 --global-batch 1 --micro-batch 1 --recompute none --explain --json $options
done >"$work/ring.json"
ok 'contexts: keys, values and their gradients go around a ring that is linked and simulated' python3 - "$work/ring.json" <<'PY'
import json, sys
overlap, serial, short, late, many = [json.loads(line)["plan"] for line in open(sys.argv[1])]
cp = lambda plan: (plan["exposed_s"]["cp"], plan["hidden_s"]["cp"])
# Of 32 layers, 8 heads of 128 keys and values: in bf16 forward and backward, their gradients in fp32, in steps of one message each.
def travel(tokens, ranks, rate, latency): return 32 * (ranks - 1) * (tokens / ranks * 2 * 1024 * (2 + 2 + 4) / rate + 3 * latency)
node, network = (450e9 * 0.8, 2e-6), (50e9 * 0.85, 8e-6)
assert abs(sum(cp(overlap)) / travel(8192, 4, *node) - 1) < 1e-3 and cp(overlap)[0] < 1e-6, cp(overlap)
assert abs(sum(cp(short)) / travel(512, 4, *node) - 1) < 1e-3 and 0 <= cp(short)[0] < cp(late)[0], cp(short)
for plan, tokens in (serial, 8192), (late, 512):
    assert abs(cp(plan)[0] / travel(tokens, 4, *node) - 1) < 1e-3 and cp(plan)[1] < 1e-6, cp(plan)
assert abs(sum(cp(many)) / travel(65536, 32, *network) - 1) < 1e-3 and 0 < cp(many)[0] < cp(many)[1], cp(many)
PY
# slower KEY: seconds that a layer of a GPT takes longer when a kernel has 1 MB/s.
slower() {
    for rate in "" "kernels:\n  $1: 0.001\n"; do
        { cat "$machines/h100-sxm.yaml"; printf "$rate"; } >"$work/kernels.yaml"
        "$LAP" plan --model gpt --layers 1 --gpus 1 --tp 1 --pp 1 --cp 1 --global-batch 1 --micro-batch 1 --recompute none --precision fp32 \
            --gpu "$work/kernels.yaml" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["plans"][0]["step_s"])'
    done | python3 -c 'import sys; a, b = map(float, sys.stdin); print(f"{b - a:.3f}")'
}
# 256 tokens, hidden 128, ffn 512, vocab 256: bytes over 1e6
is 'a slow GELU costs the bytes of its result' "$(slower gelu) $(slower gelu_backward)" "$(python3 -c 'print(*2 * [f"{256 * 512 * 4 / 1e6:.3f}"])')"
is 'a norm what it reads and writes: x, y, scratch, two numbers of each row, gains and biases; three of them' "$(slower norm)" \
    "$(python3 -c 'print(f"{3 * (4 * 256 * 128 + 2 * 256 + 2 * 128) * 4 / 1e6:.3f}")')"
is 'a bias goes to the results of the three GEMMs of a layer that end with nothing else' "$(slower bias)" \
    "$(python3 -c 'print(f"{256 * (3 * 128 + 128 + 128) * 4 / 1e6:.3f}")')"
is 'a kernel that the model has not costs nothing' "$(slower swiglu)" 0.000
# shellcheck disable=SC2086
lap $grid --trace "$work/step.json" --json
ok 'a trace: all actions, messages that release them, and the time of the step' python3 - "$work/step.json" "$work/out" <<'PY'
import json, sys
trace, plan = (json.load(open(name)) for name in sys.argv[1:])
events, plan = trace["traceEvents"], plan["plan"]
slices = [e for e in events if e["ph"] == "X"]
kernels = [e for e in slices if e["cat"] == "kernel"]
assert len(kernels) == 4 * (5 * 64 * 2 + 1), len(kernels)
puts = [e for e in slices if e["cat"] == "put"]
assert len(puts) == 2 * 64 * (4 * 5 - 1) + 4, len(puts) # between stages, and to replicas
assert sum(e["ph"] == "f" for e in events) == 2 * 64 * 19
end = max(e["ts"] + e["dur"] for e in slices)
assert abs(end / 1e6 / plan["step_s"] - 1) < 1e-3, (end, plan["step_s"])
path = [e for e in slices if e["cat"] == "critical"]
idle = sum(e["dur"] for e in path if e["args"]["what"] == "idle")
assert idle < 0.01 * end and abs(sum(e["dur"] for e in path) / end - 1) < 1e-3, idle / end
PY
lap plan --model llama-8b --trace /dev/full
is 'a trace that cannot be written: status 1 or 2, nothing printed' "$((status > 0))$out" 1
lap plan --model llama-405b --gpus 8 --global-batch 8 --explain
is 'a model that cannot fit: status 1' "$status" 1
has '... with the reason' "$out" 'does not fit'

# ---- what is wrong ----

# A row whose heads cannot be shared has no plan: it is told with its line, and counted.
head -n 3 "$LAP_SOURCE_DIR/docs/published_steps.csv" | sed '3s/,64,64,/,60,64,/' >"$work/heads.csv"
lap plan --validate "$work/heads.csv"
has 'a row whose heads do not divide: its line, and how many there are' "$status $out" '0 ' 'no plan, line 3: heads is 60, expected a multiple of tp, 8' \
    "$(printf '%-58s  %4d' 'no plan' 1)"
lap plan --validate "$work/heads.csv" --json
has '... as JSON' "$out" '"refused":1,"by_row":[' '"why":"heads is 60'

# refused NAME SENTENCE ARGUMENTS: status 2 and the sentence.
refused() {
    local name=$1 sentence=$2
    shift 2
    lap plan "$@"
    is "$name: status 2" "$status" 2
    has "... with a sentence" "$err" "$sentence"
}
# wrong NAME SED SENTENCE: a description that was changed.
wrong() {
    sed "$2" "$machines/h100-sxm.yaml" >"$work/wrong.yaml"
    refused "$1" "$3" --model llama-8b --gpu "$work/wrong.yaml"
}
line_of() { grep -n "$1" "$machines/h100-sxm.yaml" | head -1 | cut -d: -f1; }
wrong 'a negative rate' 's/gb_per_s: 3350/gb_per_s: -3350/' \
    "wrong.yaml:$(line_of 'gb_per_s: 3350'): memory.gb_per_s is '-3350', expected a number from"
wrong 'no number' 's/gb_per_s: 3350/gb_per_s: fast/' "memory.gb_per_s is 'fast', expected a number"
wrong 'an unknown key' 's/latency_us: 2$/latency: 2/' "there is no key 'nvlink.latency'; did you mean nvlink.latency_us?"
wrong 'an unknown kernel' 's/^nvlink:.*/kernels:\n  gelo: 3\n&/' "there is no key 'kernels.gelo'; did you mean kernels.gelu?"
wrong 'a kernel that takes forever' 's/^nvlink:.*/kernels:\n  gelu: 0\n&/' "kernels.gelu is '0', expected a number from 1e-06"
wrong 'more SMs for collectives than there are' 's/^  sms: 0 .*/  sms: 500/' 'nvlink.sms is 500, expected at most the 132 sms of a GPU'
wrong 'more memory reserved than there is' 's/reserved_gb: 4 /reserved_gb: 85.9 /' \
    "wrong.yaml:$(line_of reserved_gb): memory.reserved_gb is 85.9, expected less than the 85.9 of memory.capacity_gb"
wrong 'no name' 's/^name:.*/name:/' "wrong.yaml:$(line_of ^name): name is '', expected a text of 1 to 63 characters"
wrong 'a key that is missing' '/^sms/d' 'wrong.yaml:1: there is no sms, expected a number from 1 to 1e+06'
wrong '... in a section: the line of that' '/^  latency_us: 8/d' \
    "wrong.yaml:$(line_of '^network:'): there is no network.latency_us, expected a number from 0 to 1e+06"
wrong '... and a curve' '/^  forward:/d' \
    "wrong.yaml:$(line_of '^attention_efficiency:'): there is no attention_efficiency.forward, expected a list of at most 5 numbers from"
wrong 'a section that is missing' '/^network/,$d' 'wrong.yaml:1: there is no network.gb_per_s, expected a number'
wrong 'no peaks' '/^peak_tflops/,/^  fp8: 1/d; /^  fp[0-9]*: \[/d; /^  bf16: \[/d' 'wrong.yaml:1: there is no peak_tflops, expected at least one type'
wrong 'a key twice' 's/^sms.*/&\nsms: 4/' 'sms is there twice, first in line'
wrong 'an efficiency above 1' 's/efficiency: 0.8$/efficiency: 1.8/' "efficiency is '1.8', expected a number from 1e-06 to 1"
wrong 'a curve with too few points' 's/^  bf16: \[.*/  bf16: [0.5]/' 'gemm_efficiency.bf16 has 1 numbers'
# Four efficiencies, as many as the sizes of the section before: those are none of theirs.
wrong 'sizes behind their efficiencies' '/^  tokens:/d; s/^\(  \(for\|back\)ward:.*\),.*/\1]/; s/^  backward.*/&\n  tokens: [1024, 2048, 4096, 8192]/' \
    'attention_efficiency.forward has 4 numbers, expected the sizes before it, and as many of them: there are 0'
wrong 'sizes that fall' 's/gflop: \[1, 10/gflop: [10, 1/' 'expected ascending numbers'
wrong 'a type without its curve' '/^  fp8: \[/d' "wrong.yaml:$(line_of '^  fp8: 1'): peak_tflops.fp8 is there without gemm_efficiency.fp8"
wrong 'a curve without its type' 's/^  fp8: 1.*//' "wrong.yaml:$(line_of '^  fp8: \['): gemm_efficiency.fp8 is there without peak_tflops.fp8"
refused 'an unknown machine' '(did you mean h100-sxm?)' --model llama-8b --gpu h100-sx
refused 'an unknown model' '(did you mean llama-70b?)' --model lama-70b
refused 'a machine by its family' '(did you mean h100-sxm?)' --model llama-8b --gpu H100
lap plan --model llama-8b --layers 4 --hidden 4016 --heads 32 --head-dim 128 --ffn 14336 --gpus 8 --tp 2 --pp 1 --cp 1 --json
is 'a hidden size that is no multiple of the heads, whose width is given' "$status$err" 0
lap plan --model llama-405b --gpus 1 --json
ok 'where nothing fits JSON has what needs the least, as the table says' python3 - "$work/out" <<'PY'
import json, sys
answer = json.load(open(sys.argv[1]))
assert answer["plans"] == [] and not answer["nearest"]["fits"] and answer["nearest"]["memory_bytes"] > 85.9e9, answer
PY
refused 'an optimizer that is whole and sharded' '--no-distributed-optimizer is given with --fsdp, expected one of them' \
    --model llama-8b --fsdp --no-distributed-optimizer
refused 'a price beyond its bounds' "--price is '1e9', expected a number above 0 and below 1000000000" --model llama-8b --price 1e9
refused 'no heads' '--heads is 0, expected at least 1' --model llama-8b --heads 0
refused 'stages of a rank without a pipeline' 'lap plan: --virtual-pp is 3 with pp 1, expected 1' --model llama-8b --tp 1 --pp 1 --cp 1 --virtual-pp 3
refused 'stages of a rank that a schedule has not' '--virtual-pp is 2 with --schedule 1f1b, expected 1, or --schedule interleaved' \
    --model llama-8b --virtual-pp 2 --schedule 1f1b
refused 'one stage of a rank, interleaved' '--virtual-pp is 1 with --schedule interleaved, expected 2 or more' \
    --model llama-8b --virtual-pp 1 --schedule interleaved
lap plan --model llama-8b --gpus 8 --global-batch 8 --virtual-pp 2 --top 64 --json
ok 'stages of a rank are searched for in pipelines only' python3 -c '
import json, sys
plans = json.load(open(sys.argv[1]))["plans"]
assert plans and all(plan["pp"] > 1 and plan["virtual_pp"] == 2 for plan in plans)' "$work/out"
# Layers that stages cannot share evenly are shared as lap train does it: the first stages have more. Where embedding and head make them even, they count.
lap plan --model llama-tiny --layers 3 --gpus 2 --tp 1 --pp 2 --cp 1 --global-batch 8 --explain --json
has 'stages have the layers that lap train gives them' "$status $out" '0 ' '"layers_per_stage":[2,1]'
lap plan --model llama-tiny --layers 6 --gpus 4 --tp 1 --pp 4 --cp 1 --global-batch 8 --explain
has '... or the plan says which' "$status $out" '0 ' 'stages    --layers-per-stage 1,2,2,1 of lap train'
lap plan --model llama-tiny --layers 4 --gpus 2 --tp 1 --pp 2 --cp 1 --global-batch 8 --explain
is '... where they are not all alike' "$status $(grep -c '^stages' <<<"$out")" '0 0'
lap plan --model llama-8b --gpus 3 --cp 3
has 'a sequence that does not divide: the reason' "$out" 'tokens of a sequence are no multiple of 2 * cp, or too few for it, as tp 1, pp 1, cp 3'
refused 'a trace of published steps' '--trace is given with --validate' --validate "$steps" --trace "$work/step.json"
head -1 "$steps" >"$work/steps.csv"
refused 'no rows' 'steps.csv has no rows after its first line' --validate "$work/steps.csv"
for i in {1..20000}; do echo 'a: ['; done >"$work/deep.yaml"
refused 'lists that lie deep in each other, at once' 'deep.yaml:10: lists and mappings lie too deep in each other' --model llama-8b --gpu "$work/deep.yaml"
refused 'more tokens than any vocabulary' '--vocab is 99999999999, expected at most 2147483647' --model llama-8b --vocab 99999999999
refused 'a model for published steps' '--model is given with --validate, expected one of them' --validate "$work/steps.csv" --model llama-8b
refused 'a grid for published steps' '--tp is given with --validate, expected one of them' --validate "$work/steps.csv" --tp 2
refused 'heads that do not divide' '--heads is 32, expected a multiple of --tp, 3 (--tp 1 would do)' --model llama-8b --gpus 3 --tp 3
refused '... and which would' '--heads is 25, expected a multiple of --tp, 4 (--tp 5 or --heads 20 would do)' --model gpt2-1.5b --gpus 20 --tp 4 --pp 1 --cp 1
refused '... of as many GPUs' '(--tp 1 or --heads 20 would do)' --model gpt2-1.5b --gpus 8 --tp 4
refused '... and beside other sizes' '(--tp 1 or --heads 20 would do)' --model gpt2-1.5b --gpus 40 --tp 4 --pp 5
refused '... where they leave that many' 'the grid is to have tp 8, pp 2, expected sizes whose product divides the 8 GPUs' --model gpt2-1.5b --gpus 8 --tp 8 --pp 2
refused '... those of keys' '--kv-heads is 8, expected a multiple of --tp, 16 (--tp 8 or --heads 128 with --kv-heads 16 would do)' \
    --model llama-70b --gpus 64 --tp 16
refused 'hidden that does not divide' '--hidden is 4096, expected a multiple of the 7 heads' --model llama-8b --heads 7
refused 'a grid of other GPUs' 'expected the 8 GPUs' --model llama-8b --gpus 8 --tp 2 --pp 2 --cp 1 --dp 4
refused 'three sizes that leave no replica' 'the grid is tp 8, pp 8, cp 8, expected the 64 GPUs as the product of its sizes' \
    --model llama-70b --gpus 64 --tp 8 --pp 8 --cp 8
refused 'a size that does not divide the GPUs' 'the grid is to have tp 3, expected sizes whose product divides the 8 GPUs' \
    --model llama-8b --gpus 8 --tp 3
refused 'two that do not' 'the grid is to have tp 4, pp 4, expected sizes whose product divides the 8 GPUs' --model llama-8b --gpus 8 --tp 4 --pp 4
refused 'a type that no grid of the GPU has' 'multiplies no fp4' --model llama-8b --gpu a100-sxm --precision fp4
cp "$LAP" "$work/alone"
(cd / && "$work/alone" plan --model llama-8b --gpus 8 --json) >"$work/out" 2>"$work/err"
is 'lap without its machines has them built in: status 0' "$?$(<"$work/err")" 0
ok '... and plans as with them' python3 - "$work/out" "$("$LAP" plan --model llama-8b --gpus 8 --json)" <<'PY'
import json, sys
alone, beside = json.load(open(sys.argv[1])), json.loads(sys.argv[2])
assert alone["plans"] == beside["plans"] and alone["machine"] == beside["machine"]
PY
for file in "$machines"/*.yaml; do
    name=$(basename "$file" .yaml)
    "$work/alone" plan --model llama-8b --gpus 8 --tp 8 --pp 1 --cp 1 --gpu "$name" >"$work/out" 2>"$work/err"
    has "... $name, too" "$(<"$work/err")$(<"$work/out")" "$(sed -n 's/^name: *//p' "$file" | tr -d "'\"")"
done
mkdir -p "$work/machines" && sed 's/^name:.*/name: my own/' "$machines/h100-sxm.yaml" >"$work/machines/h100-sxm.yaml"
has '... but one beside the program comes first' "$("$work/alone" plan --model llama-8b --gpus 8 --tp 8 --pp 1 --cp 1)" 'x my own'
refused '... and what is nowhere is told' "there is no machine 'x9'; expected one of a100-sxm, h100-sxm" --model llama-8b --gpu x9
lap plan --model gpt --gpus 8 --seq 1M
is 'a long sequence is planned at once' "$status$err" 0
refused 'a batch that does not divide' 'global-batch is 7, expected a multiple of dp' --model llama-8b --gpus 4 --tp 1 --pp 1 --cp 1 --global-batch 7
refused 'too many layers' 'layers is 100000, expected 1 to' --model llama-8b --layers 100000
refused 'too many GPUs' "--gpus is '16M'; expected a size such as 2048 or 2K, 1 to 1048576" --model llama-8b --gpus 16M
refused 'no model' '--model is not given' --gpus 8
refused 'a type that the GPU has not' 'multiplies no fp8' --model llama-8b --gpu a100-sxm --precision fp8 --tp 1 --pp 1 --cp 1
sed 's/,layers,/,layer,/' "$steps" >"$work/steps.csv"
refused 'rows without a column' 'there is no column layers' --validate "$work/steps.csv"
printf '%s\nx,y,1,z\n' "$(head -1 "$steps")" >"$work/steps.csv"
refused 'a row with too few fields' 'steps.csv:2: ' --validate "$work/steps.csv"
sed '1s/,note$/,source/' "$steps" >"$work/steps.csv"
refused 'a column that is there twice' 'steps.csv:1: column source is there twice, expected once' --validate "$work/steps.csv"

# row COLUMN VALUE ...: a file of the first row, with other values.
row() {
    python3 - "$steps" "$work/steps.csv" "$@" <<'PY'
import csv, sys
names, first = list(csv.reader(open(sys.argv[1])))[:2]
for name, value in zip(sys.argv[3::2], sys.argv[4::2]):
    first[names.index(name)] = value
csv.writer(open(sys.argv[2], "w", newline="")).writerows([names, first])
PY
}
row layers 24.5
refused 'half a layer' "steps.csv:2: layers is '24.5', expected a whole number above 0, or nothing" --validate "$work/steps.csv"
row cp 0.5
refused 'half a rank, which is not the same as nothing' "steps.csv:2: cp is '0.5', expected a whole number" --validate "$work/steps.csv"
row source 'Our own cluster' precision BF16
lap plan --validate "$work/steps.csv" --json
has 'a source that nobody knows is planned as it is, not as FSDP, in whatever case its type is' "$status$err$out" '0{"' '"class":"other"'
planned() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["by_row"][0].get("planned_s", "none"))' "$work/out"; }
row source 'Our own cluster' note 'full recompute'
lap plan --validate "$work/steps.csv" --json
recomputes=$(planned)
row source 'Our own cluster' note 'Full recompute'
lap plan --validate "$work/steps.csv" --json
is 'a note that begins with a capital says the same' "$status $(planned)" "0 $recomputes"
row gpu 'a100 SXM'
lap plan --validate "$work/steps.csv" --json
has 'a GPU in whatever case it is named' "$status$err$out" '0{"' '"class":"counted"'
for card in 'H100 PCIe' 'H100 NVL' H100-NVL V100; do
    row gpu "$card"
    lap plan --validate "$work/steps.csv" --json
    has "a $card, which nothing describes: no plan, status 1" "$status$err$out" '1{"' 'there is no description of its GPU' '"refused":1'
done
has '... and no error either: none would be the best' "$out" '"rows":0,"median_error":null,"p90_error":null,"within_20_percent":null,"fsdp":{"rows":0,"median_error":null'
lap plan --validate "$work/steps.csv" --gpu h100-sxm --json
has '... unless --gpu says what to take for it' "$status$err$out" '0{"' '"class":"other"'
row source 'Our own cluster' note 'FSDP'
{ printf '\357\273\277' && cat "$work/steps.csv"; } >"$work/marked.csv"
lap plan --validate "$work/marked.csv" --json
has '... unless its note says so; from a spreadsheet, too' "$status$err$out" '0{"' '"class":"fsdp"'
finish
