#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The verdict of `lap bench`: that it finds a wrong result, in whichever rank, says so and exits with 1; and its figures,
# computed once more from the rounds that it tells. WRONG_BLAS is a library with a cblas_sgemm that can be wrong.
set -u
here=$(dirname "$0")
# shellcheck source=test/cli/tap.bash
. "$here/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB WRONG_BY WRONG_RANK WRONG_CALL WRONG_COUNT

# bench ENV... -- ARGS...: lap bench over that BLAS. Its status is in $status, what it says of errors in $err.
bench() {
    local env=()
    while [ "$1" != -- ]; do
        env+=("$1")
        shift
    done
    shift
    env LAP_OPENBLAS="$WRONG_BLAS" "${env[@]}" timeout 60 "$LAP" bench "$@" --quiet >"$work/out" 2>"$work/err" </dev/null
    status=$?
    err=$(<"$work/err")
}

# field NAME: that field of every method, one a line.
field() {
    python3 -c 'import json, sys
for row in json.load(sys.stdin)["methods"]:
    print(row[sys.argv[1]])' "$1" <"$work/out"
}

small=(96 32 48 --iters 1 --warmup 0)

# ---- wrong results ----

bench -- ag "${small[@]}" -n 2 --json
is "what is right exits with 0" "$status" 0
is "every method is ok" "$(field ok | sort -u)" True
for op in ag rs ar bulk-rs; do
    for rank in 0 1; do
        bench WRONG_BY=0.01 WRONG_RANK=$rank -- $op "${small[@]}" -n 2 --json
        is "$op: a wrong element in rank $rank exits with 1" "$status" 1
        is "$op: no method is ok" "$(field ok | sort -u)" False
        is "$op: each has a sentence" "$(grep -c '^lap bench: wrong result: .* is off by up to [0-9]' "$work/err")" \
            "$(field method | wc -l)"
        ok "$op: the error is beyond the tolerance" test "$(field error_over_tolerance | awk '$1 <= 1' | wc -l)" = 0
        is "$op: none is the best, or has an efficiency" \
            "$(field no_efficiency | sort | uniq | tr '\n' ' ')$(grep -o '"best":null' "$work/out")" \
            'serial wrong "best":null'
    done
done
bench WRONG_BY=0.01 WRONG_RANK=1 -- rs "${small[@]}" -n 2 --method ring
is "a table exits with 1, too" "$status" 1
has "and says which method is wrong" "$err" "wrong result: gemm_rs ring is off by up to"
has "and says so in its row" "$(grep '^. *ring' "$work/out")" WRONG
bench WRONG_BY=nan WRONG_RANK=0 -- ag "${small[@]}" -n 2
is "what is not a number is wrong" "$status" 1
bench WRONG_BY=0.01 -- sweep ag --m 32:64 --n 32 --k 48 --iters 1 --warmup 0 -n 2
is "a sweep exits with 1" "$status" 1
has "and says which method is wrong" "$err" "wrong result: ag_gemm serial"

# ---- when it looks ----

# One call of many is wrong: only those that are verified tell, one before the rounds and one after them.
once=(rs "${small[@]}" -n 1 --method serial)
bench WRONG_COUNT="$work/calls" -- "${once[@]}"
calls=$(cat "$work/calls")
seen=
for call in $(seq 1 "$calls"); do
    bench WRONG_BY=0.01 WRONG_CALL="$call" -- "${once[@]}"
    [ "$status" = 0 ] || seen="$seen $call"
done
is "of $calls calls two are verified" "$(wc -w <<<"$seen")" 2 || echo "# these:$seen"

# ---- figures ----

for args in "ag 384 384 384 -n 2 --link ratio:0.5 --iters 7" "rs 128 96 96 -n 3 --iters 4 --method all,auto" \
    "ar 64 64 64 -n 2 --iters 3" "bulk-rs 64 64 64 -n 2 --iters 5 --link 20MB/s,1ms"; do
    # shellcheck disable=SC2086
    bench -- $args --json
    ok "lap bench $args: the figures follow from its rounds" \
        sh -c "python3 '$here/figures.py' <'$work/out' >'$work/told'" || cat "$work/told"
done
bench WRONG_BY=0.01 WRONG_RANK=1 -- ag 128 128 128 -n 2 --iters 3 --json
ok "also of wrong results" sh -c "python3 '$here/figures.py' <'$work/out' >'$work/told'" || cat "$work/told"
finish
