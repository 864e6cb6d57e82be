/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guard mode: a kernel gets copies of its operands, of which first the ends and then the beginnings lie at memory that
 * nobody can reach, while what the device has allocated is out of reach as a whole. Whatever else it touches is a failure of
 * its stream, LAP_ERR_CHECK, with a sentence. It runs once with each kind of copies, and what it does not declare to read
 * has other contents each time: results that differ are a failure, too. The mode catches SIGSEGV for the process, so it is
 * for commands and tests, which start it before they open devices, and it lasts as long as the process.
 */
#ifndef LAP_DEVICE_HOST_HOST_GUARD_H
#define LAP_DEVICE_HOST_HOST_GUARD_H

#include "device/host/host.h"

/* Rows of an operand. */
typedef struct lap_touch {
    void *data; /* NULL: there is no such operand */
    size_t rows, row_bytes, pitch;
    uint32_t operand; /* its number in sentences */
    bool reads, writes;
} lap_touch_t;

/*
 * Does what is guarded: data[i] is where touch i is this time. `room` is memory that lives until it has run, as does
 * `data`.
 */
typedef lap_status_t (*lap_guarded_fn_t)(void *context, void *const *data, void *room);

typedef struct lap_guard_call {
    const char *name;
    const lap_touch_t *touches;
    size_t count, room;
    lap_guarded_fn_t run;
    void *context;
} lap_host_guard_call_t;

lap_status_t lap_host_guard_start(void);
bool lap_host_guard_is_on(void);

/* How many kernels have run so far in this process without a failure. */
uint64_t lap_host_guard_count(void);

/* Guards what `run` issues to the stream; meanwhile lap_host_guard_is_issuing is true in the calling thread. */
bool lap_host_guard_is_issuing(void);
lap_status_t lap_host_guard_issue(lap_stream_t *stream, const lap_host_guard_call_t *call);

/* Guards what `run` does by itself, in the calling thread. */
lap_status_t lap_host_guard_run(const lap_host_guard_call_t *call);

/* Memory that is out of reach while a kernel runs; another thread that touches it then waits until the kernel has run. */
lap_status_t lap_host_guard_cover(void *memory, size_t bytes);
void lap_host_guard_uncover(void *memory);

/* The slots of a device whose memory is so. */
lap_status_t lap_host_guard_alloc(lap_device_t *device, size_t bytes, void **memory_p);
void lap_host_guard_free(lap_device_t *device, void *memory);

#endif
