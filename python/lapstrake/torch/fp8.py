# SPDX-License-Identifier: Apache-2.0
"""autocast and fp8_autocast: within them, the GEMMs of modules multiply FP8 matrices.

Every operand of a GEMM has a slot with its scale, the same on all tensor-parallel ranks, so that what ranks gather is
one matrix. Delayed scaling notes the magnitudes of a pass in the slots; leaving the outermost autocast exchanges them
and makes the scales of the next pass. Operators are given a recipe as its text, and the slots of a module as a tensor
with their number: torch.compile sees constants and inputs, and one compiled layer serves all of its kind.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import weakref
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor

from lapstrake.errors import InvalidArgument, Unsupported
from lapstrake.torch._groups import exists
from lapstrake.torch._ops import all_gather
from lapstrake.torch.recipe import DelayedScaling, Float8CurrentScaling, Format, Recipe

_LARGEST = {torch.float8_e4m3fn: (448.0, 8), torch.float8_e5m2: (57344.0, 15)}  # and the exponent of the largest power
_MOST = 60  # exponents of scales: the product of two stays in the range of float


class Scaled(NamedTuple):
    """An FP8 matrix: the value of an element is the stored number times scale[0]. Scales have 16 bytes each."""

    data: Tensor
    scale: Tensor

    def wide(self, dtype: torch.dtype) -> Tensor:
        """The values, exactly: bfloat16 and float32 hold them."""
        return self.data.to(dtype) * self.scale[0].to(dtype)


class Slot:
    """The scale of one operand, and the magnitudes that were seen of it."""

    def __init__(self, dtype: torch.dtype, device: torch.device, group: str) -> None:
        self.dtype, self.group = dtype, group
        self.scale = torch.ones(4, dtype=torch.float32, device=device)
        self.found = torch.zeros((), dtype=torch.float32, device=device)  # since the last exchange, of those that were finite
        self.history: Optional[Tensor] = None

    def update(self, recipe: DelayedScaling) -> None:
        """The scale of the next pass, of what was found in this one. What no pass saw is as large as before."""
        if self.history is None or len(self.history) != recipe.amax_history_len:
            self.history = self.found.new_zeros(recipe.amax_history_len)
        latest = torch.where(self.found > 0, self.found, self.history[0])
        self.history = torch.cat((latest[None], self.history[:-1]))
        amax = self.history.amax() if recipe.amax_compute_algo == "max" else latest
        # A new tensor: backward still reads the scale with which its operands were cast.
        self.scale = torch.where(amax > 0, scale_of(amax, self.dtype, recipe.margin), self.scale[0]).repeat(4)
        self.found = torch.zeros_like(self.found)


class _Table(Dict[str, Dict[str, Slot]]):
    """The slots of each GEMM of a module, by the names of operands."""


class Slots:
    """The slots of a module. slots_of(handle, gemm) finds them as long as there is the module, or a graph of autograd that
    has the handle: the handle holds the table."""

    def __init__(self) -> None:
        self._register(_Table())

    def _register(self, table: _Table) -> None:
        number = next(_numbers)
        self.of = table
        self.handle = torch.tensor(number, device="cpu")
        self.handle.table = table  # type: ignore[attr-defined]
        _tables[number] = table

    def __deepcopy__(self, memo: Dict[int, Any]) -> Slots:
        other = Slots()
        other.of.update(copy.deepcopy(dict(self.of), memo))
        return other

    def __getstate__(self) -> Dict[str, Any]:
        return {"of": dict(self.of)}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self._register(_Table(state["of"]))


_numbers = itertools.count()
_tables: weakref.WeakValueDictionary[int, _Table] = weakref.WeakValueDictionary()


def slots_of(handle: Tensor, gemm: str) -> Dict[str, Slot]:
    """The slots of a GEMM of a module, by the names of its operands."""
    return _tables[int(handle)].setdefault(gemm, {})


_recipes: Dict[str, Recipe] = {}  # by their text


def recipe_of(text: str) -> Recipe:
    """The recipe of a text that active() has given."""
    return _recipes[text]


Tape = List[List[Tensor]]  # the scales of the operands of one quantize() after the other


class _State:
    """What autocast has set; `touched` are the slots of delayed scaling that await an exchange. Scales that are used go to
    `tapes`, and come from `again` while a function is computed again."""

    def __init__(self) -> None:
        self.recipe: Optional[str] = None
        self.group: Any = None
        self.depth = 0
        self.touched: Dict[Slot, DelayedScaling] = {}
        self.tapes: Tuple[Tape, ...] = ()
        self.again: Optional[Iterator[List[Tensor]]] = None


_state = _State()


def scale_of(amax: Tensor, dtype: torch.dtype, margin: int = 0) -> Tensor:
    """The least power of two with which `amax` comes to at most the largest number of the type; 1 for none."""
    fraction, exponent = torch.frexp(amax.float())
    exponent = exponent - 1 - _LARGEST[dtype][1] + (fraction > 0.875)
    scale = torch.ldexp(torch.ones_like(fraction), exponent.clamp(-_MOST, _MOST) + margin).float()  # by default it may be double
    return torch.where((amax > 0) & torch.isfinite(amax), scale, torch.ones_like(scale))


def cast(rows: Tensor, scale: Tensor, dtype: torch.dtype) -> Scaled:
    """A matrix in FP8, to nearest, ties to even; values that are too large become the largest number."""
    most = _LARGEST[dtype][0]
    return Scaled((rows.float() / scale[0]).clamp(-most, most).to(dtype).contiguous(), scale)


def _magnitude(rows: Tensor) -> Tensor:
    found = rows.detach().abs().amax().float() if rows.numel() else rows.new_zeros((), dtype=torch.float32)
    return torch.where(found.isnan(), torch.full_like(found, float("inf")), found)


def _agreed(found: List[Tensor], group: str) -> Tensor:
    """The largest of all ranks, each."""
    mine = torch.stack(found)[None]
    return all_gather(mine, group, "direct").amax(0) if group else mine[0]


def quantize(operands: List[Tuple[Tensor, Slot]], recipe: Recipe, note: bool) -> List[Scaled]:
    """Matrices in FP8. Collective over the tensor-parallel group where scales are those of the matrices themselves.

    `note`: delayed scaling takes the magnitudes into account from the next pass on. What is computed again has the scales
    that it had, and has been noted.
    """
    before = None if _state.again is None else next(_state.again, None)
    scales = before or _make_scales(operands, recipe, note)
    for tape in _state.tapes:
        tape.append(scales)
    return [cast(rows, scale, slot.dtype) for (rows, slot), scale in zip(operands, scales)]


def _make_scales(operands: List[Tuple[Tensor, Slot]], recipe: Recipe, note: bool) -> List[Tensor]:
    found = [_magnitude(rows) for rows, _ in operands]
    now = [not (isinstance(recipe, DelayedScaling) and slot.history is not None) for _, slot in operands]
    fresh = [amax for amax, is_now in zip(found, now) if is_now]
    agreed = iter(_agreed(fresh, operands[0][1].group)) if fresh else iter(())
    for (_, slot), amax, is_now in zip(operands, found, now):
        if is_now:
            slot.scale = scale_of(next(agreed), slot.dtype, recipe.margin).repeat(4)
        if note and isinstance(recipe, DelayedScaling):
            # What overflowed says nothing of the next passes: a loss scale lets training skip such a step.
            slot.found = torch.where(amax.isfinite(), torch.maximum(slot.found, amax), slot.found)
            _state.touched[slot] = recipe
    return [slot.scale for _, slot in operands]


def _exchange() -> None:
    """Makes the scales of the next pass. Collective over the groups of the modules, and that given to autocast."""
    touched, _state.touched = _state.touched, {}
    by_group: Dict[str, List[Slot]] = {}
    for slot in touched:
        by_group.setdefault(slot.group, []).append(slot)
    for group, slots in by_group.items():
        if group and not exists(group):  # nor does the module work again
            continue
        amax = _agreed([slot.found for slot in slots], group)
        if _state.group is not None and dist.get_world_size(_state.group) > 1:
            dist.all_reduce(amax, dist.ReduceOp.MAX, group=_state.group)
        for slot, found in zip(slots, amax):
            slot.found = found
            slot.update(touched[slot])


def active() -> Optional[str]:
    """The recipe, as its text, within autocast; else None."""
    return _state.recipe


class autocast(contextlib.ContextDecorator):
    """Within it, the GEMMs of this package's modules are FP8, by `recipe` (default: DelayedScaling). Collective.

    The arguments are those of TransformerEngine. Magnitudes are always exchanged between tensor-parallel ranks, and
    also over `amax_reduction_group` if that is given. Backward belongs outside, as there. As the decorator of a function
    it is around each call.
    """

    def __init__(self, enabled: bool = True, calibrating: bool = False, recipe: Optional[Recipe] = None,
                 amax_reduction_group: Any = None, _graph: bool = False) -> None:
        if callable(enabled):
            raise InvalidArgument(f"enabled is {enabled!r}, expected True or False: a decorator needs its parentheses, as in "
                                  "@autocast()")
        if calibrating:
            raise Unsupported("calibrating is True, expected False: it is not supported")
        if recipe is not None and not isinstance(recipe, (DelayedScaling, Float8CurrentScaling)):
            raise InvalidArgument(f"recipe is {recipe!r}, expected a DelayedScaling or a Float8CurrentScaling of "
                                  "lapstrake.torch.recipe")
        self._recipe = (recipe or DelayedScaling()) if enabled else None
        self._group = amax_reduction_group
        self._before: List[Tuple[Optional[str], Any]] = []

    @torch.compiler.disable
    def __enter__(self) -> autocast:
        self._before.append((_state.recipe, _state.group))
        _state.recipe, _state.group = None if self._recipe is None else repr(self._recipe), self._group
        if self._recipe is not None and _state.recipe not in _recipes:
            _recipes[repr(self._recipe)] = copy.copy(self._recipe)  # the caller may change its own
        _state.depth += 1
        return self

    @torch.compiler.disable
    def __exit__(self, kind: Any, *unused: object) -> None:
        _state.depth -= 1
        try:
            # A rank that failed does not come to the exchange; the others learn it from the library.
            if _state.depth == 0 and kind is None and _state.touched:
                _exchange()
        finally:
            _state.recipe, _state.group = self._before.pop()


def fp8_autocast(enabled: bool = True, calibrating: bool = False, fp8_recipe: Optional[Recipe] = None,
                 fp8_group: Any = None, _graph: bool = False) -> autocast:
    """autocast, by the names that older versions of TransformerEngine gave its arguments."""
    return autocast(enabled, calibrating, fp8_recipe, fp8_group, _graph)


class Recorded:
    """What a function that may be computed again needs of this module: its recipe, and the scales that it used."""

    def __init__(self) -> None:
        self.recipe = _state.recipe
        self._tape: Optional[Tape] = None

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Around each computation of the function: the first records, the others do as it did."""
        before = _state.recipe, _state.tapes, _state.again
        if self._tape is None:
            self._tape = []
            _state.tapes += (self._tape,)
        else:
            _state.recipe, _state.tapes, _state.again = self.recipe, (), iter(self._tape)
        try:
            yield
        finally:
            _state.recipe, _state.tapes, _state.again = before


def quantized_model_init(enabled: bool = True, *unused: Any, **also: Any) -> Any:
    """Parameters stay in the type of the model: anything but enabled=False is refused."""
    if enabled:
        raise Unsupported("enabled is True, expected False: parameters are not stored in FP8")
    return contextlib.nullcontext()


fp8_model_init = quantized_model_init


def is_fp8_available(return_reason: bool = False) -> Union[bool, Tuple[bool, str]]:
    """True: the library multiplies FP8 matrices on every device."""
    return (True, "") if return_reason else True


def _unavailable(return_reason: bool = False) -> Union[bool, Tuple[bool, str]]:
    """False: an FP8 matrix of the library has one scale."""
    return (False, "an FP8 matrix of the library has one scale") if return_reason else False


is_mxfp8_available = is_fp8_block_scaling_available = is_nvfp4_available = _unavailable


def get_default_recipe() -> Recipe:
    """The recipe of autocast without one."""
    return DelayedScaling()


FORWARD = torch.float8_e4m3fn  # of activations and weights


def backward_dtype(recipe: Recipe) -> torch.dtype:
    """The type of gradients."""
    return torch.float8_e5m2 if recipe.fp8_format is Format.HYBRID else torch.float8_e4m3fn
