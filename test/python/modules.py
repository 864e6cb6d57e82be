# SPDX-License-Identifier: Apache-2.0
"""Modules with TransformerEngine's names: results, gradients and steps of an optimizer are plain torch's."""

import copy
import io
import pickle
import textwrap
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import lapstrake
import lapstrake.torch as lap
from lapstrake.torch import _rules
from lapstrake.torch.recipe import Float8CurrentScaling
from torch_ranks import COMPILED, DEVICE, Case, fails, import_compiler, replayed

OVERLAP = dict(ub_overlap_ag=True, ub_overlap_rs=True, ub_bulk_dgrad=True, ub_bulk_wgrad=True)


class Plain(torch.nn.Module):
    """The whole of a LayerNormMLP in plain torch."""

    def __init__(self, hidden, ffn, activation, normalization):
        super().__init__()
        self.activation, self.normalization = activation, normalization
        gated = 2 if activation == "swiglu" else 1
        shapes = {"layer_norm_weight": (hidden,), "fc1_weight": (gated * ffn, hidden), "fc1_bias": (gated * ffn,),
                  "fc2_weight": (hidden, ffn), "fc2_bias": (hidden,)}
        if normalization == "LayerNorm":
            shapes["layer_norm_bias"] = (hidden,)
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(*shape) * 0.3))

    def forward(self, x):
        if self.normalization == "LayerNorm":
            x = F.layer_norm(x, x.shape[-1:], self.layer_norm_weight, self.layer_norm_bias, 1e-5)
        else:
            x = F.rms_norm(x, x.shape[-1:], self.layer_norm_weight, 1e-5)
        x = F.linear(x, self.fc1_weight, self.fc1_bias)
        if self.activation == "swiglu":
            gate, value = x.chunk(2, -1)
            x = F.silu(gate) * value
        else:
            x = F.gelu(x, approximate="tanh")
        return F.linear(x, self.fc2_weight, self.fc2_bias)


def share(name, tensor, rank, ranks, gated=False):
    """The share of a parameter of LayerNormMLP."""
    if name in ("fc1_weight", "fc1_bias"):
        halves = tensor.chunk(2) if gated else (tensor,)
        return torch.cat([half.chunk(ranks)[rank] for half in halves])
    return tensor.chunk(ranks, 1)[rank] if name == "fc2_weight" else tensor


def close(name, ours, theirs, tolerance=2e-5):
    if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance):
        raise AssertionError(f"{name}: {ours} is not {theirs}, by {(ours - theirs).abs().max()}")


def mlp(rank, ranks, sequence_parallel, activation, normalization, options, compiled=None):
    """Three steps of AdamW: losses, gradients and weights are those of the whole in plain torch."""
    hidden, ffn, rows, gated = 6, 4 * ranks, 2 * ranks, activation == "swiglu"
    whole = Plain(hidden, ffn, activation, normalization)
    module = lap.LayerNormMLP(hidden, ffn, sequence_parallel=sequence_parallel, tp_group=dist.group.WORLD,
                              activation=activation, normalization=normalization, set_parallel_mode=True, device=DEVICE,
                              **options)
    state = {name: share(name, value, rank, ranks, gated) for name, value in whole.state_dict().items()}
    module.load_state_dict(state)
    run = module if compiled is None else torch.compile(module, fullgraph=True, **compiled)
    ours, theirs = (torch.optim.AdamW(part.parameters(), lr=0.05) for part in (module, whole))
    split = sequence_parallel and ranks > 1
    for step in range(3):
        x, target = torch.randn(rows, 3, hidden), torch.randn(rows, 3, hidden)
        mine, goal = (t.chunk(ranks)[rank] if split else t for t in (x, target))
        mine, x = mine.clone().requires_grad_(), x.clone().requires_grad_()
        truth = whole(x)
        with replayed(compiled, step):
            y = run(mine)
            close(f"result of step {step}", y.detach(), truth.detach().chunk(ranks)[rank] if split else truth.detach())
            ((y - goal) ** 2).sum().backward()
        ((truth - target) ** 2).sum().backward()
        lap.reduce_sequence_parallel_gradients(module)
        close(f"d x of step {step}", mine.grad, x.grad.chunk(ranks)[rank] if split else x.grad, 1e-4)
        for name, parameter in module.named_parameters():
            truth_of = share(name, whole.get_parameter(name).grad, rank, ranks, gated)
            close(f"d {name} of step {step}", parameter.grad, truth_of, 1e-4)
            if not parameter.grad.is_contiguous():
                raise AssertionError(f"d {name} is not contiguous")
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    for name, parameter in module.named_parameters():
        close(name, parameter.detach(), share(name, whole.get_parameter(name).detach(), rank, ranks, gated), 1e-3)


def mlps(rank, ranks):
    mlp(rank, ranks, True, "gelu", "LayerNorm", OVERLAP)
    mlp(rank, ranks, True, "swiglu", "RMSNorm", {})
    mlp(rank, ranks, True, "gelu", "LayerNorm", dict(OVERLAP, ub_overlap_rs_dgrad=True))
    mlp(rank, ranks, False, "swiglu", "LayerNorm", {})


def reads_rules():
    """Whether liblap can read rules: they are YAML."""
    try:
        lap.initialize_ub([8, 8], 2, ub_cfgs={"fc2_fprop": {"method": "ring_exchange"}})
    except lapstrake.Unsupported:
        return False
    lap.destroy_ub()
    return True


needs_rules = unittest.skipUnless(reads_rules(), "this liblap was built without libyaml: it cannot read ub_cfgs")


FOREIGN = {"method": "auto", "auto_foreign": True}


def ruled(rank, ranks):
    """With rules of the caller's."""
    lap.initialize_ub([2 * ranks, 6], ranks, ub_cfgs={"fc2_fprop": {"method": "ring_exchange"},
                                                      "fc1_dgrad": {"method": "bulk"}})
    mlp(rank, ranks, True, "gelu", "RMSNorm", OVERLAP)
    lap.initialize_ub([2 * ranks, 6], ranks, ub_cfgs={"fc1_fprop": FOREIGN, "fc1_dgrad": FOREIGN, "fc2_dgrad": FOREIGN})
    mlp(rank, ranks, True, "gelu", "RMSNorm", OVERLAP)  # on a CPU there is no cuBLASMp: auto has its own methods
    lap.destroy_ub()


def compiled(rank, ranks, options):
    mlp(rank, ranks, True, "gelu", "LayerNorm", OVERLAP, compiled=options)


def linears(rank, ranks):
    """Linear and LayerNormLinear, one after the other: column parallel, then row parallel."""
    for sequence_parallel in (True, False):
        options = OVERLAP if sequence_parallel and ranks > 1 else {}
        common = dict(sequence_parallel=sequence_parallel, tp_group=dist.group.WORLD, device=DEVICE)
        first = lap.LayerNormLinear(6, 4 * ranks, parallel_mode="column", ub_name="qkv", normalization="RMSNorm",
                                    zero_centered_gamma=True, return_layernorm_output=True, **options, **common)
        second = lap.Linear(4 * ranks, 6, parallel_mode="row", ub_name="proj", return_bias=True, **options, **common)
        plain = lap.Linear(6, 5, device=DEVICE)
        weights = [torch.randn(4 * ranks, 6), torch.randn(6, 4 * ranks)]
        with torch.no_grad():
            first.weight.copy_(weights[0].chunk(ranks)[rank])
            second.weight.copy_(weights[1].chunk(ranks, 1)[rank])
            second.bias.copy_(torch.arange(6.0))
            plain.weight.copy_(torch.randn(5, 6))
        x = torch.randn(2 * ranks, 2, 6)
        split = sequence_parallel and ranks > 1
        mine = x.chunk(ranks)[rank] if split else x
        hidden, normed = first(mine)
        result, bias = second(hidden)
        truth = F.rms_norm(x, (6,), eps=1e-5)
        close("norm", normed.detach(), truth.chunk(ranks)[rank] if split else truth)
        truth = truth @ weights[0].t() @ weights[1].t()
        close("result", result.detach(), truth.chunk(ranks)[rank] if split else truth, 1e-4)
        close("bias", bias.detach(), torch.arange(6.0))
        close("plain", plain(mine).detach(), mine @ plain.weight.detach().t())
        if (second.bias.sequence_parallel, first.bias.sequence_parallel) != (split, False):
            raise AssertionError("marks of parameters")


def saved(rank, ranks):
    """A module made from the state_dict of another gives the same bits; a group may come later."""
    options = dict(sequence_parallel=True, set_parallel_mode=True, device=DEVICE, **OVERLAP)
    one = lap.LayerNormMLP(4, 8 * ranks, tp_group=dist.group.WORLD, **options)
    two = lap.LayerNormMLP(4, 8 * ranks, tp_size=ranks, **options)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    two.load_state_dict(torch.load(file))
    x = torch.randn(2, 4)
    try:
        two(x)
    except lapstrake.InvalidArgument as failure:
        if "set_tensor_parallel_group" not in str(failure):
            raise
    else:
        raise AssertionError("a module without a group ran")
    two.set_tensor_parallel_group(dist.group.WORLD)
    if not torch.equal(one(x), two(x)):
        raise AssertionError("another result")
    keys = ["layer_norm_weight", "layer_norm_bias", "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"]
    if list(one.state_dict()) != keys:
        raise AssertionError(list(one.state_dict()))
    half = one.to(torch.bfloat16)(x.bfloat16())
    if half.dtype != torch.bfloat16:
        raise AssertionError(half.dtype)
    two.zero_grad()
    with torch.autocast(DEVICE, torch.bfloat16):
        two(x).sum().backward()
    if two.fc1_weight.grad.dtype != torch.float32:
        raise AssertionError(two.fc1_weight.grad.dtype)


def copied(rank, ranks):
    """Copies, pickles and assigned parameters behave as what they were made from: gradients over ranks, too."""
    options = dict(sequence_parallel=True, set_parallel_mode=True, tp_group=dist.group.WORLD, device=DEVICE, **OVERLAP)
    one = torch.nn.Sequential(lap.LayerNormMLP(4, 8 * ranks, **options),
                              lap.Linear(4 * ranks, 4, sequence_parallel=True, tp_group=dist.group.WORLD,
                                         parallel_mode="row", device=DEVICE))
    x, gradients = torch.randn(2, 4), []
    deep = copy.deepcopy(one)
    shallow = copy.copy(one[0])
    if shallow.tp_group is not one[0].tp_group or not torch.equal(shallow(x), one[0](x)):
        raise AssertionError("a shallow copy is another module")
    pickled = pickle.loads(pickle.dumps(one))
    fails(lapstrake.InvalidArgument, "has no group: give it tp_group", pickled[0], x)
    for part in pickled:
        if part.tp_group is not None:
            raise AssertionError("a group was pickled")
        part.set_tensor_parallel_group(dist.group.WORLD)
    assigned = copy.deepcopy(one)
    assigned.load_state_dict({name: value.clone() for name, value in one.state_dict().items()}, assign=True)
    for model in (one, deep, pickled, assigned):
        hidden = model[0](x)
        model[1](hidden.repeat(ranks, 1)).pow(2).sum().backward()
        lap.reduce_sequence_parallel_gradients(model)
        gradients.append([p.grad for p in model.parameters()])
    for which, others in enumerate(gradients):
        for (name, _), ours, theirs in zip(one.named_parameters(), others, gradients[0]):
            if not torch.equal(ours, theirs):
                raise AssertionError(f"d {name} of copy {which}: {ours} is not {theirs}")
    if deep[0].tp_group is not one[0].tp_group or deep[0].fc1_weight is one[0].fc1_weight:
        raise AssertionError("what a copy shares")


def named(rank, ranks):
    """A group may be given by its name, as to operators."""
    module = lap.LayerNormMLP(4, 8, sequence_parallel=True, set_parallel_mode=True, tp_group="0", device=DEVICE)
    module(torch.full((2, 4), float(rank))).sum().backward()
    lap.reduce_sequence_parallel_gradients(module)
    close("d fc2_bias", module.fc2_bias.grad, torch.full((4,), 2.0 * ranks))
    if module.tp_group is not dist.group.WORLD:
        raise AssertionError(module.tp_group)


def exported(rank, ranks):
    """torch.export takes what torch.jit.trace cannot record, which says so."""
    for mode, columns in (("column", 8), ("row", 8 // ranks)):
        layer = lap.Linear(8, 8, parallel_mode=mode, sequence_parallel=True, tp_group=dist.group.WORLD, device=DEVICE)
        x = torch.randn(4, columns)
        for recipe in (None, Float8CurrentScaling()):
            with lap.autocast(recipe is not None, recipe=recipe):
                truth = layer(x)
                if not torch.equal(torch.export.export(layer, (x,)).module()(x), truth):
                    raise AssertionError(f"{mode}, {recipe}: another result")
                if recipe is None and mode == "row":
                    continue
                name = "gather_matmul" if recipe is None else "fp8_linear"
                fails(lapstrake.Unsupported, f"torch.jit.trace cannot record lapstrake::{name}: use torch.compile or torch.export",
                      torch.jit.trace, layer, x)


MARKS = ("tensor_model_parallel", "partition_dim", "partition_stride", "sequence_parallel")


def marks(module):
    """What Megatron looks for on each parameter."""
    return {name: [getattr(parameter, mark, None) for mark in MARKS] for name, parameter in module.named_parameters()}


def begun(rank, ranks):
    """Made on a meta device, and reset_parameters() behind to_empty(): as if it had been made at once. Copies have the marks."""
    def make(device):
        torch.manual_seed(5)
        return lap.TransformerLayer(8, 16, 2, sequence_parallel=True, set_parallel_mode=True, device=device, bias=bool(ranks > 1),
                                    tp_group=dist.group.WORLD, init_method=lambda weight: torch.nn.init.uniform_(weight, 1, 2))

    at_once, later = make(DEVICE), make("meta")
    truth = marks(at_once)
    later.to_empty(device=DEVICE)
    with torch.no_grad():
        for parameter in later.parameters():
            parameter.fill_(float("nan"))
    later.layernorm_mlp.reset_parameters(defer_init=True)
    if not later.layernorm_mlp.fc1_weight.isnan().all():
        raise AssertionError("defer_init")
    torch.manual_seed(5)
    later.reset_parameters()
    for (name, ours), theirs in zip(later.named_parameters(), at_once.parameters()):
        if not torch.equal(ours, theirs):
            raise AssertionError(f"{name}: {ours} is not {theirs}")
    if any(value is None for value in truth["layernorm_mlp.layer_norm_weight"][::3]) or truth != marks(later):
        raise AssertionError(f"{marks(later)} is not {truth}")
    copied = copy.deepcopy(later)
    if marks(copied) != truth:
        raise AssertionError(f"{marks(copied)} of a copy is not {truth}")
    copied.layernorm_mlp.layer_norm_weight = None
    pickle.loads(pickle.dumps(copied)).reset_parameters()  # without the function, and without what was taken away


def begun_by_fsdp(rank, ranks):
    """The older FSDP materializes modules by reset_parameters()."""
    with torch.device("meta"):
        model = torch.nn.Sequential(lap.TransformerLayer(8, 16, 2, hidden_dropout=0.0))
    run = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    if not run(torch.ones(4, 2, 8)).isfinite().all():
        raise AssertionError("not begun")


def flat(rank, ranks):
    """The older FSDP may hide parameters, and their gradients with them: these were left as they were."""
    group, alone = dist.group.WORLD, [dist.new_group([each]) for each in range(ranks)][rank]
    for original in (True, False):
        torch.manual_seed(3)
        layer = lap.LayerNormMLP(4, 8, sequence_parallel=True, set_parallel_mode=True, tp_group=group)
        plain = copy.deepcopy(layer)
        run = FullyShardedDataParallel(layer, alone, use_orig_params=original, device_id=torch.device("cpu"))
        x = torch.randn(2, 4) * (rank + 1)
        for model in (plain, run):
            model(x).pow(2).sum().backward()
        lap.reduce_sequence_parallel_gradients(plain)
        if not original:
            fails(lapstrake.Unsupported, "layer_norm_weight of LayerNormMLP is Tensor, expected Parameter: with FullySharded",
                  lap.reduce_sequence_parallel_gradients, run)
            continue
        lap.reduce_sequence_parallel_gradients(run)
        for (name, theirs), ours in zip(plain.named_parameters(), run.parameters()):
            close(f"d {name}", ours.grad.view(theirs.shape), theirs.grad)


def clipped(rank, ranks):
    """The norm of all gradients, by the lines of docs/python.md, is that of the whole model."""
    group = dist.group.WORLD
    model = lap.TransformerLayer(8, 16, 2, hidden_dropout=0.0, attention_dropout=0.0, sequence_parallel=True,
                                 set_parallel_mode=True, tp_group=group, device=DEVICE)
    model(torch.randn(2, 3, 8)).pow(2).sum().backward()
    lap.reduce_sequence_parallel_gradients(model)
    text = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    lines = text[text.index("    # Gradients are clipped"):].split("\n\n")[0]
    exec(textwrap.dedent(lines), {"torch": torch, "dist": dist, "model": model, "group": group, "most": 0.5})
    total = torch.zeros(())
    for parameter in model.parameters():
        square = parameter.grad.pow(2).sum()
        if parameter.tensor_model_parallel:
            dist.all_reduce(square)
        total += square
    close("norm", total.sqrt(), torch.tensor(0.5), 1e-4)


def tied(rank, ranks):
    """The gradient of a parameter that two modules share is summed once."""
    one, two = (lap.LayerNormMLP(4, 8, sequence_parallel=True, set_parallel_mode=True, tp_group=dist.group.WORLD,
                                 device=DEVICE) for _ in range(2))
    two.layer_norm_weight, model = one.layer_norm_weight, torch.nn.Sequential(one, two)
    model(torch.randn(2, 4)).sum().backward()
    whole = one.layer_norm_weight.grad.clone()
    dist.all_reduce(whole)
    lap.reduce_sequence_parallel_gradients(model)
    close("d layer_norm_weight", one.layer_norm_weight.grad, whole)


def narrow(rank, ranks):
    """One feature a rank, one column, few rows or none: gradients in bulk, too."""
    for features, columns, rows in ((ranks, 3, 2), (ranks, 1, 1), (2 * ranks, 3, 0), (ranks, 1, 0)):
        layer = lap.Linear(columns, features, parallel_mode="column", sequence_parallel=True, bias=False, device=DEVICE,
                           tp_group=dist.group.WORLD, **OVERLAP)
        weight, full = torch.randn(features, columns, requires_grad=True), torch.randn(rows * ranks, columns)
        with torch.no_grad():
            layer.weight.copy_(weight.chunk(ranks)[rank])
        x = full[rank * rows:(rank + 1) * rows].clone().requires_grad_()
        full.requires_grad_()
        layer(x).pow(2).sum().backward()
        (full @ weight.t()).pow(2).sum().backward()
        close("d x", x.grad, full.grad[rank * rows:(rank + 1) * rows])
        close("d weight", layer.weight.grad, weight.grad.chunk(ranks)[rank])


def replicas(rank, ranks):
    """Two replicas of two tensor-parallel ranks, by DistributedDataParallel and by FSDP, have the gradients of both."""
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))
    replica, place = rank // 2, rank % 2
    torch.manual_seed(place)
    model = lap.LayerNormMLP(4, 8, sequence_parallel=True, set_parallel_mode=True, tp_group=mesh["tp"].get_group(),
                             device=DEVICE, **OVERLAP)
    wrapped, sharded = copy.deepcopy(model), copy.deepcopy(model)
    wrapped = DistributedDataParallel(wrapped, process_group=mesh["dp"].get_group())
    fully_shard(sharded, mesh=mesh["dp"])
    sharded.set_gradient_divide_factor(1.0)
    if hasattr(sharded, "set_force_sum_reduction_for_comms"):  # else newer versions ask gloo for more than a sum
        sharded.set_force_sum_reduction_for_comms(True)
    torch.manual_seed(2)
    batches = torch.randn(2, 4, 4).chunk(2, 1)[place]
    for batch in batches:
        model(batch).pow(2).sum().backward()
    for run in (wrapped, sharded):
        run(batches[replica]).pow(2).sum().backward()
    for part in (model, wrapped, sharded):
        lap.reduce_sequence_parallel_gradients(part)
    for (name, truth), ours, theirs in zip(model.named_parameters(), wrapped.parameters(), sharded.parameters()):
        close(f"d {name} of DDP, the mean", ours.grad * 2, truth.grad)
        close(f"d {name} of FSDP", theirs.grad.full_tensor(), truth.grad)


class Modules(Case):
    def test_mlp_one_and_two_ranks(self):
        self.on((1, 2), mlps)

    def test_mlp_three_and_four_ranks(self):
        self.on((3, 4), mlps)

    @needs_rules
    def test_rules(self):
        self.on((1, 2, 3, 4), ruled)

    def test_compiled(self):
        import_compiler()
        for options in COMPILED:
            with self.subTest(**options):
                self.on((2,), compiled, options)

    def test_linears(self):
        self.on((1, 2, 4), linears)

    def test_saved(self):
        self.on((2,), saved)

    def test_named(self):
        self.on((2,), named)

    def test_exported(self):
        import_compiler()
        self.on((2,), exported)

    def test_tied(self):
        self.on((2,), tied)

    def test_narrow(self):
        self.on((2,), narrow)

    def test_begun(self):
        self.on((1, 2), begun)

    @unittest.skipIf(DEVICE == "cuda", "gloo has no all-gather of GPUs' memory")
    def test_begun_by_fsdp(self):
        self.on((2,), begun_by_fsdp)

    @unittest.skipIf(DEVICE == "cuda", "gloo has no all-gather of GPUs' memory")
    def test_flat(self):
        self.on((2,), flat)

    def test_clipped(self):
        self.on((1, 2), clipped)

    @unittest.skipIf(DEVICE == "cuda", "gloo has no reduce-scatter of GPUs' memory")
    def test_replicas(self):
        self.on((4,), replicas)

    def test_copied(self):
        self.on((2,), copied)

    def refused(self, *cases):
        """Each case is an error, a part of its sentence, and what raises it."""
        for error, text, make in cases:
            with self.assertRaises(error) as caught:
                make()
            self.assertIn(text, str(caught.exception))

    def test_sentences(self):
        with torch.device("meta"):  # a process that has used a GPU cannot fork the ranks of other tests
            self.refused(
                (lapstrake.InvalidArgument, "out_features is 7, expected a multiple of 2",
                 lambda: lap.Linear(4, 7, tp_size=2, parallel_mode="column")),
                (lapstrake.InvalidArgument, "ub_name is 'fc2', expected qkv or fc1",
                 lambda: lap.Linear(4, 8, tp_size=2, parallel_mode="column", ub_name="fc2")),
                (lapstrake.InvalidArgument, "sequence_parallel is False with ub_overlap_ag",
                 lambda: lap.Linear(4, 8, tp_size=2, parallel_mode="column", ub_overlap_ag=True)),
                (lapstrake.InvalidArgument, "parallel_mode is 'diagonal'",
                 lambda: lap.Linear(4, 8, parallel_mode="diagonal")),
                (lapstrake.InvalidArgument, "normalization is 'BatchNorm'",
                 lambda: lap.LayerNormLinear(4, 8, normalization="BatchNorm")),
                (lapstrake.InvalidArgument, "activation is 'gelo'", lambda: lap.LayerNormMLP(4, 8, activation="gelo")),
                (lapstrake.Unsupported, "fuse_wgrad_accumulation is True",
                 lambda: lap.Linear(4, 8, fuse_wgrad_accumulation=True)),
                (lapstrake.Unsupported, "with_cublasmp is True",
                 lambda: lap.initialize_ub([8, 8], 2, with_cublasmp=True)),
                (lapstrake.InvalidArgument, "quantization_modes has 'fp8'",
                 lambda: lap.initialize_ub([8, 8], 2, quantization_modes=["fp8"])),
                (lapstrake.Unsupported, "ub_cfgs has 2 configurations that differ, expected one",
                 lambda: lap.initialize_ub([8, 8], 2, ub_cfgs=[{}, {"fc2_fprop": {"method": "pipeline"}}])),
            )
            lap.initialize_ub([8, 8], 2, ub_cfgs=[{}, {}])  # one for each quantization mode, as for TransformerEngine
            lap.destroy_ub()

    def test_sentences_about_inputs(self):
        modules = [lap.Linear(8, 4, device="cpu"), lap.LayerNormLinear(8, 4, device="cpu"),
                   lap.LayerNormMLP(8, 4, normalization="RMSNorm", device="cpu")]
        x = torch.ones(2, 8)
        for module in modules:
            name = f"the input of {type(module).__name__} is"
            self.refused(
                (lapstrake.InvalidArgument, f"{name} [2, 9], expected [..., 8]", lambda: module(torch.ones(2, 9))),
                (lapstrake.InvalidArgument, f"{name} [], expected [..., 8]", lambda: module(torch.ones(()))),
                (lapstrake.InvalidArgument, f"{name} on meta, expected cpu", lambda: module(x.to("meta"))),
                (lapstrake.InvalidArgument, f"{name} torch.float64, expected torch.float32 as its parameters",
                 lambda: module(x.double())))
            with torch.autocast("cpu", torch.bfloat16):
                self.assertEqual(module(x).dtype, torch.bfloat16)
            half = copy.deepcopy(module).bfloat16()
            half.layer_norm_weight = getattr(module, "layer_norm_weight", None)  # norms may stay wide
            half.layer_norm_bias = getattr(module, "layer_norm_bias", None)
            self.assertEqual(half(x.bfloat16()).dtype, torch.bfloat16)
            self.refused((lapstrake.InvalidArgument, f"{name} torch.float32, expected torch.bfloat16", lambda: half(x)))

    def test_gated_activations(self):
        """The first half of fc1 is the gate."""
        for name, function in (("glu", torch.sigmoid), ("sreglu", lambda x: F.relu(x).pow(2)), ("reglu", F.relu),
                               ("geglu", lambda x: F.gelu(x, approximate="tanh")), ("swiglu", F.silu),
                               ("qgeglu", lambda x: x * torch.sigmoid(1.702 * x))):
            normal = torch.nn.init.normal_
            module = lap.LayerNormMLP(6, 4, init_method=normal, output_layer_init_method=normal, activation=name, device="cpu")
            x = torch.randn(5, 6)
            gate, value = F.linear(F.layer_norm(x, (6,)), module.fc1_weight).chunk(2, -1)
            close(name, module(x), F.linear(function(gate) * value, module.fc2_weight))

    def test_names_of_transformer_engine(self):
        for name, text in (("DotProductAttention", "use torch.nn.functional.scaled_dot_product_attention"),
                           ("RMSNorm", "use torch.nn.RMSNorm"), ("GroupedLinear", "there is nothing like it here")):
            self.refused((AttributeError, f"lapstrake.torch has no {name}, which TransformerEngine has: {text}",
                          lambda name=name: getattr(lap, name)))
            self.assertFalse(hasattr(lap, name))
        self.refused((AttributeError, "module 'lapstrake.torch' has no attribute 'Lineer'", lambda: lap.Lineer))

    def test_where_parameters_are(self):
        with torch.device("meta"):
            layer = lap.TransformerLayer(8, 16, 2)
        self.assertEqual({parameter.device.type for parameter in layer.parameters()}, {"meta"})

    @needs_rules
    def test_foreign_rules(self):
        """auto_foreign goes to the operators of the GEMMs that have it, as long as their method is auto."""
        rules = {"fc1_fprop": FOREIGN, "fc1_dgrad": dict(FOREIGN, is_reduce_scatter=1), "fc2_dgrad": FOREIGN,
                 "qkv_fprop": dict(FOREIGN, auto_foreign=0), "qkv_dgrad": FOREIGN, "proj_fprop": {"method": "auto"}}
        lap.initialize_ub([8, 8], 2, ub_cfgs=rules)
        on = dict(overlap_ag=True, overlap_rs=True, overlap_rs_dgrad=False, bulk_dgrad=True, bulk_wgrad=True)
        for name, methods, switches in (
            ("fc1", ("auto:auto_foreign", "gemm_rs/auto:auto_foreign", ""), on),
            ("fc1", ("serial", "gemm_rs/auto:auto_foreign", ""), dict(on, overlap_ag=False)),
            ("fc2", ("pipeline:num_splits=4", "auto:auto_foreign", ""), on),
            ("qkv", ("auto", "bulk_ag/auto:auto_foreign", "direct"), on),
            ("proj", ("auto", "ring", ""), on),
        ):
            self.assertEqual(_rules.methods(name, 2, 8, **switches), methods)
        lap.destroy_ub()
        self.assertEqual(_rules.methods("fc1", 2, 8, **on)[0], "ring")

    @needs_rules
    def test_sentences_about_rules(self):
        self.refused(
            (lapstrake.InvalidArgument, "did you mean 'fc2_fprop'",
             lambda: lap.initialize_ub([8, 8], 2, ub_cfgs={"fc2_frpop": {"method": "pipeline"}})),
            (lapstrake.InvalidArgument, "method",
             lambda: lap.initialize_ub([8, 8], 2, ub_cfgs={"fc2_fprop": {"method": "bulk"}})),
            (lapstrake.InvalidArgument, "did you mean 'fc2_fprop'",
             lambda: lap.initialize_ub([8, 8], 2, ub_cfgs={"fc2_frpop": FOREIGN})),
            (lapstrake.InvalidArgument, "ub_cfgs:1", lambda: lap.initialize_ub([8, 8], 2, ub_cfgs="rules.yaml")),
            (lapstrake.InvalidArgument, "auto_foreign of fc2_fprop is 2, expected 0 or 1",
             lambda: lap.initialize_ub([8, 8], 2, ub_cfgs={"fc2_fprop": dict(FOREIGN, auto_foreign=2)})),
            (lapstrake.InvalidArgument, "auto_foreign of fc2_fprop is 'yes', expected 0 or 1",
             lambda: lap.initialize_ub([8, 8], 2, ub_cfgs={"fc2_fprop": dict(FOREIGN, auto_foreign="yes")})),
            (lapstrake.InvalidArgument, "auto_foreign of fc2_fprop is True with method 'pipeline', expected 'auto'",
             lambda: lap.initialize_ub([8, 8], 2, ub_cfgs={"fc2_fprop": dict(FOREIGN, method="pipeline")})),
            (lapstrake.InvalidArgument, "auto_foreign of fc2_fprop is True with method None, expected 'auto'",
             lambda: lap.initialize_ub([8, 8], 2, ub_cfgs={"fc2_fprop": {"auto_foreign": True}})),
        )


if __name__ == "__main__":
    unittest.main()
