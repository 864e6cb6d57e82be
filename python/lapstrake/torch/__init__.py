# SPDX-License-Identifier: Apache-2.0
"""Lapstrake for PyTorch: overlapped operators with autograd, over the process groups of torch.distributed."""

from lapstrake.torch._groups import close, init, synchronize
from lapstrake.torch._ops import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter

__all__ = ["all_gather_matmul", "close", "init", "matmul_all_reduce", "matmul_reduce_scatter", "synchronize"]
