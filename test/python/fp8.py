# SPDX-License-Identifier: Apache-2.0
"""FP8 within autocast: results and gradients are those of plain torch with the same quantization."""

import copy
import gc
import unittest
import unittest.mock

import torch
import torch._dynamo.testing
import torch.distributed as dist
import torch.nn.functional as F

from torch.utils._python_dispatch import TorchDispatchMode

import lapstrake
import lapstrake.torch as lap
from lapstrake.torch import fp8
from lapstrake.torch.recipe import (DelayedScaling, Float8BlockScaling, Float8CurrentScaling, Format, MXFP8BlockScaling)
from torch_ranks import DEVICE, Case, import_compiler

OVERLAP = dict(ub_overlap_ag=True, ub_overlap_rs=True, ub_bulk_dgrad=True, ub_bulk_wgrad=True)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def rounded(tensor, dtype, amax=None):
    """A tensor after a cast to FP8 and back, by the power of two that its largest magnitude asks for."""
    amax = tensor.abs().max().item() if amax is None else amax
    most = 448.0 if dtype == E4M3 else 57344.0
    scale = 2.0 ** -60
    while amax / scale > most:
        scale *= 2
    return (tensor / scale).clamp(-most, most).to(dtype).float() * scale


class Quantized(torch.autograd.Function):
    """x W^T, all of whose operands are cast to FP8 and back; `seen(name)` is the magnitude of delayed scaling."""

    @staticmethod
    def forward(ctx, x, w, gradient, seen, now):
        now.update(x=x.abs().max().item(), w=w.abs().max().item())
        x8, w8 = rounded(x, E4M3, seen("x")), rounded(w, E4M3, seen("w"))
        ctx.save_for_backward(x8, w8)
        ctx.gradient, ctx.seen, ctx.now = gradient, seen, now
        return x8 @ w8.t()

    @staticmethod
    def backward(ctx, dy):
        x8, w8 = ctx.saved_tensors
        ctx.now["g"] = dy.abs().max().item()
        g8 = rounded(dy, ctx.gradient, ctx.seen("g"))
        return g8 @ w8, g8.flatten(0, -2).t() @ x8.flatten(0, -2), None, None, None


class Plain:
    """Two quantized GEMMs around a ReLU, on whole matrices; `history` is that of delayed scaling."""

    def __init__(self, weights, gradient, delayed):
        self.weights, self.gradient, self.delayed = weights, gradient, delayed
        self.history, self.now = [{}, {}], [{}, {}]

    def __call__(self, x):
        for index, w in enumerate(self.weights):
            def seen(name, history=self.history[index]):
                return max(history[name]) if self.delayed and name in history else None
            x = Quantized.apply(x, w, self.gradient, seen, self.now[index])
            x = F.relu(x) if index == 0 else x
        return x

    def end_of_forward(self):
        # What forward has found now, and backward before.
        for history, now in zip(self.history, self.now):
            for name, amax in now.items():
                history.setdefault(name, []).append(amax)
            now.clear()


def close(name, ours, theirs):
    # Both round the same operands in the same way. What is left are the sums of fp32 and, where an intermediate sum of
    # theirs lies on the other side of a tie, one step of E4M3 or E5M2 in few elements.
    error = (ours - theirs).abs()
    most = theirs.abs().max()
    if ours.shape != theirs.shape or error.max() > 0.02 * most or error.mean() > 1e-4 * most:
        raise AssertionError(f"{name}: {ours} is not {theirs}, by {error.max()}, {error.mean()} on average")


def trained(rank, ranks, recipe, sequence_parallel, options):
    """Four steps of two layers, column and then row parallel."""
    inner, hidden, rows = 8 * ranks, 12, 4 * ranks
    weights = [torch.randn(inner, hidden), torch.randn(hidden, inner)]
    gradient = E5M2 if recipe.fp8_format is Format.HYBRID else E4M3
    whole = Plain([w.clone().requires_grad_() for w in weights], gradient, isinstance(recipe, DelayedScaling))
    common = dict(bias=False, sequence_parallel=sequence_parallel, tp_group=dist.group.WORLD, device=DEVICE, **options)
    first = lap.Linear(hidden, inner, parallel_mode="column", ub_name="fc1", **common)
    second = lap.Linear(inner, hidden, parallel_mode="row", ub_name="fc2", **common)
    with torch.no_grad():
        first.weight.copy_(weights[0].chunk(ranks)[rank])
        second.weight.copy_(weights[1].chunk(ranks, 1)[rank])
    split = sequence_parallel and ranks > 1
    for step in range(4):
        x, scale = torch.randn(rows, 2, hidden) * 3.0 ** step, torch.randn(rows, 2, hidden)
        mine = (x.chunk(ranks)[rank] if split else x).clone().requires_grad_()
        x.requires_grad_()
        with lap.autocast(recipe=recipe):
            y = second(F.relu(first(mine)))
        truth = whole(x)
        whole.end_of_forward()
        close(f"result {step}", y.detach(), truth.detach().chunk(ranks)[rank] if split else truth.detach())
        (y * (scale.chunk(ranks)[rank] if split else scale)).sum().backward()
        (truth * scale).sum().backward()
        close(f"d x {step}", mine.grad, x.grad.chunk(ranks)[rank] if split else x.grad)
        close(f"d first {step}", first.weight.grad, whole.weights[0].grad.chunk(ranks)[rank])
        close(f"d second {step}", second.weight.grad, whole.weights[1].grad.chunk(ranks, 1)[rank])


def all_recipes(rank, ranks):
    for recipe in (Float8CurrentScaling(), Float8CurrentScaling(fp8_format=Format.E4M3),
                   DelayedScaling(amax_history_len=32)):
        trained(rank, ranks, recipe, True, OVERLAP if ranks > 1 else {})
    trained(rank, ranks, DelayedScaling(), True, dict(OVERLAP, ub_overlap_rs_dgrad=True) if ranks > 1 else {})
    trained(rank, ranks, DelayedScaling(), False, {})


def layers(rank, ranks):
    """A transformer layer in bfloat16 with recomputation: FP8 moves it by no more than FP8 may, and it learns."""
    layer = lap.TransformerLayer(32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, tp_group=dist.group.WORLD,
                                 sequence_parallel=True, set_parallel_mode=True, ub_tp_comm_overlap=True, device=DEVICE)
    x = torch.randn(16, 2, 32).chunk(ranks)[rank].clone()
    results = []
    for recompute in (False, True):
        layer.zero_grad()
        torch.manual_seed(rank)
        layer._modules["self_attention"]._modules["proj"]._slots.of.clear()
        with torch.autocast(DEVICE, torch.bfloat16), lap.fp8_autocast(fp8_recipe=Float8CurrentScaling(),
                                                                      fp8_group=dist.group.WORLD):
            y = lap.checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)
        y.float().pow(2).sum().backward()
        results.append((y.detach(), [p.grad.clone() for p in layer.parameters()]))
    with torch.autocast(DEVICE, torch.bfloat16):
        exact = layer(x)
    if torch.equal(exact, results[0][0]):
        raise AssertionError("nothing was rounded to FP8")
    # Each of four GEMMs rounds its operands by at most 2^-4 of them.
    if (exact - results[0][0]).float().norm() > 4 * 2 ** -4 * exact.float().norm():
        raise AssertionError("FP8 is too far away")
    for one, two in zip([results[0][0], *results[0][1]], [results[1][0], *results[1][1]]):
        if not torch.equal(one, two):
            raise AssertionError("recomputation gives something else")


def compiled(rank, ranks):
    """torch.compile with fullgraph makes one graph that serves two layers; results and gradients are the same bits."""
    for recipe in (DelayedScaling(amax_history_len=2), Float8CurrentScaling()):
        torch._dynamo.reset()
        plain = torch.nn.Sequential(*(lap.LayerNormMLP(8, 4 * ranks, sequence_parallel=True, set_parallel_mode=True,
                                                       tp_group=dist.group.WORLD, device=DEVICE, **OVERLAP)
                                      for _ in range(2)))
        graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        once = copy.deepcopy(plain)
        for layer in once:
            layer.compile(fullgraph=True, backend=graphs)
        for step in range(3):
            x = torch.randn(4, 2, 8) * 3.0 ** step
            results = []
            for model in (plain, once):
                mine = x.clone().requires_grad_()
                with lap.autocast(recipe=recipe):
                    y = model(mine)
                y.pow(2).sum().backward()
                results.append([y.detach(), mine.grad, *(p.grad for p in model.parameters())])
            for index, (ours, theirs) in enumerate(zip(*results)):
                if not torch.equal(ours, theirs):
                    raise AssertionError(f"step {step}, {index}: {ours} is not {theirs}")
        if graphs.frame_count != 1:
            raise AssertionError(f"{graphs.frame_count} graphs, expected 1")
        if once(x).equal(y):
            raise AssertionError("a graph of FP8 was used without FP8")
    try:
        with torch.enable_grad(), lap.autocast():
            (g,) = torch.autograd.grad(plain(x.requires_grad_()).sum(), x, create_graph=True)
        g.sum().backward()
    except lapstrake.Unsupported as failure:
        if "fp8_linear_backward" not in str(failure):
            raise
    else:
        raise AssertionError("a second derivative left something out")


def decorated(rank, ranks):
    """autocast as a decorator is around each call, also of itself, and of what torch.compile makes."""
    recipe = DelayedScaling(amax_history_len=2)
    layer = lap.Linear(8, 4 * ranks, parallel_mode="column", sequence_parallel=True, tp_group=dist.group.WORLD,
                       bias=False, device=DEVICE, **OVERLAP)

    @lap.fp8_autocast(enabled=True, fp8_recipe=recipe, fp8_group=dist.group.WORLD)
    def forward(module, x, depth=0):
        """Some words."""
        return forward(module, x, depth - 1) if depth else module(x)

    if forward.__name__ != "forward" or forward.__doc__ != "Some words.":
        raise AssertionError("another name")
    runs = [forward, lambda module, x: forward(module, x, 2), lap.autocast(recipe=recipe)(lambda module, x: module(x)),
            torch.compile(forward, backend="aot_eager")]
    results = []
    for run in (None, *runs):
        module, found = copy.deepcopy(layer), []
        for step in range(3):
            torch.manual_seed(step)
            x = (torch.randn(4, 8) * 37.0 ** step).requires_grad_()
            if run is None:
                with lap.autocast(recipe=recipe):
                    y = module(x)
            else:
                y = run(module, x)
            if fp8.active() is not None or fp8._state.depth:
                raise AssertionError("autocast did not end")
            y.pow(2).sum().backward()
            found += [y.detach(), x.grad, module.weight.grad.clone()]
        results.append(found)
    for which, result in enumerate(results):
        for ours, theirs in zip(result, results[0]):
            if not torch.equal(ours, theirs):
                raise AssertionError(f"decorator {which}: {ours} is not {theirs}")


def frozen(rank, ranks):
    """Weights or inputs without gradients; eval notes no magnitudes; no rows at all."""
    layer = lap.Linear(8, 4 * ranks, parallel_mode="column", sequence_parallel=True, tp_group=dist.group.WORLD,
                       bias=False, device=DEVICE, **OVERLAP)
    back = lap.Linear(4 * ranks, 8, parallel_mode="row", sequence_parallel=True, tp_group=dist.group.WORLD,
                      bias=False, device=DEVICE, **OVERLAP)
    gradients = []
    for needs_x, needs_w in ((True, True), (True, False), (False, True)):
        torch.manual_seed(5)
        x = torch.randn(4, 8, requires_grad=needs_x)
        for module in (layer, back):
            module.weight.requires_grad_(needs_w)
            module.zero_grad()
        with lap.autocast(recipe=Float8CurrentScaling()):
            back(layer(x)).sum().backward()
        gradients.append((x.grad, layer.weight.grad, back.weight.grad))
    for one, two in ((gradients[0][0], gradients[1][0]), (gradients[0][1], gradients[2][1]),
                     (gradients[0][2], gradients[2][2])):
        close("gradient", one, two)
    for module, x, text in ((layer, torch.zeros(2, 7), "the input of Linear is [2, 7], expected [..., 8]"),
                            (layer, torch.zeros(8), "x is [8], expected [..., 8]"),
                            (layer, torch.zeros(2, 8).double(), "x is torch.float64"),
                            (back, torch.zeros(2 * ranks - 1, 4), "3 rows are to be scattered")):
        try:  # on all ranks: none waits for another
            with lap.autocast():
                module(x)
        except lapstrake.Error as failure:
            if text not in str(failure):
                raise
        else:
            raise AssertionError(f"nothing was raised, expected '{text}'")
    layer.eval()
    with torch.no_grad(), lap.autocast():
        layer(torch.randn(4, 8))
        layer(torch.zeros(0, 8))
    if fp8._state.touched or layer._slots.of["column"]["x"].history is not None:
        raise AssertionError("eval was noted")


def overflow(rank, ranks):
    """A step that overflows on one rank says nothing of the next ones: a loss scale lets training skip it."""
    for recipe in (DelayedScaling(amax_history_len=8), DelayedScaling(amax_compute_algo="most_recent")):
        layer = lap.Linear(8, 4 * ranks, parallel_mode="column", sequence_parallel=True, tp_group=dist.group.WORLD,
                           bias=False, device=DEVICE)
        x = torch.randn(4, 8)
        for step in range(6):
            layer.zero_grad()
            mine = x.clone()
            if step == 2 and rank == 0:
                mine[0, 0] = float("inf")
            with lap.autocast(recipe=recipe):
                y = layer(mine)
            dy = torch.full_like(y, 1e-7)
            if step == 3 and rank == 0:
                dy[0, 0] = float("nan")
            y.backward(dy)
            if step in (1, 4, 5):
                every = [torch.empty_like(x, device="cpu") for _ in range(ranks)]
                dist.all_gather(every, x.cpu())
                truth = 1e-7 * torch.cat(every).sum(0)
                if (layer.weight.grad.cpu() - truth).abs().max() > 0.1 * truth.abs().max():
                    raise AssertionError(f"step {step}: {layer.weight.grad} is not {truth}")


def other_default(rank, ranks):
    """The default type of PyTorch is that of parameters, and of nothing that the library reads or writes."""
    results, scales, empty = [], [], torch.empty

    def watched(*arguments, **options):
        made = empty(*arguments, **options)
        if arguments == (ranks,):  # for the scales of shards, which the library writes as float
            scales.append(made.dtype)
        return made

    for default in (torch.float32, torch.bfloat16, torch.float64):
        for recipe in (Float8CurrentScaling(), DelayedScaling(amax_history_len=2)):
            torch.manual_seed(3)
            layer = lap.Linear(8, 4 * ranks, parallel_mode="column", sequence_parallel=True, bias=False, device=DEVICE,
                               tp_group=dist.group.WORLD, params_dtype=torch.float32, **OVERLAP)
            x = torch.randn(4, 8, requires_grad=True)
            torch.set_default_dtype(default)
            try:
                with unittest.mock.patch.object(torch, "empty", watched):
                    for _ in range(3):
                        with lap.autocast(recipe=recipe):
                            y = layer(x)
                        y.pow(2).sum().backward()
            finally:
                torch.set_default_dtype(torch.float32)
            results.append([y.detach(), x.grad, layer.weight.grad])
            slots = layer._slots.of["column"].values()
            if any(tensor.dtype != torch.float32 for slot in slots for tensor in (slot.scale, slot.found)):
                raise AssertionError(f"{default}: {[(slot.scale.dtype, slot.found.dtype) for slot in slots]}")
    if set(scales) != ({torch.float32} if ranks > 1 else set()):
        raise AssertionError(f"scales of shards are written to {set(scales)}")
    for index, result in enumerate(results[2:]):
        for one, two in zip(result, results[index % 2]):
            if not torch.equal(one, two):
                raise AssertionError(f"{index}: {one} is not {two}")


def gone(rank, ranks):
    """Backward where the module is there no more; and slots of a process group that has been destroyed."""
    def make(group):
        return lap.Linear(8, 4 * ranks, parallel_mode="column", sequence_parallel=True, tp_group=group, bias=False,
                          device=DEVICE)

    results = []
    for backend in (None, "aot_eager"):
        torch._dynamo.reset()
        for keep in (True, False):
            torch.manual_seed(3)
            layer, x = make(dist.group.WORLD), torch.randn(4, 8, requires_grad=True)
            with lap.autocast():
                y = (torch.compile(layer, backend=backend, fullgraph=True) if backend else layer)(x)
            if not keep:
                del layer
                torch._dynamo.reset()
                gc.collect()
            y.pow(2).sum().backward()
            results.append(x.grad)
    for result in results[1:]:
        if not torch.equal(result, results[0]):
            raise AssertionError(f"{result} is not {results[0]}")
    with lap.autocast():  # of these slots nothing is left
        pass
    group = dist.new_group(list(range(ranks)))
    old, new = make(group), make(dist.group.WORLD)
    with lap.autocast():
        y = old(torch.randn(4, 8))
    y.sum().backward()  # which notes magnitudes after the exchange
    dist.destroy_process_group(group)
    for _ in range(2):
        with lap.autocast():
            new(torch.randn(4, 8)).sum().backward()
    if new._slots.of["column"]["g"].history is None or fp8._state.touched:
        raise AssertionError("magnitudes were lost with those of another group")


class Zeros(TorchDispatchMode):
    """The types of tensors that are made of zeros, and all functions that were called."""

    def __init__(self):
        super().__init__()
        self.types, self.functions = [], []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        self.functions.append(str(function))
        if "zero" in str(function):
            self.types.append(result.dtype)
        return result


def lean(rank, ranks):
    """Backward makes no gradients of the FP8 matrices that forward leaves for it."""
    layer = lap.Linear(8, 4, bias=False, device=DEVICE)
    with lap.autocast():
        y = layer(torch.randn(4, 8, requires_grad=True))
    with Zeros() as zeros:
        y.sum().backward()
    if E4M3 in zeros.types or not any("fp8_linear_backward" in name for name in zeros.functions):
        raise AssertionError(f"zeros of {zeros.types} in {zeros.functions}")


def script(rank, ranks):
    """What a script for TransformerEngine's overlap asks for, by its names and in its places."""
    import lapstrake.torch.cpp_extensions as tex
    from lapstrake.torch.distributed import checkpoint
    if not tex.device_supports_multicast():
        raise AssertionError("a script would switch something off")
    mode = lap.module.base.UserBufferQuantizationMode.FP8
    lap.module.base.initialize_ub([16, 32], ranks, quantization_modes=[mode], dtype=torch.bfloat16,
                                  bootstrap_backend="gloo")
    model = lap.TransformerLayer(32, 128, 4, params_dtype=torch.float32, device=DEVICE, tp_group=dist.group.WORLD,
                                 tp_size=ranks, sequence_parallel=True, ub_overlap_ag=True, ub_overlap_rs=True,
                                 ub_bulk_wgrad=True, ub_bulk_dgrad=True, set_parallel_mode=True, seq_length=8,
                                 attention_dropout=0.0, fuse_qkv_params=True, ub_tp_comm_overlap=True,
                                 hidden_dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    recipe = DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=32, amax_compute_algo="most_recent")
    x, losses = torch.randn(8 // ranks, 2, 32, requires_grad=True), []
    for _ in range(6):
        with torch.amp.autocast(DEVICE, dtype=torch.bfloat16):
            with lap.autocast(enabled=True, recipe=recipe, amax_reduction_group=dist.group.WORLD):
                loss = checkpoint(model, x, is_first_microbatch=True).pow(2).sum()
        loss.backward()
        lap.reduce_sequence_parallel_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    lap.module.base.destroy_ub()
    if not losses[-1] < 0.98 * losses[0]:
        raise AssertionError(f"losses {losses}")


class Fp8(Case):
    def test_a_script_of_transformer_engine(self):
        self.on((2,), script)

    def test_recipes(self):
        self.on((1, 2, 4), all_recipes)

    def test_layers(self):
        self.on((2,), layers)

    def test_compiled(self):
        import_compiler()
        self.on((2,), compiled)

    def test_decorated(self):
        import_compiler()
        self.on((1, 2), decorated)

    def test_overflow(self):
        self.on((1, 2), overflow)

    def test_other_default(self):
        self.on((1, 4), other_default)

    def test_gone(self):
        import_compiler()
        self.on((2,), gone)

    def test_lean(self):
        self.on((1,), lean)

    def test_frozen(self):
        self.on((2,), frozen)

    def test_kinds_of_recipes(self):
        """Scripts for TransformerEngine ask a recipe what it is."""
        for recipe, delayed in ((DelayedScaling(), True), (Float8CurrentScaling(), False)):
            self.assertEqual((recipe.delayed(), recipe.float8_current_scaling()), (delayed, not delayed))
            self.assertTrue(recipe.float8_per_tensor_scaling())
            self.assertFalse(recipe.mxfp8() or recipe.float8_block_scaling() or recipe.nvfp4() or recipe.custom())

    def test_scales(self):
        for dtype, most in ((E4M3, 448.0), (E5M2, 57344.0)):
            for amax in (most, most * 1.001, most / 2, 1.0, 0.3, 1e-12, 3e15):
                scale = fp8.scale_of(torch.tensor(amax), dtype).item()
                self.assertTrue(amax <= most * scale and amax > most * scale / 2, (amax, scale))
            self.assertEqual(fp8.scale_of(torch.tensor(3e38), dtype).item(), 2.0 ** 60)
            for amax in (0.0, float("inf"), float("nan")):
                self.assertEqual(fp8.scale_of(torch.tensor(amax), dtype).item(), 1.0)
            self.assertEqual(fp8.scale_of(torch.tensor(1.0), dtype, 2), fp8.scale_of(torch.tensor(1.0), dtype) * 4)

    def test_sentences(self):
        for error, text, make in (
            (lapstrake.Unsupported, "MXFP8BlockScaling is not supported", MXFP8BlockScaling),
            (lapstrake.Unsupported, "Float8BlockScaling is not supported", lambda: Float8BlockScaling(x=1)),
            (lapstrake.Unsupported, "fp8_dpa is True", lambda: DelayedScaling(fp8_dpa=True)),
            (lapstrake.Unsupported, "reduce_amax is False", lambda: DelayedScaling(reduce_amax=False)),
            (lapstrake.Unsupported, "use_power_2_scales is False", lambda: Float8CurrentScaling(use_power_2_scales=False)),
            (lapstrake.Unsupported, "fp8_format is Format.E5M2", lambda: Float8CurrentScaling(fp8_format=Format.E5M2)),
            (lapstrake.Unsupported, "amax_compute_algo is 'mean'", lambda: DelayedScaling(amax_compute_algo="mean")),
            (lapstrake.InvalidArgument, "amax_history_len is 0", lambda: DelayedScaling(amax_history_len=0)),
            (lapstrake.InvalidArgument, "amax_history_len is '16', expected a whole number",
             lambda: DelayedScaling(amax_history_len="16")),
            (lapstrake.InvalidArgument, "margin is 0.5, expected a whole number", lambda: DelayedScaling(margin=0.5)),
            (lapstrake.Unsupported, "interval is 16, expected 1", lambda: DelayedScaling(interval=16)),
            (lapstrake.Unsupported, "override_linear_precision is (False, False, True), expected (False, False, False)",
             lambda: DelayedScaling(interval=1, override_linear_precision=(False, False, True))),
            (lapstrake.Unsupported, "calibrating is True", lambda: lap.autocast(calibrating=True)),
            (lapstrake.InvalidArgument, "enabled is <built-in function abs>, expected True or False: a decorator needs",
             lambda: lap.fp8_autocast(abs)),
            (lapstrake.InvalidArgument, "recipe is 'delayed'", lambda: lap.autocast(recipe="delayed")),
            (lapstrake.Unsupported, "parameters are not stored in FP8", lap.fp8_model_init),
            (lapstrake.Unsupported, "distribute_saved_activations is True",
             lambda: lap.checkpoint(abs, 1, distribute_saved_activations=True)),
            (lapstrake.Unsupported, "fp8_output is True",
             lambda: lap.Linear(4, 4, device="cpu")(torch.ones(1, 4), fp8_output=True)),
        ):
            with self.assertRaises(error) as caught:
                make()
            self.assertIn(text, str(caught.exception))
        DelayedScaling(interval=1, override_linear_precision=(False, False, False))  # as Megatron makes it
        self.assertEqual((lap.is_fp8_available(), lap.is_mxfp8_available()), (True, False))


if __name__ == "__main__":
    unittest.main()
