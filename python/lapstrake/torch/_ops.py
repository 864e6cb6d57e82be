# SPDX-License-Identifier: Apache-2.0
"""Operators of torch.library in the namespace lapstrake, with fake kernels and autograd.

A is [..., k] with its rows in the dimension that is gathered or scattered; B is [k, n], either as it is stored or the
transposed view of a weight [n, k]. Tensors are used in place: a gather_dim or scatter_dim other than 0 copies.

  all_gather_matmul       all_gather(A) @ B            d A by GEMM+RS or in bulk, d B local
  matmul_reduce_scatter   reduce_scatter(A @ B)        d A by AG+GEMM, d B local with what was gathered
  matmul_all_reduce       all_reduce(A @ B)            local
  copy_matmul             A @ B, A the same on all     d A by GEMM+AR
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from torch import Tensor

from lapstrake._abi import Epilogue, Kind, Layout
from lapstrake.errors import InvalidArgument
from lapstrake.torch._define import TAGS, define, differentiate, library, refuse_gradient
from lapstrake.torch._groups import Call, GroupLike, context, group_size, in_graph, name_of, prepared
from lapstrake.torch._matrix import (check_product, check_same, check_vector, divided, in_front, in_shape, lies,
                                     new_result, product, rows_of, second_of, shape_of, stored)

# ---- kernels ----
#
# Each has a function that checks its arguments and prepares a call. A call with tensors of the same shapes takes the
# one prepared before: what is left then are addresses.


def _add_bias(bias: Optional[Tensor], A: Tensor, B: Tensor, views: Dict[str, Tuple[int, int, int]]) -> Dict[str, int]:
    """Adds the bias of A @ B to the views of a call, and returns the fields of the description that it needs."""
    if bias is None:
        return {}
    views["bias"] = check_vector(bias, A, B)
    return {"epilogue": int(Epilogue.EPILOGUE_BIAS)}


def _gather_call(A: Tensor, B: Tensor, bias: Optional[Tensor], group_name: str, keep: bool, method: str) -> Call:
    check_product(A, B, 0, "gather_dim")
    layout, b = second_of(B)
    views = {"a": rows_of(A, "A")[1], "b": b}
    fields = _add_bias(bias, A, B, views)
    here = context(group_name, A.device)
    m, (k, n) = views["a"][0] * here.size, B.shape
    views["d"] = (m, n, n)
    if keep:
        views["gathered"] = (m, k, k)
    rows = (A.shape[0] * here.size, *A.shape[1:-1])
    return here.prepare(Kind.AG_GEMM, layout, m, n * here.size, k, A.dtype, method, views, ((*rows, n), (*rows, k)),
                        gather=keep, fields=fields)


def _gather_matmul(A: Tensor, B: Tensor, bias: Optional[Tensor], gather_dim: int, group_name: str, keep: bool,
                   method: str, dgrad: str, wgrad: str) -> Tuple[Optional[Tensor], Tensor]:
    front, dim = A, 0
    if gather_dim:
        dim = check_product(A, B, gather_dim, "gather_dim")
        front = in_front(A, dim)
    key = (Kind.AG_GEMM, group_name, keep, method, *lies(front), *lies(B), *(() if bias is None else lies(bias)))
    call = prepared(key, group_name, _gather_call, front, B, bias, group_name, keep, method)
    d = new_result(A, call.outputs[0], dim)
    gathered = new_result(A, call.outputs[1], dim) if keep else None
    with call.lock:
        call.a.data, call.b.data, call.d.data = front.data_ptr(), B.data_ptr(), d.data_ptr()
        if gathered is not None:
            call.gathered.data = gathered.data_ptr()
        if bias is not None:
            call.bias.data = bias.data_ptr()
        call.start()
    return gathered, d


def _gather_matmul_fake(A: Tensor, B: Tensor, bias: Optional[Tensor], gather_dim: int, group_name: str, keep: bool,
                        method: str, dgrad: str, wgrad: str) -> Tuple[Optional[Tensor], Tensor]:
    dim = check_product(A, B, gather_dim, "gather_dim")
    second_of(B)
    if bias is not None:
        check_vector(bias, A, B)
    rows = (A.shape[dim] * group_size(group_name), *A.shape[:dim], *A.shape[dim + 1:-1])
    return (new_result(A, (*rows, A.shape[-1]), dim) if keep else None, new_result(A, (*rows, B.shape[1]), dim))


def _factor(reduce_op: str, size: int) -> float:
    if reduce_op not in ("sum", "avg"):
        raise InvalidArgument(f"reduce_op is '{reduce_op}', expected 'sum' or 'avg'")
    return 1.0 if reduce_op == "sum" else 1.0 / size


def _reduced_call(kind: Kind, A: Tensor, B: Tensor, bias: Optional[Tensor], reduce_op: str, group_name: str,
                  method: str) -> Call:
    if kind == Kind.GEMM_RS:
        check_product(A, B, 0, "scatter_dim")
    else:
        check_product(A, B)
    layout, b = second_of(B)
    a = rows_of(A, "A")[1]
    size = group_size(group_name)
    m, (k, n) = a[0], B.shape
    rows, first = m, A.shape[0]
    if kind == Kind.GEMM_RS:
        rows, first = m // size, divided(first, size, group_name)
    views, alpha = {"a": a, "b": b, "d": (rows, n, n)}, _factor(reduce_op, size)
    fields = _add_bias(bias, A, B, views)
    return context(group_name, A.device).prepare(kind, layout, m, n, k * size, A.dtype, method, views,
                                                 ((first, *A.shape[1:-1], n),), alpha=alpha, fields=fields)


def _reduced(kind: Kind, A: Tensor, B: Tensor, bias: Optional[Tensor], reduce_op: str, group_name: str, method: str,
             dim: int = 0) -> Tensor:
    """The sum of A @ B over all ranks: this rank's rows, or all; and to that the bias. The first dimension of A becomes
    `dim` of the result."""
    key = (kind, group_name, reduce_op, method, *lies(A), *lies(B), *(() if bias is None else lies(bias)))
    call = prepared(key, group_name, _reduced_call, kind, A, B, bias, reduce_op, group_name, method)
    d = new_result(A, call.outputs[0], dim)
    with call.lock:
        call.a.data, call.b.data, call.d.data = A.data_ptr(), B.data_ptr(), d.data_ptr()
        if bias is not None:
            call.bias.data = bias.data_ptr()
        call.start()
    return d


def _matmul_scatter(A: Tensor, B: Tensor, bias: Optional[Tensor], reduce_op: str, scatter_dim: int, group_name: str,
                    method: str, dgrad: str) -> Tensor:
    front, dim = A, 0
    if scatter_dim:
        dim = check_product(A, B, scatter_dim, "scatter_dim")
        front = in_front(A, dim)
    return _reduced(Kind.GEMM_RS, front, B, bias, reduce_op, group_name, method, dim)


def _matmul_scatter_fake(A: Tensor, B: Tensor, bias: Optional[Tensor], reduce_op: str, scatter_dim: int,
                         group_name: str, method: str, dgrad: str) -> Tensor:
    dim = check_product(A, B, scatter_dim, "scatter_dim")
    second_of(B)
    if bias is not None:
        check_vector(bias, A, B)
    size = group_size(group_name)
    rows = divided(A.shape[dim], size, group_name)
    _factor(reduce_op, size)
    return new_result(A, (rows, *A.shape[:dim], *A.shape[dim + 1:-1], B.shape[1]), dim)


def _matmul_all_reduce(A: Tensor, B: Tensor, reduce_op: str, group_name: str, method: str = "auto") -> Tensor:
    return _reduced(Kind.GEMM_AR, A, B, None, reduce_op, group_name, method)


def _matmul_all_reduce_fake(A: Tensor, B: Tensor, reduce_op: str, group_name: str, method: str = "auto") -> Tensor:
    check_product(A, B)
    second_of(B)
    _factor(reduce_op, group_size(group_name))
    return A.new_empty(*A.shape[:-1], B.shape[1])


def _copy_matmul(A: Tensor, B: Tensor, group_name: str, dgrad: str = "auto") -> Tensor:
    check_product(A, B)
    return product(A, B)


def _bulk_call(kind: Kind, A: Tensor, B: Tensor, X: Tensor, group_name: str, method: str, sums: bool) -> Call:
    check_product(A, B)
    check_same(A, X=X)
    _, x = rows_of(X, "X")
    here = context(group_name, A.device)
    m = x[0] * here.size if kind == Kind.BULK_AG else x[0]
    rows = m if kind == Kind.BULK_AG else divided(m, here.size, group_name)
    # A may lie both ways, as a matrix of one column or of none does: the rows of X tell which one is meant.
    plain, turned, b = stored(A), stored(A.t()), stored(B)
    if plain is not None and (A.shape[0] == m or turned is None):
        layout, b = second_of(B)
        a, sizes = plain, (A.shape[0], B.shape[1], A.shape[1])
    elif turned is not None and b is not None:
        layout, a, sizes = Layout.WGRAD, turned, (A.shape[1], A.shape[0], B.shape[1])
    else:
        raise InvalidArgument(f"A is {shape_of(A)} with strides {tuple(A.stride())}, and B {shape_of(B)} with strides "
                              f"{tuple(B.stride())}, expected matrices, one of them perhaps transposed")
    if sizes[0] != m:
        raise InvalidArgument(f"X is {shape_of(X)}, expected the rows of the product, {sizes[0]}"
                              + (f" divided by {here.size}" if kind == Kind.BULK_AG else ""))
    d, y = (A.shape[0], B.shape[1]), (rows, x[1])
    views, fields = {"a": a, "b": b, "d": (*d, d[1]), "x": x, "y": (*y, y[1])}, {}
    outputs: Tuple[Tuple[int, ...], ...] = (d, y)
    if sums and layout == Layout.WGRAD:  # of a matrix that lies the other way the operator would sum its result
        views["bias_grad"], outputs = (1, d[0], d[0]), (d, y, d[:1])
        fields["epilogue"] = int(Epilogue.EPILOGUE_BIAS_GRAD)
    return here.prepare(kind, layout, *sizes, A.dtype, method, views, outputs, cols=x[1], fields=fields)


def _bulk(kind: Kind, A: Tensor, B: Tensor, X: Tensor, group_name: str, method: str, sums: bool = False
          ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """A @ B, and X gathered or reduced at the same time. A may be a transposed view, then it is a weight's gradient.

    With `sums` the sums of the rows of A, too: of a weight's gradient that of its bias.
    """
    key = (kind, group_name, method, sums, *lies(A), *lies(B), *lies(X))
    call = prepared(key, group_name, _bulk_call, kind, A, B, X, group_name, method, sums)
    d, y = A.new_empty(call.outputs[0]), A.new_empty(call.outputs[1])
    sum_of_rows = A.new_empty(call.outputs[2]) if len(call.outputs) > 2 else None
    with call.lock:
        call.a.data, call.b.data, call.d.data = A.data_ptr(), B.data_ptr(), d.data_ptr()
        call.x.data, call.y.data = X.data_ptr(), y.data_ptr()
        if sum_of_rows is not None:
            call.bias_grad.data = sum_of_rows.data_ptr()
        call.start()
    return d, y, A.sum(1) if sums and sum_of_rows is None else sum_of_rows


def _matmul_with_all_gather(A: Tensor, B: Tensor, X: Tensor, group_name: str, method: str = "auto"
                            ) -> Tuple[Tensor, Tensor]:
    return _bulk(Kind.BULK_AG, A, B, X, group_name, method)[:2]


def _matmul_with_all_gather_fake(A: Tensor, B: Tensor, X: Tensor, group_name: str, method: str = "auto"
                                 ) -> Tuple[Tensor, Tensor]:
    check_product(A, B)
    return A.new_empty(A.shape[0], B.shape[1]), X.new_empty(X.shape[0] * group_size(group_name), X.shape[1])


def _matmul_with_reduce_scatter(A: Tensor, B: Tensor, X: Tensor, group_name: str, method: str = "auto",
                                sums: bool = False) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    return _bulk(Kind.BULK_RS, A, B, X, group_name, method, sums)


def _matmul_with_reduce_scatter_fake(A: Tensor, B: Tensor, X: Tensor, group_name: str, method: str = "auto",
                                     sums: bool = False) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    check_product(A, B)
    rows = divided(X.shape[0], group_size(group_name), group_name)
    return (A.new_empty(A.shape[0], B.shape[1]), X.new_empty(rows, X.shape[1]),
            A.new_empty(A.shape[0]) if sums else None)


def _moved_call(kind: Kind, X: Tensor, group_name: str, method: str) -> Call:
    check_same(X)
    x = rows_of(X, "X")[1]
    here = context(group_name, X.device)
    if kind == Kind.EXTERNAL_AG:
        m = rows = x[0] * here.size
        first = X.shape[0] * here.size
    else:
        m, rows = x[0], x[0] // here.size
        first = divided(X.shape[0], here.size, group_name)
    return here.prepare(kind, Layout.FORWARD, m, 0, 0, X.dtype, method, {"x": x, "y": (rows, x[1], x[1])},
                        ((first, *X.shape[1:]),), cols=x[1])


def _moved(kind: Kind, X: Tensor, group_name: str, method: str) -> Tensor:
    """X gathered or reduced along its first dimension, and nothing else."""
    call = prepared((kind, group_name, method, *lies(X)), group_name, _moved_call, kind, X, group_name, method)
    y = X.new_empty(call.outputs[0])
    with call.lock:
        call.x.data, call.y.data = X.data_ptr(), y.data_ptr()
        call.start()
    return y


def _all_gather(X: Tensor, group_name: str, method: str = "auto") -> Tensor:
    return _moved(Kind.EXTERNAL_AG, X, group_name, method)


def _all_gather_fake(X: Tensor, group_name: str, method: str = "auto") -> Tensor:
    return X.new_empty(X.shape[0] * group_size(group_name), *X.shape[1:])


def _reduce_scatter(X: Tensor, group_name: str, method: str = "auto") -> Tensor:
    return _moved(Kind.EXTERNAL_RS, X, group_name, method)


def _reduce_scatter_fake(X: Tensor, group_name: str, method: str = "auto") -> Tensor:
    return X.new_empty(divided(X.shape[0], group_size(group_name), group_name), *X.shape[1:])


define("gather_matmul(Tensor A, Tensor B, Tensor? bias, int gather_dim, str group_name, bool keep, str method, "
       "str dgrad, str wgrad) -> (Tensor?, Tensor)", _gather_matmul, _gather_matmul_fake)
define("matmul_scatter(Tensor A, Tensor B, Tensor? bias, str reduce_op, int scatter_dim, str group_name, str method, "
       "str dgrad) -> Tensor", _matmul_scatter, _matmul_scatter_fake)
define("matmul_all_reduce(Tensor A, Tensor B, str reduce_op, str group_name, str method='auto') -> Tensor",
       _matmul_all_reduce, _matmul_all_reduce_fake)
define("copy_matmul(Tensor A, Tensor B, str group_name, str dgrad='auto') -> Tensor", _copy_matmul, _copy_matmul)
define("matmul_with_all_gather(Tensor A, Tensor B, Tensor X, str group_name, str method='auto') -> (Tensor, Tensor)",
       _matmul_with_all_gather, _matmul_with_all_gather_fake)
define("matmul_with_reduce_scatter(Tensor A, Tensor B, Tensor X, str group_name, str method='auto', "
       "bool sums=False) -> (Tensor, Tensor, Tensor?)", _matmul_with_reduce_scatter, _matmul_with_reduce_scatter_fake)
define("all_gather(Tensor X, str group_name, str method='auto') -> Tensor", _all_gather, _all_gather_fake)
define("reduce_scatter(Tensor X, str group_name, str method='auto') -> Tensor", _reduce_scatter, _reduce_scatter_fake)


# ---- gradients ----


def _flat(tensor: Tensor, dim: int) -> Tensor:
    """[..., cols] as a matrix whose rows are those of `dim` first: a copy where it has to be."""
    return tensor.movedim(dim, 0).reshape(-1, tensor.shape[-1]).contiguous()


def _weight_gradient(A: Tensor, dY: Tensor, B: Tensor) -> Tensor:
    """d B of the matrices A @ B, stored as B is: a transposed view for a transposed view."""
    return product(dY.t(), A).t() if B.stride(0) == 1 and B.stride(1) != 1 else product(A.t(), dY)


def _gather_matmul_setup(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Optional[Tensor], Tensor]) -> None:
    if output[0] is None:
        ctx.save_for_backward(inputs[0], inputs[1])
    else:
        ctx.save_for_backward(output[0], inputs[1])
        ctx.set_materialize_grads(False)


def _gather_matmul_backward(ctx: Any, dgathered: Optional[Tensor], dY: Optional[Tensor]) -> Tuple[Any, ...]:
    saved, B = ctx.saved_tensors
    dim, group, keep, _, dgrad, wgrad = ctx.rest
    needs_A, _, needs_bias = ctx.needs_input_grad[:3]
    dim %= saved.dim()
    shape = list(saved.shape)
    if keep:
        shape[dim] //= group_size(group)
    dX = dB = dbias = None
    if dY is None:
        if dgathered is not None and needs_A:
            dX = reduce_scatter(_flat(dgathered, dim), group, wgrad)
    else:
        rows = _flat(dY, dim)
        passed = _flat(dgathered, dim) if dgathered is not None and keep else None
        if dgrad.startswith("gemm_rs") and passed is None:
            dX, dB = _gradients_apart(ctx, _flat(saved, dim), B, rows)
        else:
            dX, dB, dbias = _gradients_in_bulk(ctx, _flat(saved, dim), B, rows, passed)
        if needs_bias and dbias is None:
            dbias = rows.sum(0)
    return None if dX is None else in_shape(dX, shape, dim), dB, dbias


def _gradients_apart(ctx: Any, saved: Tensor, B: Tensor, rows: Tensor) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """d A by an operator of its own; d B needs nothing more than the gathered A."""
    _, group, keep, _, dgrad, wgrad = ctx.rest
    dA = dB = None
    if ctx.needs_input_grad[0]:
        dA = matmul_scatter(rows, B.t(), None, "sum", 0, group, dgrad.partition("/")[2], "auto")
    if ctx.needs_input_grad[1]:
        dB = _weight_gradient(saved if keep else all_gather(saved, group, wgrad), rows, B)
    return dA, dB


def _gradients_in_bulk(ctx: Any, saved: Tensor, B: Tensor, rows: Tensor, passed: Optional[Tensor]
                       ) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
    """d A of this rank, while A is gathered again; then d B, while d A is reduced. `passed` is a part of d A."""
    _, group, keep, _, kind_and_method, wgrad = ctx.rest
    needs_A, needs_B, needs_bias = ctx.needs_input_grad[:3]
    dgrad = kind_and_method.partition("/")[2]
    dX = None
    if keep or not needs_B:
        full = saved
        dX = product(rows, B.t()) if needs_A else None
    elif needs_A:
        dX, full = _matmul_and_gather(rows, B.t(), saved, group, dgrad)
    else:
        full = all_gather(saved, group, dgrad)
    if dX is None:
        return None, _weight_gradient(full, rows, B) if needs_B else None, None
    if passed is not None:
        dX = dX + passed
    if not needs_B:
        return reduce_scatter(dX, group, wgrad), None, None
    if B.stride(0) == 1 and B.stride(1) != 1:
        dW, dA, dbias = _matmul_and_reduce(rows.t(), full, dX, group, wgrad, needs_bias)
        return dA, dW.t(), dbias
    dB, dA, _ = _matmul_and_reduce(full.t(), rows, dX, group, wgrad)
    return dA, dB, None


def _save_operands(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])


def _matmul_scatter_backward(ctx: Any, dY: Tensor) -> Tuple[Any, ...]:
    A, B = ctx.saved_tensors
    reduce_op, dim, group, _, dgrad = ctx.rest
    dim %= A.dim()
    rows = _flat(dY, dim)
    needs_A, needs_B, needs_bias = ctx.needs_input_grad[:3]
    dX = dB = None
    dbias = rows.sum(0) if needs_bias else None
    if reduce_op != "sum":
        rows = rows * _factor(reduce_op, group_size(group))
    if needs_A:
        full, dX = gather_matmul(rows, B.t(), None, 0, group, needs_B, dgrad, "", "")
        dX = in_shape(dX, A.shape, dim)
    elif needs_B:
        full = all_gather(rows, group, "auto")
    if needs_B:
        dB = _weight_gradient(_flat(A, dim), full, B)
    return dX, dB, dbias


def _matmul_all_reduce_backward(ctx: Any, dY: Tensor) -> Tuple[Any, ...]:
    A, B = ctx.saved_tensors
    reduce_op, group, _ = ctx.rest
    if reduce_op != "sum":
        dY = dY * _factor(reduce_op, group_size(group))
    dA = product(dY, B.t()) if ctx.needs_input_grad[0] else None
    dB = _weight_gradient(_flat(A, 0), _flat(dY, 0), B) if ctx.needs_input_grad[1] else None
    return dA, dB


def _copy_matmul_backward(ctx: Any, dY: Tensor) -> Tuple[Any, ...]:
    A, B = ctx.saved_tensors
    dA = dB = None
    if ctx.needs_input_grad[0]:
        dA = matmul_sum(dY.contiguous(), B.t(), "sum", *ctx.rest)
    if ctx.needs_input_grad[1]:
        dB = _weight_gradient(_flat(A, 0), _flat(dY, 0), B)
    return dA, dB


def _all_gather_backward(ctx: Any, dY: Tensor) -> Tuple[Any, ...]:
    return reduce_scatter(dY.contiguous(), *ctx.rest),


def _reduce_scatter_backward(ctx: Any, dY: Tensor) -> Tuple[Any, ...]:
    return all_gather(dY.contiguous(), *ctx.rest),


_One = Callable[..., Tensor]
gather_matmul: Callable[..., Tuple[Any, Tensor]] = differentiate(  # the first is None unless it is kept
    "gather_matmul", _gather_matmul, _gather_matmul_backward, _gather_matmul_setup)
matmul_scatter: _One = differentiate("matmul_scatter", _matmul_scatter, _matmul_scatter_backward, _save_operands)
matmul_sum: _One = differentiate("matmul_all_reduce", _matmul_all_reduce, _matmul_all_reduce_backward, _save_operands)
copy_matmul: _One = differentiate("copy_matmul", _copy_matmul, _copy_matmul_backward, _save_operands)
all_gather: _One = differentiate("all_gather", _all_gather, _all_gather_backward)
reduce_scatter: _One = differentiate("reduce_scatter", _reduce_scatter, _reduce_scatter_backward)
_matmul_and_gather = refuse_gradient("matmul_with_all_gather", _matmul_with_all_gather)
_matmul_and_reduce = refuse_gradient("matmul_with_reduce_scatter", _matmul_with_reduce_scatter)


# ---- as PyTorch's symm_mem has them ----


def _all_gather_matmul(A: Tensor, Bs: List[Tensor], gather_dim: int, group_name: str, *, return_A: bool = True,
                       method: str = "auto", dgrad: str = "", wgrad: str = "auto"
                       ) -> Tuple[Optional[Tensor], List[Tensor]]:
    if isinstance(Bs, Tensor):
        raise InvalidArgument(f"Bs is a tensor {shape_of(Bs)}, expected a list of matrices")
    if not Bs:
        raise InvalidArgument("Bs has no matrix, expected at least one")
    if dgrad and isinstance(dgrad, str) and not dgrad.startswith(("gemm_rs/", "bulk_ag/")):
        raise InvalidArgument(f"dgrad is '{dgrad}', expected 'gemm_rs/METHOD' or 'bulk_ag/METHOD'")
    keep, group_name = return_A or len(Bs) > 1, in_graph(group_name)
    dgrad = dgrad or ("gemm_rs/auto" if keep else "bulk_ag/auto")
    gathered, first = gather_matmul(A, Bs[0], None, gather_dim, group_name, keep, method, dgrad, wgrad)
    results = [first]
    if len(Bs) > 1:
        for B in Bs[1:]:
            check_product(gathered, B)
        results += [product(gathered, B) for B in Bs[1:]]
    return gathered if return_A else None, results


def _matmul_reduce_scatter(A: Tensor, B: Tensor, reduce_op: str, scatter_dim: int, group_name: str,
                           method: str = "auto", dgrad: str = "auto") -> Tensor:
    return matmul_scatter(A, B, None, reduce_op, scatter_dim, in_graph(group_name), method, dgrad)


library.define("all_gather_matmul(Tensor A, Tensor[] Bs, int gather_dim, str group_name, *, bool return_A=True, "
               "str method='auto', str dgrad='', str wgrad='auto') -> (Tensor?, Tensor[])", tags=TAGS)
library.define("matmul_reduce_scatter(Tensor A, Tensor B, str reduce_op, int scatter_dim, str group_name, "
               "str method='auto', str dgrad='auto') -> Tensor", tags=TAGS)
# They consist of the operators above: their gradients and fake kernels are their own.
library.impl("all_gather_matmul", _all_gather_matmul, "CompositeImplicitAutograd")
library.impl("matmul_reduce_scatter", _matmul_reduce_scatter, "CompositeImplicitAutograd")


def all_gather_matmul(A: Tensor, Bs: List[Tensor], gather_dim: int, group: GroupLike = None, *, return_A: bool = True,
                      method: str = "auto", dgrad: str = "", wgrad: str = "auto"
                      ) -> Tuple[Optional[Tensor], List[Tensor]]:
    """all_gather(A) @ B for each B, and all_gather(A) itself with `return_A`. Collective.

    The arguments are those of torch.ops.symm_mem.fused_all_gather_matmul; `group` is a process group, its name, or None
    for the default one. Every rank has equally many rows. `method` is that of AG+GEMM, as in "ring" or
    "direct:num_splits=2". `dgrad` says how backward finds the gradient of A: "gemm_rs/METHOD" by an operator of its own
    (the default where A is returned), "bulk_ag/METHOD" while A is gathered again, and then reduced by `wgrad` while the
    gradient of B is found.
    """
    return _all_gather_matmul(A, Bs, gather_dim, name_of(group), return_A=return_A, method=method, dgrad=dgrad,
                              wgrad=wgrad)


def matmul_reduce_scatter(A: Tensor, B: Tensor, reduce_op: str, scatter_dim: int, group: GroupLike = None, *,
                          method: str = "auto", dgrad: str = "auto") -> Tensor:
    """This rank's rows of the sum, or with "avg" the mean, of A @ B over all ranks. Collective.

    The arguments are those of torch.ops.symm_mem.fused_matmul_reduce_scatter. `method` is that of GEMM+RS, `dgrad`
    that of the AG+GEMM of backward.
    """
    return _matmul_reduce_scatter(A, B, reduce_op, scatter_dim, name_of(group), method, dgrad)


def matmul_all_reduce(A: Tensor, B: Tensor, reduce_op: str = "sum", group: GroupLike = None, *,
                      method: str = "auto") -> Tensor:
    """The sum, or with "avg" the mean, of A @ B over all ranks, the same bits on every rank. Collective.

    Backward is local, as in Megatron: every rank goes on with the same result, and has the same gradient of it.
    """
    return matmul_sum(A, B, reduce_op, in_graph(name_of(group)), method)
