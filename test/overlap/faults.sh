#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kills, stops or ends a rank in the middle of every method: the others must return the right error in time, able to
# take everything down, and nothing may be left. Usage: faults.sh LAP FAULTS kill|stop|exit [DEVICE METHOD...]
# On `cuda` the ranks share a GPU; all that ran on it must be gone afterwards, and the GPU be of use.
set -u
lap=$1 faults=$2 fault=$3 device=${4:-cpu}
shift $(($# < 4 ? 3 : 4))
methods=$*
ranks=${RANKS:-4} count=0 failed=0 grace=10 first_ms=20 share=off at_once=1
base=$(mktemp -d) tried=$(mktemp -d)
trap 'rm -rf "$base" "$tried"' EXIT
export TMPDIR=$base
unset XDG_RUNTIME_DIR

report() { # held text
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; failed=1; fi
}

# Processes that know of our MPS daemon: the daemon, its server, and ranks.
left_over() {
    local environ
    for environ in /proc/[0-9]*/environ; do
        grep -qaF "MPS_PIPE_DIRECTORY=$base" "$environ" 2>/dev/null && echo "${environ//[!0-9]/}"
    done
}

case $fault in
kill) expected=137 ;;
stop) expected=4 && export LAP_TIMEOUT_S=3 ;; # the launcher waits for no rank that is stopped
exit) expected=3 ;;
*) echo "Bail out! unknown fault $fault"; exit 2 ;;
esac
if [ "$device" = cuda ]; then
    share=on first_ms=${FIRST_MS:-600}
    export LAP_DEVICE=cuda
fi

# try METHOD VICTIM CALM: one fault, and what comes of it, as TAP without numbers.
try() {
    local method=$1 victim=$2 calm=$3 output status well
    output=$("$lap" run --gpu-share=$share --grace $grace -n $ranks "$faults" "${method%:*}" "${method#*:}" "$fault" \
        "$victim" $((first_ms + 17 * victim)) $calm 2>&1)
    status=$?
    well=$(grep -c 'survivor is well' <<<"$output")
    [ "$well" = $((ranks - 1)) ]
    tell $? "$method, rank $victim${calm:+, calm}: $((ranks - 1)) survivors, $well well"
    [ "$status" = $expected ]
    tell $? "$method: lap run returns $expected ($status)"
    if [ "$well" != $((ranks - 1)) ]; then sed 's/^/# /' <<<"$output" | grep -v '\] ok ' | head -40; fi
    sed -n 's/.* \(the call failed .*\)/# \1/p' <<<"$output"
}

tell() { # held text
    if [ "$1" = 0 ]; then echo "ok - $2"; else echo "not ok - $2"; fi
}

# The results of tries, in order, with numbers. A try without its two results has failed.
collect() {
    local file line results
    for file; do
        wait "$(<"$file.pid")"
        results=0
        while IFS= read -r line; do
            case $line in
            'ok - '*) report 0 "${line#*- }" && results=$((results + 1)) ;;
            'not ok - '*) report 1 "${line#*- }" && results=$((results + 1)) ;;
            *) printf '%s\n' "$line" ;;
            esac
        done <"$file"
        [ $results = 2 ] || report 1 "a try has told $results results, expected 2"
    done
}

[ "$fault:$device" = stop:cpu ] && at_once=3
victim=0 tries=()
for method in ${methods:-ag:serial ag:ring ag:direct ag:fused ag:oneshot rs:serial rs:ring rs:pipeline rs:fused rs:oneshot \
    ar:serial ar:pipeline ar:direct ar:fused}; do
    # Another victim and another moment for each, so that the fault hits different steps.
    victim=$(((victim + 1) % ranks))
    calm=
    [ "$device" = cuda ] && [ $((victim % 2)) = 1 ] && calm=calm
    file=$tried/$method
    try "$method" $victim "$calm" >"$file" &
    echo $! >"$file.pid"
    tries+=("$file")
    if [ ${#tries[@]} -ge $at_once ]; then
        collect "${tries[@]}"
        tries=()
    fi
done
collect "${tries[@]}"
[ -z "$(ls -A "$base")" ]
report $? "nothing is left in the temporary directory"
if [ "$device" = cuda ]; then
    left=$(left_over)
    [ -z "$left" ]
    report $? "no process is left of ours${left:+: $left}"
fi
suite=${AFTERWARDS:-conformance} # it takes a while; where another of these tests runs it, a shorter one is named, or no
if [ "$device" = cuda ] && [ "$suite" != no ]; then
    env -u FAKE_SHARED_FATE "$lap" run --gpu-share -n $ranks "${faults%faults}$suite" --device cuda --quick 1 >"$base/output" 2>&1
    report $? "the GPU is of use afterwards"
    grep -A3 '\] not ok' "$base/output" | head -20 | sed 's/^/# /'
fi
echo "1..$count"
exit $failed
