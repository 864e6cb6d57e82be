# SPDX-License-Identifier: Apache-2.0
"""Ranks of torch.distributed for tests: forked processes with a process group over gloo.

LAP_TEST_DEVICE=cuda runs the tests on a GPU, which the ranks share; LAP_TEST_PYTHON then names a python whose torch has
CUDA.
"""

import os
import tempfile
import unittest

import torch
import torch.distributed as dist

from ranks import forked

DEVICE = os.environ.get("LAP_TEST_DEVICE", "cpu")


def _quiet():
    """Gloo writes to the standard output of each process."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _body(rank, ranks, body, store, arguments):
    _quiet()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.set_default_device(DEVICE)
    torch.manual_seed(1)  # the same on all ranks
    result = body(rank, ranks, *arguments)
    if not getattr(body, "leaves", False):
        dist.destroy_process_group()
    return result


def ranks_of(ranks, body, *arguments, killed=()):
    """body(rank, ranks, *arguments) on so many ranks with a process group; a list of what they return."""
    with tempfile.TemporaryDirectory() as folder:
        return forked(ranks, _body, body, f"{folder}/store", arguments, killed=killed)


def import_compiler():
    """Imports what torch.compile needs, before ranks are forked: it takes seconds. Not with a
    GPU, which the compiler looks for: a process that is forked after that cannot use it."""
    if DEVICE != "cpu":
        return
    double = torch.compile(lambda x: x * 2, backend="aot_eager", fullgraph=True)
    double(torch.ones(1, requires_grad=True))


def small(*shape, dtype=torch.float32):
    """Whole numbers so small that sums and products are exact in every type, in any order."""
    return torch.randint(-2, 3, shape).to(dtype)


def part(tensor, rank, ranks, dim=0):
    """A rank's share of a tensor, as memory of its own with a gradient of its own."""
    return tensor.chunk(ranks, dim)[rank].clone().contiguous().requires_grad_()


def same(name, ours, theirs):
    """Fails unless two tensors are equal, element for element."""
    if ours is None or ours.shape != theirs.shape or ours.dtype != theirs.dtype or not torch.equal(ours, theirs):
        raise AssertionError(f"{name}: {ours} is not {theirs}")


class Case(unittest.TestCase):
    """A test whose ranks are processes."""

    def on(self, numbers, body, *arguments, **options):
        """Runs `body` with each number of ranks; what the last of them returned."""
        results = None
        for ranks in numbers:
            with self.subTest(ranks=ranks):
                results = ranks_of(ranks, body, *arguments, **options)
        return results
