# SPDX-License-Identifier: Apache-2.0
"""Process groups of torch.distributed as worlds of the library, and the operators made for them.

A world is made when a group is first used with a kind of device, over the group itself: no second launch. It ends, with
all of its operators, when the process group does.
"""

from __future__ import annotations

import os
import weakref
from functools import partial
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

from lapstrake._abi import Algorithm, DType, Kind, Layout, OpArgs, Tensor
from lapstrake.errors import InvalidArgument, PeerLost, SystemFailure, Timeout, Unsupported
from lapstrake.world import Op, World

GroupLike = Union[str, "dist.ProcessGroup", None]

DTYPES = {torch.float32: DType.FLOAT32, torch.float16: DType.FLOAT16, torch.bfloat16: DType.BFLOAT16,
          torch.float8_e4m3fn: DType.FLOAT8_E4M3, torch.float8_e5m2: DType.FLOAT8_E5M2}
_FLAGS = ("aggregate", "set_sm_margin", "auto_foreign")
_KNOBS = (*_FLAGS, "num_splits", "block_rows", "num_sm")


def name_of(group: GroupLike) -> str:
    """The name by which operators know a process group; None: the default group."""
    if isinstance(group, str):
        return group
    if group is None:
        group = dist.group.WORLD
        if group is None:
            raise InvalidArgument("there is no process group; call torch.distributed.init_process_group first")
    if not isinstance(group, dist.ProcessGroup):  # ranks outside a new group have a number for it
        raise InvalidArgument("this rank is not in the process group, expected a group that it is in"
                              if group == dist.GroupMember.NON_GROUP_MEMBER else
                              f"group is {group!r}, expected a process group, its name or None")
    return str(group.group_name)


def plain_name(name: str) -> str:
    """The name of a process group without the number of ranks that a graph has with it."""
    return name.partition("#")[0]


def process_group(name: str) -> Any:
    """The process group of a name, which may be one of in_graph()."""
    plain, mark, size = name.partition("#")
    try:
        group = _resolve_process_group(plain)
    except RuntimeError:
        raise InvalidArgument(f"group_name is '{plain}', expected that of a process group that has not been "
                              "destroyed") from None
    if mark and group.size() != int(size):
        raise InvalidArgument(f"group '{plain}' has {group.size()} ranks, expected {size}, for which this graph was "
                              "compiled, perhaps by another job whose cache PyTorch has read: call the functions of "
                              "lapstrake.torch, which torch.compile tells apart")
    return group


@torch.compiler.assume_constant_result
def _sized(name: str) -> str:
    return f"{plain_name(name)}#{group_size(name)}"


def in_graph(name: str) -> str:
    """The name of a group as operators are given it. In a graph it has the number of ranks, too: PyTorch keeps what it has
    compiled on disk, for jobs whose groups have the same names and other numbers of ranks."""
    return _sized(name) if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() else name


def exists(name: str) -> bool:
    """Whether there is a process group of that name."""
    try:
        return process_group(name) is not None
    except InvalidArgument:
        return False


def group_size(name: str) -> int:
    """The number of ranks of the process group of a name."""
    return int(process_group(name).size())


def parse_method(text: str) -> Tuple[Optional[str], Dict[str, int]]:
    """A method with its knobs, as `lap bench` has them: "pipeline:num_splits=8", "ring:aggregate"; "" is the library's
    default."""
    method, *items = text.replace(",", ":").split(":")
    knobs: Dict[str, int] = {}
    for item in filter(None, items):
        knob, equals, value = item.partition("=")
        word = f"ALGORITHM_{value.upper()}"
        if knob == "algorithm" and word in Algorithm.__members__:
            knobs[knob] = Algorithm[word]
        elif knob in _FLAGS and (not equals or value in ("0", "1")):
            knobs[knob] = int(value or 1)
        elif knob in _KNOBS and knob not in _FLAGS and value.isdecimal() and int(value) < 2 ** 31:
            knobs[knob] = int(value)
        else:
            raise InvalidArgument(f"method is '{text}', expected a method, or one with knobs as in "
                                  f"'pipeline:num_splits=8'; the knobs are {', '.join(_KNOBS)} and algorithm: "
                                  f"{', '.join(name.partition('_')[2].lower() for name in Algorithm.__members__)}")
    if knobs.get("auto_foreign") and method != "auto":
        raise InvalidArgument(f"method is '{text}', expected 'auto:auto_foreign': no other method chooses")
    return method or None, knobs


_MOST_CALLS = 1024  # prepared ones: programs whose shapes always change prepare them again


class Call:
    """An operator with the arguments of calls of one shape, of which only addresses change.

    `a`, `b`, `d`, `gathered`, `bias`, `bias_grad`, `x`, `y` are its matrices: under `lock`, their field `data` is set
    and start() is called. It runs the operator, on a GPU in the order of the current stream; collective. `outputs` are
    the shapes of results, `arguments` all that the operator is given. A call is of use as long as `handles` has the
    operator's, and `group()` is the process group of that name.
    """

    __slots__ = ("handles", "group", "lock", "outputs", "a", "b", "d", "gathered", "bias", "bias_grad", "x", "y",
                 "arguments", "start")

    def __init__(self, op: Op, here: Context, args: OpArgs, outputs: Tuple[Tuple[int, ...], ...]) -> None:
        self.handles, self.group, self.lock, self.outputs = op._handles, here.group, op._lock, outputs
        self.a, self.b, self.d, self.gathered, self.x, self.y = args.a, args.b, args.d, args.gathered, args.x, args.y
        self.bias, self.bias_grad, self.arguments = args.bias, args.bias_grad, args
        # No object, as torch.cuda.current_stream() makes one.
        self.start = op.bound(args, None if here.device.type == "cpu" else
                              partial(torch._C._cuda_getCurrentRawStream, here.device.index))


class Context:
    """The world of a process group on one kind of device."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group = weakref.ref(group)
        self.size = int(group.size())
        self.device = device
        self.world = _connect(group, device)
        self.ops: Dict[Any, Op] = {}
        self.captured: List[Op] = []  # smaller ones than those of `ops`, which graphs may still launch
        # The world does not outlive the group, nor does it keep it.
        weakref.finalize(group, self.world.close).atexit = False

    def _give_up(self, op: Op) -> None:
        """What a graph has captured stays until the world ends."""
        if op.captured:
            self.captured.append(op)
        else:
            op.close()

    def prepare(self, kind: Kind, layout: Layout, m: int, n: int, k: int, dtype: torch.dtype, method: str,
                views: Dict[str, Tuple[int, int, int]], outputs: Tuple[Tuple[int, ...], ...], *, cols: int = 0,
                gather: bool = False, alpha: float = 1.0, types: Optional[Dict[str, torch.dtype]] = None,
                fields: Optional[Dict[str, int]] = None) -> Call:
        """A call of the operator of this description, which is made when it is first needed. Collective then.

        m, n and k are global. `views` are rows, columns and stride of matrices by their names in lap_op_args_t.
        A call with more rows than all before makes the operator anew; cuBLASMp has one for each number of rows. `types` are those of matrices that are not
        `dtype`, `fields` others of the description.
        """
        name, knobs = parse_method(method)
        key = (kind, layout, n, k, dtype, method, cols, *(fields or {}).items(), gather, m if name == "cublasmp" else 0)
        op = self.ops.get(key)
        if op is None or op.desc.m < m:
            if op is not None:
                self._give_up(self.ops.pop(key))
            op = self.ops[key] = Op(self.world.group, kind, max(m, 1), n, k, dtype=DTYPES[dtype], layout=layout,
                                    method=name, cols=cols, gather_input=int(gather), **knobs,
                                    **(fields or {}))
        args = OpArgs(m=m, alpha=alpha)
        for name, (rows, columns, stride) in views.items():
            view: Tensor = getattr(args, name)
            kind_of = dtype if types is None else types[name]
            view.dtype, view.rows, view.cols, view.stride = DTYPES[kind_of], rows, columns, stride
        return Call(op, self, args, outputs)


_contexts: Dict[Tuple[str, str], Context] = {}  # by the kind of device
_calls: Dict[Tuple[Any, ...], Call] = {}
os.register_at_fork(after_in_child=_calls.clear)  # who prepares calls there is told that operators are its parent's


def prepared(key: Tuple[Any, ...], name: str, prepare: Any, *arguments: Any) -> Call:
    """The call of a key, in which is all that it depends on, the group's name and the device too; prepare(*arguments)
    makes it the first time."""
    call = _calls.get(key)
    if call is None or not call.handles or call.group() is not process_group(name):
        call = prepare(*arguments)
        if len(_calls) >= _MOST_CALLS:
            _calls.clear()
        _calls[key] = call
    return call


def context(name: str, device: torch.device) -> Context:
    """The context of a process group, which is made when it is first asked for. Collective then."""
    group, name = process_group(name), plain_name(name)
    found = _contexts.get((name, device.type))
    if found is None or found.group() is not group or found.world.closed:
        found = _contexts[name, device.type] = Context(group, device)
    if found.device != device:
        raise InvalidArgument(f"a tensor is on {device}, expected {found.device}, where this rank's first operator of "
                              f"group '{name}' was")
    return found


def _connect(group: Any, device: torch.device) -> World:
    """Makes a world of a process group, by its own all-gather. Collective."""
    if device.type not in ("cpu", "cuda"):
        raise Unsupported(f"a tensor is on {device}, expected cpu or cuda")
    # NCCL without another backend gathers only memory of GPUs.
    kinds = sorted(kind.type for kind in group._device_types)
    place = torch.device("cpu") if "cpu" in kinds else device
    if place.type not in kinds:
        raise InvalidArgument(f"a tensor is on {device}, but group '{group.group_name}' is of {' and '.join(kinds)}: expected "
                              f"a tensor there, or a group of both, as init_process_group('cpu:gloo,cuda:nccl') makes one")

    def allgather(mine: bytes) -> bytes:
        sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(place)
        received: List[torch.Tensor] = [torch.empty_like(sent) for _ in range(group.size())]
        dist.all_gather(received, sent, group=group)
        return b"".join(bytes(part.tolist()) for part in received)

    def barrier() -> None:
        allgather(b".")  # dist.barrier() over NCCL guesses the GPU of this rank

    threads = torch.get_num_threads() if device.type == "cpu" else 0
    # The world takes the GPU of the tensors, unless the environment names one.
    given = os.environ.get("LAP_GPU")
    if device.type == "cuda" and not given:
        os.environ["LAP_GPU"] = str(device.index)
    try:
        world = World.connect(group.rank(), group.size(), allgather, barrier,
                              device=device.type, cpu_threads=threads)
        if device.type == "cuda" and world.gpu() != device.index:
            gpu = world.gpu()
            world.close()
            raise InvalidArgument(f"a tensor is on {device}, but LAP_GPU says that this rank's GPU is {gpu}")
    except SystemFailure as failure:
        cause = failure.__cause__
        if cause is None:
            raise
        # Only words of gloo tell a rank that has died, or has not come, from other failures of the group.
        if "Timed out" in str(cause):
            raise Timeout(f"not all ranks of group '{group.group_name}' came to their first operator within the timeout of "
                          f"the group, which init_process_group or new_group sets: {cause}") from cause
        lost = any(words in str(cause) for words in ("closed by peer", "reset by peer", "Broken pipe"))
        raise (PeerLost if lost else SystemFailure)(f"group '{group.group_name}' failed while its ranks were connected: "
                                                    f"{cause}") from cause
    finally:
        if device.type == "cuda" and not given:
            del os.environ["LAP_GPU"]
    return world


def init(group: GroupLike = None, device: Union[str, torch.device, None] = None) -> None:
    """Connects the ranks of a process group now, not in the first operator. Collective over the group."""
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    context(name_of(group), place)


def synchronize(group: GroupLike = None) -> None:
    """Waits for the current CUDA stream, and raises what failed in the operators of a group: PeerLost, Timeout, ..."""
    found = _contexts.get((name_of(group), "cuda"))
    if found is not None and not found.world.closed:
        found.world.synchronize(torch.cuda.current_stream(found.device).cuda_stream)


def close(group: GroupLike = None) -> None:
    """Frees the operators and worlds of a group. Local; what is used afterwards is made anew, on all ranks."""
    name = name_of(group)
    for key in [key for key in _contexts if key[0] == name]:
        found = _contexts.pop(key)
        found.world.close()
