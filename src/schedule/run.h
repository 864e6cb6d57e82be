/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running schedules: the engine of a world, and a schedule made ready to be issued again and again.
 */
#ifndef LAP_SCHEDULE_RUN_H
#define LAP_SCHEDULE_RUN_H

#include "core/status.h"
#include "kernel/plugin/plugin.h"
#include "schedule/marks.h"
#include "schedule/schedule.h"
#include "schedule/trace.h"
#include "transport/transport.h"

/*
 * An operator with calls that may be in flight: one that was begun and has not been ended, or any
 * in the order of a caller's stream, for whose end nobody may wait.
 */
typedef struct lap_in_flight {
    lap_group_t *group;
    const lap_buffer_t *buffer; /* what its calls wait on */
    /* Of calls that another library does, whose waits nobody sees: "ag_gemm", "cublasmp". */
    const lap_foreign_t *foreign; /* NULL: they are ours */
    const char *what, *method;
    uint64_t foreign_call;      /* the one that a watcher saw last; 0: none, */
    uint64_t foreign_lost_ns;   /* since when a peer of it is lost; 0: none is, */
    lap_deadline_t foreign_end; /* and how long it may last */
    struct lap_in_flight *next;
} lap_in_flight_t;

/* The device of a world with the streams that all its operators share. */
typedef struct lap_engine lap_engine_t;
typedef struct lap_guard lap_guard_t; /* see guard.h */
struct lap_engine {
    lap_device_t *device;
    lap_stream_t *streams[LAP_STREAMS];  /* NULL: there is none of this kind, or none yet */
    lap_event_t *joins[LAP_STREAMS];     /* order all streams after one another, */
    lap_event_t *call_ends[LAP_STREAMS]; /* and those of one call, within it */
    /* Bits of streams: what is not ordered yet is ordered when the stream is given something. */
    unsigned used;            /* given something since the last join of its set; not of COMPUTE */
    unsigned awaits_compute;  /* must wait for COMPUTE of its set, as it was at the last join, */
    unsigned recorded;        /* bits of COMPUTE streams: those of which `joins` tells that */
    unsigned awaits_enqueued; /* must wait for `enqueued_end` */
    unsigned awaits_graphs[LAP_STREAMS]; /* of each: streams with graphs that have work of it */
    /* Recorded at the end of the latest call of a set in a caller's order, if there was one; */
    lap_event_t *enqueued_end[LAP_STREAM_SETS];
    bool has_enqueued[LAP_STREAM_SETS];
    lap_event_t *captured_end[LAP_STREAM_SETS]; /* and of calls that a caller captures in a graph */
    bool capturing; /* streams may still be part of a graph that a caller is making */
    lap_in_flight_t *in_flight;
    lap_marks_t *marks;  /* NULL: no profiler listens */
    uint32_t failures;   /* of the streams so far; calls in flight share them */
    lap_status_t status; /* of the latest failure */
    char text[LAP_ERROR_TEXT];
    lap_guard_t *guard; /* NULL: nothing is to be guarded yet, or nobody can: */
    bool unguarded;     /* and a warning has been printed */
};

/* The engine of a world, made when first asked for; it ends with the world. */
lap_status_t lap_engine_get(lap_world_t *world, lap_engine_t **engine_p);

/* Makes the streams of a set, unless they are there; they end with the engine. */
lap_status_t lap_engine_need_set(lap_engine_t *engine, lap_stream_set_t set);

/* The same of all sets with one of these streams, by their bits, and of the second pair what is asked for. */
lap_status_t lap_engine_need_streams(lap_engine_t *engine, unsigned streams);

/* Waits for an event on its streams, and watches what they wait for. Returns their failure. */
lap_status_t lap_engine_await(lap_engine_t *engine, lap_event_t *event);

/*
 * All that is issued from now on to a stream of a set runs after all that was issued to the set so far.
 * In sets other than the foreground it also runs after all in the foreground. COMPUTE is ordered at
 * once, the others when they are taken. Nothing in the foreground waits for other sets.
 */
lap_status_t lap_engine_join(lap_engine_t *engine, lap_stream_set_t set);

/* After `enqueued_end` was recorded on a stream: whatever its set is given from now on waits for it. */
void lap_engine_enqueued(lap_engine_t *engine, int stream);

/* Around whatever is given the device in a row, as calls_begin and calls_end of its table. */
lap_status_t lap_engine_calls_begin(const lap_engine_t *engine);
void lap_engine_calls_end(const lap_engine_t *engine);

/* Before something is issued to these streams (bits), of any set; to COMPUTE only, a join is enough. */
lap_status_t lap_engine_take(lap_engine_t *engine, unsigned streams);

/* Before a graph with work of these streams is launched on the first of them; sets other than its have been joined. */
lap_status_t lap_engine_take_graph(lap_engine_t *engine, unsigned streams);

/*
 * Notes a failure, with its sentence in lap_last_error, for all calls that are in flight, and waits
 * until nothing of them runs any more and the event, if not NULL, has happened. Breaks the groups
 * of operators in flight before: what their calls do from then on is not what they should.
 */
void lap_engine_fail(lap_engine_t *engine, lap_status_t status, lap_event_t *until);

/*
 * Whether calls that nobody waited for have failed; then as lap_engine_fail, and returns why. Costs
 * next to nothing.
 */
lap_status_t lap_engine_check(lap_engine_t *engine);

/* The same, for a group: one that had no such calls is none the worse. */
lap_status_t lap_engine_check_group(lap_engine_t *engine, lap_group_t *group);

/*
 * LAP_ERR_BUSY while the streams are part of a graph that a caller is making: whatever they were
 * given would become part of it.
 */
lap_status_t lap_engine_check_free(lap_engine_t *engine);

/* Waits for the calls in the order of callers' streams that were issued so far, as far as known. */
lap_status_t lap_engine_await_enqueued(lap_engine_t *engine);

/*
 * Waits until a caller's stream has ended all that it was given, and watches meanwhile. Returns
 * what calls in flight failed of.
 */
lap_status_t lap_engine_synchronize(lap_engine_t *engine, void *caller);

/*
 * Ranks that share a GPU share its failures: where one dies, the driver may fail the others. Then
 * the death is the cause, if it is that of a rank in the group of one in flight; it may be seen a moment
 * later than the failure. Returns its status, with a sentence in lap_last_error that goes on with
 * `doing` and with what failed; else the status as it is.
 */
lap_status_t lap_engine_find_cause(const lap_engine_t *engine, lap_status_t status,
                                   const char *doing);

/*
 * From now on calls in this group may be waited for by nobody, while the caller waits for its
 * stream: should a call fail, the stream goes on all the same. Before they are in flight.
 */
void lap_engine_guard(lap_engine_t *engine, const lap_group_t *group);
/* Breaks the groups of all operators in flight. */
void lap_engine_break_in_flight(const lap_engine_t *engine, lap_status_t status, const char *text);

void lap_engine_add_in_flight(lap_engine_t *engine, lap_in_flight_t *op);
void lap_engine_remove_in_flight(lap_engine_t *engine, lap_in_flight_t *op);

/*
 * What a call costs whose `nsteps` steps do next to nothing: the best of a few. They are on all streams in
 * turn, on one, or on all in turn where each waits for the one before. Calls in flight are waited for.
 */
typedef enum lap_overhead {
    LAP_OVERHEAD_APART,
    LAP_OVERHEAD_IN_LINE,
    LAP_OVERHEAD_LINKED
} lap_overhead_t;
lap_status_t lap_engine_overhead(lap_engine_t *engine, uint32_t nsteps, lap_overhead_t order,
                                 double *seconds_p);

/* A schedule with all that issuing it needs, so that issuing allocates nothing. */
typedef struct lap_runnable lap_runnable_t;

/*
 * Takes over a schedule that was lowered for the engine's device and the transport of its calls; it
 * is cleared by lap_runnable_destroy, or here on failure.
 */
lap_status_t lap_runnable_create(lap_engine_t *engine, lap_schedule_t *schedule,
                                 lap_runnable_t **runnable_p);
void lap_runnable_destroy(lap_runnable_t *runnable);
const lap_schedule_t *lap_runnable_schedule(const lap_runnable_t *runnable);
/* The number of its latest call among those of the group; 0: it is not counted. */
uint64_t lap_runnable_number(const lap_runnable_t *runnable);

/* The records that a trace of one call of the runnable, or of a schedule, needs. */
size_t lap_runnable_records(const lap_runnable_t *runnable);
size_t lap_schedule_records(const lap_schedule_t *schedule);

/* The bytes of the host's memory that the runnable of a schedule takes, without events. */
size_t lap_runnable_bytes(const lap_schedule_t *schedule);

/*
 * Where a place starts, and the bytes from row to row: in the packed matrix of the schedule and in
 * the caller's.
 */
typedef struct lap_bound_place {
    char *base;
    size_t packed_stride;
    size_t stride;
} lap_bound_place_t;

/* One call: the memory that the places stand for, and the numbers that go with it. */
typedef struct lap_binding {
    lap_bound_place_t places[LAP_PLACES]; /* LAP_SYMMETRIC comes from the buffer */
    float scale; /* of the product: alpha and the scales of a and b that do not travel */
    float beta;
    float a_scale, d_scale, wire_scale;
    float sent_scale; /* what the place LAP_SCALE holds, where the device has a slot to set it, */
    bool sets_scale;  /* and it is not the caller's */
    const float *a_scale_ptr, *b_scale_ptr; /* of a and b; NULL: their scales are in `scale` */
    lap_tensor_t bias, aux, bias_grad;      /* aux.data NULL: not stored */
    int copy_sms, spare_sms;                /* as in lap_copy_t and lap_gemm_t */
    lap_buffer_t *buffer;
    lap_foreign_t *foreign; /* what a KERNEL step of an operator is; NULL: it has none */
    uint32_t op_index;      /* of the operator among those of the buffer */
    bool traced;            /* for lap_runnable_read_trace; not in the order of a caller's stream */
    uint64_t chaos;         /* not 0: the seed of random delays before steps; for tests */
} lap_binding_t;

/*
 * Lets the device find out how to do the GEMMs of calls that are bound like this one, whose memory
 * is not touched; if it `tries`, by trial, which takes a while. Blocks.
 */
lap_status_t lap_runnable_prepare(lap_runnable_t *runnable, const lap_binding_t *binding,
                                  bool tries);

/*
 * Issues all steps to the engine's streams; lap_runnable_wait waits for them. The binding's
 * memory must live until then, and the runnable is not issued again before. Does not
 * block.
 */
lap_status_t lap_runnable_issue(lap_runnable_t *runnable, const lap_binding_t *binding);

/*
 * The same in the order of a caller's stream, between caller_begin and caller_end of the device:
 * the stream goes on after all of it has ended, and nobody waits for it. The runnable may be
 * issued so again at once. LAP_ERR_BUSY: nothing was issued.
 */
lap_status_t lap_runnable_enqueue(lap_runnable_t *runnable, const lap_binding_t *binding,
                                  void *caller);

/*
 * The same while the caller captures the stream: the call does not run but becomes part
 * of the caller's graph, and the runnable must live as long as that. Nothing else must be issued
 * before the caller has ended it: see lap_engine_check_free.
 */
lap_status_t lap_runnable_enqueue_captured(lap_runnable_t *runnable, const lap_binding_t *binding,
                                           void *caller);

/*
 * Waits until all steps of the latest issue have run, or one has failed. Returns its failure; what
 * else was issued may still run then: see lap_engine_fail.
 */
lap_status_t lap_runnable_wait(lap_runnable_t *runnable);

/*
 * Copies the records of the latest call, which was traced, and of which nothing runs any more, into
 * a trace that has room for them.
 */
void lap_runnable_read_trace(const lap_runnable_t *runnable, lap_trace_t *trace);

/* The same records where they are. */
const lap_trace_record_t *lap_runnable_records_of(const lap_runnable_t *runnable);

/*
 * What issuing and running a step costs when it does next to nothing: `nsteps` tiny copies in turn
 * on all streams.
 */
lap_status_t lap_run_overhead(const char *device, uint32_t nsteps, double *ns_per_step_p);

#endif
