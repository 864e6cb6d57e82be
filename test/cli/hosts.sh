#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# scripts/hosts.sh: hosts are made, a command runs across them, and nothing is left of them, however it ends.
. "$(dirname "$0")/tap.bash"
script=$LAP_SOURCE_DIR/scripts/hosts.sh
unset OMPI_COMM_WORLD_RANK

mpirun=${MPIRUN:-mpirun}

# hosts ARGUMENT...: keeps exit status, standard output and standard error in $status, $out and $err.
hosts() {
    last="hosts.sh $*"
    env IN_HOSTS="$work" bash "$script" --mpirun "$mpirun" "$@" \
        >"$work/out" 2>"$work/err" </dev/null
    status=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

# Everything that is started inherits the variable. Whoever ends may still be on the way out.
no_process() { test -z "$(grep -lsz "^IN_HOSTS=$work\$" /proc/[0-9]*/environ)"; }
traces() { ip -o link | sed 's/^[0-9]*: //' && ip netns list && cat /proc/self/mounts; }
nothing_left() {
    ok "$1: no process is left" until_true no_process
    is "$1: no link, namespace or mount is left" "$(traces)" "$clean"
}

hosts --help
has 'help' "$status $out" '0 Usage:' '--hosts' '--rate'
while IFS='|' read -r arguments words; do
    # shellcheck disable=SC2086
    hosts $arguments
    is "'$arguments' is refused" "$status" 2
    has "and '$words' told" "$err" "$words"
done <<'EOF'
|no command
--hosts 0 true|--hosts is '0'
--hosts 3 --ranks 2 true|--ranks is 2
--rate fast true|--rate is 'fast'
--rate|--rate needs a value
--delay 5 true|--delay is '5'
--switch true|no option '--switch'
--inside true|--inside
EOF
hosts --mpirun no-such-launcher true
has 'a missing launcher is named' "$status $err" '125 hosts: no-such-launcher is missing'

# The rest needs what the script needs.
skip() {
    echo "1..$checks # SKIP $1"
    exit $((failures > 0 ? 1 : 77))
}
command -v "$mpirun" >/dev/null || skip "there is no $mpirun"
command -v tc >/dev/null || skip 'there is no tc'
if [ "$(id -u)" != 0 ]; then
    hosts true
    is 'without root it refuses' "$status" 125
    has 'and says so' "$err" 'needs root'
    skip 'not root'
fi
unshare --mount --net --pid --fork --mount-proc ip link add type veth 2>/dev/null ||
    skip 'root may not make network namespaces here'
clean=$(traces)

hosts sh -c 'echo "$(hostname) $OMPI_COMM_WORLD_SIZE$PMI_SIZE"'
is 'a rank on each of two hosts' "$status $(sort "$work/out" | tr '\n' ' ')" '0 host1 2 host2 2 '
nothing_left 'a run that ends well'
hosts --hosts 3 --ranks 4 --rate 2.5mbit -- sh -c 'hostname; tc qdisc show dev eth0 >&2'
is 'more ranks than hosts' "$(sort "$work/out" | tr '\n' ' ')" 'host1 host2 host3 host3 '
is 'their links are limited' "$(grep -o 'rate [^ ]*' <<<"$err" | sort | uniq -c | tr -s ' ')" \
    ' 4 rate 2500Kbit'
hosts sh -c 'echo $(ls /sys/class/net) $(ip -o link | wc -l)'
is 'there is only the link and the loopback' "$(sort -u "$work/out")" 'eth0 lo 2'
hosts -- printf '%s\n' 'a  b' '$HOME;"' "it's"
is 'arguments arrive as they are' "$(sort -u "$work/out")" "$(printf '%s\n' '$HOME;"' 'a  b' "it's")"
hosts sh -c 'taskset -pc $$ | sed "s/.*: //"'
is 'hosts share the cores evenly' "$(sort -u "$work/out" | wc -l)" "$(($(nproc) > 1 ? 2 : 1))"
hosts "$LAP" --version
is 'lap runs there' "$(sort -u "$work/out")" "lap $LAP_VERSION"

# The launcher of MPICH leaves the others alone when a rank fails that has not started MPI.
others=true
if "$mpirun" --version 2>&1 | grep -q 'Open MPI\|OpenRTE'; then
    others='exec sleep 600'
fi
hosts sh -c "test \$(hostname) = host2 && exit 3; $others"
is 'a rank that fails ends the others; its status counts' "$status" 3
nothing_left 'a rank that fails'
hosts sh -c "test \$(hostname) = host2 && kill -9 \$\$; $others"
ok 'a rank that is killed ends the others' test "$status" != 0
nothing_left 'a rank that is killed'
hosts "$work/no-such-program"
ok 'a command that is not there fails' test "$status" != 0
nothing_left 'a command that is not there'

# start COMMAND...: two hosts in the background, with signals as a terminal would have them.
start() {
    : >"$work/out"
    env --default-signal=INT,QUIT,HUP IN_HOSTS="$work" bash "$script" --mpirun "$mpirun" \
        sh -c 'echo ready; exec sleep 600' >"$work/out" 2>"$work/err" </dev/null &
    started=$!
    until_true ready
}
ready() { test "$(grep -c ready "$work/out")" = 2; }
for pair in INT:130 TERM:143 HUP:129 KILL:137; do
    start
    kill -s "${pair%:*}" "$started"
    wait "$started" 2>"$work/wait"
    is "SIG${pair%:*}: 128 + its number" "$?" "${pair#*:}"
    nothing_left "SIG${pair%:*}"
done
start
hosts hostname
is 'two sets of hosts at once' "$status $(sort "$work/out" | tr '\n' ' ')" '0 host1 host2 '
kill -s TERM "$started"
wait "$started" 2>"$work/wait"
nothing_left 'both'

# A world over them. MPI's libraries are not built for a sanitizer, and Debian's MPICH 4.0.2 may hang in its own
# MPI_Finalize when messages have gone over TCP.
if [ "$LAP_HAVE_MPI" != 1 ] || [ -n "$LAP_SANITIZE" ] || [ "$others" = true ]; then
    finish
fi
hosts "$CONFORMANCE"
is 'conformance of two ranks on two hosts' "$status $(grep -c '^not ok' "$work/out")" '0 0'
for transport in mpi hosts; do
    hosts --ranks 4 --rate 100mbit "$LAP" bench ag 256 16 256 --iters 3 --transport $transport --json
    is "lap bench on four ranks of two hosts, transport $transport" \
        "$status $(grep -o '"ok":[a-z]*' <<<"$out" | sort -u)" '0 "ok":true'
    # Each host gets the other's half of A, 1 Mbit, of which little passes at once.
    ok '... over the link: not faster than it allows' \
        awk -F '"serial_ms":' '{ exit !($2 + 0 > 9) }' "$work/out"
done
if [ -e "${FAKE_CUDA:-}/libnccl.so.2" ]; then
    hosts env LD_LIBRARY_PATH="$FAKE_CUDA" LAP_GPU_TUNE=0 "$LAP" bench ag 48 32 16 --device cuda --method ring --iters 1 --json
    is 'GPUs of two hosts' "$status $(grep -o '"ok":[a-z]*' <<<"$out" | sort -u)" '0 "ok":true'
    has '... take the transport that spans them' "$out" '"transport":"nccl"'
fi
nothing_left 'a world'

finish
