#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make bench-gpu`: Lapstrake beside PyTorch's async tensor parallelism and cuBLASMp on this machine's GPUs, as one table.

For each number of ranks PyTorch runs once over all shapes, then `lap bench` over the same shapes and operators; with
--rounds N all of it N times, so that the two alternate, and medians count. What is compared is the whole operator over
the GEMM alone on the same data, each measured by its own program. --from-torch also calls our operators from PyTorch
(bench/torch_ops.py). Where `lap info` finds NCCL, our methods that copy run over it, too, and where it finds cuBLASMp, so does
that, by the method `cublasmp` with each of its algorithms. Rows go to a file, one JSON object per line.
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
TOLERANCE = 1.02  # how much slower than a peer is still noise
OVER_NCCL = 1.15  # how much slower over NCCL than over cuda_ipc a method that copies may be
METHODS = ["serial", "ring", "direct", "pipeline", "pull", "fused"]
COPYING = {"ag": ["ring", "direct"], "rs": ["ring", "pipeline"]}
CUBLASMP = {"ag": ["cublasmp", "cublasmp:algorithm=split_p2p", "cublasmp:algorithm=no_overlap"],
            "rs": ["cublasmp", "cublasmp:algorithm=no_overlap"]}  # it refuses split_p2p there


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
    parser.add_argument("--no-torch", action="store_true", help="without PyTorch; cuBLASMp stays")
    parser.add_argument("--no-nccl", action="store_true", help="nothing over NCCL, and so no cuBLASMp")
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
    args.no_torch = args.no_torch or args.no_peer
    if not args.no_torch and importlib.util.find_spec("torch") is None:
        fail("PyTorch is not installed for this python3; --no-peer measures Lapstrake alone, --no-torch with cuBLASMp")
    args.nccl = not args.no_nccl and gpu.get("nccl", "").startswith("yes")
    args.cublasmp = args.nccl and not args.no_peer and gpu.get("cublasmp", "").startswith("yes")
    return gpu


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Table:
    """All that was measured, by (op, m, n, k, ranks)."""

    def __init__(self):
        self.ours, self.peer, self.from_torch, self.nccl, self.cublasmp, self.failures = {}, {}, {}, {}, {}, []

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


def measure_bench(args, table, where, ranks, shape, op, methods, more=()):
    m, n, k = shape
    sizes = (m, n, k) if op == "ag" else (m, k, n)
    command = [args.lap, "bench", op, *map(str, sizes), "--device", "cuda", "--ranks", str(ranks), "--dtype",
               "bfloat16", "--method", methods, "--iters", str(args.iters), "--json", *more]
    lines, why = run(command, args.timeout, dict(os.environ, NCCL_MULTI_RANK_GPU_ENABLE="1"))
    for line in lines:
        table.add(where, line)
    if why or not lines:
        table.fail(" ".join([*command[1:6], *more]) + f" on {ranks} ranks", why or "printed no result")


def measure_ours(args, table, ranks, shape):
    for op in args.op or ["ag", "rs"]:
        measure_bench(args, table, table.ours, ranks, shape, op, args.method)
        over_nccl = ("--transport", "nccl", "--no-trace")
        if args.nccl:
            measure_bench(args, table, table.nccl, ranks, shape, op, ",".join(COPYING[op]), over_nccl)
        if args.cublasmp:
            measure_bench(args, table, table.cublasmp, ranks, shape, op, ",".join(CUBLASMP[op]), over_nccl)


def median_of(lines, value):
    return statistics.median(value(line) for line in lines)


def times_of(lines):
    """The median time of each method that lap bench has measured."""
    return {name: median_of(lines, lambda line, name=name: next(
        method["total_ms"] for method in line["methods"] if method["method"] == name))
        for name in [method["method"] for method in lines[0]["methods"]]}


def add_nccl(row, ours, nccl, cublasmp):
    """What ran over NCCL: our methods that copy, over cuda_ipc; and the best of cuBLASMp's algorithms."""
    row.update(nccl_ms={}, nccl_over_ipc=None, cublasmp_ms=None, cublasmp=None, cublasmp_over_auto=None)
    here = times_of(ours) if ours else {}
    if nccl:
        row["nccl_ms"] = {name: time for name, time in times_of(nccl).items() if name in COPYING["ag"] + COPYING["rs"]}
        row["nccl_over_ipc"] = max((time / here[name] for name, time in row["nccl_ms"].items() if name in here), default=None)
    if cublasmp:
        theirs = {name: time for name, time in times_of(cublasmp).items() if name.startswith("cublasmp")}
        row["cublasmp"] = min(theirs, key=theirs.get)
        row["cublasmp_ms"] = theirs[row["cublasmp"]]
        row["cublasmp_over_auto"] = row["cublasmp_ms"] / row["auto_ms"] if row["auto_ms"] else None


def make_row(key, table):
    """One row of the table out of the rounds; None for what was not measured."""
    ours, peer, from_torch = table.ours.get(key), table.peer.get(key), table.from_torch.get(key)
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
    add_nccl(row, ours, table.nccl.get(key), table.cublasmp.get(key))
    return row


def geomean(rows, key):
    values = [row[key] for row in rows if row[key]]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def cell(value, width=8, digits=2):
    return f"{value:{width}.{digits}f}" if value else f"{'-':>{width}}"


def slower(row, key):
    """Whether ours is slower than the peer, by more than noise."""
    return bool(row[key]) and row[key] * TOLERANCE < 1


def print_table(rows):
    more = [(title, key) for title, key in (("/from PyTorch", "torch_over_from_torch"), ("cuBLASMp/auto", "cublasmp_over_auto"),
                                            ("NCCL/ipc", "nccl_over_ipc")) if any(row[key] for row in rows)]
    columns = METHODS + sorted({name for row in rows for name in row["methods"]} - set(METHODS))
    print(f"{'op':8}{'M':>7}{'N':>7}{'K':>7}{'P':>4}{'GEMM ms':>10}{'auto':>8} {'picked':18}"
          + "".join(f"{name:>{max(9, len(name) + 1)}}" for name in columns)
          + f"{'PyTorch':>9}{'PyTorch/auto':>14}" + "".join(f"{title:>15}" for title, _ in more))
    for row in rows:
        mark = " !" if any(slower(row, key) for key in ("torch_over_auto", "cublasmp_over_auto")) else ""
        print(f"{row['op']:8}{row['m']:7}{row['n']:7}{row['k']:7}{row['ranks']:4}{cell(row['gemm_ms'], 10, 3)}"
              f"{cell(row['auto'])} {row['picked'] or '-':18}"
              + "".join(cell(row["methods"].get(name), max(9, len(name) + 1)) for name in columns)
              + f"{cell(row['torch'], 9)}{cell(row['torch_over_auto'], 14)}"
              + "".join(cell(row[key], 15) for _, key in more) + mark)


def print_means(rows):
    for name, part in [("ag_gemm", [row for row in rows if row["op"] == "ag_gemm"]),
                       ("gemm_rs", [row for row in rows if row["op"] == "gemm_rs"]), ("all", rows)]:
        print(f"geometric mean, {name:8} auto {cell(geomean(part, 'auto'), 5, 3)}  PyTorch "
              f"{cell(geomean(part, 'torch'), 5, 3)}  PyTorch/auto {cell(geomean(part, 'torch_over_auto'), 5, 3)}")
    for peer, key in (("PyTorch", "torch_over_auto"), ("cuBLASMp", "cublasmp_over_auto")):
        both = sum(1 for row in rows if row[key])
        if both:
            print(f"auto is slower than {peer}, by more than {TOLERANCE - 1:.0%}, in "
                  f"{sum(slower(row, key) for row in rows)} of {both} rows (!).")
    print("Methods and PyTorch: whole operator over GEMM alone, 1 is free. PyTorch/auto: its time over ours.")
    if any(row["from_torch_ms"] for row in rows):
        print("/from PyTorch: its time over that of ours called from PyTorch.")
    if any(row["cublasmp_ms"] for row in rows):
        print(f"cuBLASMp/auto: the time of its best algorithm over ours; geometric mean {cell(geomean(rows, 'cublasmp_over_auto'), 5, 3)}.")
    ratios = [row["nccl_over_ipc"] for row in rows if row["nccl_over_ipc"]]
    if ratios:
        print(f"NCCL/ipc: the methods that copy (ring, direct, pipeline) over transport nccl against cuda_ipc, the larger of two; at most "
              f"{max(ratios):.2f}, above {OVER_NCCL} in {sum(ratio > OVER_NCCL for ratio in ratios)} of {len(ratios)} rows.")


def main():
    args = options()
    gpu = check_machine(args)
    shapes = args.shape or [read_shape(text) for text in SHAPES]
    begin, table = time.monotonic(), Table()
    for number in range(args.rounds):
        for ranks in args.ranks:
            if not args.no_torch:
                progress(f"round {number + 1}, {ranks} ranks: PyTorch, {len(shapes)} shapes", begin)
                measure_torch(args, table, table.peer, args.peer, "PyTorch", ranks, shapes)
            if args.from_torch:
                progress(f"round {number + 1}, {ranks} ranks: Lapstrake from PyTorch", begin)
                measure_torch(args, table, table.from_torch, HERE / "torch_ops.py", "Lapstrake from PyTorch", ranks,
                              shapes)
            for shape in shapes:
                progress(f"round {number + 1}, {ranks} ranks: Lapstrake, {','.join(map(str, shape))}", begin)
                measure_ours(args, table, ranks, shape)
    keys = list(dict.fromkeys([*table.ours, *table.peer, *table.from_torch, *table.nccl, *table.cublasmp]))
    cases = list(dict.fromkeys(key[:4] for key in keys))
    keys.sort(key=lambda key: (key[0], cases.index(key[:4]), key[4]))
    rows = [make_row(key, table) for key in keys]
    wrong = [f"{line['op']} {method['method']} on {line['ranks']} ranks gives wrong results"
             for where in (table.ours, table.nccl, table.cublasmp) for lines in where.values() for line in lines
             for method in line["methods"] if not method["ok"]]
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
