/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of tokens: the input is the file. One that is accepted has what its header says, every sample
 * can be read, and none has a token beyond the vocabulary; a refusal has a sentence.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <lap/data.h>

#include "fuzz.h"

enum { SEQ = 3, VOCAB = 1000 };

static void read_samples(const lap_data_t *data, size_t bytes)
{
    uint32_t tokens[SEQ + 1];
    const uint64_t samples = lap_data_samples(data);
    HOLDS(lap_data_tokens(data) * 2 + 1024 <= bytes && samples * SEQ < lap_data_tokens(data));
    for (uint64_t i = 0; i <= samples; i++) {
        if (lap_data_sample(data, i, tokens) != LAP_OK) {
            HOLDS(strlen(lap_last_error()) > 0);
            continue;
        }
        HOLDS(i < samples);
        for (int t = 0; t <= SEQ; t++)
            HOLDS(tokens[t] < VOCAB);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int file = -1;
    char path[64];
    if (file < 0)
        file = memfd_create("tokens", MFD_CLOEXEC);
    HOLDS(file >= 0 && ftruncate(file, 0) == 0);
    HOLDS(pwrite(file, data, bytes, 0) == (ssize_t)bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    const char *paths[] = {path};
    lap_data_options_t options = LAP_DATA_OPTIONS_INIT;
    lap_data_t *tokens = NULL;
    options.seq = SEQ;
    options.vocab = VOCAB;
    options.wraps = 0;
    if (lap_data_open(paths, 1, &options, &tokens) != LAP_OK) {
        HOLDS(tokens == NULL && strlen(lap_last_error()) > 0);
        return 0;
    }
    read_samples(tokens, bytes);
    lap_data_close(tokens);
    return 0;
}
