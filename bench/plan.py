#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well `lap plan` agrees with `lap train` on this machine: a row for each grid, as Markdown.

    bench/plan.py build/lap [--ranks 2] [--runs 3] [--iters 7] [--with 'chrt -r 10'] [--machine FILE.yaml]
    bench/plan.py build/lap --gpu [--link 112.5] [--ranks 4] ...

`lap calibrate` measures the machine with as many ranks as a grid has; `lap plan` plans a step of a small GPT for that description, and `lap
train` trains it. Measured: the median of all iterations but the first of each run; noise: half the distance of their quartiles; least:
the shortest of them. Planned: the median of the runs, each with calibrations of its own, and how far it is off both. The load of the machine before each row
is that of the last minute: figures count only where it is far below 1. With --gpu ranks share GPUs, and train layers of hidden 4096 in bfloat16;
--link is the rate of the emulated link out of each, in GB/s, for `lap calibrate` and for `lap train`.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import tempfile

MODEL = "--layers 4 --hidden 512 --heads 8 --ffn 2048 --vocab 2048 --seq 256"
# tp, pp, cp, dp; options that both commands have; sequences of a step and of a micro-batch
GRIDS = [
    (1, 1, 1, 1, "", 2, 2),
    (2, 1, 1, 1, "", 2, 2),
    (1, 1, 1, 2, "", 4, 2),
    (1, 2, 1, 1, "--schedule 1f1b", 4, 1),
    (1, 2, 1, 1, "--schedule interleaved --virtual-pp 2", 4, 1),
    (1, 2, 1, 1, "--schedule zb-h1", 4, 1),
    (1, 1, 2, 1, "", 4, 2),
    (2, 1, 1, 2, "", 4, 2),
    (2, 2, 1, 1, "--schedule 1f1b", 4, 1),
    (2, 1, 2, 1, "", 4, 2),
]
GPU_MODEL = "--layers 2 --hidden 4096 --heads 32 --ffn 16384 --vocab 8192 --seq 2048"
GPU_GRIDS = [
    (1, 1, 1, 1, "", 2, 2),
    (4, 1, 1, 1, "", 2, 2),
    (2, 1, 1, 2, "", 4, 2),
    (2, 2, 1, 1, "--schedule 1f1b", 8, 1),
    (1, 1, 2, 2, "", 4, 2),
    (2, 1, 2, 1, "", 4, 2),
]


def call(given, *words):
    return subprocess.run([*shlex.split(given.prefix), given.lap, *words], check=True, capture_output=True, text=True).stdout


def run(given, grid, folder, which):
    tp, pp, cp, dp, more, batch, micro = grid
    ranks = tp * pp * cp * dp
    device = ["--device", "cuda"] if given.gpu else []
    link = ["--link", f"{given.link:g}GB/s"] if given.link and ranks > 1 else []
    shares = ["--distributed-optimizer"] if cp * dp > 1 else []  # as the planner takes it
    machine = given.machine or os.path.join(folder, f"machine.{ranks}.{which}.yaml")
    if not given.machine and not os.path.exists(machine):
        call(given, "calibrate", "--ranks", str(ranks), *device, *link, "-o", machine)
    shape = [*shlex.split(GPU_MODEL if given.gpu else MODEL), *shlex.split(more), "--tp", str(tp), "--pp", str(pp), "--cp", str(cp), "--dp", str(dp),
             "--global-batch", str(batch), "--micro-batch", str(micro)]
    plan = json.loads(call(given, "plan", "--model", "gpt2-124m", "--gpus", str(ranks), "--gpu", machine, "--precision",
                           "bf16" if given.gpu else "fp32", "--recompute", "none", *shape, "--json"))
    train = call(given, "train", "--auto=no", "--model", "gpt2-124m", *shape, *shares, *device, *link, "--iters", str(given.iters), "--no-trace", "--no-predict",
                 "--json")
    iterations = json.loads(train.splitlines()[-1])["iterations"]
    return [iteration["ms"] for iteration in iterations[1:]], 1e3 * plan["plans"][0]["step_s"]


def compare(given, grid, folder):
    load = os.getloadavg()[0]
    runs = [run(given, grid, folder, which) for which in range(given.runs)]
    times = sorted(time for measured, _ in runs for time in measured)
    low, middle, high = statistics.quantiles(times, n=4)
    planned = statistics.median(planned for _, planned in runs)
    print(f"| {' | '.join(map(str, grid[:6]))} | {middle:.0f} | {(high - low) / 2:.0f} | {times[0]:.0f} | {planned:.0f} | "
          f"{100 * (planned / middle - 1):+.0f} % | {100 * (planned / times[0] - 1):+.0f} % | {load:.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lap")
    parser.add_argument("--gpu", action="store_true", help="on GPUs")
    parser.add_argument("--link", type=float, help="GB/s of an emulated link out of each rank")
    parser.add_argument("--ranks", type=int, help="grids of at most so many ranks (default 2; with --gpu 4)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--iters", type=int, default=7)
    parser.add_argument("--with", dest="prefix", default="", help="a command that lap is started with")
    parser.add_argument("--machine", help="a description; nothing is calibrated")
    given = parser.parse_args()
    ranks = given.ranks or (4 if given.gpu else 2)
    print("| tp | pp | cp | dp | options | batch | measured ms | noise | least | planned ms | off | off the least | load |")
    print("| ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for grid in GPU_GRIDS if given.gpu else GRIDS:
            if grid[0] * grid[1] * grid[2] * grid[3] <= ranks:
                compare(given, grid, folder)


if __name__ == "__main__":
    main()
