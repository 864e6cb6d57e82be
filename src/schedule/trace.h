/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trace holds: one record per step that ran, and per block of a GEMM, of one rank or of all.
 */
#ifndef LAP_SCHEDULE_TRACE_H
#define LAP_SCHEDULE_TRACE_H

#include <stdint.h>

#include <lap/trace.h>

#include "device/device.h"
#include "schedule/schedule.h"

typedef struct lap_trace_record {
    int32_t rank;
    uint32_t kind; /* lap_step_kind_t */
    uint32_t stream;
    uint32_t step;
    int32_t peer; /* put, raise, wait; gemm block: whose rows it waited for, or -1 */
    uint32_t reserved;
    uint64_t bytes;    /* put, raise */
    lap_span_t span;   /* of the step on its stream; a GEMM block that waited has ready < begin */
    lap_span_t flight; /* put, raise with bytes: from its start to its delivery */
} lap_trace_record_t;

struct lap_trace {
    lap_op_kind_t kind;
    char method[32];
    int size; /* ranks in it */
    size_t m;
    uint64_t begin, end; /* of the call here; after gathering: earliest and latest */
    bool emulated;       /* a link was emulated */
    lap_trace_record_t *records;
    size_t nrecords, records_room;
    lap_span_t *calls; /* after gathering: of the call on each rank; else NULL */
};

/*
 * Empties a trace and makes room for `nrecords` records, all zero, which the executor fills in
 * place; it also sets begin and end of the call. LAP_ERR_NO_MEMORY leaves the trace empty.
 */
lap_status_t lap_trace_begin(lap_trace_t *trace, lap_op_kind_t kind, const char *method, int size,
                             size_t m, bool emulated, size_t nrecords);

/*
 * Adds what another trace of this rank holds, of a call that ran at the same time: the call is then
 * both. Neither has been gathered. LAP_ERR_NO_MEMORY changes nothing.
 */
lap_status_t lap_trace_join(lap_trace_t *trace, const lap_trace_t *other);

/*
 * Lets the call begin with its first step and end with its last: for one that was begun long before
 * its turn came, or ended long after.
 */
void lap_trace_trim(lap_trace_t *trace);

typedef struct lap_interval {
    uint64_t begin, end;
} lap_interval_t;

/*
 * The call as one rank saw it. In flight: any transfer from or to it, from its start to its
 * delivery.
 */
typedef struct lap_trace_view {
    lap_interval_t call;
    lap_interval_t *idle; /* of the compute stream: no GEMM, REDUCE or COPY; in order */
    size_t nidle;
    uint64_t flight_ns;  /* something was in flight */
    uint64_t hidden_ns;  /* ... and the compute stream worked */
    uint64_t exposed_ns; /* the compute stream stood still: the sum of `idle` */
} lap_trace_view_t;

/* Looks at a trace from one rank's side. The caller clears the view. LAP_ERR_NO_MEMORY. */
lap_status_t lap_trace_view(const lap_trace_t *trace, int rank, lap_trace_view_t *view_p);
void lap_trace_view_clear(lap_trace_view_t *view);

#endif
