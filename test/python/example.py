# SPDX-License-Identifier: Apache-2.0
"""examples/python/train_mlp.py under torchrun trains, and losses do not depend on overlap; docs/python.md runs.

torchrun starts ranks on two hosts.
"""

import contextlib
import importlib
import io
import os
import re
import runpy
import socket
import sys
import tempfile
import unittest
from pathlib import Path

from ranks import forked

importlib.import_module("lapstrake.torch")  # before ranks are forked
run = importlib.import_module("torch.distributed.run")

ROOT = Path(os.environ["LAP_SOURCE_DIR"])
SCRIPT = ROOT / "examples" / "python" / "train_mlp.py"


def losses(text):
    """The losses that the example has printed."""
    return [float(loss) for loss in re.findall(r"loss (\S+)", text)]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def as_torchrun(rank, ranks, port):
    """Makes a rank's environment that of torchrun."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


def script(rank, ranks, port, options):
    """The losses that the example prints, as a rank that was forked and need not import torch again."""
    as_torchrun(rank, ranks, port)
    sys.argv = [str(SCRIPT), *options]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return losses(text.getvalue())


def page(rank, ranks, code, port):
    """Runs code of a page as a rank that torchrun has started."""
    as_torchrun(rank, ranks, port)
    names = {}
    exec(code, names)
    names["dist"].destroy_process_group()
    return list(names["z"].shape)


def torchrun(node, nodes, *options):
    """What the ranks of torchrun write, on one of some hosts, which are this machine; forked, it imports nothing."""
    with tempfile.TemporaryFile() as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        try:
            run.main(["--node-rank", str(node), *options])
        except BaseException:
            file.seek(0)
            raise AssertionError(file.read().decode())
        file.seek(0)
        return file.read().decode()


class Example(unittest.TestCase):
    def test_two_hosts(self):
        first, second = forked(2, torchrun, "--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
                               "--master-port", str(free_port()), "--no-python", "sh", "-c",
                               'exec 2>&1; ! "$@"', "sh", os.environ["LAPSTRAKE_COMMAND"],
                               *"bench ag 16 8 8 --iters 1 --method ring".split())
        for rank, text in ((0, first), (1, first), (2, second), (3, second)):
            self.assertRegex(text, rf"rank {rank}: .*carries none; expected mpirun \(MPI carries data between hosts\), or GPUs")

    def test_the_page(self):
        blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "python.md").read_text(), re.S | re.M)
        self.assertEqual(len(blocks), 4)
        self.assertEqual(forked(2, page, blocks[0], free_port()), [[16, 64]] * 2)
        for block in blocks[1:]:
            exec(block, {})

    def test_it_trains(self):
        (text,) = forked(1, torchrun, "--standalone", "--nproc-per-node", "2", str(SCRIPT), "--steps", "41")
        overlapped = losses(text)
        self.assertEqual(len(overlapped), 3)
        self.assertLess(overlapped[-1], 0.5 * overlapped[0])
        serial = forked(2, script, free_port(), ("--steps", "21", "--no-comm-overlap"))
        self.assertEqual(serial, [overlapped[:2], []])

    def test_four_ranks(self):
        """Forked, since each rank of torchrun imports torch anew."""
        overlapped = forked(4, script, free_port(), ("--steps", "41"))
        self.assertEqual(overlapped[1:], [[], [], []])
        self.assertEqual(len(overlapped[0]), 3)
        self.assertLess(overlapped[0][-1], 0.5 * overlapped[0][0])
        serial = forked(4, script, free_port(), ("--steps", "21", "--no-comm-overlap"))
        self.assertEqual(serial, [overlapped[0][:2], [], [], []])


if __name__ == "__main__":
    unittest.main()
