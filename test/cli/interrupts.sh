#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lap bench and lap train that SIGINT or SIGTERM interrupts: what was measured until then is printed and marked, as a
# table and as JSON, whoever was sent the signal.
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

gone() { ! kill -0 "$1" 2>/dev/null; }

# Whether what was printed is of something.
has_measured() { grep -qE 'Interrupted: [1-9]|"(rounds|trips)":[1-9]|"(points|iterations)":\[\{' "$work/out"; }

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
    ok '... within the grace' test $((($(date +%s%N) - before) / 1000000)) -lt 6000
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

# Twice at once, in an iteration that lasts longer than that.
start train --layer layernorm_mlp --seq 512 --heads 8 --head-dim 48 --iters 9000 --tp 2 --no-predict
interrupt 'lap train' TERM both
has '... has printed its tables' "$out" 'passes' 'fc1_fprop'
some_of iterations

# Before anything was measured: the GEMMs are too large for that.
start bench ag 2048 2048 2048 -n 2 --iters 100 --device ref --json
delay=0 interrupt 'lap bench that has just begun' TERM launcher

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
