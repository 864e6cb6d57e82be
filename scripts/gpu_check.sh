#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu_check.sh [BUILD]: a first look at everything on a machine with an NVIDIA GPU, in eight minutes at most. Builds,
# runs the tests of devices, the suites of operators with ranks that are processes and share the GPU, then threads, and
# a few measurements; prints a table last. Logs stay in BUILD/gpu-check; those of what failed, eight at most, are copied
# to OUT if that is set. LIMIT (seconds of one test), BUDGET (seconds of all) and ONLY (a pattern) may be set.
set -u
cd "$(dirname "$0")/.." || exit
build=${1:-build-gpu}
logs=$build/gpu-check
limit=${LIMIT:-60}
end=$((SECONDS + ${BUDGET:-470}))
only=${ONLY:-.}

mkdir -p "$logs"
if ! { cmake -S . -B "$build" -G Ninja && ninja -C "$build"; } >"$logs/build.log" 2>&1; then
    tail -40 "$logs/build.log"
    echo "gpu_check: the build failed" >&2
    exit 1
fi
"$build/lap" info | sed -n '/^Devices/,/^Types/p'

table=
failed=0
kept=0
keep() { # log
    [ -n "${OUT:-}" ] && [ $kept -lt 8 ] && cp "$1" "$OUT/" && kept=$((kept + 1))
}

check() { # name command...
    local name=$1 log begin status ms right wrong verdict left=$((end - SECONDS))
    shift
    [[ $name =~ $only ]] || return 0
    if [ $left -lt 3 ]; then
        failed=1
        table+=$(printf '%-24s not run: no time is left' "$name")$'\n'
        return 0
    fi
    log=$logs/$name.log
    begin=$(date +%s%N)
    timeout -k 3 $((left < limit ? left : limit)) "$@" >"$log" 2>&1
    status=$?
    ms=$((($(date +%s%N) - begin) / 1000000))
    right=$(grep -ac '\(^\|\] \)ok' "$log")
    wrong=$(grep -ac '\(^\|\] \)not ok' "$log")
    case $status in
    0) verdict=ok ;;
    124 | 137) verdict=HUNG ;;
    139) verdict=SEGFAULT ;;
    *) verdict="FAILED $status" ;;
    esac
    table+=$(printf '%-24s %-10s %6d ok %5d not ok %7d ms' "$name" "$verdict" "$right" "$wrong" $ms)$'\n'
    [ $status = 0 ] && return 0
    failed=1
    keep "$log"
    echo "--- $name: $verdict"
    grep -a -A2 '\(^\|\] \)not ok' "$log" | head -8 | cut -c -240
    echo "..."
    tail -3 "$log" | cut -c -240
}

bench() { # operation M N K ranks
    local name=bench-$1-$2-n$5
    [[ $name =~ $only ]] || return 0
    local limit=30
    check "$name" "$build/lap" bench "$1" "$2" "$3" "$4" -n "$5" --device cuda --dtype bf16 \
        --method all,auto --iters 5 --timeout 10
    grep -a 'M N K\|×\|±\|picked' "$logs/$name.log" | cut -c -120
}

test=$build/test
for name in stream gemm finish; do
    check "device-$name" "$test/device/$name"
done
suite() { # name ranks program arguments...
    local name=$1 ranks=$2 program=$3
    shift 3
    check "$name" "$build/lap" run -n "$ranks" --gpu-share "$test/overlap/$program" --device cuda "$@"
}
suite conformance-n2 2 conformance
suite conformance-n1 1 conformance
suite conformance-n4 4 conformance
suite conformance-bf16-n2 2 conformance --dtype bfloat16
suite flavours-n2 2 flavours
check conformance-threads2 "$test/overlap/conformance" --device cuda --threads 2
for ranks in 2 4; do
    for operation in ag rs; do
        bench $operation 4096 8192 4096 $ranks
        bench $operation 8192 16384 4096 $ranks
    done
done

echo
echo "$table"
nvidia-smi --query-gpu=name,memory.used,memory.total --format=csv,noheader
exit $failed
