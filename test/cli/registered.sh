#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Which tests a build has: those that need a GPU only where nvidia-smi lists one, or where they are asked for. nvidia-smi is
# a script here.
. "$(dirname "$0")/tap.bash"
build=$work/build
mkdir "$work/bin"
export PATH=$work/bin:$PATH

# nvidia_smi COMMAND: what it does from now on.
nvidia_smi() {
    printf '#!/bin/sh\n%s\n' "$1" >"$work/bin/nvidia-smi"
    chmod +x "$work/bin/nvidia-smi"
}

# registered OPTION...: configures with it; leaves the number of tests with and without the label gpu in $gpu and $others.
registered() {
    last='the configuration'
    cmake -S "$LAP_SOURCE_DIR" -B "$build" -G Ninja "$@" >"$work/out" 2>"$work/err" || { ok "configure $*" false; finish; }
    gpu=$(ctest --test-dir "$build" -N -L '^gpu' | sed -n 's/^Total Tests: //p')
    others=$(ctest --test-dir "$build" -N -LE '^gpu' | sed -n 's/^Total Tests: //p')
}

nvidia_smi 'echo "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver." && exit 9'
registered
is 'a driver that fails: no test that needs a GPU' "$gpu" 0
plain=$others
ok "... but $plain others" test "$plain" -gt 100
ok '... none of which is registered to be skipped' test -z "$(grep -r 'exit 77' "$build" --include=CTestTestfile.cmake)"
nvidia_smi 'echo "No devices found."'
registered
is 'a driver without a GPU: none' "$gpu $others" "0 $plain"
nvidia_smi 'echo "GPU 0: NVIDIA H200 (UUID: GPU-1)"'
registered
if grep -q 'LAP_HAVE_CUDA 1' "$build/generated/lap_config.h"; then
    ok "a GPU: $gpu tests need it" test "$gpu" -gt 50
    is '... none of them under compute-sanitizer' "$(ctest --test-dir "$build" -N -L gpu-san | sed -n 's/^Total.*: //p')" 0
else
    is 'a GPU, but a build that cannot use it: none' "$gpu" 0
fi
is '... and the others are as before' "$others" "$plain"
registered -DLAP_TEST_GPU=OFF
is 'LAP_TEST_GPU=OFF: none' "$gpu $others" "0 $plain"
rm "$work/bin/nvidia-smi"
registered -DLAP_TEST_GPU=ON
ok "LAP_TEST_GPU=ON, and no driver: $gpu tests" test "$gpu" -gt 50
finish
