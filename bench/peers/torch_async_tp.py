# SPDX-License-Identifier: Apache-2.0
"""PyTorch's async tensor parallelism over symmetric memory: the peer that bench/gpu.py measures Lapstrake against.

    lap run --gpu-share --no-prefix -n P python3 torch_async_tp.py M,N,K [M,N,K ...]

with MASTER_PORT set to a free port.

For each shape AG+GEMM of M, N, K with N sharded, then GEMM+RS with the same weight transposed, that is of M, K, N. Each:
GEMM alone on the same random data, GEMM with a barrier before each call, the fused operator, and GEMM alone again; medians
of 7 rounds of 10 calls, the slowest rank counting. One JSON object per line from rank 0.
"""
import json
import os
import sys

os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

from shared_gpu import RANK, RANKS, median_ms, part_streams, rand, start


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
    start()
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
