#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes hosts out of namespaces, each with its own name, network and cores, joins them through a switch by links of a
# limited rate, and runs a command across them, under mpirun or over TCP. The namespaces have no names outside and end with the
# processes in them: however this script ends, killed included, nothing is left, and several may run at once.
# The hosts share the memory and the file system of the machine, and cannot reach the network outside.
set -euo pipefail

usage()
{
    cat <<'EOF'
Usage: hosts.sh [OPTIONS] [--] COMMAND [ARGUMENT...]

Runs a command on hosts made of network namespaces, with links of a limited rate between them, under mpirun or over TCP.

  --hosts N      hosts to make (default 2)
  --ranks N      ranks in all, spread over the hosts in blocks (default: one for each host)
  --rate RATE    of the link of each host, each way: kbit, mbit or gbit per second (default 1gbit)
  --delay TIME   added to each packet on its way, in us or ms; needs a kernel with netem (default: none)
  --mpirun NAME  the launcher of Open MPI or of MPICH (default mpirun)
  --tcp          without MPI, for GPUs: each rank is started by itself, with LAP_RANK, LAP_SIZE and LAP_MASTER, and all are waited for
  --help         this text

The cores of the machine are split evenly among the hosts. The rate counts the headers of packets, so that MPI over TCP
is left with 1448 of 1514 bytes. What OMPI_MCA_... and UCX_... in the environment say holds for all hosts. Needs root.
Exit status: that of the launcher, or of the first rank that failed; 2 when the request makes no sense, 125 when the hosts cannot be made, 128 + its
number after a signal.

    scripts/hosts.sh --rate 1gbit -- build/lap bench ag 2048 4096 2048 --transport mpi
    scripts/hosts.sh --rate 1gbit --ranks 4 --tcp -- build/lap bench ag 2048 4096 2048 --device cuda
EOF
}

misused()
{
    echo "hosts: $*" >&2
    exit 2
}

failed()
{
    echo "hosts: $*" >&2
    exit 125
}

# ---- the request ----

# count OPTION VALUE: a whole number from 1 to 250, as many as the subnet has room for.
count()
{
    if [[ ! $2 =~ ^[1-9][0-9]{0,2}$ ]] || (($2 > 250)); then
        misused "$1 is '$2': expected a number from 1 to 250"
    fi
}

parse()
{
    hosts=2 ranks='' rate=1gbit delay='' launcher=mpirun tcp='' inside=''
    local option
    while (($# > 0)) && [[ $1 == -* ]]; do
        option=$1
        shift
        case $option in
        --) break ;;
        --inside) inside=yes && continue ;; # see below
        --tcp) tcp=yes && continue ;;
        --help) usage && exit ;;
        --hosts | --ranks | --rate | --delay | --mpirun) ;;
        *) misused "there is no option '$option': see --help" ;;
        esac
        (($# > 0)) || misused "$option needs a value"
        case $option in
        --hosts) hosts=$1 ;;
        --ranks) ranks=$1 ;;
        --rate) rate=$1 ;;
        --delay) delay=$1 ;;
        --mpirun) launcher=$1 ;;
        esac
        shift
    done
    command=("$@")
    count --hosts "$hosts"
    ranks=${ranks:-$hosts}
    count --ranks "$ranks"
    ((ranks >= hosts)) || misused "--ranks is $ranks: expected one for each of the $hosts hosts at least"
    [[ $rate =~ ^[0-9]+(\.[0-9]+)?[kmg]bit$ && $rate =~ [1-9] ]] || misused "--rate is '$rate': expected such as 500mbit or 2.5gbit"
    [[ -z $delay || $delay =~ ^[0-9]+(\.[0-9]+)?[um]s$ ]] || misused "--delay is '$delay': expected such as 50us or 1ms"
    ((${#command[@]} > 0)) || misused "there is no command to run: see --help"
}

# need TOOL PACKAGE
need()
{
    command -v "$1" >/dev/null || failed "$1 is missing: install it, on Debian with 'apt-get install $2'"
}

check_machine()
{
    local reason
    need unshare util-linux
    need ip iproute2
    need tc iproute2
    [[ $tcp ]] || need "$launcher" openmpi-bin
    reason=$(unshare --mount --pid --net --uts --ipc --fork --mount-proc true 2>&1) ||
        failed "making hosts needs root, with CAP_SYS_ADMIN and CAP_NET_ADMIN ($reason)"
}

# ---- inside: process 1 of a namespace of processes, with mounts and a network of its own ----

shared=/dev/shm/hosts # in a file system of its own
subnet=10.83.0

# The numbers of the cores that this process may use.
list_cores()
{
    local range
    sed -n 's/^Cpus_allowed_list:\s*//p' /proc/self/status | tr , '\n' | while read -r range; do
        seq "${range%-*}" "${range#*-}"
    done
}

# A bucket of tokens passes a burst at full speed after each pause, so it should be small; but it has to hold a packet,
# which the sender's kernel cuts to size only when it leaves, and what becomes due while the timer is late.
size_buckets()
{
    read -r packet burst queue <<<"$(awk -v rate="$rate" 'BEGIN {
        bytes_per_s = rate * (rate ~ /gbit/ ? 1e9 : rate ~ /mbit/ ? 1e6 : 1e3) / 8
        packet = bytes_per_s * 125e-6
        packet = packet > 65000 ? 65000 : packet < 4000 ? 4000 : packet
        queue = bytes_per_s * 10e-3
        printf "%d %d %d\n", packet, 1.1 * packet + bytes_per_s * 50e-6, queue < 1e6 ? 1e6 : queue
    }')"
}

# limit INTERFACE: what leaves by it leaves at the rate. Under a sender's queue this also holds the sender back, as the
# queue of a network card does, so that nothing is dropped.
limit()
{
    tc qdisc add dev "$1" root handle 1: tbf rate "$rate" burst "$burst" limit "$queue" ||
        failed "the rate of a link cannot be limited: the kernel has to have the queue tbf"
}

# make_host NUMBER: $shared/hostN holds its namespaces, its cores, and its temporary files.
make_host()
{
    local number=$1 at=$shared/host$1 cores
    mkdir "$at"
    mapfile -t cores < <(list_cores)
    local first=$(((number - 1) * ${#cores[@]} / hosts)) last=$((number * ${#cores[@]} / hosts))
    echo "${cores[*]:first:last > first ? last - first : 1}" | tr ' ' , >"$at/cores"
    touch "$at/net" "$at/uts" "$at/ipc"
    unshare --net="$at/net" --uts="$at/uts" --ipc="$at/ipc" hostname "host$number"
    ip link add "port$number" type veth peer name eth0 netns "$at/net"
    in_net=(nsenter --net="$at/net")
    "${in_net[@]}" ip link set lo up
    "${in_net[@]}" ip link set eth0 up gso_max_size "$packet"
    "${in_net[@]}" ip address add "$subnet.$number/24" dev eth0
    echo "$subnet.$number host$number" >>"$shared/addresses"
}

# The links of a host: out of it, and out of the switch to it.
make_link()
{
    local number=$1
    ip link set "port$number" master switch up
    limit "port$number"
    [[ -z $delay ]] || tc qdisc add dev "port$number" parent 1:1 netem delay "$delay" limit 100000 ||
        failed "a delay of $delay cannot be added: the kernel has to have the queue netem"
    nsenter --net="$shared/host$number/net" "$BASH" -c "$(declare -f limit failed); $(declare -p rate burst queue)
        limit eth0"
}

make_hosts()
{
    local number
    mount -t tmpfs tmpfs /dev/shm
    mkdir "$shared"
    size_buckets
    ip link add switch up type bridge
    for ((number = 1; number <= hosts; number++)); do
        make_host "$number"
        make_link "$number"
    done
    mount --bind "$shared/addresses" /etc/hosts
    # Launchers start their daemons on the other hosts with a program that takes the arguments of ssh.
    {
        echo "#!$BASH"
        declare -f enter
        declare -p shared
        echo 'enter "$@"'
    } >"$shared/enter"
    chmod +x "$shared/enter"
}

# enter [-x] HOST WORD...: the words are a line for the shell, as for ssh.
enter()
{
    [[ $1 != -* ]] || shift
    local at=$shared/$1
    shift
    export TMPDIR=$at
    unset XDG_RUNTIME_DIR
    # /sys shows the network that it was mounted in.
    exec taskset -c "$(<"$at/cores")" nsenter --net="$at/net" --uts="$at/uts" --ipc="$at/ipc" \
        unshare --mount "$BASH" -c 'mount -t sysfs sysfs /sys && eval "$*"' - "$@"
}

# Messages go by TCP over the link between hosts, and by shared memory within one. Ranks have the cores of their host.
launch()
{
    local number list='' line
    for ((number = 1; number <= hosts; number++)); do
        list+=${list:+,}host$number:$((number * ranks / hosts - (number - 1) * ranks / hosts))
    done
    if "$launcher" --version 2>&1 | grep -q 'Open MPI\|OpenRTE'; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        line=("$launcher" --host "$list" -n "$ranks" --map-by slot --bind-to none
            --mca plm_rsh_agent "$shared/enter" --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include eth0
            --mca pml ob1 --mca btl 'self,vader,tcp' --mca btl_tcp_if_include eth0)
        # Ranks that share a core have to leave it to each other while they wait.
        ((ranks <= $(list_cores | wc -l))) || line+=(--mca mpi_yield_when_idle 1)
    else
        export UCX_NET_DEVICES=eth0
        line=("$launcher" -launcher ssh -launcher-exec "$shared/enter" -iface eth0 -hosts "$list" -n "$ranks")
    fi
    enter host1 "$(printf '%q ' "${line[@]}" "${command[@]}")"
}

# Without a launcher, as if by ssh. The largest status of a rank: one that was killed comes before those that noticed.
launch_tcp()
{
    local rank number ended pid pids=() status=0
    for ((rank = 0; rank < ranks; rank++)); do
        number=1
        while ((rank >= number * ranks / hosts)); do number=$((number + 1)); done
        (enter "host$number" "$(printf '%q ' exec env LAP_RANK=$rank LAP_SIZE="$ranks" LAP_MASTER=host1:29501 "${command[@]}")") &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        ended=0
        wait "$pid" || ended=$?
        status=$((ended > status ? ended : status))
    done
    exit "$status"
}

# ---- outside ----

# end_with STATUS: process 1 ends after all others of its namespace, and the process that waits for it after that.
end_with()
{
    local first=
    trap '' INT TERM HUP QUIT
    read -r first 2>/dev/null <"/proc/$waiter/task/$waiter/children" || true
    kill -KILL "${first:-$waiter}" 2>/dev/null || true
    wait "$waiter" 2>/dev/null || true
    exit "$1"
}

parse "$@"
if [[ $inside ]]; then
    (($$ == 1)) || misused "--inside is for the script itself"
    exec 2>&3 3>&-
    set -E
    trap 'failed "the hosts cannot be made (line $LINENO)"' ERR
    make_hosts
    trap - ERR
    [[ ! $tcp ]] || launch_tcp
    (launch)
    exit
fi
check_machine
# When this process dies, so does the one that waits, and with it process 1 inside, and with it all that is inside.
# Some unshare complain when process 1 is killed, so they have no standard error.
setpriv --pdeathsig KILL unshare --mount --pid --net --fork --kill-child --mount-proc \
    "$BASH" "${BASH_SOURCE[0]}" --inside "$@" <&0 3>&2 2>/dev/null &
waiter=$!
trap 'end_with 129' HUP
trap 'end_with 130' INT
trap 'end_with 131' QUIT
trap 'end_with 143' TERM
wait "$waiter"
