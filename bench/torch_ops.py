# SPDX-License-Identifier: Apache-2.0
"""The operators of lapstrake.torch on ranks that share a GPU, beside PyTorch's in bench/peers/torch_async_tp.py.

    MASTER_PORT=29500 PYTHONPATH=python LAPSTRAKE_LIBRARY=build/liblap.so \\
        lap run --gpu-share --no-prefix -n P python3 bench/torch_ops.py M,N,K [M,N,K ...]

The same shapes, tensors and medians as there. Operators run on a rank's own SMs by themselves, so that the stream of the
caller is an ordinary one. One JSON object per line from rank 0.
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

import torch
import torch.distributed as dist
from shared_gpu import RANK, RANKS, median_ms, rand, start

import lapstrake.torch as lap


def report(op, m, n, k, call):
    total = median_ms(call)
    if RANK == 0:
        print(json.dumps({"op": op, "m": m, "n": n, "k": k, "ranks": RANKS, "total_ms": round(total, 5)}), flush=True)


def main(shapes):
    start()
    with torch.cuda.stream(torch.cuda.Stream()):
        for m, n, k in shapes:
            a, b = rand(m // RANKS, k), rand(k, n // RANKS)
            report("ag_gemm", m, n, k, lambda: lap.all_gather_matmul(a, [b], 0))
            x, w = rand(m, n // RANKS), rand(n // RANKS, k)
            report("gemm_rs", m, k, n, lambda: lap.matmul_reduce_scatter(x, w, "sum", 0))
        torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


main([tuple(map(int, text.split(","))) for text in sys.argv[1:]])
