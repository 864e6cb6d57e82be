#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains a small GPT on the documents of this repository, a token for each byte, on a grid of 4 CPU ranks: weights sharded over two, two
# replicas. It trains with overlap and without, in turns, and shows what was hidden. Then AG+GEMM and GEMM+RS with every method: one table,
# and a timeline picture, whose path is printed.
# The link between the ranks is emulated, so that there is something to hide on one machine.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
steps=${DEMO_STEPS:-20}
"$build/lap" data tokenize --bytes README.md docs/*.md -o "$build/demo.bin" --force
"$build/lap" data info "$build/demo.bin"
echo
"$build/lap" train --model gpt --layers 2 --hidden 128 --seq 128 --data "$build/demo.bin" --tp 2 --dp 2 --global-batch 8 --steps "$steps" \
    --lr 0.001 --lr-warmup-iters 4 --compare --link ratio:0.4 --log-interval 5
echo
"$build/lap" bench demo --ranks 4 --link ratio:0.4 --timeline "$build/demo.svg"
