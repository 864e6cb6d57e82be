/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that uses the driver of NVIDIA's GPUs by itself, beside the library: with the primary
 * context of the rank's GPU current, and streams in it. For tests of calls in the order of such
 * streams.
 */
#ifndef LAP_TEST_OVERLAP_CALLER_H
#define LAP_TEST_OVERLAP_CALLER_H

#include "device/cuda/cuda.h"
#include "suite.h"

enum { CALLER_STREAMS = 2 };

typedef struct caller {
    lap_group_t *group;
    lap_device_t *device;
    lap_cuda_api_t api;
    CUdevice gpu;
    CUcontext context;
    CUstream streams[CALLER_STREAMS];
} caller_t;

/* A call of the driver that must go well: a failure is a check that failed. */
#define CALLER_DO(caller, call) caller_went_well((caller)->api.call, #call)
void caller_went_well(CUresult result, const char *what);

/* False, with a failure noted, when the group's device is no GPU. */
bool caller_begin(caller_t *caller, lap_group_t *group);
void caller_end(caller_t *caller);

/* Nothing that was called in between has left another context current, or one too many. */
void caller_check_context(caller_t *caller, const char *after);

static inline void *caller_pointer(CUdeviceptr memory)
{
    return (void *)(uintptr_t)memory;
}

#endif
