# SPDX-License-Identifier: Apache-2.0
"""Lapstrake: communication hidden behind computation in transformer training.

A thin package over the C library liblap, by ctypes. lapstrake.torch has operators and modules for PyTorch. What a
call does, and what its arguments mean, is written in the headers of the library (include/lap).
"""

from lapstrake._abi import Algorithm, DType, Epilogue, Kind, Layout, OpArgs, OpDesc, Sharded, Status, Tensor
from lapstrake._library import version
from lapstrake.errors import (Busy, Error, Internal, InvalidArgument, Mismatch, NoMemory, NotSafe, PeerLost,
                              SystemFailure, Timeout, Unsupported)
from lapstrake.notebook import bench, show
from lapstrake.world import Group, Op, World, dtype_size, methods, shard, shard_features, tensor

__all__ = [
    "Algorithm", "Busy", "DType", "Epilogue", "Error", "Group", "Internal", "InvalidArgument", "Kind", "Layout",
    "Mismatch", "NoMemory", "NotSafe", "Op", "OpArgs", "OpDesc", "PeerLost", "Sharded", "Status", "SystemFailure",
    "Tensor", "Timeout", "Unsupported", "World", "bench", "dtype_size", "methods", "shard", "shard_features",
    "show", "tensor", "version",
]


def __getattr__(name: str) -> str:
    if name == "__version__":  # of the library, which is loaded when somebody asks
        return version()
    raise AttributeError(f"module 'lapstrake' has no attribute '{name}'")
