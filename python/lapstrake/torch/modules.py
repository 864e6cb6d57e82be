# SPDX-License-Identifier: Apache-2.0
"""Modules with the names and arguments of TransformerEngine, built from the operators of this package.

Parameters are torch parameters: state_dict, optimizers and hooks work as with any module. Norms, activations and
attention are those of torch. With sequence parallelism inputs and outputs have a rank's share of dimension 0. Within
autocast (fp8.py) GEMMs are FP8. Arguments that ask for what there is not (fused accumulation, ...) are refused.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from lapstrake.errors import InvalidArgument, Unsupported
from lapstrake.torch import _fp8_linear, _rules, fp8
from lapstrake.torch._groups import group_size, in_graph, name_of, process_group
from lapstrake.torch._matrix import shape_of
from lapstrake.torch._ops import copy_matmul, gather_matmul, matmul_scatter, matmul_sum

Device = Union[torch.device, str, None]
Init = Optional[Callable[[Tensor], Any]]


def _refuse(**arguments: Any) -> None:
    """Arguments of TransformerEngine that ask for what these modules do not do."""
    for name, value in arguments.items():
        if value:
            raise Unsupported(f"{name} is {value!r}, expected {'None' if value is not True else False}: it is not "
                              "supported")


def _share(name: str, total: int, size: int) -> int:
    if total < 1 or total % size:
        raise InvalidArgument(f"{name} is {total}, expected a multiple of {size}, the number of tensor-parallel ranks")
    return total // size


def _normal(weight: Tensor) -> None:
    nn.init.normal_(weight, mean=0.0, std=0.023)


def _default_device() -> Device:
    """That of `with torch.device(...)` or torch.set_default_device, else the GPU if there is one. PyTorch does not tell a
    CPU that was asked for from none: there `device="cpu"` is needed."""
    given = torch.get_default_device()
    return given if given.type != "cpu" else "cuda" if torch.cuda.is_available() else "cpu"


class _Begin(NamedTuple):
    """How a parameter begins, and what Megatron looks for on it. `init` is that of a weight; a vector has `value`."""

    init: Init
    value: Optional[float]
    partition: Optional[int]  # the dimension that ranks share
    whole: bool  # every rank has all of it; with sequence parallelism its gradient is that of a rank's rows only


class _Parallel(nn.Module):
    """What all modules have: a tensor-parallel group, and the overlap of their GEMMs."""

    # Parameters that every rank has whole; with sequence parallelism their gradients are those of a rank's rows only.
    _whole: Tuple[str, ...] = ("layer_norm_weight", "layer_norm_bias", "fc2_bias")
    layer_norm_weight: nn.Parameter
    layer_norm_bias: Optional[nn.Parameter]

    def __init__(self, tp_group: Any, tp_size: int, sequence_parallel: bool, params_dtype: Optional[torch.dtype],
                 device: Device, get_rng_state_tracker: Optional[Callable[[], Any]], **overlap: bool) -> None:
        super().__init__()
        self.tp_size = group_size(name_of(tp_group)) if tp_group is not None else tp_size
        if tp_size not in (1, self.tp_size):  # 1 is the default, with which the group decides
            raise InvalidArgument(f"tp_group has {self.tp_size} ranks, expected tp_size, {tp_size}")
        self.tp_group: Any = None
        self._group_name = ""
        if self.tp_size < 1:
            raise InvalidArgument(f"tp_size is {tp_size}, expected at least 1")
        self.sequence_parallel = bool(sequence_parallel and self.tp_size > 1)
        if not self.sequence_parallel and self.tp_size > 1 and any(overlap.values()):
            names = ", ".join(f"ub_{name}" for name, value in overlap.items() if value)
            raise InvalidArgument(f"sequence_parallel is False with {names}, expected True: what is overlapped is the "
                                  "exchange of rows")
        self._overlap = overlap
        self._begins: Dict[str, _Begin] = {}  # of this module's own parameters, by their names
        self._slots = fp8.Slots()  # of FP8 operands
        self._tracker = get_rng_state_tracker
        self._factory = params_dtype or torch.get_default_dtype(), device or _default_device()
        if tp_group is not None:
            self.set_tensor_parallel_group(tp_group)

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Gives the module, and those inside, their group, where it was made with tp_size only."""
        size = group_size(name_of(tp_group))
        if size != self.tp_size:
            raise InvalidArgument(f"tp_group has {size} ranks, expected {self.tp_size}, for which the module was made")
        self._group_name = name_of(tp_group)
        self.tp_group = process_group(self._group_name)  # also where its name is given
        for child in self.children():
            if isinstance(child, _Parallel):
                child.set_tensor_parallel_group(tp_group)

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        memo[id(self.tp_group)] = self.tp_group  # there is one, which cannot be copied
        memo[id(self._begins)] = self._begins  # with functions of the caller
        other = memo[id(self)] = type(self).__new__(type(self))
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        for name in self._begins:
            other._mark(name)  # PyTorch copies no attributes of parameters
        return other

    def __copy__(self) -> Any:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __getstate__(self) -> Dict[str, Any]:
        # What is pickled has no group: set_tensor_parallel_group gives it one. Nor has it functions of the caller.
        begins = {name: how._replace(init=None) for name, how in self._begins.items()}
        return {**self.__dict__, "tp_group": None, "_group_name": "", "_begins": begins}

    def _load_from_state_dict(self, state_dict: Dict[str, Any], prefix: str, *rest: Any) -> None:
        # TransformerEngine keeps FP8 scales under such names, also in modules that these have not, and without FP8.
        for name in [name for name in state_dict if name.startswith(prefix) and name.endswith("_extra_state")]:
            del state_dict[name]  # of a copy, which PyTorch makes for each module
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _methods(self, name: str, hidden: int) -> Tuple[str, str, str]:
        return _rules.methods(name, self.tp_size, hidden, **self._overlap)

    def _weight(self, name: str, rows: int, cols: int, init: Init, partition: Optional[int]) -> None:
        self._add(name, (rows, cols), _Begin(init, None, partition if self.tp_size > 1 else None, False))

    def _vector(self, name: str, size: int, value: float, partition: Optional[int] = None, whole: bool = False) -> None:
        self._add(name, (size,), _Begin(None, value, partition if self.tp_size > 1 else None, whole))

    def _add(self, name: str, shape: Tuple[int, ...], how: _Begin) -> None:
        dtype, device = self._factory
        setattr(self, name, nn.Parameter(torch.empty(shape, dtype=dtype, device=device)))
        self._begins[name] = how
        self._begin(name)

    def _begin(self, name: str) -> None:
        """Gives a parameter its first values."""
        parameter, how = getattr(self, name, None), self._begins[name]
        if parameter is None:  # somebody took it away
            return
        with torch.no_grad():
            if how.value is not None:
                parameter.fill_(how.value)
            else:
                sharded = how.partition is not None
                with self._tracker().fork() if self._tracker and sharded else contextlib.nullcontext():
                    (how.init or _normal)(parameter)
        self._mark(name)

    def _mark(self, name: str) -> None:
        # As Megatron looks for them, for norms and checkpoints.
        parameter, how = getattr(self, name, None), self._begins[name]
        if not isinstance(parameter, nn.Parameter):
            return
        parameter.tensor_model_parallel = how.partition is not None  # type: ignore[attr-defined]
        if how.partition is not None:
            parameter.partition_dim, parameter.partition_stride = how.partition, 1  # type: ignore[attr-defined]
        if how.value is not None:
            parameter.sequence_parallel = how.whole and self.sequence_parallel  # type: ignore[attr-defined]

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Gives the parameters their first values again, or for the first time after to_empty(): FSDP calls it for modules
        that were made on a meta device. With defer_init, of TransformerEngine, it does nothing."""
        if defer_init:
            return
        for name in self._begins:
            self._begin(name)
        for child in self.children():
            if isinstance(child, _Parallel):
                child.reset_parameters()

    def _column(self, x: Tensor, weight: Tensor, bias: Optional[Tensor], methods: Tuple[str, str, str]) -> Tensor:
        """The features of the result are shared; with sequence parallelism the rows of x are, before."""
        if fp8.active() is not None:
            return _plus(self._fp8("column", x, weight, methods), bias)
        x, weight = self._cast(x, weight)
        if self.tp_size == 1:
            return _plus(F.linear(x, weight), bias)
        if self.sequence_parallel:
            bias = None if bias is None else bias.to(x.dtype)
            return gather_matmul(x, weight.t(), bias, 0, self._group(), False, *methods)[1]
        return _plus(copy_matmul(x, weight.t(), self._group(), "auto"), bias)

    def _row(self, x: Tensor, weight: Tensor, bias: Optional[Tensor], methods: Tuple[str, str, str]) -> Tensor:
        """The features of x are shared; with sequence parallelism the rows of the result are, afterwards."""
        if fp8.active() is not None:
            return _plus(self._fp8("row", x, weight, methods), bias)
        x, weight = self._cast(x, weight)
        if self.tp_size == 1:
            return _plus(F.linear(x, weight), bias)
        if self.sequence_parallel:
            bias = None if bias is None else bias.to(x.dtype)
            return matmul_scatter(x, weight.t(), bias, "sum", 0, self._group(), methods[0], methods[1])
        return _plus(matmul_sum(x, weight.t(), "sum", self._group(), "auto"), bias)

    def _fp8(self, mode: str, x: Tensor, weight: Tensor, methods: Tuple[str, str, str]) -> Tensor:
        """The same of FP8 matrices; `mode` is "" where ranks share nothing."""
        recipe = fp8.active()
        assert recipe is not None
        shared = mode != "" and self.tp_size > 1
        return _fp8_linear.linear(self._cast(x, x)[0], weight, self._slots, mode, self.sequence_parallel and shared,
                                  self._group() if shared else "", methods, recipe, self.training)

    def _group(self) -> str:
        if not self._group_name:
            raise InvalidArgument(f"this {type(self).__name__} is for {self.tp_size} ranks and has no group: give it "
                                  "tp_group, or call set_tensor_parallel_group")
        return in_graph(self._group_name)

    @staticmethod
    def _cast(x: Tensor, weight: Tensor) -> Tuple[Tensor, Tensor]:
        kind = x.device.type
        if not x.is_meta and torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            x, weight = x.to(dtype), weight.to(dtype)
        return x.contiguous(), weight

    def _check(self, x: Tensor, weight: Tensor) -> None:
        """Refuses what the module cannot multiply, before a norm or another rank has to do with it."""
        features = weight.shape[-1]
        if x.shape[-1:] != (features,):
            raise InvalidArgument(f"the input of {type(self).__name__} is {shape_of(x)}, expected [..., {features}]")
        if x.device != weight.device:
            raise InvalidArgument(f"the input of {type(self).__name__} is on {x.device}, expected {weight.device}, where "
                                  "its parameters are")
        if x.dtype != weight.dtype and not (fp8.active() or not x.is_meta and
                                            torch.is_autocast_enabled(x.device.type)):
            raise InvalidArgument(f"the input of {type(self).__name__} is {x.dtype}, expected {weight.dtype} as its "
                                  "parameters, or torch.autocast")

    def _norm(self, x: Tensor) -> Tensor:
        """The norm of LayerNormLinear and LayerNormMLP."""
        gamma = self.layer_norm_weight + 1 if self.zero_centered_gamma else self.layer_norm_weight
        if self.normalization == "RMSNorm":
            return F.rms_norm(x, (x.shape[-1],), gamma, self.eps)
        return F.layer_norm(x, (x.shape[-1],), gamma, self.layer_norm_bias, self.eps)

    def _add_norm(self, size: int, eps: float, normalization: str, zero_centered_gamma: bool) -> None:
        if normalization not in ("LayerNorm", "RMSNorm"):
            raise InvalidArgument(f"normalization is '{normalization}', expected 'LayerNorm' or 'RMSNorm'")
        self.eps, self.normalization, self.zero_centered_gamma = eps, normalization, zero_centered_gamma
        self._vector("layer_norm_weight", size, 0.0 if zero_centered_gamma else 1.0, whole=True)
        self.layer_norm_bias = None
        if normalization == "LayerNorm":
            self._vector("layer_norm_bias", size, 0.0, whole=True)


def _plus(result: Tensor, bias: Optional[Tensor]) -> Tensor:
    return result if bias is None else result + bias.to(result.dtype)


class Linear(_Parallel):
    """y = x W^T + b; "column" parallel: features of y are shared, "row" parallel: those of x.

    `weight` is [out_features, in_features] or a rank's share of it, `bias` [out_features] or a share. With
    sequence_parallel a column-parallel one gathers x while it computes, a row-parallel one scatters y.
    """

    weight: nn.Parameter
    bias: Optional[nn.Parameter]

    def __init__(self, in_features: int, out_features: int, sequence_parallel: bool = False,
                 fuse_wgrad_accumulation: bool = False, tp_group: Any = None, tp_size: int = 1,
                 get_rng_state_tracker: Optional[Callable[[], Any]] = None, rng_tracker_name: Optional[str] = None,
                 init_method: Init = None, bias: bool = True, return_bias: bool = False,
                 params_dtype: Optional[torch.dtype] = None, parallel_mode: Optional[str] = None,
                 parameters_split: Any = None, device: Device = None, ub_overlap_ag: bool = False,
                 ub_overlap_rs: bool = False, ub_overlap_rs_dgrad: bool = False, ub_bulk_dgrad: bool = False,
                 ub_bulk_wgrad: bool = False, ub_name: Optional[str] = None, delay_wgrad_compute: bool = False,
                 symmetric_ar_type: Optional[str] = None, save_original_input: bool = False,
                 name: Optional[str] = None) -> None:
        _refuse(fuse_wgrad_accumulation=fuse_wgrad_accumulation, parameters_split=parameters_split,
                delay_wgrad_compute=delay_wgrad_compute, symmetric_ar_type=symmetric_ar_type,
                rng_tracker_name=rng_tracker_name)
        super().__init__(tp_group, tp_size, sequence_parallel, params_dtype, device, get_rng_state_tracker,
                         overlap_ag=ub_overlap_ag, overlap_rs=ub_overlap_rs, overlap_rs_dgrad=ub_overlap_rs_dgrad,
                         bulk_dgrad=ub_bulk_dgrad, bulk_wgrad=ub_bulk_wgrad)
        if parallel_mode not in (None, "column", "row"):
            raise InvalidArgument(f"parallel_mode is '{parallel_mode}', expected 'column', 'row' or None")
        gemms = {"column": ("qkv", "fc1"), "row": ("proj", "fc2")}.get(parallel_mode or "", ())
        if ub_name is not None and gemms and ub_name not in gemms:
            raise InvalidArgument(f"ub_name is '{ub_name}', expected {' or '.join(gemms)} with {parallel_mode} "
                                  "parallelism")
        self.in_features, self.out_features = in_features, out_features
        self.parallel_mode, self.return_bias = parallel_mode, return_bias
        self.ub_name = ub_name or (gemms[0] if gemms else None)
        hidden = in_features if parallel_mode == "column" else out_features
        self._ways = self._methods(self.ub_name, hidden) if self.ub_name and gemms else ("", "", "")
        rows = _share("out_features", out_features, self.tp_size) if parallel_mode == "column" else out_features
        cols = _share("in_features", in_features, self.tp_size) if parallel_mode == "row" else in_features
        self._weight("weight", rows, cols, init_method, {"column": 0, "row": 1}.get(parallel_mode or ""))
        self.bias = None
        if parallel_mode == "row":
            self._whole = ("bias",)
        if bias:
            self._vector("bias", rows, 0.0, 0 if parallel_mode == "column" else None, parallel_mode == "row")

    def forward(self, inp: Tensor, is_first_microbatch: Optional[bool] = None, fp8_output: bool = False,
                fp8_grad: bool = False) -> Any:
        """x W^T + b; with return_bias x W^T and b. Weights are cast in every pass, first microbatch or not."""
        _refuse(fp8_output=fp8_output, fp8_grad=fp8_grad)
        self._check(inp, self.weight)
        return self._apply_linear(inp)

    def _apply_linear(self, inp: Tensor) -> Any:
        bias = None if self.return_bias else self.bias
        if self.parallel_mode == "column":
            result = self._column(inp, self.weight, bias, self._ways)
        elif self.parallel_mode == "row":
            result = self._row(inp, self.weight, bias, self._ways)
        elif fp8.active() is not None:
            result = _plus(self._fp8("", inp, self.weight, self._ways), bias)
        else:
            result = _plus(F.linear(*self._cast(inp, self.weight)), bias)
        return (result, self.bias) if self.return_bias else result

    def extra_repr(self) -> str:
        """What stands in the parentheses of its repr."""
        return (f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
                f"parallel_mode={self.parallel_mode}, tp_size={self.tp_size}, ub_name={self.ub_name}")


class LayerNormLinear(Linear):
    """Linear of a norm of x: `layer_norm_weight` and `layer_norm_bias` before `weight` and `bias`."""

    def __init__(self, in_features: int, out_features: int, eps: float = 1e-5, sequence_parallel: bool = False,
                 fuse_wgrad_accumulation: bool = False, tp_group: Any = None, tp_size: int = 1,
                 get_rng_state_tracker: Optional[Callable[[], Any]] = None, init_method: Init = None, bias: bool = True,
                 normalization: str = "LayerNorm", return_bias: bool = False,
                 params_dtype: Optional[torch.dtype] = None, parallel_mode: Optional[str] = None,
                 return_layernorm_output: bool = False, return_layernorm_output_gathered: bool = False,
                 parameters_split: Any = None, zero_centered_gamma: bool = False, device: Device = None,
                 ub_overlap_ag: bool = False, ub_overlap_rs: bool = False, ub_overlap_rs_dgrad: bool = False,
                 ub_bulk_wgrad: bool = False, ub_bulk_dgrad: bool = False, ub_name: Optional[str] = None,
                 delay_wgrad_compute: bool = False, symmetric_ar_type: Optional[str] = None,
                 name: Optional[str] = None) -> None:
        _refuse(return_layernorm_output_gathered=return_layernorm_output_gathered)
        super().__init__(in_features, out_features, sequence_parallel, fuse_wgrad_accumulation, tp_group, tp_size,
                         get_rng_state_tracker, None, init_method, bias, return_bias, params_dtype, parallel_mode,
                         parameters_split, device, ub_overlap_ag, ub_overlap_rs, ub_overlap_rs_dgrad, ub_bulk_dgrad,
                         ub_bulk_wgrad, ub_name, delay_wgrad_compute, symmetric_ar_type)
        if parallel_mode == "row":
            raise InvalidArgument("parallel_mode is 'row', expected 'column' or None: a norm needs all features")
        self.return_layernorm_output = return_layernorm_output
        self._add_norm(in_features, eps, normalization, zero_centered_gamma)

    def forward(self, inp: Tensor, is_first_microbatch: Optional[bool] = None, fp8_output: bool = False,
                fp8_grad: bool = False) -> Any:
        """norm(x) W^T + b; with return_bias also b, with return_layernorm_output also norm(x)."""
        _refuse(fp8_output=fp8_output, fp8_grad=fp8_grad)
        self._check(inp, self.weight)
        normed = self._norm(inp)
        result = self._apply_linear(normed)
        if not self.return_layernorm_output:
            return result
        return (*result, normed) if self.return_bias else (result, normed)


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x) ** 2


_Activation = Callable[[Tensor], Tensor]
_ACTIVATIONS: Dict[str, _Activation] = {"gelu": _gelu, "relu": F.relu, "silu": F.silu, "qgelu": _quick_gelu,
                                        "srelu": _squared_relu}
_GATED: Dict[str, _Activation] = {"geglu": _gelu, "glu": torch.sigmoid, "reglu": F.relu, "sreglu": _squared_relu,
                                  "swiglu": F.silu, "qgeglu": _quick_gelu}


class LayerNormMLP(_Parallel):
    """fc2(activation(fc1(norm(x)))): fc1 is column parallel, fc2 row parallel with set_parallel_mode."""

    fc1_weight: nn.Parameter
    fc1_bias: Optional[nn.Parameter]
    fc2_weight: nn.Parameter
    fc2_bias: Optional[nn.Parameter]

    def __init__(self, hidden_size: int, ffn_hidden_size: int, eps: float = 1e-5, sequence_parallel: bool = False,
                 return_bias: bool = False, get_rng_state_tracker: Optional[Callable[[], Any]] = None,
                 tp_group: Any = None, tp_size: int = 1, init_method: Init = None, bias: bool = True,
                 normalization: str = "LayerNorm", activation: str = "gelu", activation_params: Optional[Dict[str, Any]] = None,
                 output_layer_init_method: Init = None, fuse_wgrad_accumulation: bool = False,
                 params_dtype: Optional[torch.dtype] = None, return_layernorm_output: bool = False,
                 return_layernorm_output_gathered: bool = False, seq_length: Optional[int] = None,
                 micro_batch_size: Optional[int] = None, set_parallel_mode: bool = False,
                 zero_centered_gamma: bool = False, device: Device = None, ub_overlap_ag: bool = False,
                 name: Optional[str] = None, ub_overlap_rs: bool = False, ub_overlap_rs_dgrad: bool = False,
                 ub_bulk_dgrad: bool = False, ub_bulk_wgrad: bool = False, delay_wgrad_compute: bool = False,
                 symmetric_ar_type: Optional[str] = None, checkpoint: bool = False) -> None:
        _refuse(fuse_wgrad_accumulation=fuse_wgrad_accumulation, delay_wgrad_compute=delay_wgrad_compute,
                symmetric_ar_type=symmetric_ar_type, checkpoint=checkpoint, activation_params=activation_params,
                return_layernorm_output_gathered=return_layernorm_output_gathered)
        # Without set_parallel_mode every rank has the whole MLP.
        super().__init__(tp_group if set_parallel_mode else None, tp_size if set_parallel_mode else 1,
                         sequence_parallel, params_dtype, device, get_rng_state_tracker,
                         overlap_ag=ub_overlap_ag, overlap_rs=ub_overlap_rs, overlap_rs_dgrad=ub_overlap_rs_dgrad,
                         bulk_dgrad=ub_bulk_dgrad, bulk_wgrad=ub_bulk_wgrad)
        if activation not in _ACTIVATIONS and activation not in _GATED:
            raise InvalidArgument(f"activation is '{activation}', expected one of "
                                  f"{', '.join(sorted([*_ACTIVATIONS, *_GATED]))}")
        self.activation, self.return_bias = activation, return_bias
        self.return_layernorm_output = return_layernorm_output
        share = _share("ffn_hidden_size", ffn_hidden_size, self.tp_size)
        self._ways = self._methods("fc1", hidden_size), self._methods("fc2", hidden_size)
        self._add_norm(hidden_size, eps, normalization, zero_centered_gamma)
        first = 2 * share if activation in _GATED else share
        self.fc1_bias = self.fc2_bias = None
        self._weight("fc1_weight", first, hidden_size, init_method, 0)
        if bias:
            self._vector("fc1_bias", first, 0.0, 0)
        self._weight("fc2_weight", hidden_size, share, output_layer_init_method, 1)
        if bias:
            self._vector("fc2_bias", hidden_size, 0.0, whole=True)

    def forward(self, inp: Tensor, is_first_microbatch: Optional[bool] = None) -> Any:
        """The MLP of norm(x); with return_bias also the bias of fc2, with return_layernorm_output also norm(x)."""
        self._check(inp, self.fc1_weight)
        normed = self._norm(inp)
        hidden = self._column(normed, self.fc1_weight, self.fc1_bias, self._ways[0])
        if self.activation in _GATED:
            gate, value = hidden.chunk(2, -1)
            hidden = _GATED[self.activation](gate) * value
        else:
            hidden = _ACTIVATIONS[self.activation](hidden)
        result = self._row(hidden, self.fc2_weight, None if self.return_bias else self.fc2_bias, self._ways[1])
        extra = ((self.fc2_bias,) if self.return_bias else ()) + ((normed,) if self.return_layernorm_output else ())
        return (result, *extra) if extra else result


def reduce_sequence_parallel_gradients(module: nn.Module) -> None:
    """Sums the gradients of parameters that every rank has whole, but for its own rows only, over the ranks.

    With sequence parallelism these are the norms and the biases of row-parallel layers. Call it after backward and
    before the optimizer, as Megatron does by itself. Collective over the tensor-parallel groups of the modules.
    """
    done = set()  # modules may share a parameter
    for part in module.modules():
        if isinstance(part, _Parallel) and part.sequence_parallel:
            # By their names: what load_state_dict assigns, and what FSDP shards, has lost the attribute that Megatron looks for.
            for name in part._whole:
                parameter = getattr(part, name, None)
                if parameter is not None and not isinstance(parameter, nn.Parameter):
                    raise Unsupported(f"{name} of {type(part).__name__} is {type(parameter).__name__}, expected Parameter: with "
                                      "FullyShardedDataParallel, give it use_orig_params=True")
                if parameter is not None and parameter.grad is not None and parameter not in done:
                    done.add(parameter)
                    gradient = parameter.grad  # of FSDP a DTensor: the same part of it on all tensor-parallel ranks
                    local = getattr(gradient, "to_local", None)
                    dist.all_reduce(local() if local else gradient, group=part.tp_group)
