#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well `lap train` predicts forward and backward: a row for each shape, as Markdown.

    bench/predict.py build/lap [--gpu] [--runs 3] [--iters 9] [--with 'chrt -r 10']

Each run of a row calibrates anew. Measured: the median of all iterations but the first of each run; noise: half the distance of
their quartiles; least: the shortest of them. Predicted: the median of the runs, and how far it is off both.
"""
import argparse
import json
import shlex
import statistics
import subprocess

SHAPES = [(hidden, seq) for hidden in (256, 512, 1024) for seq in (128, 256, 512)]
ROWS = [(tp, hidden, seq, "") for tp in (1, 2) for hidden, seq in SHAPES] + [
    (2, 512, 256, "--no-comm-overlap"),
    (2, 512, 256, "--auto"),
    (2, 512, 256, "--no-sequence-parallel"),
    (2, 512, 256, "--tp-comm-overlap-rs-dgrad"),
    (2, 512, 256, "--activation swiglu --norm rmsnorm"),
    (2, 512, 256, "--recompute full --layers 2"),
    (2, 512, 256, "--dtype bfloat16"),
    (2, 256, 128, "--fp8"),
    (2, 512, 256, "--micro-batches 2"),
    (2, 512, 256, "--link 1GB/s"),
    (1, 1024, 128, "--no-trace"),  # with the step of the optimizer
    (2, 1024, 128, "--no-trace"),
    (2, 1024, 128, "--no-trace --dtype bfloat16"),
]
LAYER = "--dtype bf16 --head-dim 128 --batch 2"
PACED = "--link 112.5GB/s"
GPU_ROWS = [
    (1, 768, 1024, "--dtype bf16 --head-dim 64 --layers 12 --batch 16"),
    (1, 768, 1024, "--model gpt2-124m --batch 16"),
    (1, 4096, 2048, LAYER),
    (2, 4096, 2048, LAYER),
    (4, 4096, 2048, LAYER),
    (4, 4096, 2048, f"{LAYER} {PACED}"),
    (2, 4096, 2048, f"{LAYER} --num-replicas 2"),
    (2, 4096, 2048, f"{LAYER} --num-replicas 2 {PACED}"),
]


def run(given, tp, hidden, seq, more):
    shape = ["--hidden", str(hidden), "--seq", str(seq)]
    shape += ["--device", "cuda", "--no-trace"] if given.gpu else ["--head-dim", "32"]
    command = [*shlex.split(given.prefix), given.lap, "train", "--auto=no", "--json", "--iters", str(given.iters), "--tp", str(tp),
               *shape, *more.split()]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(printed.splitlines()[-1])  # models have a line for each step before it
    return [iteration["passes_ms"] for iteration in found["iterations"][1:]], found["predicted_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lap")
    parser.add_argument("--gpu", action="store_true", help="ranks share a GPU")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--iters", type=int, default=9)
    parser.add_argument("--with", dest="prefix", default="", help="a command that lap is started with")
    given = parser.parse_args()
    print("| tp | hidden | seq | options | measured ms | noise | least | predicted ms | off | off the least |")
    print("| ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for tp, hidden, seq, more in GPU_ROWS if given.gpu else ROWS:
        runs = [run(given, tp, hidden, seq, more) for _ in range(given.runs)]
        times = sorted(time for measured, _ in runs for time in measured)
        low, middle, high = statistics.quantiles(times, n=4)
        predicted = statistics.median(predicted for _, predicted in runs)
        print(f"| {tp} | {hidden} | {seq} | {f'`{more}`' if more else ''} | {middle:.1f} | {(high - low) / 2:.1f} | {times[0]:.1f} | "
              f"{predicted:.1f} | {100 * (predicted / middle - 1):+.0f} % | {100 * (predicted / times[0] - 1):+.0f} % |", flush=True)


if __name__ == "__main__":
    main()
