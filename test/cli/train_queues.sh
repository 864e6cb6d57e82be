#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks whose streams share one hardware queue, where a wait holds up whatever comes after it: whole steps with overlapped buckets end
# there, too, with the losses of ranks that have queues enough. FAKE_CUDA is the folder of a driver that is a fake.
. "$(dirname "$0")/tap.bash"

export LD_LIBRARY_PATH=$FAKE_CUDA PATH=$LAP_SOURCE_DIR/test/fake:$PATH FAKE_RECORD=/dev/null LAP_GPU_TUNE=0
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB CUDA_DEVICE_MAX_CONNECTIONS

# train ARGUMENTS...: the losses in $losses, the most launches of graphs of a rank in $launches.
train() {
    rm -f "$work/launches"
    FAKE_LAUNCHES=$work/launches lap train --auto=no --device cuda --json --no-predict --no-trace --model gpt --layers 4 --hidden 48 --vocab 96 --batch 2 --seq 16 \
        --heads 12 --head-dim 4 --iters 5 --timeout 20 "$@"
    is "'lap train $*' ends well" "$status$err" 0
    losses=$(grep -oE '"loss":[^,]+' "$work/out" | cut -d: -f2)
    launches=$(sort "$work/launches" | uniq -c | sort -n | awk 'END { print $1 }')
}

for grid in '--tp 2 --dp 2' '--tp 2 --dp 2 --distributed-optimizer' '--tp 2 --cp 2' '--tp 1 --cp 2 --dp 2' \
    '--tp 1 --cp 2 --dp 2 --distributed-optimizer'; do
    # shellcheck disable=SC2086
    train $grid
    enough=$losses once=$launches
    # shellcheck disable=SC2086
    FAKE_ONE_QUEUE=1 train $grid # which counts as CUDA_DEVICE_MAX_CONNECTIONS=1: lap train asks for 16 itself
    is '... with one queue, without a bit that differs' "$losses" "$enough"
    is '... one graph is several there' "$((launches > 2 * once))" 1
done
# A process that asks for no number has the driver's: 8, and 2 as a client of MPS.
CUDA_DEVICE_MAX_CONNECTIONS='' train --tp 2 --dp 2
is 'the queues of the driver are enough' "$launches" 4
enough=$losses once=$launches
CUDA_DEVICE_MAX_CONNECTIONS='' FAKE_MPS=1 train --tp 2 --dp 2
is '... but not those of a client of MPS' "$((launches > 2 * once)):$losses" "1:$enough"
CUDA_DEVICE_MAX_CONNECTIONS=4 train --tp 2 --dp 2
is '... and not fewer than there are streams' "$((launches > 2 * once)):$losses" "1:$enough"
for number in 33 8x 0; do
    CUDA_DEVICE_MAX_CONNECTIONS=$number train --tp 2 --dp 2
    is "... and $number, which CUDA does not document, is not relied on" "$((launches > 2 * once)):$losses" "1:$enough"
done
# What is in the foreground alone is one graph anyway.
train --tp 4
enough=$losses once=$launches
FAKE_ONE_QUEUE=1 train --tp 4
is 'layers alone have one graph however few queues there are' "$launches:$losses" "$once:$enough"
finish
