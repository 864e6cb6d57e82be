# SPDX-License-Identifier: Apache-2.0
"""Files of --trace-format kineto in Holistic Trace Analysis: it reads them, and finds the overlap that we do."""
import base64
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis  # noqa: E402

checks = 0
failures = 0


def ok(held, name):
    global checks, failures
    checks += 1
    failures += not held
    print("%sok %d - %s" % ("" if held else "not ", checks, name))


def summary(page):
    """What a page of ours holds of the same timeline."""
    with open(page, encoding="utf-8") as file:
        packed = re.search(r"data-trace>([^<]*)<", file.read())[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))["lapstrake"]["measured"]


with tempfile.TemporaryDirectory() as folder:
    traces = os.path.join(folder, "traces")
    os.mkdir(traces)
    page = os.path.join(folder, "run.html")
    # Transfers take milliseconds, since HTA rounds all times to microseconds.
    command = [os.environ["LAP"], "train", "--auto=no", "--tp", "2", "--num-replicas", "2", "--heads", "8", "--head-dim", "32", "--seq", "128",
               "--iters", "2", "--batch", "2", "--link", "30MB/s", "--trace", os.path.join(traces, "step.json.gz"),
               "--trace-format", "kineto", "--report", page, "--quiet"]
    environment = {k: v for k, v in os.environ.items() if k not in ("LAP_RANK", "LAP_SIZE", "LAP_DIR", "LAP_JOB")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    ok(done.returncode == 0, "a training with files for HTA: %s" % done.stderr.strip()[:200])
    ok(sorted(os.listdir(traces)) == ["step.%d.json.gz" % r for r in range(4)], "... a file for each rank")
    found = TraceAnalysis(trace_dir=traces).get_comm_comp_overlap(visualize=False)
    theirs = dict(zip(found["rank"], found["comp_comm_overlap_pctg"]))
    ours = {r: 100 * (1 - own["exposed_ms"] / own["comm_ms"]) for r, own in enumerate(summary(page)["by_rank"])}
    print("# overlap in per cent, by HTA: %s; by us: %s" % (theirs, {r: round(x, 2) for r, x in ours.items()}))
    ok(sorted(theirs) == [0, 1, 2, 3], "HTA finds the four ranks")
    ok(all(abs(theirs[r] - ours[r]) < 0.5 for r in ours), "... and of each the part of communication that is overlapped")
    ok(any(x > 0 for x in ours.values()), "... which is not nothing")
print("1..%d" % checks)
sys.exit(failures > 0)
