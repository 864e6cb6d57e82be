# SPDX-License-Identifier: Apache-2.0
"""The time of lapstrake.torch's TransformerLayer, forward and backward, on ranks that share a GPU.

    MASTER_PORT=29500 PYTHONPATH=python LAPSTRAKE_LIBRARY=build/liblap.so \\
        lap run --gpu-share --no-prefix -n 4 python3 bench/torch_layer.py [part] [HIDDEN HEADS SEQ BATCH]

The layer is that of `lap train --tp 4 --hidden 4096 --head-dim 128 --seq 2048 --batch 2 --device cuda --dtype bf16`:
causal attention, gelu, biases, sequence parallel, with all overlaps on. Medians of 9 rounds of 5 passes, the slowest
rank counting: as PyTorch issues it, and captured once in a CUDA graph. One JSON object from rank 0. The operators run on
a rank's own SMs; PyTorch's own kernels run on all, or with "part" on those of the rank, in a second green context, which
costs changes of contexts.
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

import torch
import torch.distributed as dist
from shared_gpu import RANK, RANKS, median_ms, part_streams, rand, start

import lapstrake.torch as lap


def main(part, hidden=4096, heads=32, seq=2048, batch=2):
    start()
    stream = part_streams(1)[0][0] if part else torch.cuda.Stream()
    row = {"hidden": hidden, "heads": heads, "seq": seq, "batch": batch, "ranks": RANKS, "part": part}
    with torch.cuda.stream(stream):
        lap.initialize_ub([seq * batch, hidden], RANKS)
        layer = lap.TransformerLayer(hidden, 4 * hidden, heads, hidden_dropout=0.0, attention_dropout=0.0,
                                     tp_group=dist.group.WORLD, tp_size=RANKS, params_dtype=torch.bfloat16,
                                     sequence_parallel=True, set_parallel_mode=True, ub_tp_comm_overlap=True,
                                     device="cuda")
        x = rand(seq // RANKS, batch, hidden).requires_grad_()
        gradient = rand(seq // RANKS, batch, hidden)

        tensors = [x, *layer.parameters()]

        def step():
            for tensor in tensors:  # as zero_grad() of optimizers: gradients are written, not added to, as by lap train
                tensor.grad = None
            y = layer(x)
            torch.autograd.backward(y, gradient)

        row["eager_ms"] = round(median_ms(step, rounds=9, calls=5), 3)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        dist.barrier()
        with torch.cuda.graph(graph, stream=stream):
            step()
        row["graph_ms"] = round(median_ms(graph.replay, rounds=9, calls=5), 3)
        torch.cuda.synchronize()
    if RANK == 0:
        print(json.dumps(row), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main("part" in sys.argv, *(int(text) for text in sys.argv[1:] if text != "part"))
