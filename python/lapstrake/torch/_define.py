# SPDX-License-Identifier: Apache-2.0
"""How operators become operators of PyTorch, and how Python calls them.

PyTorch's dispatcher, with kernels in Python, takes longer than a small operator itself. So a call from Python goes to
the kernel at once where nobody else is to see it: neither torch.compile nor another mode, no transform of torch.func,
no profiler, no subclass of tensors. Otherwise PyTorch dispatches it.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from lapstrake.errors import Unsupported

library = torch.library.Library("lapstrake", "DEF")
TAGS = (torch.Tag.needs_fixed_stride_order,)
ops = torch.ops.lapstrake

_PLAIN = (Tensor, torch.nn.Parameter)
_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._are_functorch_transforms_active
_profiled = torch._C._autograd._profiler_enabled
_traced = torch._C._is_tracing
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def define(schema: str, kernel: Any, fake: Any) -> None:
    """Makes an operator."""
    name = schema[:schema.index("(")]
    library.define(schema, tags=TAGS)
    for key in ("CPU", "CUDA"):
        library.impl(name, kernel, key)
    torch.library.register_fake(f"lapstrake::{name}", fake, lib=library)


def _plain(tensor: Tensor) -> bool:
    """Whether a tensor is its memory: no subclass, no wrapper of a transform, no view with the sign changed."""
    return type(tensor) in _PLAIN and not tensor.is_neg() and not _wrapped(tensor)


def _alone() -> bool:
    """Whether nobody else is to see an operator."""
    return not (torch.compiler.is_compiling() or _modes() or _function_modes() or _transforms() or _profiled()
                or _traced())


def differentiate(name: str, kernel: Any, backward: Any, setup: Any) -> Callable[..., Any]:
    """Registers the gradient of an operator, and returns the operator as Python calls it.

    `setup` is given a context, the arguments and the result; `backward` returns the gradients of the tensors, which are
    the first arguments; one may be None.
    """
    op = getattr(ops, name).default
    arguments = op._schema.arguments
    defaults = tuple(argument.default_value for argument in arguments)
    tensors = sum(str(argument.type) in ("Tensor", "Optional[Tensor]") for argument in arguments)

    def below(*inputs: Any) -> Any:
        if _modes() == 0 and all(tensor is None or _plain(tensor) for tensor in inputs[:tensors]):
            return kernel(*inputs)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*inputs)

    def function(run: Callable[..., Any]) -> Any:
        # All that is no tensor is one argument: PyTorch looks at each.
        def forward(ctx: Any, *given: Any) -> Any:
            inputs = (*given[:tensors], *given[tensors])
            output = run(*inputs)
            setup(ctx, inputs, output)
            return output

        return type(f"{name}_autograd", (torch.autograd.Function,),
                    {"forward": staticmethod(forward),
                     "backward": staticmethod(lambda ctx, *given: (*backward(ctx, *given), None))})

    apply_below = function(below).apply
    # apply() of torch.autograd.Function looks for transforms, and for wrappers that they left; here there are none.
    apply = super(torch.autograd.Function, function(kernel)).apply  # type: ignore[misc]

    def dispatched(*inputs: Any) -> Any:
        if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad
                                           for tensor in inputs[:tensors]):
            return apply_below(*inputs[:tensors], (*inputs[tensors:], *defaults[len(inputs):]))
        return below(*inputs)

    def call(*inputs: Any) -> Any:
        if not _alone():
            return op(*inputs)
        needed = False
        for tensor in inputs[:tensors]:
            if tensor is not None:
                if not _plain(tensor):
                    return op(*inputs)
                needed = needed or tensor.requires_grad
        if needed and torch.is_grad_enabled():
            return apply(*inputs[:tensors], (*inputs[tensors:], *defaults[len(inputs):]))
        return kernel(*inputs)

    library.impl(name, dispatched, "Autograd")
    return call


def refuse_gradient(name: str, kernel: Any) -> Callable[..., Any]:
    """Operators of backward are not differentiated themselves: without this PyTorch would leave their gradients out."""
    def backward(ctx: Any, *unused: Any) -> Any:
        raise Unsupported(f"the gradient of a gradient needs that of {name}, which has none: use autograd without "
                          "create_graph, or dgrad='gemm_rs/auto' in all_gather_matmul")
    return differentiate(name, kernel, backward, lambda ctx, inputs, output: None)
