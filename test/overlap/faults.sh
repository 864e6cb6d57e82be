#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kills, stops or ends a rank in the middle of every method: the others must return the right error in time, able to
# take everything down, and nothing may be left behind. Usage: faults.sh LAP FAULTS kill|stop|exit
set -u
lap=$1 faults=$2 fault=$3
ranks=4 count=0 failed=0 grace=10
base=$(mktemp -d)
trap 'rm -rf "$base"' EXIT
export TMPDIR=$base
unset XDG_RUNTIME_DIR

report() { # held text
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; failed=1; fi
}

case $fault in
kill) expected=137 ;;
stop) expected=4 grace=2 && export LAP_TIMEOUT_S=1 ;; # the stopped rank uses up the grace
exit) expected=3 ;;
*) echo "Bail out! unknown fault $fault"; exit 2 ;;
esac

victim=0
for method in ag:serial ag:ring ag:direct ag:fused rs:serial rs:ring rs:pipeline rs:fused \
    ar:serial ar:pipeline ar:direct ar:fused; do
    if [ "${LAP_TRANSPORT-}" = nccl ] && [ "${method#*:}" = fused ]; then continue; fi # nobody's memory is open there
    # Another victim and another moment for each, so that the fault hits different steps.
    victim=$(((victim + 1) % ranks))
    output=$("$lap" run --grace $grace -n $ranks "$faults" "${method%:*}" "${method#*:}" "$fault" $victim $((20 + 17 * victim)) 2>&1)
    status=$?
    well=$(grep -c 'survivor is well' <<<"$output")
    [ "$well" = $((ranks - 1)) ]
    report $? "$method, rank $victim: $((ranks - 1)) survivors, $well well"
    [ "$status" = $expected ]
    report $? "$method: lap run returns $expected ($status)"
    if [ "$well" != $((ranks - 1)) ]; then sed 's/^/# /' <<<"$output" | grep -v ' ok ' | head -40; fi
done
[ -z "$(ls -A "$base")" ]
report $? "nothing is left in the temporary directory"
echo "1..$count"
exit $failed
