# SPDX-License-Identifier: Apache-2.0
"""Lapstrake for PyTorch: overlapped operators and modules, over the process groups of torch.distributed."""

from typing import TYPE_CHECKING, Dict

from lapstrake.torch._checkpoint import checkpoint
from lapstrake.torch._groups import close, init, synchronize
from lapstrake.torch._ops import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from lapstrake.torch._rules import UserBufferQuantizationMode, destroy_ub, initialize_ub
from lapstrake.torch.fp8 import (autocast, fp8_autocast, fp8_model_init, get_default_recipe, is_fp8_available,
                                 is_fp8_block_scaling_available, is_mxfp8_available,
                                 is_nvfp4_available, quantized_model_init)
from lapstrake.torch import distributed, module
from lapstrake.torch.modules import LayerNormLinear, LayerNormMLP, Linear, reduce_sequence_parallel_gradients
from lapstrake.torch.transformer import MultiheadAttention, TransformerLayer

__all__ = [
    "LayerNormLinear", "LayerNormMLP", "Linear", "MultiheadAttention", "TransformerLayer", "UserBufferQuantizationMode",
    "all_gather_matmul", "autocast", "checkpoint", "close", "destroy_ub", "distributed", "fp8_autocast",
    "fp8_model_init", "get_default_recipe", "init", "initialize_ub", "is_fp8_available", "is_fp8_block_scaling_available",
    "is_mxfp8_available", "is_nvfp4_available", "matmul_all_reduce", "matmul_reduce_scatter", "module",
    "quantized_model_init", "reduce_sequence_parallel_gradients", "synchronize",
]

# What TransformerEngine has and this package has not, with what to take instead.
_ABSENT: Dict[str, str] = {
    "CudaRNGStatesTracker": "get_rng_state_tracker takes that of Megatron, or one of your own",
    "DotProductAttention": "use torch.nn.functional.scaled_dot_product_attention",
    "LayerNorm": "use torch.nn.LayerNorm, and with sequence parallelism sum its gradients over the ranks",
    "RMSNorm": "use torch.nn.RMSNorm, and with sequence parallelism sum its gradients over the ranks",
    "RotaryPositionEmbedding": "rotary_pos_emb takes the angles, [s, 1, 1, d]",
    "get_cpu_offload_context": "use torch.autograd.graph.save_on_cpu",
    "make_graphed_callables": "use torch.cuda.make_graphed_callables",
    "optimizers": "use torch.optim",
    **dict.fromkeys(("Float8Tensor", "QuantizedTensor", "Float8Quantizer", "Float8CurrentScalingQuantizer"),
                    "parameters are not stored in FP8"),
    **dict.fromkeys(("Fp8Padding", "Fp8Unpadding", "GroupedLinear", "InferenceParams", "apply_recipe", "attention",
                     "constants", "moe_permute", "moe_unpermute", "onnx_export", "ops",
                     "parallel_cross_entropy", "quantization", "tensor", "utils"), "there is nothing like it here"),
}

if not TYPE_CHECKING:
    def __getattr__(name: str) -> None:
        """Only for names that there are not."""
        if name in _ABSENT:
            raise AttributeError(f"lapstrake.torch has no {name}, which TransformerEngine has: {_ABSENT[name]}")
        raise AttributeError(f"module 'lapstrake.torch' has no attribute '{name}'")
