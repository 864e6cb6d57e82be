#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# AG+GEMM and GEMM+RS on four CPU ranks with every method: one table, and a timeline picture, whose path is printed.
# The link between the ranks is emulated, so that there is something to hide on one machine.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
"$build/lap" bench demo --ranks 4 --link ratio:0.4 --timeline "$build/demo.svg"
