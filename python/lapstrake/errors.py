# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class for each status of the library, with the sentence of the failure."""

from __future__ import annotations

from typing import Dict, Type

from lapstrake._abi import Status


class Error(RuntimeError):
    """A call failed. The text says which argument or rank, its value, and what was expected."""

    status: Status = Status.ERR_INTERNAL


class InvalidArgument(Error, ValueError):
    """An argument makes no sense. Nothing was started or changed."""

    status = Status.ERR_INVALID


class NoMemory(Error, MemoryError):
    """There is no memory for what was asked."""

    status = Status.ERR_NO_MEMORY


class Mismatch(Error):
    """The ranks disagree."""

    status = Status.ERR_MISMATCH


class PeerLost(Error):
    """Another rank has ended. The group is broken."""

    status = Status.ERR_PEER_LOST


class Timeout(Error, TimeoutError):
    """Another rank did not come in time. The group is broken."""

    status = Status.ERR_TIMEOUT


class Unsupported(Error):
    """This build, device or transport cannot do it."""

    status = Status.ERR_UNSUPPORTED


class SystemFailure(Error):
    """The operating system, or a callback of the caller, failed."""

    status = Status.ERR_SYSTEM


class Busy(Error):
    """An earlier call has not ended."""

    status = Status.ERR_BUSY


class NotSafe(Error):
    """A schedule is not safe."""

    status = Status.ERR_CHECK


class Internal(Error):
    """A mistake of the library itself."""

    status = Status.ERR_INTERNAL


BY_STATUS: Dict[int, Type[Error]] = {
    int(kind.status): kind
    for kind in (InvalidArgument, NoMemory, Mismatch, PeerLost, Timeout, Unsupported, SystemFailure, Busy, NotSafe,
                 Internal)
}
