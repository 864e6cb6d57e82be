#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of the gradients of replicas, and of the keys and values of contexts, `lap train` hides on CPUs: a row for each shape, as Markdown.

    bench/hidden.py build/lap [--iters 12] [--runs 1] [--only PATTERN] [--with 'chrt -r 10']

The rate of the emulated link makes gradients take a part of a step without a link, or a hop of keys and values that part of the attention to
one block. Steps are medians in ms without the first of a run; those with and without overlap take turns in one run. Hidden: 1 less what the
link adds to an overlapped step, as a part of what it adds to one without overlap; and as traces of a run of its own say. A rank needs a core.
"""
import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import tempfile

LAYERS = "--layers 4 --hidden 768 --seq 256"
GPT = "--model gpt --layers 2 --hidden 128 --heads 4 --vocab 64 --tp 1 --batch 1"
WEIGHTS = 4 * 12 * 768**2 * 4  # bytes of the gradients of LAYERS, biases and norms left out
HOP = 2 * 128 * 1024 * 4  # of the keys and values of a rank
# options of lap train; bytes out of a rank in a step, or in a hop; their part of the time
ROWS = [
    (f"--tp 1 --num-replicas 2 {LAYERS} --batch 2", WEIGHTS, 0.4),
    (f"--tp 1 --num-replicas 4 {LAYERS} --batch 4", WEIGHTS * 3 / 2, 0.4),
    (f"--tp 2 --num-replicas 2 {LAYERS} --batch 2", WEIGHTS / 2, 0.4),
    (f"{GPT} --seq 2048 --cp 2", HOP, 0.4),
    (f"{GPT} --seq 2048 --cp 2", HOP, 0.8),
    (f"{GPT} --seq 4096 --cp 4", HOP, 0.4),
]


def train(given, options, *more):
    command = [*shlex.split(given.prefix), given.lap, "train", "--auto=no", *shlex.split(options), "--iters", str(given.iters), "--no-predict", "--json", *more]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(printed.splitlines()[-1])  # models have a line for each step before it


def step(found):
    return statistics.median(iteration["ms"] for iteration in found["iterations"][1:])


def attention(given, options):
    """The time of the attention to one block of keys, in ms."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        train(given, options, "--trace", path)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    return statistics.median(event["dur"] for event in events if event.get("name") == "attention") / 1000


def row(given, options, sent, part):
    contexts = "--cp" in options
    free = step(train(given, options, "--no-trace"))
    rate = sent / (part * (attention(given, options) if contexts else free) / 1000)
    link = f"{rate / 1e6:.0f}MB/s"
    compared = train(given, options, "--no-trace", "--compare", "--link", link)
    overlapped, without = step(compared), step(compared["baseline"])
    hidden = 1 - (overlapped - free) / (without - free)
    traced = train(given, options, "--link", link)["collectives" if contexts else "gradients"]
    print(f"| `{options}` | {part} | {link} | {free:.0f} | {overlapped:.0f} | {without:.0f} | {hidden:.0%} | "
          f"{traced['hidden_ms'] / traced['comm_ms']:.0%} of {traced['comm_ms']:.0f} ms |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lap")
    parser.add_argument("--iters", type=int, default=12)
    parser.add_argument("--runs", type=int, default=1, help="rows of each shape")
    parser.add_argument("--only", default="", metavar="PATTERN", help="only rows whose options match it")
    parser.add_argument("--with", dest="prefix", default="", metavar="COMMAND", help="what lap is started by, such as 'chrt -r 10'")
    given = parser.parse_args()
    print("| options of `lap train` | part | link | no link | overlapped | without overlap | hidden | hidden, traced |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for options, sent, part in ROWS:
        if re.search(given.only, options):
            for _ in range(given.runs):
                row(given, options, sent, part)


if __name__ == "__main__":
    main()
