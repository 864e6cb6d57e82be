/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a runnable, for those who make it and launch it (run.c) and who issue its steps. */
#ifndef LAP_SCHEDULE_RUNNABLE_H
#define LAP_SCHEDULE_RUNNABLE_H

#include "schedule/run.h"

/* What the waits and raises of one GEMM step need while it runs. */
typedef struct lap_gemm_context {
    lap_runnable_t *runnable;
    lap_buffer_t *buffer;
    const lap_step_t *step;
    const lap_wait_reason_t *reason;
    lap_watch_t watch;
    uint32_t lost; /* the tile whose signal cannot come any more, once that is known */
} lap_gemm_context_t;

struct lap_runnable {
    lap_engine_t *engine;
    lap_schedule_t schedule;
    lap_gemm_block_t *blocks;   /* per tile of the schedule */
    lap_raise_t *raises;        /* per tile */
    lap_gemm_context_t *gemms;  /* per step; only those of GEMM steps are used */
    lap_wait_reason_t *reasons; /* per step */
    lap_event_t **events;       /* per step: recorded after it; NULL when nobody waits for that */
    lap_event_t *ends[LAP_STREAMS]; /* recorded when a stream has ended its part of a call */
    const void **sources;           /* per use: the operands of reductions, and their scales */
    size_t *source_strides;
    lap_finish_t *finishes;      /* per step: what becomes of its results */
    lap_trace_record_t *records; /* of the latest call that was traced */
    bool sends_scale;            /* some step reads LAP_SCALE */
    unsigned ended;              /* bits: of `ends`, those recorded by the latest call */
    lap_binding_t last;          /* of the latest call, */
    bool called;                 /* if there was one */
    lap_graph_t *graph;          /* of calls bound as the latest; NULL: none */
    bool captured;               /* the graph is that of `last` */
    bool uncaptured;             /* there was no room for a graph of it */
    char label[64];              /* for a profiler */
    uint64_t number;             /* of the latest call: see lap_runnable_number */
};

/* The streams that the runnable uses, the first of them first; returns how many. */
size_t lap_runnable_streams(const lap_runnable_t *runnable, lap_stream_t **streams, int *first_p);

/*
 * Issues every step of a call to its stream, and what the transport does when all signals are over.
 * Everything that this needs is there already: it only fills it in and hands it over.
 */
lap_status_t lap_runnable_issue_steps(lap_runnable_t *runnable, const lap_binding_t *binding);

/* What a step of a linked program comes after, besides the steps of its own fragment. */
typedef struct lap_links {
    lap_status_t (*before)(void *context, uint32_t step, lap_stream_t *stream);
    void *context;
} lap_links_t;

/* The same for a call that is a fragment of a linked program, after lap_runnable_prepare. */
lap_status_t lap_runnable_issue_linked(lap_runnable_t *runnable, const lap_binding_t *binding,
                                       const lap_links_t *links);

/* Makes the event of a step, which is recorded after it from then on, unless it has one. */
lap_status_t lap_runnable_need_event(lap_runnable_t *runnable, uint32_t step);

/*
 * Says to the peers, and to the waits of a call, which call this is. `captured`: it becomes part of a
 * caller's graph.
 */
void lap_runnable_announce(lap_runnable_t *runnable, const lap_binding_t *binding, bool captured);

/* Before a call that is traced: the times of the call before are not those of this one. */
void lap_runnable_forget_times(lap_runnable_t *runnable);

/* After a call was issued: the next one counts the signals of the buffer from here. */
void lap_runnable_count_signals(const lap_runnable_t *runnable, lap_buffer_t *buffer);

/* The streams that the runnable uses, as bits. */
unsigned lap_runnable_stream_bits(const lap_runnable_t *runnable);

#endif
