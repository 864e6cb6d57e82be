#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lap show: schedules as text, JSON and pictures, as built and after passes, for targets that are not there.
. "$(dirname "$0")/tap.bash"

lap show ag 8 8 8 --ranks 2 --method ring --rank 0
is 'status 0, and nothing printed' "$status$err" 0
has 'a put names both ranges and its signal' "$out" 'AG+GEMM, method ring' 'rank 0: 6 steps' \
    'PUT     input rows 0..3 -> symmetric buffer of rank 1 rows 0..3; raises data[0] of rank 1' \
    'WAIT    until rank 1 has raised credit[1] 1 time' 'symmetric buffer rows 4..7 -> output rows 4..7'
is 'only the rank that was asked for' "$(grep -c '^rank ' "$work/out")" 1

lap show ag 8 8 8 --ranks 3 --target cuda --each --rank 0
has 'each pass that the target needs' "$out" 'target cuda: as built' 'target cuda: after pass waits' '[after step '
lap show ag 8 8 8 --ranks 3 --target cuda --after build --rank 0
is 'as built, no wait depends on what was sent before' "$(grep -c 'after step' "$work/out")" 0

for op in ag rs ar gemm bulk-ag bulk-rs external-ag external-rs; do
    for target in cpu cuda nccl; do
        lap show $op 24 12 8 --ranks 3 --target $target --json
        ok "$op for $target: JSON that agrees with itself" python3 - "$work/out" 3 <<'PY'
import json, sys
show = json.load(open(sys.argv[1]))
assert [p["rank"] for p in show["programs"]] == list(range(int(sys.argv[2])))
for program in show["programs"]:
    for i, step in enumerate(program["steps"]):
        assert step["step"] == i and all(dep < i for dep in step["after"]), step
        assert step["kind"] != "PUT" or step["src"]["rows"] == step["dst"]["rows"], step
PY
    done
done

lap show ag 8 8 8 --ranks 4 --method ring:aggregate --rank 0
has 'a method with a knob' "$status $out" '0 ' 'method ring:aggregate'
lap show ag 8 8 8 --ranks 2 --method cublasmp:algorithm=split_p2p --target nccl --rank 0
has "another library's call is one step" "$status $out" '0 ' 'rank 0: 2 steps' 'KERNEL  cublasmp'
lap show ag 8 8 8 --method ring:num_splits=2
has 'a knob that the method has not' "$status $err" '2 ' 'num_splits is a knob of'

lap show rs 8 8 8 --ranks 2 --method ring --svg "$work/rs.svg"
is 'a picture: status 0, and nothing printed' "$status$out$err" 0
ok 'a picture: XML with a box for each step and lines for signals' python3 - "$work/rs.svg" <<'PY'
import sys, xml.etree.ElementTree as tree
svg = "{http://www.w3.org/2000/svg}"
root = tree.parse(sys.argv[1]).getroot()
boxes = [g.find(svg + "title").text for g in root.iter(svg + "g")]
assert len(boxes) == 14 and any("rank 1 step 3 PUT" in b for b in boxes), boxes
orange = [l for l in root.iter(svg + "line") if l.get("stroke") == "#e69f00"]
assert len(orange) == 4, len(orange)  # a credit and a put each way
PY

# Predicted times.
lap show ag 8192 8192 8192 --ranks 4 --method ring --dtype bfloat16 --target cuda --predict h100-sxm --rank 0
has 'predicted times beside each step' "$status $out" '0 ' 'predicted on h100-sxm: ' ' step   begin us    end us  stream'
lap show ag 8192 8192 8192 --ranks 4 --method ring --dtype bfloat16 --target cuda --predict h100-sxm --json
ok 'times that agree with the schedule' python3 - "$work/out" <<'PY'
import json, sys
show = json.load(open(sys.argv[1]))
assert show["machine"] == "h100-sxm"
arrived = {}
for program in show["programs"]:
    steps, last = program["steps"], {}
    for step in steps:
        assert step["begin_us"] < step["end_us"] <= show["predicted_us"], step
        ready = [steps[i]["begin_us"] for i in step["after"]] + [last.get(step["stream"], 0)]
        assert step["end_us"] > max(ready), step
        last[step["stream"]] = step["begin_us"]
        if step["kind"] == "PUT":
            arrived.setdefault(step["peer"], []).append(step["end_us"])
    gemms = [s for s in steps if s["kind"] == "GEMM"]
    assert len(gemms) == 4 and max(s["end_us"] for s in gemms) == max(s["end_us"] for s in steps), gemms
# Data cannot be used before the wire has brought it: 32 MiB at 450 GB/s, 0.8 of it used, is 93 us.
for program in show["programs"]:
    waits = [s for s in program["steps"] if s["kind"] == "WAIT" and s["signal"].startswith("data")]
    first = sorted(arrived[program["rank"]])[0]
    assert 80 < first and all(w["end_us"] >= first for w in waits), (first, waits)
    assert any(w["begin_us"] < first - 50 for w in waits), waits
PY
lap show ag 8 8 8 --predict h100-sxm
is 'predicted times of what is no GPU' "$status $err" '2 lap show: --predict is for GPUs: expected --target cuda or nccl'
lap show ag 8 8 8 --target cuda --predict h100-sxm --svg "$work/no.svg"
is 'a picture has no times' "$status $err" '2 lap show: --predict prints times: expected no --svg'
lap show ag 8 8 8 --target cuda --predict h10-sxm
has 'GPUs that nobody knows' "$status $err" "2 lap show: there is no machine 'h10-sxm'" 'did you mean h100-sxm?'
lap show ag 8 8 8 --target cuda --dtype e4m3 --predict a100-sxm
has 'a type that the GPUs do not multiply' "$status $err" '2 lap show: --predict: ' 'multiplies no float8_e4m3'
lap show ag 8 8 8 --method cublasmp --target nccl --predict h100-sxm
has "another library's call" "$status $err" '2 lap show: --predict: method cublasmp'

# Bad input.
lap show trian
is 'what is no operator' "$status $err" \
    "2 lap show: what to show is 'trian'; expected ag, rs, ar, gemm, bulk-ag, bulk-rs, external-ag, external-rs, train or pipeline; did you mean 'train'?"
lap show trian --model gpt
has '... also before options of another' "$status $err" "2 lap show: what to show is 'trian'" "did you mean 'train'?"
lap show ag 8 8
is 'too few sizes' "$status $err" '2 lap show: ag takes the three sizes M N K: got 2 of them'
lap show --json train
is 'a word that comes first' "$status $err" '2 lap show: train comes after options; expected lap show train [OPTIONS]'
lap check --json train
is '... of lap check' "$status $err" '2 lap check: train comes after options; expected lap check train [OPTIONS]'
lap show ag 8 8 8 --method foo
is 'a method that there is not' "$status" 2
has '... is named, with those that there are' "$err" "'foo'" serial ring
lap show ag 8 8 8 --target gpu
has 'a target that there is not' "$status $err" '2 ' "--target is 'gpu'; expected cpu, cuda or nccl"
lap show ag 8 8 8 --after never
has 'a pass that there is not' "$status $err" '2 ' "--after is 'never'; expected build" waits
lap show ag 8 8 8 --ranks 2 --rank 2
has 'a rank that there is not' "$status $err" '2 ' "--rank is '2'"
lap show ag 8 8 8 --svg x --json
has 'two forms at once' "$status $err" '2 ' '--svg and --json'
lap show ag 8 8
is 'an operand too few' "$status" 2
lap show ag 8 8 8 --svg ''
is 'an empty path' "$status $err" '2 lap show: the path is empty: expected the file to write'
lap show ag 8 8 8 --svg /nowhere/x.svg
has 'a picture that cannot be written' "$status $err" '1 ' /nowhere/x.svg

# Every object says which version has made it, where and when, so that figures can be compared later.
while read -ra args; do
    lap "${args[@]}" --json
    ok "lap ${args[*]} --json: host, version, commit and date" python3 - "$work/out" <<'PY'
import json, sys
answer = json.load(open(sys.argv[1]))
missing = {"host", "cpu", "gpu", "version", "commit", "date"} - set(answer)
assert not missing, missing
PY
done <<'END'
show ag 24 12 8 --ranks 2
show train --layer linear --tp 2
check ag --ranks 2
check train --layer linear --tp 2
plan --model llama-70b --gpus 64 --tp 8 --pp 1 --cp 1
plan --model llama-70b --gpus 64 --tp 8 --pp 1 --cp 1 --explain
END

finish
