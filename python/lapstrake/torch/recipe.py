# SPDX-License-Identifier: Apache-2.0
"""Recipes of FP8, with the names and fields of TransformerEngine's: DelayedScaling and Float8CurrentScaling.

A scale is the least power of two with which the largest magnitude fits: it rounds nothing. Fields that ask for what the
modules do not do are refused when a recipe is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Callable, Optional, Tuple, Union

from lapstrake.errors import InvalidArgument, Unsupported


class Format(Enum):
    """Types of FP8: HYBRID is E4M3 in forward and E5M2 for gradients. The values are the largest numbers of both."""

    E4M3 = (448.0, 448.0)
    E5M2 = (57344.0, 57344.0)
    HYBRID = (448.0, 57344.0)


class Recipe:
    """How matrices become FP8."""

    fp8_format: Format = Format.HYBRID
    margin: int = 0

    @classmethod
    def delayed(cls) -> bool:
        """Whether scales are those of earlier passes."""
        return issubclass(cls, DelayedScaling)

    @classmethod
    def float8_current_scaling(cls) -> bool:
        """Whether scales are those of the matrix itself."""
        return issubclass(cls, Float8CurrentScaling)

    @classmethod
    def float8_per_tensor_scaling(cls) -> bool:
        """Whether a matrix has one scale: always."""
        return True

    @classmethod
    def mxfp8(cls) -> bool:
        """Whether blocks of a matrix have scales of their own, here and in the next ones: never."""
        return False

    float8_block_scaling = nvfp4 = custom = mxfp8

    def _check(self, **refused: Any) -> None:
        if type(self.margin) is not int:
            raise InvalidArgument(f"margin is {self.margin!r}, expected a whole number")
        if self.fp8_format not in (Format.HYBRID, Format.E4M3):
            raise Unsupported(f"fp8_format is {self.fp8_format}, expected Format.HYBRID or Format.E4M3")
        for name, value in refused.items():
            if value:
                raise Unsupported(f"{name} is {value!r} in {type(self).__name__}, expected "
                                  f"{False if value is True else None}: it is not supported")


@dataclass
class DelayedScaling(Recipe):
    """Scales follow the largest magnitudes of the last `amax_history_len` passes; the first pass takes its own."""

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: Union[str, Callable[..., Any]] = "max"
    scaling_factor_compute_algo: Optional[Callable[..., Any]] = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: Optional[str] = None
    interval: int = 1  # this and the next one are of TransformerEngine 1, and what Megatron gives it
    override_linear_precision: Tuple[bool, bool, bool] = (False, False, False)

    def __post_init__(self) -> None:
        self._check(fp8_dpa=self.fp8_dpa, fp8_mha=self.fp8_mha, backward_override=self.backward_override,
                    scaling_factor_compute_algo=self.scaling_factor_compute_algo)
        if type(self.amax_history_len) is not int or self.amax_history_len < 1:
            raise InvalidArgument(f"amax_history_len is {self.amax_history_len!r}, expected a whole number, at least 1")
        if self.interval != 1:
            raise Unsupported(f"interval is {self.interval!r}, expected 1: scales are made after each pass")
        if any(self.override_linear_precision):
            raise Unsupported(f"override_linear_precision is {self.override_linear_precision!r}, expected (False, False, "
                              "False): all GEMMs are FP8")
        if self.amax_compute_algo not in ("max", "most_recent"):
            raise Unsupported(f"amax_compute_algo is {self.amax_compute_algo!r}, expected 'max' or 'most_recent'")
        if not self.reduce_amax:
            raise Unsupported("reduce_amax is False, expected True: what ranks gather has one scale")


@dataclass
class Float8CurrentScaling(Recipe):
    """Scales follow the largest magnitude of the matrix itself, over all ranks of the tensor-parallel group."""

    use_power_2_scales: bool = True
    fp8_format: Format = Format.HYBRID
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: Optional[str] = None

    def __post_init__(self) -> None:
        self._check(fp8_dpa=self.fp8_dpa, fp8_mha=self.fp8_mha, backward_override=self.backward_override)
        if not self.use_power_2_scales:
            raise Unsupported("use_power_2_scales is False, expected True: scales of the library are powers of two")


class _Refused(Recipe):
    def __init__(self, *unused: Any, **also: Any) -> None:
        raise Unsupported(f"{type(self).__name__} is not supported, expected DelayedScaling or Float8CurrentScaling: "
                          "an FP8 matrix of the library has one scale")


class MXFP8BlockScaling(_Refused):
    """Refused."""


class Float8BlockScaling(_Refused):
    """Refused."""


class NVFP4BlockScaling(_Refused):
    """Refused."""


class CustomRecipe(_Refused):
    """Refused."""
