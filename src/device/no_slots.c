/* SPDX-License-Identifier: Apache-2.0 */
/* See no_slots.h. */
#include "device/no_slots.h"

lap_status_t lap_no_probe(void)
{
    return LAP_OK;
}

lap_status_t lap_no_calls_begin(lap_device_t *device)
{
    (void)device;
    return LAP_OK;
}

void lap_no_calls_end(lap_device_t *device)
{
    (void)device;
}

lap_status_t lap_no_gemm_check(lap_device_t *device, lap_dtype_t a, lap_dtype_t b)
{
    (void)device, (void)a, (void)b;
    return LAP_OK;
}

lap_status_t lap_no_check_memory(lap_device_t *device, const char *name, const void *memory)
{
    (void)device, (void)name, (void)memory;
    return LAP_OK;
}

bool lap_no_stall(lap_stream_t *stream, lap_stall_t *stall_p)
{
    (void)stream, (void)stall_p;
    return false;
}

void lap_no_abort_waits(lap_device_t *device)
{
    (void)device;
}

bool lap_no_timed_out(lap_device_t *device, lap_stall_t *stall_p)
{
    (void)device, (void)stall_p;
    return false;
}

void lap_no_release(lap_device_t *device, lap_event_t *until)
{
    (void)device, (void)until;
}

lap_status_t lap_no_stamp_delay(lap_stream_t *stream, uint64_t *ns_p)
{
    (void)stream, (void)ns_p;
    return LAP_OK;
}

lap_status_t lap_no_gemm_prepare(lap_stream_t *stream, const lap_gemm_t *gemm, bool tries)
{
    (void)stream, (void)gemm, (void)tries;
    return LAP_OK;
}

int lap_no_gpu(lap_device_t *device)
{
    (void)device;
    return -1;
}

bool lap_no_is_capturing(lap_stream_t *stream)
{
    (void)stream;
    return false;
}
