/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What devices that are this host share: streams are worker threads with queues, events are
 * counters, and memory is plain memory. Such a device adds the kernel of its GEMM and puts all of
 * it into its table.
 */
#ifndef LAP_DEVICE_HOST_HOST_H
#define LAP_DEVICE_HOST_HOST_H

#include <stdatomic.h>

#include "device/no_slots.h"

/*
 * The rows of one block of a GEMM, as device.h says. Neither rows nor n is 0. `workspace` is memory
 * of the stream, as much as the kernel asked for.
 */
typedef lap_status_t (*lap_host_kernel_t)(const lap_gemm_t *gemm, const lap_gemm_block_t *block,
                                          void *workspace);

/* The slots of the table. */
void lap_host_close(lap_device_t *device);
lap_status_t lap_host_alloc(lap_device_t *device, size_t bytes, void **memory_p);
void lap_host_free(lap_device_t *device, void *memory);
lap_status_t lap_host_alloc_shared(lap_device_t *device, size_t bytes, void **memory_p);
lap_status_t lap_host_stream_create(lap_device_t *device, bool urgent, lap_stream_t **stream_p);
void lap_host_stream_destroy(lap_stream_t *stream);
lap_status_t lap_host_stream_call(lap_stream_t *stream, lap_stream_fn_t fn, const void *arg,
                                  size_t bytes);
lap_status_t lap_host_stream_synchronize(lap_stream_t *stream);
lap_status_t lap_host_event_create(lap_device_t *device, lap_event_t **event_p);
void lap_host_event_destroy(lap_event_t *event);
lap_status_t lap_host_event_record(lap_event_t *event, lap_stream_t *stream);
lap_status_t lap_host_stream_wait_event(lap_stream_t *stream, lap_event_t *event);
lap_status_t lap_host_event_synchronize(lap_event_t *event, const lap_watch_t *watch);
lap_status_t lap_host_stamp(lap_stream_t *stream, uint64_t *ns_p);
lap_status_t lap_host_stamp_delay(lap_stream_t *stream, uint64_t *ns_p);
lap_status_t lap_host_copy(lap_stream_t *stream, const lap_copy_t *copy);
lap_status_t lap_host_reduce(lap_stream_t *stream, const lap_reduce_t *reduce);
lap_status_t lap_host_column_sums(lap_stream_t *stream, const lap_column_sums_t *sums);
lap_status_t lap_host_cast(lap_stream_t *stream, const lap_cast_t *cast);
lap_status_t lap_host_transpose(lap_stream_t *stream, const lap_transpose_t *transpose);
lap_status_t lap_host_fill(lap_stream_t *stream, lap_dtype_t dtype, void *memory, size_t count,
                           uint64_t seed);

/* As a table has them. */
#define LAP_HOST_SLOTS                                                                             \
    .facts = LAP_HOST_FACTS, .close = lap_host_close, .alloc_shared = lap_host_alloc_shared,       \
    .free_shared = lap_host_free, .stream_create = lap_host_stream_create,                         \
    .stream_destroy = lap_host_stream_destroy, .stream_call = lap_host_stream_call,                \
    .stream_synchronize = lap_host_stream_synchronize, .event_create = lap_host_event_create,      \
    .event_destroy = lap_host_event_destroy, .event_record = lap_host_event_record,                \
    .stream_wait_event = lap_host_stream_wait_event,                                               \
    .event_synchronize = lap_host_event_synchronize, .stamp = lap_host_stamp,                      \
    .stamp_delay = lap_host_stamp_delay, .cast = lap_host_cast, .transpose = lap_host_transpose,   \
    .fill = lap_host_fill, .probe = lap_no_probe, .calls_begin = lap_no_calls_begin,               \
    .calls_end = lap_no_calls_end, .gemm_check = lap_no_gemm_check,                                \
    .check_memory = lap_no_check_memory, .stall = lap_no_stall, .abort_waits = lap_no_abort_waits, \
    .timed_out = lap_no_timed_out, .release = lap_no_release, .gemm_prepare = lap_no_gemm_prepare, \
    .gpu = lap_no_gpu, .is_capturing = lap_no_is_capturing

/* The others, which have a guarded form: see host_guard.h. */
#define LAP_HOST_OPEN_SLOTS                                                                        \
    .alloc = lap_host_alloc, .free = lap_host_free, .copy = lap_host_copy,                         \
    .reduce = lap_host_reduce, .column_sums = lap_host_column_sums

/* What the other slots are made of. */
lap_status_t lap_host_open(const lap_device_ops_t *ops, const lap_device_options_t *options,
                           lap_device_t **device_p);
lap_status_t lap_host_gemm(lap_stream_t *stream, const lap_gemm_t *gemm, lap_host_kernel_t kernel,
                           size_t workspace_bytes);

/*
 * Finishes x, results of columns [col, col + cols) of one row, and overwrites them. `d` and `aux`
 * are that row's first elements, aux may be NULL. x may be where d is, if that is float32 and has
 * not to be added. Without a finish x is only rounded.
 */
void lap_host_finish(const lap_finish_t *finish, float *x, size_t col, size_t cols,
                     lap_dtype_t dtype, void *d, void *aux);

/*
 * Memory for what runs on the stream, which lives as long as it. The first call allocates it, and
 * every later one asks for as much or less. `bytes` 0 gives NULL.
 */
lap_status_t lap_host_stream_workspace(lap_stream_t *stream, size_t bytes, void **workspace_p);

/* What stamp_delay writes; for what runs on the stream. */
uint64_t lap_host_stream_delay(lap_stream_t *stream);

/* As lap_host_stream_call; the function runs also when the stream has failed before it. */
lap_status_t lap_host_stream_always(lap_stream_t *stream, lap_stream_fn_t fn, const void *arg,
                                    size_t bytes);

/*
 * The failure that makes the stream skip its work, or LAP_OK. Copies the sentence, LAP_ERROR_TEXT
 * bytes.
 */
lap_status_t lap_host_stream_failure(lap_stream_t *stream, char *text);

/*
 * Spins until the counter has reached `target`, at most spin_ns. What was written before it did is
 * then visible.
 */
void lap_host_spin(const _Atomic uint64_t *counter, uint64_t target, uint64_t spin_ns);

#endif
