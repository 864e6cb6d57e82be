/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for tests of layers on any device: some that the test and the device both reach, and
 * copies of what perhaps only the device does, such as weights and gradients.
 */
#ifndef LAP_TEST_NN_MEMORY_H
#define LAP_TEST_NN_MEMORY_H

#include <stdlib.h>

#include "nn/nn.h"

/* Zeroes; NULL without memory. */
static inline void *nn_new(lap_nn_t *nn, size_t bytes)
{
    lap_device_t *device = nn->engine->device;
    void *memory = NULL;
    (void)device->ops->alloc_shared(device, bytes + 1, &memory);
    return memory;
}

static inline void nn_free(lap_nn_t *nn, void *memory)
{
    nn->engine->device->ops->free_shared(nn->engine->device, memory);
}

/* Copies between memories of the test and of the device, when all before has run. */
static inline bool nn_copy(lap_nn_t *nn, void *dst, const void *src, size_t bytes)
{
    const lap_copy_t copy = {dst, src, 1, bytes, bytes, bytes, 0};
    lap_stream_t *stream = nn->engine->streams[LAP_STREAM_COMPUTE];
    return nn->engine->device->ops->copy(stream, &copy) == LAP_OK && lap_nn_wait(nn) == LAP_OK;
}

/* A copy of `count` floats of the device, which the caller frees; NULL: there is none. */
static inline float *nn_fetch(lap_nn_t *nn, const float *floats, size_t count)
{
    float *copy = malloc(count * sizeof(float) + 1);
    if (copy && nn_copy(nn, copy, floats, count * sizeof(float)))
        return copy;
    free(copy);
    return NULL;
}

#endif
