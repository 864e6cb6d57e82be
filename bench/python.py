# SPDX-License-Identifier: Apache-2.0
"""The time of the host in a call of lapstrake.torch, on one rank, beside that of torch.matmul.

    PYTHONPATH=python LAPSTRAKE_LIBRARY=build/liblap.so python3 bench/python.py [cpu|cuda]

Matrices are tiny, and on a GPU calls are not waited for, so that the time is that of Python, PyTorch and the library on
the host. On a CPU the GEMM and the threads of the library are in it. Microseconds: the median of 600 rounds of 10
calls, and the least.
"""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

import lapstrake.torch as lap

CALLS, ROUNDS = 10, 600


def host_time(call, wait):
    call()
    times = []
    for _ in range(ROUNDS):
        wait()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - begin) / CALLS * 1e6)
    times.sort()
    return times[ROUNDS // 2], times[0]


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    x, w = torch.randn(16, 64, device=device), torch.randn(32, 64, device=device)
    wt, parameter = w.t(), w.clone().requires_grad_()
    view = parameter.t()
    rows = (
        ("torch.matmul", lambda: x @ wt),
        ("all_gather_matmul, return_A=False", lambda: lap.all_gather_matmul(x, [wt], 0, return_A=False)),
        ("all_gather_matmul", lambda: lap.all_gather_matmul(x, [wt], 0)),
        ("matmul_reduce_scatter", lambda: lap.matmul_reduce_scatter(x, wt, "sum", 0)),
        ("torch.matmul, with autograd", lambda: x @ view),
        ("all_gather_matmul, with autograd", lambda: lap.all_gather_matmul(x, [view], 0, return_A=False)),
        ("matmul_reduce_scatter, with autograd", lambda: lap.matmul_reduce_scatter(x, view, "sum", 0)),
        ("the same, and parameter.t(): matmul", lambda: x @ parameter.t()),
        ("  all_gather_matmul", lambda: lap.all_gather_matmul(x, [parameter.t()], 0, return_A=False)),
        ("  matmul_reduce_scatter", lambda: lap.matmul_reduce_scatter(x, parameter.t(), "sum", 0)),
    )
    print(f"{'':38} median, us   least")
    for name, call in rows:
        print("{:38} {:10.1f} {:7.1f}".format(name, *host_time(call, wait)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{os.path.join(folder, 'store')}", rank=0, world_size=1)
        main()
        dist.destroy_process_group()
