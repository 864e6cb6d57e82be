/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of `lap bench`: bench_options.def has them, bench_options.c makes of them what is
 * measured.
 */
#ifndef LAP_CLI_BENCH_OPTIONS_H
#define LAP_CLI_BENCH_OPTIONS_H

enum {
#define OPTION(name, ...) name,
#include "bench_options.def"
#undef OPTION
    NOPTIONS
};

#endif
