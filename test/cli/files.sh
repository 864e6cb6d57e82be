#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank that runs out of descriptors while ranks meet, in a directory and over TCP, at each of those that it opens: all hear of it, and
# nobody waits for the timeout.
. "$(dirname "$0")/tap.bash"
unset MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK LAP_JOB LAP_DIR LAP_MASTER TORCHELASTIC_RUN_ID
export LAP_TIMEOUT_S=30
size=3
port=$((20000 + RANDOM % 12000))

# What this script has inherited would take the place of what a rank opens.
for fd in 3 4 5 6 7 8 9; do eval "exec $fd>&-"; done

# meet WAY RANK ULIMIT...: three ranks meet, one of them under that ulimit. Leaves their statuses, their sentences, and whether it was soon.
meet() {
    local way=$1 limited=$2 r pids=() from=${EPOCHREALTIME/./}
    shift 2
    while [ "$way" = tcp ] && port=$((port + 1)) && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    for ((r = size - 1; r >= 0; r--)); do
        {
            [ $r != "$limited" ] || ulimit "$@"
            [ "$way" = tcp ] && export LAP_MASTER=127.0.0.1:$port || export LAP_DIR=$work/meet
            LAP_RANK=$r LAP_SIZE=$size exec "$LAP" bench ag 8 8 8 --iters 1 --method serial
        } >"$work/out$r" 2>"$work/err$r" </dev/null &
        pids[r]=$!
    done
    statuses=
    for ((r = 0; r < size; r++)); do
        wait "${pids[r]}"
        statuses+="$? "
    done
    waited=$(((${EPOCHREALTIME/./} - from) / 1000))
    sayers=$(grep -l 'ulimit -n' "$work"/err[0-9] | wc -l)
}

# Each of the three says why; where there are enough none fails. How many those are follows from what a rank opens.
check() {
    local name="$1 rank $2 with ulimit ${*:3}"
    meet "$@"
    case $statuses in
    '0 0 0 ') ok "$name: there are enough" test "$sayers" = 0 ;;
    *) is "$name: all say that files are missing" "$statuses$sayers$(grep -hv 'ulimit -n' "$work"/err[0-9])" '1 1 1 3' ;;
    esac
    ok "... soon ($waited ms)" test "$waited" -lt 15000
}

for n in 5 6 7 8 9; do
    check dir 0 -n $n
    check dir 1 -n $n
    check dir 2 -n $n
    check tcp 1 -n $n
done
check dir 0 -n 12
for n in 6 7 8 12; do check tcp 0 -n $n; done
check dir 1 -n 64
check tcp 1 -n 64
is '... in all, with more' "$statuses" '0 0 0 '
# Not one is left, but the limit could be higher.
check dir 0 -S -n 4
check dir 2 -S -n 4
finish
