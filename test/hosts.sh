#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# hosts.sh MPIRUN RANKS COMMAND...: runs a command under Open MPI's mpirun on two hosts, RANKS on each, that are really
# this machine twice: its daemons are started here instead of by ssh, each with a folder for temporary files of its own.
# The launcher, and so the library, takes the ranks of the one for strangers to those of the other.
set -u
if [ "$1" = --agent ]; then # mpirun calls it as it would call ssh: with a host and a command
    export TMPDIR="$LAP_HOSTS/$2"
    mkdir -p "$TMPDIR"
    shift 2
    exec sh -c "$*"
fi
mpirun=$1 ranks=$2
shift 2
LAP_HOSTS=$(mktemp -d)
export LAP_HOSTS
unset XDG_RUNTIME_DIR
trap 'rm -rf "$LAP_HOSTS"' EXIT
# Shared memory of Open MPI's own would be named alike on both, and the topology too.
"$mpirun" --mca plm_rsh_agent "sh $0 --agent" --mca btl self,tcp --mca rtc ^hwloc --mca btl_tcp_if_include lo \
    --mca oob_tcp_if_include lo --bind-to none -H "one:$ranks,two:$ranks" -n $((2 * ranks)) "$@"
