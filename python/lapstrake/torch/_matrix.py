# SPDX-License-Identifier: Apache-2.0
"""How the tensors of operators lie in memory, and what is refused of them."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor

from lapstrake._abi import Layout
from lapstrake.errors import InvalidArgument, Unsupported
from lapstrake.torch._groups import plain_name

TYPES = (torch.float32, torch.float16, torch.bfloat16)

# How a matrix lies in memory: rows, columns, elements from one row to the next.
Matrix = Tuple[int, int, int]


def shape_of(tensor: Tensor) -> str:
    """The sizes of a tensor, for sentences."""
    return "[" + ", ".join(str(size) for size in tensor.shape) + "]"


def check_same(first: Tensor, **others: Tensor) -> None:
    """All tensors are on one device, and of one type that operators know."""
    if first.dtype not in TYPES:
        raise Unsupported(f"A is {first.dtype}, expected torch.float32, torch.float16 or torch.bfloat16")
    for name, tensor in others.items():
        if tensor.dtype != first.dtype:
            raise InvalidArgument(f"{name} is {tensor.dtype}, expected {first.dtype} as A")
        if tensor.device != first.device:
            raise InvalidArgument(f"{name} is on {tensor.device}, expected {first.device} as A")


def check_product(A: Tensor, B: Tensor, dim: Optional[int] = None, what: str = "") -> int:
    """Checks A [..., k] @ B [k, n]; the dimension `dim` of A, counted from 0."""
    check_same(A, B=B)
    if A.dim() < 2:
        raise InvalidArgument(f"A is {shape_of(A)}, expected at least two dimensions")
    if B.dim() != 2 or B.shape[0] != A.shape[-1]:
        raise InvalidArgument(f"B is {shape_of(B)}, expected [{A.shape[-1]}, n]: as many rows as A has columns")
    if dim is None:
        return 0
    if not -A.dim() <= dim < A.dim() or dim % A.dim() == A.dim() - 1:
        raise InvalidArgument(f"{what} is {dim}, expected a dimension of the rows of A: 0 to {A.dim() - 2}")
    return dim % A.dim()


def divided(rows: Any, size: int, group: str) -> Any:
    """A rank's share of rows."""
    if rows % size:
        raise InvalidArgument(f"{rows} rows are to be scattered, expected a multiple of {size}: the size of group "
                              f"'{plain_name(group)}'")
    return rows // size


def check_vector(bias: Tensor, A: Tensor, B: Tensor) -> Matrix:
    """Checks the bias of A @ B."""
    check_same(A, bias=bias)
    n = B.shape[1]
    if bias.dim() != 1 or bias.shape[0] != n:
        raise InvalidArgument(f"bias is {shape_of(bias)}, expected [{n}]: an element for each column of B")
    if n > 1 and bias.stride(0) != 1:
        raise InvalidArgument(f"bias is {shape_of(bias)} with strides {tuple(bias.stride())}, expected elements that "
                              "follow one another: call contiguous()")
    return 1, n, n


def stored(tensor: Tensor) -> Optional[Matrix]:
    """A matrix [rows, cols] as it lies, or None if it is not row-major."""
    rows, cols = tensor.shape
    if tensor.numel() and cols > 1 and tensor.stride(1) != 1:
        return None
    if rows <= 1:
        return rows, cols, max(cols, 1)
    return (rows, cols, tensor.stride(0)) if tensor.stride(0) >= cols else None


def rows_of(tensor: Tensor, name: str) -> Tuple[Tensor, Matrix]:
    """A tensor [..., cols] as a matrix of rows, in place."""
    if tensor.shape[-1] < 1:
        raise InvalidArgument(f"{name} is {shape_of(tensor)}, expected at least one column")
    try:
        flat = tensor if tensor.dim() == 2 else tensor.view(-1, tensor.shape[-1])
        matrix = stored(flat)
    except RuntimeError:
        matrix = None
    if matrix is None:
        raise InvalidArgument(f"{name} is {shape_of(tensor)} with strides {tuple(tensor.stride())}, expected rows that "
                              "follow one another: call contiguous()")
    return flat, matrix


def second_of(B: Tensor) -> Tuple[Layout, Matrix]:
    """How B [k, n] lies: as it is, or transposed."""
    matrix = stored(B)
    if matrix is not None:
        return Layout.DGRAD, matrix
    matrix = stored(B.t())
    if matrix is not None:
        return Layout.FORWARD, matrix
    raise InvalidArgument(f"B is {shape_of(B)} with strides {tuple(B.stride())}, expected a matrix or its transposed "
                          "view: call contiguous()")


def in_front(tensor: Tensor, dim: int) -> Tensor:
    """The dimension `dim` becomes the first: a copy, unless it is."""
    return tensor.movedim(dim, 0).contiguous() if dim else tensor


def new_result(like: Tensor, shape: Tuple[int, ...], dim: int) -> Tensor:
    """Memory for rows of a result: `shape` has the dimension `dim` of the result first, as it lies in memory.

    It is no view, which a result of an operator may not be: autograd refuses to change views in place.
    """
    if dim == 0:
        return like.new_empty(shape)
    order = (dim, *range(dim), *range(dim + 1, len(shape)))
    return torch.empty_permuted((*shape[1:dim + 1], shape[0], *shape[dim + 1:]), order, dtype=like.dtype,
                                device=like.device)


def in_shape(flat: Tensor, shape: Sequence[int], dim: int) -> Tensor:
    """Rows, those of the dimension `dim` first, as a tensor of this shape."""
    return flat.view(shape[dim], *shape[:dim], *shape[dim + 1:]).movedim(0, dim)


def product(A: Tensor, B: Tensor) -> Tensor:
    """A @ B in the type of A, also within torch.autocast, which leaves the other products of the operators alone."""
    if A.is_meta or not torch.is_autocast_enabled(A.device.type):
        return torch.matmul(A, B)
    with torch.autocast(A.device.type, enabled=False):
        return torch.matmul(A, B)


def lies(tensor: Tensor) -> Tuple[Any, ...]:
    """Everything about a tensor that a prepared call depends on."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
