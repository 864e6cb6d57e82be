#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs random faults against `lap` and looks at how each ends.

A fault is made of a command (an operator with a method, or layers), a transport, a number of ranks, something that happens
to one of them, and a moment. All of it follows from the seed and the number of the fault, so that each can be repeated:
faults.py --seed S --only N. What must hold, whatever happened: the command ends before the deadline and by no signal of its own;
its status is the right one; the sentences name the rank at fault and blame no other; no process and no file is left.
"""

import argparse
import concurrent.futures
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

NEEDS_MEMORY_IN_COMMON = {"fused", "oneshot", "pull"}
NEEDS_GPU = {"cublasmp"}  # and the transport nccl: these faults are those of CPUs
LAYERS = ["linear", "layernorm_linear", "layernorm_mlp", "attention", "transformer"]
CALLS = {"mmap": 8, "memfd_create": 2, "ftruncate": 2, "pthread_create": 6, "sendmsg": 6, "recvmsg": 6}
# A setting that differs in one rank: what is added there, and what the sentence must name.
SETTINGS = {
    "train": [("--lr 0.5", "lr"), ("--seed 99", "seed"), ("--optimizer sgd", "optimizer"), ("--clip-grad 0.3", "clip-grad"),
              ("--iters 17", "iters"), ("--weight-decay 0.3", "weight-decay"), ("--dtype bf16", "dtype")],
    "bench": [("--seed 99", "seed"), ("--iters 17", "iters"), ("--warmup 3", "warmup"), ("--dtype bf16", "dtype")],
}
ENDLESS = 1000000  # iterations


class Fault:
    """One fault: what is run, and what happens to it."""

    def __init__(self, seed, number, transports, methods):
        self.number = number
        r = random.Random(f"{seed}/{number}")
        self.kind = r.choice(["kill", "kill", "stop", "pause", "exit", "alloc", "call", "disk", "delay", "settings"])
        self.transport = r.choice(transports)
        if self.kind in ("kill", "stop", "pause", "exit", "settings") and self.transport == "self":
            self.transport = "shm"  # these happen to processes
        if self.kind in ("settings", "disk") or (self.kind == "stop" and self.transport != "shm"):
            self.transport = "shm"  # mpirun has its own ideas of these
        self.ranks = r.choice([2, 3, 4, 5] if self.transport in ("shm", "self") else [2, 3])
        self.verb = r.choice(["bench", "train"])
        self.words = self.bench(r, methods) if self.verb == "bench" else self.train(r)
        self.victim = r.randrange(self.ranks)
        self.after = r.choice([0, r.uniform(0, 0.1), r.uniform(0, 1)])  # s, from when the ranks are there
        self.pause = r.uniform(0.05, 0.8)
        self.call = "lap_alloc" if self.kind == "alloc" else r.choice(list(CALLS))
        self.at = r.randint(1, 300 if self.kind == "alloc" else CALLS[self.call]) if self.kind in ("alloc", "call") else \
            r.randint(1, 60)
        self.place = r.choice(["stdout", "timeline", "rendezvous"] if self.verb == "bench" else ["stdout", "rendezvous"])
        self.setting = r.choice(SETTINGS[self.verb])
        self.goes_on = self.kind in ("kill", "stop")
        self.words += ["--iters", str(ENDLESS if self.goes_on else 12)]

    def bench(self, r, methods):
        op = r.choice(sorted(methods))
        near = self.transport in ("shm", "self")
        method = r.choice([m for m in methods[op] if near or m not in NEEDS_MEMORY_IN_COMMON])
        if method == "ring" and op == "ag" and self.ranks % 2 == 0 and r.random() < 0.3:
            method = "ring:aggregate"
        m, n, k = r.randint(1, 200), r.randint(self.ranks, 90), r.randint(self.ranks, 90)
        if op not in ("ag", "rs", "ar"):
            n = self.ranks * r.randint(1, 20)
        return ["bench", op, str(m), str(n), str(k), "--method", method, "--warmup", "1"]

    def train(self, r):
        replicas = 2 if self.ranks == 4 and r.random() < 0.5 else 1
        layer = r.choice(LAYERS)
        words = ["train", "--layer", layer, "--tp", str(self.ranks // replicas), "--num-replicas", str(replicas),
                 "--seq", "16", "--heads", str(60 // replicas), "--head-dim", "4"]
        if layer != "linear" and r.random() < 0.3:
            words += ["--recompute", r.choice(["selective", "full"])]
        if r.random() < 0.3:
            words += ["--no-comm-overlap"]
        if r.random() < 0.2:
            words += ["--link", "1GB/s"]
        return words

    def describe(self):
        what = {"kill": f"rank {self.victim} is killed after {self.after:.3f} s",
                "stop": f"rank {self.victim} is stopped after {self.after:.3f} s",
                "pause": f"rank {self.victim} is stopped after {self.after:.3f} s for {self.pause:.2f} s",
                "exit": f"rank {self.victim} exits at GEMM {self.at}",
                "alloc": f"allocation {self.at} of rank {self.victim} fails",
                "call": f"{self.call} number {self.at} of rank {self.victim} fails",
                "delay": f"GEMM {self.at} of rank {self.victim} comes {self.pause:.2f} s late",
                "disk": f"no room for {self.place}",
                "settings": f"rank {self.victim} has {self.setting[0]}"}[self.kind]
        return f"{self.kind}: {what}, {self.transport}, {self.ranks} ranks: lap {' '.join(self.words)}"


def has_begun(pid):
    """Whether a rank over MPI has a world: the death of one that starts is the affair of mpirun."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return any(open(f"/proc/{pid}/task/{t}/comm").read() == "lap-mpi\n" for t in threads)
    except OSError:
        return False


class Run:
    """A fault while it happens, in folders of its own."""

    def __init__(self, fault, options):
        self.fault, self.options = fault, options
        self.base = tempfile.mkdtemp(prefix="lap-faults-")
        self.tmp = os.path.join(self.base, "tmp")
        os.mkdir(self.tmp)
        self.mark = os.path.join(self.base, "mark")
        self.id = f"{os.getpid()}.{fault.number}"
        self.wrong = []

    def environment(self):
        keep = {k: v for k, v in os.environ.items()
                if not k.startswith(("LAP_", "OMPI_", "SLURM_")) and k != "XDG_RUNTIME_DIR"}
        f = self.fault
        timeout = "2" if f.kind == "stop" else "8"
        keep.update(TMPDIR=self.tmp, LAP_FAULT_ID=self.id, LAP_FAULT_MARK=self.mark, LAP_TIMEOUT_S=timeout,
                    OPENBLAS_NUM_THREADS="1", OPENBLAS_THREAD_TIMEOUT="4", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        victim = -1 if f.transport == "self" else f.victim
        what = {"alloc": f.call, "call": f.call, "exit": "exit", "delay": "delay"}.get(f.kind)
        if what:
            keep["LAP_FAULT"] = f"{what} {victim} {f.at} {int(1000 * f.pause)}"
        return keep

    def command(self):
        f, lap = self.fault, self.options.lap
        if f.kind == "settings":
            script = 'if [ "$LAP_RANK" = "$0" ]; then exec "$@" ' + f.setting[0] + '; else exec "$@"; fi'
            return [lap, "run", "-n", str(f.ranks), "sh", "-c", script, str(f.victim), lap, *f.words]
        words = list(f.words)
        if f.kind == "disk" and f.place == "timeline":
            words += ["--timeline", os.path.join(self.base, "full", "t.svg")]
        if f.transport in ("mpi", "hosts"):
            return [*self.options.mpirun, "-n", str(f.ranks), lap, *words, "--transport", f.transport]
        if f.verb == "bench":
            words += ["--ranks", str(f.ranks)]
        command = [lap, *words, "--transport", f.transport]
        if f.kind == "disk" and f.place != "stdout":
            # A file system without room, which nobody else sees.
            full = os.path.join(self.base, "full") if f.place == "timeline" else self.tmp
            os.makedirs(full, exist_ok=True)
            limit = "size=4k" if f.place == "timeline" else "nr_inodes=1"
            command = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o "$0" none "$1" && shift && exec "$@"', limit, full,
                       *command]
        return command

    def ranks(self):
        """The processes of this run that are ranks: {rank: pid}."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    variables = dict(v.split(b"=", 1) for v in file.read().split(b"\0") if b"=" in v)
            except OSError:
                continue
            rank = variables.get(b"LAP_RANK", variables.get(b"OMPI_COMM_WORLD_RANK"))
            if variables.get(b"LAP_FAULT_ID") == self.id.encode():
                found[int(rank) if rank else -int(pid)] = int(pid)
        return found

    def disturb(self, child):
        """Does to the victim what is done from outside."""
        f, end = self.fault, time.monotonic() + 20
        while True:
            ranks = {r: p for r, p in self.ranks().items() if r >= 0}
            if len(ranks) == f.ranks and (f.transport in ("shm", "self") or all(map(has_begun, ranks.values()))):
                break
            if child.poll() is not None or time.monotonic() > end:
                return
            time.sleep(0.005)
        time.sleep(f.after)
        try:
            os.kill(ranks[f.victim], signal.SIGKILL if f.kind == "kill" else signal.SIGSTOP)
            if f.kind == "pause":
                time.sleep(f.pause)
                os.kill(ranks[f.victim], signal.SIGCONT)
        except ProcessLookupError:
            pass

    def expect(self, holds, text):
        if not holds:
            self.wrong.append(text)

    def left_over(self):
        end = time.monotonic() + 5
        while self.ranks() and time.monotonic() < end:
            time.sleep(0.02)
        left = self.ranks()
        self.expect(not left, f"processes are left: {left}")
        for pid in left.values():
            os.kill(pid, signal.SIGKILL)
        files = [name for name in os.listdir(self.tmp) if not name.startswith("ompi.")] # mpirun leaves folders of its own
        self.expect(not files, f"files are left: {files}")

    def judge(self, status, out, err):
        f, happened = self.fault, os.path.exists(self.mark)
        over_mpi = f.transport in ("mpi", "hosts")
        dead = {int(r) for r in re.findall(r"rank (\d+) (?:\(pid \d+\) )?(?:has died|was killed|is stopped)", err)}
        dead |= {int(r) for r in re.findall(r"rank (\d+) (?:\(pid \d+\) )?came to the others but has not answered", err)}
        dead |= {int(r) for r in re.findall(r"rank (\d+) has not come to", err)}
        for ranks in re.findall(r"these have not passed their memory [^:]*: ((?:rank \d+(?:, )?)+)", err):
            dead |= {int(r) for r in re.findall(r"\d+", ranks)}
        dead |= {int(r) for r in re.findall(r"\(rank (\d+) of the world, pid \d+\) (?:has died|was killed|is stopped)", err)}
        crashed = re.findall(r"signal (4|6|7|8|11) ", err)
        self.expect(status is not None, "it did not end before the deadline")
        self.expect(not crashed, f"a rank crashed by signal {crashed}")
        if status is None:
            return
        if f.kind == "kill":
            self.expect(status == 137, f"the status is {status}, expected 137")
            # A rank that dies before it has met the others is told by mpirun, if at all, in words of its own.
            self.expect(dead == {f.victim} or over_mpi and not dead and re.search(r"process rank|non-zero exit code", err),
                        f"ranks {sorted(dead)} were named, expected {f.victim}")
        elif f.kind == "stop":
            self.expect(status == 1, f"the status is {status}, expected 1")
            self.expect(dead == {f.victim} or "have not come" in err and f": {f.victim}" in err,
                        f"ranks {sorted(dead)} were named, expected {f.victim}")
        elif f.kind in ("pause", "delay"):
            self.expect(status == 0, f"the status is {status}, expected 0")
        elif f.kind == "exit":
            # A survivor that has noticed it may be the first whose end the launcher sees.
            self.expect(status in ((1, 7) if happened else (0,)), f"the status is {status}, expected 7 or 1, or 0 if it did not exit")
            self.expect(not happened or dead == {f.victim} or not dead and f"rank {f.victim} " in err,
                        f"ranks {sorted(dead)} were named, expected {f.victim}")
        elif f.kind in ("alloc", "call"):
            self.expect(status == 1 and happened or status == 0, f"the status is {status}, expected 1, or 0 if it can do without")
            self.expect(status == 0 or re.search(r"no memory|out of memory|cannot|system error|peer lost", err),
                        "nothing was printed of it")
            self.expect(status == 0 or f.transport == "self" or f"rank {f.victim}" in err, f"rank {f.victim} was not named")
        elif f.kind == "disk":
            self.expect(status in (1, 2), f"the status is {status}, expected 1 or 2")
            self.expect(re.search(r"cannot|No space left", err), "nothing was printed of it")
        elif f.kind == "settings":
            self.expect(status not in (0, 137), f"the status is {status}, expected a failure")
            self.expect(f.setting[1] in err.replace("_", "-"), f"the setting {f.setting[1]} was not named")
            self.expect(f"rank {f.victim}" in err, f"rank {f.victim} was not named")

    def __call__(self):
        f, begun = self.fault, time.monotonic()
        out_path, err_path = os.path.join(self.base, "out"), os.path.join(self.base, "err")
        sink = "/dev/full" if f.kind == "disk" and f.place == "stdout" else out_path
        with open(sink, "w") as out, open(err_path, "w") as err:
            child = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=self.base,
                                     env=self.environment(), start_new_session=True)
        try:
            if f.kind in ("kill", "stop", "pause"):
                self.disturb(child)
            disturbed = time.monotonic()
            try:
                status = child.wait(self.options.deadline)
                status = 128 - status if status < 0 else status
            except subprocess.TimeoutExpired:
                status = None
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        finally:
            took = time.monotonic() - disturbed
        with open(err_path, errors="replace") as err:
            said = err.read()
        out_text = ""
        if sink == out_path:
            with open(out_path, errors="replace") as out:
                out_text = out.read()
        self.judge(status, out_text, said)
        self.left_over()
        if not self.options.keep:
            shutil.rmtree(self.base, ignore_errors=True)
        return f, self.wrong, said, took, time.monotonic() - begun


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lap", default="build/faults/lap", help="the command with faults (default %(default)s)")
    parser.add_argument("--count", type=int, default=1000, help="how many faults (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all of them (default %(default)s)")
    parser.add_argument("--only", type=int, help="the fault of this number alone, with all that it says")
    parser.add_argument("--kind", help="only faults of this kind, such as kill")
    parser.add_argument("--jobs", type=int, default=2, help="at a time (default %(default)s)")
    parser.add_argument("--deadline", type=float, default=20, help="seconds in which a command ends (default %(default)s)")
    parser.add_argument("--mpirun", default="", help="how to start ranks over MPI, such as 'mpirun --oversubscribe'")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    options = parser.parse_args()
    options.lap = os.path.abspath(options.lap)
    options.mpirun = options.mpirun.split()
    if not os.access(options.lap, os.X_OK):
        parser.error(f"--lap is {options.lap}, which cannot be run; expected the build's faults/lap")
    return options


def find_methods(lap):
    """The operators of `lap bench`, and the methods of each, from what lap says of itself."""
    usage = subprocess.run([lap, "bench", "--help"], capture_output=True, text=True, check=True).stdout
    methods = {}
    for op in usage.split()[3].split("|"):
        said = subprocess.run([lap, "bench", op, "8", "8", "8", "--method", "?"], capture_output=True, text=True).stderr
        methods[op] = [m for m in re.split(r", | or ", said.split("expected ")[1].strip()) if m not in NEEDS_GPU]
    return methods


def main():
    options = parse()
    transports = ["shm", "shm", "self"] + (["mpi", "hosts"] if options.mpirun else [])
    methods = find_methods(options.lap)
    numbers = [options.only] if options.only is not None else range(options.count)
    faults = [f for f in (Fault(options.seed, n, transports, methods) for n in numbers) if options.kind in (None, f.kind)]
    if os.geteuid() != 0:  # only root mounts file systems
        for f in faults:
            f.place = "stdout"
    kinds, failed, slowest, done = {}, 0, 0.0, 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for fault, wrong, said, took, _ in pool.map(lambda f: Run(f, options)(), faults):
            done += 1
            kinds[fault.kind] = kinds.get(fault.kind, 0) + 1
            slowest = max(slowest, took)
            if wrong:
                failed += 1
                print(f"not ok {fault.number} - {fault.describe()}")
                print("".join(f"#   {text}\n" for text in wrong), end="")
                print(f"#   again: scripts/faults.py --seed {options.seed} --only {fault.number}"
                      + (f" --mpirun '{' '.join(options.mpirun)}'" if options.mpirun else ""))
            if wrong or options.only is not None:
                print("".join(f"#   | {line}\n" for line in said.splitlines()[:20]), end="", flush=True)
            if sys.stderr.isatty():
                print(f"\r{done} of {len(faults)} faults, {failed} wrong", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print("# " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    print(f"{'not ok' if failed or not done else 'ok'} - {done} faults with seed {options.seed}, {failed} ended wrongly, "
          f"the slowest took {slowest:.1f} s")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
