# SPDX-License-Identifier: Apache-2.0
"""The C headers as ctypes sees them: enums, structs and functions, in the order of include/lap.

A test compares every name, offset, size and default below with what a C compiler makes of the headers.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_size_t, c_uint, c_void_p
from enum import IntEnum, IntFlag
from typing import Any, Dict, List, Tuple


class Status(IntEnum):
    """lap_status_t: the result of a call; failures are negative."""

    OK = 0
    IN_PROGRESS = 1
    ERR_INVALID = -1
    ERR_NO_MEMORY = -2
    ERR_MISMATCH = -3
    ERR_PEER_LOST = -4
    ERR_TIMEOUT = -5
    ERR_UNSUPPORTED = -6
    ERR_SYSTEM = -7
    ERR_BUSY = -8
    ERR_CHECK = -9
    ERR_INTERNAL = -10


class DType(IntEnum):
    """lap_dtype_t: the types of elements."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    FLOAT8_E4M3 = 3
    FLOAT8_E5M2 = 4
    DTYPE_DEFAULT = -1


class Kind(IntEnum):
    """lap_op_kind_t: the kinds of operators."""

    AG_GEMM = 0
    GEMM_RS = 1
    GEMM_AR = 2
    GEMM = 3
    BULK_AG = 4
    BULK_RS = 5
    EXTERNAL_AG = 6
    EXTERNAL_RS = 7


class Layout(IntEnum):
    """lap_layout_t: which matrices of a GEMM are transposed."""

    FORWARD = 0
    DGRAD = 1
    WGRAD = 2


class Sharded(IntEnum):
    """lap_sharded_t: which size of a local GEMM is the sum of all ranks' shares."""

    SHARDED_NONE = 0
    SHARDED_N = 1
    SHARDED_K = 2


class Algorithm(IntEnum):
    """lap_algorithm_t: the algorithms of cuBLASMp, for the method "cublasmp"."""

    ALGORITHM_DEFAULT = 0
    ALGORITHM_SPLIT_P2P = 1
    ALGORITHM_MULTICAST = 2
    ALGORITHM_NO_OVERLAP = 3
    ALGORITHM_FUSED = 4


class Epilogue(IntFlag):
    """lap_epilogue_t: changes to the result of a GEMM before it becomes d."""

    EPILOGUE_NONE = 0
    EPILOGUE_BIAS = 1 << 0
    EPILOGUE_GELU = 1 << 1
    EPILOGUE_DGELU = 1 << 2
    EPILOGUE_BIAS_GRAD = 1 << 3


class TpGemm(IntEnum):
    """lap_tp_gemm_t: the GEMMs of a transformer layer."""

    QKV_FPROP = 0
    QKV_DGRAD = 1
    QKV_WGRAD = 2
    PROJ_FPROP = 3
    PROJ_DGRAD = 4
    PROJ_WGRAD = 5
    FC1_FPROP = 6
    FC1_DGRAD = 7
    FC1_WGRAD = 8
    FC2_FPROP = 9
    FC2_DGRAD = 10
    FC2_WGRAD = 11


_RANGES: Dict[Any, Tuple[int, int]] = {c_size_t: (0, 2 ** (8 * ctypes.sizeof(c_size_t)) - 1), c_int: (-2 ** 31, 2 ** 31 - 1),
           c_uint: (0, 2 ** 32 - 1)}


class Struct(ctypes.Structure):
    """A struct of the headers. `c_name` is its type there, `defaults` what its LAP_..._INIT sets besides zeros."""

    c_name = ""
    init = ""  # the macro, where there is one
    defaults: Dict[str, Any] = {}

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        if self._fields_[0][0] == "size":
            self.size = ctypes.sizeof(self)
        for name, value in self.defaults.items():
            setattr(self, name, value)
        known = {field[0]: field[1] for field in self._fields_}
        for name, value in fields.items():
            if name not in known:
                raise TypeError(f"{self.c_name} has no field '{name}'; it has {', '.join(sorted(known))}")
            if isinstance(value, int) and known[name] in _RANGES:  # ctypes would take a part of the number
                least, most = _RANGES[known[name]]
                if not least <= value <= most:
                    from lapstrake.errors import InvalidArgument  # which has the statuses from here
                    raise InvalidArgument(f"{name} is {value}, expected a number from {least} to {most}")
            setattr(self, name, value)


class Tensor(Struct):
    """A view of a row-major matrix: it owns nothing."""

    c_name = "lap_tensor_t"
    _fields_ = [("data", c_void_p), ("dtype", c_int), ("rows", c_size_t), ("cols", c_size_t), ("stride", c_size_t)]


class Link(Struct):
    """An emulated link."""

    c_name = "lap_link_t"
    _fields_ = [("bytes_per_s", c_double), ("latency_s", c_double)]


class BufferOptions(Struct):
    """Options of lap_buffer_create."""

    c_name = "lap_buffer_options_t"
    init = "LAP_BUFFER_OPTIONS_INIT"
    _fields_ = [("size", c_size_t), ("transport", c_char_p), ("link", Link)]


class WorldOptions(Struct):
    """Options of lap_world_create and its kin."""

    c_name = "lap_world_options_t"
    init = "LAP_WORLD_OPTIONS_INIT"
    _fields_ = [
        ("size", c_size_t),
        ("timeout_s", c_double),
        ("device", c_char_p),
        ("cpu_threads", c_int),
        ("transport", c_char_p),
    ]


ALLGATHER = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)
BARRIER = ctypes.CFUNCTYPE(c_int, c_void_p)


class Bootstrap(Struct):
    """Callbacks of a caller with ranks of its own."""

    c_name = "lap_bootstrap_t"
    init = "LAP_BOOTSTRAP_INIT"
    defaults = {"nranks": 1}
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_int),
        ("nranks", c_int),
        ("context", c_void_p),
        ("allgather", ALLGATHER),
        ("barrier", BARRIER),
    ]


class OpDesc(Struct):
    """The description of an operator: the same on every rank."""

    c_name = "lap_op_desc_t"
    init = "LAP_OP_DESC_INIT"
    defaults = {"b_dtype": -1, "out_dtype": -1, "wire_dtype": -1, "y_dtype": -1}
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int),
        ("m", c_size_t),
        ("n", c_size_t),
        ("k", c_size_t),
        ("dtype", c_int),
        ("epilogue", c_uint),
        ("method", c_char_p),
        ("aggregate", c_int),
        ("num_splits", c_size_t),
        ("block_rows", c_size_t),
        ("gather_input", c_int),
        ("buffer", c_void_p),
        ("layout", c_int),
        ("b_dtype", c_int),
        ("out_dtype", c_int),
        ("wire_dtype", c_int),
        ("accumulate", c_int),
        ("cols", c_size_t),
        ("y_dtype", c_int),
        ("num_sm", c_int),
        ("set_sm_margin", c_int),
        ("background", c_int),
        ("sharded", c_int),
        ("shard_parts", c_size_t),
        ("alltoall", c_int),
        ("algorithm", c_int),
        ("auto_foreign", c_int),
        ("aside", c_int),
    ]


class OpArgs(Struct):
    """One call: the active rows and the caller's memory."""

    c_name = "lap_op_args_t"
    init = "LAP_OP_ARGS_INIT"
    defaults = {"alpha": 1.0, "a_scale": 1.0, "b_scale": 1.0, "d_scale": 1.0, "wire_scale": 1.0}
    _fields_ = [
        ("size", c_size_t),
        ("m", c_size_t),
        ("a", Tensor),
        ("b", Tensor),
        ("d", Tensor),
        ("gathered", Tensor),
        ("trace", c_void_p),
        ("alpha", c_float),
        ("beta", c_float),
        ("a_scale", c_float),
        ("b_scale", c_float),
        ("d_scale", c_float),
        ("wire_scale", c_float),
        ("scales", POINTER(c_float)),
        ("bias", Tensor),
        ("aux", Tensor),
        ("bias_grad", Tensor),
        ("x", Tensor),
        ("y", Tensor),
        ("a_scale_ptr", c_void_p),
        ("b_scale_ptr", c_void_p),
        ("wire_scale_ptr", c_void_p),
    ]


class TpRule(Struct):
    """The rule of one GEMM of a layer."""

    c_name = "lap_tp_rule_t"
    _fields_ = [
        ("method", c_int),
        ("is_reduce_scatter", c_int),
        ("num_sm", c_int),
        ("cga_size", c_int),
        ("set_sm_margin", c_int),
        ("num_splits", c_int),
        ("aggregate", c_int),
        ("atomic_gemm", c_int),
        ("use_ce", c_int),
        ("fp8_buf", c_int),
        ("comm_priority", c_int),
        ("gemm_priority", c_int),
        ("pipeline_rs_overlap_first_gemm", c_int),
        ("given", c_uint),
    ]


class TpOverlap(Struct):
    """The rules of all GEMMs of a layer."""

    c_name = "lap_tp_overlap_t"
    _fields_ = [("size", c_size_t), ("tp", c_int), ("rules", TpRule * len(TpGemm))]


class TpSwitches(Struct):
    """The switches of a layer."""

    c_name = "lap_tp_switches_t"
    init = "LAP_TP_SWITCHES_INIT"
    defaults = {"overlap": 1, "overlap_ag": 1, "overlap_rs": 1, "bulk_dgrad": 1, "bulk_wgrad": 1}
    _fields_ = [
        ("size", c_size_t),
        ("overlap", c_int),
        ("overlap_ag", c_int),
        ("overlap_rs", c_int),
        ("overlap_rs_dgrad", c_int),
        ("bulk_dgrad", c_int),
        ("bulk_wgrad", c_int),
        ("automatic", c_int),
    ]


ENUMS = (Status, DType, Kind, Layout, Sharded, Algorithm, Epilogue, TpGemm)
STRUCTS = (Tensor, Link, BufferOptions, WorldOptions, Bootstrap, OpDesc, OpArgs, TpRule, TpOverlap, TpSwitches)

_handle_p = POINTER(c_void_p)
_status = c_int

# Functions by name: what they return, and what they take. Objects are void pointers here.
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "lap_version_string": (c_char_p, []),
    "lap_status_string": (c_char_p, [c_int]),
    "lap_last_error": (c_char_p, []),
    "lap_shard": (c_size_t, [c_size_t, c_int, c_int, POINTER(c_size_t)]),
    "lap_shard_features": (c_size_t, [c_size_t, c_int, c_int, POINTER(c_size_t)]),
    "lap_world_create": (_status, [POINTER(WorldOptions), _handle_p]),
    "lap_world_create_with": (_status, [POINTER(Bootstrap), POINTER(WorldOptions), _handle_p]),
    "lap_world_destroy": (None, [c_void_p]),
    "lap_world_rank": (c_int, [c_void_p]),
    "lap_world_size": (c_int, [c_void_p]),
    "lap_world_group": (c_void_p, [c_void_p]),
    "lap_world_gpu": (_status, [c_void_p, POINTER(c_int)]),
    "lap_world_synchronize": (_status, [c_void_p, c_void_p]),
    "lap_group_split": (_status, [c_void_p, c_int, c_int, _handle_p]),
    "lap_group_destroy": (None, [c_void_p]),
    "lap_group_rank": (c_int, [c_void_p]),
    "lap_group_size": (c_int, [c_void_p]),
    "lap_group_barrier": (_status, [c_void_p]),
    "lap_group_allgather": (_status, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "lap_op_kind_name": (c_char_p, [c_int]),
    "lap_op_methods": (c_char_p, [c_int, c_size_t, POINTER(c_char_p)]),
    "lap_op_create": (_status, [c_void_p, POINTER(OpDesc), _handle_p]),
    "lap_op_destroy": (None, [c_void_p]),
    "lap_op_method": (c_char_p, [c_void_p]),
    "lap_op_prediction": (_status, [c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_double)]),
    "lap_op_run": (_status, [c_void_p, POINTER(OpArgs)]),
    "lap_op_begin": (_status, [c_void_p, POINTER(OpArgs)]),
    "lap_op_end": (_status, [c_void_p]),
    "lap_op_enqueue": (_status, [c_void_p, POINTER(OpArgs), c_void_p]),
    "lap_op_is_captured": (c_int, [c_void_p]),
    "lap_tp_overlap_init": (_status, [c_int, POINTER(TpOverlap)]),
    "lap_tp_overlap_parse": (_status, [c_char_p, c_char_p, c_size_t, c_int, POINTER(TpOverlap)]),
    "lap_tp_overlap_switch": (_status, [POINTER(TpOverlap), POINTER(TpSwitches)]),
    "lap_tp_overlap_describe": (_status, [POINTER(TpOverlap), c_int, POINTER(OpDesc)]),
}
