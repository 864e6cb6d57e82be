#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the efficiencies of machines/*.yaml to one half of the published steps, and tells the error of the other half.

    bench/fit.py build/lap docs/published_steps.csv [--gpu H100] [--swap] [--keep] [-o FILE.yaml]

Rows of the same source, model, GPU, type and sequence are in the same half: they differ by the number of replicas, so that one of
them would give the others away. Such sets are taken in the order of the file, one for the fit, one held out. Only rows that count
(see docs/plan.md) are used. A curve of GEMMs is top / (1 + (GFLOP / size) ** -0.75): `top`, what the largest reach, is fitted, one number for 16 bits and one for
FP8; `size`, where they reach half of that, is what the peak does in 2.5 microseconds. Attention has the shape that it has in the file,
times a number that is fitted. What is made small is the mean error, in one direction after the other.

--swap fits to the other half; --keep fits nothing and tells the errors of the description as it is.
"""
import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile

GPUS = {"H100": "machines/h100-sxm.yaml", "A100": "machines/a100-sxm.yaml"}
EXPONENT = -0.75
HALF_US = 2.5


def validate(lap, rows, names, machine=None):
    """Errors of rows, by their place; machine is the text of a description."""
    with tempfile.TemporaryDirectory() as folder:
        steps = os.path.join(folder, "steps.csv")
        with open(steps, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
        command = [lap, "plan", "--validate", steps, "--json"]
        if machine:
            path = os.path.join(folder, "machine.yaml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(machine)
            command += ["--gpu", path]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found["by_row"]


def split(rows):
    """The rows of the fit, and those that are held out."""
    halves, sets = ([], []), {}
    for row in rows:
        name = tuple(row[key] for key in ("source", "model", "gpu", "precision", "seq"))
        halves[sets.setdefault(name, len(sets)) % 2].append(row)
    return halves


def number(text, key):
    return float(re.search(rf"^ *{key}: *([0-9.]+)", text, re.M).group(1))


def numbers(text, key):
    return [float(part) for part in re.search(rf"^  {key}: \[(.*)\]", text, re.M).group(1).split(",")]


class Description:
    """The text of a machine description with numbers that can be turned."""

    def __init__(self, text):
        self.text = text
        section = text[text.index("peak_tflops"):text.index("gemm_efficiency")]
        self.peaks = {name: number(section, name) for name in ("fp16", "bf16", "fp8") if f"{name}:" in section}
        self.attention = {key: numbers(text, key) for key in ("forward", "backward")}
        self.turns = {"attention": 1.0, "16": 0.7}
        if "fp8" in self.peaks:
            self.turns["fp8"] = 0.7

    def made(self, turns):
        text = self.text
        sizes = numbers(text, "gflop")
        for name, peak in self.peaks.items():
            size = HALF_US * peak * 1e-3
            top = turns["fp8" if name == "fp8" else "16"]
            curve = ", ".join(f"{top / (1 + (gflop / size) ** EXPONENT):.3f}" for gflop in sizes)
            at = text.index("gemm_efficiency")
            text = text[:at] + re.sub(rf"^  {name}: \[.*\]", f"  {name}: [{curve}]", text[at:], count=1, flags=re.M)
        for key, values in self.attention.items():
            curve = ", ".join(f"{min(1, value * turns['attention']):.3f}" for value in values)
            text = re.sub(rf"^  {key}: \[.*\]", f"  {key}: [{curve}]", text, count=1, flags=re.M)
        return text


def summary(errors):
    errors = sorted(abs(error) for error in errors)
    middle = (errors[(len(errors) - 1) // 2] + errors[len(errors) // 2]) / 2
    part = 0.9 * (len(errors) - 1)
    high = errors[int(part)] + (part - int(part)) * (errors[min(int(part) + 1, len(errors) - 1)] - errors[int(part)])
    within = sum(error <= 0.2 for error in errors) / len(errors)
    return f"{len(errors)} rows, median {100 * middle:.1f} %, 90 % of them {100 * high:.1f} %, within 20 %: {100 * within:.0f} %"


def fit(cost, turns):
    """One number after another up and down, by ever smaller steps."""
    best, step = cost(turns), 0.2
    while step > 0.01:
        better = False
        for key in turns:
            for factor in (1 + step, 1 / (1 + step)):
                tried = dict(turns, **{key: turns[key] * factor})
                if key in ("16", "fp8") and tried[key] > 1:
                    continue
                found = cost(tried)
                if found < best - 1e-9:
                    best, turns, better = found, tried, True
        if not better:
            step /= 2
    return turns


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lap")
    parser.add_argument("steps")
    parser.add_argument("--gpu", choices=sorted(GPUS), default="H100")
    parser.add_argument("--swap", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("-o", "--output", help="write the description that was fitted")
    given = parser.parse_args()
    with open(given.steps, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows, names = list(reader), reader.fieldnames
    known = validate(given.lap, rows, names)
    rows = [row for row, verdict in zip(rows, known) if verdict["class"] == "counted" and given.gpu in row["gpu"]]
    halves = split(rows)
    chosen, held = halves[::-1] if given.swap else halves
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", GPUS[given.gpu]), encoding="utf-8") as file:
        description = Description(file.read())
    text = description.text
    if not given.keep:
        def cost(turns):
            errors = [abs(row["error"]) for row in validate(given.lap, chosen, names, description.made(turns))]
            return sum(errors) / len(errors)
        text = description.made(fit(cost, description.turns))
    for what, half in (("fitted", chosen), ("held out", held)):
        verdicts = validate(given.lap, half, names, text)
        print(f"{given.gpu}, {what}: {summary([row['error'] for row in verdicts])}")
        for row in verdicts:
            print(f"  {100 * row['error']:+6.1f} %  {row['precision']:5} {row['model']}, {row['gpus']} GPUs, {row['source']}", file=sys.stderr)
    if given.output:
        with open(given.output, "w", encoding="utf-8") as file:
            file.write(text)
    for key in ("fp16", "bf16", "fp8", "forward", "backward"):
        for line in re.findall(rf"^  {key}: \[.*\]", text, re.M):
            print(line)


if __name__ == "__main__":
    main()
