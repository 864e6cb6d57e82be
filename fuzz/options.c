/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines of `lap bench` and `lap train`: a line each for the arguments, the command first.
 * What is accepted makes sense for the number of ranks that it asks for, or is refused then.
 */
#include <string.h>

#include "bench.h"
#include "fuzz.h"
#include "train.h"

#define MOST_ARGUMENTS 64
#define MOST_BYTES 4096

static void parse_bench(int argc, char **argv)
{
    lap_bench_t bench;
    if (lap_bench_parse(argc, argv, false, &bench) != LAP_CLI_GO)
        return;
    HOLDS(bench.ranks >= 1 && bench.ranks <= 1024 && bench.iters >= 1 && bench.calls >= 1);
    HOLDS(bench.ncases <= LAP_BENCH_CASES && bench.timeout_s >= 0);
    const int status = lap_bench_check(&bench, bench.ranks);
    HOLDS(status == LAP_CLI_GO || status == LAP_CLI_USAGE);
}

static void parse_train(int argc, char **argv)
{
    lap_train_t train;
    if (lap_train_parse(&lap_train_command, true, argc, argv, &train) != LAP_CLI_GO)
        return;
    HOLDS(train.grid.tp >= 1 && train.grid.dp >= 1 && lap_train_ranks(&train) <= 1024);
    HOLDS(train.iters >= 1 && train.batch >= 1 && train.timeout_s >= 0);
    const int status = lap_train_check(&train, lap_train_ranks(&train));
    HOLDS(status == LAP_CLI_GO || status == LAP_CLI_USAGE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static char text[MOST_BYTES + 1];
    static bool quiet;
    char *argv[MOST_ARGUMENTS + 1];
    int argc = 0;
    if (!quiet) /* "-" is standard input, at which nobody sits */
        HOLDS(freopen("/dev/null", "r", stdin) != NULL);
    quiet = true;
    /* No argument of a fuzzer's making names a file outside of its own folder. */
    if (bytes > MOST_BYTES || memchr(data, '/', bytes) || memchr(data, '\0', bytes))
        return 0;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    for (char *rest = text, *line; argc < MOST_ARGUMENTS && (line = strsep(&rest, "\n")) != NULL;)
        argv[argc++] = line;
    argv[argc] = NULL;
    if (strcmp(argv[0], "bench") == 0)
        parse_bench(argc, argv);
    else if (strcmp(argv[0], "train") == 0)
        parse_train(argc, argv);
    return 0;
}
