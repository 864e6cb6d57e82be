#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make bench-gpu`: Lapstrake beside PyTorch's async tensor parallelism on this machine's GPUs, as one table.

For each number of ranks PyTorch runs once over all shapes, then `lap bench` over the same shapes and operators; with
--rounds N all of it N times, so that the two alternate, and medians count. What is compared is the whole operator over
the GEMM alone on the same data, each measured by its own program. --from-torch also calls our operators from PyTorch
(bench/torch_ops.py). Rows go to a file, one JSON object per line.
"""
import argparse
import importlib.util
import json
import math
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
SHAPES = ["4096,49152,12288", "8192,16384,4096", "4096,8192,4096", "1024,49152,12288"]
TOLERANCE = 1.02  # how much slower than PyTorch is still noise
METHODS = ["serial", "ring", "direct", "pipeline", "pull", "fused"]


def fail(sentence):
    sys.exit(f"bench-gpu: {sentence}")


def progress(text, begin):
    print(f"bench-gpu: {time.monotonic() - begin:5.1f} s  {text}", file=sys.stderr, flush=True)


def read_shape(text):
    try:
        m, n, k = map(int, text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is no shape such as {SHAPES[0]}") from error
    return m, n, k


def read_ranks(text):
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is no list such as 2,4,8") from error


def options():
    parser = argparse.ArgumentParser(prog="bench-gpu", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--lap", default="build/lap", help="the command (default build/lap)")
    parser.add_argument("--peer", default=HERE / "peers" / "torch_async_tp.py", help="the script of the peer")
    parser.add_argument("--ranks", type=read_ranks, default=[2, 4, 8], help="numbers of ranks (default 2,4,8)")
    parser.add_argument("--shape", type=read_shape, action="append", metavar="M,N,K",
                        help="of AG+GEMM; GEMM+RS has M,K,N; may be repeated (default the four of the table)")
    parser.add_argument("--op", choices=["ag", "rs"], action="append", help="only this operator of ours")
    parser.add_argument("--method", default="all,auto", help="methods of lap bench (default all,auto)")
    parser.add_argument("--iters", type=int, default=10, help="timed rounds of lap bench (default 10)")
    parser.add_argument("--rounds", type=int, default=1, help="how often to do all of it (default 1)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one program (default 120)")
    parser.add_argument("--from-torch", action="store_true", help="call our operators from PyTorch, too")
    parser.add_argument("--library", help="with --from-torch: liblap.so (default: beside the command)")
    parser.add_argument("--no-peer", action="store_true", help="measure Lapstrake alone")
    parser.add_argument("--json", default="bench-gpu.jsonl", help="where the rows go (default bench-gpu.jsonl)")
    return parser.parse_args()


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def run(command, timeout, environment=None):
    """What a program prints as JSON, and why it failed, if it did."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                              text=True, timeout=timeout, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return [], f"took more than {timeout:g} s"
    if not done.returncode:
        return json_lines(done.stdout), None
    words = done.stderr.strip().splitlines() or ["no word"]
    for line in words[-20:]:
        print(f"    {line}", file=sys.stderr)
    return json_lines(done.stdout), f"exit status {done.returncode}: {words[0]}"


def check_machine(args):
    """The facts of the machine, or a sentence about what is missing."""
    if not os.access(args.lap, os.X_OK):
        fail(f"there is no {args.lap}: build it with make")
    lines, why = run([args.lap, "info", "--json"], args.timeout)
    if not lines:
        fail(f"{args.lap} info failed: {why}")
    gpu = lines[0].get("gpu", {})
    if not gpu.get("gpus"):
        fail(f"there is no GPU to measure: {gpu.get('why_none', 'lap info shows none')}")
    if not args.no_peer and importlib.util.find_spec("torch") is None:
        fail("PyTorch is not installed for this python3; --no-peer measures Lapstrake alone")
    return gpu


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Table:
    """All that was measured, by (op, m, n, k, ranks)."""

    def __init__(self):
        self.ours, self.peer, self.from_torch, self.failures = {}, {}, {}, []

    def add(self, where, line):
        key = (line["op"], line["m"], line["n"], line["k"], line["ranks"])
        where.setdefault(key, []).append(line)

    def fail(self, what, why):
        self.failures.append(f"{what}: {why}")
        print(f"bench-gpu: {what}: {why}", file=sys.stderr, flush=True)


def measure_torch(args, table, where, script, what, ranks, shapes):
    command = [args.lap, "run", "--gpu-share", "--no-prefix", "-n", str(ranks), sys.executable, str(script)]
    command += [",".join(map(str, shape)) for shape in shapes]
    library = args.library or pathlib.Path(args.lap).resolve().parent / "liblap.so"
    path = os.pathsep.join(filter(None, [str(HERE.parent / "python"), os.environ.get("PYTHONPATH")]))
    environment = dict(os.environ, MASTER_PORT=str(free_port()), LAPSTRAKE_LIBRARY=str(library), PYTHONPATH=path)
    lines, why = run(command, args.timeout, environment)
    for line in lines:
        table.add(where, line)
    if why:
        table.fail(f"{what} on {ranks} ranks", why)


def measure_ours(args, table, ranks, shape):
    m, n, k = shape
    for op in args.op or ["ag", "rs"]:
        sizes = (m, n, k) if op == "ag" else (m, k, n)
        command = [args.lap, "bench", op, *map(str, sizes), "--device", "cuda", "--ranks", str(ranks), "--dtype",
                   "bfloat16", "--method", args.method, "--iters", str(args.iters), "--json"]
        lines, why = run(command, args.timeout)
        for line in lines:
            table.add(table.ours, line)
        if why or not lines:
            table.fail(" ".join(command[1:6]) + f" on {ranks} ranks", why or "printed no result")


def median_of(lines, value):
    return statistics.median(value(line) for line in lines)


def make_row(key, ours, peer, from_torch):
    """One row of the table out of the rounds; None for what was not measured."""
    row = dict(zip(("op", "m", "n", "k", "ranks"), key))
    row.update(gemm_ms=None, methods={}, auto=None, auto_ms=None, picked=None, torch=None, torch_ms=None,
               torch_gemm_ms=None, torch_over_auto=None, from_torch_ms=None, torch_over_from_torch=None)
    if ours:
        row["gemm_ms"] = median_of(ours, lambda line: line["gemm_ms"])
        for name in [method["method"] for method in ours[0]["methods"]]:
            def of(line, name=name):
                return next(method for method in line["methods"] if method["method"] == name)
            row["methods"][name] = median_of(ours, lambda line: of(line)["total_ms"] / line["gemm_ms"])
            if name == "auto":
                row["auto"], row["picked"] = row["methods"].pop("auto"), of(ours[-1])["picked"]
                row["auto_ms"] = median_of(ours, lambda line: of(line)["total_ms"])
    if peer:
        row["torch"] = median_of(peer, lambda line: line["ratio"])
        row["torch_ms"] = median_of(peer, lambda line: line["total_ms"])
        row["torch_gemm_ms"] = median_of(peer, lambda line: line["gemm_ms"])
    if from_torch:
        row["from_torch_ms"] = median_of(from_torch, lambda line: line["total_ms"])
        if row["torch_ms"]:
            row["torch_over_from_torch"] = row["torch_ms"] / row["from_torch_ms"]
    if row["auto_ms"] and row["torch_ms"]:
        row["torch_over_auto"] = row["torch_ms"] / row["auto_ms"]
    return row


def geomean(rows, key):
    values = [row[key] for row in rows if row[key]]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def cell(value, width=8, digits=2):
    return f"{value:{width}.{digits}f}" if value else f"{'-':>{width}}"


def print_table(rows):
    called = any(row["from_torch_ms"] for row in rows)
    columns = METHODS + sorted({name for row in rows for name in row["methods"]} - set(METHODS))
    print(f"{'op':8}{'M':>7}{'N':>7}{'K':>7}{'P':>4}{'GEMM ms':>10}{'auto':>8} {'picked':18}"
          + "".join(f"{name:>{max(9, len(name) + 1)}}" for name in columns)
          + f"{'PyTorch':>9}{'PyTorch/auto':>14}" + (f"{'/from PyTorch':>15}" if called else ""))
    for row in rows:
        mark = " !" if row["torch_over_auto"] and row["torch_over_auto"] * TOLERANCE < 1 else ""
        print(f"{row['op']:8}{row['m']:7}{row['n']:7}{row['k']:7}{row['ranks']:4}{cell(row['gemm_ms'], 10, 3)}"
              f"{cell(row['auto'])} {row['picked'] or '-':18}"
              + "".join(cell(row["methods"].get(name), max(9, len(name) + 1)) for name in columns)
              + f"{cell(row['torch'], 9)}{cell(row['torch_over_auto'], 14)}"
              + (cell(row["torch_over_from_torch"], 15) if called else "") + mark)


def print_means(rows):
    for name, part in [("ag_gemm", [row for row in rows if row["op"] == "ag_gemm"]),
                       ("gemm_rs", [row for row in rows if row["op"] == "gemm_rs"]), ("all", rows)]:
        print(f"geometric mean, {name:8} auto {cell(geomean(part, 'auto'), 5, 3)}  PyTorch "
              f"{cell(geomean(part, 'torch'), 5, 3)}  PyTorch/auto {cell(geomean(part, 'torch_over_auto'), 5, 3)}")
    slower = [row for row in rows if row["torch_over_auto"] and row["torch_over_auto"] * TOLERANCE < 1]
    both = sum(1 for row in rows if row["torch_over_auto"])
    if both:
        print(f"auto is slower than PyTorch, by more than {TOLERANCE - 1:.0%}, in {len(slower)} of {both} rows (!).")
    print("Methods and PyTorch: whole operator over GEMM alone, 1 is free. PyTorch/auto: its time over ours.")
    if any(row["from_torch_ms"] for row in rows):
        print("/from PyTorch: its time over that of ours called from PyTorch.")


def main():
    args = options()
    gpu = check_machine(args)
    shapes = args.shape or [read_shape(text) for text in SHAPES]
    begin, table = time.monotonic(), Table()
    for number in range(args.rounds):
        for ranks in args.ranks:
            if not args.no_peer:
                progress(f"round {number + 1}, {ranks} ranks: PyTorch, {len(shapes)} shapes", begin)
                measure_torch(args, table, table.peer, args.peer, "PyTorch", ranks, shapes)
            if args.from_torch:
                progress(f"round {number + 1}, {ranks} ranks: Lapstrake from PyTorch", begin)
                measure_torch(args, table, table.from_torch, HERE / "torch_ops.py", "Lapstrake from PyTorch", ranks,
                              shapes)
            for shape in shapes:
                progress(f"round {number + 1}, {ranks} ranks: Lapstrake, {','.join(map(str, shape))}", begin)
                measure_ours(args, table, ranks, shape)
    keys = list(dict.fromkeys([*table.ours, *table.peer, *table.from_torch]))
    cases = list(dict.fromkeys(key[:4] for key in keys))
    keys.sort(key=lambda key: (key[0], cases.index(key[:4]), key[4]))
    rows = [make_row(key, table.ours.get(key), table.peer.get(key), table.from_torch.get(key)) for key in keys]
    wrong = [f"{line['op']} {method['method']} on {line['ranks']} ranks gives wrong results"
             for lines in table.ours.values() for line in lines for method in line["methods"] if not method["ok"]]
    with open(args.json, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    print(f"{gpu.get('gpu_0', 'GPU')}, {gpu['gpus']} of them; driver {gpu.get('driver', '?')}; bfloat16")
    print_table(rows)
    print_means(rows)
    progress(f"done; the rows are in {args.json}", begin)
    for sentence in [*wrong, *table.failures]:
        print(f"bench-gpu: FAILED: {sentence}", file=sys.stderr)
    sys.exit(1 if wrong or table.failures or not rows else 0)


main()
