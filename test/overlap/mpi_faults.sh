#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ends a rank in the middle of an operation over MPI. With mpirun as it is, which ends the others by itself: the job must
# end in time, and no process may be left. With one that lets them be: they must return the right error by themselves.
# Usage: mpi_faults.sh FAULTS MPIRUN [OPTION...]
set -u
faults=$1
shift
mpirun=("$@")
ranks=4 count=0 failed=0
base=$(mktemp -d)
trap 'rm -rf "$base"' EXIT
export TMPDIR=$base LAP_TRANSPORT=mpi
unset XDG_RUNTIME_DIR

report() { # held text
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; failed=1; fi
}

# Processes of the program that are ours: other tests may run it, too.
ours() {
    local pid
    for pid in $(pgrep -f "^$faults "); do
        grep -qaF "TMPDIR=$base" "/proc/$pid/environ" 2>/dev/null && echo "$pid"
    done
}

# Nothing runs it any more; what mpirun has just ended may take a moment to go.
all_gone() {
    for _ in $(seq 100); do
        [ -z "$(ours)" ] && return 0
        sleep 0.05
    done
    return 1
}

# Runs a method with a fault; sets output and status.
run() { # method fault victim mpirun-option...
    local method=$1 fault=$2 victim=$3
    shift 3
    output=$(timeout 60 "${mpirun[@]}" "$@" -n $ranks "$faults" "${method%:*}" "${method#*:}" "$fault" "$victim" \
        $((30 + 17 * victim)) 2>&1)
    status=$?
    # One that lets the others be takes it for no failure.
    [ $status != 124 ] && { [ $status != 0 ] || [ $# -gt 0 ]; }
    report $? "$method, $fault of rank $victim${*:+, $*}: mpirun returns in time ($status)"
    all_gone
    report $? "$method, $fault: no process is left"
}

victim=0
export LAP_TIMEOUT_S=3 # also how long the others wait for a rank that is stopped
for fault in kill exit stop; do
    victim=$(((victim + 1) % ranks))
    run ag:ring $fault $victim
done
unset LAP_TIMEOUT_S

if "${mpirun[@]}" --version 2>&1 | grep -qE 'Open MPI|OpenRTE'; then
    for method in ag:serial ag:ring ag:direct rs:serial rs:ring rs:pipeline ar:serial ar:pipeline ar:direct; do
        victim=$(((victim + 1) % ranks))
        run $method kill $victim --enable-recovery
        well=$(grep -c 'survivor is well' <<<"$output")
        [ "$well" = $((ranks - 1)) ]
        report $? "$method, rank $victim: $((ranks - 1)) survivors, $well well"
        if [ "$well" != $((ranks - 1)) ]; then sed 's/^/# /' <<<"$output" | grep -v ' ok ' | head -40; fi
    done
else
    echo "# this mpirun cannot let the other ranks be"
fi
ls -A "$base" | grep -v '^ompi\.' | sed 's/^/# left: /' | grep . # Open MPI may leave its own
[ $? = 1 ]
report $? "nothing of ours is left in the temporary directory"
echo "1..$count"
exit $failed
