/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of tables for a host: each puts its kernel, with a copy of what it is given, into the stream. */
#include "device/host/host.h"
#include "kernel/host/host.h"

/* There is nothing to load. */
lap_status_t lap_host_prepare(lap_device_t *device)
{
    (void)device;
    return LAP_OK;
}

#define KERNEL(id, slot, args_t, label, reads, writes)                                             \
    _Static_assert(sizeof(args_t) <= LAP_STREAM_ARG_BYTES, "it is an argument of a stream call");  \
    static lap_status_t run_##slot(void *args)                                                     \
    {                                                                                              \
        lap_run_##slot(args);                                                                      \
        return LAP_OK;                                                                             \
    }                                                                                              \
    lap_status_t lap_host_##slot(lap_stream_t *stream, const args_t *args)                         \
    {                                                                                              \
        return lap_host_stream_call(stream, run_##slot, args, sizeof(*args));                      \
    }
#define KERNEL_ATTENTION KERNEL_AS
#include "kernel/kernels.def"
