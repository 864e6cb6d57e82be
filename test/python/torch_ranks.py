# SPDX-License-Identifier: Apache-2.0
"""Ranks of torch.distributed for tests: forked processes with a process group over gloo.

LAP_TEST_DEVICE=cuda runs the tests on a GPU, which the ranks share as those of `lap run --gpu-share` do: under an MPS
daemon of their own, with a part of its multiprocessors each. LAP_TEST_PYTHON then names a python whose torch has CUDA.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import torch
import torch.distributed as dist

from lapstrake.torch import _ops
from ranks import forked

DEVICE = os.environ.get("LAP_TEST_DEVICE", "cpu")
if DEVICE == "cuda" and not torch.version.cuda:
    print(f"the torch {torch.__version__} of {sys.executable} has no CUDA: LAP_TEST_PYTHON names a python whose torch has")
    sys.exit(77)


# Options of torch.compile. PyTorch's own code generator takes a minute on a CPU, where ops.py has it for one operator; the
# last makes CUDA graphs of forward and of backward.
GRAPHS = {"mode": "reduce-overhead"}
COMPILED = ({"backend": "aot_eager"}, *(({}, GRAPHS) if DEVICE == "cuda" else ()))


def replayed(options, step):
    """Where torch.compile makes CUDA graphs, the third step replays them: the first is eager, the second is captured.
    Then nobody calls our kernels."""
    if options != GRAPHS or step < 2:
        return contextlib.nullcontext()
    return unittest.mock.patch.object(_ops, "prepared", side_effect=AssertionError("a kernel was called, not replayed"))


def _control(folder, flag, text=""):
    environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_MPS_LOG_DIRECTORY=folder)
    subprocess.run(["nvidia-cuda-mps-control", *flag], input=text, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
                   text=True, timeout=20, check=True, env=environment)


@contextlib.contextmanager
def _shared_gpu(ranks, folder):
    """An MPS daemon for some ranks; without one they take turns on the GPU, and each signal waits for a turn. It ends
    with them: of ranks that were killed it keeps others from the GPU for a while."""
    shared = DEVICE == "cuda" and ranks > 1
    if shared:
        _control(folder, ["-d"])
    try:
        yield
    finally:
        if shared:
            _control(folder, [], "quit\n")


def _quiet():
    """Gloo writes to the standard output of each process."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _body(rank, ranks, body, folder, arguments):
    _quiet()
    torch.set_num_threads(1)
    os.environ.update(TORCHINDUCTOR_CACHE_DIR=f"{folder}/{rank}", TORCHINDUCTOR_COMPILE_THREADS="1")
    if DEVICE == "cuda" and ranks > 1:
        os.environ.update(CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_MPS_LOG_DIRECTORY=folder, LAP_GPU_PART=f"{rank}/{ranks}")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    if DEVICE != "cpu":  # a mode, with which PyTorch dispatches every operator; without one ours are called at once
        torch.set_default_device(DEVICE)
    torch.manual_seed(1)  # the same on all ranks
    result = body(rank, ranks, *arguments)
    if not getattr(body, "leaves", False):
        dist.destroy_process_group()
    return result


def ranks_of(ranks, body, *arguments, killed=()):
    """body(rank, ranks, *arguments) on so many ranks with a process group; a list of what they return."""
    with tempfile.TemporaryDirectory() as folder, _shared_gpu(ranks, folder):
        return forked(ranks, _body, body, folder, arguments, killed=killed)


def import_compiler():
    """Imports what torch.compile needs, before ranks are forked: it takes seconds. Without a gradient: PyTorch refuses
    those in a process that was forked after one. Not with a GPU, which the compiler looks for, for the same reason."""
    if DEVICE != "cpu":
        return
    double = torch.compile(lambda x: x * 2, backend="aot_eager", fullgraph=True)
    double(torch.ones(1))


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


def fails(error, text, call, *arguments, **options):
    """Fails unless the call raises this error with this text."""
    try:
        call(*arguments, **options)
    except error as failure:
        if text not in str(failure):
            raise AssertionError(f"'{failure}' does not say '{text}'") from failure
        return
    raise AssertionError(f"nothing was raised, expected {error.__name__} with '{text}'")


class Case(unittest.TestCase):
    """A test whose ranks are processes."""

    def on(self, numbers, body, *arguments, **options):
        """Runs `body` with each number of ranks; what the last of them returned."""
        results = None
        for ranks in numbers:
            with self.subTest(ranks=ranks):
                results = ranks_of(ranks, body, *arguments, **options)
        return results
