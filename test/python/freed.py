# SPDX-License-Identifier: Apache-2.0
"""A program that gives its memory back to the driver while what it enqueued may still run, again and again: operators of every
method, gradients, graphs and destroyed worlds with changing sizes, and empty_cache() after each. On a GPU a late or stray
access ends with CUDA_ERROR_ILLEGAL_ADDRESS."""

import gc
import os
import random
import time
import unittest

import torch
import torch.distributed as dist

import lapstrake.torch as lap
from lapstrake import Kind
from lapstrake.world import methods
from torch_ranks import DEVICE, Case, same

CUDA = DEVICE == "cuda"
RANKS = 4
ROUNDS = 1000 if CUDA else 60
AGAIN = ROUNDS // 2  # after so many all operators end, and others are made: with GEMMs that are tried, and then without
BUDGET_S = min(80, float(os.environ.get("LAP_TEST_LIMIT_S", "60")) * 0.8)  # no round begins later
SIZES = ((2048, 4096), (1024, 1024), (264, 520)) if CUDA else ((24, 16), (8, 40))  # n, k
ROWS = (8192, 4096, 512, 132, 4) if CUDA else (24, 12, 4)
CALLS = (1, 2, 3, 5)  # from the second with the same memory on calls are graphs


def placed(tensor, offset):
    """The same numbers in memory that is aligned worse: so many elements further."""
    room = tensor.new_empty(tensor.numel() + offset)
    return room[offset:].view(tensor.shape).copy_(tensor)


def signs(rows, cols, dtype):
    """-1, 0 and 1: sums of a rank's thousand products of them are exact in bfloat16, too."""
    return torch.randint(-1, 2, (rows, cols)).to(dtype)


class Round:
    """What all ranks do in a round."""

    def __init__(self, dice, number):
        self.number = number
        self.ag = dice.random() < 0.5
        kind = Kind.AG_GEMM if self.ag else Kind.GEMM_RS
        self.sizes, self.method = dice.choice(SIZES), dice.choice([name for name in methods(kind) if name != "auto"])
        self.rows = dice.choice(ROWS)
        if number % 32 == 7:  # a trial, which takes a second
            self.sizes, self.method = (SIZES[1][0] + 8 * dice.randrange(1, 64), SIZES[1][1]), "auto"
        self.dtype = torch.bfloat16 if dice.random() < 0.75 else torch.float32
        self.offset = dice.choice((0, 0, 0, 8, 1))
        self.calls, self.side = dice.choice(CALLS), dice.random() < 0.5
        self.backward, self.checks = dice.random() < 0.2, dice.random() < 0.3
        self.captured = CUDA and self.side and dice.random() < 0.1
        self.waits = dice.random() < 0.3
        if self.captured:  # graphs keep their operators: not too many of them
            self.sizes, self.rows, self.method, self.backward = SIZES[2], ROWS[2], methods(kind)[0], False

    def __str__(self):
        return (f"round {self.number}: {'AG+GEMM' if self.ag else 'GEMM+RS'} {self.method}, {self.rows} rows, n and k {self.sizes}, "
                f"{self.dtype}, offset {self.offset}, {self.calls} calls")


def matrices(what, rank, ranks):
    """A and B of this rank, and what comes out of them."""
    n, k = what.sizes
    full, weight = signs(what.rows, k, what.dtype), signs(k, n, what.dtype)
    A, B = (full.chunk(ranks)[rank], weight.chunk(ranks, 1)[rank]) if what.ag else (full.chunk(ranks, 1)[rank], weight.chunk(ranks)[rank])
    truth = (full.float() @ weight.float()).to(what.dtype) if what.checks else None
    if truth is not None:
        truth = truth.chunk(ranks, 1 if what.ag else 0)[rank].clone()
    A, B = placed(A, what.offset), placed(B, what.offset)
    return (A.requires_grad_(), B.requires_grad_(), truth) if what.backward else (A, B, truth)


def call(what, A, B):
    if what.ag:
        return lap.all_gather_matmul(A, [B], 0, method=what.method, return_A=False)[1][0]
    return lap.matmul_reduce_scatter(A, B, "sum", 0, method=what.method)


def replay(what, A, B):
    """The call as part of a graph of the caller's, launched three times."""
    result = call(what, A, B)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        result = call(what, A, B)
    for _ in range(3):
        graph.replay()
    return result.clone(), graph


def play(what, rank, ranks):
    """A round. The memory of all that it made is the driver's again at the end; what it enqueued may still run."""
    A, B, truth = matrices(what, rank, ranks)
    graph = None
    if what.captured:
        result, graph = replay(what, A, B)
    for _ in range(0 if what.captured else what.calls):
        result = call(what, A, B)
    if what.backward:
        result.float().sum().backward()
    if truth is not None:
        same(str(what), result.detach(), truth)
    if graph is not None:  # what a graph uses is freed with it: PyTorch has that waited for by who frees it
        torch.cuda.current_stream().synchronize()
    elif what.waits and CUDA:
        torch.cuda.synchronize()


def rounds(rank, ranks):
    dice, begin, done = random.Random(1), time.monotonic(), 0
    side = torch.cuda.Stream() if CUDA else None
    for number in range(ROUNDS):
        os.environ["LAP_GPU_TUNE"] = "1" if number < AGAIN else "0"  # read when a world is made
        what = Round(dice, number)
        torch.manual_seed(number)  # the same on all ranks
        try:
            with torch.cuda.stream(side if what.side else None) if CUDA else torch.autograd.set_grad_enabled(True):
                play(what, rank, ranks)
        except Exception as error:
            raise RuntimeError(f"{what}: {error}") from error
        if CUDA:
            torch.cuda.empty_cache()
        if number % AGAIN == AGAIN - 1:
            if CUDA:
                torch.cuda.synchronize()
            lap.close()
            gc.collect()
        if number % 20 == 0:
            late = torch.tensor([time.monotonic() - begin > BUDGET_S], device="cpu", dtype=torch.int32)
            dist.all_reduce(late)
            if late.item():
                break
        done = number + 1
    if CUDA:
        lap.synchronize()
    return done


class Freed(Case):
    def test_rounds(self):
        done = self.on((RANKS,), rounds)[0]
        print(f"{done} of {ROUNDS} rounds")
        self.assertGreater(done, ROUNDS // 10)


if __name__ == "__main__":
    unittest.main()
