# SPDX-License-Identifier: Apache-2.0
"""Ranks for tests: processes that are forked, so that what was imported is imported once."""

import faulthandler
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path


class Failed(AssertionError):
    """A rank raised, or ended without a result."""


# When the test must have ended.
LIMIT = time.monotonic() + float(os.environ.get("LAP_TEST_LIMIT_S", "60"))


def _kill_late(child, where):
    """Kills a rank that is late; the lines of Python that its threads were in, if it could still tell."""
    os.kill(child, signal.SIGUSR1)
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline and not os.path.getsize(where.name):
        time.sleep(0.01)
    time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    return Path(where.name).read_text().strip() or "it could not tell where it was"


def forked(ranks, body, *arguments, killed=()):
    """body(rank, ranks, *arguments) in so many processes; a list of what they return. Those in `killed` return nothing.

    A rank that raises is a failure with its traceback; ranks that are late are killed, and named, with where they were.
    """
    pipes, children, places = [], [], []
    sys.stdout.flush()
    sys.stderr.flush()
    for rank in range(ranks):
        reading, writing = os.pipe()
        places.append(tempfile.NamedTemporaryFile("w"))
        child = os.fork()
        if child == 0:
            os.close(reading)
            faulthandler.register(signal.SIGUSR1, file=places[rank], all_threads=True)
            try:
                result = (True, body(rank, ranks, *arguments))
            except BaseException:
                result = (False, traceback.format_exc())
            try:
                with os.fdopen(writing, "wb") as pipe:
                    pickle.dump(result, pipe)
            finally:
                os._exit(0)
        os.close(writing)
        pipes.append(reading)
        children.append(child)
    received = [b""] * ranks
    waiting = dict(zip(pipes, range(ranks)))
    while waiting and time.monotonic() < LIMIT:
        for pipe in select.select(list(waiting), [], [], max(0, LIMIT - time.monotonic()))[0]:
            chunk = os.read(pipe, 1 << 16)
            received[waiting[pipe]] += chunk
            if not chunk:
                del waiting[pipe]
    late = sorted(waiting.values())
    results, failures = [], []
    for rank, child in enumerate(children):
        if rank in late:
            failures.append(f"rank {rank} has not ended in time: {_kill_late(child, places[rank])}")
        os.waitpid(child, 0)
        os.close(pipes[rank])
        places[rank].close()
    for rank, text in enumerate(received):
        if rank in killed or rank in late:
            results.append(None)
            continue
        right, result = pickle.loads(text) if text else (False, "it ended without a result")
        if not right:
            failures.append(f"rank {rank}: {result}")
        results.append(result)
    if failures:
        raise Failed("\n".join(failures))
    return results


class Files:
    """Callbacks of World.connect over the files of a folder."""

    def __init__(self, folder, rank, ranks):
        self.folder, self.rank, self.ranks, self.round = folder, rank, ranks, 0

    def allgather(self, mine):
        self.round += 1
        path = f"{self.folder}/{self.round}."
        with open(f"{path}{self.rank}.part", "wb") as file:
            file.write(mine)
        os.rename(f"{path}{self.rank}.part", f"{path}{self.rank}")
        for rank in range(self.ranks):
            while not os.path.exists(f"{path}{rank}"):
                time.sleep(0.001)
        return b"".join(Path(f"{path}{rank}").read_bytes() for rank in range(self.ranks))

    def barrier(self):
        self.allgather(b".")
