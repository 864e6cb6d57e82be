/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of `lap bench`: bench_table.c has their texts, bench_options.c reads them. An option is a line of the enum
 * here, a row of the table, and a line of the other.
 */
#ifndef LAP_CLI_BENCH_OPTIONS_H
#define LAP_CLI_BENCH_OPTIONS_H

enum {
    RANKS,
    DTYPE,
    OUT_DTYPE,
    WIRE_DTYPE,
    LAYOUT,
    EPILOGUE,
    ITERS,
    CALLS,
    WARMUP,
    REST,
    METHOD,
    AUTO_FOREIGN,
    BASELINE,
    LINK,
    DEVICE,
    TRANSPORT,
    TIMELINE,
    TIMELINE_METHOD,
    TRACE,
    TRACE_FORMAT,
    TRACE_SIMULATED,
    ASSERT_EFFICIENCY,
    SEED,
    TIMEOUT,
    JSON,
    QUIET,
    NO_TRACE,
    GPU_SHARE,
    NUM_SM,
    SM_MARGIN,
    SWEEP_M,
    SWEEP_N,
    SWEEP_K,
    NOPTIONS
};

#endif
