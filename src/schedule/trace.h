/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace: what ranks did in a call, or in all calls and kernels of a step, as one list of records. The
 * executor fills those of a call, a simulation those of all ranks. What was hidden, exposed and waited, what
 * arithmetic waited for, pictures and files all follow from these records.
 */
#ifndef LAP_SCHEDULE_TRACE_H
#define LAP_SCHEDULE_TRACE_H

#include <stdint.h>

#include <lap/trace.h>

#include "device/device.h"
#include "schedule/gather_records.h"
#include "schedule/intervals.h"
#include "schedule/schedule.h"

#define LAP_TRACE_MOST 1000000 /* records of all ranks together that a file should have */
#define LAP_TRACE_GROUPS 16    /* groups of ranks that a rank calls operators in */
#define LAP_NO_CALL                                                                                \
    UINT32_MAX /* the number of calls of further groups: their signals are matched with none */

/* What communication is for. */
typedef enum lap_traffic {
    LAP_TRAFFIC_NONE = 0,
    LAP_TRAFFIC_TP,
    LAP_TRAFFIC_PP,
    LAP_TRAFFIC_CP,
    LAP_TRAFFIC_DP,
    LAP_TRAFFICS
} lap_traffic_t;

/* "none", "tp", "pp", "cp" or "dp". */
const char *lap_traffic_name(lap_traffic_t traffic);

enum {
    LAP_TRACE_HOST = LAP_STEP_KINDS, /* kind of a record: what the host did */
    LAP_TRACE_HOST_STREAM = LAP_STREAMS,
    LAP_TRACE_LANES
};

/* ---- records ---- */

/*
 * Which group of ranks that is. Any ranks of the world may be one, and two may begin alike: {0, 2} is a context,
 * {0, 2, 4, 6} are its replicas.
 */
typedef struct lap_trace_group {
    int64_t size;    /* 0 or 1: nobody else is in it */
    uint64_t digest; /* of its ranks in the world, in their order */
} lap_trace_group_t;

/* Adds the next rank to a group, which is all zero before the first. */
void lap_trace_group_add(lap_trace_group_t *group, int rank);

#define LAP_RECORD_DEPS 8

/*
 * A step that ran, a tile of a GEMM, a kernel, or what the host did. Ranks are those of the trace: in that
 * of a call those of its group, in that of a step those of the world. Times are in nanoseconds.
 */
typedef struct lap_trace_record {
    int32_t rank;
    uint32_t kind;   /* lap_step_kind_t, or LAP_TRACE_HOST */
    uint32_t stream; /* below LAP_TRACE_LANES */
    uint32_t step;   /* of its call */
    uint32_t call;   /* which of the calls of its group; all ranks of the group count alike */
    lap_trace_group_t group;
    int32_t peer;     /* put, raise, wait; gemm tile: whom it tells, or waits for; -1: none */
    uint32_t signal;  /* put, raise, gemm tile that raises: word of the peer, or LAP_NO_SIGNAL */
    int32_t from;     /* wait, gemm tile that waits: whose signal that is, */
    uint32_t awaited; /* which word of this rank, */
    uint32_t count;   /* and after how many raises in the call it goes on; 0: it does not wait */
    uint32_t ndeps;   /* steps of other streams that it came after */
    uint32_t deps[LAP_RECORD_DEPS]; /* the first of them */
    uint32_t m, n, k;               /* gemm tile; else 0 */
    int32_t layer;                  /* -1: of none */
    uint32_t traffic;               /* lap_traffic_t */
    float predicted_us;             /* 0: not predicted */
    uint64_t first_row, rows; /* gemm tile, put: of the matrix of all ranks; no rows: not known */
    uint64_t bytes;           /* put, raise: counted where the signal is */
    uint64_t live_bytes;      /* of activations while it runs; 0: not known */
    lap_span_t span;     /* of the step on its stream; a GEMM tile that waited has ready < begin */
    lap_span_t flight;   /* put, raise with bytes: from its start to its delivery */
    lap_delays_t delays; /* of its stream's thread */
    char name[24];       /* of the fragment: "qkv_fprop"; empty: not told */
    char op[32];         /* "ag_gemm ring", or the kernel */
} lap_trace_record_t;

/* All of a record that is known before a step, or a tile of a GEMM step, runs. */
void lap_record_step(const lap_schedule_t *schedule, uint32_t index, lap_trace_record_t *record);
void lap_record_tile(const lap_schedule_t *schedule, uint32_t index, const lap_tile_t *tile,
                     lap_trace_record_t *record);

/* What did not wait was ready when it began. */
void lap_record_set_ready(lap_trace_record_t *record);

/* Whether it is known when something was. */
static inline bool lap_span_known(const lap_span_t *span)
{
    return span->end != 0 && span->end >= span->begin;
}

/* When it began to wait, or to run. */
static inline uint64_t lap_record_start(const lap_trace_record_t *record)
{
    const lap_span_t *span = &record->span;
    return span->ready != 0 && span->ready < span->begin ? span->ready : span->begin;
}

/* When it was done with what others wait for. */
static inline uint64_t lap_record_delivered(const lap_trace_record_t *record)
{
    return lap_span_known(&record->flight) ? record->flight.end : record->span.end;
}

/* ---- traces ---- */

/* A call as one rank saw it. */
typedef struct lap_trace_call {
    uint64_t begin, end;
    uint64_t delay; /* just before it began, whoever began it was ready to and had no core */
} lap_trace_call_t;

struct lap_trace {
    lap_op_kind_t kind;
    char method[32];
    int size;          /* ranks in it */
    const char *group; /* the kind of the group that it communicates in; NULL: not known */
    size_t m;
    uint64_t begin, end;   /* of the call here; after gathering: earliest and latest */
    uint64_t delay;        /* as in lap_trace_call_t, of this rank */
    uint64_t delay_before; /* what the calling thread had of it when the call was due; see mark */
    bool marked;
    bool emulated; /* a link was emulated */
    lap_trace_record_t *records;
    size_t nrecords, records_room;
    size_t most;    /* of records that are added: the others are counted; 0: LAP_TRACE_MOST */
    size_t dropped; /* how many those are */
    struct {
        lap_trace_group_t group;
        uint32_t calls;
    } groups[LAP_TRACE_GROUPS]; /* for lap_trace_number */
    size_t ngroups;
    lap_trace_call_t *calls;    /* after gathering: of each rank; else NULL */
    lap_clock_offset_t *clocks; /* the same */
    const struct lap_work
        *work; /* what its ranks did in other calls and kernels; NULL: not known */
};

/* Frees what it holds: for a trace that is part of something. */
void lap_trace_clear(lap_trace_t *trace);

/* Forgets all records, not their memory: for the next step. */
void lap_trace_reset(lap_trace_t *trace);

/*
 * Empties a trace and makes room for `nrecords` records, all zero, which the executor fills in
 * place; it also sets begin and end of the call. LAP_ERR_NO_MEMORY leaves the trace empty.
 */
lap_status_t lap_trace_begin(lap_trace_t *trace, lap_op_kind_t kind, const char *method, int size,
                             size_t m, bool emulated, size_t nrecords);

/*
 * Adds what another trace of this rank holds, of a call that ran at the same time: the call is then
 * both. Neither has been gathered, and the other is of a single call. LAP_ERR_NO_MEMORY changes nothing.
 */
lap_status_t lap_trace_join(lap_trace_t *trace, const lap_trace_t *other);

/* Adds a record, or counts it among those that had no room. */
void lap_trace_add(lap_trace_t *trace, const lap_trace_record_t *record);

/* What a call is, for its records in the trace of a step. */
typedef struct lap_trace_label {
    const char *name; /* of the fragment */
    const char *op;   /* what it runs: see lap_trace_record_t */
    int layer;
    lap_trace_group_t group;
    const int *ranks; /* of the group, in the world; NULL: those of the records are of the world */
    lap_traffic_t traffic;
    uint64_t live_bytes;
    float predicted_us;  /* of all of it; 0: not predicted */
    lap_delays_t delays; /* of a kernel; calls have those of their records */
} lap_trace_label_t;

/* "ag_gemm ring": what runs a schedule. */
typedef struct lap_op_text {
    char text[32];
} lap_op_text_t;
lap_op_text_t lap_op_text(lap_op_kind_t kind, const char *method);

/* The number of the next call of a group, which is then taken. */
uint32_t lap_trace_number(lap_trace_t *trace, const lap_trace_group_t *group);

/* Makes the record of a call one of a step: call `number` of the group of the label. */
void lap_record_label(lap_trace_record_t *record, const lap_trace_label_t *label, uint32_t number);

/*
 * Adds the records of a call that has ended, of one rank. Every rank of a group adds the calls of that
 * group in the same order.
 */
void lap_trace_add_call(lap_trace_t *trace, const lap_trace_label_t *label,
                        const lap_trace_record_t *records, size_t nrecords);

/* A kernel, or what the host did: one span. */
void lap_trace_add_span(lap_trace_t *trace, int rank, uint32_t kind, uint32_t stream,
                        const lap_trace_label_t *label, const lap_span_t *span);

/*
 * Lets the call begin with its first step and end with its last: for one that was begun long before
 * its turn came, or ended long after. Of a gathered trace that is done to the call of each rank.
 */
void lap_trace_trim(lap_trace_t *trace);

/*
 * The next call with this trace is due now, after a barrier. What delays the calling thread from here
 * on makes it late, unless the thread has no core.
 */
void lap_trace_mark(lap_trace_t *trace);

/* Notes the begin of the call, in the calling thread. */
void lap_trace_start(lap_trace_t *trace);

/*
 * As lap_trace_gather, but every rank gets all records, by its own clock and not by that of rank 0. Of both:
 * what was dropped anywhere is in `dropped`.
 */
lap_status_t lap_trace_share(lap_trace_t *trace, lap_group_t *group);

/* ---- what follows from them ---- */

/* The record that raised what each record waited for; LAP_NO_STEP: none that is known. LAP_ERR_NO_MEMORY. */
lap_status_t lap_trace_match(const lap_trace_t *trace, uint32_t *released_by);

/*
 * What a rank did, by time. Lists are joined. In flight: any transfer from or to it, from its start to its
 * delivery.
 */
typedef struct lap_rank_times {
    lap_intervals_t busy;     /* it computed (lap_step_computes), or did other work */
    lap_intervals_t flight;   /* something was in flight, */
    lap_intervals_t unhidden; /* ... and it did not compute */
    uint64_t busy_ns, flight_ns, hidden_ns;
} lap_rank_times_t;

/*
 * What the ranks from `first` to before `end` did within an interval: times[0], all zero when given, is of
 * rank `first`. They also worked in the intervals of `work`, which are no part of the trace; NULL: in none. The
 * caller clears them, also after a failure. LAP_ERR_NO_MEMORY.
 */
lap_status_t lap_trace_times(const lap_trace_t *trace, int first, int end,
                             const lap_interval_t *within, const lap_intervals_t *work,
                             lap_rank_times_t *times);
void lap_rank_times_clear(lap_rank_times_t *times);

/* What arithmetic stood still for. */
typedef enum lap_cause {
    LAP_CAUSE_WIRE = 0, /* data, or a signal, were on their way */
    LAP_CAUSE_LATE,     /* a rank had not begun the call, or not made what it was to send */
    LAP_CAUSE_CORE,     /* whoever was next could have gone on and was not running */
    LAP_CAUSES
} lap_cause_t;

/* "wire", "late" or "core". */
const char *lap_cause_name(lap_cause_t cause);

/* A piece of the time in which arithmetic stood still. */
typedef struct lap_pause {
    uint64_t begin, end;
    lap_cause_t cause;
    int who;         /* the rank that was late, had no core, or had something under way */
    int from;        /* whose signal was waited for; -1: none was */
    uint32_t signal; /* which word of this rank */
} lap_pause_t;

/* The bytes that a trace says were sent to other ranks. */
double lap_trace_bytes(const lap_trace_t *trace);

/* The call as one rank saw it. */
typedef struct lap_trace_view {
    lap_interval_t call;
    lap_rank_times_t times;        /* within the call */
    lap_intervals_t idle;          /* it did not compute, nor other work; in order */
    uint64_t waited_ns;            /* the rank did not compute: the sum of `idle`, */
    uint64_t cause_ns[LAP_CAUSES]; /* which is that of these, too */
    lap_pause_t *pauses;           /* and that of these, in order */
    size_t npauses;
} lap_trace_view_t;

/*
 * Looks at a trace from one rank's side; `work` is as for lap_trace_times. The caller clears the view. A trace
 * that has not been gathered knows nothing of the peers: all that they were waited for counts as on the wire.
 * LAP_ERR_NO_MEMORY.
 */
lap_status_t lap_trace_view(const lap_trace_t *trace, int rank, const lap_intervals_t *work,
                            lap_trace_view_t *view_p);
void lap_trace_view_clear(lap_trace_view_t *view);

/* Something that a rank computed or waited for. */
typedef struct lap_done {
    const lap_trace_record_t *record;
    uint64_t first; /* the least begin of this and of what the rank ended later */
} lap_done_t;

/* All of a trace, rank by rank in the order of their ends. */
typedef struct lap_work {
    lap_done_t *list;
    size_t count;
} lap_work_t;

/* The trace lives as long as this, which the caller clears, also after a failure. LAP_ERR_NO_MEMORY. */
lap_status_t lap_work_init(lap_work_t *work, const lap_trace_t *trace);
void lap_work_clear(lap_work_t *work);

/* The part of lap_trace_view that finds the causes of `idle`: see cause.c. */
lap_status_t lap_trace_find_causes(const lap_trace_t *trace, int rank, lap_trace_view_t *view);

#endif
