/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzzers share. Each file here defines the one function that libFuzzer calls. */
#ifndef LAP_FUZZ_H
#define LAP_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A promise of the parser that must hold whatever it was given. In release builds, too. */
#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);         \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
