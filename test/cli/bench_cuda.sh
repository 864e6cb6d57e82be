#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lap bench` on the device cuda, over a driver that is a fake: calls in the order of a stream, the choice by trial, and an
# emulated link. FAKE_CUDA is the folder of the fake; its times mean nothing.
. "$(dirname "$0")/tap.bash"

export LD_LIBRARY_PATH=$FAKE_CUDA

# right NAME: every method that was measured gave right results, and there are that many.
right() {
    is "$1: status" "$status" 0
    is "$1: methods that are right" "$(grep -o '"ok":true' <<<"$out" | wc -l)" "$2"
    ok "$1: none is wrong" test -z "$(grep -o '"ok":false' <<<"$out")"
}

lap bench ag 48 32 16 --device cuda --ranks 2 --method all,auto --iters 1 --warmup 1 --json
right 'AG' 6
has 'calls go in a row, in the order of a stream, and the host is timed' "$out" '"calls":10' '"host_us":'
ok 'auto has called the methods: it knows their times' \
    test "$(grep -o '"predicted_ms":[0-9]' <<<"$out" | wc -l)" -ge 4
ok '... and says what it picked' grep -q '"method":"auto",.*"picked":"' <<<"$out"

lap bench rs 48 32 16 --device cuda --ranks 3 --method all,auto --iters 1 --warmup 1 --calls 3 --link 1GB/s --json
right 'RS over a link' 7
has 'the number of calls is as asked' "$out" '"calls":3'
for sizes in 'ag 1024 8192 8' 'rs 1024 64 64'; do # some of the own rows are set apart
    # shellcheck disable=SC2086
    lap bench $sizes --device cuda --ranks 2 --dtype bf16 --method fused --iters 1 --warmup 0 --calls 2 --json
    right "the own rows of $sizes, first and last" 1
done

FAKE_NO_SPREAD=1 lap bench ag 48 32 16 --device cuda --ranks 2 --method serial,oneshot --iters 1 --warmup 0
has 'a method that sends nothing is wrong, though the one before it has left all in the buffer' "$status $err" \
    '1 lap bench' 'wrong result: ag_gemm oneshot'
ok '... and that one is right' test -z "$(grep 'wrong result: ag_gemm serial' <<<"$err")"

lap bench ag 48 32 16 --ranks 2 --method ring --iters 1 --calls 2
has 'on the CPU, too, several calls make a round' "$out" 'round of 2 calls'
begin=$EPOCHREALTIME
lap bench ag 48 32 16 --ranks 2 --method ring --iters 1 --warmup 0 --rest 200
end=$EPOCHREALTIME
has 'it pauses before each timed part' "$out" 'A pause of 200 ms'
ok '... four times' [ $((10#${end/[.,]/} - 10#${begin/[.,]/})) -ge 800000 ]
lap bench ag 48 32 16 --ranks 2 --transport cuda_ipc
is 'a transport of another device: status and sentence' "$status $err" \
    '2 lap bench: --transport cuda_ipc cannot reach the memory of the device cpu'
LAP_TRANSPORT=self lap bench ag 48 32 16 --ranks 2 --device cuda
is '... of the environment' "$status $err" '2 lap bench: LAP_TRANSPORT=self cannot reach the memory of --device cuda'
LAP_DEVICE=cuda lap bench ag 48 32 16 --ranks 2 --transport shm
is '... and a device of the environment' "$status $err" \
    '2 lap bench: --transport shm cannot reach the memory of LAP_DEVICE=cuda'
# What all ranks would stumble over is reported once, before any starts.
told() { is "$1: status, and one sentence" "$status:$(wc -l <"$work/err"):$out" '2:1:'; }
for share in auto off; do
    LAP_GPU=nonsense lap bench ag 48 32 16 --device cuda --ranks 2 --gpu-share=$share
    told "LAP_GPU, --gpu-share=$share"
    is '... which names it' "$err" "lap bench: device cuda: LAP_GPU is 'nonsense', expected 0 to 0"
done
for wrong in 'LAP_GPU_PART=2/2 i/n with i from 0 to n - 1' 'LAP_GPU_TUNE=no 0 or 1' 'LAP_GPU_GELU=slow exact or fast'; do
    export "${wrong%% *}"
    lap bench ag 48 32 16 --device cuda --ranks 2
    told "${wrong%% *}"
    has '... which names it' "$err" "${wrong%%=*} is '" "expected ${wrong#* }"
    unset "${wrong%%=*}"
done
FAKE_GPUS=0 lap bench ag 48 32 16 --device cuda --ranks 2
told 'no GPU'
FAKE_CAPABILITY=75 lap bench ag 48 32 16 --device cuda --ranks 2
told 'a GPU that is too old'
has '... which says so' "$err" 'GPU 0 has compute capability 7.5, expected 8.0 or later'
FAKE_CAPABILITY=80 lap bench ag 48 32 16 --device cuda --ranks 2 --dtype e5m2
told 'a GPU that is too old for FP8'
has '... which says so' "$err" 'device cuda: products of float8_e5m2 need compute capability 8.9 or later; GPU 0 has 8.0'
FAKE_CAPABILITY=80 lap bench rs 48 32 16 --device cuda --ranks 2 --dtype bf16 --wire-dtype e5m2 --method ring --iters 1
is '... but not for what travels' "$status" 0
FAKE_CAPABILITY=89 lap bench ag 48 32 16 --device cuda --ranks 2 --dtype e5m2 --method ring --iters 1
is '... and one that is not' "$status" 0
FAKE_MEMORY=1 lap bench ag 1024 512 256 --device cuda --ranks 2
told 'memory that the GPU does not have'
# 2 ranks with [1024, 256] for a, [256, 256] for b and [1024, 256] for d
has '... which says how much' "$err" 'at least 0.00439 GiB of memory for 2 ranks on GPU 0 (Fake GPU), which has 0.000977 GiB'
LAP_CUBLASLT=/nowhere/lt.so lap bench ag 48 32 16 --device cuda --ranks 2
told 'a cuBLASLt that is not there'
has '... which names it' "$err" "LAP_CUBLASLT is '/nowhere/lt.so', expected the library cuBLASLt"
LAP_CUDA_MEMORY=nonsense lap bench ag 48 32 16 --device cuda --ranks 2
told 'a kind of memory that is not known'
has '... which names it' "$err" "LAP_CUDA_MEMORY is 'nonsense', expected ipc or vmm"
LAP_CUBLASLT=$FAKE_CUDA/libcublasLt.so.13 lap bench ag 48 32 16 --device cuda --ranks 2 --method ring --iters 1
is 'one that is there' "$status" 0
if [ -e "$FAKE_CUDA/libnccl.so.2" ]; then
    export FAKE_GPUS=2
    LAP_NCCL=/nowhere/nccl.so lap bench ag 48 32 16 --device cuda --ranks 2 --transport nccl
    told 'an NCCL that is not there'
    has '... which names it' "$err" "LAP_NCCL is '/nowhere/nccl.so', expected the library NCCL"
    LAP_NCCL=/nowhere/nccl.so lap info
    has '... and lap info says so' "$out" "NCCL         no: LAP_NCCL is '/nowhere/nccl.so'"
    LAP_NCCL=$FAKE_CUDA/libnccl.so.2 lap bench ag 48 32 16 --device cuda --ranks 2 --transport nccl --method ring --iters 1
    is 'one that is there' "$status" 0
    FAKE_NCCL_VERSION=22809 lap bench ag 48 32 16 --device cuda --ranks 2 --transport nccl
    told 'an NCCL that is too old'
    has '... with what there is, and what is needed' "$err" 'NCCL here is 2.28.9, expected 2.30 or later' cuda_ipc
    FAKE_NCCL_VERSION=22809 lap info
    has '... and lap info says so' "$out" 'NCCL         no: NCCL here is 2.28.9, expected 2.30'
    lap info
    has 'lap info: which NCCL there is, and what it offers' "$out" 'NCCL         yes: 2.32.3, with windows and one-sided puts'
    FAKE_NO_WINDOWS=1 lap bench ag 48 32 16 --device cuda --ranks 2 --transport nccl --method ring --iters 1
    has 'GPUs for which NCCL has no symmetric memory: what to use instead' "$status $err" '1 lap bench' 'no symmetric memory' 'cuda_ipc'
    lap bench ag 48 32 16 --device cuda --ranks 2 --transport nccl --method all,cublasmp:algorithm=split_p2p --iters 1 --json
    ok 'cublasmp is among all methods, and has its knob' grep -q '"method":"cublasmp:algorithm=split_p2p"' "$work/out"
    ok '... and without it' grep -q '"method":"cublasmp",' "$work/out"
    ok '... and is right' test "$status $(grep -o '"ok":false' "$work/out" | wc -l)" = '0 0'
    LAP_GPU_PART=1/8 lap bench ag 48 32 16 --device cuda --ranks 2 --gpu-share=off --transport nccl --method cublasmp --iters 1
    is '... also on one of 8 parts of a GPU: the kernels of all have room there' "$status $err" '0 '
    lap bench rs 49 32 16 --device cuda --ranks 2 --transport nccl --method all,auto --auto-foreign --iters 1 --json
    ok 'all leaves it out where it cannot do the case, and so does auto' test "$status $(grep -c cublasmp "$work/out")" = '0 0'
    lap bench ag 48 32 17 --device cuda --ranks 2 --transport nccl --method all --iters 1 --json
    has 'all leaves it out where only cuBLASMp knows that it cannot, and says so' "$status $err" '0 ' 'cublasmp is left out' 'not supported'
    lap bench ag 48 32 17 --device cuda --ranks 2 --transport nccl --method cublasmp --iters 1 --json
    has '... but not if it was named' "$status $err" '1 lap bench' 'not supported'
    lap bench ag 48 32 16 --device cuda --ranks 2 --transport nccl --method all,auto --link 1GB/s --iters 1 --json
    ok 'all leaves it out over an emulated link, which it knows nothing of' test "$status $(grep -c cublasmp "$work/out")" = '0 0'
    lap bench ag 48 32 16 --device cuda --ranks 2 --transport nccl --method cublasmp --link 1GB/s --iters 1
    has '... and who names it is told so' "$status $err" '1 lap bench' "'cublasmp' cannot be slowed down by an emulated link"
    lap bench ag 48 32 16 --device cuda --ranks 2 --transport nccl --method auto --auto-foreign --link 1GB/s
    has '... or lets auto choose it' "$status $err" '2 lap bench' '--auto-foreign: cuBLASMp cannot be slowed down by --link 1GB/s'
    lap bench ag 48 32 16 --device cuda --ranks 2 --transport nccl --auto-foreign
    has '--auto-foreign without auto' "$status $err" '2 lap bench' '--auto-foreign' '--method'
    lap bench ag 48 32 16 --device cuda --ranks 2 --method auto --auto-foreign
    has '--auto-foreign over another transport' "$status $err" '2 lap bench' '--auto-foreign' 'transport nccl' cuda_ipc
    FAKE_CUBLASMP_DIES=1 lap bench ag 48 32 16 --device cuda --ranks 2 --transport nccl --method cublasmp --iters 1
    has 'a rank that dies while cuBLASMp makes an operator' "$status $err" '137 lap bench' 'rank 1 (pid' 'has died'
    LAP_CUBLASMP=/nowhere/mp.so lap bench ag 48 32 16 --device cuda --ranks 2 --transport nccl --method auto --auto-foreign
    has '--auto-foreign without cuBLASMp' "$status $err" '2 lap bench' '--auto-foreign' /nowhere/mp.so
    unset FAKE_GPUS
fi

lap bench ag 48 32 16 --device cuda --ranks 2 --method serial:num_sm=64,fused:num_sm=2:block_rows=8 --iters 1
is 'methods with multiprocessors that copy' "$status" 0
has '... as auto names them' "$out" 'serial:num_sm=64' 'fused:num_sm=2:block_rows=8'
lap bench sweep ag --m 8:1024 --n 32 --k 16 --device cuda --ranks 2 --iters 1 \
    --method serial:num_sm=1,serial:num_sm=2,serial:num_sm=4,fused:block_rows=4:num_sm=8
is 'a sweep of them' "$status" 0
is '... says which number is num_sm, and lets others go without their names' \
    "$(grep -E '^[* ] +[0-9]+ ' "$work/out" | grep -cvE ' serial(:num_sm=[124])? | fused:4:num_sm=8 ')" 0

# Ranks with parts of 32 multiprocessors.
sms() { LAP_GPU_PART=1/4 lap bench ag 48 32 16 --device cuda --ranks 2 --iters 1 --sm-margin "$@"; }
sms --method ring --num-sm 31
is 'a GEMM with one multiprocessor' "$status" 0
sms --method ring --num-sm 32
is 'one that would have none: status' "$status" 1
has '... and what there is' "$err" 'num_sm is 32 with set_sm_margin, expected at most 31: this rank has 32 SMs of GPU 0'
for part in '1/2 64' '1/3 40' '1/5 24' '1/6 22' '1/7 18' '1/8 16' '1/9 14' '1/16 8'; do
    LAP_GPU_PART=${part% *} lap bench ag 48 32 16 --device cuda --ranks 2 --iters 1 --sm-margin --method ring --num-sm 99
    has "a part of ${part% *} of 132 multiprocessors" "$err" "this rank has ${part#* } SMs of GPU 0"
done
FAKE_NO_PAIRS=1 LAP_GPU_PART=1/6 lap bench ag 48 32 16 --device cuda --ranks 2 --iters 1 --sm-margin --method ring --num-sm 99
has '... and where the driver makes no pairs' "$err" 'this rank has 16 SMs of GPU 0'
sms --method auto --num-sm 4
is 'auto tries more multiprocessors for copies than there are, and leaves none free for them' "$status" 0

# Blocks of a GEMM take turns in two lanes, and the timeline shows the lane that ran each.
lap bench ag 256 512 128 --device cuda --ranks 4 --method fused --iters 1 --timeline "$work/lanes.svg"
is 'a timeline of blocks in two lanes' "$status" 0
ok '... has a row for the second one' grep -q 'compute2' "$work/lanes.svg"

# Graphs without signals are not looked at: most of them only load kernels.
for op in ag rs ar; do
    FAKE_GRAPHS=$work/graphs lap bench $op 256 512 128 --device cuda --ranks 4 --method all --iters 1
    is "$op with every method, as graphs" "$status" 0
    is '... in which no GEMM waits for its workspace to be cleared' "$(awk '
        $1 + $2 > 0 { graphs++; sets += $5 }
        END { print (graphs > 0), sets + 0 }' "$work/graphs")" '1 0'
    rm -f "$work/graphs"
done
# counted ARGS...: how much of a graph comes after the kernel that counts the call, and how much may run at the same time as it.
counted() {
    FAKE_GRAPHS=$work/graphs lap bench "$@" --device cuda --ranks 4 --iters 1 --no-trace
    awk '$1 + $2 > 0 { print $6, $7 }' "$work/graphs" | sort -u | tr '\n' ','
    rm "$work/graphs"
}
is 'serial counts the call before its sum; fused gemm_rs too, and beside the last of its GEMMs' \
    "$(counted rs 256 512 128 --method fused)" '1 0,1 1,'
is 'ag_gemm does so beside the last GEMMs' "$(counted ag 256 512 128 --method serial,ring,direct)" '0 2,'
# kernels OP ARGS...: how many oneshot has in its graph, which has no kernels that only wait or only raise.
kernels() {
    FAKE_GRAPHS=$work/graphs lap bench "$1" 64 64 64 --device cuda --ranks 4 --iters 1 --no-trace --method oneshot \
        "${@:2}" --json
    right "$* oneshot" 1
    count=$(awk '$1 + $2 + $3 + $5 == 0 && $4 > 1 { print $4 }' "$work/graphs" | sort -u | tr '\n' ' ')
    rm "$work/graphs"
}
mps=$(cd "$(dirname "$0")/../fake" && pwd)
PATH=$mps:$PATH kernels ag
is '... is one kernel, which clears the workspace, too, and the GEMM' "$count" '2 '
PATH=$mps:$PATH kernels rs
is '... is one kernel that clears the workspace, the GEMM, and one kernel behind it' "$count" '3 '
for part in '' 1/4; do # of all ranks, whose kernels may run on the same multiprocessors
    LAP_GPU_PART=$part kernels ag --gpu-share=off
    is "... with part '$part' of the GPU for all of them: one waits by itself" "$count" '3 '
done
FAKE_FAILS=cuGraphKernelNodeSetParams lap bench ag 64 64 64 --device cuda --ranks 2 --method oneshot --iters 1 --timeout 5
is 'cuGraphKernelNodeSetParams fails: status' "$status" 1
has '... which is named' "$err" 'cuGraphKernelNodeSetParams failed: the NVIDIA driver says'
lap bench rs 205 16 16 --device cuda --ranks 5 --method fused:block_rows=2 --iters 1
is 'more GEMMs in a graph than there are small workspaces' "$status" 0
has '... are right' "$out" 'fused' 'ok'
# call_fails CALL: it ends the ranks, which look for two seconds whether another has died of it.
call_fails() {
    FAKE_FAILS=$1 lap bench rs 256 512 128 --device cuda --ranks 2 --method fused --iters 1 --timeout 5
    is "$1 fails: status" "$status" 1
    has '... which is named' "$err" "${1%WithFlags} failed: the NVIDIA driver says"
}
for call in cuGraphGetNodes cuGraphGetRootNodes cuGraphAddKernelNode cuGraphKernelNodeSetAttribute \
    cuGraphAddDependencies cuGraphDestroyNode cuGraphInstantiateWithFlags; do
    beside call_fails $call
done
together

# What ranks do to end after a failure does not change what they say of it. With such a link a call takes a third of a second:
# that a rank is killed between two, where the others wait in none, is rare on a busy machine, too.
FAKE_GRAPHS=$work/graphs "$LAP" bench rs 512 256 64 --device cuda --ranks 3 --method fused --iters 1000000 --link 1MB/s \
    >"$work/out" 2>"$work/err" </dev/null &
launcher=$!
begun() { awk '$1 + $2 > 0 { graphs++ } END { exit graphs < 6 }' "$work/graphs" 2>/dev/null; } # of two methods, of each rank
until_true begun
sleep 1
victim=$(pid_of 1)
kill -9 "$victim"
collect
is 'a rank is killed: status' "$status" 137
has '... and the others name it' "$err" "peer lost: rank 1 (pid $victim) has died"
# waited RANK: it says in what it waited, in its own line or in one with the other.
waited() { grep -qE "^lap bench: (.*; )?(rank $1|ranks 0, 2: .*; each) waited in gemm_rs \\(.*, step .*, for signal " "$work/err"; }
ok '... and each the operation, the step and the signal' waited 0
ok '... all of them' waited 2

lap bench latency --device cuda --iters 20
has 'latency says that it is not that of the GPU' "$status $out" '0 signal there and back' \
    'from process to process, without the GPU' 'on the GPU are not measured'
lap bench latency --device cuda --iters 20 --json
has '... in JSON, too' "$status $out" '"device":"cuda"' '"signals":"host"'
lap bench latency --iters 20
is '... and without a GPU there is nothing to say' "$status $(grep -c 'GPU' "$work/out")" '0 0'

lap bench ag 48 32 16 --calls 0
is 'no calls: status' "$status" 2
has 'no calls: a sentence' "$err" '--calls' '0'
finish
