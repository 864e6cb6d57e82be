#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The commands of README.md and docs/ work as they are written there, from the root of a clone: each is run, with smaller matrices and fewer
# iterations, which is all that is changed. Those for GPUs and PROGRAM are only looked at, and so is mpirun without MPI.
. "$(dirname "$0")/../cli/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
# A clone: what it holds, with the build where `make` puts it.
ln -s "$LAP_SOURCE_DIR"/* "$work/"
rm -f "$work/build"
ln -s "$LAP_BUILD_DIR" "$work/build"
cd "$work" || exit 1

ran=0
while IFS= read -r line; do
    command=${line%%#*}
    case $command in
    *PROGRAM* | *'--device cuda'*) continue ;;
    *halves*) continue ;; # the method that the tutorial adds: see tutorial.sh
    mpirun*) [ "${LAP_HAVE_MPI:-0}" = 0 ] && continue ;;
    esac
    # shellcheck disable=SC2001
    short=$(sed 's/2048 4096 2048/64 96 80/; s/2048 2048 4096/64 80 96/; s/--m 64:8192 --n 4096 --k 2048/--m 64:128 --n 96 --k 80/' \
        <<<"$command")
    case $short in
    *' bench '*) short="$short --iters 1 --warmup 0" ;;
    *' train '*--save*|*' train '*--load*) short="$short --seq 32 --heads 4" ;; # one goes on from the other
    *' train '*--model*|*' train '*--config*|*' train '*--hidden*) short="${short/--iters 5/} --iters 1 --seq 32" ;;
    *' train '*) short="${short/--iters 5/} --iters 1 --seq 32 --head-dim 8" ;;
    *' tune '*) short="$short --head-dim 8" ;;
    *' check all'*) short="$short --ranks 1:2" ;;
    esac
    ran=$((ran + 1))
    bash -c "$short" >"$work/output" 2>&1 </dev/null
    ok "$command" test $? = 0 || { echo "# $short" && sed 's/^/# /' "$work/output"; }
done < <(grep -hE '^    (build/lap|mpirun) ' "$LAP_SOURCE_DIR/README.md" "$LAP_SOURCE_DIR"/docs/*.md | awk '!seen[$0]++')
ok "the pages have commands, and those that can be run here were: $ran" test "$ran" -ge 14
ok 'the picture that one of them draws is there' test -s rs.svg
for file in "$LAP_SOURCE_DIR"/examples/overlap/*.yaml; do
    name=$(basename "$file" .yaml)
    tp=${name##*_tp}
    lap train --tp "$tp" --heads "$((2 * tp))" --head-dim 4 --seq 16 --iters 1 --tp-comm-overlap-cfg "$file"
    ok "the rules of $name.yaml train a layer on $tp ranks" test "$status" = 0 || sed 's/^/# /' <<<"$err"
done
finish
