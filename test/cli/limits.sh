#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The command where the stack of a process may hold little: its own threads ask for what they need.
. "$(dirname "$0")/tap.bash"
ulimit -s 64
for arguments in --version --help 'bench --help' 'train --help' 'bench ag 64 64 64 -n 2 --iters 2 --method ring' \
    'bench ag 64 64 64 -n 2 --iters 2 --method ring --transport self'; do
    # shellcheck disable=SC2086
    lap $arguments
    is "lap $arguments with a stack of 64 KiB" "$status$err" 0
done
finish
