#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu_check.sh [BUILD]: a first look at everything on a machine with an NVIDIA GPU. Builds, starts an MPS daemon of its
# own, runs the tests of devices, then the suites of operators with several ranks, each with a time limit, and prints a
# table last. Logs stay in BUILD/gpu-check. RANKS, LIMIT (seconds of a test) and ONLY (a pattern) may be set.
set -u
cd "$(dirname "$0")/.."
build=${1:-build-gpu}
logs=$build/gpu-check
ranks=${RANKS:-1 2 4}
limit=${LIMIT:-100}
only=${ONLY:-.}

cmake -S . -B "$build" -G Ninja >"$build.log" 2>&1 && ninja -C "$build" >>"$build.log" 2>&1
if [ $? != 0 ]; then
    tail -40 "$build.log"
    echo "gpu_check: the build failed" >&2
    exit 1
fi
rm -f "$build.log"
mkdir -p "$logs"
"$build/lap" info | sed -n '/^Devices/,/^Types/p'

mps=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$mps/pipe CUDA_MPS_LOG_DIRECTORY=$mps/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
stop_mps() {
    echo quit | nvidia-cuda-mps-control >/dev/null 2>&1
    rm -rf "$mps"
}
trap stop_mps EXIT
nvidia-cuda-mps-control -d || echo "gpu_check: no MPS: ranks take turns on the GPU" >&2

table=
failed=0
check() { # name command...
    local name=$1 log begin status
    shift
    [[ $name =~ $only ]] || return 0
    log=$logs/$name.log
    begin=$(date +%s%N)
    timeout -k 5 "$limit" "$@" >"$log" 2>&1
    status=$?
    local ms=$((($(date +%s%N) - begin) / 1000000))
    local wrong
    wrong=$(grep -ac '\(^\|\] \)not ok' "$log")
    table+=$(printf '%-34s %-8s %5d not ok %7d ms' "$name" "$([ $status = 0 ] && echo ok || echo "FAILED $status")" "$wrong" $ms)$'\n'
    if [ $status != 0 ]; then
        failed=1
        echo "--- $name: status $status"
        grep -a -A2 '\(^\|\] \)not ok' "$log" | head -${LINES_OF_A_FAILURE:-12}
        tail -3 "$log"
    fi
}

# What `lap run --gpu-share` does, by hand: rank r of n takes part r of n of the multiprocessors.
share='export LAP_GPU_PART=$LAP_RANK/$LAP_SIZE; exec "$@"'

test=$build/test
check device-stream "$test/device/stream"
check device-gemm "$test/device/gemm"
check device-finish "$test/device/finish"
export CUDA_DEVICE_MAX_CONNECTIONS=32 # for ranks that are threads: their streams share the queues of one process
for p in 1 2; do
    check "conformance-threads$p" "$test/overlap/conformance" --device cuda --threads $p
done
unset CUDA_DEVICE_MAX_CONNECTIONS
for p in $ranks; do
    check "conformance-n$p" "$build/lap" run -n "$p" "$test/overlap/conformance" --device cuda
    check "conformance-bf16-n$p" "$build/lap" run -n "$p" bash -c "$share" - "$test/overlap/conformance" --device cuda --dtype bfloat16
    check "flavours-n$p" "$build/lap" run -n "$p" "$test/overlap/flavours" --device cuda
done
check link-n2 "$build/lap" run -n 2 "$test/overlap/conformance" --device cuda --link 10
LAP_DEVICE=cuda check misuse "$test/overlap/misuse"
for fault in exit kill; do
    LAP_DEVICE=cuda check "faults-$fault" bash test/overlap/faults.sh "$build/lap" "$test/overlap/faults" $fault
done

echo
echo "$table"
nvidia-smi --query-gpu=name,memory.used,memory.total --format=csv,noheader
exit $failed
