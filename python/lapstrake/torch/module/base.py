# SPDX-License-Identifier: Apache-2.0
"""Names where TransformerEngine has them."""

from lapstrake.torch._rules import UserBufferQuantizationMode, destroy_ub, initialize_ub

__all__ = ["UserBufferQuantizationMode", "destroy_ub", "initialize_ub"]
