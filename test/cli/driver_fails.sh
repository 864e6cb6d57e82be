#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Calls of the NVIDIA driver that fail, over a driver that is a fake: what is said of them, and that nothing is given back
# twice after them, or not at all. FAKE_CUDA is the folder of the fake.
. "$(dirname "$0")/tap.bash"

export LD_LIBRARY_PATH=$FAKE_CUDA LAP_GPU_TUNE=0

# fails CALL: the call fails in all ranks of a benchmark.
fails() {
    FAKE_FAILS=$1 lap bench rs 48 32 16 --device cuda --ranks 2 --method ring --iters 1 --timeout 5
    is "$1 fails: status" "$status" 1
}

# Memory that others map by a file: the fake tells what is left of it, and what is released twice.
export LAP_CUDA_MEMORY=vmm
for call in cuMemCreate cuMemAddressReserve cuMemMap cuMemSetAccess cuMemExportToShareableHandle \
    cuMemImportFromShareableHandle; do
    fails $call
    has '... which is named' "$err" "$call"
    is '... and nothing is left, or released twice' "$(grep 'not ok' <<<"$err")" ''
done
unset LAP_CUDA_MEMORY

# What is said of a call: what it is, and what the driver says.
LAP_GPU_PART=0/2 fails cuGreenCtxCreate
has '... and is no system call' "$err" \
    'system error: cuGreenCtxCreate failed: the NVIDIA driver says CUDA_ERROR_INVALID_VALUE (fake error)'

# What a kernel has done before is not said of the memory that is cleared next.
fails cuStreamQuery:700
has '... and is reported as what was before' "$err" \
    'system error: what the GPU was given before failed: the NVIDIA driver says CUDA_ERROR_ILLEGAL_ADDRESS'

# A driver without memory, be it the GPU's or the host's: what is free, where there is a context to ask in. 2 is
# CUDA_ERROR_OUT_OF_MEMORY, 3 is CUBLAS_STATUS_ALLOC_FAILED.
export FAKE_MEMORY=100
free=', with [0-9]+ of 104857600 bytes of the GPU free$'
for call in cuMemHostAlloc cuLibraryLoadData cuFuncLoad cuStreamCreateWithPriority cuGraphInstantiateWithFlags; do
    fails $call:2
    ok '... and is reported with what is free' grep -qE \
        ": out of memory: (rank [01]: )?${call%WithFlags} failed: .*OUT_OF_MEMORY \(out of memory\)$free" <<<"$err"
done
fails cublasLtCreate:3
ok '... and is reported with what is free' grep -qE \
    ": out of memory: (rank [01]: )?cublasLtCreate failed: cuBLASLt says a fake failure$free" <<<"$err"
fails cuDevicePrimaryCtxRetain:2
ok '... before there is a context: nothing is printed of that' grep -qE \
    ': out of memory: (rank [01]: )?cuDevicePrimaryCtxRetain failed: .*OUT_OF_MEMORY \(out of memory\)$' <<<"$err"
finish
