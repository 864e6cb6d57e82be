# SPDX-License-Identifier: Apache-2.0
"""Worlds, groups and operators: objects of the library, destroyed in the right order.

An object holds what it was made from, so that it is destroyed before that, when it is collected and at the end of the
interpreter too. close() destroys an object and all that was made from it at once.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from ctypes import byref, c_void_p
from typing import Any, Callable, List, Optional, Tuple, TypeVar, Union

from lapstrake._abi import ALLGATHER, BARRIER, Bootstrap, DType, Kind, OpArgs, OpDesc, Tensor, WorldOptions
from lapstrake._library import check, library
from lapstrake.errors import InvalidArgument

_DTYPE_SIZES = {DType.FLOAT32: 4, DType.FLOAT16: 2, DType.BFLOAT16: 2, DType.FLOAT8_E4M3: 1, DType.FLOAT8_E5M2: 1}


def _text(value: Optional[str]) -> Optional[bytes]:
    return None if value is None else value.encode()


def _bytes(value: Any, what: str) -> bytes:
    """A value that is bytes, a bytearray or the like; ctypes would take a string for other characters."""
    try:
        return bytes(memoryview(value))
    except TypeError:
        raise TypeError(f"{what} is {value!r:.60}, expected bytes") from None


def tensor(data: int, dtype: DType, rows: int, cols: int, stride: Optional[int] = None) -> Tensor:
    """A view of the row-major matrix [rows, cols] at an address; `stride` elements lie from a row to the next."""
    return Tensor(data=data, dtype=dtype, rows=rows, cols=cols, stride=cols if stride is None else stride)


def _destroy(destroy: Callable[[int], None], handles: List[int], lock: threading.RLock, maker: int, parent: Any
             ) -> None:
    # `parent` is only held: the registry of finalizers keeps it alive until this has run. A process that was forked,
    # such as a worker that loads data, does not end what its parent uses.
    if os.getpid() == maker:
        with lock:
            destroy(handles.pop())
    else:
        handles.clear()


_Self = TypeVar("_Self", bound="_Object")


class _Object:
    """A handle of the library. One thread at a time uses the objects of a world: `_lock` sees to it."""

    def __init__(self, handle: int, destroy: str, parent: Optional[_Object]) -> None:
        self._lock: threading.RLock = parent._lock if parent else threading.RLock()
        self._parent = parent
        self._children: List[weakref.ref[_Object]] = []
        self._handles = [handle]  # it alone; nothing, when it has been destroyed
        self._maker = os.getpid()
        # Finalizers that are left run at the interpreter's end, the newest first.
        self._finalizer = weakref.finalize(self, _destroy, getattr(library(), destroy), self._handles, self._lock,
                                           self._maker, parent)
        if parent:
            parent._children = [child for child in parent._children if child() is not None]
            parent._children.append(weakref.ref(self))

    def _name(self) -> str:
        return "Group" if type(self) is _Object else type(self).__name__  # what split() makes has no other object

    @property
    def closed(self) -> bool:
        """Whether it has been destroyed."""
        return not self._handles

    def close(self) -> None:
        """Destroys it, and first all that was made from it. Local; a second time does nothing."""
        for reference in reversed(self._children):
            child = reference()
            if child is not None:
                child.close()
        self._finalizer()

    def check(self) -> None:
        """Raises InvalidArgument where it cannot be used: it is closed, or another process made it."""
        if not self._handles:
            raise InvalidArgument(f"this {self._name()} has been closed")
        if os.getpid() != self._maker:  # its threads are not here: a call would wait for them
            raise InvalidArgument(f"this {self._name()} was made by process {self._maker}, expected use in that "
                                  "one: a process that was forked cannot use it")

    @property
    def _handle(self) -> int:
        self.check()
        return self._handles[0]

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


class World(_Object):
    """All ranks of a job, seen from one of them.

    World() is made from the environment: `lap run`, mpirun, torchrun or srun; one rank without them. World.connect
    makes one of ranks that the caller has. Both are collective and block until every rank has come.
    """

    def __init__(self, *, timeout_s: float = 0.0, device: Optional[str] = None, cpu_threads: int = 0,
                 transport: Optional[str] = None) -> None:
        handle = c_void_p()
        options = WorldOptions(timeout_s=timeout_s, device=_text(device), cpu_threads=cpu_threads,
                               transport=_text(transport))
        check(library().lap_world_create(byref(options), byref(handle)))
        super().__init__(handle.value or 0, "lap_world_destroy", None)

    @classmethod
    def connect(cls, rank: int, size: int, allgather: Callable[[bytes], bytes], barrier: Callable[[], None], *,
                timeout_s: float = 0.0, device: Optional[str] = None, cpu_threads: int = 0,
                transport: Optional[str] = None) -> World:
        """Makes a world of processes with two callbacks, which are used during this call only.

        Ranks of several hosts are connected over TCP, to any port of the host of rank 0; data of theirs needs GPUs and NCCL.

        `allgather` takes the bytes of this rank, and returns those of all ranks, in the order of ranks, joined.
        An exception of a callback is the cause of the one that this raises; a KeyboardInterrupt is raised itself.
        """
        failures: List[BaseException] = []

        def gather(_context: int, mine: int, count: int, everything: int) -> int:
            try:
                joined = _bytes(allgather(ctypes.string_at(mine, count)), "what allgather returned")
                if len(joined) != count * size:
                    raise InvalidArgument(f"allgather returned {len(joined)} bytes, expected {count * size}: {count} "
                                          f"of each of {size} ranks")
                ctypes.memmove(everything, joined, len(joined))
            except BaseException as failure:  # it may not pass through C
                failures.append(failure)
                return 1
            return 0

        def meet(_context: int) -> int:
            try:
                barrier()
            except BaseException as failure:
                failures.append(failure)
                return 1
            return 0

        handle = c_void_p()
        bootstrap = Bootstrap(rank=rank, nranks=size, allgather=ALLGATHER(gather), barrier=BARRIER(meet))
        options = WorldOptions(timeout_s=timeout_s, device=_text(device), cpu_threads=cpu_threads,
                               transport=_text(transport))
        status = library().lap_world_create_with(byref(bootstrap), byref(options), byref(handle))
        try:
            check(status)
        except Exception as failure:
            if failures and not isinstance(failures[0], Exception):  # Ctrl-C
                raise failures[0] from None
            raise failure from (failures[0] if failures else None)
        world = cls.__new__(cls)
        _Object.__init__(world, handle.value or 0, "lap_world_destroy", None)
        return world

    @property
    def rank(self) -> int:
        """This rank."""
        return int(library().lap_world_rank(self._handle))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(library().lap_world_size(self._handle))

    @property
    def group(self) -> Group:
        """The group of all ranks. It belongs to the world."""
        return Group(self)

    def gpu(self) -> int:
        """The number of the GPU that this rank uses; only with the device "cuda"."""
        number = ctypes.c_int()
        with self._lock:
            check(library().lap_world_gpu(self._handle, byref(number)))
        return number.value

    def synchronize(self, stream: int) -> None:
        """Waits for all work of a CUDA stream and raises what failed in its calls."""
        with self._lock:
            check(library().lap_world_synchronize(self._handle, stream))


class Group:
    """Some ranks of a world that call collectives together: World.group, or made by split."""

    def __init__(self, parent: Union[World, _Object]) -> None:
        self._owner = parent  # a world, or what lap_group_split made

    @property
    def _handle(self) -> int:
        handle = self._owner._handle
        return int(library().lap_world_group(handle)) if isinstance(self._owner, World) else handle

    @property
    def rank(self) -> int:
        """This rank of the group."""
        return int(library().lap_group_rank(self._handle))

    @property
    def size(self) -> int:
        """The number of ranks of the group."""
        return int(library().lap_group_size(self._handle))

    def split(self, colour: int, key: int = 0) -> Optional[Group]:
        """Makes a group of the ranks that give the same colour; None for the colour -1. Collective."""
        handle = c_void_p()
        with self._owner._lock:
            check(library().lap_group_split(self._handle, colour, key, byref(handle)))
            return Group(_Object(handle.value, "lap_group_destroy", self._owner)) if handle.value else None

    def barrier(self) -> None:
        """Returns when every rank has called it. Collective."""
        with self._owner._lock:
            check(library().lap_group_barrier(self._handle))

    def allgather(self, mine: bytes) -> List[bytes]:
        """The bytes of every rank, in the order of ranks; all give equally many. Collective."""
        mine = _bytes(mine, "mine")
        everything = ctypes.create_string_buffer(max(1, len(mine) * self.size))
        with self._owner._lock:
            check(library().lap_group_allgather(self._handle, mine, len(mine), everything))
        return [everything.raw[i * len(mine):(i + 1) * len(mine)] for i in range(self.size)]

    def close(self) -> None:
        """Ends a group made by split, and what was made from it. That of a world ends with the world."""
        if not isinstance(self._owner, World):
            self._owner.close()


class Op(_Object):
    """An operator: a GEMM whose communication runs at the same time; made once, called any number of times.

    Op(group, Kind.AG_GEMM, m, n, k, **fields): global sizes, and the other fields of lap_op_desc_t (lap/op.h).
    Collective: every rank gives the same description.
    """

    def __init__(self, group: Group, kind: Kind, m: int, n: int, k: int, *, method: Optional[str] = None,
                 **fields: Any) -> None:
        if not isinstance(group, Group):
            raise TypeError(f"group is {group!r:.60}, expected a Group, such as that of a world: world.group")
        self.desc = OpDesc(kind=kind, m=m, n=n, k=k, method=_text(method), **fields)
        handle = c_void_p()
        with group._owner._lock:
            check(library().lap_op_create(group._handle, byref(self.desc), byref(handle)))
            super().__init__(handle.value or 0, "lap_op_destroy", group._owner)
        self.group = group

    @property
    def method(self) -> str:
        """The method that runs; of an operator made with "auto" the one picked for calls of its capacity."""
        return str(library().lap_op_method(self._handle).decode())

    @property
    def captured(self) -> bool:
        """Whether a CUDA graph has calls of it: then it must live as long as the graph is launched."""
        return bool(library().lap_op_is_captured(self._handle))

    def predictions(self) -> List[Tuple[str, float]]:
        """The methods and times on which "auto" based its choice, the one picked first."""
        found: List[Tuple[str, float]] = []
        name, seconds = ctypes.c_char_p(), ctypes.c_double()
        while library().lap_op_prediction(self._handle, len(found), byref(name), byref(seconds)) == 0:
            found.append(((name.value or b"").decode(), seconds.value))
        return found

    def run(self, args: OpArgs) -> None:
        """Runs the operator once and returns when its result is complete on this rank. Collective."""
        with self._lock:
            check(library().lap_op_run(self._handle, byref(args)))

    def begin(self, args: OpArgs) -> None:
        """Starts a call, which end() waits for. The memory of `args` belongs to it until then. Collective."""
        with self._lock:
            check(library().lap_op_begin(self._handle, byref(args)))

    def end(self) -> None:
        """Waits for the call that begin() started."""
        with self._lock:
            check(library().lap_op_end(self._handle))

    def bound(self, args: OpArgs, stream: Optional[Callable[[], int]] = None) -> Callable[[], None]:
        """run(args), or with a stream enqueue(args, stream()), for many calls: made once.

        Who calls it holds the lock of the world, in the process that made the operator.
        """
        run, enqueue = library().lap_op_run, library().lap_op_enqueue
        handles, handle, reference = self._handles, self._handle, byref(args)

        def call() -> None:
            if not handles:
                self.check()
            status = run(handle, reference) if stream is None else enqueue(handle, reference, stream())
            if status < 0:
                check(status)

        return call

    def enqueue(self, args: OpArgs, stream: int) -> None:
        """Runs the operator in the order of a CUDA stream; does not wait for it. Collective."""
        with self._lock:
            check(library().lap_op_enqueue(self._handle, byref(args), stream))


def dtype_size(dtype: DType) -> int:
    """The number of bytes of one element."""
    return _DTYPE_SIZES[DType(dtype)]


def shard(total: int, size: int, rank: int) -> Tuple[int, int]:
    """The first row, and the number of rows, of the share of `total` rows that `rank` of `size` ranks holds."""
    begin = ctypes.c_size_t()
    count = library().lap_shard(total, size, rank, byref(begin))
    return begin.value, int(count)


def shard_features(total: int, size: int, rank: int) -> Tuple[int, int]:
    """The same for features: n and k of operators."""
    begin = ctypes.c_size_t()
    count = library().lap_shard_features(total, size, rank, byref(begin))
    return begin.value, int(count)


def methods(kind: Kind) -> List[str]:
    """The names of the methods of a kind of operator."""
    found: List[str] = []
    while True:
        name = library().lap_op_methods(kind, len(found), None)
        if name is None:
            return found
        found.append(name.decode())
