#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The command where a process may have little stack or little address space, and where a library that it loads is missing. What
# needs no GEMM works wherever a program of its size starts; the rest works, or says in a sentence what is missing.
. "$(dirname "$0")/tap.bash"
unset LAP_OPENBLAS LAP_MPI LAP_RANK LAP_SIZE

# limited OPTION KIB ARGUMENTS...: lap under that ulimit. More than 60 s count as a hang: status 124. The environment lies on the stack, and
# Linux begins it up to 8 KiB below its end, by chance: so not even `true` always starts in 16 KiB. Here the one is small, and the other off.
still=(setarch -R)
"${still[@]}" true 2>/dev/null || still=()
limited() {
    env -i PATH=/usr/bin:/bin ${OPENBLAS_NUM_THREADS:+OPENBLAS_NUM_THREADS="$OPENBLAS_NUM_THREADS"} ${TMPDIR:+TMPDIR="$TMPDIR"} \
        "${still[@]}" bash -c 'ulimit "$1" "$2" && exec timeout 60 "${@:3}"' limited "$1" "$2" "$LAP" "${@:3}" \
        >"$work/out" 2>"$work/err" </dev/null
    status=$?
    err=$(<"$work/err")
}

texts=(--version --help 'bench --help' 'train --help' 'run --help' 'check --help' 'info --help')
bench='bench ag 64 64 64 -n 2 --iters 2 --method ring'
train='train --layer layernorm_mlp --seq 8 --heads 4 --head-dim 4 --tp 2 --iters 2'

# ---- stack ----

for kib in 16 24 32 48 64 100 1000; do
    for arguments in "${texts[@]}" "$bench" "$bench --transport self" "$train" "run -n 2 $LAP $bench" info; do
        # shellcheck disable=SC2086
        limited -s $kib $arguments
        is "lap $arguments with a stack of $kib KiB" "$status$err" 0
    done
done
# With signals as a terminal would have them: who runs the tests in the background or with nohup ignores SIGINT, and so would lap.
# Again, and later, where nothing had been measured yet.
for pause in 1 5 25; do
    (ulimit -s 24 && exec env --default-signal=INT "$LAP" bench ag 64 64 64 -n 2 --iters 1000000 >"$work/out" 2>"$work/err") &
    launcher=$!
    ok 'ranks are at work with a stack of 24 KiB' until_true at_work 2
    sleep $pause
    kill -INT $launcher
    collect
    ! grep -q Interrupted "$work/out" "$work/err" || break
done
is 'an interrupt ends it there, too' "$status" 130
has '... with what it has measured' "$(<"$work/out")$(<"$work/err")" Interrupted
[ -z "$LAP_SANITIZE" ] || finish # They reserve much more address space than there is.

# ---- address space ----

for kib in 12000 20000 30000 40000 60000 100000 200000; do
    for arguments in "${texts[@]}"; do
        # shellcheck disable=SC2086
        limited -v $kib $arguments
        is "lap $arguments with $kib KiB" "$status$err" 0
    done
    for arguments in "$bench" "$bench --transport self" "$bench --device ref" "$train" "$train --transport self"; do
        # shellcheck disable=SC2086
        limited -v $kib $arguments
        case $status$err in
        0) ok "lap $arguments with $kib KiB works" true ;;
        0*'nothing is predicted: '*'Cannot allocate memory'*) ok "lap $arguments with $kib KiB works, and says what it left out" true ;;
        1*'out of memory: '* | 1*'cannot start the thread'*) ok "lap $arguments with $kib KiB says what is missing" true ;;
        *) ok "lap $arguments with $kib KiB works, or says what is missing: status $status" false ;;
        esac
    done
done
OPENBLAS_NUM_THREADS=1 limited -v 100000 bench ag 64 64 64 -n 2
has 'the sentence names what OpenBLAS needs, and the limit' "$err" 'OpenBLAS with 1 thread may need 176 MiB' \
    'ulimit -v is 100000 KiB'
# One rank of several threads, which multiply at once or in turns.
for kib in 400000 1000000; do
    OPENBLAS_NUM_THREADS=1 limited -v $kib bench ag 256 256 256 -n 4 --iters 3 --transport self --method ring
    is "four threads multiply with $kib KiB" "$status$err" 0
done

# ---- libraries that are not there ----

LAP_OPENBLAS=/nowhere/blas.so lap bench ag 8 8 8 -n 2
is 'without OpenBLAS there is no bench on the CPU' $status 1
has '... and it says which file is missing' "$err" "LAP_OPENBLAS is '/nowhere/blas.so', expected the library OpenBLAS"
LAP_OPENBLAS=/nowhere/blas.so lap bench ag 8 8 8 -n 2 --device ref --iters 1
is '... but there is one on ref' "$status" 0
LAP_OPENBLAS=/nowhere/blas.so LAP_MPI=/nowhere/mpi.so lap info
is 'lap info works without either' $status 0
has '... and says so' "$out" "runs with    none: LAP_OPENBLAS is '/nowhere/blas.so'"
if [ "$LAP_HAVE_MPI" = 1 ]; then
    has '... of MPI, too' "$out" "MPI          cannot run here: LAP_MPI is '/nowhere/mpi.so', expected the library MPI"
    LAP_MPI=/nowhere/mpi.so LAP_RANK=0 LAP_SIZE=1 lap bench ag 8 8 8 --transport mpi
    is 'without MPI there is no world over it' $status 1
    has '... and it says which file is missing' "$err" "LAP_MPI is '/nowhere/mpi.so', expected the library MPI"
fi
finish
