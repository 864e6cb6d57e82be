#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kills a rank of three, while or before the others destroy their operator: these are done before their timeout. Usage: destroyed.sh LAP
# PROGRAM CASE..., with the cases of destroyed.c.
set -u
lap=$1 program=$2 count=0 failed=0
shift 2
export LAP_TIMEOUT_S=20

report() { # held text
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; failed=1; fi
}

for case; do
    output=$("$lap" run --grace 40 -n 3 "$program" "$case" 2>&1)
    status=$?
    well=$(grep -c 'survivor is well' <<<"$output")
    [ "$well" = 2 ]
    report $? "$case: $well of 2 survivors are well"
    [ "$status" = 137 ]
    report $? "... and lap run says that the other was killed ($status)"
    [ $failed = 0 ] || grep -v "\] ok " <<<"$output" | head -20 | sed "s/^/# /"
    sed -n 's/.* - \(the operator is destroyed in .*\)/# \1/p' <<<"$output"
done
echo "1..$count"
exit $failed
