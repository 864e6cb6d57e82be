#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu_check.sh [BUILD]: the tests of a machine with an NVIDIA GPU for somebody with little time on it. Builds, runs the
# tests of make test-gpu one by one, goes on after failures, and prints a short table last. Logs stay in BUILD/gpu-check;
# those of what failed, twelve at most, are copied to OUT if that is set, and so is the table.
# Settings: LABEL (gpu, or gpu-sanitizer), ONLY and NOT (patterns of names), LIMIT (seconds of one test), BUDGET (seconds of
# all; what does not fit is not run, and counts as failed), BENCH=1 (some measurements at the end).
set -u
cd "$(dirname "$0")/.." || exit
build=${1:-build-gpu}
logs=$build/gpu-check
label=${LABEL:-gpu}
limit=${LIMIT:-200}
end=$((SECONDS + ${BUDGET:-540}))
only=${ONLY:-.} not=${NOT:-^$}

mkdir -p "$logs"
if ! { cmake -S . -B "$build" -G Ninja -DLAP_TEST_GPU=ON && ninja -C "$build"; } >"$logs/build.log" 2>&1; then
    tail -40 "$logs/build.log"
    echo "gpu_check: the build failed" >&2
    exit 1
fi
echo "built in $SECONDS s"
"$build/lap" info | sed -n '/^Devices/,/^Types/p'

table=
failed=0
kept=0
row() { # name verdict right wrong ms
    table+=$(printf '%-44s %-9s %6s ok %4s not ok %7s ms' "$@")$'\n'
    [ "$2" = ok ] || failed=$((failed + 1))
}

keep() { # log
    if [ -n "${OUT:-}" ] && [ $kept -lt 12 ]; then
        cp "$1" "$OUT/"
        kept=$((kept + 1))
    fi
}

check() { # name command...
    local name=$1 log begin status ms right wrong verdict left=$((end - SECONDS))
    shift
    log=$logs/${name//\//-}.log
    if [ $left -lt 5 ]; then
        row "$name" 'NOT RUN' - - -
        return
    fi
    begin=$(date +%s%N)
    timeout -k 5 $((left < limit ? left : limit)) "$@" >"$log" 2>&1 </dev/null
    status=$?
    ms=$((($(date +%s%N) - begin) / 1000000))
    right=$(grep -ac '^\([0-9]*: \)\?\(\[ *[0-9]*\] \)\?ok ' "$log")
    wrong=$(grep -ac '^\([0-9]*: \)\?\(\[ *[0-9]*\] \)\?not ok ' "$log")
    case $status in
    0) verdict=ok ;;
    124 | 137) verdict=HUNG ;;
    *) verdict=FAILED && grep -aq '\*\*\*Timeout' "$log" && verdict=HUNG ;;
    esac
    row "$name" "$verdict" "$right" "$wrong" $ms
    echo "$name: $verdict, $((ms / 1000)) s"
    [ $status = 0 ] && return
    keep "$log"
    grep -a -A2 'not ok \|SegFault\|=========.*[Ee]rror\|terminate' "$log" | head -12 | cut -c -220
    tail -4 "$log" | cut -c -220
}

for name in $(ctest --test-dir "$build" -N -L "^$label\$" | sed -n 's/^ *Test *#[0-9]*: //p'); do
    [[ $name =~ $only ]] && ! [[ $name =~ $not ]] || continue
    check "$name" ctest --test-dir "$build" -V --no-tests=error -R "^${name//./\\.}\$"
done

bench() { # operation M N K ranks
    local name=bench-$1-$2-n$5
    check "$name" "$build/lap" bench "$1" "$2" "$3" "$4" -n "$5" --device cuda --dtype bf16 --method all,auto \
        --iters 5 --timeout 10
    grep -a 'M N K\|×\|±\|picked' "$logs/$name.log" | cut -c -120
}
if [ "${BENCH:-0}" = 1 ]; then
    for ranks in 2 4; do
        bench ag 4096 8192 4096 $ranks
        bench rs 4096 8192 4096 $ranks
    done
fi

# What ranks and daemons of ours have left: nothing, or somebody else is here.
for _ in {1..10}; do # an MPS daemon that was told to end takes a moment
    left=$(pgrep -l 'nvidia-cuda-mps|lap-mps-guard|lap-place-guard' 2>/dev/null) || break
    sleep 0.5
done
[ -n "$left" ] && row "left: ${left//$'\n'/, }" LEFT - - -
table+="$failed failed, $SECONDS s; $(nvidia-smi --query-gpu=name,memory.used,memory.total --format=csv,noheader 2>/dev/null)"
echo
echo "$table"
[ -n "${OUT:-}" ] && echo "$table" >"$OUT/table.txt"
[ $failed = 0 ]
