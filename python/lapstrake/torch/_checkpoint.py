# SPDX-License-Identifier: Apache-2.0
"""Recomputation: torch.utils.checkpoint, by which a function is computed again as it was, with FP8 and with the random
numbers of a tracker as Megatron has it. PyTorch itself sees to the default generators only."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, Optional

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint as plain

from lapstrake.errors import Unsupported
from lapstrake.torch import fp8
from lapstrake.torch.recipe import DelayedScaling

_OF_PYTORCH = ("preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")


class _Generators:
    """The generators of a tracker: each computation begins where the first one did."""

    def __init__(self, get_tracker: Optional[Callable[[], Any]]) -> None:
        self._get = get_tracker
        self._first: Optional[Dict[str, Any]] = None

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        if self._get is None:
            yield
            return
        tracker = self._get()
        now = tracker.get_states()
        if self._first is None:
            self._first = dict(now)
            yield
            return
        tracker.set_states(dict(self._first))
        try:
            yield
        finally:
            tracker.set_states(now)


def checkpoint(function: Any, *args: Any, distribute_saved_activations: bool = False,
               get_rng_state_tracker: Optional[Callable[[], Any]] = None, tp_group: Any = None,
               use_reentrant: bool = True, **kwargs: Any) -> Any:
    """torch.utils.checkpoint.checkpoint of `function`, which recomputes in FP8 what was computed in FP8, with the same
    scales, and with the same random numbers of the tracker. Within torch.compile, delayed scaling is a graph break."""
    if (len(args) > 3 and isinstance(args[0], bool) and callable(args[1])
            and (args[2] is None or isinstance(args[2], dist.ProcessGroup))):
        # So older programs for TransformerEngine call it.
        distribute_saved_activations, get_rng_state_tracker, tp_group = args[:3]
        args = args[3:]
    if distribute_saved_activations:
        raise Unsupported("distribute_saved_activations is True, expected False: it is not supported")
    recipe = fp8.active()
    if torch.compiler.is_compiling():
        # Then nothing of Python runs again: operators do, and find the scales of matrices anew.
        if get_rng_state_tracker is None and not (recipe is not None and
                                                  isinstance(fp8.recipe_of(recipe), DelayedScaling)):
            return _run(function, args, kwargs, use_reentrant)
        return _uncompiled(function, args, kwargs, use_reentrant, get_rng_state_tracker)
    return _recorded(function, args, kwargs, use_reentrant, get_rng_state_tracker)


def _recorded(function: Any, args: Any, kwargs: Dict[str, Any], use_reentrant: bool,
              get_rng_state_tracker: Optional[Callable[[], Any]]) -> Any:
    recorded, generators = fp8.Recorded(), _Generators(get_rng_state_tracker)

    def run(*inputs: Any, **named: Any) -> Any:
        with recorded.computing(), generators.computing():
            return function(*inputs, **named)

    return _run(run, args, kwargs, use_reentrant)


_uncompiled = torch.compiler.disable(_recorded, recursive=False)


def _run(function: Any, args: Any, kwargs: Dict[str, Any], use_reentrant: bool) -> Any:
    if not use_reentrant:
        return plain(function, *args, use_reentrant=False, **kwargs)
    # There PyTorch passes on what has no name, and finds gradients of that alone.
    named = {name: value for name, value in kwargs.items() if name not in _OF_PYTORCH}
    options = {name: value for name, value in kwargs.items() if name in _OF_PYTORCH}
    if not named:
        return plain(function, *args, use_reentrant=True, **options)

    def unnamed(*inputs: Any) -> Any:
        return function(*inputs[:len(args)], **dict(zip(named, inputs[len(args):])))

    return plain(unnamed, *args, *named.values(), use_reentrant=True, **options)
