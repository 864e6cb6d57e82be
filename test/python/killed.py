# SPDX-License-Identifier: Apache-2.0
"""Ranks of PyTorch that are killed, before the first operator, between two, and in backward, or do not come. The others learn it."""

import datetime
import os
import signal
import time
import unittest

import torch
import torch.distributed as dist

import lapstrake
import lapstrake.torch as lap
from torch_ranks import Case, fails


def killed(rank, ranks):
    """A rank dies; the others learn of it in the next operator."""
    A, B = torch.ones(2, 4), torch.ones(4, 3)
    lap.all_gather_matmul(A, [B], 0, method="ring")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    x = A.clone().requires_grad_()
    try:
        for _ in range(100):
            lap.all_gather_matmul(x, [B], 0, method="ring")
        lap.synchronize()  # calls on a GPU have not been waited for
    except lapstrake.PeerLost as failure:
        seconds = time.monotonic() - begun
        fails(lapstrake.PeerLost, "rank 1", lap.all_gather_matmul, A, [B], 0, method="ring")
        return seconds, str(failure)
    raise AssertionError("nothing was raised")


def killed_in_backward(rank, ranks):
    """A rank dies between forward and backward."""
    x = torch.ones(2, 4, requires_grad=True)
    _, (y,) = lap.all_gather_matmul(x, [torch.ones(4, 3)], 0, method="ring")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def backward():
        y.sum().backward()
        lap.synchronize()
    fails(lapstrake.PeerLost, "rank 1", backward)


def killed_before(rank, ranks):
    """A rank dies before the first operator: it is the process group that fails. All others have the group by then."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"made-{rank}", "")
    if rank == 1:
        store.wait([f"made-{other}" for other in range(ranks)])
        os.kill(os.getpid(), signal.SIGKILL)
    fails(lapstrake.PeerLost, "group '0' failed while its ranks were connected", lap.all_gather_matmul, torch.ones(2, 4),
          [torch.ones(4, 3)], 0)


def absent(rank, ranks):
    """A rank does not come to the first operator of a group: the timeout is that of the group."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if rank != 1:
        fails(lapstrake.Timeout, f"not all ranks of group '{group.group_name}' came to their first operator within the timeout",
              lap.all_gather_matmul, torch.ones(2, 4), [torch.ones(4, 3)], 0, group)
    dist.barrier()


for body in (killed, killed_in_backward, killed_before, absent):
    body.leaves = True  # gloo's own end would wait


class Killed(Case):
    def test_a_killed_rank(self):
        results = self.on((3,), killed, killed=[1])
        for rank in (0, 2):
            seconds, sentence = results[rank]
            self.assertIn("rank 1", sentence)
            self.assertLess(seconds, 10)

    def test_a_rank_killed_in_backward(self):
        self.on((3,), killed_in_backward, killed=[1])

    def test_a_rank_killed_before(self):
        self.on((3,), killed_before, killed=[1])

    def test_an_absent_rank(self):
        self.on((2,), absent)


if __name__ == "__main__":
    unittest.main()
