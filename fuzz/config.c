/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of settings for `lap train --config`. What is accepted makes sense for the number of ranks that it asks for, or
 * is refused then.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "train.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int file = -1;
    char name[] = "train", option[] = "--config", path[64];
    char *argv[] = {name, option, path, NULL};
    lap_train_t train;
    /* Rules of a fuzzer's making name no file outside of its own folder. */
    if (memchr(data, '/', bytes))
        return 0;
    if (file < 0)
        file = memfd_create("settings", MFD_CLOEXEC);
    HOLDS(file >= 0 && ftruncate(file, 0) == 0);
    HOLDS(pwrite(file, data, bytes, 0) == (ssize_t)bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    const int parsed = lap_train_parse(&lap_train_command, true, 3, argv, &train);
    HOLDS(parsed == LAP_CLI_GO || parsed == LAP_CLI_USAGE || parsed == LAP_CLI_FAILED);
    if (parsed != LAP_CLI_GO)
        return 0;
    HOLDS(train.grid.tp >= 1 && train.grid.dp >= 1 && train.iters >= 1 && train.batch >= 1);
    const int status = lap_train_check(&train, lap_train_ranks(&train));
    HOLDS(status == LAP_CLI_GO || status == LAP_CLI_USAGE || status == LAP_CLI_FAILED);
    return 0;
}
