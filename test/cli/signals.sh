#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lap run when ranks hang, when signals come, and when lap run itself is killed.
. "$(dirname "$0")/tap.bash"
unset XDG_RUNTIME_DIR
export TMPDIR=$work/tmp
mkdir "$TMPDIR"

# start ARGUMENTS...: lap run in the background, with signals as a terminal would have them, since a
# script's background jobs ignore SIGINT.
start() {
    : >"$work/out"
    : >"$work/pids"
    env --default-signal=INT,QUIT,HUP "$LAP" run "$@" >"$work/out" 2>"$work/err" </dev/null &
    launcher=$!
}

# Waits for the launcher to end, and gives up on it after 180 s.
collect() {
    if ! until_true ended "$launcher"; then
        kill -9 "$launcher"
    fi
    wait "$launcher" 2>"$work/wait"
    status=$?
}

state() { sed 's/.*) //;s/ .*//' "/proc/$1/stat" 2>/dev/null; }
ended() { case $(state "$1") in '' | Z) ;; *) return 1 ;; esac; }
stopped() { test "$(state "$1")" = T; }
asleep() { test "$(state "$1")" = S; }
going() { ! stopped "$1" && ! ended "$1"; }
lines() { test "$(grep -c "$1" "$work/out")" -ge "$2"; }
each() { # each COMMAND FILE: for every pid in the file
    local pid
    while read -r pid; do
        "$1" "$pid" || return
    done <"$2"
}
find_guardian() { # of the directory of the job: $guardian
    for guardian in $(cat "/proc/$launcher/task/$launcher/children"); do
        grep -qsx lap-place-guard "/proc/$guardian/comm" && return
    done
    false
}
is_empty() { test -z "$(ls -A "$1")"; }
export pids=$work/pids
all_pids() { test "$(wc -l <"$pids")" -ge "$1"; }

# A failing rank takes the others along.
start -n 4 --grace 0.2 sh -c 'test $LAP_RANK = 2 && kill -9 $$; echo $$ >>"$pids"; exec sleep 60'
collect
is 'ranks that hang after a death are ended; its status counts' "$status" 137
is 'only the first death is reported' "$(grep -c 'rank . (pid' "$work/err")" 1
has 'it is the right one' "$(cat "$work/err")" 'rank 2 (pid' 'killed by signal 9 (Killed)'
has 'the others are summed up' "$(cat "$work/err")" 'then 3 of the other 3 ranks failed too' \
    '3 had to be ended'
ok 'no rank lives' each ended "$pids"

mkfifo "$work/go"
start -n 3 --grace 1000 sh -c 'test $LAP_RANK = 1 && exit 5; read -r x <"$0"; exit 6' "$work/go"
until_true grep -q 'rank 1 .* exited with status 5$' "$work/err"
exec 9<>"$work/go"
printf 'go\ngo\n' >&9
collect
exec 9<&-
is 'ranks that end in the grace are not ended; the first status counts' "$status" 5
ok 'they are summed up' grep -q '^lap run: then 2 of the other 2 ranks failed too$' "$work/err"

# What a rank tells does not wait for the others that long.
export LAP
start -n 2 --grace 1000 sh -c 'test $LAP_RANK = 0 && exec "$LAP" bench ag 8 8 8 --timeout 0.2; read -r x <"$0"; exit 6' "$work/go"
ok 'why a rank has failed is printed in the grace' until_true grep -q '^lap bench: rank 0: timeout: of 2 ranks' "$work/err"
exec 9<>"$work/go"
printf 'go\n' >&9
collect
exec 9<&-
is '... and its status counts' "$status" 1

start -n 2 --grace 0 sh -c 'if test $LAP_RANK = 0; then
        until test -s "$pids"; do sleep 0.02; done
        exit 4
    fi
    trap "" TERM; echo $$ >>"$pids"; while :; do sleep 60; done'
collect
is 'a rank that ignores SIGTERM is killed' "$status" 4
has 'and reported, as the only other' "$(cat "$work/err")" 'lap run: then the other rank failed too; it had to be ended'
ok 'and gone' each ended "$pids"

start -n 2 --grace 0 sh -c 'if test $LAP_RANK = 0; then
        until test -s "$pids" && grep -q "^State:.T" "/proc/$(cat "$pids")/status"; do
            sleep 0.02
        done
        exit 4
    fi
    trap "echo heard; exit 0" TERM; echo $$ >>"$pids"; kill -STOP $$; while :; do sleep 0.02; done'
collect
is 'a rank that is stopped is continued and ended' "$status $(cat "$work/out")" '4 [1] heard'

start -n 2 sh -c 'exit 3'
collect
is 'the only other rank fails by itself' "$status $(tail -n 1 "$work/err")" '3 lap run: then the other rank failed too'

# A job ends within 2 s of a death, whatever the others do: computing, or waiting for the dead one to come. Who has said nothing by then
# is killed: it took 3 s and more.
ends_soon() { # ends_soon NAME: since $before
    collect
    is "$1: status" "$status" 137
    ok '... within 3 s' test $((($(date +%s%N) - before) / 1000000)) -lt 3000
    has '... and who died is named' "$(cat "$work/err")" 'rank 1 (pid' 'killed by signal 9 (Killed)'
}
env --default-signal=INT,TERM "$LAP" bench ag 6144 6144 4096 -n 2 --device ref >"$work/out" 2>"$work/err" </dev/null &
launcher=$!
until_true at_work 2
victim=$(pid_of 1)
sleep 0.5
before=$(date +%s%N)
kill -9 "$victim"
ends_soon 'a rank dies while the other computes'
has '... which says so, too' "$(cat "$work/err")" "lap bench: rank 0: peer lost: rank 1 (pid $victim) has died"
before=$(date +%s%N)
start -n 2 sh -c 'test $LAP_RANK = 1 && kill -9 $$; exec "$LAP" bench ag 8 8 8'
ends_soon 'a rank dies before the first collective'

# Signals to the launcher.
for pair in TERM:143 INT:130 HUP:129 QUIT:131; do
    name=${pair%:*}
    start -n 3 sh -c 'trap "echo caught; exit 0" $0; echo ready
        while :; do sleep 0.02; done' "$name"
    until_true lines ready 3
    kill -s "$name" "$launcher"
    collect
    is "SIG$name: 128 + its number" "$status" "${pair#*:}"
    is "SIG$name: every rank gets it" "$(grep -c caught "$work/out")" 3
done
start -n 2 sh -c 'trap "echo caught; exit 0" USR1; echo ready; while :; do sleep 0.02; done'
until_true lines ready 2
kill -s USR1 "$launcher"
collect
is 'SIGUSR1 is passed on, and no more' "$status $(grep -c caught "$work/out")" '0 2'

start -n 2 --grace 0.2 sh -c 'trap "" TERM; echo ready; while :; do sleep 60; done'
until_true lines ready 2
kill -s TERM "$launcher"
collect
is 'ranks that ignore a signal are killed after the grace' "$status" 143
has 'which is reported' "$(cat "$work/err")" \
    '2 ranks did not end within 0.2 s of signal 15 (Terminated)'

: >"$work/out"
(trap '' HUP && exec "$LAP" run -n 1 sh -c 'echo ready; read -r x <"$0"; echo $x' "$work/go") \
    >"$work/out" 2>&1 </dev/null &
launcher=$!
until_true lines ready 1
kill -s HUP "$launcher"
echo finished >"$work/go"
collect
is 'SIGHUP is ignored under nohup' "$status $(grep -c finished "$work/out")" '0 1'

# Stop and go on.
# A single process each: a shell that starts children cannot stop while one of them, stopped, has yet to exec.
start -n 2 sh -c 'echo $$ >>"$pids"; exec sleep 60'
until_true all_pids 2
kill -s TSTP "$launcher"
ok 'SIGTSTP stops the ranks' until_true each stopped "$pids"
ok 'and the launcher' until_true stopped "$launcher"
kill -s CONT "$launcher"
ok 'SIGCONT continues the ranks' until_true each going "$pids"
ok 'and the launcher' until_true going "$launcher"
kill -s TSTP "$launcher"
until_true each stopped "$pids"
until_true stopped "$launcher"
kill -s TERM "$launcher"
kill -s CONT "$launcher"
collect
is 'SIGTERM reaches them also when stopped' "$status" 143

# Nobody reads the output, and nobody closes it: signals must still work.
: >"$pids"
mkfifo "$work/full"
exec 8<>"$work/full"
"$LAP" run -n 2 sh -c 'echo $$ >>"$pids"; exec yes' >"$work/full" 2>"$work/err" </dev/null &
launcher=$!
until_true all_pids 2
until_true each asleep "$pids"
kill -s TERM "$launcher"
collect
is 'SIGTERM ends a job whose output is stuck' "$status" 143
exec 8<&-

# Descendants.
start -n 2 sh -c 'sleep 60 & echo $! >>"$pids"'
collect
is 'a job does not wait for what its ranks left' "$status" 0
ok 'but ends it' until_true each ended "$pids" # nobody waits for what was killed

# The launcher dies.
start -n 3 sh -c 'echo $$ >>"$pids"; exec sleep 60'
until_true all_pids 3
ok 'somebody guards the directory of the job' until_true find_guardian
kill -9 "$launcher"
ok 'kill -9 of the launcher ends the ranks' until_true each ended "$pids"
wait "$launcher" 2>"$work/wait"
ok 'and nothing is left of any job' until_true is_empty "$TMPDIR"
ok 'nor the guardian of its directory' until_true ended "$guardian"
for signal in KILL STOP; do
    start -n 1 sh -c 'echo $$ >>"$pids"; read -r x <"$0"' "$work/go"
    until_true all_pids 1
    until_true find_guardian
    kill -s $signal "$guardian"
    echo go >"$work/go"
    collect
    is "SIG$signal of the guardian does not disturb a job" "$status$(cat "$work/err")" 0
    ok '... which leaves nothing itself' is_empty "$TMPDIR"
    ok '... nor the guardian' ended "$guardian"
done

# A rank of another launcher than lap run, while it waits for the others.
# meet VARIABLE [ARGUMENTS]: starts rank 0 of 2, and waits until it waits.
meet() {
    env --default-signal=INT,QUIT,HUP "$1" LAP_RANK=0 LAP_SIZE=2 "$LAP" bench ${2:-ag 8 8 8 --iters 1} \
        >"$work/out" 2>"$work/err" </dev/null &
    launcher=$!
    until_true listens
}
listens() { test -S "$(echo "$TMPDIR"/*/s)"; }
for pair in TERM:143 INT:130 HUP:129 QUIT:131; do
    for variable in LAP_JOB=waits "LAP_DIR=$TMPDIR/place"; do
        meet "$variable"
        kill -s "${pair%:*}" "$launcher"
        collect
        is "SIG${pair%:*} while ranks meet, $variable: status" "$status" "${pair#*:}"
        is '... and nothing is left' "$(ls -A "$TMPDIR")" ''
    done
done
meet LAP_JOB=waits
LAP_JOB=waits LAP_RANK=1 LAP_SIZE=2 "$LAP" bench ag 8 8 8 --iters 1 >"$work/other" 2>&1 </dev/null
is 'ranks that are not disturbed meet' "$?" 0
collect
is '... and end well' "$status$(cat "$work/err")" 0
is '... and leave nothing' "$(ls -A "$TMPDIR")" ''
work_a_while='ag 64 64 64 --iters 300 --rest 5'
meet LAP_JOB=waits "$work_a_while"
LAP_JOB=waits LAP_RANK=0 LAP_SIZE=2 "$LAP" bench ag 8 8 8 --iters 1 >"$work/other" 2>&1 </dev/null
has 'a second rank 0 is refused while the first waits' "$(cat "$work/other")" "the job 'waits' is taken" \
    "process $launcher is its rank 0"
ok '... and leaves the first one its place' listens
LAP_JOB=waits LAP_RANK=1 LAP_SIZE=2 "$LAP" bench $work_a_while >"$work/other" 2>&1 </dev/null &
other=$!
has_met() { ! listens && grep -q memfd:lap "/proc/$other/maps"; } 2>/dev/null
until_true has_met
LAP_JOB=waits LAP_RANK=0 LAP_SIZE=2 "$LAP" bench ag 8 8 8 --iters 1 >"$work/second" 2>&1 </dev/null
is 'a second rank 0 while the first works: status' "$?" 1
has '... is refused' "$(cat "$work/second")" "the job 'waits' is taken" "process $launcher is its rank 0"
LAP_JOB=waits LAP_RANK=1 LAP_SIZE=2 timeout 20 "$LAP" bench ag 8 8 8 --iters 1 >"$work/second" 2>&1 </dev/null
is 'a second rank 1 while the first works: status' "$?" 1
has '... is refused, too' "$(cat "$work/second")" "the job 'waits' is taken" "process $other is its rank 1"
collect
wait "$other"
is '... and the first does not notice' "$? $status$(cat "$work/err" "$work/other")" '0 0'
has '... and ends as ever' "$(cat "$work/out")" serial ring
meet LAP_JOB=waits
kill -9 "$launcher"
collect
meet LAP_JOB=waits
LAP_JOB=waits LAP_RANK=1 LAP_SIZE=2 "$LAP" bench ag 8 8 8 --iters 1 >"$work/other" 2>&1 </dev/null
is 'the place of a rank 0 that was killed is taken over' "$?$(cat "$work/other")" 0
collect
meet "LAP_DIR=$TMPDIR/place"
LAP_DIR=$TMPDIR/place LAP_RANK=0 LAP_SIZE=2 "$LAP" bench ag 8 8 8 --iters 1 >"$work/other" 2>&1 </dev/null
has 'a second rank 0 in one directory is refused' "$(cat "$work/other")" \
    "another process (pid $launcher) says that it is rank 0"
kill -s TERM "$launcher"
collect
is 'and nothing is left of these either' "$(ls -A "$TMPDIR")" ''

finish
