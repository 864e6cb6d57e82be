/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of devices that have nothing to do there, so that callers need not ask. */
#ifndef LAP_DEVICE_NO_SLOTS_H
#define LAP_DEVICE_NO_SLOTS_H

#include "device/device.h"

lap_status_t lap_no_probe(void);
lap_status_t lap_no_calls_begin(lap_device_t *device);
void lap_no_calls_end(lap_device_t *device);
lap_status_t lap_no_gemm_check(lap_device_t *device, lap_dtype_t a, lap_dtype_t b);
lap_status_t lap_no_check_memory(lap_device_t *device, const char *name, const void *memory);
bool lap_no_stall(lap_stream_t *stream, lap_stall_t *stall_p);
void lap_no_abort_waits(lap_device_t *device);
bool lap_no_timed_out(lap_device_t *device, lap_stall_t *stall_p);
void lap_no_release(lap_device_t *device, lap_event_t *until);
lap_status_t lap_no_stamp_delay(lap_stream_t *stream, uint64_t *ns_p);
lap_status_t lap_no_gemm_prepare(lap_stream_t *stream, const lap_gemm_t *gemm, bool tries);
int lap_no_gpu(lap_device_t *device);
bool lap_no_is_capturing(lap_stream_t *stream);

#endif
