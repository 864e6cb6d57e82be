# SPDX-License-Identifier: Apache-2.0
"""Lapstrake for PyTorch: overlapped operators and modules, over the process groups of torch.distributed."""

from lapstrake.torch._checkpoint import checkpoint
from lapstrake.torch._groups import close, init, synchronize
from lapstrake.torch._ops import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from lapstrake.torch._rules import UserBufferQuantizationMode, destroy_ub, initialize_ub
from lapstrake.torch.fp8 import (autocast, fp8_autocast, fp8_model_init, get_default_recipe, is_fp8_available,
                                 is_fp8_block_scaling_available, is_mxfp8_available,
                                 is_nvfp4_available, quantized_model_init)
from lapstrake.torch import module
from lapstrake.torch.modules import LayerNormLinear, LayerNormMLP, Linear, reduce_sequence_parallel_gradients
from lapstrake.torch.transformer import MultiheadAttention, TransformerLayer

__all__ = [
    "LayerNormLinear", "LayerNormMLP", "Linear", "MultiheadAttention", "TransformerLayer", "UserBufferQuantizationMode",
    "all_gather_matmul", "autocast", "checkpoint", "close", "destroy_ub", "fp8_autocast", "fp8_model_init",
    "get_default_recipe", "init", "initialize_ub", "is_fp8_available", "is_fp8_block_scaling_available",
    "is_mxfp8_available", "is_nvfp4_available", "matmul_all_reduce", "matmul_reduce_scatter", "module",
    "quantized_model_init", "reduce_sequence_parallel_gradients", "synchronize",
]
