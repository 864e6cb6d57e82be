# SPDX-License-Identifier: Apache-2.0
"""Finds the command lap and runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List

from lapstrake.errors import Error, InvalidArgument, SystemFailure


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
    """Options of the command from arguments of Python: wire_dtype="bf16" is --wire-dtype=bf16."""
    list_ = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            list_.append(flag)
        elif value is not None and value is not False:
            list_.append(f"{flag}={value}")
    return list_


def run(*arguments: str) -> str:
    """What lap prints. Its sentences become exceptions: of the command line InvalidArgument, else Error."""
    path = command()
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise SystemFailure(f"lap cannot be run: {path} ({error.strerror})") from None
    if done.returncode:
        sentence = done.stderr.strip() or f"lap {arguments[0]} ended with status {done.returncode}"
        raise (InvalidArgument if done.returncode == 2 else Error)(sentence)
    return done.stdout
