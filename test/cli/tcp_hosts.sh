#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks that meet over TCP on hosts that have nothing in common but a network (scripts/hosts.sh --tcp), and what they say when it fails.
# WORLD: the program that does barriers until one fails. FAKE_CUDA: the folder of the fake driver.
. "$(dirname "$0")/tap.bash"
script=$LAP_SOURCE_DIR/scripts/hosts.sh
unset LAP_RANK LAP_SIZE LAP_MASTER LAP_NODE LAP_JOB LAP_DIR

# hosts ARGUMENT...: keeps exit status, standard output and standard error in $status, $out and $err.
hosts() {
    last="hosts.sh --tcp $*"
    bash "$script" --tcp "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

# shellcheck disable=SC2016
hosts --hosts 3 --ranks 4 -- sh -c 'echo "$(hostname) $LAP_RANK of $LAP_SIZE at $LAP_MASTER"'
is 'ranks are spread over the hosts in blocks' "$status $(sort -k 2 "$work/out" | tr '\n' ';')" \
    '0 host1 0 of 4 at host1:29501;host2 1 of 4 at host1:29501;host3 2 of 4 at host1:29501;host3 3 of 4 at host1:29501;'
# shellcheck disable=SC2016
hosts sh -c 'test $LAP_RANK = 0 || exit 7'
is 'the status is that of the rank that fails' "$status" 7

# ---- worlds ----

hosts "$LAP" bench ag 8 8 8 --iters 1 --transport shm
has 'there is no memory in common' "$status $err" '1 ' 'rank 1 is on another host than rank 0: use hosts'
hosts --ranks 4 "$LAP" bench ag 64 16 64 --iters 1
has '... and TCP carries no data of CPUs' "$status $err" '1 ' 'met over TCP, which carries none; expected mpirun (MPI carries data between hosts), or GPUs with NCCL'
much=("$WORLD forever")
if [ "$LAP_HAVE_CUDA" = 1 ] && [ -e "$FAKE_CUDA/libnccl.so.2" ]; then
    export LD_LIBRARY_PATH=$FAKE_CUDA LAP_GPU_TUNE=0
    hosts --ranks 4 "$LAP" bench ag 64 16 64 --iters 1 --method ring --device cuda --json
    is 'lap bench on GPUs of two hosts' "$status $(grep -o '"ok":[a-z]*' <<<"$out" | sort -u)" '0 "ok":true'
    has '... over NCCL between them' "$out" '"transport":"nccl"'
    gpt='train --model gpt --layers 2 --seq 16 --heads 4 --head-dim 8 --vocab 64 --steps 2 --device cuda --json'
    losses() { grep -o '"loss":[0-9.]*' <<<"$out" | tr '\n' ' '; }
    # shellcheck disable=SC2086
    hosts --ranks 4 "$LAP" $gpt --tp 2 --dp 2
    two="$status $(losses)"
    # shellcheck disable=SC2086
    lap $gpt --tp 2 --dp 2
    is 'lap train on two hosts has the losses of one' "$two" "$status $(losses)"
    much+=("$LAP train --model gpt --layers 2 --seq 32 --heads 4 --head-dim 8 --vocab 64 --steps 1000000 --tp 4 --device cuda")
fi

# Rank 2 has no way to rank 1, but both have one to rank 0, through which they talk.
# shellcheck disable=SC2016
LAP_TIMEOUT_S=20 hosts --hosts 3 sh -c 'test $LAP_RANK != 2 || ip route add unreachable 10.83.0.2; exec "$0"' "$WORLD"
is 'hosts that reach only the one of rank 0' "$status $(grep -c '^not ok' "$work/out")" '0 0'

# ---- links that fail, and ranks that die ----

# pid_at RANK: of the rank of $started that is in its world, by its thread for TCP; as this host sees it.
pid_at() {
    local file pid
    for file in $(grep -lsz "^IN_HOSTS=$work\$" /proc/[0-9]*/environ); do
        pid=${file//[!0-9]/}
        if grep -qsz "^LAP_RANK=$1\$" "$file" && grep -qsx lap-hub "/proc/$pid/task/"*/comm; then
            echo "$pid"
        fi
    done
}
is_there() { test -n "$(pid_at "$1")"; }
has_ended() { ! kill -0 "$started" 2>/dev/null; }
# patiently COMMAND...: as until_true, and for as long as ranks may take to start or to give up.
patiently() { until_true "$@" || until_true "$@" || until_true "$@" || until_true "$@"; }
# start COMMAND...: two hosts of two ranks in the background, which have far more to do than the test lasts.
start() {
    last="$*"
    IN_HOSTS=$work LAP_TIMEOUT_S=16 bash "$script" --tcp --ranks 4 "$@" >"$work/out" 2>"$work/err" </dev/null &
    started=$!
    for rank in 0 1 2 3; do ok "rank $rank is in its world: ${*:1:2}" patiently is_there $rank; done
    case $* in
    *' train '*) ok '... and trains' patiently grep -q ' Step 2/' "$work/out" ;;
    *) sleep 1 ;;
    esac
}
end() {
    ok '... and all ranks end' patiently has_ended || kill -TERM "$started"
    wait "$started"
    status=$?
    err=$(cat "$work/err")
}
for command in "${much[@]}"; do
    # shellcheck disable=SC2086
    start $command
    kill -KILL "$(pid_at 3)"
    end
    is 'a rank of the other host is killed: its status' "$status" 137
    for rank in 0 1 2; do
        has "... and rank $rank says so" "$(grep "rank $rank: peer lost" "$work/err")" 'rank 3' 'has died'
    done
    # shellcheck disable=SC2086
    start $command
    nsenter --target "$(pid_at 3)" --net ip link set eth0 down
    end
    is 'a link goes down: status' "$status" 1
    # Whoever waits for the other host learns it from the kernel, or by the deadline; another rank of its host may wait for that rank.
    for rank in 0 1 2 3; do
        ok "... and rank $rank gives up with a sentence" grep -qE "rank $rank: (peer lost|timeout): " "$work/err"
    done
    for row in '[01] [23]' '[23] [01]'; do
        ok "... and of ranks ${row% *} one names a rank of the other host" \
            grep -qE "rank ${row% *}: (peer lost|timeout):.* rank ${row#* }[ ;]" "$work/err"
    done
    is '... which nobody takes for dead' "$(grep -c 'has died' "$work/err")" 0
done

# Rank 0 is stopped, and all wait for it: nothing is under way when the link goes down. The kernel finds that before the deadline.
# shellcheck disable=SC2086
start ${much[0]}
stopped=$(pid_at 0)
kill -STOP "$stopped"
sleep 1
nsenter --target "$(pid_at 3)" --net ip link set eth0 down
unreachable() { grep -qE 'rank [23]: peer lost: .*rank [01].* cannot be reached any more \((No route to host|Connection timed out)\)' "$work/err"; }
ok 'an idle link goes down: a rank of its host says so' patiently unreachable
kill -CONT "$stopped"
end
is '... and nobody is taken for dead' "$status $(grep -c 'has died' "$work/err")" '1 0'
finish
