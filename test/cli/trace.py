# SPDX-License-Identifier: Apache-2.0
"""trace.py FILE CODE: runs the code with what a file of --trace holds: see the names below."""
import collections
import gzip
import json
import re
import sys

path_of_file, code = sys.argv[1:]
with (gzip.open if path_of_file.endswith(".gz") else open)(path_of_file) as file:
    it = json.loads(file.read())
events = it["traceEvents"]
sim = 100000  # the first process of a simulated run
end_of_path = 99999
names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
ranks = [pid for pid in names if pid < end_of_path]
path = [e for e in events if e["ph"] == "X" and e.get("cat") == "critical" and e["pid"] < sim]


def slices(pid, cat=None):
    """Of a process, in the order of their beginnings."""
    found = [e for e in events if e["ph"] == "X" and e["pid"] == pid and (cat is None or e["cat"] == cat)]
    return sorted(found, key=lambda e: e["ts"])


def counter(pid, name):
    found = sorted((e for e in events if e["ph"] == "C" and e["pid"] == pid and e["name"] == name), key=lambda e: e["ts"])
    return [next(iter(e["args"].values())) for e in found]


def computing(rank):
    threads = {e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name" and e["pid"] == rank
               and e["args"]["name"].startswith("compute")}
    return [(e["ts"], e["ts"] + e["dur"]) for e in slices(rank)
            if e["tid"] in threads and e["cat"] in ("gemm", "reduce", "copy", "kernel")]


def flying(rank):
    own = rank // sim * sim
    return [(e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["cat"] == "link"
            and (e["pid"] == rank or e["pid"] // sim * sim == own and e["args"]["peer"] + own == rank)]


def union(spans):
    joined = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    return joined


def length(spans):
    return sum(end - begin for begin, end in spans)


def common(a, b):
    return sum(max(0, min(x[1], y[1]) - max(x[0], y[0])) for x in a for y in b)


def ends_of_flows():
    begun = {e["id"]: e for e in events if e["ph"] == "s"}
    ended = [e for e in events if e["ph"] == "f"]
    assert len(begun) == len(ended)
    return [(begun[e["id"]], e) for e in ended]


flows = ends_of_flows()


def check(trace):
    """What the format asks for."""
    assert set(trace) == {"displayTimeUnit", "traceEvents", "lapstrake"}, set(trace)
    threads = collections.defaultdict(list)
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for e in events:
        assert e["pid"] in names, e
        if e["ph"] == "X":
            assert e["ts"] >= 0 and e["dur"] > 0 and (e["pid"], e["tid"]) in named, e
            threads[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    for spans in threads.values():
        open_until = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin + 0.0015:  # a nanosecond and what rounding does
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.0015, (begin, end, open_until)
            open_until.append(end)
    for both in flows:
        for e in both:
            assert any(begin - 0.0015 <= e["ts"] <= end + 0.0015 for begin, end in threads[e["pid"], e["tid"]]), e


exec(code)
