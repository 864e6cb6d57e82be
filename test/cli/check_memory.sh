#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The memory that lap check train says a rank needs is what a rank of lap train takes, also one that first measures kernels to predict
# times: the difference of two shapes. The small one predicts and chooses nothing: to calibrate copies takes more memory than such a model. And
# all that a rank takes, where matrices are small, and a tenth is for programs and traces.
. "$(dirname "$0")/tap.bash"

for options in '--tp 1 --micro-batches 2' '--tp 1 --recompute full --optimizer sgd' '--tp 2'; do
    # shellcheck disable=SC2086
    ok "$options: the memory of a rank is as predicted, to 5 %" python3 - "$LAP" $options <<'PY'
import json, subprocess, sys
lap, *given = sys.argv[1:]
measure = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True); " \
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)"
def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
def taken(*shape):
    return int(run(sys.executable, "-c", measure, lap, "train", "--iters", "2", *given, *shape))
def predicted(shape):
    return json.loads(run(lap, "check", "train", "--json", *given, *shape))["bytes"]
small, large = ["--heads", "4", "--seq", "64"], ["--heads", "16", "--seq", "128", "--layers", "3"]
real, said = taken(*large) - taken(*small, "--no-predict", "--auto=no"), predicted(large) - predicted(small)
print(f"# taken {real} bytes, predicted {said}")
assert abs(real - said) < 0.05 * said
PY
done

# What a rank of a small model takes: a thread of OpenBLAS has buffers of its own, which are not counted.
taken='import json, os, resource, subprocess, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
measure = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True); " \
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)"
def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
def compare(text):
    given = sys.argv[2:] + "--model gpt --batch 4".split() + text.split()
    real = int(run(sys.executable, "-c", measure, sys.argv[1], "train", "--iters", "2", "--no-predict", *given))
    said = json.loads(run(sys.argv[1], "check", "train", "--json", *given))
    print("# taken", real, *(f"{part} {said[part]}" for part in ("bytes", "program_bytes", "trace_bytes", "process_bytes")))
    return real, said["bytes"]
'
for options in '--tp 2 --fp8' '--tp 1 --dp 2 --fp8' '--tp 1 --cp 2 --fp8' '--tp 1 --pp 2 --micro-batches 4'; do
    # shellcheck disable=SC2086
    ok "$options: all memory of a rank of a small model is as predicted, to 5 %" python3 - "$LAP" $options <<PY
$taken
real, said = compare("--hidden 128 --heads 8 --seq 128 --vocab 512 --layers 12")
assert abs(real - said) < 0.05 * said
PY
done

# The rest is events, and what the heap has around all.
for options in '--tp 2 --fp8' '--tp 1 --micro-batches 2 --fp8'; do
    # shellcheck disable=SC2086
    ok "$options: 24 layers more, which are mostly programs and traces, take what is predicted, to 10 %" python3 - "$LAP" $options <<PY
$taken
(few, said_few), (many, said_many) = (compare(f"--hidden 64 --heads 4 --seq 32 --vocab 64 --layers {n}") for n in (8, 32))
assert abs(many - few - (said_many - said_few)) < 0.1 * (said_many - said_few)
PY
done

ok 'a GPU has no programs in its memory' python3 - "$LAP" <<'PY'
import json, subprocess, sys
command = [sys.argv[1], "check", "train", "--json", "--tp", "2", "--target", "cuda"]
said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
parts = [said[f"{part}_bytes"] for part in ("activation", "parameter", "scratch", "symmetric", "optimizer", "data", "bucket")]
assert said["program_bytes"] == said["trace_bytes"] == said["process_bytes"] == 0
assert said["bytes"] == sum(parts)
PY

ok 'operators that cannot run at the same time share their scratch memory: more layers need no more' python3 - "$LAP" <<'PY'
import json, subprocess, sys
def scratch(layers, *more):
    command = [sys.argv[1], "check", "train", "--json", "--tp", "2", "--layers", str(layers), *more]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["scratch_bytes"]
for more in [], ["--target", "cuda"], ["--no-sequence-parallel"]:
    few, many = scratch(1, *more), scratch(6, *more)
    print(f"# {more}: {few} bytes for 1 layer, {many} for 6")
    assert 0 < few == many
PY
finish
