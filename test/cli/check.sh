#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lap check: its verdicts as a table and as JSON, what its options choose, and values that make no
# sense. That it finds faults is for test/schedule: no command line makes an unsafe schedule.
. "$(dirname "$0")/tap.bash"

# wrong WORD... -- ARGUMENTS...: status 2, nothing printed, one line with all the words.
wrong() {
    local words=()
    while [ "$1" != -- ]; do
        words+=("$1")
        shift
    done
    shift
    lap check "$@"
    is "'lap check $*' is refused, with one line" "$status$out $(wc -l <"$work/err")" '2 1'
    has 'that says why' "$err" 'lap check: ' "${words[@]}"
}

# What stands on standard error beside how far it is, which depends on the machine.
said() { grep -vE '^lap check: P = [0-9]+ of [0-9]+ to [0-9]+: [0-9]+ sequences proved in [0-9]+ s$' "$work/err"; }

# row LABEL: the verdicts of one row of the table.
row() { sed -n "s/^$1 \{2,\}//p" "$work/out" | tr -s ' '; }

lap check --help
is 'help: status 0' "$status$err" 0
has 'help tells about' "$out" 'lap check' --method --ranks --json 'ag|rs'

lap check all --ranks 1:4
is 'all methods are safe: status 0, and nothing else on standard error' "$status$(said)" 0
is 'a column for each group size' "$(row P)" '1 2 3 4'
for label in 'ag serial' 'ag ring' 'ag ring gather_input' 'ag direct' 'ag fused' 'rs serial' 'rs ring' \
    'rs pipeline' 'rs pipeline num_splits=7' 'ag direct num_splits=1' 'rs fused' 'gemm serial' 'bulk-ag ring' 'bulk-ag fused' 'bulk-rs direct' \
    'external-ag direct' 'external-rs direct' mixtures; do
    is "$label: a verdict for each" "$(row "$label")" 'ok ok ok ok'
done
is 'pairs need an even group, beside a GEMM too' "$(row 'external-ag ring aggregate')" 'ok ok - ok'
is 'pairs need an even group' "$(row 'ag ring aggregate')" 'ok ok - ok'
ok 'the last line counts' \
    grep -qE '^[1-9][0-9]* schedules of [1-9][0-9]* sequences proved safe in [0-9.]+ s$' "$work/out"
ok 'nothing fails' eval '! grep -q FAIL "$work/out"'

# What a GPU is given, on any machine; methods that read peers' memory need a transport that can.
for target in cuda nccl; do
    lap check all --ranks 1:4 --target $target
    is "all that target $target is given is safe" "$status$(said)$(grep -c FAIL "$work/out")" 00
done
is 'nccl: methods that put' "$(row 'ag ring')" 'ok ok ok ok'
is '... and none that read in place' "$(grep -c fused "$work/out")" 0
# More ranks than a machine of eight GPUs has, and sizes of layers, where fused methods set some rows apart.
for more in '--ranks 9' '--ranks 8 --m 4096 --n 32768 --k 32768'; do
    # shellcheck disable=SC2086
    lap check all $more --target cuda
    is "all are safe: $more" "$status$(said)$(grep -c FAIL "$work/out")" 00
done
lap check ag --ranks 2 --target cuda --json
has 'JSON: the target' "$out" '"op":"ag_gemm","target":"cuda","m":100' '"ok":true,"host":'
wrong --target "'abacus'" cpu cuda nccl -- ag --target abacus
wrong --target "'gpu'" "did you mean 'cuda'?" -- ag --target gpu
wrong --method fused nccl -- ag --method fused --target nccl
wrong --method cublasmp 'look inside' -- ag --method cublasmp --target nccl

lap check rs --ranks 3
is 'one group size' "$status $(row P) $(row 'rs ring')" '0 3 ok'
is 'rs: no schedules of ag' "$(grep -c '^ag' "$work/out")" 0
lap check ag -n 2:3
is 'ag: none of rs' "$status $(row P) $(grep -c '^rs' "$work/out")" '0 2 3 0'
for op in bulk-ag bulk-rs external-ag external-rs gemm; do
    lap check $op -n 3
    is "$op: only its schedules" \
        "$status $(sed -n 's/^\([a-z-]*\) .* \(ok\|-\)$/\1/p' "$work/out" | sort -u | tr '\n' ,)" \
        "0 $(printf '%s\n' $op mixtures | sort | tr '\n' ,)"
done

# FP8 sends scales along, and epilogues add steps: other schedules.
for types in '--dtype e4m3' '--dtype e5m2 --wire-dtype e4m3' '--wire-dtype bf16' \
    '--epilogue bias,gelu,bias-grad' '--dtype e4m3 --wire-dtype e5m2 --epilogue dgelu,bias-grad'; do
    # shellcheck disable=SC2086
    lap check all --ranks 1:4 $types
    is "$types: all are safe" "$status$(said)$(grep -c FAIL "$work/out")" 00
done
lap check rs --ranks 2 --json --dtype half --wire-dtype e4m3 --epilogue bias,bias-grad
has 'JSON: types and epilogue' "$out" '"dtype":"float16","wire_dtype":"float8_e4m3"' \
    '"epilogue":"bias,bias-grad"'

lap check all --ranks 2 --method ring,pipeline
is 'only the methods asked for' \
    "$status $(sed -n 's/^\([a-z-]* [a-z]*\).*/\1/p' "$work/out" | grep -v '^mixtures' | sort -u | tr '\n' ,)" \
    '0 ag ring,ar pipeline,bulk-ag ring,external-ag ring,external-rs ring,rs pipeline,rs ring,'
lap check all --ranks 5 --m 1 --n 1 --k 1
is 'the smallest problem' "$status$(said)" 0
lap check all --ranks 2 --m 999 --n 64 --k 3
is 'another problem' "$status$(said)" 0

lap check all --ranks 2:3 --json
is 'JSON: status 0, one line' "$status$(said) $(wc -l <"$work/out")" '0 1'
ok 'JSON: an object with all verdicts' python3 -c '
import json, sys
report = json.load(open(sys.argv[1]))
assert report["op"] == "all" and report["ok"] is True
assert (report["m"], report["n"], report["k"]) == (100, 37, 29)
assert report["schedules"] > report["sequences"] > 0 and report["seconds"] >= 0
found = {(check["check"], check["ranks"]) for check in report["checks"]}
assert len(found) == len(report["checks"])
for label in "ag ring", "ag fused gather_input", "rs pipeline num_splits=7", "mixtures":
    assert (label, 2) in found and (label, 3) in found, label
assert ("ag ring aggregate", 2) in found and ("ag ring aggregate", 3) not in found
assert all(check["ok"] is True and check["error"] is None for check in report["checks"])
' "$work/out"
lap check ag --ranks 1 --json --m 5
has 'JSON: the request' "$out" '"op":"ag_gemm"' '"m":5,"n":37,"k":29'
lap check rs --ranks 1 --json
has 'JSON: of the other operator' "$out" '"op":"gemm_rs"' '"ok":true,"host":'

lap check train --tp 8
is 'a transformer layer of 8 ranks is proved: status 0' "$status$err" 0
has 'what was proved' "$out" 'transformer, 1 layer, 8 ranks, target cpu' 'proved safe in' 'launches per rank: ' 'memory per rank: '
ok 'in 2 s' eval '[ "$(sed -n "s/.*proved safe in \([0-9]*\)\..* s$/\1/p" "$work/out")" -lt 2 ]'
lap check train --tp 2 --device cuda --fp8 --recompute full --json
is 'for a GPU that need not be there: status 0' "$status$err" 0
has 'JSON' "$out" '"target":"cuda"' '"ok":true,"error":null' '"activation_bytes":'
lap check train --tp 2 --target cuda --layers 4
has 'a pass that is repeated is one graph: forward, loss, backward, step' "$out" 'launches per rank: 184 (' 'a pass that is repeated: 1 launch of graphs'
for recipe in delayed current; do
    lap check train --tp 2 --target cuda --fp8=$recipe
    has "... with FP8, too: $recipe scales stay on the device" "$out" 'a pass that is repeated: 1 launch of graphs'
done
lap check train --tp 2 --target cuda --num-replicas 2 --json
has '... and with replicas, for whose sums the step waits' "$out" '"launches":62,"repeated_launches":1,'
lap check train --tp 2 --target cuda --num-replicas 2 --no-comm-overlap --json
has '... also if gradients travel after backward' "$out" '"repeated_launches":1,'
# As many as a run on the fake GPU has: test/cli/train_cuda.sh.
for each in '1 --dtype bf16' '2 --clip-grad 0' '1 --no-overlap-param-sync' '1 --no-comm-overlap' '4 --no-comm-overlap --clip-grad 0'; do
    # shellcheck disable=SC2086
    lap check train --tp 1 --seq 12 --heads 12 --head-dim 4 --num-replicas 2 --distributed-optimizer --target cuda --json ${each#* }
    has "... of a shared optimizer: ${each#* }" "$out" "\"repeated_launches\":${each%% *},"
done
lap check train --tp 2 --target cuda --clip-grad 0 --json
has 'without clipping the host looks at the loss before the step' "$out" '"repeated_launches":2,'
lap check train --tp 2 --target cuda --clip-grad 0 --num-replicas 2 --json
has '... and with replicas there is a graph for each bucket, and for what is between them' "$out" '"repeated_launches":11,'
lap check train --tp 2 --json
has 'without graphs every launch is repeated' "$out" '"launches":52,"repeated_launches":52,'
lap check train --tp 2 --transport nccl --device cuda --layers 2 --no-sequence-parallel
has 'for NCCL' "$out" '2 layers, 2 ranks, target nccl' 'proved safe'
for pipeline in '' '--model gpt --layers 2 --hidden 32 --heads 2 --vocab 64 --seq 16 --pp 2'; do
    # shellcheck disable=SC2086
    lap check train --tp 2 $pipeline --auto
    has "methods that auto would choose are proved as serial, which is said${pipeline:+: a pipeline}" "$status$err$out" 'proved safe in' 'of these operators are proved as serial'
done
lap check train --tp 2 --auto --json
has '... in JSON, too' "$out" '"proved_as_serial":10,'
lap check train --tp 2 --json
has '... and nothing of the kind where methods are given' "$out" '"proved_as_serial":0,'
bytes() { lap check train --tp 2 --json "$@" && sed -n 's/.*"activation_bytes":\([0-9]*\).*/\1/p' "$work/out"; }
ok 'recomputation needs less memory' eval '[ "$(bytes --recompute full)" -lt "$(bytes)" ]'
lap check train --tp 2 --num-replicas 2
has 'gradients on their way to other replicas are proved' "$out" '2 ranks in each of 2 replicas'
has '... and need memory' "$out" 'buckets of gradients'
lap check train --tp 2 --num-replicas 32
has 'what is not proved is said' "$out" 'replicas: 2 of 32 are part of the proof'
lap check train --frob
is 'options are those of lap train' "$status" 2

# How far it is, where that goes into a file, and what there is when a signal comes.
# interrupted SIGNAL ARGUMENT...
interrupted() {
    local signal=$1
    shift
    last="lap check $*"
    : >"$work/err" # what the one before has told is not taken for this one's
    env --default-signal=INT,TERM "$LAP" check "$@" >"$work/out" 2>"$work/err" </dev/null &
    launcher=$!
    ok 'in a file, too, a line now and then tells how far it is' until_true grep -q '^lap check: P = ' "$work/err"
    kill -s "$signal" "$launcher"
    collect
    out=$(cat "$work/out")
    is "SIG$signal: status" "$status$(said)" $((128 + $(kill -l "$signal")))
}
interrupted INT all --ranks 2:64
has '... and what was proved until then' "$out" 'ag serial' ' ok' 'Interrupted at P = ' 'of 2 to 64: '
interrupted TERM all --ranks 2:64 --json
ok '... as JSON' python3 -c 'import json, sys
it = json.load(open(sys.argv[1]))
sys.exit(0 if it["interrupted"] is True and it["ok"] is False and len(it["checks"]) > 0 else 1)' "$work/out"

wrong 'what to check' "'banana'" ag rs all train pipeline -- banana
wrong --ranks "'0'" 1 64 -- all --ranks 0
wrong --ranks "'65'" 64 -- all --ranks 65
for value in 1:65 5:2 0:3 4: :4 4x 2:3x -1 '' 2:3:4; do
    wrong "--ranks is '$value'; expected a group size P, or the first and the last as A:B with A at most B" 64 \
        -- all "--ranks=$value"
done
wrong --ranks "'two'" -- all --ranks two
wrong --method "'banana'" ring serial -- all --method ring,banana
wrong --method "'direct'" pipeline -- rs --method direct
wrong --m "'0'" -- all --m 0
wrong --n "'-1'" -- all --n -1
wrong --k "'1e9'" -- all --k 1e9
wrong 'ag|rs' -- --ranks 2
wrong --dtype "'float99'" float8_e4m3 -- all --dtype float99
wrong --wire-dtype "'float99'" -- all --wire-dtype float99
wrong --epilogue "'relu'" gelu bias-grad -- all --epilogue relu
wrong --epilogue 'not both' -- all --epilogue gelu,dgelu
wrong 'ag has no option --wire-dtype' -- ag --wire-dtype bf16
wrong 'gemm has no option --wire-dtype' -- gemm --wire-dtype bf16
wrong 'external-ag has no option --epilogue' -- external-ag --epilogue gelu
wrong 'external-rs has no option --n' -- external-rs --n 12
wrong 'bulk-rs can have bias-grad' -- bulk-rs --epilogue gelu
wrong "'rs'" -- ag rs
wrong "'--frob'" -- all --frob
wrong "what to check is 'trian'" "did you mean 'train'?" -- trian --model gpt --tp 2
finish
