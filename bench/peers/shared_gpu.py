# SPDX-License-Identifier: Apache-2.0
"""A rank of PyTorch that shares its GPU as the ranks of Lapstrake do, started by `lap run --gpu-share`.

It runs on its own disjoint SMs, the part that LAP_GPU_PART names ("1/4": the second of four); a thread percentage would
give overlapping sets of SMs. MASTER_PORT is a free port.
"""
import os
import time

import torch
import torch.distributed as dist
from cuda.bindings import driver as cu

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


def round_ms(call, calls):
    """The time of a call in a row of them, on the slowest rank: the same on all."""
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    elapsed = torch.tensor([(time.perf_counter() - begin) / calls * 1e3])
    dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
    return elapsed.item()


def median_ms(call, rounds=7, calls=10, warmup_ms=500):
    """The median over the rounds of the time of a call, on the slowest rank.

    After a pause the clock of a GPU is a third higher for a tenth of a second: what is timed comes after work.
    """
    for _ in range(3):
        call()
    for _ in range(int(warmup_ms / (calls * round_ms(call, calls))) + 1):
        round_ms(call, calls)
    return sorted(round_ms(call, calls) for _ in range(rounds))[rounds // 2]


def rand(*shape):
    """Random numbers: zeros would need less power, and run faster."""
    return torch.rand(*shape, device="cuda", dtype=torch.bfloat16) - 0.5


def start():
    """The GPU and the process group of all ranks."""
    torch.cuda.set_device(GPU)
    torch.empty(1, device="cuda")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}", rank=RANK,
                            world_size=RANKS)
