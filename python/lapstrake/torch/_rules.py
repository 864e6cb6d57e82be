# SPDX-License-Identifier: Apache-2.0
"""Which overlap goes where: the rules of a layer's GEMMs, as TransformerEngine, Megatron and NeMo write them."""

from __future__ import annotations

import json
from ctypes import byref
from enum import Enum
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple, Union

import torch

from lapstrake._abi import OpDesc, TpGemm, TpOverlap, TpSwitches
from lapstrake._library import check, library
from lapstrake.errors import InvalidArgument, Unsupported

# By the size of the group: the rules, and the GEMMs whose `auto` may choose cuBLASMp.
_rules: Dict[int, Tuple[TpOverlap, FrozenSet[str]]] = {}


class UserBufferQuantizationMode(Enum):
    """What TransformerEngine makes buffers for; here they are made with operators."""

    NONE = "none"
    FP8 = "fp8"


Configs = Union[Dict[str, Any], List[Dict[str, Any]], None]


def initialize_ub(shape: Sequence[int], tp_size: int, use_fp8: bool = False,
                  quantization_modes: Optional[List[Any]] = None, dtype: torch.dtype = torch.bfloat16,
                  ub_cfgs: Configs = None, bootstrap_backend: Optional[str] = None, with_cublasmp: bool = False) -> None:
    """Sets the overlap rules of modules that are made from now on, for groups of `tp_size` ranks. Local.

    `ub_cfgs` maps names of GEMMs ("qkv_fprop", "fc2_dgrad", ...) to their fields ("method", "num_splits", ...), as for
    TransformerEngine; lap/tp_overlap.h lists them. Those that it does not name have their defaults. Beside the method
    "auto" there is "auto_foreign": True lets it choose cuBLASMp, too. Nothing is made here: operators are, when they
    are first called, so that `shape`, `dtype` and quantization need not be known, nor how ranks are connected: tp_group
    does that.
    """
    if not isinstance(tp_size, int) or tp_size < 1 or len(shape) < 2:
        raise InvalidArgument(f"shape is {list(shape)} and tp_size {tp_size!r}, expected [tokens, hidden] and at least 1")
    if with_cublasmp:
        raise Unsupported("with_cublasmp is True, expected False: with 'method': 'auto' and 'auto_foreign': True in ub_cfgs "
                          "a GEMM has cuBLASMp where it is faster")
    for mode in quantization_modes or ():
        if not isinstance(mode, UserBufferQuantizationMode):
            raise InvalidArgument(f"quantization_modes has {mode!r}, expected UserBufferQuantizationMode.NONE or FP8")
    if isinstance(ub_cfgs, (list, tuple)):
        if any(config != ub_cfgs[0] for config in ub_cfgs):
            raise Unsupported(f"ub_cfgs has {len(ub_cfgs)} configurations that differ, expected one: the rules of FP8 are "
                              "those of the other types")
        ub_cfgs = ub_cfgs[0] if ub_cfgs else None
    _rules[tp_size] = _parse(ub_cfgs, tp_size) if ub_cfgs else (_defaults(tp_size), frozenset())


def destroy_ub() -> None:
    """Forgets the rules of initialize_ub: modules that are made from now on have the defaults. Local."""
    _rules.clear()


def _defaults(tp_size: int) -> TpOverlap:
    rules = TpOverlap()
    check(library().lap_tp_overlap_init(tp_size, byref(rules)))
    return rules


def _parse(configs: Dict[str, Any], tp_size: int) -> Tuple[TpOverlap, FrozenSet[str]]:
    """The library reads the rules as it reads those of files: JSON is YAML. It knows nothing of auto_foreign: its own
    layers, for which these rules are, cannot have cuBLASMp."""
    asked = {name: fields for name, fields in (configs.items() if isinstance(configs, dict) else ())
             if isinstance(fields, dict) and "auto_foreign" in fields}
    known = {name: {field: value for field, value in fields.items() if field != "auto_foreign"}
             for name, fields in asked.items()}
    rules = TpOverlap()
    text = json.dumps({**configs, **known} if asked else configs, indent=1).encode()
    check(library().lap_tp_overlap_parse(b"ub_cfgs", text, len(text), tp_size, byref(rules)))
    for name, fields in asked.items():
        value, method = fields["auto_foreign"], fields.get("method")
        if value not in (0, 1):
            raise InvalidArgument(f"ub_cfgs: auto_foreign of {name} is {value!r}, expected 0 or 1, or False or True")
        if value and method != "auto":
            raise InvalidArgument(f"ub_cfgs: auto_foreign of {name} is {value!r} with method {method!r}, expected "
                                  "'auto': no other method chooses")
    return rules, frozenset(name for name, fields in asked.items() if fields["auto_foreign"])


def methods(name: str, tp_size: int, hidden: int, *, overlap_ag: bool, overlap_rs: bool, overlap_rs_dgrad: bool,
            bulk_dgrad: bool, bulk_wgrad: bool) -> Tuple[str, str, str]:
    """How fprop, dgrad and wgrad of the layer `name` (qkv, proj, fc1, fc2) are overlapped, in the words of operators' descriptions.

    fprop is a method with knobs, and so are the others; the dgrad of qkv and fc1 begins with a kind of operator.
    `hidden` is the number of features that ranks do not share: those of what is scattered.
    """
    given, foreign = _rules.get(tp_size) or (_defaults(tp_size), frozenset())
    rules = TpOverlap.from_buffer_copy(given)
    switches = TpSwitches(overlap_ag=overlap_ag, overlap_rs=overlap_rs, overlap_rs_dgrad=overlap_rs_dgrad,
                          bulk_dgrad=bulk_dgrad, bulk_wgrad=bulk_wgrad)
    check(library().lap_tp_overlap_switch(byref(rules), byref(switches)))
    texts = []
    for step in ("FPROP", "DGRAD", "WGRAD"):
        desc = OpDesc(n=hidden)
        check(library().lap_tp_overlap_describe(byref(rules), TpGemm[f"{name.upper()}_{step}"], byref(desc)))
        text = (desc.method or b"").decode()
        knobs = [f"{knob}={getattr(desc, knob)}" for knob in ("aggregate", "num_splits") if getattr(desc, knob)]
        if text == "auto" and f"{name}_{step.lower()}" in foreign:
            knobs.append("auto_foreign")
        text += ":" + ",".join(knobs) if knobs else ""
        if step == "DGRAD" and name in ("qkv", "fc1"):
            text = library().lap_op_kind_name(desc.kind).decode() + "/" + text
        texts.append(text)
    return texts[0], texts[1], texts[2]
