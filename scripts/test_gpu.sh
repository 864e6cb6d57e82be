#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test_gpu.sh BUILD test-gpu: builds, and runs the tests that need a GPU. BUILD was configured with LAP_TEST_GPU=ON.
# test_gpu.sh BUILD sanitize-gpu: a part of them under compute-sanitizer: memcheck, initcheck and racecheck.
# Without a GPU both fail: a check that was left out is not one that was passed.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 target=$2

cmake --build "$build" --target lap_cli
if ! "$build/lap" info --json | grep -q '"gpu":{"gpus":[1-9]'; then
    why=$("$build/lap" info | sed -n 's/^ *why none *//p')
    echo "$target: there is no GPU to test on: ${why:-lap info shows none}" >&2
    exit 1
fi
cmake --build "$build"
label=gpu
if [ "$target" = sanitize-gpu ]; then
    label=gpu-sanitizer
    if ! ctest --test-dir "$build" -N -L "^$label\$" | grep -q 'Test *#'; then
        echo "$target: compute-sanitizer, which comes with the CUDA toolkit, is not in PATH" >&2
        exit 1
    fi
fi
exec ctest --test-dir "$build" -L "^$label\$" --output-on-failure --no-tests=error
