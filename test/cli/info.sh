#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lap info: the facts that must be there, as text and as JSON, and nothing left.
. "$(dirname "$0")/tap.bash"
unset XDG_RUNTIME_DIR
export TMPDIR=$work/tmp
mkdir "$TMPDIR"

lap info
is 'status 0, and nothing printed' "$status$err" 0
has 'what was built in' "$out" "Lapstrake ${LAP_VERSION:-0.1.0}" compiler OpenBLAS MPI libyaml CUDA NCCL
has 'devices and transports' "$out" Devices '  cpu ' '  ref ' Transports '  shm '
has 'types of elements' "$out" '  float32 ' '  float16 ' '  bfloat16 ' 'float8_e4m3  1 byte, largest 448' \
    'float8_e5m2  1 byte, largest 57344'
has 'methods' "$out" 'AG+GEMM' 'GEMM+RS' 'bulk AG' 'bulk RS' 'external AG' \
    '  serial ' '  ring '
has 'what the machine offers' "$out" "  cores        $(nproc)" memory memfd futex pidfd \
    "  directory    $TMPDIR" "$(uname -r)"
has 'GPUs, or why there are none' "$out" 'GPUs of NVIDIA' '  GPUs ' '  IPC ' '  VMM ' \
    '  MPS ' '  NCCL '
is 'no line is longer than a wide page' "$(awk 'length > 120' "$work/out")" ''
is 'the directory that was tried is gone' "$(ls -A "$TMPDIR")" ''

# The bits of OpenBLAS's kernels for AVX2 depend on how a GEMM is cut, those for AVX do not.
kernels()
{
    awk '/runs with/ {print $(NF - 1)}' <<<"$out"
}
if grep -qw avx2 /proc/cpuinfo; then
    OPENBLAS_CORETYPE=Haswell lap info
    is "kernels whose bits depend on the schedule are not used" "$status $(kernels)" '0 Sandybridge'
    OPENBLAS_CORETYPE=Haswell LAP_BLAS_EVEN=0 lap info
    is '... but with LAP_BLAS_EVEN=0' "$status $(kernels)" '0 Haswell'
fi
LAP_BLAS_EVEN=yes lap info
has 'LAP_BLAS_EVEN that is no number' "$out" "LAP_BLAS_EVEN is 'yes', expected a number from 0 to 1"

lap info --json
is 'JSON: status 0, one line' "$status$err $(wc -l <"$work/out")" '0 1'
ok 'JSON: an object with the facts' python3 -c '
import datetime, json, os, socket, sys
info = json.load(open(sys.argv[1]))
then = datetime.datetime.strptime(info["date"], "%Y-%m-%dT%H:%M:%S%z")
assert info["host"] == socket.gethostname() and info["commit"], info
assert abs((datetime.datetime.now(datetime.timezone.utc) - then).total_seconds()) < 300, info["date"]
machine = info["machine"]
assert info["version"] and info["build"]["compiler"] and info["build"]["openblas"]
assert set(info["devices"]) >= {"cpu", "ref"} and "shm" in info["transports"]
assert set(info["dtypes"]) == {"float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2"}
assert "ring" in info["ag_gemm"] and "ring" in info["gemm_rs"]
assert "ring" in info["bulk_ag"] and "direct" in info["bulk_rs"] and "fused" in info["external_ag"]
assert machine["cores"] == len(os.sched_getaffinity(0)) and machine["memory_gib"] > 0
assert machine["memfd"] is True and machine["futex"] is True
gpu = info["gpu"]
assert gpu["gpus"] > 0 and gpu["gpu_0"] or gpu["gpus"] == 0 and gpu["ipc"] == "no: " + gpu["why_none"]
for able in "ipc", "vmm", "mps", "nccl", "cublasmp":
    assert gpu[able].split()[0] in ("yes,", "yes:", "no:")
' "$work/out"

if [ "$LAP_HAVE_CUDA" = 1 ]; then # over the fakes, which are there without a GPU
    fake=$LAP_BUILD_DIR/test/fake
    LD_LIBRARY_PATH=$fake FAKE_CUBLASMP_VERSION=700 lap info
    has 'a cuBLASMp that is too old' "$out" '  cuBLASMp ' 'no: cuBLASMp here is 0.7.0, expected 0.8 or later'
    LD_LIBRARY_PATH=$fake LAP_CUBLASMP=/nowhere/libcublasmp.so.0 lap info --json
    has 'one that is not where LAP_CUBLASMP says' "$out" '"cublasmp":"no: LAP_CUBLASMP is '
    LD_LIBRARY_PATH=$fake LAP_NCCL=/nowhere/libnccl.so.2 lap info
    has 'one without NCCL' "$out" '  cuBLASMp ' "no: LAP_NCCL is '/nowhere/libnccl.so.2'"
fi
finish
