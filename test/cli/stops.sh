#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Jobs that are stopped for longer than their timeout, as by Ctrl-Z, and go on. LAP_MPIRUN holds a launcher
# with its options, where there is one.
. "$(dirname "$0")/tap.bash"
unset XDG_RUNTIME_DIR
export LAP_TIMEOUT_S=5 # longer than a busy machine takes to start a rank, or to stop the next
state() { sed 's/.*) //;s/ .*//' "/proc/$1/stat" 2>/dev/null; }
stopped() { test "$(state "$1")" = T; }
listens() { test -S "$(echo "$TMPDIR"/*/s)"; }

# start COMMAND...: in the background, with signals as a terminal would have them.
start() {
    : >"$work/out"
    : >"$work/err"
    env --default-signal=INT,TSTP "$@" >"$work/out" 2>"$work/err" </dev/null &
    launcher=$!
}

# halt PID...: one after the other, so that those still running come to wait for those that do not; then on they
# go, the last first: it has waited for the others longer than the timeout.
halt() {
    local pid order=
    for pid; do
        kill -s STOP "$pid"
        until_true stopped "$pid"
        sleep 0.3
        order="$pid $order"
    done
    sleep 6
    for pid in $order; do
        kill -s CONT "$pid"
        sleep 0.1
    done
}

# goes_on NAME: a job whose ranks are stopped and continued ends as if nothing had been.
goes_on() {
    ok "$1: the ranks are at work" until_true at_work 2
    # shellcheck disable=SC2046
    halt $(pid_of 0 2>/dev/null) $(pid_of 1 2>/dev/null)
    collect
    is "$1, all ranks stopped for longer than the timeout" "$status$err" 0
}

# scene FUNCTION [ARGUMENT...]: beside the others, with jobs in a folder of its own, in which it leaves nothing.
scene() { beside in_a_folder "$@"; }
in_a_folder() {
    export TMPDIR=$work/tmp
    mkdir "$TMPDIR"
    "$@"
    is "nothing is left: $1" "$(ls -A "$TMPDIR")" ''
}

bench_goes_on() {
    start "$LAP" bench ag 64 64 64 -n 2 --iters 100 --rest 10 --method ring
    goes_on 'lap bench'
    has '... with its table' "$(cat "$work/out")" serial ring
}
train_goes_on() {
    start "$LAP" train --layer layernorm_mlp --seq 8 --heads 4 --head-dim 4 --iters 1500 --tp 2
    goes_on 'lap train'
}

# The launcher, with its ranks; and alone.
terminal_stops() {
    start "$LAP" bench ag 64 64 64 -n 2 --iters 100 --rest 10 --method ring
    until_true at_work 2
    kill -s TSTP "$launcher"
    ok 'SIGTSTP stops the launcher' until_true stopped "$launcher"
    ok '... and a rank' until_true stopped "$(pid_of 1)"
    sleep 6
    kill -s CONT "$launcher"
    collect
    is 'a job that Ctrl-Z stopped for longer than the timeout goes on' "$status$err" 0
}
launcher_stops() {
    start "$LAP" bench ag 64 64 64 -n 2 --iters 50 --rest 5 --method ring
    until_true at_work 2
    halt "$launcher"
    collect
    is 'a launcher that was stopped alone finds that all went well' "$status$err" 0
}

# Threads of one process.
threads_stop() {
    start "$LAP" bench ag 64 64 64 -n 2 --transport self --iters 100 --rest 10 --method ring
    sleep 0.5
    halt "$launcher"
    collect
    is 'ranks that are threads, stopped for longer than the timeout' "$status$err" 0
}

# While the ranks meet: the first waits for the second, which comes late; and the second for the first.
meeting_stops() {
    local late=$1
    LAP_JOB=late LAP_SIZE=2 LAP_RANK=$((1 - late)) start "$LAP" bench ag 8 8 8 --iters 1
    if [ "$late" = 1 ]; then until_true listens; else sleep 0.3; fi
    halt "$launcher"
    LAP_JOB=late LAP_SIZE=2 LAP_RANK=$late "$LAP" bench ag 8 8 8 --iters 1 >"$work/other" 2>&1 </dev/null
    is "rank $((1 - late)) was stopped while it waited for rank $late to come: rank $late" "$?" 0
    collect
    is "... rank $((1 - late))" "$status$err" 0
}

# A rank that is stopped alone is missed as ever.
one_stops() {
    local victim
    start "$LAP" bench ag 64 64 64 -n 2 --iters 1000 --rest 10 --method ring
    until_true at_work 2
    victim=$(pid_of 1)
    before=$(date +%s%N)
    kill -s STOP "$victim"
    collect
    is 'a rank that is stopped alone is missed' "$status" 1
    ok '... after the timeout, and not a grace later' test $((($(date +%s%N) - before) / 1000000)) -lt 7500
    has '... by name' "$err" "rank 1 (pid $victim) is stopped" timeout
}

# Over MPI. Its ranks are children of mpirun, or of one that it has started.
ranks() { grep -lzxE "LAP_STOPS=$$" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 |
    while read -r pid; do test "$(cat "/proc/$pid/comm" 2>/dev/null)" = lap && echo "$pid"; done; }
two_ranks() { test "$(ranks | wc -l)" = 2; }
mpi_stops() {
    # shellcheck disable=SC2086
    start env LAP_STOPS=$$ $LAP_MPIRUN -n 2 "$LAP" bench ag 64 64 64 --transport mpi --iters 100 --rest 10 \
        --method ring
    until_true two_ranks
    sleep 1
    # shellcheck disable=SC2046
    halt $(ranks)
    collect
    is 'ranks over MPI, stopped for longer than the timeout' "$status$err" 0
}

scene bench_goes_on
scene train_goes_on
scene terminal_stops
scene launcher_stops
scene threads_stop
scene meeting_stops 0
scene meeting_stops 1
scene one_stops
[ "${LAP_HAVE_MPI:-0}" = 0 ] || beside mpi_stops
together
finish
