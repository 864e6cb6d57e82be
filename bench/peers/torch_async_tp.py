# SPDX-License-Identifier: Apache-2.0
"""PyTorch's async tensor parallelism over symmetric memory: the peer that bench/gpu.py measures Lapstrake against.

    lap run --gpu-share --no-prefix -n P python3 torch_async_tp.py M,N,K [M,N,K ...]

with MASTER_PORT set to a free port. A rank that shares its GPU runs on its own disjoint SMs, the part that LAP_GPU_PART
names ("1/4": the second of four), as the ranks of Lapstrake do; a thread percentage would give overlapping sets of SMs.

For each shape AG+GEMM of M, N, K with N sharded, then GEMM+RS with the same weight transposed, that is of M, K, N. Each:
GEMM alone on the same random data, GEMM with a barrier before each call, the fused operator, and GEMM alone again; medians
of 7 rounds of 10 calls, the slowest rank counting. One JSON object per line from rank 0.
"""
import json
import os
import sys
import time

os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm
from cuda.bindings import driver as cu

ROUNDS, CALLS, WARMUP = 7, 10, 3
RANK, RANKS = int(os.environ["LAP_RANK"]), int(os.environ["LAP_SIZE"])
GPU = int(os.environ.get("LAP_GPU", "0"))
PART, PARTS = map(int, os.environ.get("LAP_GPU_PART", "0/1").split("/"))


def check(result):
    """The values of a call of the driver, or an exception."""
    if result[0] != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver: {result[0]}")
    return result[1] if len(result) == 2 else result[1:]


def part_streams(count):
    """Streams that are confined to this rank's SMs, and how many those are."""
    device = check(cu.cuDeviceGet(GPU))
    whole = check(cu.cuDeviceGetDevResource(device, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    if PARTS == 1:
        return [torch.cuda.Stream() for _ in range(count)], whole.sm.smCount
    want = max(8, whole.sm.smCount // PARTS // 8 * 8)
    groups, found, _ = check(cu.cuDevSmResourceSplitByCount(PARTS, whole, 0, want))
    if found < PARTS:
        raise RuntimeError(f"{whole.sm.smCount} SMs make {found} groups of {want}, expected {PARTS}")
    desc = check(cu.cuDevResourceGenerateDesc([groups[PART]], 1))
    context = check(cu.cuGreenCtxCreate(desc, device, cu.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM))
    flag = cu.CUstream_flags.CU_STREAM_NON_BLOCKING.value
    made = [check(cu.cuGreenCtxStreamCreate(context, flag, 0)) for _ in range(count)]
    return [torch.cuda.ExternalStream(int(stream)) for stream in made], groups[PART].sm.smCount


def median_ms(call):
    """The median over the rounds of the time of a call, on the slowest rank."""
    for _ in range(WARMUP):
        call()
    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        elapsed = torch.tensor([(time.perf_counter() - begin) / CALLS * 1e3])
        dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
        rounds.append(elapsed.item())
    return sorted(rounds)[len(rounds) // 2]


def rand(*shape):
    """Random numbers: zeros would need less power, and run faster."""
    return torch.rand(*shape, device="cuda", dtype=torch.bfloat16) - 0.5


def report(op, m, n, k, sms, gemm, fused, meet):
    before = median_ms(gemm)
    step = median_ms(lambda: (meet(), gemm()))
    total = median_ms(fused)
    alone = min(before, median_ms(gemm))
    if RANK == 0:
        print(json.dumps({"peer": "torch", "op": op, "m": m, "n": n, "k": k, "ranks": RANKS, "sms": sms,
                          "gemm_ms": round(alone, 5), "lockstep": round(step / alone, 4),
                          "total_ms": round(total, 5), "ratio": round(total / alone, 4)}), flush=True)


def measure(m, n, k, group, sms, meet):
    ops = torch.ops.symm_mem
    a, b = rand(m // RANKS, k), rand(k, n // RANKS)
    gathered = ops.fused_all_gather_matmul(a, [b], gather_dim=0, group_name=group)[0].clone()
    report("ag_gemm", m, n, k, sms, lambda: gathered @ b,
           lambda: ops.fused_all_gather_matmul(a, [b], gather_dim=0, group_name=group), meet)
    del a, b, gathered
    x, w = rand(m, n // RANKS), rand(n // RANKS, k)
    report("gemm_rs", m, k, n, sms, lambda: x @ w,
           lambda: ops.fused_matmul_reduce_scatter(x, w, "sum", scatter_dim=0, group_name=group), meet)


def main(shapes):
    torch.cuda.set_device(GPU)
    torch.empty(1, device="cuda")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}", rank=RANK,
                            world_size=RANKS)
    group = dist.group.WORLD.group_name
    streams, sms = part_streams(3)
    # The operators' own streams would span the whole GPU.
    backend = {}
    symm._get_backend_stream = lambda priority=0: backend.setdefault(priority, streams[1 + len(backend) % 2])
    with torch.cuda.stream(streams[0]):
        pad = symm.empty(1024, device="cuda")
        meeting = symm.rendezvous(pad, group)
        for m, n, k in shapes:
            measure(m, n, k, group, sms, lambda: meeting.barrier(channel=0))
            torch.cuda.empty_cache()
        torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


main([tuple(map(int, text.split(","))) for text in sys.argv[1:]])
