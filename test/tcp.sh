#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tcp.sh RANKS COMMAND...: runs a command on two hosts, RANKS on each, that are really this machine twice, with the
# variables of torchrun and without it. The library takes the ranks of the one for strangers to those of the other.
# LAP_HOSTS: how many hosts (2). A rank that fails ends the others, unless LAP_KEEP is set; then all are waited for.
set -u
ranks=$1 hosts=${LAP_HOSTS:-2}
shift
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB LAP_MASTER
# Below the ports that the kernel gives out; the one after it, where rank 0 listens first, is free. Whoever takes it
# meanwhile is another job.
is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
until [ -n "${MASTER_PORT:-}" ]; do
    port=$((20000 + RANDOM % 12000))
    is_taken $((port + 1)) || MASTER_PORT=$port
done
export MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT
export TORCHELASTIC_RUN_ID="$$-$RANDOM-$RANDOM" WORLD_SIZE=$((hosts * ranks)) LOCAL_WORLD_SIZE=$ranks
pids=()
trap 'kill -TERM "${pids[@]}" 2>/dev/null' EXIT
for ((rank = 0; rank < WORLD_SIZE; rank++)); do
    RANK=$rank LOCAL_RANK=$((rank % ranks)) GROUP_RANK=$((rank / ranks)) "$@" </dev/null &
    pids+=($!)
done
status=0
for ((left = WORLD_SIZE; left > 0; left--)); do
    wait -n
    this=$?
    if [ $this != 0 ] && [ $status = 0 ]; then
        status=$this
        [ -n "${LAP_KEEP:-}" ] || kill -TERM "${pids[@]}" 2>/dev/null
    fi
done
pids=()
trap - EXIT
exit $status
