#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks that meet over TCP, with the variables of torchrun and with LAP_MASTER: who comes, who does not, who should not.
# WORLD: the program that does barriers until one fails. FAULTS: the one that ends a rank in the middle of an operation. FAKE_CUDA: the
# folder of the fake driver.
. "$(dirname "$0")/tap.bash"
unset MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK LAP_JOB LAP_DIR TORCHELASTIC_RUN_ID
hosts="$LAP_SOURCE_DIR/test/tcp.sh"
tiny="bench ag 8 8 8 --iters 1 --method serial"

# Below the ports that the kernel gives out; another one for each part of the test, which is free.
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }
next_port() {
    port=$((port + 1))
    while listens; do port=$((port + 1)); done
}
port=$((20000 + RANDOM % 12000))
next_port

# rank NUMBER SIZE LAP_ARGUMENT...: starts a rank that LAP_MASTER leads to the others; see join.
ranks=()
rank() {
    local number=$1 size=$2
    shift 2
    {
        [ -z "${files:-}" ] || ulimit -n "$files"
        LAP_RANK=$number LAP_SIZE=$size LAP_MASTER=${master:-127.0.0.1:$port} LAP_TIMEOUT_S=${limit:-20} exec "${program:-$LAP}" "$@"
    } >"$work/out$number" 2>"$work/err$number" </dev/null &
    ranks+=($!)
}
# Waits for them; their statuses.
join() {
    statuses=
    local pid
    for pid in "${ranks[@]}"; do
        wait "$pid"
        statuses+="$? "
    done
    ranks=()
    next_port
}
err() { cat "$work/err$1"; }

# ---- worlds ----

last='two hosts of two ranks'
LAP_KEEP=1 timeout 60 bash "$hosts" 2 "$LAP" train --layer layernorm_mlp --seq 8 --heads 4 --head-dim 4 --iters 2 >"$work/out" 2>"$work/err"
is 'lap train on CPUs of two hosts, with the variables of torchrun: all four ranks say the same' \
    "$(grep -c 'rank [0-3]: .*met over TCP, which carries none; expected mpirun (MPI carries data between hosts), or GPUs with NCCL' "$work/err")" 4
lap bench ag 8 8 8 --transport tcp
has 'the transport tcp was removed' "$status $err" '2 ' '--transport: the transport tcp was removed: between hosts MPI carries data' 'NCCL'
LAP_TRANSPORT=tcp lap bench ag 8 8 8
has '... of which LAP_TRANSPORT is told, too' "$status $err" '2 ' 'LAP_TRANSPORT: the transport tcp was removed'
rank 1 2 $tiny
rank 0 2 $tiny
join
is 'LAP_MASTER: ranks of one host' "$statuses" '0 0 '
has '... are taken for those of several' "$(cat "$work/out0")" '2 ranks' 'transport hosts'
rank 1 2 $tiny --transport shm
rank 0 2 $tiny --transport shm
join
is '... but share memory' "$statuses" '0 0 '
LAP_NODE=1 rank 1 2 $tiny --transport shm
LAP_NODE=0 rank 0 2 $tiny --transport shm
join
has 'LAP_NODE: two hosts do not' "$statuses$(err 0)" '1 1 ' 'rank 1 is on another host than rank 0: use hosts'
if [ -e /proc/net/if_inet6 ] && grep -q ' lo$' /proc/net/if_inet6; then
    master="[::1]:$port"
    rank 1 2 $tiny
    rank 0 2 $tiny
    join
    master=
    is 'over IPv6' "$statuses" '0 0 '
fi

# ---- what makes no sense ----

while IFS='|' read -r value; do
    LAP_RANK=0 LAP_SIZE=2 LAP_MASTER=$value lap $tiny
    is "LAP_MASTER='$value' is refused" $status 2
    has '... with what is expected' "$err" "LAP_MASTER is '$value'" 'a port from 1 to 65535'
done <<'END'
gpu1
gpu1:
:5000
gpu1:0
gpu1:65536
gpu1:50x
fe80::1:5000
a b:5000
END
RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=x lap $tiny
has 'a MASTER_PORT that is none' "$status $err" "2 " "MASTER_PORT is 'x'"
RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_PORT=23456 lap $tiny
has 'several hosts without MASTER_ADDR' "$status $err" '2 ' 'MASTER_ADDR is not set' LOCAL_WORLD_SIZE LAP_MASTER=host:port
RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=a lap $tiny
has 'or MASTER_PORT' "$status $err" '2 ' 'MASTER_PORT is not set' LOCAL_WORLD_SIZE LAP_MASTER=host:port

# ---- who does not come ----

limit=1 rank 0 3 $tiny
join
has 'a rank that never comes' "$statuses$(err 0)" '1 ' 'of 3 ranks these have not come to 127.0.0.1:' 'within 1 s: 1, 2'
limit=1 rank 1 2 $tiny
join
has 'a rank 0 that never comes' "$statuses$(err 1)" '1 ' 'rank 1 has not found rank 0 at 127.0.0.1:' 'Connection refused' 'expected LAP_MASTER'
master="no-such-host.invalid:$port" limit=1 rank 1 2 $tiny
join
has 'a host that is none' "$statuses$(err 1)" '1 ' 'no-such-host.invalid'
rank 1 3 $tiny
limit=4 rank 0 3 $tiny
join
has 'a rank that waits for another: all hear who is missing' "$statuses$(err 0)$(err 1)" '1 1 ' 'rank 0: ' 'rank 1: ' 'within 4 s: 2'
rank 0 2 $tiny
limit=4 rank 2 3 $tiny
join
has 'ranks of worlds of different sizes' "$statuses$(err 0)" '1 1 ' 'says that it is rank 2 of 3, expected ranks 1 to 1 of 2'

# ---- who has too few files ----

from=${EPOCHREALTIME/./}
limit=60
rank 0 2 $tiny
files=15 rank 1 2 $tiny
join
has 'a rank that may open too few files: all hear of it' "$statuses$(err 0)$(err 1)" '1 1 ' 'rank 0: system error: rank 1: rank 1 can open ' 'rank 1: system error: rank 1 can' 'ulimit -n'
rank 1 2 $tiny
sleep 1 # it looks for rank 0 before that is there
files=20 rank 0 2 $tiny
join
has 'a rank 0 that may' "$statuses$(err 0)$(err 1)" '1 1 ' 'rank 0: system error: rank 0 can open 1' 'rank 1: system error: rank 0 can open 1' 'expected 26 for a world of 2 ranks'
rank 1 100 $tiny
sleep 1
files=110 rank 0 100 $tiny
join
has '... for many ranks: who comes hears of it' "$statuses$(err 0)$(err 1)" '1 1 ' 'rank 0: system error: rank 0 can open 1' 'rank 1: system error: rank 0 can open 1' 'world of 100 ranks'
limit=
# Start-up takes a while on a machine that has much to do, but not so long.
waited=$(((${EPOCHREALTIME/./} - from) / 1000))
ok "... and nobody waits for the timeout of 60 s ($waited ms)" test "$waited" -lt 40000

# ---- who should not ----

rank 0 2 $tiny
ok 'rank 0 listens' until_true listens
taken=$port
rank 0 2 $tiny --seed 7 2>/dev/null
wait "${ranks[1]}"
has 'a port that is taken' "$(err 0)" "rank 0 cannot listen at 127.0.0.1:$taken" 'another process' 'port of its own for each job'
ranks=("${ranks[0]}")
exec 4<>"/dev/tcp/127.0.0.1/$port" 5<>"/dev/tcp/127.0.0.1/$port" 6<>"/dev/tcp/127.0.0.1/$port"
printf 'GET / HTTP/1.0\r\n\r\n' >&4
head -c 300 /dev/zero >&5
printf 'x' >&6
LAP_JOB=another limit=1 rank 1 2 $tiny
wait "${ranks[1]}"
has 'a rank of another job is told' "$(err 1)" 'rank 1 has not found rank 0' 'are of another job'
ranks=("${ranks[0]}")
rank 1 2 $tiny
join
exec 4>&- 5>&- 6>&-
is 'bytes of strangers do not keep ranks from meeting' "$statuses" '0 0 '
LAP_JOB=one rank 0 2 $tiny
LAP_JOB=one rank 1 2 $tiny
join
is 'a LAP_JOB in common' "$statuses" '0 0 '
rank 0 3 $tiny
rank 1 3 $tiny
ok 'rank 0 listens again' until_true listens
sleep 0.3
rank 1 3 $tiny
join
has 'a rank that comes twice' "$statuses$(err 0)" '1 1 1 ' 'both say that they are rank 1'
# A rank 0 that is stopped: the kernel takes connections for it, and nobody answers.
rank 0 2 $tiny
ok 'rank 0 listens, and is stopped' until_true listens
kill -s STOP "${ranks[0]}"
from=${EPOCHREALTIME/./}
limit=1 rank 1 2 $tiny
wait "${ranks[1]}"
status=$?
waited=$(((${EPOCHREALTIME/./} - from) / 1000))
has 'a rank 0 that says nothing is given up' "$status $(err 1)" '1 ' 'rank 1 has not found rank 0' 'within 1 s' 'does not answer'
# Start-up may take seconds on a machine that has much to do; the default timeout is 60 s.
ok "... after the timeout of 1 s and not a longer one ($waited ms)" test "$waited" -ge 900 -a "$waited" -lt 20000
kill -s KILL "${ranks[0]}"
join 2>/dev/null

# ---- who is stopped ----

# Both ranks, one after the other, for longer than the timeout.
state() { sed 's/.*) //;s/ .*//' "/proc/$1/stat" 2>/dev/null; }
is_stopped() { test "$(state "$1")" = T; }
at_work() { grep -qs lap-hub "/proc/${ranks[0]}/task/"*/comm && grep -qs lap-hub "/proc/${ranks[1]}/task/"*/comm; }
# They have far more rounds to do than the test lasts, and are killed. Until then, packets wake their threads for TCP.
wakes() { sed -n 's/^voluntary_ctxt_switches:[^0-9]*//p' "/proc/$1/task/$(tcp_thread "$1")/status"; }
tcp_thread() { grep -lx lap-hub "/proc/$1/task/"*/comm | sed 's,/comm$,,;s,.*/,,'; }
is_woken() { local now && now=$(wakes "$1" 2>/dev/null) && [ "${now:-0}" -gt $2 ]; }
program=$WORLD
LAP_NODE=0 limit=3 rank 0 2 forever
LAP_NODE=1 limit=3 rank 1 2 forever
program=
ok 'two ranks with much to say are at work' until_true at_work
for pid in "${ranks[@]}"; do
    sleep 0.3
    kill -s STOP "$pid"
    ok '... and one is stopped' until_true is_stopped "$pid"
done
sleep 4
before=("$(wakes "${ranks[0]}")" "$(wakes "${ranks[1]}")")
kill -s CONT "${ranks[@]}"
sleep 4 # a failure would have been found by then
for i in 0 1; do
    ok "a job that is stopped as a whole for longer than its timeout goes on: rank $i" until_true is_woken "${ranks[i]}" $((before[i] + 100))
done
kill -s KILL "${ranks[@]}"
join 2>/dev/null
is '... without a word, until it is killed' "$statuses$(err 0)$(err 1)" '137 137 '

# ---- who dies ----

# Of three hosts. Nobody sees the process of the victim, only its connections.
program=$WORLD
for victim in 2 0; do
    for r in 0 1 2; do LAP_NODE=$r rank $r 3 forever; done
    ok 'ranks of three hosts are at work' until_true at_work
    sleep 0.5
    from=${EPOCHREALTIME/./}
    kill -s KILL "${ranks[victim]}"
    join 2>/dev/null
    waited=$(((${EPOCHREALTIME/./} - from) / 1000))
    is "... rank $victim is killed" "$statuses" "$([ $victim = 2 ] && echo '1 1 137 ' || echo '137 1 1 ')"
    for r in 0 1 2; do
        [ $r = $victim ] || has "... rank $r says so" "$(err $r)" "rank $victim has died"
    done
    ok "... soon ($waited ms)" test "$waited" -lt 10000
done
program=

# ---- GPUs of several hosts ----

if [ "$LAP_HAVE_CUDA" = 1 ] && [ -e "$FAKE_CUDA/libnccl.so.2" ]; then
    last='GPUs'
    export LD_LIBRARY_PATH=$FAKE_CUDA LAP_GPU_TUNE=0
    for r in 3 2 1 0; do
        LAP_NODE=$((r / 2)) rank $r 4 train --layer layernorm_mlp --tp 2 --dp 2 --seq 8 --heads 4 --head-dim 4 --iters 2 --device cuda --trace "$work/hosts.json"
    done
    join
    is 'a trace of two hosts' "$statuses" '0 0 0 0 '
    if command -v python3 >/dev/null; then
        ok '... whose ranks have one clock on a host, and another host has bounds' python3 "$(dirname "$0")/trace.py" "$work/hosts.json" '
clocks = it["lapstrake"]["measured"]["clocks"]
assert [clock["bound_us"] for clock in clocks[:2]] == [0, 0] and clocks[2] == clocks[3] and clocks[2]["bound_us"] > 0, clocks
near = [(s, f) for s, f in flows if s["pid"] // 2 == f["pid"] // 2]
assert near and all(s["ts"] <= f["ts"] + 0.0015 for s, f in near), near'
    fi
    timeout 60 bash "$hosts" 1 "$LAP" bench ag 48 32 16 --device cuda --method ring --iters 1 --json >"$work/out" 2>"$work/err"
    has 'GPUs of two hosts talk over NCCL, and their ranks over TCP' "$? $(cat "$work/out")" '0 ' '"transport":"nccl"' '"ok":true'
    LAP_NCCL=/no/such/file timeout 60 bash "$hosts" 1 "$LAP" bench ag 48 32 16 --device cuda --method ring --iters 1 >"$work/out" 2>"$work/err"
    has '... and without NCCL are told what is missing' "$? $(cat "$work/err")" '1 ' 'NCCL' '/no/such/file'
    for r in 0 1; do
        LAP_NODE=$r rank $r 2 train --layer layernorm_mlp --seq 32 --heads 4 --head-dim 4 --iters 1000000 --device cuda
    done
    ok 'two hosts train' until_true at_work
    sleep 2
    kill -s KILL "${ranks[1]}"
    join 2>/dev/null
    has '... a rank that is killed' "$statuses$(err 0)" '1 137 ' 'rank 0: peer lost: ' 'rank 1 has died'
    export LAP_KEEP=1 FAULT_CLOCK=$work/clock LAP_DEVICE=cuda
    victim=0
    # On four hosts of one rank nobody sees the process of the victim, only its connections.
    for row in kill:2 kill:4 exit:4; do
        IFS=: read -r fault machines <<<"$row"
        victim=$(((victim + 1) % 4))
        last="$fault of rank $victim"
        head -c 64 /dev/zero >"$work/clock"
        LAP_HOSTS=$machines timeout 60 bash "$hosts" $((4 / machines)) "$FAULTS" ag ring "$fault" $victim 100 >"$work/out" 2>"$work/err"
        is "$fault of rank $victim, $machines hosts: the others are told at once" \
            "$(cat "$work/out" "$work/err" | grep -c 'survivor is well')" 3
    done
    last='a stopped rank'
    head -c 64 /dev/zero >"$work/clock"
    LAP_TIMEOUT_S=4 timeout 60 bash "$hosts" 2 "$FAULTS" ag ring stop 2 100 >"$work/out" 2>"$work/err" &
    stopped() { [ "$(cat "$work/out" "$work/err" | grep -c 'survivor is well')" = 3 ]; }
    ok 'a rank that is stopped: the others are told by the timeout' until_true stopped
    for pid in $(pgrep -f "^$FAULTS ag ring stop"); do
        if grep -qaF "XDG_CACHE_HOME=$XDG_CACHE_HOME" "/proc/$pid/environ"; then kill -KILL "$pid"; fi
    done
    wait $! 2>/dev/null
    unset LAP_KEEP LAP_DEVICE
fi
finish
