# SPDX-License-Identifier: Apache-2.0
"""x W^T of FP8 matrices with the communication of a layer, and its gradients.

Results are in the type of x, the weight's gradient in that of the weight, sums over ranks in these, too. dgrad takes a
transposed copy of the weight: tensor cores want k along the rows of both matrices.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from lapstrake._abi import Kind, Layout
from lapstrake.errors import InvalidArgument, Unsupported
from lapstrake.torch import fp8
from lapstrake.torch._groups import DTYPES, Call, context, group_size, plain_name, prepared
from lapstrake.torch._matrix import TYPES, divided, shape_of
from lapstrake.torch._define import define, differentiate, refuse_gradient
from lapstrake.torch.fp8 import Scaled, Slot
from lapstrake.torch.recipe import Recipe


class Plan(NamedTuple):
    """How a layer multiplies: `mode` is "column", "row" or "" for no communication; then the group is ""."""

    mode: str
    sequence_parallel: bool
    group: str
    size: int
    methods: Tuple[str, str, str]
    recipe: Recipe
    slots: Dict[str, Slot]
    training: bool

    def cast(self, **matrices: Tensor) -> Tuple[Scaled, ...]:
        """Matrices in FP8, by the names of their slots; "g" is a gradient."""
        operands = []
        for name, rows in matrices.items():
            dtype = fp8.backward_dtype(self.recipe) if name == "g" else fp8.FORWARD
            slot = self.slots.get(name)
            if slot is None or (slot.dtype, slot.scale.device, slot.group) != (dtype, rows.device, self.group):
                slot = self.slots[name] = Slot(dtype, rows.device, self.group)
            operands.append((rows, slot))
        return tuple(fp8.quantize(operands, self.recipe, self.training))


def _view(matrix: Tensor) -> Tuple[int, int, int]:
    rows, cols = matrix.shape
    return rows, cols, max(cols, 1)


def _prepare(kind: Kind, layout: Layout, group: str, method: str, sizes: Tuple[int, int, int],
             tensors: Dict[str, Tensor]) -> Call:
    fields: Dict[str, torch.dtype] = {}
    if "b" in tensors:
        fields.update(b_dtype=tensors["b"].dtype, out_dtype=tensors["d"].dtype)
    if kind == Kind.BULK_RS:
        fields.update(wire_dtype=tensors["x"].dtype, y_dtype=tensors["y"].dtype)
    elif kind == Kind.BULK_AG:
        fields.update(wire_dtype=tensors["x"].dtype)
    first = tensors["a"] if "a" in tensors else tensors["x"]
    return context(group, first.device).prepare(
        kind, layout, *sizes, first.dtype, method, {name: _view(tensor) for name, tensor in tensors.items()}, (),
        cols=tensors["x"].shape[1] if "x" in tensors else 0, gather="gathered" in tensors,
        types={name: tensor.dtype for name, tensor in tensors.items()},
        fields={name: DTYPES[dtype] for name, dtype in fields.items()})


def _run(kind: Kind, layout: Layout, plan: Plan, method: str, sizes: Tuple[int, int, int], *,
         a: Optional[Scaled] = None, b: Optional[Scaled] = None, x: Any = None, **outputs: Tensor) -> None:
    """One call of an operator; `x` may be FP8 or not. Collective."""
    tensors = dict(outputs)
    scales = {}
    for name, matrix, scale in (("a", a, "a_scale_ptr"), ("b", b, "b_scale_ptr"), ("x", x, "wire_scale_ptr")):
        if matrix is not None:
            tensors[name] = matrix.data if isinstance(matrix, Scaled) else matrix
            if isinstance(matrix, Scaled):
                scales[scale] = matrix.scale.data_ptr()
    device = outputs["y" if x is not None else "d"].device
    key = ("fp8", kind, plan.group, device, layout, method, sizes,
           *((name, t.shape, t.dtype) for name, t in tensors.items()))
    call = prepared(key, plan.group, _prepare, kind, layout, plan.group, method, sizes, tensors)
    gathers = "gathered" in tensors or "wire_scale_ptr" in scales
    # The scales of shards: all the same.
    found = torch.empty(plan.size, dtype=torch.float32, device=device) if gathers else None
    with call.lock:
        for name, tensor in tensors.items():
            getattr(call, name).data = tensor.data_ptr()
        for name, address in scales.items():
            setattr(call.arguments, name, address)
        if found is not None:
            call.arguments.scales = ctypes.cast(found.data_ptr(), ctypes.POINTER(ctypes.c_float))
        call.start()


def _transposed(matrix: Scaled) -> Scaled:
    return Scaled(matrix.data.view(torch.uint8).t().contiguous().view(matrix.data.dtype), matrix.scale)


def _local(plan: Plan, a: Scaled, b: Scaled, dtype: torch.dtype) -> Tensor:
    """a b^T without communication."""
    if not plan.group:
        wide = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
        return (a.wide(wide) @ b.wide(wide).t()).to(dtype)
    d = torch.empty(a.data.shape[0], b.data.shape[0], dtype=dtype, device=a.data.device)
    _run(Kind.GEMM, Layout.FORWARD, plan, "", (d.shape[0], d.shape[1], a.data.shape[1]), a=a, b=b, d=d)
    return d


def _weight_gradient(plan: Plan, g: Scaled, x: Scaled, dtype: torch.dtype) -> Tensor:
    """g^T x."""
    if not plan.group:
        return (g.wide(torch.float32).t() @ x.wide(torch.float32)).to(dtype)
    d = torch.empty(g.data.shape[1], x.data.shape[1], dtype=dtype, device=g.data.device)
    _run(Kind.GEMM, Layout.WGRAD, plan, "", (g.data.shape[0], *d.shape), a=g, b=x, d=d)
    return d


def _gathered(plan: Plan, x: Scaled, method: str) -> Scaled:
    """The rows of all ranks."""
    y = x.data.new_empty(x.data.shape[0] * plan.size, x.data.shape[1])
    _run(Kind.EXTERNAL_AG, Layout.FORWARD, plan, method, (y.shape[0], 0, 0), x=x, y=y)
    return Scaled(y, x.scale)


def _forward(plan: Plan, x: Scaled, w: Scaled, dtype: torch.dtype) -> Tensor:
    rows, inner, features = x.data.shape[0], x.data.shape[1], w.data.shape[0]
    if plan.mode == "column" and plan.sequence_parallel:
        d = torch.empty(rows * plan.size, features, dtype=dtype, device=x.data.device)
        _run(Kind.AG_GEMM, Layout.FORWARD, plan, plan.methods[0], (d.shape[0], features * plan.size, inner), a=x, b=w,
             d=d)
        return d
    if plan.mode == "row":
        return _reduced(plan, x, w, dtype, plan.methods[0])
    return _local(plan, x, w, dtype)


def _reduced(plan: Plan, a: Scaled, b: Scaled, dtype: torch.dtype, method: str) -> Tensor:
    """The sum of a b^T over ranks: this rank's rows of it with sequence parallelism, else all."""
    rows, inner = a.data.shape
    kind, share = (Kind.GEMM_RS, rows // plan.size) if plan.sequence_parallel else (Kind.GEMM_AR, rows)
    d = torch.empty(share, b.data.shape[0], dtype=dtype, device=a.data.device)
    _run(kind, Layout.FORWARD, plan, method if plan.sequence_parallel else "auto",
         (rows, d.shape[1], inner * plan.size), a=a, b=b, d=d)
    return d


def _column_backward(plan: Plan, g: Scaled, x: Scaled, w: Scaled, dtypes: Tuple[torch.dtype, torch.dtype],
                     needs_x: bool, needs_w: bool) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """With sequence parallelism: g has all rows, x a rank's own."""
    kind, _, dgrad = plan.methods[1].partition("/")
    wgrad = plan.methods[2]
    if needs_x and needs_w and kind == "bulk_ag":
        # d x of this rank, while x is gathered again; then d w, while d x is reduced.
        turned, rows = _transposed(w), g.data.shape[0]
        dx = torch.empty(rows, turned.data.shape[0], dtype=dtypes[0], device=g.data.device)
        full = Scaled(x.data.new_empty(rows, x.data.shape[1]), x.scale)
        _run(Kind.BULK_AG, Layout.FORWARD, plan, dgrad, (rows, dx.shape[1], g.data.shape[1]), a=g, b=turned, d=dx, x=x,
             y=full.data)
        dw = torch.empty(w.data.shape, dtype=dtypes[1], device=g.data.device)
        mine = dx.new_empty(rows // plan.size, dx.shape[1])
        _run(Kind.BULK_RS, Layout.WGRAD, plan, wgrad, (rows, *dw.shape), a=g, b=full, d=dw, x=dx, y=mine)
        return mine, dw
    method = dgrad if kind == "gemm_rs" else "auto"
    return (_reduced(plan, g, _transposed(w), dtypes[0], method) if needs_x else None,
            _weight_gradient(plan, g, _gathered(plan, x, "auto"), dtypes[1]) if needs_w else None)


def _row_backward(plan: Plan, g: Scaled, x: Scaled, w: Scaled, dtypes: Tuple[torch.dtype, torch.dtype], needs_x: bool,
                  needs_w: bool) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """With sequence parallelism: x has all rows, g a rank's own."""
    if not needs_x:
        return None, _weight_gradient(plan, _gathered(plan, g, "auto"), x, dtypes[1]) if needs_w else None
    turned = _transposed(w)  # [k of this rank, n]
    dx = torch.empty(x.data.shape, dtype=dtypes[0], device=g.data.device)
    full = Scaled(g.data.new_empty(dx.shape[0], g.data.shape[1]), g.scale)
    _run(Kind.AG_GEMM, Layout.FORWARD, plan, plan.methods[1], (dx.shape[0], dx.shape[1] * plan.size, g.data.shape[1]),
         a=g, b=turned, d=dx, gathered=full.data)
    return dx, _weight_gradient(plan, full, x, dtypes[1]) if needs_w else None


def _plain_backward(plan: Plan, g: Scaled, x: Scaled, w: Scaled, dtypes: Tuple[torch.dtype, torch.dtype], needs_x: bool,
                    needs_w: bool) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    dx = None
    if needs_x:
        turned = _transposed(w)
        dx = (_reduced(plan, g, turned, dtypes[0], "auto") if plan.mode == "column" else
              _local(plan, g, turned, dtypes[0]))
    return dx, _weight_gradient(plan, g, x, dtypes[1]) if needs_w else None


# ---- operators of torch.library: torch.compile does not look into them ----
#
# Their last arguments are those of a plan; `slots` is the handle of a module's, `scales` are those of x and the weight.


def _plan(slots: Tensor, mode: str, sequence_parallel: bool, group_name: str, methods: List[str], recipe: str,
          training: bool) -> Plan:
    size = group_size(group_name) if group_name else 1
    return Plan(mode if group_name else "", sequence_parallel, plain_name(group_name), size,
                (methods[0], methods[1], methods[2]), fp8.recipe_of(recipe), fp8.slots_of(slots, mode), training)


def _linear(x: Tensor, weight: Tensor, slots: Tensor, *rest: Any) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    shape, plan = _result(x, weight, *rest), _plan(slots, *rest)
    x8, w8 = plan.cast(x=x.reshape(-1, x.shape[-1]), w=weight)
    scales = torch.cat((x8.scale, w8.scale))  # a copy: the slots keep theirs
    # As what it is, not a view: autograd refuses to change views in place.
    return torch.ops.aten._unsafe_view(_forward(plan, x8, w8, x.dtype), shape), x8.data, w8.data, scales


def _result(x: Tensor, weight: Tensor, mode: str, sequence_parallel: bool, group_name: str, *unused: Any
            ) -> Tuple[Any, ...]:
    """The shape of the result. What is wrong is told before anything is started: all ranks find it, or none."""
    if x.dim() < (2 if group_name else 1) or x.shape[-1] != weight.shape[1]:
        raise InvalidArgument(f"x is {shape_of(x)}, expected [..., {weight.shape[1]}]: the columns of the weight")
    if group_name and x.dtype not in TYPES:
        raise Unsupported(f"x is {x.dtype}, expected torch.float32, torch.float16 or torch.bfloat16")
    if not sequence_parallel:
        return (*x.shape[:-1], weight.shape[0])
    size = group_size(group_name)
    rows = x.shape[0] * size if mode == "column" else divided(x.shape[0], size, group_name)
    return (rows, *x.shape[1:-1], weight.shape[0])


def _linear_fake(x: Tensor, weight: Tensor, slots: Tensor, *rest: Any) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    return (x.new_empty(_result(x, weight, *rest)),
            x.new_empty(x.numel() // x.shape[-1], x.shape[-1], dtype=fp8.FORWARD),
            weight.new_empty(weight.shape, dtype=fp8.FORWARD), x.new_empty(8, dtype=torch.float32))


def _linear_backward(dy: Tensor, x8: Tensor, w8: Tensor, scales: Tensor, slots: Tensor, needs_x: bool, needs_w: bool,
                     weight_dtype: torch.dtype, *rest: Any) -> Tuple[Tensor, Tensor]:
    plan = _plan(slots, *rest)
    (g,) = plan.cast(g=dy.reshape(-1, dy.shape[-1]))
    part = _plain_backward
    if plan.sequence_parallel:
        part = _column_backward if plan.mode == "column" else _row_backward
    dx, dw = part(plan, g, Scaled(x8, scales[:4]), Scaled(w8, scales[4:]), (dy.dtype, weight_dtype), needs_x, needs_w)
    return dy.new_empty(0) if dx is None else dx, dy.new_empty(0) if dw is None else dw


def _linear_backward_fake(dy: Tensor, x8: Tensor, w8: Tensor, scales: Tensor, slots: Tensor, needs_x: bool,
                          needs_w: bool, weight_dtype: torch.dtype, *rest: Any) -> Tuple[Tensor, Tensor]:
    return (x8.new_empty(x8.shape if needs_x else 0, dtype=dy.dtype),
            w8.new_empty(w8.shape if needs_w else 0, dtype=weight_dtype if needs_w else dy.dtype))


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, ...]) -> None:
    ctx.shape, ctx.weight_dtype = inputs[0].shape, inputs[1].dtype
    ctx.set_materialize_grads(False)  # of FP8 matrices there are none
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*output[1:], inputs[2])


def _gradient(ctx: Any, dy: Optional[Tensor], *unused: Any) -> Tuple[Any, ...]:
    if dy is None:
        return None, None, None
    needs_x, needs_w = ctx.needs_input_grad[:2]
    dx, dw = _apply_backward(dy, *ctx.saved_tensors, needs_x, needs_w, ctx.weight_dtype, *ctx.rest)
    return dx.view(ctx.shape) if needs_x else None, dw if needs_w else None, None


_REST = "str mode, bool sequence_parallel, str group_name, str[] methods, str recipe, bool training"
define(f"fp8_linear(Tensor x, Tensor weight, Tensor slots, {_REST}) -> (Tensor, Tensor, Tensor, Tensor)", _linear,
       _linear_fake)
define("fp8_linear_backward(Tensor dy, Tensor x8, Tensor w8, Tensor scales, Tensor slots, bool needs_x, bool needs_w, "
       f"ScalarType weight_dtype, {_REST}) -> (Tensor, Tensor)", _linear_backward, _linear_backward_fake)
_apply: Callable[..., Tuple[Tensor, ...]] = differentiate("fp8_linear", _linear, _gradient, _setup)
_apply_backward = refuse_gradient("fp8_linear_backward", _linear_backward)


def linear(x: Tensor, weight: Tensor, slots: fp8.Slots, mode: str, sequence_parallel: bool, group: str,
           methods: Tuple[str, str, str], recipe: str, training: bool) -> Tensor:
    """x W^T of FP8 matrices; without a group there is no communication, whatever the mode."""
    return _apply(x, weight, slots.handle, mode, sequence_parallel, group, methods, recipe, training)[0]
