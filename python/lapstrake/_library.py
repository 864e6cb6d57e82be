# SPDX-License-Identifier: Apache-2.0
"""Finds liblap, loads it once, and turns statuses into exceptions."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from pathlib import Path
from typing import Iterator, Optional

from lapstrake._abi import FUNCTIONS
from lapstrake.errors import BY_STATUS, Error

_library: Optional[ctypes.CDLL] = None


def candidates() -> Iterator[str]:
    """Where liblap may be: only LAPSTRAKE_LIBRARY if it is set, else inside the package, then the system's."""
    given = os.environ.get("LAPSTRAKE_LIBRARY")
    if given:
        yield given
        return
    inside = Path(__file__).with_name("liblap.so")
    if inside.exists():
        yield str(inside)
    yield "liblap.so.0"
    found = ctypes.util.find_library("lap")
    if found:
        yield found


def library() -> ctypes.CDLL:
    """The library, with the types of its functions. It is loaded when it is first used."""
    global _library
    if _library is None:
        _library = _load()
    return _library


def _load() -> ctypes.CDLL:
    reasons = []
    for path in candidates():
        try:
            # ctypes frees Python's lock during calls, so that other threads go on.
            loaded = ctypes.CDLL(path)
        except OSError as error:
            reasons.append(f"{path} ({error})")
            continue
        for name, (restype, argtypes) in FUNCTIONS.items():
            try:
                function = getattr(loaded, name)
            except AttributeError:
                raise ImportError(f"{path} has no {name}: it is no liblap, or one of another version") from None
            function.restype, function.argtypes = restype, argtypes
        return loaded
    raise ImportError("there is no liblap; set LAPSTRAKE_LIBRARY to its path. Tried: " + "; ".join(reasons))


def check(status: int) -> None:
    """Raises the exception of a failure, with the sentence of this thread's last one."""
    if status < 0:
        lib = library()
        sentence = lib.lap_last_error() or lib.lap_status_string(status)
        raise BY_STATUS.get(status, Error)(sentence.decode(errors="replace"))


def version() -> str:
    """The version of the library that runs, such as "0.1.0"."""
    return str(library().lap_version_string().decode())
