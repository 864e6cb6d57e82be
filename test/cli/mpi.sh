#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The command under mpirun, and what it says when mpirun is missing or a method needs more than MPI has.
# LAP_MPIRUN holds the launcher with its options.
. "$(dirname "$0")/tap.bash"

# Runs lap on 2 ranks under mpirun and keeps what it says, as lap does.
mpi() {
    # shellcheck disable=SC2086
    $LAP_MPIRUN -n 2 "$LAP" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

lap bench ag 8 8 8 --ranks 3 --transport mpi
is "without mpirun there is no transport mpi" $status 2
has "and it says how to start it" "$err" "--transport mpi" "mpirun -n 3 lap bench"
lap run -n 2 "$LAP" bench ag 8 8 8 --transport mpi
ok "nor under lap run" test $status != 0
has "which is reported, too" "$err" "lap run started 2 ranks" "MPI knows of 1" "start them with mpirun"

for transport in mpi hosts; do
    mpi bench ag 48 32 16 --iters 2 --transport $transport --method all,auto
    is "lap bench ag over $transport" $status 0
    has "with what it can do" "$out" "2 ranks" "transport $transport" serial ring direct auto
    ok "and without what it cannot" test "${out/fused/}" = "$out"
done
mpi bench rs 48 32 16 --iters 2 --transport mpi --json
is "lap bench rs over mpi, as JSON" $status 0
has "once, by rank 0" "$out" '"transport":"mpi"'
mpi bench latency --iters 20 --transport mpi
is "lap bench latency over mpi" $status 0
mpi bench ag 48 32 16 --iters 2
is "without --transport ranks of one host use shm" $status 0
has "as ever" "$out" "transport shm" fused
mpi bench rs 48 32 16 --transport mpi --method fused
ok "a method that MPI cannot do is refused" test $status != 0
has "with those that it can do" "$err" "fused" "it can do serial, ring, pipeline"
mpi train --layer layernorm_mlp --seq 8 --heads 4 --head-dim 4 --num-replicas 2 --iters 2
is "lap train: two replicas of one rank each" $status 0
has "as mpirun started them" "$out" "data-parallel group: [0, 1]" "dp 2" "Iter 2"
mpi train --auto=no --layer layernorm_mlp --seq 8 --heads 4 --head-dim 4 --iters 2 --transport mpi
is "lap train over mpi" $status 0
has "two ranks that share the weights" "$out" "tensor-parallel group: [0, 1]" "transport mpi" "fc1_fprop   ag_gemm   ring"
mpi info
is "lap info under mpirun" $status 0
has "tells of MPI" "$out" "MPI_THREAD_MULTIPLE" hosts

# ---- ranks that go different ways ----

rank_of='rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}}'
# shellcheck disable=SC2086
for odd in 0 1; do
    timeout 50 $LAP_MPIRUN -n 2 sh -c "$rank_of"'
        if [ "$rank" = '$odd' ]; then exec "$0" bench ag 8 8 8 --transport mpi; else exec "$0" bench ag 8 8 8 --transport shm; fi' \
        "$LAP" >"$work/out" 2>"$work/err" </dev/null
    ok "--transport mpi in rank $odd only: it ends, and not well" test $? != 0 -a $? != 124
    has '... with a sentence that names the setting' "$(cat "$work/err")" \
        "rank $odd has a transport over MPI or TCP (mpi or hosts), rank $((1 - odd)) has not: expected the same --transport"
done

# ---- ranks that mpirun has started meet without a file, so that nothing is left of those that it ends ----

for transport in mpi shm; do
    # shellcheck disable=SC2086
    $LAP_MPIRUN -n 2 env -u XDG_RUNTIME_DIR TMPDIR="$work/none" "$LAP" bench ag 8 8 8 --transport $transport \
        >"$work/out" 2>"$work/err" </dev/null
    is "ranks meet without a directory, over $transport" "$? $(cat "$work/err")" '0 '
done
finish
