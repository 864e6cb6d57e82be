# SPDX-License-Identifier: Apache-2.0
"""Operators for PyTorch: results and gradients are those of plain torch, misuse gets sentences."""

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import lapstrake
import lapstrake.torch as lap
from lapstrake._abi import Layout
from lapstrake.torch import _groups
from torch_ranks import DEVICE, Case, fails, import_compiler, part, same, small

ops = torch.ops.lapstrake


def nccl_shares():
    """Whether ranks of PyTorch's NCCL may share a GPU, as those of 2.30 may: PyTorch's own, or one that was preloaded."""
    version = ctypes.c_int()
    if DEVICE == "cuda" and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
    return version.value >= 23000


def gather(rank, ranks, dtype, dim, transposed, return_A, options, count):
    """all_gather_matmul against plain torch, with `count` matrices."""
    shape = [2, 3, 5]
    shape[dim] *= ranks
    full = small(*shape, dtype=dtype).requires_grad_()
    weights = [small(4 * ranks, 5, dtype=dtype).requires_grad_() for _ in range(count)]
    A = part(full.detach(), rank, ranks, dim)
    mine = [part(weight.detach(), rank, ranks) for weight in weights]
    Bs = [weight.t() if transposed else weight.t().contiguous() for weight in mine]
    gathered, results = lap.all_gather_matmul(A, Bs, dim, return_A=return_A, **options)
    if (gathered is not None) != return_A:
        raise AssertionError("return_A")
    if return_A:
        same("gathered", gathered.detach(), full.detach())
    loss = expected = 0
    for index, (result, weight) in enumerate(zip(results, weights)):
        truth = full @ weight.t()
        same("result", result.detach(), truth.detach().chunk(ranks, -1)[rank])
        scale = small(*truth.shape, dtype=dtype)
        loss = loss + (result * scale.chunk(ranks, -1)[rank]).sum() * (index + 1)
        expected = expected + (truth * scale).sum() * (index + 1)
    if return_A:
        loss, expected = loss + gathered.sum(), expected + full.sum() * ranks
    loss.backward()
    expected.backward()
    same("d A", A.grad, full.grad.chunk(ranks, dim)[rank])
    for weight, whole in zip(mine, weights):
        same("d B", weight.grad, whole.grad.chunk(ranks)[rank])


def scatter(rank, ranks, dtype, dim, transposed, reduce_op, options):
    """matmul_reduce_scatter against plain torch."""
    shape = [2, 3, 4 * ranks]
    shape[dim] *= ranks
    full = small(*shape, dtype=dtype).requires_grad_()
    weight = small(5, 4 * ranks, dtype=dtype).requires_grad_()
    A, mine = part(full.detach(), rank, ranks, -1), part(weight.detach(), rank, ranks, -1)
    B = mine.t() if transposed else mine.t().contiguous()
    result = lap.matmul_reduce_scatter(A, B, reduce_op, dim, **options)
    truth = full @ weight.t() / (ranks if reduce_op == "avg" else 1)
    same("result", result.detach(), truth.detach().chunk(ranks, dim)[rank])
    scale = small(*truth.shape, dtype=dtype)
    (result * scale.chunk(ranks, dim)[rank]).sum().backward()
    (truth * scale).sum().backward()
    same("d A", A.grad, full.grad.chunk(ranks, -1)[rank])
    same("d B", mine.grad, weight.grad.chunk(ranks, -1)[rank])


def reduce(rank, ranks, dtype, method):
    """matmul_all_reduce, and copy_matmul before it, as in a layer without sequence parallelism."""
    x = small(2, 3, 5, dtype=dtype).requires_grad_()
    first, second = small(4 * ranks, 5, dtype=dtype), small(6, 4 * ranks, dtype=dtype)
    wholes = [first.clone().requires_grad_(), second.clone().requires_grad_()]
    mine, A = [part(first, rank, ranks), part(second, rank, ranks, -1)], x.detach().clone().requires_grad_()
    result = lap.matmul_all_reduce(ops.copy_matmul(A, mine[0].t(), "0", method), mine[1].t(), "sum", method=method)
    truth = x @ wholes[0].t() @ wholes[1].t()
    same("result", result.detach(), truth.detach())
    scale = small(*truth.shape, dtype=dtype)
    (result * scale).sum().backward()
    (truth * scale).sum().backward()
    same("d A", A.grad, x.grad)
    same("d first", mine[0].grad, wholes[0].grad.chunk(ranks)[rank])
    same("d second", mine[1].grad, wholes[1].grad.chunk(ranks, -1)[rank])


def all_cases(rank, ranks):
    """Everything with plain torch: types, dimensions, layouts, methods."""
    f32, bf16 = torch.float32, torch.bfloat16
    for dtype, dim, transposed, return_A, options, count in (
        (f32, 0, True, False, {"method": "ring"}, 1),
        (f32, 0, True, True, {"method": "direct"}, 1),
        (f32, 0, False, False, {"method": "serial", "dgrad": "bulk_ag/serial", "wgrad": "serial"}, 1),
        (f32, 0, False, True, {"dgrad": "bulk_ag/", "wgrad": "direct"}, 1),
        (f32, 0, True, False, {"dgrad": "gemm_rs/pipeline:num_splits=2"}, 1),
        (f32, 1, True, False, {}, 1),
        (f32, 1, False, True, {"dgrad": "gemm_rs/ring"}, 1),
        (f32, 0, True, True, {}, 3),
        (f32, 1, True, False, {}, 2),
        (bf16, 0, True, False, {"method": "ring"}, 1),
        (torch.float16, 0, True, True, {"method": "direct"}, 1),
    ):
        gather(rank, ranks, dtype, dim, transposed, return_A, options, count)
    for dtype, dim, transposed, reduce_op, options in (
        (f32, 0, True, "sum", {}),
        (f32, 0, False, "sum", {"method": "ring", "dgrad": "direct"}),
        (f32, 1, True, "sum", {"method": "pipeline:num_splits=2", "dgrad": "serial"}),
        (f32, -2, False, "sum", {"method": "serial"}),
        (bf16, 0, True, "sum", {"method": "ring"}),
    ) + (((f32, 0, True, "avg", {}),) if ranks != 3 else ()):  # a third is not exact
        scatter(rank, ranks, dtype, dim, transposed, reduce_op, options)
    for dtype, method in ((f32, "auto"), (f32, "direct"), (bf16, "pipeline")):
        reduce(rank, ranks, dtype, method)
    x = small(2 * ranks, 3).requires_grad_()
    moved = ops.reduce_scatter(ops.all_gather(part(x.detach(), rank, ranks), "0"), "0")
    same("there and back", moved, x.detach().chunk(ranks)[rank] * ranks)


def frozen(rank, ranks):
    """Only what needs a gradient gets one."""
    for return_A in (False, True):
        for dgrad in ("gemm_rs/ring", "bulk_ag/direct"):
            for needs_A, needs_B in ((True, False), (False, True)):
                full, weight = small(2 * ranks, 5), small(4 * ranks, 5)
                A = part(full, rank, ranks).detach().requires_grad_(needs_A)
                B = part(weight, rank, ranks).detach().requires_grad_(needs_B)
                _, (y,) = lap.all_gather_matmul(A, [B.t()], 0, return_A=return_A, dgrad=dgrad)
                y.sum().backward()  # a gradient whose strides are 0
                ones = torch.ones(2 * ranks, 4 * ranks)
                if needs_A:
                    same("d A", A.grad, (ones @ weight).chunk(ranks)[rank])
                else:
                    same("d B", B.grad, (ones.t() @ full).chunk(ranks)[rank])
    full, weight = small(2 * ranks, 3 * ranks), small(5, 3 * ranks)
    A, B = part(full, rank, ranks, 1).detach(), part(weight, rank, ranks, 1)
    (dB,) = torch.autograd.grad(lap.matmul_reduce_scatter(A, B.t(), "sum", 0).sum(), B)
    same("d B", dB, (torch.ones(2 * ranks, 5).t() @ full).chunk(ranks, 1)[rank])
    if dB.stride() != B.stride():  # autograd would copy it
        raise AssertionError(f"d B has strides {dB.stride()}, expected those of B, {B.stride()}")


def biased(rank, ranks):
    """The bias of a column-parallel layer and its gradient, whatever else needs one, and however the weight lies."""
    for dtype in (torch.float32, torch.bfloat16):
        for dgrad in ("gemm_rs/ring", "bulk_ag/direct"):
            for transposed in (True, False):
                for needs in ((True, True, True), (True, True, False), (True, False, True), (False, True, True),
                              (False, False, True)):
                    full, weight = small(2 * ranks, 3, 5, dtype=dtype), small(4 * ranks, 5, dtype=dtype)
                    vector, scale = small(4 * ranks, dtype=dtype), small(2 * ranks, 3, 4 * ranks, dtype=dtype)
                    truths = [tensor.requires_grad_() for tensor in (full, weight, vector)]
                    A, B, bias = (part(tensor.detach(), rank, ranks).detach().requires_grad_(needed)
                                  for tensor, needed in zip(truths, needs))
                    for given in (None, bias):  # the one without it is prepared first
                        _, y = ops.gather_matmul(A, B.t() if transposed else B.t().contiguous(), given, 0, "0", False,
                                                 "ring", dgrad, "direct")
                    truth = full @ weight.t() + vector
                    same("result", y.detach(), truth.detach().chunk(ranks, -1)[rank])
                    (y * scale.chunk(ranks, -1)[rank]).sum().backward()
                    (truth * scale).sum().backward()
                    for name, ours, theirs, needed in zip(("A", "B", "bias"), (A, B, bias), truths, needs):
                        if needed:
                            same(f"d {name}", ours.grad, theirs.grad.chunk(ranks)[rank])
    one = torch.ones(ranks, 1)  # a matrix of one column lies both ways: the sums are those of its rows all the same
    sums = ops.matmul_with_reduce_scatter(one, torch.ones(1, 2), torch.ones(ranks, 1), "0", "direct", True)[2]
    same("sums", sums, torch.ones(ranks))


def biased_rows(rank, ranks):
    """The bias of a row-parallel layer: added once to the sum, or mean, of all ranks; its gradient is not the mean's."""
    for reduce_op, needs_bias in (("sum", True), ("avg", True), ("sum", False)):
        if reduce_op == "avg" and ranks == 3:  # a third is not exact
            continue
        full, weight, vector = (small(*shape).requires_grad_()
                                for shape in ((2 * ranks, 3 * ranks), (5, 3 * ranks), (5,)))
        A, B = part(full.detach(), rank, ranks, 1), part(weight.detach(), rank, ranks, 1)
        bias = vector.detach().clone().requires_grad_(needs_bias)
        for given in (None, bias):
            y = ops.matmul_scatter(A, B.t(), given, reduce_op, 0, "0", "ring", "ring")
        truth = full @ weight.t() / (ranks if reduce_op == "avg" else 1) + vector
        same("result", y.detach(), truth.detach().chunk(ranks)[rank])
        scale = small(*truth.shape)
        mine = scale.chunk(ranks)[rank]
        (y * mine).sum().backward()
        (truth * scale).sum().backward()
        same("d A", A.grad, full.grad.chunk(ranks, 1)[rank])
        same("d B", B.grad, weight.grad.chunk(ranks, 1)[rank])
        if needs_bias:
            same("d bias", bias.grad, mine.sum(0))  # of this rank's rows


def twice(rank, ranks):
    """The gradient of a gradient is right, or refused with a sentence."""
    full, weight = small(2 * ranks, 5), small(4 * ranks, 5)
    for dgrad in ("gemm_rs/ring", "bulk_ag/direct"):
        A, B = part(full, rank, ranks), part(weight, rank, ranks)
        _, (y,) = lap.all_gather_matmul(A, [B.t()], 0, return_A=False, dgrad=dgrad)
        (dA,) = torch.autograd.grad((y ** 2).sum(), A, create_graph=True)
        if dgrad.startswith("bulk"):
            fails(lapstrake.Unsupported, "the gradient of a gradient needs that of matmul_with", dA.sum().backward)
            continue
        dA.sum().backward()
        whole, truth = full.clone().requires_grad_(), weight.clone().requires_grad_()
        (dwhole,) = torch.autograd.grad(((whole @ truth.t()) ** 2).sum(), whole, create_graph=True)
        dwhole.sum().backward()
        same("d A", A.grad, whole.grad.chunk(ranks)[rank])
        same("d B", B.grad, truth.grad.chunk(ranks)[rank])


def rows_change(rank, ranks):
    """More rows make an operator anew, fewer do not; views of a larger matrix are used in place."""
    weight = small(4 * ranks, 6)
    B = part(weight, rank, ranks).detach()
    for rows in (2, 5, 1, 3):
        full = small(rows * ranks, 8)
        A = full.chunk(ranks)[rank][:, 1:7]
        _, (y,) = lap.all_gather_matmul(A, [B.t()], 0, method="ring")
        same("result", y, (full[:, 1:7] @ weight.t()).chunk(ranks, 1)[rank])
    none = torch.zeros(0, 6, requires_grad=True)
    _, (y,) = lap.all_gather_matmul(none, [B.t()], 0, method="ring", return_A=False)
    y.sum().backward()
    same("no rows", none.grad, none.detach())
    _, (y,) = lap.all_gather_matmul(none, [B.t()], 0, method="ring")
    capacities = [op.desc.m for key, op in _groups._contexts["0", DEVICE].ops.items()
                  if key[0] == lapstrake.Kind.AG_GEMM and key[-2]]
    if capacities != [5 * ranks]:
        raise AssertionError(f"capacities {capacities}")


def kept(rank, ranks, folder):
    """PyTorch keeps what it has compiled on disk: a job with another number of ranks must not take it for its own."""
    os.environ.update(TORCHINDUCTOR_CACHE_DIR=folder, TORCHINDUCTOR_COMPILE_THREADS="1")
    A, B = small(2 * ranks, 4), small(4, 3)

    def step(A, B):
        return lap.all_gather_matmul(A, [B], 0, return_A=False, method="ring")[1][0]

    def without_size(A, B):
        return torch.ops.lapstrake.all_gather_matmul(A, [B], 0, "0", return_A=False, method="direct")[1][0]

    truth = A @ B
    same("compiled", torch.compile(step, fullgraph=True)(A.chunk(ranks)[rank], B), truth)
    try:
        same("compiled", torch.compile(without_size, fullgraph=True)(A.chunk(ranks)[rank], B), truth)
    except lapstrake.InvalidArgument as failure:
        if ranks == 2 or f"group '0' has {ranks} ranks, expected 2, for which this graph was compiled" not in str(failure):
            raise


def captured(rank, ranks):
    """What a CUDA graph has captured stays, also when more rows make an operator anew."""
    weight = small(4 * ranks, 6)
    B = part(weight, rank, ranks).detach()
    few, others, many = (small(rows * ranks, 6) for rows in (2, 2, 5))
    A = few.chunk(ranks)[rank].clone()

    def call(A):
        return lap.all_gather_matmul(A, [B.t()], 0, method="ring")[1][0]

    same("result", call(A), (few @ weight.t()).chunk(ranks, 1)[rank])
    here = _groups._contexts["0", DEVICE]
    (op,) = here.ops.values()
    with contextlib.ExitStack() as stack:
        if DEVICE == "cuda":
            stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            dist.barrier()
            with torch.cuda.graph(graph, stream=stream):
                y = call(A)
        else:
            stack.enter_context(unittest.mock.patch.object(lapstrake.Op, "captured", True))
        same("more rows", call(many.chunk(ranks)[rank]), (many @ weight.t()).chunk(ranks, 1)[rank])
    if op.closed or here.captured != [op] or op in here.ops.values():
        raise AssertionError(f"closed: {op.closed}, kept: {here.captured}")
    if DEVICE == "cuda":
        A.copy_(others.chunk(ranks)[rank])
        graph.replay()
        lap.synchronize()
        same("a graph", y, (others @ weight.t()).chunk(ranks, 1)[rank])
    call(small(6 * ranks, 6).chunk(ranks)[rank])
    if here.captured != [op]:
        raise AssertionError("one that no graph has was kept")
    lap.close()
    if not op.closed:
        raise AssertionError("it outlives its world")


def rows_of_cublasmp(rank, ranks):
    """cuBLASMp cannot do fewer rows than it was made for: each number of them has an operator."""
    made = []

    def make(group, kind, m, n, k, **fields):
        made.append((fields["method"], m))
        return unittest.mock.MagicMock(desc=unittest.mock.Mock(m=m), captured=False)

    here = _groups.context("0", torch.device(DEVICE, 0) if DEVICE == "cuda" else torch.device("cpu"))
    with unittest.mock.patch.object(_groups, "Op", make):
        for method in ("cublasmp:algorithm=no_overlap", "ring"):
            for m in (8, 4, 16, 8):
                here.prepare(lapstrake.Kind.AG_GEMM, Layout.FORWARD, m, 4, 2, torch.float32, method, {}, ())
    if made != [("cublasmp", 8), ("cublasmp", 4), ("cublasmp", 16), ("ring", 8), ("ring", 16)]:
        raise AssertionError(made)
    here.ops.clear()


def misuse(rank, ranks):
    """Each is refused with a sentence before anything is started; the group is as good as before."""
    A, B = torch.zeros(2, 4), torch.zeros(4, 3)
    invalid, ag, rs = lapstrake.InvalidArgument, lap.all_gather_matmul, lap.matmul_reduce_scatter
    fails(invalid, "B is torch.float16, expected torch.float32", ag, A, [B.half()], 0)
    fails(lapstrake.Unsupported, "A is torch.float64, expected torch.float32", ag, A.double(), [B.double()], 0)
    fails(lapstrake.Unsupported, "A is torch.int32", rs, A.int(), B.int(), "sum", 0)
    fails(invalid, "B is [3, 4], expected [4, n]", ag, A, [B.t()], 0)
    fails(invalid, "A is [4], expected at least two dimensions", ag, A[0], [B], 0)
    fails(invalid, "gather_dim is 1, expected a dimension of the rows of A: 0 to 0", ag, A, [B], 1)
    fails(invalid, "with strides (1, 2), expected rows that follow one another", ag, torch.zeros(4, 2).t(), [B], 0)
    fails(invalid, "with strides (6, 2), expected a matrix or its transposed", ag, A, [torch.zeros(4, 6)[:, ::2]], 0)
    fails(invalid, "with strides (0, 0)", ag, torch.zeros(1, 1).expand(2, 4), [B], 0)
    fails(invalid, "Bs has no matrix", ag, A, [], 0)
    fails(invalid, "Bs is a tensor [4, 3], expected a list of matrices", ag, A, B, 0)
    fails(invalid, "reduce_op is 'max', expected 'sum' or 'avg'", rs, A, B, "max", 0)
    fails(invalid, "3 rows are to be scattered, expected a multiple of 2: the size of group '0'", rs,
         torch.zeros(3, 4), B, "sum", 0)
    fails(invalid, "group_name is 'nobody'", ag, A, [B], 0, "nobody")
    fails(invalid, "method 'rnig' is not a method of ag_gemm", ag, A, [B], 0, method="rnig")
    fails(invalid, "method is 'ring:splits=2'", ag, A, [B], 0, method="ring:splits=2")
    fails(invalid, "method is 'ring:num_splits=18446744073709551616'", ag, A, [B], 0,
         method="ring:num_splits=18446744073709551616")
    # Called at once, dispatched, and dispatched without autograd.
    for mode in (contextlib.nullcontext(), torch.device(DEVICE), torch.inference_mode()):
        with mode:
            fails(invalid, "B is None, expected a tensor", ag, A, [None], 0)
            fails(invalid, "A is None, expected a tensor", rs, None, B, "sum", 0)
            fails(invalid, "B is None, expected a tensor", lap.matmul_all_reduce, A, None)
    fails(invalid, "B is None, expected a tensor", ops.gather_matmul, A, None, None, 0, "0", False, "ring", "", "")
    fails(invalid, f"B is on meta, expected {DEVICE}", ag, A, [torch.zeros(4, 3, device="meta")], 0)
    fails(invalid, "X is [3, 1], expected the rows of the product", ops.matmul_with_all_gather, A, B, torch.zeros(3, 1),
         "0")
    for text, bias in (("bias is [4], expected [3]", torch.zeros(4)), ("bias is [1, 3], expected [3]", torch.zeros(1, 3)),
                       ("bias is torch.float16, expected torch.float32 as A", torch.zeros(3).half()),
                       ("bias is [3] with strides (2,), expected elements", torch.zeros(6)[::2])):
        fails(invalid, text, ops.gather_matmul, A, B, bias, 0, "0", False, "ring", "", "")
    # What ranks do not agree on is found when the operator is made.
    fails(lapstrake.Mismatch, "rank", ag, A, [torch.zeros(4, 3 + rank)], 0, method="ring")
    fails(lapstrake.Mismatch, "rank", ag, torch.zeros(2 + rank, 4), [torch.zeros(4, 7)], 0, method="ring")
    same("after all that", ag(A + 1, [B + 1], 0)[1][0], torch.full((4, 3), 4.0))


def another(rank, ranks):
    """Ranks that call operators of one kind with as many rows, but not the same: the sentence says that they are two."""
    A, wide, narrow = torch.ones(2, 4), torch.ones(4, 6), torch.ones(4, 3)
    for B in (wide, narrow):
        lap.all_gather_matmul(A, [B], 0, method="ring")

    def call():
        lap.all_gather_matmul(A, [narrow if rank else wide], 0, method="ring")
        lap.synchronize()
    fails(lapstrake.Mismatch, "rank 0 calls ag_gemm with m = 4, rank 1 calls another ag_gemm with m = 4", call)


def again(rank, ranks, folder):
    """A default group after another one of its name, which somebody still has; ranks are numbered otherwise then."""
    kept = dist.group.WORLD
    for place, store in ((rank, "other"), (ranks - 1 - rank, "last")):
        _, (y,) = lap.all_gather_matmul(torch.full((1, 1), float(place)), [torch.ones(1, 1)], 0)
        same("result", y, torch.arange(float(ranks)).view(-1, 1))
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method=f"file://{folder}/{store}", rank=ranks - 1 - place, world_size=ranks)
        if dist.group.WORLD is kept or dist.group.WORLD.group_name != kept.group_name:
            raise AssertionError("expected another group of the same name")


def of_gpus(rank, ranks, backend):
    """A group whose backend has memory of GPUs only."""
    group = dist.new_group(backend=backend)
    fails(lapstrake.InvalidArgument, f"a tensor is on cpu, but group '{group.group_name}' is of cuda: expected",
          lap.matmul_all_reduce, torch.zeros(2, 4, device="cpu"), torch.zeros(4, 3, device="cpu"), "sum", group)
    if DEVICE == "cuda":
        gather(rank, ranks, torch.float32, 0, True, True, {"group": group}, 1)
        scatter(rank, ranks, torch.float32, 0, True, "sum", {"group": group})
        A, B = small(2, 3), small(3, 4)
        same("sum", lap.matmul_all_reduce(A, B, "sum", group), (A @ B) * ranks)
        layer = lap.Linear(4, 6 * ranks, tp_group=group, sequence_parallel=True, parallel_mode="column", device=DEVICE)
        layer(small(2, 2, 4)).sum().backward()
        lap.reduce_sequence_parallel_gradients(layer)
        lap.synchronize(group)
    dist.destroy_process_group(group)


def groups(rank, ranks):
    """Groups of some ranks, and of another size than the world; a group that is destroyed ends its world."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine, place = pairs[rank // 2], rank % 2
    fails(lapstrake.InvalidArgument, "this rank is not in the process group", lap.matmul_all_reduce, small(4, 3), small(3, 2), "sum",
          pairs[1 - rank // 2])
    fails(lapstrake.InvalidArgument, "group is 7, expected a process group", lap.init, 7)
    fails(lapstrake.InvalidArgument, "tp_group has 2 ranks, expected tp_size, 4", lap.Linear, 4, 8, tp_group=mine, tp_size=4,
          parallel_mode="column")
    fails(lapstrake.InvalidArgument, "this rank is not in the process group", lap.Linear, 4, 8, tp_group=pairs[1 - rank // 2],
          parallel_mode="column")
    if lap.Linear(4, 8, tp_group=mine, parallel_mode="column", device="cpu").tp_size != 2:
        raise AssertionError("a group decides where no size is given")
    full, weight = small(4, 3), small(6, 3)
    given = part(full, place, 2), [part(weight, place, 2).t()], 0
    _, (y,) = lap.all_gather_matmul(*given, mine)
    same("result", y.detach(), (full @ weight.t()).chunk(2, 1)[place])
    context = _groups._contexts[mine.group_name, DEVICE]
    op = next(iter(context.ops.values()))
    name = mine.group_name
    dist.destroy_process_group(mine)
    fails(lapstrake.InvalidArgument, f"group_name is '{name}'", lap.all_gather_matmul, *given, name)  # which is still there
    del mine, pairs
    gc.collect()
    if not (context.world.closed and op.closed):
        raise AssertionError("the world has outlived its group")
    fails(lapstrake.InvalidArgument, f"group_name is '{name}'", lap.all_gather_matmul, full, [weight.t()], 0, name)
    lap.init(device=DEVICE)
    lap.close()
    _, (y,) = lap.all_gather_matmul(part(full, rank, 4), [weight.t()], 0)  # of all ranks, made anew
    same("result", y.detach(), full @ weight.t())


class Layer(torch.nn.Module):
    """Two weights around a GELU, with our operators."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = torch.nn.Parameter(first), torch.nn.Parameter(second)

    def forward(self, x):
        _, (hidden,) = lap.all_gather_matmul(x, [self.first.t()], 0, "0", return_A=False, method="ring")
        return lap.matmul_reduce_scatter(torch.nn.functional.gelu(hidden), self.second.t(), "sum", 0, "0")


def compiled(rank, ranks, backend):
    """torch.compile finds no reason for a second graph, and gives the same bits, gradients too."""
    torch._dynamo.reset()
    full, first, second = torch.randn(2 * ranks, 4), torch.randn(3 * ranks, 4), torch.randn(4, 3 * ranks)
    results = []
    for wraps in (lambda layer: layer, lambda layer: torch.compile(layer, fullgraph=True, backend=backend)):
        layer = Layer(part(first, rank, ranks).detach(), part(second, rank, ranks, 1).detach())
        x = part(full, rank, ranks)
        y = wraps(layer)(x)
        (y ** 2).sum().backward()
        results.append((y.detach(), x.grad, layer.first.grad, layer.second.grad))
    for ours, theirs in zip(*results):
        same("compiled", ours, theirs)


class Watch(TorchDispatchMode):
    """Names of the operators that are called within it."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class WatchFunctions(TorchFunctionMode):
    """The same above autograd."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def seen(rank, ranks):
    """Calls go past PyTorch's dispatcher where nobody looks; who looks sees them, with gradients and without."""
    full, weight = small(2 * ranks, 5), small(4 * ranks, 5)
    truth = (full @ weight.t()).chunk(ranks, 1)[rank]
    slope = (torch.ones(2 * ranks, 4 * ranks) @ weight).chunk(ranks)[rank]
    torch.set_default_device(None)
    for gradient in (False, True):
        A, B = (part(whole, rank, ranks).detach() for whole in (full, weight))
        B.requires_grad_(gradient)

        def call(first=A):
            x = first.requires_grad_(gradient)
            x.grad = None
            y = lap.all_gather_matmul(x, [B.t()], 0, return_A=False)[1][0]
            same("result", y.detach(), truth)
            if y.requires_grad != gradient:
                raise AssertionError("requires_grad")
            if gradient:
                y.sum().backward()
                same("d A", x.grad, slope)
        names = []
        sys.setprofile(lambda frame, event, arg: names.append(frame.f_code.co_name))
        call()
        sys.setprofile(None)
        if "dispatched" in names or "_gather_matmul" not in names:
            raise AssertionError("a call that nobody looks at was dispatched by PyTorch")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            call()
        seers = [[event.key for event in profile.key_averages()]]
        for mode in (Watch, WatchFunctions):
            with mode() as watch:
                call()
            seers.append(watch.names)
        for names in seers:
            if not any("lapstrake" in name and "gather_matmul" in name for name in names):
                raise AssertionError(f"not seen: {names}")
        call(torch._neg_view(-A.detach()))  # memory with the other sign
        left = []
        torch.func.grad(lambda x: left.append(x) or x.sum())(A.detach().clone())
        y = lap.all_gather_matmul(left[0], [B.t()], 0, return_A=False)[1][0]  # a transform left a wrapper
        same("result", y.detach(), truth)


def dispatched_or_not(rank, ranks):
    """What PyTorch's dispatcher refuses or treats otherwise is refused or treated so by calls that go past it."""
    A, B = torch.ones(2, 5), torch.ones(5, 4)
    gathered = torch.full((2 * ranks, 4), 5.0)

    def ag(first, second=B, **options):
        return lap.all_gather_matmul(first, [second], 0, return_A=False, **options)[1][0]
    same("result", ag(A), gathered)
    for options in ({"method": None}, {"wgrad": None}, {"dgrad": 7}):
        fails(RuntimeError, "Expected a value of type 'str'", ag, A, **options)
    for dgrad in ("ring", "gemm_rs", "ag_gemm/ring"):
        fails(lapstrake.InvalidArgument, f"dgrad is '{dgrad}', expected 'gemm_rs/METHOD' or 'bulk_ag/METHOD'", ag, A, dgrad=dgrad)
    fails(RuntimeError, "Expected a value of type 'int'", lap.matmul_reduce_scatter, A, B, "sum", 0.0)
    fails(NotImplementedError, "SparseCPU" if DEVICE == "cpu" else "SparseCUDA", ag, A.to_sparse())
    # Below autograd, as in a kernel of another operator, there is nothing to differentiate.
    with torch._C._AutoDispatchBelowAutograd():
        if ag(A.clone().requires_grad_()).requires_grad:
            raise AssertionError("differentiated below autograd")
    # Forward mode is refused: a tangent may not be lost.
    with torch.autograd.forward_ad.dual_level():
        fails(NotImplementedError, "jvp", ag, torch.autograd.forward_ad.make_dual(A, A))
        same("no tangent", ag(A), gathered)
    fails(RuntimeError, "functorch", torch.func.jvp, ag, (A,), (A,))
    same("vmap", torch.func.vmap(ag)(torch.stack((A, 2 * A))), torch.stack((gathered, 2 * gathered)))
    for gradient in (False, True):
        x, weight = (tensor.to("meta").requires_grad_(gradient) for tensor in (A, B))
        y = ag(x, weight)
        if gradient:
            y.sum().backward()
        if y.shape != gathered.shape or not y.is_meta or gradient and x.grad.shape != x.shape:
            raise AssertionError("the shape on a meta device")
    layer = lap.Linear(5, 4 * ranks, sequence_parallel=True, tp_group=dist.group.WORLD, parallel_mode="column", device="meta")
    if layer(torch.empty(2, 5, device="meta")).shape != gathered.shape:
        raise AssertionError("the shape of a layer on a meta device")


def forks(rank, ranks):
    """A process that is forked, such as one that loads data, gets a sentence; its parent goes on."""
    A, B = torch.ones(2, 4), torch.ones(4, 3)
    lap.all_gather_matmul(A, [B], 0, method="ring")
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            fails(lapstrake.InvalidArgument, "a process that was forked cannot use it", lap.all_gather_matmul, A, [B], 0,
                 method="ring")
        except BaseException:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise AssertionError("the child got no error")
    same("the parent", lap.all_gather_matmul(A, [B], 0, method="ring")[1][0], torch.full((2 * ranks, 3), 4.0))


def hosts(rank, ranks):
    """CPUs on two hosts, which are this machine twice: they meet over TCP, and are told what carries data."""
    os.environ["LAP_NODE"] = str(rank // 2)
    fails(lapstrake.Unsupported, "expected mpirun (MPI carries data between hosts), or GPUs with NCCL", lap.all_gather_matmul,
         torch.ones(2, 4), [torch.ones(4, 3)], 0, method="ring")
    lap.close()


class Ops(Case):
    def test_one_and_two_ranks(self):
        self.on((1, 2), all_cases)

    def test_three_and_four_ranks(self):
        self.on((3, 4), all_cases)

    def test_seen(self):
        self.on((2,), seen)

    def test_dispatched_or_not(self):
        self.on((2,), dispatched_or_not)

    def test_forks(self):
        self.on((2,), forks)

    def test_frozen(self):
        self.on((1, 2), frozen)

    def test_biased(self):
        self.on((1, 2, 3), biased)
        self.on((1, 2, 3), biased_rows)

    def test_the_gradient_of_a_gradient(self):
        self.on((2,), twice)

    def test_rows_of_cublasmp(self):
        self.on((1,), rows_of_cublasmp)

    @unittest.skipIf(DEVICE == "cuda", "the compiler looks for the GPU before ranks are forked")
    def test_kept(self):
        import_compiler()
        with tempfile.TemporaryDirectory() as folder:
            for ranks in (2, 1):
                self.on((ranks,), kept, folder)

    def test_captured(self):
        self.on((1, 2), captured)

    def test_rows_change(self):
        self.on((1, 3), rows_change)

    def test_misuse(self):
        self.on((2,), misuse)

    def test_another(self):
        self.on((2,), another)

    def test_groups(self):
        self.on((4,), groups)

    def test_groups_of_gpus(self):
        self.on((1, 2), of_gpus, "cuda:gloo")

    @unittest.skipUnless(DEVICE == "cuda", "NCCL needs a GPU")
    def test_nccl(self):
        self.on((1,), of_gpus, "nccl")

    @unittest.skipUnless(nccl_shares(), "needs NCCL 2.30 or newer in PyTorch, and NCCL_MULTI_RANK_GPU_ENABLE=1")
    def test_nccl_shared(self):
        self.on((2, 4), of_gpus, "nccl")

    def test_group_again(self):
        with tempfile.TemporaryDirectory() as folder:
            self.on((2,), again, folder)

    def test_compiled(self):
        import_compiler()
        for backend in ("eager", "aot_eager"):
            self.on((1, 2), compiled, backend)

    def test_opcheck(self):
        import_compiler()
        self.on((1,), checked)

    @unittest.skipIf(DEVICE == "cuda", "for CPUs")
    def test_hosts(self):
        self.on((4,), hosts)

    def test_another_pytorch(self):
        """Names that PyTorch does not promise may be gone: then it dispatches every call."""
        code = """
import torch, torch._dynamo, torch.distributed as dist
del torch._C._dispatch_keys
import lapstrake.torch as lap
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
A, B = torch.ones(4, 3, requires_grad=True), torch.ones(3, 2, requires_grad=True)
lap.matmul_reduce_scatter(A, B, "sum", 0).sum().backward()
assert A.grad.eq(2).all() and B.grad.eq(4).all(), (A.grad, B.grad)
dist.destroy_process_group()
"""
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=100)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_no_group(self):
        fails(lapstrake.InvalidArgument, "init_process_group", lap.matmul_all_reduce, torch.ones(2, 2), torch.ones(2, 2))


def checked(rank, ranks):
    """PyTorch's own checks of custom operators: schema, autograd, fake kernels, AOT with symbolic sizes."""
    A, B, X, bias = (torch.randn(*shape, requires_grad=True) for shape in ((4, 3), (3, 5), (4, 2), (5,)))
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for op, arguments in (
        (ops.gather_matmul, (A, B, None, 0, "0", True, "ring", "gemm_rs/ring", "direct")),
        (ops.gather_matmul, (A, B, bias, 0, "0", False, "ring", "bulk_ag/direct", "direct")),
        (ops.matmul_scatter, (A, B, bias, "sum", 0, "0", "ring", "ring")),
        (ops.matmul_all_reduce, (A, B, "sum", "0", "direct")),
        (ops.copy_matmul, (A, B, "0", "direct")),
        (ops.all_gather, (X, "0", "direct")),
        (ops.reduce_scatter, (X, "0", "direct")),
    ):
        torch.library.opcheck(op, arguments, test_utils=tests)
    A, B, X = A.detach(), B.detach(), X.detach()
    for op in (ops.matmul_with_all_gather, ops.matmul_with_reduce_scatter):
        torch.library.opcheck(op, (A, B, X, "0", "direct"), test_utils=tests[:3])
    torch.library.opcheck(ops.matmul_with_reduce_scatter, (A, B, X, "0", "direct", True), test_utils=tests[:3])


if __name__ == "__main__":
    unittest.main()
