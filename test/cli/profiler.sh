#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a profiler that listens to NVTX hears of a call; FAKE_PROFILER is the library of one.
. "$(dirname "$0")/tap.bash"

export NVTX_INJECTION64_PATH=$FAKE_PROFILER FAKE_PROFILE=$work/profile
lap bench ag 64 32 16 --ranks 2 --method ring --iters 3 --warmup 1
is 'a run under a profiler is well' "$status" 0
has 'calls are named, with the method and m' "$(cat "$FAKE_PROFILE")" 'lap ag_gemm ring m=64'
has 'steps lie within them' "$(cat "$FAKE_PROFILE")" '
  GEMM ' '
  PUT '
ok 'every range was ended' test "$(grep -c '^left open' "$FAKE_PROFILE")" = 0
ok 'every rank has closed its marks' test "$(grep -c '^closed' "$FAKE_PROFILE")" -ge 2
finish
