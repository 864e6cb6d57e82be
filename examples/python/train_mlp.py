# SPDX-License-Identifier: Apache-2.0
"""Trains two residual MLP blocks whose weights and rows several ranks share, on CPUs or on GPUs.

    torchrun --nproc-per-node 4 examples/python/train_mlp.py

Every rank has a quarter of each weight and of the sequence. fc1 gathers the sequence while it computes, fc2 scatters
it, and backward overlaps both again. --no-comm-overlap does the same one after the other; losses are the same.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist

import lapstrake.torch as lap


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seq-length", type=int, default=64, help="rows of a sample, shared by the ranks")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--ffn", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--no-comm-overlap", action="store_true", help="first the communication, then the GEMM")
    return parser.parse_args()


class Block(torch.nn.Module):
    """x + MLP(norm(x))"""

    def __init__(self, options, group, device):
        super().__init__()
        overlap = not options.no_comm_overlap
        self.mlp = lap.LayerNormMLP(options.hidden, options.ffn, activation="swiglu", tp_group=group,
                                    sequence_parallel=True, set_parallel_mode=True, device=device,
                                    ub_overlap_ag=overlap, ub_overlap_rs=overlap, ub_bulk_dgrad=overlap,
                                    ub_bulk_wgrad=overlap)

    def forward(self, x):
        return x + self.mlp(x)


def main():
    options = arguments()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
        # NCCL wants a GPU for each rank. Lapstrake does not: ranks may share one.
        if int(os.environ["LOCAL_WORLD_SIZE"]) <= torch.cuda.device_count():
            backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend)
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    lap.initialize_ub([options.seq_length * options.batch_size, options.hidden], ranks)

    torch.manual_seed(1000 + rank)  # ranks have different parts of the weights
    model = torch.nn.Sequential(Block(options, group, device), Block(options, group, device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    torch.manual_seed(1)  # but parts of the same data
    teacher = torch.randn(options.hidden, options.hidden) / options.hidden ** 0.5

    begun = time.monotonic()
    for step in range(options.steps):
        x = torch.randn(options.seq_length, options.batch_size, options.hidden)
        target = torch.relu(x @ teacher)
        mine, goal = (tensor.chunk(ranks)[rank].to(device) for tensor in (x, target))
        loss = ((model(mine) - goal) ** 2).sum() / target.numel()
        loss.backward()
        lap.reduce_sequence_parallel_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        if rank == 0 and (step % 20 == 0 or step == options.steps - 1):
            print(f"step {step:3d}  loss {whole.item():.4f}", flush=True)
    if rank == 0:
        print(f"{ranks} ranks on {device.type}: {options.steps} steps in {time.monotonic() - begun:.1f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
