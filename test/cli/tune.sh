#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lap tune`: lap train reads the file that it writes; the file has the fastest rules of those timed at the end; a search that was
# interrupted goes on where it was.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
layer='--tp 2 --heads 2 --head-dim 8 --seq 16 --no-predict'
mlp="--layer layernorm_mlp $layer"

# shellcheck disable=SC2086
{
    lap tune -o "$work/rules.yaml" ${layer% *} --rounds 3 --json
    is 'a search ends well, and says nothing on standard error' "$status$err" 0
    verdict=$(python3 - "$work/out" 2>&1 <<'END'
import json, sys
end = json.load(open(sys.argv[1]))
times = {way: end[way + "_ms"] for way in ("tuned", "defaults", "auto", "serial")}
assert times[end["written"]] <= min(times.values()) * 1.0102, (end["written"], times)
units = ["qkv_fprop", "proj_fprop", "fc1_fprop", "fc2_fprop", "fc2_dgrad", "fc1_dgrad, fc1_wgrad", "proj_dgrad",
         "qkv_dgrad, qkv_wgrad"]
assert list(end["gemms"]) == units, list(end["gemms"])
assert all(unit["ratio"] < 1 for unit in end["gemms"].values() if unit["changed"]), end["gemms"]
END
)
    is 'the file has the fastest rules of the end, and what was changed was faster' "$verdict" ''
    is 'it has all GEMMs that communicate' "$(grep -c '_fprop:$\|_dgrad:$' "$work/rules.yaml")" 8
    ok '... and nothing is left of what was found so far' test ! -e "$work/rules.yaml.part"
    lap train $layer --iters 1 --quiet --tp-comm-overlap-cfg "$work/rules.yaml"
    is 'lap train reads it, and finds nothing in it that has no effect' "$status$err" 0

    lap tune -o "$work/mlp.yaml" $mlp --rounds 3 --quiet
    is 'an MLP is tuned' "$status$err" 0
    is '... and its file names no GEMM of attention' "$(grep -c '^qkv\|^proj' "$work/mlp.yaml")" 0

    "$LAP" tune -o "$work/long.yaml" $mlp --rounds 100 >"$work/out" 2>&1 &
    pid=$!
    for ((i = 0; i < 300; i++)); do
        [ -s "$work/long.yaml.part" ] && break
        sleep 0.1
    done
    kill -TERM $pid # bash ignores SIGINT in the background
    wait $pid
    is 'a search that is interrupted says so' $? 143
    found=$(($(wc -l <"$work/long.yaml.part") - 1))
    ok '... and keeps what it has found' test $found -ge 1
    ok '... and the file is not there yet' test ! -e "$work/long.yaml"
    sed -i 's/rounds 100$/rounds 3/' "$work/long.yaml.part"
    sed 's/seq 16/seq 17/' "$work/long.yaml.part" >"$work/other.yaml.part"
    lap tune -o "$work/long.yaml" $mlp --rounds 3
    is 'the same command goes on, and says so' "$status $err" "0 lap tune: goes on after $found decisions: $work/long.yaml.part"
    ok '... until the file is there' test -s "$work/long.yaml" -a ! -e "$work/long.yaml.part"
    lap tune -o "$work/other.yaml" $mlp --rounds 3
    is 'what was found for another layer is not taken' "$status$err" 0
}

# refused SENTENCE ARGUMENT...
refused() {
    local sentence=$1
    shift
    lap tune "$@"
    is "refused: $*" "$status ${err%%$'\n'*}" "2 lap tune: $sentence"
}
only='expected 2 or more tensor-parallel ranks, and no others: they are what is tuned'
refused '--output is missing, expected the file to write' --tp 2
refused "--tp is 1 of 1 ranks, $only" -o "$work/x" --tp 1
refused "--tp is 2 of 4 ranks, $only" -o "$work/x" --tp 2 --num-replicas 2
lap tune -o "$work/x" --tp 2 --rounds 2
has 'two rounds are too few' "$status $err" '2 ' "--rounds is '2'" '3 to 1000'
lap tune -o "$work/none/x.yaml" --tp 2
has 'a folder that is not there' "$err" "cannot write the rules $work/none/x.yaml: No such file or directory"
finish
