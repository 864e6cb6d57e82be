# SPDX-License-Identifier: Apache-2.0
"""Finds the command lap and runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List

from lapstrake.errors import Error, InvalidArgument, SystemFailure


# What launchers tell a rank about itself, as src/core/environment.c reads it. A program that torchrun has started, or a notebook
# with a process group of its own, starts the ranks of bench() all the same.
_RANK = ("LAP_RANK", "LAP_SIZE", "LAP_NODE", "LAP_JOB", "LAP_MASTER", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
         "PMI_RANK", "PMI_SIZE", "RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


def command() -> str:
    """The path of lap: LAPSTRAKE_COMMAND if it is set, else the one inside the package, then the one on PATH."""
    given = os.environ.get("LAPSTRAKE_COMMAND")
    if given:
        return given
    inside = Path(__file__).with_name("lap")
    found = str(inside) if inside.exists() else shutil.which("lap")
    if not found:
        raise SystemFailure("there is no command lap; set LAPSTRAKE_COMMAND to its path")
    return found


def words(options: Dict[str, object]) -> List[str]:
    """Options of the command from arguments of Python: wire_dtype="bf16" is --wire-dtype=bf16, a list is one with commas."""
    list_, flags = [], []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif isinstance(value, (list, tuple)):
            list_.append(f"{flag}={','.join(map(str, value))}")
        elif value is not None and value is not False:
            list_.append(f"{flag}={value}")
    return list_ + flags  # one that needs a value takes none of the others for it


def run(*arguments: str) -> str:
    """What lap prints. Its sentences become exceptions: of the command line InvalidArgument, else Error."""
    path = command()
    environment = {name: value for name, value in os.environ.items() if name not in _RANK}
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False, env=environment)
    except OSError as error:
        raise SystemFailure(f"lap cannot be run: {path} ({error.strerror})") from None
    if done.returncode:
        sentence = done.stderr.strip() or f"lap {arguments[0]} ended with status {done.returncode}"
        raise (InvalidArgument if done.returncode == 2 else Error)(sentence)
    return done.stdout
