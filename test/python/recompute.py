# SPDX-License-Identifier: Apache-2.0
"""Recomputation by lap.checkpoint: it gives what was computed before, with FP8, dropout of a tracker and named arguments."""

import contextlib
import unittest

import torch
import torch._dynamo.testing
import torch.distributed as dist
import torch.nn.functional as F

import lapstrake
import lapstrake.torch as lap
from lapstrake.torch import fp8
from lapstrake.torch.recipe import DelayedScaling, Float8CurrentScaling
from torch_ranks import DEVICE, Case, fails, import_compiler


class Tracker:
    """Generators by name, of which one is the default generator within fork(), as Megatron's tracker has them."""

    def __init__(self, seed):
        with self._kept():
            self._here().manual_seed(seed)
            self.states = {"model-parallel-rng": self._here().get_state()}

    @staticmethod
    def _here():
        if DEVICE == "cpu":
            return torch.default_generator
        torch.cuda.init()
        return torch.cuda.default_generators[torch.cuda.current_device()]

    @classmethod
    @contextlib.contextmanager
    def _kept(cls):
        state = cls._here().get_state()
        try:
            yield
        finally:
            cls._here().set_state(state)

    def get_states(self):
        return dict(self.states)

    def set_states(self, states):
        self.states = states

    @contextlib.contextmanager
    def fork(self, name="model-parallel-rng"):
        with self._kept():
            self._here().set_state(self.states[name])
            try:
                yield
            finally:
                self.states[name] = self._here().get_state()


def same(what, ones, twos):
    for index, (one, two) in enumerate(zip(ones, twos)):
        if not torch.equal(one, two):
            raise AssertionError(f"{what}, {index}: {two} is not {one}, by {(one - two).abs().max()}")


def linear(ranks, features=8):
    return lap.Linear(features, 4 * ranks, parallel_mode="column", sequence_parallel=True, tp_group=dist.group.WORLD,
                      device=DEVICE)


def scales(rank, ranks):
    """Delayed scaling: inputs grow from step to step, and backward comes when the scales of the next pass are there."""
    for recipe in (DelayedScaling(amax_history_len=3), DelayedScaling(amax_compute_algo="most_recent"),
                   Float8CurrentScaling()):
        results = []
        for recompute, reentrant in ((False, False), (True, False), (True, True)):
            torch.manual_seed(3)
            layer, found = linear(ranks), []
            for step in range(4):
                x = (torch.randn(6, 8) * 37.0 ** step).requires_grad_()
                with lap.autocast(recipe=recipe):
                    y = lap.checkpoint(layer, x, use_reentrant=reentrant) if recompute else layer(x)
                y.pow(2).sum().backward()
                slots = layer._slots.of["column"]
                found += [y.detach(), x.grad, layer.weight.grad.clone(), *(slots[name].scale for name in "xwg")]
            results.append(found)
        same(f"{recipe!r}, without reentrance", results[0], results[1])
        same(f"{recipe!r}, reentrant", results[0], results[2])


def nested(rank, ranks):
    """A function that is computed again has one within itself that is; backward of it runs twice."""
    results = []
    for recompute in (False, True):
        torch.manual_seed(3)
        first, second = linear(ranks), linear(ranks, 4)
        run = lap.checkpoint if recompute else (lambda function, *given, use_reentrant: function(*given))
        for step in range(3):
            x = (torch.randn(6, 8) * 37.0 ** step).requires_grad_()
            with lap.autocast(recipe=DelayedScaling(amax_history_len=2)):
                y = run(lambda x: run(second, first(x)[rank::ranks], use_reentrant=False), x, use_reentrant=False)
            y.sum().backward(retain_graph=True)
            once = x.grad.clone()
            y.sum().backward()
            results.append([y.detach(), once, x.grad, first.weight.grad.clone(), second.weight.grad.clone()])
    for step in range(3):
        same(f"step {step}", results[step], results[step + 3])
    if fp8._state.tapes or fp8._state.again is not None:
        raise AssertionError("something is still recorded, or played")


def compiled(rank, ranks):
    """Within torch.compile delayed scaling is a graph break, current scaling is none."""
    for recipe, full in ((DelayedScaling(amax_history_len=2), False), (Float8CurrentScaling(), True)):
        torch._dynamo.reset()
        results = []
        for make in (lambda f: f, lambda f, full=full: torch.compile(f, fullgraph=full, backend="aot_eager_decomp_partition")):
            torch.manual_seed(3)
            layer, found = linear(ranks), []
            step_of = make(lambda x, layer=layer: lap.checkpoint(layer, x * 2, use_reentrant=False) + 1)
            for step in range(3):
                x = (torch.randn(6, 8) * 37.0 ** step).requires_grad_()
                with lap.autocast(recipe=recipe):
                    y = step_of(x)
                y.pow(2).sum().backward()
                found += [y.detach(), x.grad, layer.weight.grad.clone()]
            results.append(found)
        same(repr(recipe), *results)


def dropout(rank, ranks):
    """Dropout of a tracker's generator and of PyTorch's own; then both go on where they would without recomputation."""
    results = []
    for recompute, reentrant in ((False, False), (True, False), (True, True)):
        torch.manual_seed(7)
        tracker, found = Tracker(11 + rank), []
        weight = torch.randn(8, 8)

        def forward(x, weight=weight, tracker=tracker):
            with tracker.fork():
                x = F.dropout(x @ weight, 0.5)
            return F.dropout(x, 0.5).pow(2)

        for _ in range(3):
            x = torch.randn(6, 8, requires_grad=True)
            y = (lap.checkpoint(forward, x, use_reentrant=reentrant, get_rng_state_tracker=lambda tracker=tracker: tracker)
                 if recompute else forward(x))
            y.sum().backward()
            with tracker.fork():
                found += [y.detach(), x.grad, torch.rand(3)]
        results.append(found)
    same("without reentrance", results[0], results[1])
    same("reentrant", results[0], results[2])


def attention(rank, ranks):
    """Ranks that share heads and the seed of PyTorch drop different weights of attention: by the tracker's generator, if
    their own are alike."""
    trackers = [Tracker(5 + each) for each in range(ranks)]
    for sequence_parallel in (False, True):
        torch.manual_seed(3)
        layer = lap.MultiheadAttention(8 * ranks, 2 * ranks, attention_dropout=0.5, tp_group=dist.group.WORLD,
                                       set_parallel_mode=True, sequence_parallel=sequence_parallel, bias=False,
                                       get_rng_state_tracker=lambda: trackers[rank], device=DEVICE)
        with torch.no_grad():  # the same heads everywhere
            layer.qkv.weight.copy_(torch.randn(12, 8 * ranks).repeat(2, 1))
            layer.proj.weight.copy_(torch.randn(8 * ranks, 8))
        x = torch.randn(ranks, 1, 8 * ranks)
        before, seed = trackers[rank].get_states(), torch.get_rng_state()
        mine = []
        layer.proj.register_forward_pre_hook(lambda module, given: mine.append(given[0].detach().cpu()))
        layer(x.chunk(ranks)[rank] if sequence_parallel else x)
        moved = not torch.equal(before["model-parallel-rng"], trackers[rank].get_states()["model-parallel-rng"])
        if moved == sequence_parallel:
            raise AssertionError(f"sequence_parallel {sequence_parallel}, the tracker's generator was used: {moved}")
        if DEVICE == "cpu" and torch.equal(seed, torch.get_rng_state()) == sequence_parallel:
            raise AssertionError("PyTorch's own generator was used, or was not, with sequence_parallel "
                                 f"{sequence_parallel}")
        every = [torch.empty_like(mine[0]) for _ in range(ranks)]
        dist.all_gather(every, mine[0])
        if not sequence_parallel and torch.equal(every[0], every[1]):
            raise AssertionError("ranks dropped the same")
        before = trackers[rank].get_states()
        layer.eval()
        layer(x.chunk(ranks)[rank] if sequence_parallel else x)
        same("eval", before.values(), trackers[rank].get_states().values())


def named(rank, ranks):
    """Arguments by name, with gradients, and options of PyTorch among them."""
    def forward(x, y, factor=1.0, other=None):
        return x * y * factor + (0 if other is None else other ** 2)

    results = []
    for options in (None, {"use_reentrant": False}, {"use_reentrant": True}):
        x, y, other = (torch.full((2,), value, requires_grad=True) for value in (2.0, 3.0, 5.0))
        out = (forward(x, y=y, factor=7.0, other=other) if options is None else
               lap.checkpoint(forward, x, y=y, factor=7.0, other=other, preserve_rng_state=False, **options))
        out.sum().backward()
        results.append([out.detach(), x.grad, y.grad, other.grad])
    same("without reentrance", results[0], results[1])
    same("reentrant", results[0], results[2])


def by_position(rank, ranks):
    """As older programs for TransformerEngine call it: what it needs itself stands before the arguments of the function."""
    tracker = Tracker(11)
    for group in (None, dist.group.WORLD):
        x = torch.full((2,), 3.0, requires_grad=True)
        lap.checkpoint(lambda x: x * x, False, lambda: tracker, group, x).sum().backward()
        same("d x", [x.grad], [torch.full((2,), 6.0)])
    fails(lapstrake.Unsupported, "distribute_saved_activations is True", lap.checkpoint, lambda x: x, True, lambda: tracker,
          None, x)


class Recompute(Case):
    def test_scales(self):
        self.on((1, 2), scales)

    def test_nested(self):
        self.on((1, 2), nested)

    def test_compiled(self):
        import_compiler()
        self.on((2,), compiled)

    def test_dropout(self):
        self.on((1, 2), dropout)

    def test_attention(self):
        self.on((2,), attention)

    def test_named(self):
        self.on((1,), named)

    def test_by_position(self):
        self.on((1,), by_position)


if __name__ == "__main__":
    unittest.main()
