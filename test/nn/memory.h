/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for tests of layers on any device: some that the test and the device both reach, and
 * copies of what perhaps only the device does, such as weights and gradients.
 */
#ifndef LAP_TEST_NN_MEMORY_H
#define LAP_TEST_NN_MEMORY_H

#include <stdlib.h>

#include "device/shared.h"
#include "nn/nn.h"

/* Zeroes. */
static inline void *nn_new(lap_nn_t *nn, size_t bytes)
{
    return new_shared(nn->engine->device, bytes);
}

static inline void nn_free(lap_nn_t *nn, void *memory)
{
    free_shared(nn->engine->device, memory);
}

/* Copies between memories of the test and of the device, when all before has run. */
static inline bool nn_copy(lap_nn_t *nn, void *dst, const void *src, size_t bytes)
{
    const lap_copy_t copy = {dst, src, 1, bytes, bytes, bytes, 0, false};
    lap_stream_t *stream = nn->engine->streams[LAP_STREAM_COMPUTE];
    return nn->engine->device->ops->copy(stream, &copy) == LAP_OK && lap_nn_wait(nn) == LAP_OK;
}

/* A copy of `count` floats of the device, which the caller frees. Exits without one. */
static inline float *nn_fetch(lap_nn_t *nn, const float *floats, size_t count)
{
    float *copy = malloc(count * sizeof(float) + 1);
    if (!copy || !nn_copy(nn, copy, floats, count * sizeof(float))) {
        printf("Bail out! %zu floats cannot be copied: %s\n", count, lap_last_error());
        exit(1);
    }
    return copy;
}

#endif
