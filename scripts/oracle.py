#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what a build plans, computes, counts and says into a folder, so that two builds can be compared: `diff -r OLD NEW` is
empty where nothing has changed. A change that is meant shows which lines it changes.

  oracle.py BUILD DIR [--quick] [--jobs N] [--hashes FILE] [PART...]

  o1-calls     what each rank does in a call of an operator: kinds, methods, ranks, targets, rows, layouts, epilogues, types
  o1-programs  what each rank does in a step of training on the grids below, and what lap check train counts
  o2-cpu       losses, norms, and the bytes of checkpoints (masters, moments) of these grids, resumed ones among them;
  o2-fake      the same on a GPU that is a fake (test/fake)
  o5-times     seconds by simulation on machine descriptions: plans, and calls of operators; nothing is measured
  o5-grids     ... and the steps of the grids
  o5-counts    what the fake driver counts: graphs, launches, events, waits of streams, bytes
  o6           the sentences of failures

o1, o2 and o5 stand for all of theirs. Without parts: all. --quick: some of the grids, and fewer calls. o1 and o6 are the same on any
machine; o2 has the bits of this machine's BLAS.
"""

import argparse
import concurrent.futures
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# ---- running the command ----


class Tools:
    """Where things are."""

    def __init__(self, build, work):
        self.build, self.work = os.path.abspath(build), work
        self.lap = os.path.join(self.build, "lap")

    def environment(self, fake):
        ours = ("LAP_", "FAKE_", "OMPI_", "PMI_", "OPENBLAS_", "OMP_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        kept["XDG_CACHE_HOME"] = os.path.join(self.work, "cache")
        kept["LC_ALL"] = "C"
        if fake:
            kept.update(LD_LIBRARY_PATH=os.path.join(self.build, "test", "fake"), FAKE_RECORD="/dev/null", LAP_GPU_TUNE="0",
                        PATH=os.path.join(ROOT, "test", "fake") + ":" + kept["PATH"])
        return kept

    def run(self, words, fake=False, folder=None, **more):
        """Standard output, standard error and status."""
        environment = self.environment(fake)
        environment.update(more)
        with subprocess.Popen([self.lap] + words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                              stdin=subprocess.DEVNULL, cwd=folder or self.work) as process:
            try:
                out, err = process.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                err += "\nkilled: it had not ended after 300 s\n"
        return out, err, process.returncode


# ---- calls in words that do not depend on how the library stores them ----

SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1, "float8_e5m2": 1, "int32": 4}
KERNELS = {"GEMM": "gemm", "REDUCE": "reduce", "COPY": "copy", "SUMS": "sums"}


def flat(memory, offset, rows, row_bytes, stride):
    """Bytes of a memory; rows without gaps are one."""
    if row_bytes == stride or rows == 1:
        rows, row_bytes, stride = 1, rows * row_bytes, rows * row_bytes
    return f"{memory}[{offset}: {row_bytes}B]" if rows == 1 else f"{memory}[{offset}: {rows} x {row_bytes}B / {stride}]"


def matrix(memory, dtype, pitch, offset, rows, row_bytes, stride):
    """The same of a matrix whose rows lie `pitch` bytes apart, as rows and columns; flat where it is no part of it."""
    size = SIZES.get(dtype, 0)
    if not size or not pitch:
        return flat(memory, offset, rows, row_bytes, stride)
    row, col = divmod(offset, pitch)
    if col == 0 and stride == row_bytes and rows * row_bytes % pitch == 0:
        rows, row_bytes = rows * row_bytes // pitch, pitch
    elif rows > 1 and stride != pitch or col + row_bytes > pitch:
        return flat(memory, offset, rows, row_bytes, stride)
    return f"{memory}[{row},{col // size}: {rows} x {row_bytes // size}]"


class Call:
    """A call of an operator, or a kernel, as JSON has it: what names its memory is `name`."""

    def __init__(self, said, name):
        self.said, self.name = said, name
        self.rest = {}  # (step, block): what the call uses besides its ranges
        for access in said.get("accesses", []):
            self.rest.setdefault((access["step"], access["block"]), []).append(access)

    def range(self, role, place):
        return f" {role}={self.name(self.said, place)}"

    def epilogue(self, step, block):
        """Operands that no range of the schedule names."""
        words = ""
        for access in self.rest.get((step, block), []):
            words += f" {'W' if access['write'] else 'R'}={self.name(self.said, access)}"
        return words

    def tile(self, step, index, tile):
        words = self.range("A", tile["a"]) if "a" in tile else ""
        words += self.range("B", step["b"]) if "b" in step else ""
        words += self.range("SCALE", tile["scale"]) if "scale" in tile else ""
        words += self.range("D", tile["d"]) if "d" in tile else ""
        words += self.epilogue(step["step"], index)
        if "wait" in tile:
            words += f" wait {tile['wait']}@{tile['wait_peer']} x{tile['wait_count']}"
        if "raise" in tile:
            words += f" raise {tile['raise']}@{tile['raise_peer']}"
        return words

    def step(self, step):
        """A step in a line, and its tiles in a line each; without its dependencies."""
        kind = step["kind"]
        what = KERNELS.get(kind, step.get("name", ""))
        words = f"{'KERNEL' if kind in KERNELS else kind}{' ' + what if what else ''} on {step['stream']}"
        words += " any_order" if step["any_order"] else ""
        words += " together" if step["together"] else ""
        if "from" in step:
            words += f" {step['from']}>{step['to']}"
        for i, place in enumerate(step.get("sources", [])):
            words += self.range(f"S{i}", place)
        for i, place in enumerate(step.get("scales", [])):
            words += self.range(f"SCALE{i}", place)
        words += self.range("A", step["src"]) if "src" in step else ""
        words += self.range("D", step["dst"]) if "dst" in step else ""
        words += self.epilogue(step["step"], None)
        if kind == "WAIT":
            words += f" wait {step['signal']}@{step['peer']} x{step['count']}"
        elif "signal" in step:
            words += f" raise {step['signal']}@{step['peer']}"
        words += f" {step['bytes']}B" if step.get("bytes") else ""
        return [words] + [f"     tile{self.tile(step, i, tile)}" for i, tile in enumerate(step.get("blocks", []))]

    def head(self):
        said = self.said
        if said.get("kernel"):
            return ""
        words = f" {said['kind']} rows {said['rows']} layout {said['layout']} epilogue {said['epilogue']}"
        words += f" types {','.join(said['types'])} {'graph' if said['graph'] else 'steps'}"
        for result in ("output", "gathered", "gathered_scales"):
            words += f" writes {self.name(said, said[result])}" if result in said else ""
        return words + "".join(f" {signal}={count}" for signal, count in sorted(said["raised"].items()))


class Order:
    """Dependencies less those that follow from others and from the order of each queue."""

    def __init__(self):
        self.clocks, self.places, self.last = {}, {}, {}

    def add(self, step, queue, after):
        """Returns those of `after` that are needed; they come before in the list."""
        before = self.last.get(queue)
        clock = dict(self.clocks[before]) if before is not None else {}
        needed = []
        for other in sorted(set(after), key=lambda other: self.places[other][1], reverse=True):
            on, place = self.places[other]
            if clock.get(on, -1) >= place:
                continue
            needed.append(other)
            for stream, reached in self.clocks[other].items():
                clock[stream] = max(clock.get(stream, -1), reached)
        self.places[step] = (queue, len(self.places))
        clock[queue] = self.places[step][1]
        self.clocks[step], self.last[queue] = clock, step
        return sorted(needed)


def add_epilogue(program):
    """A call by itself names no operands of its epilogue: those of each part of d, as a program names them."""
    accesses, bits, width = [], program["epilogue"], program.get("tensors", {}).get("output", {}).get("cols", 0)

    def add(step, block, place, **more):
        accesses.append({**place, "step": step, "block": block, **more})

    for step in program["steps"]:
        parts = [(step["dst"], None)] if step["kind"] == "REDUCE" else [(tile["d"], i) for i, tile in enumerate(step.get("blocks", []))]
        for place, block in parts:
            if place["place"] != "output" or not width:
                continue
            size = SIZES[program["tensors"]["output"]["dtype"]]
            vector = {"offset": place["offset"] % (width * size), "rows": 1}
            if bits & 1:
                add(step["step"], block, {**place, **vector, "place": "bias"}, write=False)
            if bits & 6:
                add(step["step"], block, {**place, "place": "aux"}, write=bool(bits & 2))
        if step["kind"] == "SUMS" and "src" in step:
            add(step["step"], None, {**step["src"], "place": "bias_grad", "offset": 0, "rows": 1}, write=True)
    program["accesses"] = accesses


def of_operator(program):
    """What names memory in a call by itself: matrices by rows and columns, the rest by bytes."""

    def name(said, place):
        memory = place["place"].replace(" ", "_")
        if memory == "symmetric_buffer":
            memory = f"symmetric@{place['rank']}"
        whole = {"bias": "output", "aux": "output"}.get(place["place"], place["place"])  # as large, or a row of it
        tensor = program["tensors"].get(whole)
        numbers = [place[key] for key in ("offset", "rows", "row_bytes", "stride")]
        if not tensor:
            return flat(memory, *numbers)
        return matrix(memory, tensor["dtype"], tensor["cols"] * SIZES.get(tensor["dtype"], 0), *numbers)

    return name


def show_call(said):
    """The lines of `lap show OPERATOR --json`."""
    lines = []
    for program in said["programs"]:
        add_epilogue(program)
        call, order = Call(program, of_operator(program)), Order()
        lines.append(f" rank {program['rank']} symmetric {program['symmetric_bytes']}B scratch {program['scratch_bytes']}B{call.head()}")
        for step in program["steps"]:
            after = order.add(step["step"], step["stream"], step["after"])
            words = call.step(step)
            words[0] += f" after {','.join(map(str, after))}" if after else ""
            lines += [f"  {step['step']} {words[0]}"] + words[1:]
    return lines


def of_program(said):
    """What names memory in a program: regions, and of these rows and columns."""
    regions = said["regions"]

    def resolve(region, offset, rows, row_bytes, stride):
        matrix_of = regions[region]
        size = SIZES.get(matrix_of.get("dtype"), 0)
        return matrix(f"{matrix_of['name'].replace(' ', '_')}#{region}", matrix_of.get("dtype"), matrix_of.get("stride", 0) * size,
                      offset, rows, row_bytes, stride)

    def name(call, place):
        numbers = [place[key] for key in ("offset", "rows", "row_bytes", "stride")]
        if "region" in place:
            return resolve(place["region"], *numbers)
        if place["place"] == "symmetric buffer":
            return flat(f"symmetric@{place['rank']}", *numbers)
        bound = call["places"].get(place["place"])
        if not bound:
            return flat(f"unbound_{place['place'].replace(' ', '_')}", *numbers)
        offset, rows, row_bytes, stride = numbers
        width, pitch = bound["row_bytes"], bound["stride"]
        if width == 0 or width == pitch:
            return resolve(bound["region"], bound["offset"] + offset, rows, row_bytes, stride)
        if row_bytes == stride and row_bytes * rows % width == 0:  # whole rows, which have gaps there
            rows, row_bytes = row_bytes * rows // width, width
        return resolve(bound["region"], bound["offset"] + offset // width * pitch + offset % width, rows, row_bytes, pitch)

    return name


def show_program(said):
    """The lines of `lap show train --json`: calls in order, with their steps; then regions and memory."""
    name, order, lines = of_program(said), Order(), []
    for fragment in said["fragments"]:
        number, call = fragment["fragment"], Call(fragment, name)
        group = fragment["group"]
        lines.append(f"call {number} {fragment['part']} layer {fragment['layer']} {fragment['name']} {fragment['method'] or ''}"
                     f" group {group['first']}+{group['stride']}x{group['size']}/{fragment['neighbours']} buffer {fragment['buffer']}"
                     f" iteration {fragment['iteration']} order {fragment['order']} section {fragment['section']}"
                     f" phase {fragment['phase']}{' serial' if fragment['serial'] else ''}{call.head()}")
        if "given" in fragment:
            given = fragment["given"]
            lines.append(f"  given alpha {given['alpha']} beta {given['beta']} index {given['index']} when {given['when']}"
                         f"{' weight_grad' if given['weight_grad'] else ''} reads {given['reads']} writes {given['writes']}"
                         + (f" keeps {given['keeps']}" if given.get("keeps") is not None else ""))
        links = {}
        for link in fragment["links"]:
            links.setdefault(link["step"], []).append((link["after_fragment"], link["after_step"]))
        for step in fragment["steps"]:
            after = [(number, before) for before in step["after"]] + links.get(step["step"], [])
            needed = order.add((number, step["step"]), step["stream"], after)
            words = call.step(step)
            words[0] += " after " + ",".join(f"{of}.{before}" for of, before in needed) if needed else ""
            lines += [f"  {step['step']} {words[0]}"] + words[1:]
    for i, region in enumerate(said["regions"]):
        lines.append(f"region {i} " + " ".join(f"{key}={value}" for key, value in region.items() if key != "bytes" or value < 1 << 60))
    for life in said["lifetimes"]:
        lines.append("lives " + " ".join(f"{key}={value}" for key, value in life.items()))
    said["memory"].pop("program_bytes")  # of the host: the size of structs
    lines.append(f"memory {json.dumps(said['memory'])} launches {said['repeated_launches']}")
    return lines


# ---- o1: calls ----

PLAIN = [""]
OPERATORS = {  # methods, each with the values of its knobs that lap check proves (lap_op_fields[].proved)
    "ag": ["serial", "ring", "ring:aggregate", "direct", "direct:num_splits=7", "fused", "fused:block_rows=3", "oneshot", "cublasmp"],
    "rs": ["serial", "ring", "pipeline", "pipeline:num_splits=1", "pipeline:num_splits=7", "pull", "pull:num_splits=7", "fused",
           "fused:block_rows=3", "oneshot", "cublasmp"],
    "ar": ["serial", "pipeline", "pipeline:num_splits=7", "direct", "fused", "fused:block_rows=3", "cublasmp"],
    "gemm": ["serial"],
    "bulk-ag": ["serial", "ring", "ring:aggregate", "direct", "fused"],
    "bulk-rs": ["serial", "direct"],
    "external-ag": ["serial", "ring", "ring:aggregate", "direct", "fused"],
    "external-rs": ["serial", "ring", "direct"],
}
EXTRAS = {  # layouts, epilogues, types and other fields
    "ag": ["--field layout=dgrad", "--field layout=dgrad,sharded=none", "--epilogue bias,gelu", "--epilogue dgelu,bias-grad",
           "--field gather_input=1", "--dtype float8_e4m3 --field gather_input=1,out_dtype=bfloat16", "--dtype bfloat16",
           "--field accumulate=1,out_dtype=float32 --dtype float16"],
    "rs": ["--field layout=dgrad", "--epilogue bias", "--dtype bfloat16 --epilogue bias,gelu", "--wire-dtype bfloat16",
           "--dtype float8_e4m3 --field out_dtype=bfloat16", "--dtype bfloat16 --wire-dtype float8_e5m2", "--field accumulate=1"],
    "ar": ["--field layout=dgrad", "--epilogue bias", "--dtype bfloat16", "--dtype bfloat16 --wire-dtype float8_e4m3",
           "--field background=1"],
    "gemm": ["--field layout=dgrad", "--field layout=wgrad", "--field layout=wgrad --epilogue bias-grad", "--epilogue bias,gelu",
             "--dtype float8_e4m3 --field out_dtype=bfloat16", "--field accumulate=1"],
    "bulk-ag": ["--field layout=wgrad", "--epilogue dgelu,bias-grad", "--dtype bfloat16", "--wire-dtype float8_e4m3",
                "--field background=1"],
    "bulk-rs": ["--epilogue bias-grad", "--dtype bfloat16", "--wire-dtype bfloat16", "--field accumulate=1"],
    "external-ag": ["--dtype bfloat16", "--wire-dtype float8_e5m2", "--field alltoall=1", "--field aside=1", "--field background=1"],
    "external-rs": ["--dtype bfloat16", "--wire-dtype bfloat16 --field y_dtype=float32", "--field alltoall=1", "--field background=1"],
}
CAPACITY = 37


def calls_of(operator, quick):
    """The words after `lap show` of the calls of an operator, without method and target."""
    ranks = [1, 2, 3, 5, 8]
    for size in [3, 4] if quick else ranks + [4]:
        rows = [CAPACITY, 0, size - 1] if quick else sorted({CAPACITY, 0, 1, size - 1})
        yield from (f"--ranks {size} --rows {m}" for m in rows)
    for extra in EXTRAS[operator]:
        for size in [2] if quick else [1, 2, 5]:
            yield f"--ranks {size} {extra}"


def o1_calls(tools, quick, operator, method, target):
    lines = []
    m = 4 * CAPACITY if "block_rows" in method else CAPACITY
    for words in calls_of(operator, quick):
        out, err, status = tools.run(["show", operator, str(m), "37", "29", "--method", method, "--target", target, "--json"] +
                                     words.split())
        lines.append(f"{operator} {m} 37 29 {words}")
        lines += show_call(json.loads(out)) if status == 0 else [f" status {status}: {err.strip()}"]
    return lines


# ---- grids ----

GPT = "--model gpt --layers 4 --hidden 24 --heads 12 --vocab 61 --seq 12 --global-batch 24 --lr 0.002 --lr-warmup-iters 2 --dtype fp32"
WIDE = "--model gpt --layers 2 --hidden 32 --heads 4 --vocab 64 --seq 16 --global-batch 8 --lr 0.002 --lr-warmup-iters 2 --dtype bf16"
LLAMA = "--model llama --layers 4 --hidden 32 --heads 8 --kv-heads 4 --vocab 61 --seq 12 --global-batch 8 --lr 0.002 --dtype fp32"
LAYER = "--heads 12 --head-dim 4 --seq 12 --batch 4"
QUICK = {"tp2", "cp4-a2a-p2p", "pp2-zb-v", "tp2-pp2-dp2-shared-zb-h1", "fp8-tp2-micro2", "llama-tp2-pp2", "recompute-selective-tp2-pp2"}
RULES = "--tp-comm-overlap-cfg rules.yaml"  # all twelve: nothing is left to be chosen by measuring
GRIDS = {
    "tp1": f"{GPT} {RULES} --tp 1",
    "tp2": f"{GPT} {RULES} --tp 2",
    "tp3-rs-dgrad": f"{GPT} --tp-comm-overlap-cfg other.yaml --tp 3",
    "tp4-serial": f"{GPT} --no-comm-overlap --tp 4",
    "tp2-whole-rows": f"{GPT} {RULES} --tp 2 --no-sequence-parallel",
    "cp2": f"{GPT} {RULES} --tp 1 --cp 2",
    "cp4-all-gather": f"{GPT} {RULES} --tp 1 --cp 4 --cp-comm-type all_gather",
    "tp2-cp2-a2a": f"{GPT} {RULES} --tp 2 --cp 2 --cp-comm-type a2a",
    "cp4-a2a-p2p": f"{GPT} {RULES} --tp 1 --cp 4 --cp-comm-type a2a+p2p",
    "pp2": f"{GPT} {RULES} --tp 1 --pp 2 --micro-batches 4",
    "pp2-interleaved": f"{GPT} {RULES} --tp 1 --pp 2 --micro-batches 4 --schedule interleaved",
    "pp2-zb-h1": f"{GPT} {RULES} --tp 1 --pp 2 --micro-batches 4 --schedule zb-h1",
    "pp2-zb-v": f"{GPT} {RULES} --tp 1 --pp 2 --micro-batches 4 --schedule zb-v",
    "pp4-eager": f"{GPT} {RULES} --tp 1 --pp 4 --micro-batches 6 --schedule 1f1b-eager",
    "pp2-serial": f"{GPT} --no-comm-overlap --tp 1 --pp 2 --micro-batches 4 --no-overlap-p2p",
    "dp2": f"{GPT} {RULES} --tp 1 --dp 2 --bucket-size 2000",
    "dp2-late-micro2": f"{GPT} {RULES} --tp 1 --dp 2 --micro-batches 2 --no-overlap-grad-sync",
    "dp3-shared": f"{GPT} {RULES} --tp 1 --dp 3 --distributed-optimizer --bucket-size 2000",
    "tp2-dp2-shared-layers": f"{GPT} {RULES} --tp 2 --dp 2 --distributed-optimizer --bucket-by layer",
    "dp2-shared-step": f"{GPT} {RULES} --tp 1 --dp 2 --distributed-optimizer --bucket-size 2000 --overlap-param-gather-with-optimizer-step",
    "dp2-shared-late": f"{GPT} {RULES} --tp 1 --dp 2 --distributed-optimizer --no-overlap-param-sync --bucket-size 2000",
    "tp2-cp2-pp2": f"{GPT} {RULES} --tp 2 --cp 2 --pp 2 --micro-batches 4",
    "tp2-pp2-dp2-shared-zb-h1": f"{GPT} {RULES} --tp 2 --pp 2 --dp 2 --micro-batches 4 --schedule zb-h1 --distributed-optimizer",
    "tp2-cp2-dp2": f"{GPT} {RULES} --tp 2 --cp 2 --dp 2",
    "recompute-full-tp2": f"{GPT} {RULES} --tp 2 --recompute full",
    "recompute-selective-tp2-pp2": f"{GPT} {RULES} --tp 2 --pp 2 --micro-batches 4 --recompute selective",
    "dp2-micro2-bf16": f"{WIDE} {RULES} --tp 1 --dp 2 --micro-batches 2 --grad-sync-dtype bf16",
    "fp8-tp2-micro2": f"{WIDE} {RULES} --tp 2 --fp8 --micro-batches 2",
    "fp8-current-tp2-dp2": f"{WIDE} {RULES} --tp 2 --dp 2 --fp8=current",
    "fp8-tp2-dp2-shared": f"{WIDE} {RULES} --tp 2 --dp 2 --fp8 --distributed-optimizer --fp8-param-gather",
    "fp8-pp2-dp2-zb-h1": f"{WIDE} {RULES} --tp 1 --pp 2 --dp 2 --micro-batches 2 --fp8 --schedule zb-h1",
    "llama-tp2-pp2": f"{LLAMA} {RULES} --tp 2 --pp 2 --micro-batches 2",
    "fp16-scaled-dropout-tp2": f"{WIDE.replace('bf16', 'fp16')} {RULES} --tp 2 --loss-scale dynamic --attention-dropout 0.1 "
                               "--hidden-dropout 0.1",
    "layers-tp2": f"--layer transformer --layers 2 {LAYER} {RULES} --tp 2 --dtype fp32",
    "mlp-sgd-tp2-dp2": f"--layer layernorm_mlp {LAYER} --tp-comm-overlap-cfg other.yaml --tp 2 --dp 2 --optimizer sgd --dtype fp32",
}
RESUMED = {"tp2", "pp2-zb-v", "tp2-dp2-shared-layers", "fp8-tp2-micro2", "fp8-pp2-dp2-zb-h1", "fp16-scaled-dropout-tp2"}


def write_rules(folder):
    column = {"fprop": "ring_exchange", "dgrad": "bulk", "wgrad": "bulk"}
    row = {"fprop": "pipeline", "dgrad": "ring_exchange", "wgrad": "external"}
    for name, first, others in (("rules.yaml", column, row),
                                ("other.yaml", dict(column, dgrad="pipeline", wgrad=None), dict(row, fprop="ring_exchange"))):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            for i, part in enumerate(("qkv", "proj", "fc1", "fc2")):
                for gemm, method in (others if i % 2 else first).items():
                    file.write(f"{part}_{gemm}: {'{method: ' + method + '}' if method else 'null'}\n")


def ranks_of(words):
    sizes = dict(zip(words[::1], words[1::1]))
    count = 1
    for option in ("--tp", "--cp", "--pp", "--dp"):
        count *= int(sizes.get(option, 1))
    return count


ABOUT = ("host", "cpu", "gpu", "version", "commit", "date", "seconds")
OF_HOST = ("program_bytes", "trace_bytes", "process_bytes", "bytes")  # sizes of structs, and sums with them


def o1_programs(tools, quick, grid, target):
    words, lines = GRIDS[grid].split(), []
    ranks = range(ranks_of(words))
    for rank in [0, ranks[-1]] if quick and len(ranks) > 2 else ranks:
        out, err, status = tools.run(["show", "train"] + words + ["--rank", str(rank), "--target", target, "--json"])
        lines.append(f"rank {rank}")
        lines += show_program(json.loads(out)) if status == 0 else [f"status {status}: {err.strip()}"]
    out, err, status = tools.run(["check", "train"] + words + ["--target", target, "--json"])
    said = json.loads(out) if out else {"status": status, "error": err}
    lines.append("check " + json.dumps({key: value for key, value in said.items() if key not in ABOUT + OF_HOST}))
    return lines


# ---- o2 ----


def sums_of(folder):
    """A hash of each tensor of a checkpoint, and of its files."""
    lines = []
    for path, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            with open(os.path.join(path, name), "rb") as file:
                data = file.read()
            label = os.path.relpath(os.path.join(path, name), folder)
            lines.append(f"{hashlib.sha256(data).hexdigest()[:16]} {label}")
            if not name.endswith(".safetensors"):
                continue
            length = int.from_bytes(data[:8], "little")
            for tensor, about in sorted(json.loads(data[8:8 + length]).items()):
                if tensor != "__metadata__":
                    begin, end = about["data_offsets"]
                    part = data[8 + length + begin:8 + length + end]
                    lines.append(f"{hashlib.sha256(part).hexdigest()[:16]} {label} {tensor} {about['dtype']} {about['shape']}")
    return lines


def numbers_of(out):
    """Losses and norms of a run as they are printed."""
    last = out.strip().splitlines()[-1] if out.strip() else ""
    return re.findall(r'"(loss|grad_norm)":([^,}]+)', last)


def train(tools, device, words, folder, **more):
    out, err, status = tools.run(["train"] + words + ["--device", device, "--no-predict", "--no-trace", "--json"],
                                 fake=device == "cuda", folder=folder, **more)
    lines = [f"{key} {value}" for key, value in numbers_of(out)]
    return lines + ([f"status {status}: {err.strip()}"] if status or err else [])


def o2(tools, quick, grid, device):
    words = GRIDS[grid].split()
    saves = "--model" in words  # only models are saved
    with tempfile.TemporaryDirectory(dir=tools.work) as folder:
        write_rules(folder)
        lines = train(tools, device, words + ["--iters", "4"] + (["--save", "whole"] if saves else []), folder)
        lines += sums_of(os.path.join(folder, "whole")) if saves else []
        if grid in RESUMED and saves:
            lines.append("resumed")
            lines += train(tools, device, words + ["--iters", "2", "--save", "parts"], folder)
            lines += train(tools, device, words + ["--iters", "4", "--load", "parts", "--save", "parts"], folder)
            lines += sums_of(os.path.join(folder, "parts"))
    return lines


# ---- o5 ----

PLANS = {
    "llama-8b": "--model llama-8b --gpus 8 --tp 2 --pp 2 --cp 1 --micro-batch 1 --global-batch 32",
    "llama-8b-cp": "--model llama-8b --gpus 16 --tp 2 --cp 2 --pp 2 --micro-batch 1 --global-batch 32 --seq 16384",
    "llama-8b-fp8": "--model llama-8b --gpus 8 --tp 4 --pp 1 --cp 1 --precision fp8 --global-batch 32 --recompute selective",
    "llama-70b": "--model llama-70b --gpus 64 --tp 8 --pp 4 --cp 1 --virtual-pp 2 --micro-batch 1 --global-batch 128",
    "llama-70b-serial": "--model llama-70b --gpus 64 --tp 8 --pp 4 --cp 1 --micro-batch 1 --global-batch 128 --no-overlap",
    "gpt3-175b": "--model gpt3-175b --gpus 64 --tp 8 --pp 8 --cp 1 --micro-batch 1 --global-batch 64 --schedule zb-h1 --recompute full",
}
MACHINES = ["h100-sxm", "a100-sxm"]


def o5_times(tools, quick, machine):
    lines = []
    for name, words in PLANS.items():
        out, err, status = tools.run(["plan"] + words.split() + ["--gpu", machine, "--explain", "--json"])
        said = json.loads(out) if status == 0 else {"status": status, "error": err.strip()}
        lines.append(name + " " + json.dumps({key: value for key, value in said.items() if key not in ABOUT}))
    for operator, methods in OPERATORS.items():
        for method, target, size in itertools.product(methods, ["cuda", "nccl"], [2] if quick else [2, 4, 8]):
            words = [operator, "4096", "3072", "2048", "--dtype", "bfloat16", "--method", method, "--ranks", str(size),
                     "--target", target]
            out, err, status = tools.run(["show"] + words + ["--predict", machine, "--json"])
            said = f"{json.loads(out)['predicted_us']!r} us" if status == 0 else f"status {status}: {err.strip()}"
            lines.append(f"{' '.join(words)} {said}")
    return lines


def o5_grids(tools, _quick, grid):
    """Of the programs of a step, and of each of its calls on rank 0, on a machine description."""
    lines = []
    for machine in MACHINES:
        words = ["show", "train"] + GRIDS[grid].split() + ["--target", "cuda", f"--predict={machine}", "--json"]
        out, err, status = tools.run(words)
        if status != 0:
            lines.append(f"{machine} status {status}: {err.strip()}")
            continue
        said = json.loads(out)
        lines.append(f"{machine} {said['predicted_ms']!r} ms")
        lines += [f"  {call['fragment']} {call['name']} {call['begin_ms']!r} {call['end_ms']!r}" for call in said["fragments"]]
    return lines


def o5_counts(tools, quick, grid):
    with tempfile.TemporaryDirectory(dir=tools.work) as folder:
        write_rules(folder)
        failed = [line for line in train(tools, "cuda", GRIDS[grid].split() + ["--iters", "4"], folder,
                                         FAKE_COUNTS=os.path.join(folder, "counts"))
                  if line.startswith("status")]
        path = os.path.join(folder, "counts")
        counts = open(path, encoding="utf-8").read().splitlines() if os.path.exists(path) else []
    return failed + sorted(counts)

# ---- o6 ----

# Commands that fail, or are refused; $L is lap.
FAILURES = """
$L nonsense
$L show
$L show agg 8 8 8
$L show ag 8 8
$L show ag 8 8 0
$L show ag 8 8 8 --ranks 65
$L show ag 8 8 8 --method rnig
$L show rs 8 8 8 --method ring:num_splits=3
$L show ag 8 8 8 --method ring:aggregate --ranks 3
$L show ag 8 8 8 --method fused --target nccl --field block_rows=x
$L show ag 8 8 8 --field layout=sideways
$L show ag 8 8 8 --rows 9
$L show ag 8 8 8 --target gpu
$L show ag 8 8 8 --after nothing
$L show ag 8 8 8 --svg a --json
$L show ag 8 8 8 --epilogue gelu,dgelu
$L show ag 8 8 8 --predict h100-sxm
$L show train --rank 4
$L show pipeline --ranks 0
$L check all --ranks 9:3
$L check ag --method cublasmp
$L check train --tp 3 --heads 4
$L check train --model gpt --pp 3 --layers 2
$L check train --model gpt --pp 2 --schedule interleaved --micro-batches 3 --layers 4
$L check pipeline --schedule none.csv
$L bench ag 8 8
$L bench ag 128 64 64 --ranks 2 --iters 0
$L bench ag 128 64 64 --ranks 2 --method ring,rnig
$L bench ag 128 64 64 --ranks 2 --dtype float8_e4m3 --wire-dtype bfloat16
$L bench ag 128 64 64 --ranks 2 --link 2GB
$L bench ag 128 64 64 --ranks 2 --timeline missing/a.svg
$L bench ag 128 64 64 --ranks 2 --device gpu
$L bench ag 128 64 64 --ranks 2 --transport nothing
LAP_TRANSPORT=nothing $L bench ag 128 64 64 --ranks 2
LAP_TIMEOUT_S=soon $L bench ag 128 64 64 --ranks 2
LAP_DEVICE=gpu $L bench ag 128 64 64 --ranks 2
$L bench ag 2000000000 2000000000 2000000000 --ranks 2
$L train --tp 0
$L train --layer nothing
$L train --model gpt --tp 5
$L train --model gpt --cp 2 --cp-comm-type a2a --heads 3 --hidden 24
$L train --model gpt --pp 2 --schedule none
$L train --model gpt --batch 3 --dp 2
$L train --layer transformer --cp 2
$L train --model gpt --dp 2 --fp8-param-gather
$L train --model gpt --kv-heads 5
$L train --model gpt --lr -1
$L train --model gpt --loss-scale never
$L train --model gpt --attention-dropout 1.5
$L train --model gpt --data missing.bin
$L train --model gpt --load missing --iters 2
$L train --model gpt --tp-comm-overlap-cfg bad.yaml --tp 2
$L train --model gpt --config missing.yaml
$L train --model gpt --layers 1 --iters 2 --keep 2
$L train --model gpt --layers 1 --hidden 24 --heads 4 --seq 8 --iters 2 --tp 1 --save file
$L train --model gpt --layers 1 --hidden 24 --heads 4 --seq 8 --iters 2 --tp 1 --load broken
$L train --model gpt --layers 1 --hidden 24 --heads 4 --seq 8 --vocab 61 --iters 6 --tp 1 --lr 1e30 --clip-grad 0 --no-predict --quiet
$L train --model gpt --layers 1 --hidden 24 --heads 4 --seq 8 --vocab 61 --iters 2 --tp 2 --device cuda --transport shm
$L data missing.txt --output tokens.bin
$L plan
$L plan --model llama-9b
$L plan --model llama-8b --gpus 7 --tp 2
$L plan --model llama-405b --gpus 1
$L plan --model llama-8b --gpu h1
$L tune --tp 0
$L calibrate --ranks 0
$L report missing.json
$L run -n 0 true
$L run -n 2 missing-program
$L run -n 2 sh -c 'test $LAP_RANK = 0 || kill -9 $$; sleep 20'
$L run -n 2 sh -c 'test $LAP_RANK = 0 || exit 7; sleep 20'
$L run -n 2 sh -c 'test $LAP_RANK = 0 || exec $L bench ag 64 32 32 --iters 3; exec $L bench rs 64 32 32 --iters 3'
$L run -n 2 sh -c 'test $LAP_RANK = 0 || exec $L train --tp 2 --heads 4 --seq 16 --lr 0.5; exec $L train --tp 2 --heads 4 --seq 16'
$L run -n 2 sh -c 'test $LAP_RANK = 0 || exit 0; exec $L bench ag 64 32 32 --iters 3 --timeout 2'
ulimit -v 300000; OPENBLAS_NUM_THREADS=1 $L bench ag 32768 8192 8192 --ranks 2 --transport self
"""


def same(text, tools):
    """What differs from run to run and machine to machine is not compared."""
    text = text.replace(tools.lap, "lap").replace(tools.work, "DIR")
    text = re.sub(r"\b(pid|process) \d+", r"\1 N", text)
    text = re.sub(r"rank \d+ (\(pid N\) exited with status 1\b)", r"a rank \1", text)  # the first of those that fail
    text = re.sub(r"\b[\d.]+(e[+-]\d+)? (ms|s|us|bytes|[KMGT]i?B|threads?)\b", r"N \2", text)
    return re.sub(r"/tmp/[\w./-]+", "PATH", text)


def o6_prepare(tools):
    with open(os.path.join(tools.work, "bad.yaml"), "w", encoding="utf-8") as file:
        file.write("qkv_fprop: {method: ring_exchange}\nfc1_fprop: {method: pipeline}\n")
    with open(os.path.join(tools.work, "file"), "w", encoding="utf-8") as file:
        file.write("no folder\n")
    os.makedirs(os.path.join(tools.work, "broken", "step-00000002"))
    with open(os.path.join(tools.work, "broken", "step-00000002", "manifest.json"), "w", encoding="utf-8") as file:
        file.write('{"lap_checkpoint":2,"step":2}\n')


def o6(tools, line):
    environment = dict(tools.environment(False), L=tools.lap)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment, cwd=tools.work, timeout=120,
                          stdin=subprocess.DEVNULL, check=False)
    text = same(done.stderr if done.stderr.strip() or not done.returncode else done.stdout, tools)
    return [line, f"  status {done.returncode}"] + sorted(f"  {text}" for text in text.strip().splitlines())


# ---- all of it ----

PARTS = ["o1-calls", "o1-programs", "o2-cpu", "o2-fake", "o5-times", "o5-grids", "o5-counts", "o6"]


def jobs_of(part, quick):
    """File names, and what fills each: a function and its arguments."""
    grids = [grid for grid in GRIDS if not quick or grid in QUICK]
    if part == "o1-calls":
        for operator, methods in OPERATORS.items():
            for method, target in itertools.product(methods, ["cpu", "cuda", "nccl"]):
                yield f"{operator}-{method.replace(':', '-')}-{target}", o1_calls, (quick, operator, method, target)
    elif part == "o1-programs":
        for grid, target in itertools.product(grids, ["cpu", "cuda"]):
            yield f"{grid}-{target}", o1_programs, (quick, grid, target)
    elif part in ("o2-cpu", "o2-fake"):
        for grid in grids:
            yield grid, o2, (quick, grid, "cpu" if part == "o2-cpu" else "cuda")
    elif part == "o5-times":
        for machine in MACHINES[:1] if quick else MACHINES:
            yield machine, o5_times, (quick, machine)
    elif part in ("o5-grids", "o5-counts"):
        for grid in grids:
            yield grid, o5_grids if part == "o5-grids" else o5_counts, (quick, grid)
    else:
        for line in FAILURES.strip().splitlines():
            yield "failures", o6, (line,)


def work_on(job):
    tools, function, arguments = job
    try:
        return function(tools, *arguments)
    except Exception as error:
        raise RuntimeError(f"{function.__name__} {' '.join(map(str, arguments))}: {type(error).__name__}: {error}") from error


def hash_of(path, folder):
    with open(path, "rb") as file:
        return f"{hashlib.sha256(file.read()).hexdigest()[:32]}  {os.path.relpath(path, folder)}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("dir")
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--hashes", metavar="FILE", help="also write a hash of each file of o1 into FILE")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    parts = [part for part in PARTS if not arguments.parts or any(part.startswith(given) for given in arguments.parts)]
    unknown = [given for given in arguments.parts if not any(part.startswith(given) for part in PARTS)]
    if unknown:
        parser.error(f"no part is called '{unknown[0]}'; expected some of {', '.join(PARTS)}")
    work = tempfile.mkdtemp(prefix="oracle-")
    tools = Tools(arguments.build, work)
    if not os.access(tools.lap, os.X_OK):
        parser.error(f"there is no {tools.lap}: expected a folder in which lap was built")
    write_rules(work)
    o6_prepare(tools)
    try:
        paths, jobs = [], []
        for part in parts:
            folder = os.path.join(arguments.dir, part)
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
            for name, function, words in jobs_of(part, arguments.quick):
                paths.append(os.path.join(folder, name + ".txt"))
                jobs.append((tools, function, words))
        with concurrent.futures.ProcessPoolExecutor(arguments.jobs) as pool:
            for path, lines in zip(paths, pool.map(work_on, jobs)):
                with open(path, "a", encoding="utf-8") as file:
                    file.write("\n".join(lines) + "\n")
        if arguments.hashes:
            with open(arguments.hashes, "w", encoding="utf-8") as file:
                file.writelines(hash_of(path, arguments.dir) for path in sorted(set(paths)) if "o1-" in path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
