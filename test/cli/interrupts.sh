#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Commands that SIGINT or SIGTERM interrupts: what there is then is printed and marked, as a table and as JSON, whoever was
# sent the signal, and in the midst of a long computation, too.
. "$(dirname "$0")/tap.bash"
unset XDG_RUNTIME_DIR
export TMPDIR=$work/tmp
mkdir "$TMPDIR"

# start ARGUMENTS...: lap in the background, in a process group of its own, with signals as a terminal would have them.
start() {
    arguments=("$@")
    : >"$work/out"
    setsid env --default-signal=INT,TERM "$LAP" "$@" >"$work/out" 2>"$work/err" </dev/null &
    launcher=$!
    before=$(date +%s%N)
}

# soon MS: since $before no more than that went by. A second is what it may take on a machine that has nothing else to do; ranks
# that have to be killed take three.
soon() { ok "... within $1 ms" test $((($(date +%s%N) - before) / 1000000)) -lt "$1"; }

gone() { ! kill -0 "$1" 2>/dev/null; }

# Whether what was printed is of something, or is what the test wants.
has_measured() { grep -qE "${wants:-Interrupted: [1-9]|\"(rounds|trips)\":[1-9]|\"(points|iterations)\":\[\{}" "$work/out"; }

# interrupt NAME SIGNAL WHOM: sends it when the ranks have been at work for a while, and looks at the end. Where other programs kept
# them from measuring anything until then, again, and later.
interrupt() {
    local name=$1 signal=$2 whom=$3 ranks rank pause
    for pause in ${delay:-0.5 1.5} 6 30; do
        ok "$name: the ranks are at work" until_true at_work 2
        ranks="$(pid_of 0) $(pid_of 1)"
        sleep "$pause"
        case $whom in
        launcher) kill -s "$signal" "$launcher" ;;
        group) kill -s "$signal" -- "-$launcher" ;;
        both) # as timeout does: the process, then its group; and as batch systems do: all processes, one after the other
            kill -s "$signal" "$launcher"
            sleep 0.02
            kill -s "$signal" -- "-$launcher"
            # shellcheck disable=SC2086
            kill -s "$signal" $ranks
            ;;
        *) kill -s "$signal" "$(pid_of "$whom")" ;;
        esac
        before=$(date +%s%N)
        collect
        if [ "${delay:-}" = 0 ] || [ "$pause" = 30 ] || has_measured; then break; fi
        start "${arguments[@]}"
    done
    is "$name, SIG$signal to $whom: status" "$status" $((128 + $(kill -l "$signal")))
    soon 2800
    for rank in $ranks; do
        ok '... and its ranks have ended' until_true gone "$rank"
    done
    out=$(cat "$work/out")
    case $whom in
    [01])
        rank=$(cut -d' ' -f$((whom + 1)) <<<"$ranks")
        has '... and names the rank that was sent it, not another' "$err" "rank $whom (pid $rank) was killed by signal $(kill -l "$signal")"
        ;;
    esac
}

# some_of WHAT: the table tells that it is of some of them, and of how many.
some_of() {
    local done
    done=$(sed -n "s/^Interrupted: \([0-9]*\) of [0-9]* $1.*/\1/p" "$work/out")
    ok "... and tells how many $1 there were: ${done:-no line}" test "${done:-0}" -gt 0
}

# json EXPRESSION: what was printed is one JSON object for which it holds, as `it`.
json() {
    ok "... and valid JSON: $1" python3 -c 'import json, sys
it = json.load(open(sys.argv[1]))
sys.exit(0 if eval(sys.argv[2]) else 1)' "$work/out" "$1"
}

bench="bench ag 64 64 64 -n 2 --iters 3000 --rest 5 --method ring"
train="train --layer layernorm_mlp --seq 32 --heads 4 --head-dim 16 --iters 90000 --tp 2 --no-predict"
for pair in INT:launcher TERM:launcher INT:group TERM:0 INT:1; do
    # shellcheck disable=SC2086
    start $bench
    interrupt 'lap bench' "${pair%:*}" "${pair#*:}"
    has '... has printed its table' "$out" 'GEMM alone' serial ring 'Medians of'
    some_of rounds
done
# shellcheck disable=SC2086
start $bench --json
interrupt 'lap bench --json' INT launcher
json 'it["interrupted"] is True and 0 < it["rounds"] < 3000 and it["methods"][0]["total_ms"] > 0'
is '... and nothing but that is said' "$err" ''
start bench sweep ag --m 64:4096 --n 64 --k 64 -n 2 --iters 100 --rest 5 --method ring,auto
delay=4 interrupt 'lap bench sweep' TERM launcher
has '... has printed its lines' "$out" 'overlap pays' '     64 '
some_of rounds
start bench sweep ag --m 64:4096 --n 64 --k 64 -n 2 --iters 100 --rest 5 --method ring,auto --json
delay=4 interrupt 'lap bench sweep --json' INT 0
json 'it["interrupted"] is True and 0 < len(it["points"]) < 7'
start bench demo -n 2 --iters 1000
delay=3 interrupt 'lap bench demo' INT launcher
has '... tells so' "$out" Interrupted: ' of 1000 rounds'
start bench latency -n 4 --iters 1000000 --transport shm
delay=0.3 interrupt 'lap bench latency' INT launcher
has '... has printed its lines' "$out" 'there and back' 'executor, a step'
some_of trips
start bench latency -n 4 --iters 1000000 --json
delay=0.3 interrupt 'lap bench latency --json' TERM 1
json 'it["interrupted"] is True and 0 < it["trips"] < 1000000'
# shellcheck disable=SC2086
for pair in INT:launcher TERM:1; do
    start $train
    interrupt 'lap train' "${pair%:*}" "${pair#*:}"
    has '... has printed its tables' "$out" 'passes' 'fc1_fprop'
    some_of iterations
done
# shellcheck disable=SC2086
start $train --json
interrupt 'lap train --json' TERM launcher
json 'it["interrupted"] is True and 0 < len(it["iterations"]) < 90000'

# A model: which checkpoint there is, and the command line that goes on from it.
model="train --model gpt --layers 1 --hidden 32 --heads 2 --vocab 64 --seq 16 --batch 2 --tp 2 --iters 90000 --no-trace --no-predict"
# shellcheck disable=SC2086
start $model
delay=2 interrupt 'lap train of a model' INT launcher
has '... of which nothing was saved' "$err" 'lap train: interrupted: no checkpoint was written; --save FOLDER would have'
# shellcheck disable=SC2086
start $model --save "$work/a run"
delay=2 interrupt 'lap train with --save' TERM launcher
step=$(sed -n 's/^lap train: interrupted after step \([0-9]*\): its checkpoint was written to .*/\1/p' <<<"$err")
ok "... names the step that it wrote: ${step:-none}" test -d "$work/a run/step-$(printf %08d "${step:-0}")"
again=$(sed -n 's/.*; this goes on: lap //p' <<<"$err")
has '... and the command line that goes on' "$again" "--save '$work/a run' --load '$work/a run'"
eval "lap ${again:-none} --iters $((step + 2)) --json"
is '... which does' "$status$err $(grep -o '"step":[0-9]*' "$work/out" | head -1)" "0 \"step\":$((step + 1))"
# shellcheck disable=SC2086
start $model --save "$work/a run" --load "$work/a run" --iters 90001
delay=2 interrupt 'lap train that goes on' INT launcher
is '... the same command line goes on' "$(sed -n 's/.*; this goes on: lap //p' <<<"$err" | grep -o -- --load | wc -l)" 1
# A step longer than a second is finished, since there is something to save.
start train --model gpt --layers 2 --hidden 128 --heads 4 --vocab 256 --batch 2 --seq 192 --device ref --tp 2 --iters 9000 --no-trace \
    --no-predict --save "$work/long"
ok 'a step that is long' until_true grep -q 'Step 1/' "$work/out"
kill -s INT "$launcher"
collect
is '... is finished: status' "$status" 130
has '... and its checkpoint written' "$err" 'its checkpoint was written to'
# ... and without --save is not.
start train --model gpt --layers 8 --hidden 512 --heads 4 --vocab 512 --batch 2 --seq 512 --device ref --tp 2 --iters 9000 --no-trace \
    --no-predict
wants='Interrupted: 0' delay=3 interrupt 'lap train in a long step' INT launcher
has '... tells how many steps it has made' "$out" 'Interrupted: 0 of 9000 iterations'

# Without ranks.
start plan --model llama-70b --gpus 4096
sleep 1
before=$(date +%s%N)
kill -s INT "$launcher"
collect
is 'lap plan: status' "$status" 130
soon 2800
has '... and how much was tried' "$err" 'lap plan: interrupted: ' ' configurations were tried'
mkfifo "$work/text"
echo before >"$work/tokens"
start data tokenize --bytes --force -o "$work/tokens" "$work/text"
exec 9>"$work/text"
echo more >&9
sleep 0.5
before=$(date +%s%N)
kill -s TERM "$launcher"
collect
exec 9>&-
is 'lap data tokenize: status' "$status" 143
soon 2800
is '... tells what becomes of the output' "$err" "lap data: interrupted: $work/tokens was not written"
is '... which stays as it was, without anything beside it' "$(cat "$work/tokens")$(ls "$work" | grep -c 'tokens')" before1
start tune -o "$work/rules.yaml" --tp 2 --heads 4 --seq 64 --hidden 256 --rounds 900 --no-cache
delay=3 interrupt 'lap tune' INT launcher
has '... tells what there is' "$err" 'lap tune: interrupted: '

# Twice at once, in an iteration that lasts longer than that.
start train --layer layernorm_mlp --seq 512 --heads 8 --head-dim 48 --iters 9000 --tp 2 --no-predict
interrupt 'lap train' TERM both
has '... has printed its tables' "$out" 'passes' 'fc1_fprop'
some_of iterations

# Before anything was measured: the GEMMs are too large for that.
start bench ag 2048 2048 2048 -n 2 --iters 100 --device ref --json
delay=0 interrupt 'lap bench that has just begun' TERM launcher
json 'it["interrupted"] is True and it["rounds"] == 0'
is '... which is not killed' "$err" ''

# In the references and the calibration of a case: those before it are not lost.
start bench sweep ag --m 64:4096 --n 1024 --k 1024 -n 2 --iters 1 --device ref --json
delay=6 interrupt 'lap bench sweep in a long computation' TERM launcher
json 'it["interrupted"] is True and 0 < len(it["points"]) < 7'
is '... which is not killed' "$err" ''

# Threads of one process.
for pause in 2 6 30; do
    start bench ag 64 64 64 -n 2 --transport self --iters 3000 --rest 5 --method ring --json
    sleep $pause
    kill -s INT "$launcher"
    collect
    if has_measured; then break; fi
done
is 'ranks that are threads: status' "$status" 130
json 'it["interrupted"] is True and 0 < it["rounds"] < 3000'

# Twice.
start bench ag 2048 2048 2048 -n 2 --iters 100 --device ref
until_true at_work 2
ranks="$(pid_of 0) $(pid_of 1)"
kill -s INT "$launcher"
# Until then a second one would be the same.
is_taken() { test $((0x$(sed -n 's/^ShdPnd:[[:space:]]*//p' "/proc/$1/status") >> ($(kill -l INT) - 1) & 1)) = 0; }
until_true is_taken "$launcher"
for rank in $ranks; do until_true is_taken "$rank"; done
sleep 0.2
kill -s INT "$launcher"
before=$(date +%s%N)
collect
is 'a second signal ends them: status' "$status" 130
ok '... at once' test $((($(date +%s%N) - before) / 1000000)) -lt 2500
for rank in $ranks; do
    ok '... and they have ended' until_true gone "$rank"
done

# Nobody interrupts.
lap bench ag 64 64 64 -n 2 --iters 2 --json
json '"interrupted" not in it and it["rounds"] == 2'
is 'nothing is left' "$(ls -A "$TMPDIR")" ''
finish
