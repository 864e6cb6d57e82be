#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lap bench --baseline mpi: what it refuses, and what it measures beside the methods. Tiny sizes: nothing here depends
# on how fast the machine is.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB

# refuse WORD ARGUMENT...: exit status 2 and one line with the word.
refuse() {
    local word=$1
    shift
    lap bench "$@"
    is "lap bench $*: refused" "$status $(wc -l <"$work/err")" '2 1'
    has "... since '$word'" "$err" "$word"
}

refuse "--baseline is 'mpy'" ag 8 8 8 --baseline mpy
refuse 'no option --baseline' latency --baseline mpi
refuse 'no option --baseline' demo --baseline mpi
if [ "$LAP_HAVE_MPI" != 1 ]; then
    refuse 'this build has none' ag 8 8 8 --baseline mpi
    finish
fi
refuse 'needs ranks that mpirun started: mpirun -n 3' ag 8 8 8 --baseline mpi --ranks 3
LAP_RANK=0 LAP_SIZE=1 refuse '--dtype is bfloat16' ag 8 8 8 --baseline mpi --dtype bf16
LAP_RANK=0 LAP_SIZE=1 refuse '--link 1GB/s' ag 8 8 8 --baseline mpi --link 1GB/s
LAP_RANK=0 LAP_SIZE=1 refuse 'not bulk-ag' bulk-ag 8 8 8 --baseline mpi
LAP_RANK=0 LAP_SIZE=1 refuse '--epilogue bias' ag 8 8 8 --baseline mpi --epilogue bias
# MPI's libraries are not built for a sanitizer.
[ -z "$LAP_SANITIZE" ] || finish

lap run -n 2 "$LAP" bench ag 8 8 8 --baseline mpi
is 'ranks that another launcher started: refused' "$status" 1
has '... in a sentence' "$err" 'lap run started 2 ranks, but MPI knows of 1'

# with_mpi RANKS ARGUMENT...: lap bench under mpirun.
with_mpi() {
    # shellcheck disable=SC2086
    $MPIRUN -n "$1" "$LAP" bench "${@:2}" --baseline mpi --iters 2 >"$work/out" 2>"$work/err" </dev/null
    status=$?
    out=$(cat "$work/out")
}
# Even and ragged rows, ranks without columns or without anything to add up.
for request in '2 ag 64 32 48' '3 ag 64 2 48' '2 rs 64 32 48' '3 rs 7 5 2' '3 ar 7 5 2' '1 rs 8 8 8'; do
    # shellcheck disable=SC2086
    with_mpi $request --method fused,serial --json 2>/dev/null
    is "$request: ends well, in one line" "$status $(wc -l <"$work/out")" '0 1'
    has '... the baseline is right' "$out" '"baseline":{"method":"mpi","total_ms":' '"best":"'
    is '... as all the others' "$(grep -o '"ok":[a-z]*' "$work/out" | sort | uniq -c | tr -s ' ')" ' 3 "ok":true'
    is '... it is no method' "$(grep -c '"best":"mpi"' "$work/out")" 0
done
with_mpi 2 ag 64 32 48 --transport mpi
is 'a world over the same MPI: ends well' "$status" 0
is '... the row of the baseline' "$(grep -c '^[* ] mpi .* 1.000  ok$' "$work/out")" 1
has '... the column of the ratios' "$out" '× base'
is '... and the star where it is the least' "$(awk '/^[*].* ok$/ { print $(NF - 1) }' "$work/out")" \
    "$(awk '/ ok$/ { print $(NF - 1) }' "$work/out" | sort -n | head -n 1)"
with_mpi 2 sweep rs --m 16:64 --n 32 --k 48
is 'a sweep ends well' "$status" 0
is '... with a ratio in every line' "$(grep -cE '^[ *] +(16|32|64) .* [-+][0-9.]+% [a-z]' "$work/out")" 3
has '... and a verdict' "$out" 'auto/mpi' 'Against the baseline mpi auto did worst at M = '
with_mpi 2 sweep ag --m 16:16 --n 32 --k 48 --json
has 'a sweep in JSON' "$out" '"baseline_ms":' '"baseline_noise_ms":'

finish
