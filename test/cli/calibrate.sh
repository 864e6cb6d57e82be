#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lap calibrate: what it writes is a machine that lap plan takes; files that cannot be written are named before anything is measured.
. "$(dirname "$0")/tap.bash"
limit=120
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB

calibrate_two() { lap calibrate --ranks 2 --name 'two ranks' -o "$work/two.yaml"; }
ok_in_three 'an exponential for each element is no cheaper than a sum' calibrate_two \
    awk '/^ *gelu:/ { gelu = $2 } /^ *bias:/ { bias = $2 } END { exit !(0 < gelu && gelu < bias) }' "$work/two.yaml"
is 'two ranks: status 0, and nothing printed' "$status$out$err" 0
ok 'rates are those of a computer, efficiencies parts of 1' python3 - "$work/two.yaml" <<'PY'
import re, sys
text = open(sys.argv[1]).read()
number = lambda key: float(re.search(rf"^ *{key}: ([0-9.e+-]+)$", text, re.M)[1])
assert "name: 'two ranks'" in text and text.startswith("# Measured by lap calibrate: 2 ranks at once, device cpu")
assert 0 < number("optimizer") <= 1
kernels = text[text.index("kernels:"):text.index("nvlink:")].split("\n")[1:-1]
assert len(kernels) == 10 and all(0.001 < float(line.split(":")[1]) < 1e5 for line in kernels), kernels
assert number("gpus_per_node") == 2 and 1e-4 < number("fp32") < 1e3 and 0.01 < number("gb_per_s") < 1e5
curves = re.findall(r"^  (\w+): \[(.*)\]$", text, re.M)
assert len(curves) == 7, curves
for name, values in curves:
    values = [float(v) for v in values.split(",")]
    if name in ("gflop", "tokens"):
        assert values == sorted(values)
    else:
        assert all(0 < v <= 1 for v in values)
        assert name in ("forward", "backward") or max(values) == 1
PY

# How large it is, bench/plan.py shows: on a busy machine GEMMs that run alone may be disturbed more than those beside copies.
ok 'what communication costs GEMMs is a part of their core, from none to all' \
    awk '/^  sms:/ { if ($2 >= 0 && $2 <= 1) n++ } END { exit n != 2 }' "$work/two.yaml"

# With a bucket of 16 MiB, as without a link, this one would take four minutes.
lap calibrate --ranks 2 --link 1MB/s,1ms -o "$work/link.yaml"
is 'an emulated link, a slow one, within the limit of a test: status 0' "$status$err" 0
ok '... whose rate is that of both wires' test "$(grep -c 'gb_per_s: 0.001$' "$work/link.yaml")" = 2
ok '... and its latency is in theirs' awk '/latency_us/ && $2 > 1000 { n++ } END { exit n != 2 }' "$work/link.yaml"
lap calibrate --ranks 2 --link ratio:0.4
is 'a link as slow as a part of something: status 2' "$status" 2
has '... is named' "$err" "--link is 'ratio:0.4', expected a rate"

lap plan --model llama-tiny --gpu "$work/two.yaml" --gpus 2 --tp 2 --global-batch 4 --precision fp32 --explain
is 'lap plan takes it' "$status$err" 0
has '... and plans with it' "$out" 'llama-tiny on 2 x two ranks, fp32' 'it fits'

# On one core, as it has with others: OpenBLAS's threads of a rank with several cores spin for each other, and on a busy machine each of
# thousands of GEMMs waits for the turns of other programs.
core=$(python3 -c 'import os; print(min(os.sched_getaffinity(0)))')
printf '#!/bin/sh\nexec taskset -c %s "%s" "$@"\n' "$core" "$LAP" >"$work/lap"
chmod +x "$work/lap"
LAP=$work/lap lap calibrate --ranks 1 --transport self
is 'one rank, a thread: status 0' "$status$err" 0
has '... printed' "$out" 'peak_tflops:' 'gpus_per_node: 1' 'attention_efficiency:' 'sms: 0'

setsid env --default-signal=INT,TERM "$LAP" calibrate --ranks 2 -o "$work/none.yaml" >"$work/out" 2>"$work/err" </dev/null &
launcher=$!
ok 'the ranks are at work' until_true at_work 2
sleep 0.3
kill -INT $launcher
collect
is 'an interrupt ends it at once' "$status $err" '130 '
ok '... and half a description is none' test ! -e "$work/none.yaml"

lap calibrate -o "$work/nowhere/this.yaml"
is 'a folder that is not there: status 1' "$status" 1
has '... is named' "$err" nowhere
lap calibrate -o ''
is 'an empty path' "$status $err" '2 lap calibrate: the path is empty: expected the file to write'
lap calibrate --name "it's"
is 'a name with a quote: status 2' "$status" 2
has '... is named' "$err" "--name is 'it's', expected"
lap calibrate --ranks 0
is 'no ranks: status 2' "$status" 2
finish
