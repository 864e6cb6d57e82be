# SPDX-License-Identifier: Apache-2.0
"""How operators become operators of PyTorch, and how Python calls them.

PyTorch's dispatcher, with kernels in Python, takes longer than a small operator itself. So a call from Python goes to
the kernel at once where the dispatcher would do nothing else: neither torch.compile nor another mode, no transform of
torch.func, no profiler, no subclass of tensors is to see it, and its arguments are of the types that the schema names.
Otherwise PyTorch dispatches it.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any, Callable, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lapstrake.errors import InvalidArgument, Unsupported

library = torch.library.Library("lapstrake", "DEF")
TAGS = (torch.Tag.needs_fixed_stride_order,)
ops = torch.ops.lapstrake

# The types of arguments that need no dispatcher to check or convert them. Types are compared, not instances: a subclass
# may have its own way of being dispatched.
_PLAIN = (Tensor, torch.nn.Parameter)
_TYPES = {"Tensor": _PLAIN, "Optional[Tensor]": (*_PLAIN, type(None)), "int": (int,), "bool": (bool,), "str": (str,),
          "List[str]": (list, tuple), "ScalarType": (torch.dtype,)}


def _sets_of_keys() -> Any:
    """The dispatch keys of a tensor that is its memory, made in inference mode or not: it is no wrapper of a transform, no
    view with the sign changed, not sparse, and not on a meta device."""
    key, sets = torch._C.DispatchKey, torch._C.DispatchKeySet
    for backend, autograd, autocast in ((key.CPU, key.AutogradCPU, key.AutocastCPU),
                                        (key.CUDA, key.AutogradCUDA, key.AutocastCUDA)):
        inference = sets(backend) | sets(autocast)
        yield inference.raw_repr()
        yield (inference | sets(autograd) | sets(key.ADInplaceOrView)).raw_repr()


try:
    _keys = torch._C._dispatch_keys
    _modes = torch._C._len_torch_dispatch_stack
    _function_modes = torch._C._len_torch_function_stack
    _transforms = torch._C._are_functorch_transforms_active
    _profiled = torch._C._autograd._profiler_enabled
    _traced = torch._C._is_tracing
    _excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
    _AUTOGRAD = torch._C.DispatchKey.AutogradOther  # it is excluded with those of all devices
    _MEMORY = frozenset(_sets_of_keys())
except AttributeError:  # PyTorch promises none of these names: without one of them it dispatches every call
    _MEMORY = frozenset()


def define(schema: str, kernel: Any, fake: Any) -> None:
    """Makes an operator."""
    name = schema[:schema.index("(")]
    library.define(schema, tags=TAGS)
    for key in ("CPU", "CUDA"):
        library.impl(name, kernel, key)
    torch.library.register_fake(f"lapstrake::{name}", fake, lib=library)


def _alone() -> bool:
    """Whether nobody else is to see an operator."""
    return bool(_MEMORY) and not (torch.compiler.is_compiling() or _modes() or _function_modes() or _transforms()
                                  or _profiled() or _traced())


def _is_forward() -> bool:
    """Whether tensors may have tangents."""
    return bool(getattr(forward_ad, "_current_level", -1) >= 0)


def _one_by_one(op: Any, info: Any, dims: Any, *inputs: Any) -> Any:
    """vmap of an operator: PyTorch's own loop takes no results that may be None."""
    results = [op(*(given if dim is None else given.select(dim, index) for given, dim in zip(inputs, dims)))
               for index in range(info.batch_size)]
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    stacked = tuple(None if parts[0] is None else torch.stack(parts) for parts in zip(*results))
    return stacked, tuple(None if part is None else 0 for part in stacked)


def _save_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    pass


def differentiate(name: str, kernel: Any, backward: Any, setup: Any = _save_nothing) -> Callable[..., Any]:
    """Registers the gradient of an operator, and returns the operator as Python calls it.

    Tensors are the first arguments. `setup` is given a context, the arguments and the result, and saves tensors; the
    other arguments are `rest` of the context. `backward` returns the gradients of the tensors; one may be None.
    """
    op = getattr(ops, name).default
    arguments = op._schema.arguments
    defaults = tuple(argument.default_value for argument in arguments)
    types = [_TYPES[str(argument.real_type)] for argument in arguments]
    tensors = sum(Tensor in accepted for accepted in types)
    # Those of each number of arguments that a call may give.
    least = sum(not argument.has_default_value() for argument in arguments)
    plain_types = {given for count in range(least, len(types) + 1) for given in product(*types[:count])}
    # torch.jit.trace knows no results that may be None, and no lists of strings; its own sentences say no more than that.
    traceable = not any("Optional" in str(result.real_type) for result in op._schema.returns) and "List[str]" not in map(
        str, (argument.real_type for argument in arguments))
    required = [(place, argument.name) for place, argument in enumerate(arguments) if types[place] is _PLAIN]

    def refuse_none(inputs: Tuple[Any, ...]) -> None:
        """For PyTorch None is a tensor that is not defined, and kernels are called with it."""
        for place, argument in required:
            if inputs[place] is None:
                raise InvalidArgument(f"{argument} is None, expected a tensor")

    def below(*inputs: Any) -> Any:
        if _MEMORY and _modes() == 0 and all(tensor is None or type(tensor) in _PLAIN and _keys(tensor).raw_repr() in _MEMORY
                                 for tensor in inputs[:tensors]):
            return kernel(*inputs)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*inputs)

    def function(run: Callable[..., Any]) -> Any:
        # All that is no tensor is one argument: PyTorch looks at each.
        def forward(ctx: Any, *given: Any) -> Any:
            ctx.rest = rest = given[tensors]
            inputs = (*given[:tensors], *rest)
            output = run(*inputs)
            setup(ctx, inputs, output)
            return output

        return type(f"{name}_autograd", (torch.autograd.Function,),
                    {"forward": staticmethod(forward),
                     "backward": staticmethod(lambda ctx, *given: (*backward(ctx, *given), None))})

    apply_below = function(below).apply
    # apply() of torch.autograd.Function looks for transforms, and for wrappers that they left; here there are none.
    apply = super(torch.autograd.Function, function(kernel)).apply

    def dispatched(*inputs: Any) -> Any:
        refuse_none(inputs)
        needed = any(tensor is not None and tensor.requires_grad for tensor in inputs[:tensors])
        if needed and torch.is_grad_enabled() or _is_forward():
            return apply_below(*inputs[:tensors], (*inputs[tensors:], *defaults[len(inputs):]))
        return below(*inputs)

    def call(*inputs: Any) -> Any:
        if not _alone() or tuple(map(type, inputs)) not in plain_types:
            refuse_none(inputs)
            if not traceable and torch.jit.is_tracing():
                raise Unsupported(f"torch.jit.trace cannot record lapstrake::{name}: use torch.compile or torch.export")
            return op(*inputs)
        needed = False
        for tensor in inputs[:tensors]:
            if tensor is not None:
                if _keys(tensor).raw_repr() not in _MEMORY:
                    return op(*inputs)
                needed = needed or tensor.requires_grad
        # Forward mode: a Function refuses tangents, which would be lost. Below autograd, as in the kernel of an operator
        # that calls this one, that operator has the gradient.
        if (needed and torch.is_grad_enabled() or _is_forward()) and not _excluded(_AUTOGRAD):
            return apply(*inputs[:tensors], (*inputs[tensors:], *defaults[len(inputs):]))
        return kernel(*inputs)

    library.impl(name, dispatched, "Autograd")
    torch.library.register_vmap(op, partial(_one_by_one, op), lib=library)
    return call


def refuse_gradient(name: str, kernel: Any) -> Callable[..., Any]:
    """Operators of backward are not differentiated themselves: without this PyTorch would leave their gradients out."""
    def backward(ctx: Any, *unused: Any) -> Any:
        raise Unsupported(f"the gradient of a gradient needs that of {name}, which has none: use autograd without "
                          "create_graph, or dgrad='gemm_rs/auto' in all_gather_matmul")
    return differentiate(name, kernel, backward)
