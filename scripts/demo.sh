#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains a tensor-parallel layer on four CPU ranks, with overlap and without, and shows what was hidden; then AG+GEMM and
# GEMM+RS with every method: one table, and a timeline picture, whose path is printed.
# The link between the ranks is emulated, so that there is something to hide on one machine.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
"$build/lap" train --layer layernorm_mlp --tp 4 --iters 5 --compare --link ratio:0.4
echo
"$build/lap" bench demo --ranks 4 --link ratio:0.4 --timeline "$build/demo.svg"
