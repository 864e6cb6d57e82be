# SPDX-License-Identifier: Apache-2.0
"""Names where TransformerEngine has them."""

from lapstrake.torch._checkpoint import checkpoint

__all__ = ["checkpoint"]
