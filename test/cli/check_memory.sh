#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The memory that lap check train says a rank needs is what a rank of lap train takes, also one that first measures kernels to predict
# times: the difference of two shapes, since a process has other memory, too. The small one predicts nothing: to calibrate copies
# takes more memory than such a model.
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
real, said = taken(*large) - taken(*small, "--no-predict"), predicted(large) - predicted(small)
print(f"# taken {real} bytes, predicted {said}")
assert abs(real - said) < 0.05 * said
PY
done

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
