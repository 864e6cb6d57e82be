# SPDX-License-Identifier: Apache-2.0
"""Lapstrake for PyTorch: overlapped operators and modules, over the process groups of torch.distributed."""

from lapstrake.torch._groups import close, init, synchronize
from lapstrake.torch._ops import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from lapstrake.torch._rules import destroy_ub, initialize_ub
from lapstrake.torch.modules import LayerNormLinear, LayerNormMLP, Linear, reduce_sequence_parallel_gradients
from lapstrake.torch.transformer import MultiheadAttention, TransformerLayer

__all__ = [
    "LayerNormLinear", "LayerNormMLP", "Linear", "MultiheadAttention", "TransformerLayer", "all_gather_matmul", "close",
    "destroy_ub", "init", "initialize_ub", "matmul_all_reduce", "matmul_reduce_scatter",
    "reduce_sequence_parallel_gradients", "synchronize",
]
