# SPDX-License-Identifier: Apache-2.0
"""Operators and modules with tensors as programs have them: results changed in place, dimensions of size 0, autocast."""

import unittest

import torch
import torch.distributed as dist

import lapstrake
import lapstrake.torch as lap
from lapstrake.torch import _groups
from torch_ranks import DEVICE, Case, part, same, small

ops = torch.ops.lapstrake


def in_place(rank, ranks):
    """Results can be changed in place, as those of torch.matmul: they are no views."""
    full, weight = small(2 * ranks, 3 * ranks, 5), small(4 * ranks, 5)
    for dim in (0, 1):
        A, B = part(full, rank, ranks, dim), part(weight, rank, ranks)
        gathered, (y,) = lap.all_gather_matmul(A, [B.t()], dim)
        (y.mul_(3).sum() + gathered.mul(2).sum()).backward()
        whole, truth = full.clone().requires_grad_(), weight.clone().requires_grad_()
        ((whole @ truth.t()).mul(3).sum() + whole.sum() * 2 * ranks).backward()
        same("d A", A.grad, whole.grad.chunk(ranks, dim)[rank])
        same("d B", B.grad, truth.grad.chunk(ranks)[rank])
    A, B = small(2 * ranks, 3, 5).requires_grad_(), small(4, 5).requires_grad_()
    for result in (lap.matmul_reduce_scatter(A, B.t(), "sum", 0), lap.matmul_all_reduce(A, B.t()),
                   ops.copy_matmul(A, B.t(), "0"), ops.all_gather(A, "0"), ops.reduce_scatter(A, "0")):
        result.relu_().sum().backward()
    common = dict(tp_group=dist.group.WORLD, device=DEVICE, bias=False)
    for parallel in (True, False):
        for mode, features in (("column", 4), ("row", 4 * ranks)):
            layer = lap.Linear(features, 4 * ranks, sequence_parallel=parallel, parallel_mode=mode, **common)
            for enabled in (False, True):
                x = torch.ones(2 * ranks, 3, 4, requires_grad=True)
                with lap.autocast(enabled=enabled):
                    y = torch.nn.ReLU(inplace=True)(layer(x))
                y.sum().backward()


def empty(rank, ranks):
    """A dimension of size 0, whichever it is: no rows, no work, gradients of zeros."""
    for shape in ((0, 2, 4), (2 * ranks, 0, 4)):
        for dim in (0, 1):
            for ag in (True, False):
                A, B = torch.zeros(shape, requires_grad=True), torch.zeros(4, 3, requires_grad=True)
                if ag:
                    y = lap.all_gather_matmul(A, [B], dim, return_A=False)[1][0]
                elif shape[dim] % ranks == 0:
                    y = lap.matmul_reduce_scatter(A, B, "sum", dim)
                expected = list(A.shape[:2]) + [3]
                expected[dim] = expected[dim] * ranks if ag else expected[dim] // ranks
                y.sum().backward()
                same("d A", A.grad, torch.zeros(shape))
                same("d B", B.grad, torch.zeros(4, 3))
                if list(y.shape) != expected:
                    raise AssertionError(f"{list(y.shape)} is not {expected}")
        same("sum", lap.matmul_all_reduce(torch.zeros(shape), torch.zeros(4, 3)), torch.zeros(*shape[:2], 3))
    for A in (torch.zeros(2, 0), torch.zeros(2, 3, 0)):
        try:
            lap.all_gather_matmul(A, [torch.zeros(0, 3)], 0)
        except lapstrake.InvalidArgument as failure:
            if "expected at least one column" not in str(failure):
                raise
        else:
            raise AssertionError("a matrix without columns was multiplied")


def cast(rank, ranks):
    """Within torch.autocast operators compute in the type of their tensors, all of them and in backward, too."""
    full, weights = small(2 * ranks, 5) + 1 / 512, [small(4 * ranks, 5), small(3 * ranks, 5)]  # not exact in bfloat16
    for options in ({}, {"dgrad": "bulk_ag/direct"}):
        results = []
        for enabled in (False, True):
            A, Bs = part(full, rank, ranks), [part(weight, rank, ranks) for weight in weights]
            with torch.autocast(DEVICE, torch.bfloat16, enabled=enabled):
                gathered, ys = lap.all_gather_matmul(A, [B.t() for B in Bs], 0, **options)
                z = lap.matmul_all_reduce(ops.copy_matmul(A, Bs[0].t(), "0"), Bs[0])
                (sum(y.sum() for y in ys) + gathered.sum() + z.sum()).backward()
            results.append([*ys, z, A.grad, Bs[0].grad])  # backward of the second product is PyTorch's own
        for ours, theirs in zip(*results):
            same("within autocast", ours.detach(), theirs.detach())


def foreign(rank, ranks):
    """auto_foreign is a field of the operator that is made. Without NCCL between ranks it is of no effect."""
    A, B = small(2, 5), small(5, 4)
    for method in ("auto", "auto:auto_foreign"):
        _, (y,) = lap.all_gather_matmul(A, [B], 0, method=method)
        same("result", y, (A @ B).repeat(ranks, 1))
    found = [op.desc.auto_foreign for op in _groups._contexts["0", DEVICE].ops.values()]
    if found != [0, 1]:
        raise AssertionError(f"auto_foreign of operators is {found}")


class Tensors(Case):
    def test_in_place(self):
        self.on((1, 2), in_place)

    def test_empty(self):
        self.on((1, 2), empty)

    def test_autocast(self):
        self.on((2,), cast)

    def test_foreign(self):
        self.on((2,), foreign)

    def test_methods(self):
        """Methods are written as for `lap bench`."""
        for text, method, knobs in (
            ("", None, {}), ("ring", "ring", {}), ("ring:aggregate", "ring", {"aggregate": 1}),
            ("pipeline:num_splits=8:set_sm_margin", "pipeline", {"num_splits": 8, "set_sm_margin": 1}),
            ("direct:num_splits=2,num_sm=64", "direct", {"num_splits": 2, "num_sm": 64}),
            ("cublasmp:algorithm=split_p2p", "cublasmp", {"algorithm": lapstrake.Algorithm.ALGORITHM_SPLIT_P2P}),
            ("auto:auto_foreign", "auto", {"auto_foreign": 1}), ("auto:auto_foreign=1", "auto", {"auto_foreign": 1}),
            ("ring:auto_foreign=0", "ring", {"auto_foreign": 0}),
        ):
            self.assertEqual(_groups.parse_method(text), (method, knobs))
        for text in ("ring:splits=2", "ring:num_splits", "ring:num_splits=", "ring:num_splits=two", "ring:aggregate=",
                     "cublasmp:algorithm=fast", "cublasmp:algorithm", "ring:aggregate=2", "auto:auto_foreign=2",
                     "auto:auto_foreign=yes", "ring:auto_foreign", ":auto_foreign"):
            with self.assertRaises(lapstrake.InvalidArgument) as caught:
                _groups.parse_method(text)
            self.assertIn(f"method is '{text}'", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
