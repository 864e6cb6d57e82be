#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What runs is what was proved: `lap check train --json` and `lap train --json` print the same digest of a step on the grids of the
# oracle. FAKE_CUDA, if it is set, is the folder of a driver that is a fake: they run on that.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/tap.bash"
limit=120
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
device=cpu
if [ -n "${FAKE_CUDA:-}" ]; then
    device=cuda
    export LD_LIBRARY_PATH=$FAKE_CUDA PATH=$LAP_SOURCE_DIR/test/fake:$PATH FAKE_RECORD=/dev/null LAP_GPU_TUNE=0
fi

# The names and options of the grids; their files of rules are in the working folder.
list() {
    python3 -c '
import sys
sys.path.insert(0, sys.argv[1])
import oracle
oracle.write_rules(sys.argv[2])
for name, words in oracle.GRIDS.items():
    print(name, words)' "$(dirname "$0")/../../scripts" "$work"
}

# The digest of what lap says, or null.
digest() {
    grep -oE '"digest":("[0-9a-f]{16}"|null)' "$work/out" | cut -d: -f2
}

list >"$work/grids"
cd "$work" || exit 1
count=0
while read -r name words; do
    # shellcheck disable=SC2086
    lap check train $words --device $device --json
    proved=$(digest)
    # shellcheck disable=SC2086
    lap train $words --device $device --iters 3 --no-trace --no-predict --json
    is "$name ends well" "$status${err/lap train: rules.yaml: without effect*gather rows/}" 0
    ran=$(digest)
    is '... runs the programs that were proved' "$ran" "$proved"
    has '... whose digest is one' "$proved" '"'
    count=$((count + 1))
done <"$work/grids"
ok "$count grids have a digest" [ "$count" -ge 35 ]

# Other programs have other digests; a step that is traced is not the one that was proved.
base='--layers 1 --hidden 24 --heads 12 --seq 6'
lap check train $base --tp 2 --json
one=$(digest)
lap check train $base --tp 2 --seq 7 --json
ok 'another number of tokens is another program' [ "$(digest)" != "$one" ]
lap check train $base --tp 2 --no-comm-overlap --json
ok '... and so are other methods' [ "$(digest)" != "$one" ]
lap check train $base --tp 2 --json
is 'the same options have the same digest' "$(digest)" "$one"
lap train $base --tp 2 --auto=no --iters 2 --no-predict --json
is 'steps that are traced have none' "$(digest)" null

# The weights that a step begins to gather for the next one, in a pipeline, too.
ahead="$base --layers 2 --model gpt --pp 2 --dp 2 --micro-batches 2 --distributed-optimizer --bucket-size 500"
for how in --overlap-param-gather-with-optimizer-step --no-overlap-param-sync --no-overlap-grad-sync; do
    lap check train $ahead $how --json
    proved=$(digest)
    lap train $ahead $how --iters 3 --no-trace --no-predict --json
    is "a pipeline with $how runs what was proved" "$status $(digest)" "0 $proved"
    has '... with a digest' "$proved" '"'
done
finish
