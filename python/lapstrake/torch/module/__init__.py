# SPDX-License-Identifier: Apache-2.0
"""Names where TransformerEngine has them."""

from lapstrake.torch._rules import UserBufferQuantizationMode, destroy_ub, initialize_ub
from lapstrake.torch.module import base
from lapstrake.torch.modules import LayerNormLinear, LayerNormMLP, Linear

__all__ = ["LayerNormLinear", "LayerNormMLP", "Linear", "UserBufferQuantizationMode", "base", "destroy_ub",
           "initialize_ub"]
